//! Containers that share a shim by annotation.

use berth_proto::process::Status;
use berth_proto::task::{ConnectRequest, ConnectResponse, task_service};
use berth_proto::ttrpc::Code;

use super::{Case, containers, shim};
use crate::harness::{BY_GROUP, BY_SANDBOX, Bootstrap, Group, Shim, Spec, Task, World, until};

pub(super) const CASES: &[Case] = &[
    containers("members_live_their_own_lives", members_live_their_own_lives),
    containers("members_share_namespaces_by_path", members_share_namespaces_by_path),
    shim("either_annotation_leads_to_one_shim", either_annotation_leads_to_one_shim),
    shim("the_groups_own_annotation_comes_first", the_groups_own_annotation_comes_first),
    shim("connect_answers_for_any_id", connect_answers_for_any_id),
    shim("the_shim_ends_after_the_last_member", the_shim_ends_after_the_last_member),
];

fn members_live_their_own_lives(world: &World) {
    let group = Group::start(world, "c1", BY_SANDBOX);
    let other = group.join("c2");
    let (one, two) = (
        Task::start(&group.first, "c1", Spec::sh("exec sleep 1000")),
        Task::start(&other, "c2", Spec::sh("exec sleep 1000")),
    );
    one.kill(9).unwrap();
    assert_eq!(one.wait(), 137);
    one.delete().unwrap();
    assert_eq!(one.state().unwrap_err().code, Code::NotFound);
    assert_eq!(two.status(), Status::Running);
    group.first.shutdown();
    assert_eq!(two.status(), Status::Running, "the shim goes on for the others");
}

fn members_share_namespaces_by_path(world: &World) {
    let group = Group::start(world, "c1", BY_SANDBOX);
    let holder = Task::start(&group.first, "c1", Spec::sh("exec sleep 1000"));
    let script = "for kind in net ipc uts; do readlink /proc/self/ns/$kind; done";
    let path = |file: &str| format!("/proc/{}/ns/{file}", holder.pid);
    let spec = Spec::sh(script).joining("network", &path("net")).joining("ipc", &path("ipc"));
    let member = Task::start(&group.first, "c2", spec);
    assert_eq!(member.wait(), 0);
    let of_holder = |file: &str| std::fs::read_link(path(file)).unwrap().display().to_string();
    let seen = until("three namespaces", || Some(member.stdout()).filter(|seen| seen.lines().count() == 3));
    let seen: Vec<&str> = seen.lines().collect();
    assert_eq!(seen[..2], [of_holder("net"), of_holder("ipc")]);
    assert_ne!(seen[2], of_holder("uts"), "what was not asked for is its own");
}

fn either_annotation_leads_to_one_shim(world: &World) {
    for (group, annotation) in [("g1", BY_SANDBOX), ("g2", BY_GROUP)] {
        let first = Group::start(world, group, annotation);
        first.join(&format!("{group}-second"));
        first.join(&format!("{group}-third"));
    }
}

fn the_groups_own_annotation_comes_first(world: &World) {
    let group = Group::start(world, "g1", BY_GROUP);
    let spec = Spec::sh("").annotation(BY_GROUP, "g1").annotation(BY_SANDBOX, "another");
    let both = Shim::start(world, "c2", &spec.to_json(), Bootstrap::Messages);
    assert_eq!((both.socket(), both.pid), (group.first.socket(), group.first.pid));
}

fn connect_answers_for_any_id(world: &World) {
    let group = Group::start(world, "c1", BY_SANDBOX);
    let connect = |id: &str| -> ConnectResponse {
        group.first.task(task_service::CONNECT, &ConnectRequest { id: id.to_owned() }).unwrap()
    };
    assert_eq!(connect("c1").shim_pid, group.first.pid);
    assert_eq!((connect("no-such").shim_pid, connect("no-such").task_pid), (group.first.pid, 0));
    let task = Task::start(&group.first, "c2", Spec::sh("exec sleep 1000"));
    assert_eq!(connect("c2").task_pid, task.pid);
}

fn the_shim_ends_after_the_last_member(world: &World) {
    let group = Group::start(world, "c1", BY_SANDBOX);
    let other = group.join("c2");
    let (one, two) = (Task::start(&group.first, "c1", Spec::sh("")), Task::start(&other, "c2", Spec::sh("")));
    for task in [&one, &two] {
        task.wait();
        task.delete().unwrap();
        task.shim.shutdown();
    }
    group.first.ends();
}
