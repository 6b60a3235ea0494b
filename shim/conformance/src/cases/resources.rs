//! Limits, statistics, freezing.

use std::fs;
use std::path::PathBuf;

use berth_proto::Any;
use berth_proto::process::Status;
use berth_proto::task::{PauseRequest, ResumeRequest, UpdateTaskRequest, task_service};
use serde_json::json;

use super::{Case, containers};
use crate::harness::{Shim, Spec, Task, World, process, until};

pub(super) const CASES: &[Case] = &[
    containers("running_out_of_memory_is_137_and_told", running_out_of_memory_is_137_and_told),
    containers("memory_running_out_in_a_child_is_told", memory_running_out_in_a_child_is_told),
    containers("statistics_tell_what_is_used", statistics_tell_what_is_used),
    containers("a_paused_container_stands_still", a_paused_container_stands_still),
    containers("a_paused_container_can_be_killed", a_paused_container_can_be_killed),
    containers("an_update_changes_the_limit", an_update_changes_the_limit),
];

const MIB: i64 = 1 << 20;

/// Allocates until it is killed.
const GREEDY: &str = "tail /dev/zero";

fn running_out_of_memory_is_137_and_told(world: &World) {
    let spec = Spec::sh(&format!("exec {GREEDY}")).memory_limit(32 * MIB);
    let shim = Shim::start_for(world, "c1", &spec);
    let neighbour = Task::start(&shim, "c2", Spec::sh("sleep 1000").memory_limit(32 * MIB));
    let task = Task::start(&shim, "c1", spec);
    assert_eq!(task.wait(), 137);
    world.containerd.event("oom c1");
    assert_eq!(neighbour.status(), Status::Running);
    assert!(world.containerd.events().iter().all(|event| event.brief() != "oom c2"));
}

fn memory_running_out_in_a_child_is_told(world: &World) {
    let spec = Spec::sh("echo ready; exec sleep 1000").memory_limit(32 * MIB);
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    task.says("ready");
    let exec = task.exec("e1", &process(&["/bin/busybox", "tail", "/dev/zero"]));
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 137);
    world.containerd.event("oom c1");
    assert_eq!(task.status(), Status::Running);
}

fn statistics_tell_what_is_used(world: &World) {
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1000 & echo busy; wait";
    let spec = Spec::sh(script).memory_limit(64 * MIB);
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    task.says("busy");
    let usage = task.usage();
    assert!(usage.cpu_ns > 1_000_000, "{} ns of processor time", usage.cpu_ns);
    assert!(usage.memory > 0);
    assert_eq!(usage.memory_limit, 64 << 20);
    assert_eq!(usage.pids, 2);
}

fn pause(shim: &Shim<'_>) {
    let (): () = shim.task(task_service::PAUSE, &PauseRequest { id: "c1".to_owned() }).unwrap();
}

fn a_paused_container_stands_still(world: &World) {
    let spec = Spec::sh("i=0; while :; do i=$((i+1)); echo $i > /shared/count; done");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    let count = || fs::read_to_string(world.shared().join("count")).unwrap_or_default();
    until("the count", || (!count().is_empty()).then_some(()));
    pause(&shim);
    assert_eq!(task.status(), Status::Paused);
    let still = count();
    // Reading as often as this takes far longer than counting on would.
    for _ in 0..2000 {
        assert_eq!(count(), still);
    }
    let (): () = shim.task(task_service::RESUME, &ResumeRequest { id: "c1".to_owned() }).unwrap();
    assert_eq!(task.status(), Status::Running);
    until("the count to go on", || (count() != still).then_some(()));
    let events = world.containerd.events_of("c1", "resumed c1");
    let topics: Vec<String> = events.iter().map(|event| event.topic.clone()).collect();
    assert_eq!(topics, ["create", "start", "paused", "resumed"]);
}

fn a_paused_container_can_be_killed(world: &World) {
    let spec = Spec::sh("exec sleep 1000");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    pause(&shim);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
}

fn an_update_changes_the_limit(world: &World) {
    let spec = Spec::sh("sleep 1000").memory_limit(64 * MIB);
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    let limit = || fs::read_to_string(memory_file(task.pid)).unwrap().trim().parse::<i64>().unwrap();
    assert_eq!(limit(), 64 * MIB);
    let resources = json!({ "memory": { "limit": 96 * MIB, "swap": 96 * MIB } });
    let request = UpdateTaskRequest {
        id: "c1".to_owned(),
        resources: Some(Any {
            type_url: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".to_owned(),
            value: serde_json::to_vec(&resources).unwrap(),
        }),
        ..UpdateTaskRequest::default()
    };
    let (): () = shim.task(task_service::UPDATE, &request).unwrap();
    assert_eq!(limit(), 96 * MIB);
}

/// The file that holds the memory limit of a process, on cgroup v1 or v2.
fn memory_file(pid: u32) -> PathBuf {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    for line in table.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap(), fields.next().unwrap());
        if controllers.split(',').any(|controller| controller == "memory") {
            return PathBuf::from(format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"));
        }
    }
    let unified = table.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    PathBuf::from(format!("/sys/fs/cgroup{unified}/memory.max"))
}
