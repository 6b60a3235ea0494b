//! What members of a sandbox share, and what is their own.

use std::fs;

use berth_proto::process::Status;

use super::{Case, containers};
use crate::harness::{Sandbox, Spec, Task, World, process, until};

pub(super) const CASES: &[Case] = &[
    containers("the_network_is_shared_when_asked_for", the_network_is_shared_when_asked_for),
    containers("the_network_is_shared_without_a_word", the_network_is_shared_without_a_word),
    containers("ipc_is_shared_when_asked_for", ipc_is_shared_when_asked_for),
    containers("uts_is_shared_when_asked_for", uts_is_shared_when_asked_for),
    containers("processes_are_shared_when_asked_for", processes_are_shared_when_asked_for),
    containers("shared_memory_follows_ipc", shared_memory_follows_ipc),
    containers("members_live_their_own_lives", members_live_their_own_lives),
    containers("kill_and_pids_are_scoped_to_one_member", kill_and_pids_are_scoped_to_one_member),
    containers("memory_runs_out_for_one_member", memory_runs_out_for_one_member),
    containers("a_member_may_be_replaced", a_member_may_be_replaced),
];

const MIB: i64 = 1 << 20;

/// A member's namespace, with and without the wish to share it.
fn of_members(sandbox: &Sandbox<'_>, kind: &str, file: &str) -> [String; 2] {
    let spec = || Spec::sh(&format!("readlink /proc/self/ns/{file}"));
    let sharing = Task::start(&sandbox.shim, "sharing", spec().sharing(&[kind]));
    let alone = Task::start(&sandbox.shim, "alone", spec());
    [sharing, alone].map(|task| {
        assert_eq!(task.wait(), 0);
        task.stdout().trim().to_owned()
    })
}

fn the_network_is_shared_when_asked_for(world: &World) {
    let sandbox = Sandbox::start(world);
    let [sharing, alone] = of_members(&sandbox, "network", "net");
    assert_eq!(sharing, sandbox.namespace("net"));
    assert_ne!(alone, sharing);
}

/// A sandbox that was given a network has it for its members, also for one whose spec names none.
fn the_network_is_shared_without_a_word(world: &World) {
    let sandbox = Sandbox::start(world);
    let spec = Spec::sh("readlink /proc/self/ns/net").without_namespace("network");
    let task = Task::start(&sandbox.shim, "silent", spec);
    assert_eq!(task.wait(), 0);
    assert_eq!(task.stdout().trim(), sandbox.namespace("net"));
}

fn ipc_is_shared_when_asked_for(world: &World) {
    let sandbox = Sandbox::start(world);
    let [sharing, alone] = of_members(&sandbox, "ipc", "ipc");
    assert_eq!(sharing, sandbox.namespace("ipc"));
    assert_ne!(sharing, own("ipc"), "the sandbox's, not the node's");
    assert_ne!(alone, sharing);
}

fn uts_is_shared_when_asked_for(world: &World) {
    let sandbox = Sandbox::start(world);
    let [sharing, alone] = of_members(&sandbox, "uts", "uts");
    assert_eq!(sharing, sandbox.namespace("uts"));
    assert_ne!(sharing, own("uts"), "the sandbox's, not the node's");
    assert_ne!(alone, sharing);
}

fn own(file: &str) -> String {
    fs::read_link(format!("/proc/self/ns/{file}")).unwrap().display().to_string()
}

fn processes_are_shared_when_asked_for(world: &World) {
    let sandbox = Sandbox::start(world);
    let first = Task::start(&sandbox.shim, "c1", Spec::sh("echo ready; exec sleep 4711").sharing(&["pid"]));
    first.says("ready");
    let script = "ps -o args; echo pid $$";
    let second = Task::start(&sandbox.shim, "c2", Spec::sh(script).sharing(&["pid"]));
    let alone = Task::start(&sandbox.shim, "c3", Spec::sh(script));
    assert_eq!((second.wait(), alone.wait()), (0, 0));
    assert!(second.stdout().contains("sleep 4711"), "{}", second.stdout());
    assert!(!second.stdout().contains("pid 1\n"), "PID 1 is the sandbox's");
    assert!(!alone.stdout().contains("sleep 4711"), "{}", alone.stdout());
    assert!(alone.stdout().contains("pid 1\n"));
    assert_eq!(first.status(), Status::Running, "a member's end is its own");
}

fn shared_memory_follows_ipc(world: &World) {
    let sandbox = Sandbox::start(world);
    let writer = Task::start(&sandbox.shim, "c1", Spec::sh("echo hello > /dev/shm/x").sharing(&["ipc"]));
    assert_eq!(writer.wait(), 0);
    let script = "cat /dev/shm/x 2>/dev/null || echo nothing; stat -f -c %T /dev/shm";
    let sharing = Task::start(&sandbox.shim, "c2", Spec::sh(script).sharing(&["ipc"]));
    let alone = Task::start(&sandbox.shim, "c3", Spec::sh(script));
    assert_eq!((sharing.wait(), alone.wait()), (0, 0));
    assert_eq!((sharing.stdout().as_str(), alone.stdout().as_str()), ("hello\ntmpfs\n", "nothing\ntmpfs\n"));
}

fn members_live_their_own_lives(world: &World) {
    let sandbox = Sandbox::start(world);
    let spec = || Spec::sh("echo ready; exec sleep 1000").sharing(&["network", "ipc", "uts"]);
    let [one, two] = ["c1", "c2"].map(|id| Task::start(&sandbox.shim, id, spec()));
    one.kill(9).unwrap();
    assert_eq!(one.wait(), 137);
    one.delete().unwrap();
    let exec = two.exec("e1", &process(&["/bin/busybox", "sh", "-c", "exit 4"]));
    exec.begin().unwrap();
    assert_eq!(exec.wait(), 4);
    assert_eq!((two.status(), sandbox.state().as_str()), (Status::Running, "SANDBOX_READY"));
    let topics = |id: &str, last: &str| -> Vec<String> {
        world.containerd.events_of(id, last).into_iter().map(|event| event.topic).collect()
    };
    assert_eq!(topics("c1", "delete c1"), ["create", "start", "exit", "delete"]);
}

fn kill_and_pids_are_scoped_to_one_member(world: &World) {
    let sandbox = Sandbox::start(world);
    let spec = || Spec::sh("sleep 1000 & echo ready; wait").sharing(&["network", "ipc", "uts", "pid"]);
    let [one, two] = ["c1", "c2"].map(|id| Task::start(&sandbox.shim, id, spec()));
    for task in [&one, &two] {
        until("its child", || (task.pids().unwrap().len() == 2).then_some(()));
    }
    let neighbours = two.pids().unwrap();
    one.kill(9).unwrap();
    assert_eq!(one.wait(), 137);
    until("the end of its other process", || (one.pids().unwrap() == [one.pid]).then_some(()));
    assert_eq!((two.status(), two.pids().unwrap()), (Status::Running, neighbours));
}

fn memory_runs_out_for_one_member(world: &World) {
    let sandbox = Sandbox::start(world);
    let kinds = ["network", "ipc", "uts", "pid"];
    let neighbour = Task::start(&sandbox.shim, "c2", Spec::sh("exec sleep 1000").sharing(&kinds));
    let greedy = Spec::sh("exec tail /dev/zero").memory_limit(32 * MIB).sharing(&kinds);
    let task = Task::start(&sandbox.shim, "c1", greedy);
    assert_eq!(task.wait(), 137);
    world.containerd.event("oom c1");
    assert_eq!((neighbour.status(), sandbox.state().as_str()), (Status::Running, "SANDBOX_READY"));
}

fn a_member_may_be_replaced(world: &World) {
    let sandbox = Sandbox::start(world);
    for code in [1, 2, 3] {
        let task =
            Task::start(&sandbox.shim, "c1", Spec::sh(&format!("exit {code}")).sharing(&["pid", "ipc"]));
        assert_eq!(task.wait(), code);
        task.delete().unwrap();
    }
    assert_eq!(sandbox.state(), "SANDBOX_READY");
}
