//! Control groups that containers make below their own: whatever is in them is the container's, and ends with it.

use std::fs;
use std::path::Path;

use berth_proto::process::Status;
use berth_proto::shim::{ExecSyncRequest, ExecSyncResponse, shim_service};
use berth_proto::task::{StatsRequest, StatsResponse, task_service};
use berth_proto::{cgroup2, unpack};
use berth_shim_conformance::harness::{Driver, is_gone};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::harness::{Conn, Pod, Spec, Task, World, process, until};
use crate::{Case, REAL};

/// On both versions of control groups.
pub(crate) const CASES: &[Case] = &[
    ("a_containers_own_groups_end_with_it", REAL, a_containers_own_groups_end_with_it),
    ("a_daemon_in_a_group_of_its_own_ends_with_it", REAL, a_daemon_in_a_group_of_its_own_ends_with_it),
    ("very_many_groups_end_with_their_container", REAL, very_many_groups_end_with_their_container),
];

/// On version 2 alone.
pub(crate) const UNIFIED: &[Case] = &[
    ("threads_in_groups_of_their_own_are_the_containers", REAL, threads_in_groups_of_their_own),
    ("execs_enter_a_container_that_shares_its_limits_out", REAL, execs_enter_a_container_that_shares_out),
    ("memory_running_out_below_is_counted", REAL, memory_running_out_below_is_counted),
    ("a_group_that_is_killed_as_one_is_told_so", REAL, a_group_that_is_killed_as_one_is_told_so),
    ("a_kill_is_told_when_its_group_is_gone", REAL, a_kill_is_told_when_its_group_is_gone),
    ("statistics_have_what_the_kernel_counts", REAL, statistics_have_what_the_kernel_counts),
];

/// Words for the shell of a container: its group in each hierarchy, and the way of who asks into a group below.
const WORDS: &str =
    "tops() { for top in /sys/fs/cgroup /sys/fs/cgroup/*; do [ ! -e $top/cgroup.procs ] || echo $top; done; }
enter() { for top in $(tops); do mkdir -p $top/$1; echo 0 > $top/$1/cgroup.procs; done; }
";

/// A container with a namespace for its groups, in which it may make some.
fn delegated(script: &str) -> Spec {
    Spec::sh(&format!("{WORDS}{script}")).with(|spec| {
        let groups = json!({
            "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "noexec", "rw"],
        });
        spec["mounts"].as_array_mut().unwrap().push(groups);
        spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "cgroup" }));
    })
}

fn exec_sync(pod: &Pod<'_>, script: &str, timeout_ms: u64) -> ExecSyncResponse {
    let process = serde_json::to_vec(&process(&["/bin/busybox", "sh", "-c", script])).unwrap();
    let request =
        ExecSyncRequest { container_id: "c1".to_owned(), process, timeout_ms, ..Default::default() };
    Conn::open(&pod.agent_socket).call(shim_service::NAME, shim_service::EXEC_SYNC, &request).unwrap()
}

fn a_containers_own_groups_end_with_it(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(
        &pod.shim,
        "c1",
        delegated("(enter a/b; echo below; exec sleep 1000) & enter c; echo ready; wait"),
    );
    task.log.says("ready");
    task.log.says("below");
    assert_eq!(task.pids().unwrap().len(), 2);
    assert_eq!(task.usage().pids, 2);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
}

/// Nothing but its group tells that it is the container's.
fn a_daemon_in_a_group_of_its_own_ends_with_it(world: &World) {
    let pod = Pod::start(world);
    let script = "(enter a/b; echo below; exec setsid sleep 1000) & echo ready; exec sleep 1000";
    let task = Task::start(&pod.shim, "c1", delegated(script).without_namespace("pid"));
    task.log.says("ready");
    task.log.says("below");
    assert_eq!(task.pids().unwrap().len(), 2);
    let pids = task.pids().unwrap();
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    until("the end of all", || pids.iter().all(|pid| is_gone(*pid)).then_some(()));
    task.delete().unwrap();
}

/// More than an OCI runtime removes in its patience: crun gives up after 500 groups that have others.
fn very_many_groups_end_with_their_container(world: &World) {
    let pod = Pod::start(world);
    let script = r#"set -- $(tops); seq 600 | sed "s|.*|$1/&/below|" | xargs mkdir -p
enter 7/below; echo ready; exec sleep 1000"#;
    let task = Task::start(&pod.shim, "c1", delegated(script));
    task.log.says("ready");
    assert_eq!(task.pids().unwrap(), [task.pid]);
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
}

/// Threads can be apart, processes cannot: a group of threads lists no processes, and is not killed as one.
fn threads_in_groups_of_their_own(world: &World) {
    let pod = Pod::start(world);
    let script = "cd /sys/fs/cgroup; mkdir t; echo threaded > t/cgroup.type
(echo 0 > t/cgroup.procs; echo below; exec sleep 1000) & echo ready; wait";
    let task = Task::start(&pod.shim, "c1", delegated(script));
    task.log.says("ready");
    task.log.says("below");
    assert_eq!(task.pids().unwrap().len(), 2);
    let threads = world.groups().of("c1").join("t/cgroup.threads");
    until("its thread there", || (fs::read_to_string(&threads).unwrap().lines().count() == 1).then_some(()));
    assert_eq!(exec_sync(&pod, "exit 3", 0).exit_code, 3);
    assert!(exec_sync(&pod, "setsid sleep 1000 & sleep 1000", 300).timed_out);
    until("the end of what the exec began", || (task.pids().unwrap().len() == 2).then_some(()));
    task.kill_all(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
}

/// As a system in a container does: what has a group with limits below it holds no processes itself.
fn execs_enter_a_container_that_shares_out(world: &World) {
    let pod = Pod::start(world);
    let script =
        "enter init; echo +memory +pids > /sys/fs/cgroup/cgroup.subtree_control; echo ready; exec sleep 1000";
    let task = Task::start(&pod.shim, "c1", delegated(script));
    task.log.says("ready");
    assert_eq!(exec_sync(&pod, "exit 3", 0).exit_code, 3);
    assert!(exec_sync(&pod, "setsid sleep 1000 & sleep 1000", 300).timed_out);
    until("the end of what the exec began", || (task.pids().unwrap().len() == 1).then_some(()));
    let exec = task.exec("e1", &process(&["/bin/busybox", "sh", "-c", "exit 4"]));
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 4);
    exec.delete().unwrap();
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
}

fn memory_running_out_below_is_counted(world: &World) {
    let pod = Pod::start(world);
    let script = "enter init; cd /sys/fs/cgroup; echo +memory > cgroup.subtree_control; mkdir greedy
echo 16M > greedy/memory.max; echo 0 > greedy/memory.swap.max
(echo 0 > greedy/cgroup.procs; exec tail /dev/zero); echo child $?; rmdir greedy; exec sleep 1000";
    let task = Task::start(&pod.shim, "c1", delegated(script));
    task.log.says("child 137");
    world.containerd.event("oom c1");
    assert_eq!(task.status(), Status::Running);
    until("the end of that group", || (!world.groups().of("c1").join("greedy").exists()).then_some(()));
    task.kill(9).unwrap();
    task.wait();
    assert_eq!(task.view().exit.unwrap().oom_kills, 1, "what a group has counted outlives it");
}

fn a_group_that_is_killed_as_one_is_told_so(world: &World) {
    let pod = Pod::start(world);
    let spec = |script: &str| {
        Spec::sh(script).memory_limit(32 << 20).with(|spec| {
            spec["linux"]["resources"]["unified"] = json!({ "memory.oom.group": "1" });
        })
    };
    let neighbour = Task::start(&pod.shim, "c2", spec("sleep 1000"));
    let task = Task::start(&pod.shim, "c1", spec("sleep 1000 & tail /dev/zero; exit 5"));
    assert_eq!(task.wait(), 137, "the first process did nothing wrong, and is killed with the others");
    assert!(task.view().exit.unwrap().oom_kills > 0);
    world.containerd.event("oom c1");
    assert_eq!(neighbour.status(), Status::Running);
}

/// systemd removes a scope, with the group that crun keeps below it, before anybody has read what they counted.
fn a_kill_is_told_when_its_group_is_gone(world: &World) {
    let pod = Pod::start(world);
    let spec = |script: &str| Spec::sh(script).memory_limit(32 << 20);
    let greedy = |id| spec(&format!("until [ -e /shared/{id} ]; do sleep 0.1; done; exec tail /dev/zero"));
    let mut cases = vec![("c1", greedy("c1"), world.groups().outer("c1"))];
    if world.groups().driver() == Driver::Cgroupfs {
        let below = format!("{}.scope/container", world.groups().named("c2"));
        cases.push(("c2", greedy("c2").cgroup(&below), world.groups().outer("c2.scope")));
    }
    let neighbour = Task::start(&pod.shim, "c3", spec("exec sleep 1000"));
    for (id, spec, group) in cases {
        let task = Task::start(&pod.shim, id, spec);
        gone_before_the_shim_looks(&pod, &group, || fs::write(world.shared().join(id), "").unwrap());
        assert_eq!(task.wait(), 137);
        assert_eq!(task.view().exit.unwrap().oom_kills, 1, "{group:?}");
        world.containerd.event(&format!("oom {id}"));
    }
    let innocent = neighbour.pids().unwrap();
    let group = world.groups().outer("c3");
    gone_before_the_shim_looks(&pod, &group, || signal(innocent[0], Signal::SIGKILL));
    assert_eq!(neighbour.wait(), 137);
    assert_eq!(neighbour.view().exit.unwrap().oom_kills, 0);
    assert!(world.containerd.events().iter().all(|event| event.brief() != "oom c3"));
}

/// Ends a container while the shim is held still, and removes its groups, as systemd does by itself.
fn gone_before_the_shim_looks(pod: &Pod<'_>, group: &Path, end: impl FnOnce()) {
    signal(pod.shim.pid, Signal::SIGSTOP);
    end();
    if pod.shim.world.groups().driver() == Driver::Cgroupfs {
        until("the end of all in the group", || {
            fs::read_to_string(group.join("cgroup.events")).unwrap().contains("populated 0").then_some(())
        });
        // crun's, below a scope.
        let _none = fs::remove_dir(group.join("container")).is_err();
        fs::remove_dir(group).unwrap();
    }
    until("the end of the group", || (!group.exists()).then_some(()));
    signal(pod.shim.pid, Signal::SIGCONT);
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}

fn statistics_have_what_the_kernel_counts(world: &World) {
    let pod = Pod::start(world);
    let spec = Spec::sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo busy; exec sleep 1000");
    let spec = spec.memory_limit(64 << 20).with(|spec| {
        spec["linux"]["resources"]["pids"] = json!({ "limit": 77 });
    });
    let task = Task::start(&pod.shim, "c1", spec);
    task.log.says("busy");
    let answer: StatsResponse =
        pod.shim.task(task_service::STATS, &StatsRequest { id: "c1".to_owned() }).unwrap();
    let stats: cgroup2::Metrics = unpack(&answer.stats.unwrap()).unwrap();
    let group = world.groups().of("c1");
    let lines = |file: &str| fs::read_to_string(group.join(file)).unwrap_or_default().lines().count();
    let pids = stats.pids.unwrap();
    assert_eq!((pids.current, pids.limit), (1, 77));
    let memory = stats.memory.unwrap();
    assert_eq!(
        (memory.usage_limit, memory.swap_limit),
        (64 << 20, 0),
        "what is limited with swap has none beside"
    );
    assert!(memory.anon > 0 && memory.usage >= memory.anon && memory.max_usage >= memory.usage, "{memory:?}");
    let (cpu, io) = (stats.cpu.unwrap(), stats.io.unwrap());
    assert!(cpu.usage_usec > 0 && cpu.usage_usec >= cpu.user_usec, "{cpu:?}");
    assert_eq!(io.usage.len(), lines("io.stat"));
    assert_eq!(stats.memory_events, Some(cgroup2::MemoryEvents::default()), "counted, and nothing happened");
    // What a kernel was built without has no files.
    let has = |file: &str| group.join(file).exists();
    let told = [cpu.psi.is_some(), memory.psi.is_some(), io.psi.is_some(), !stats.hugetlb.is_empty()];
    let files = ["cpu.pressure", "memory.pressure", "io.pressure", "hugetlb.2MB.current"];
    assert_eq!(told, files.map(has), "{files:?}");
}
