//! What the agent is told of memory and statistics.

use berth_proto::process::Status;
use berth_proto::shim::{StatsRequest, StatsResponse, shim_service};

use crate::harness::{Pod, Spec, Task, World};
use crate::{Case, REAL};

pub(crate) const CASES: &[Case] = &[
    ("running_out_of_memory_is_137_and_counted", REAL, running_out_of_memory_is_137_and_counted),
    ("memory_running_out_in_a_child_is_counted", REAL, memory_running_out_in_a_child_is_counted),
    ("statistics_tell_what_is_used", REAL, statistics_tell_what_is_used),
];

const MIB: i64 = 1 << 20;

/// Allocates until it is killed.
const GREEDY: &str = "tail /dev/zero";

fn running_out_of_memory_is_137_and_counted(world: &World) {
    let pod = Pod::start(world);
    let neighbour = Task::start(&pod.shim, "c2", Spec::sh("sleep 1000").memory_limit(32 * MIB));
    let task = Task::start(&pod.shim, "c1", Spec::sh(&format!("exec {GREEDY}")).memory_limit(32 * MIB));
    assert_eq!(task.wait(), 137);
    let exit = task.view().exit.unwrap();
    assert_eq!((exit.code, exit.oom_kills), (137, 1));
    world.containerd.event("oom c1");
    assert_eq!(neighbour.status(), Status::Running);
    assert!(world.containerd.events().iter().all(|event| event.brief() != "oom c2"));
}

fn memory_running_out_in_a_child_is_counted(world: &World) {
    let pod = Pod::start(world);
    let script = format!("{GREEDY}; echo child $?; exec sleep 1000");
    let task = Task::start(&pod.shim, "c1", Spec::sh(&script).memory_limit(32 * MIB));
    task.log.says("child 137");
    world.containerd.event("oom c1");
    assert_eq!(task.status(), Status::Running, "it exited with {:?}", task.view().exit);
    task.kill(9).unwrap();
    task.wait();
    assert_eq!(task.view().exit.unwrap().oom_kills, 1);
}

fn statistics_tell_what_is_used(world: &World) {
    let pod = Pod::start(world);
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1000 & echo busy; wait";
    let task = Task::start(&pod.shim, "c1", Spec::sh(script).memory_limit(64 * MIB));
    task.log.says("busy");
    let usage = task.usage();
    assert!(usage.cpu_ns > 1_000_000, "{} ns of processor time", usage.cpu_ns);
    assert!(usage.memory > 0);
    assert_eq!(usage.memory_limit, 64 << 20);
    assert_eq!(usage.pids, 2);
    let answer: StatsResponse =
        pod.shim.call(shim_service::NAME, shim_service::STATS, &StatsRequest {}).unwrap();
    let [own] = answer.containers.as_slice() else { panic!("one container, not {:?}", answer.containers) };
    assert_eq!((own.id.as_str(), own.pids), ("c1", 2));
    assert!(own.cpu_usage_ns >= usage.cpu_ns && own.memory_usage_bytes > 0);
    assert!(own.memory_working_set_bytes <= own.memory_usage_bytes);
    // What a kernel was built without has no files.
    let has = |file: &str| world.groups().of("c1").join(file).exists();
    let told = [own.cpu_pressure.is_some(), own.memory_pressure.is_some(), own.io_pressure.is_some()];
    assert_eq!(told, ["cpu.pressure", "memory.pressure", "io.pressure"].map(has));
}
