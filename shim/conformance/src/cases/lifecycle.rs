//! The life of a container.

use std::fs;

use berth_proto::process::Status;
use berth_proto::task::{StateRequest, StateResponse, WaitRequest, WaitResponse, task_service};
use berth_proto::{TASK_V3, Timestamp};

use super::{Case, containers, shim};
use crate::harness::{Shim, Spec, Streams, Task, World, until};

pub(super) const CASES: &[Case] = &[
    containers("a_task_lives_and_dies_in_order", a_task_lives_and_dies_in_order),
    containers("a_task_may_end_before_its_start", a_task_may_end_before_its_start),
    containers("the_place_of_the_root_need_not_be_there", the_place_of_the_root_need_not_be_there),
    containers("exit_codes_are_exact", exit_codes_are_exact),
    containers("an_id_is_free_after_delete", an_id_is_free_after_delete),
    shim("the_state_tells_what_was_asked_for", the_state_tells_what_was_asked_for),
    shim("everybody_who_waits_is_answered", everybody_who_waits_is_answered),
    shim("answers_overtake_each_other", answers_overtake_each_other),
    shim("the_time_of_the_end_is_one", the_time_of_the_end_is_one),
    shim("pids_of_an_ended_task_are_kept_until_delete", pids_of_an_ended_task_are_kept_until_delete),
    shim("shutdown_waits_for_tasks", shutdown_waits_for_tasks),
];

fn a_task_lives_and_dies_in_order(world: &World) {
    let spec = Spec::sh("exec sleep 1000");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::create(&shim, "c1", spec);
    assert_eq!(task.status(), Status::Created);
    assert!(task.pid > 0);
    assert!(task.is_mounted());
    assert_eq!(task.begin().unwrap().pid, task.pid);
    assert_eq!(task.status(), Status::Running);
    assert_eq!(task.pids().unwrap(), [task.pid]);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    assert_eq!(task.status(), Status::Stopped);
    assert_eq!(task.state().unwrap().exit_status, 137);
    let deleted = task.delete().unwrap();
    assert_eq!((deleted.pid, deleted.exit_status), (task.pid, 137));
    assert!(!task.is_mounted());
    let events = world.containerd.events_of("c1", "delete c1");
    let topics: Vec<String> = events.iter().map(|event| event.brief()).collect();
    assert_eq!(topics, ["create c1", "start c1", "exit c1", "delete c1"]);
    assert!(events.iter().all(|event| event.pid == task.pid));
    assert_eq!((events[2].code, events[3].code), (137, 137));
}

fn a_task_may_end_before_its_start(world: &World) {
    let spec = Spec::sh("exit 0");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::create(&shim, "c1", spec);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    assert_eq!(task.status(), Status::Stopped);
    task.begin().unwrap_err();
    task.delete().unwrap();
    let topics: Vec<String> =
        world.containerd.events_of("c1", "delete c1").iter().map(|event| event.topic.clone()).collect();
    assert_eq!(topics, ["create", "exit", "delete"]);
}

fn exit_codes_are_exact(world: &World) {
    let spec = |code: u32| Spec::sh(&format!("exit {code}"));
    let shim = Shim::start_for(world, "c0", &spec(0));
    for code in [0, 1, 42, 126, 127, 128, 255] {
        let task = Task::start(&shim, &format!("c{code}"), spec(code));
        assert_eq!(task.wait(), code);
        assert_eq!(task.delete().unwrap().exit_status, code);
        assert_eq!(world.containerd.event(&format!("exit c{code}")).code, code);
    }
}

fn an_id_is_free_after_delete(world: &World) {
    let spec = Spec::sh("exit 3");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    assert_eq!(task.wait(), 3);
    task.delete().unwrap();
    let next = Task::start(&shim, "c1", Spec::sh("exit 9"));
    assert_eq!(next.wait(), 9);
}

fn the_state_tells_what_was_asked_for(world: &World) {
    let spec = Spec::sh("exit 5");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::create(&shim, "c1", spec);
    let state = task.state().unwrap();
    assert_eq!((state.id.as_str(), state.pid, state.terminal), ("c1", task.pid, false));
    assert_eq!(state.bundle, task.bundle.display().to_string());
    assert!(state.stdin.is_empty());
    assert!(state.stdout.starts_with("file:///") && state.stderr == state.stdout, "{state:?}");
    task.begin().unwrap();
    task.wait();
    let state = task.state().unwrap();
    assert_eq!((state.status(), state.exit_status, state.pid), (Status::Stopped, 5, task.pid));
}

fn everybody_who_waits_is_answered(world: &World) {
    let spec = Spec::sh("exec sleep 1000");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::create(&shim, "c1", spec);
    let request = WaitRequest { id: "c1".to_owned(), exec_id: String::new() };
    let mut waiting: Vec<_> = (0..10)
        .map(|_| {
            let mut conn = shim.connect();
            let stream = conn.begin(TASK_V3, task_service::WAIT, &request);
            (conn, stream)
        })
        .collect();
    // Clients may leave while they wait.
    drop(waiting.split_off(8));
    task.begin().unwrap();
    task.kill(9).unwrap();
    for (conn, stream) in &mut waiting {
        let answer: WaitResponse = conn.end(*stream).unwrap();
        assert_eq!(answer.exit_status, 137);
    }
    assert_eq!(task.wait(), 137, "late, but not too late");
}

fn answers_overtake_each_other(world: &World) {
    let spec = Spec::sh("exec sleep 1000");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    let mut conn = shim.connect();
    let request = WaitRequest { id: "c1".to_owned(), exec_id: String::new() };
    let waiting = conn.begin(TASK_V3, task_service::WAIT, &request);
    let request = StateRequest { id: "c1".to_owned(), exec_id: String::new() };
    let state: StateResponse = conn.call(TASK_V3, task_service::STATE, &request).unwrap();
    assert_eq!(state.pid, task.pid);
    task.kill(9).unwrap();
    assert_eq!(conn.end::<WaitResponse>(waiting).unwrap().exit_status, 137);
}

fn the_time_of_the_end_is_one(world: &World) {
    let spec = Spec::sh("exit 0");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    let request = WaitRequest { id: "c1".to_owned(), exec_id: String::new() };
    let waited: WaitResponse = shim.task(task_service::WAIT, &request).unwrap();
    let told: Vec<Option<Timestamp>> =
        vec![waited.exited_at, task.state().unwrap().exited_at, task.delete().unwrap().exited_at];
    assert!(told[0].is_some());
    assert!(told.iter().all(|time| *time == told[0]), "{told:?}");
}

/// On its restart containerd takes a task without processes for a leftover and deletes it, with its exit.
fn pids_of_an_ended_task_are_kept_until_delete(world: &World) {
    let spec = Spec::sh("exit 0");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    task.wait();
    assert_eq!(task.pids().unwrap(), [task.pid]);
}

fn shutdown_waits_for_tasks(world: &World) {
    let spec = Spec::sh("exec sleep 1000");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    shim.shutdown().expect("an answer");
    assert_eq!(task.status(), Status::Running, "a shim with a task goes on");
    task.kill(9).unwrap();
    task.wait();
    task.delete().unwrap();
    shim.shutdown();
    shim.ends();
    until("the end of the socket", || (!shim.socket().exists()).then_some(()));
}

/// containerd makes it with the bundle; the runc shim makes it for whoever does not (`runc/container.go`).
fn the_place_of_the_root_need_not_be_there(world: &World) {
    let spec = Spec::sh("exit 3");
    let shim = Shim::start_for(world, "c1", &spec);
    let request = Task::request(&shim, "c1", &spec, Streams::default());
    fs::remove_dir(shim.bundle.join("rootfs")).unwrap();
    let task = Task::create_by(&shim, &request).unwrap();
    task.begin().unwrap();
    assert_eq!(task.wait(), 3);
}
