//! Limits, statistics, freezing.

use std::fs;
use std::path::PathBuf;

use berth_proto::process::Status;
use berth_proto::shim::{StatsResponse, shim_service};
use berth_proto::task::{
    PauseRequest, ResumeRequest, StatsRequest, StatsResponse as TaskStatsResponse, UpdateTaskRequest,
    task_service,
};
use berth_proto::{Any, cgroup1, cgroup2, unpack};
use serde_json::json;

use crate::harness::{Pod, Spec, Task, World, until};
use crate::{Case, REAL};

pub(crate) const CASES: &[Case] = &[
    ("running_out_of_memory_is_137_and_counted", REAL, running_out_of_memory_is_137_and_counted),
    ("memory_running_out_in_a_child_is_counted", REAL, memory_running_out_in_a_child_is_counted),
    ("statistics_tell_what_is_used", REAL, statistics_tell_what_is_used),
    ("a_paused_container_stands_still", REAL, a_paused_container_stands_still),
    ("an_update_changes_the_limit", REAL, an_update_changes_the_limit),
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
    assert_eq!(task.status(), Status::Running);
    task.kill(9).unwrap();
    task.wait();
    assert_eq!(task.view().exit.unwrap().oom_kills, 1);
}

fn statistics_tell_what_is_used(world: &World) {
    let pod = Pod::start(world);
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1000 & echo busy; wait";
    let task = Task::start(&pod.shim, "c1", Spec::sh(script).memory_limit(64 * MIB));
    task.log.says("busy");
    let answer: TaskStatsResponse =
        pod.shim.task(task_service::STATS, &StatsRequest { id: "c1".to_owned() }).unwrap();
    let any = answer.stats.unwrap();
    let (cpu_ns, memory, limit, pids) = if any.type_url.ends_with("v1.Metrics") {
        let metrics: cgroup1::Metrics = unpack(&any).unwrap();
        let usage = metrics.memory.unwrap().usage.unwrap();
        (metrics.cpu.unwrap().usage.unwrap().total, usage.usage, usage.limit, metrics.pids.unwrap().current)
    } else {
        let metrics: cgroup2::Metrics = unpack(&any).unwrap();
        let memory = metrics.memory.unwrap();
        (
            metrics.cpu.unwrap().usage_usec * 1000,
            memory.usage,
            memory.usage_limit,
            metrics.pids.unwrap().current,
        )
    };
    assert!(cpu_ns > 1_000_000, "{cpu_ns} ns of processor time");
    assert!(memory > 0);
    assert_eq!(limit, 64 << 20);
    assert_eq!(pids, 2);
    let answer: StatsResponse =
        pod.shim.call(shim_service::NAME, shim_service::STATS, &berth_proto::shim::StatsRequest {}).unwrap();
    let [own] = answer.containers.as_slice() else { panic!("one container, not {:?}", answer.containers) };
    assert_eq!((own.id.as_str(), own.pids), ("c1", 2));
    assert!(own.cpu_usage_ns >= cpu_ns && own.memory_usage_bytes > 0);
    assert!(own.memory_working_set_bytes <= own.memory_usage_bytes);
}

fn a_paused_container_stands_still(world: &World) {
    let pod = Pod::start(world);
    let script = "i=0; while :; do i=$((i+1)); echo $i > /shared/count; done";
    let task = Task::start(&pod.shim, "c1", Spec::sh(script));
    let count = || fs::read_to_string(world.shared().join("count")).unwrap_or_default();
    until("the count", || (!count().is_empty()).then_some(()));
    let (): () = pod.shim.task(task_service::PAUSE, &PauseRequest { id: "c1".to_owned() }).unwrap();
    assert_eq!(task.status(), Status::Paused);
    let still = count();
    // Reading as often as this takes far longer than counting on would.
    for _ in 0..2000 {
        assert_eq!(count(), still);
    }
    let (): () = pod.shim.task(task_service::RESUME, &ResumeRequest { id: "c1".to_owned() }).unwrap();
    assert_eq!(task.status(), Status::Running);
    until("the count to go on", || (count() != still).then_some(()));
    world.containerd.event("paused c1");
    world.containerd.event("resumed c1");
    let (): () = pod.shim.task(task_service::PAUSE, &PauseRequest { id: "c1".to_owned() }).unwrap();
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137, "a frozen container can be killed");
}

fn an_update_changes_the_limit(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000").memory_limit(64 * MIB));
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
    let (): () = pod.shim.task(task_service::UPDATE, &request).unwrap();
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
