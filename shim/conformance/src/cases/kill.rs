//! Signals, and whom they reach.

use berth_proto::process::Status;

use super::{Case, containers};
use crate::harness::{Group, Shim, Spec, Task, World, is_gone, process, until};

pub(super) const CASES: &[Case] = &[
    containers("a_signal_reaches_the_first_process", a_signal_reaches_the_first_process),
    containers("a_signal_reaches_all_when_asked", a_signal_reaches_all_when_asked),
    containers("an_ended_init_takes_its_processes_along", an_ended_init_takes_its_processes_along),
    containers("kill_is_scoped_in_a_shared_pid_namespace", kill_is_scoped_in_a_shared_pid_namespace),
    containers("pids_are_scoped_in_a_shared_pid_namespace", pids_are_scoped_in_a_shared_pid_namespace),
    containers("an_ended_init_in_the_nodes_pid_namespace_takes_its_own_along", nodes_pid_namespace),
];

const TRAP: &str = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.01; done";

fn a_signal_reaches_the_first_process(world: &World) {
    let spec = Spec::sh(TRAP);
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    task.says("ready");
    task.kill(15).unwrap();
    assert_eq!(task.wait(), 3);
    task.says("told");
}

fn a_signal_reaches_all_when_asked(world: &World) {
    let spec = Spec::sh(&format!("({TRAP}) & ({TRAP}) & trap '' TERM; wait; wait; wait; exit 5"));
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    until("both children", || (task.stdout().matches("ready").count() == 2).then_some(()));
    task.kill_all(15).unwrap();
    assert_eq!(task.wait(), 5);
    until("the word of both", || (task.stdout().matches("told").count() == 2).then_some(()));
}

fn an_ended_init_takes_its_processes_along(world: &World) {
    let spec = Spec::sh("sleep 1000 & sleep 1000 & echo ready; wait");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    until("both children", || (task.pids().unwrap().len() == 3).then_some(()));
    let pids = task.pids().unwrap();
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    task.delete().unwrap();
    assert!(pids.iter().all(|pid| is_gone(*pid)));
}

/// A container that holds the pid namespace, and two that join it, as a pause container has it.
fn sharing<'s>(first: &'s Shim<'_>) -> [Task<'s>; 3] {
    let holder = Task::start(first, "c1", Spec::sh("echo ready; exec sleep 1000"));
    holder.says("ready");
    let path = format!("/proc/{}/ns/pid", holder.pid);
    let [one, two] = ["one", "two"].map(|id| {
        let spec = Spec::sh("sleep 1000 & echo ready; wait").joining("pid", &path);
        let task = Task::start(first, id, spec);
        task.says("ready");
        until("its child", || (task.pids().unwrap().len() == 2).then_some(()));
        task
    });
    [holder, one, two]
}

fn group(world: &World) -> Group<'_> {
    Group::start(world, "c1", crate::harness::BY_SANDBOX)
}

fn kill_is_scoped_in_a_shared_pid_namespace(world: &World) {
    let group = group(world);
    let [holder, one, two] = sharing(&group.first);
    let neighbours = two.pids().unwrap();
    let own = one.pids().unwrap();
    one.kill(9).unwrap();
    assert_eq!(one.wait(), 137);
    until("the end of its other process", || own.iter().all(|pid| is_gone(*pid)).then_some(()));
    assert_eq!((holder.status(), two.status()), (Status::Running, Status::Running));
    assert_eq!(two.pids().unwrap(), neighbours);
    two.kill_all(9).unwrap();
    assert_eq!(two.wait(), 137);
    assert_eq!(holder.status(), Status::Running);
}

fn pids_are_scoped_in_a_shared_pid_namespace(world: &World) {
    let group = group(world);
    let [holder, one, two] = sharing(&group.first);
    let exec = one.exec("e1", &process(&["/bin/busybox", "sleep", "1000"]));
    let pid = exec.begin().unwrap().pid;
    assert_eq!(holder.pids().unwrap(), [holder.pid]);
    assert_eq!((one.pids().unwrap().len(), two.pids().unwrap().len()), (3, 2));
    assert!(one.pids().unwrap().contains(&pid));
}

fn nodes_pid_namespace(world: &World) {
    let spec = Spec::sh("setsid sleep 1000 & echo ready; wait").without_namespace("pid");
    let shim = Shim::start_for(world, "c1", &spec);
    let task = Task::start(&shim, "c1", spec);
    until("its child", || (task.pids().unwrap().len() == 2).then_some(()));
    let pids = task.pids().unwrap();
    task.kill(9).unwrap();
    assert_eq!(task.wait(), 137);
    until("the end of all", || pids.iter().all(|pid| is_gone(*pid)).then_some(()));
}
