//! The life of a sandbox (`containerd.runtime.sandbox.v1`, containerd's `docs/sandbox-api.md`).

use std::fs;
use std::time::Instant;

use berth_proto::process::Status;
use berth_proto::sandbox::{PingRequest, PingResponse, WaitSandboxResponse, sandbox_service};
use berth_proto::task::{ConnectRequest, ConnectResponse, task_service};
use berth_proto::ttrpc::Code;

use super::{Case, containers, shim};
use crate::harness::{Sandbox, Spec, Task, World, is_gone, process, until};

pub(super) const CASES: &[Case] = &[
    shim("every_call_answers_with_its_code", every_call_answers_with_its_code),
    shim("another_sandbox_is_not_found", another_sandbox_is_not_found),
    shim("the_status_tells_a_process_and_a_time", the_status_tells_a_process_and_a_time),
    shim("stop_is_idempotent_and_ends_the_wait", stop_is_idempotent_and_ends_the_wait),
    containers("stop_ends_members", stop_ends_members),
    shim("a_stopped_sandbox_takes_no_member", a_stopped_sandbox_takes_no_member),
    shim("stop_before_start_is_no_error", stop_before_start_is_no_error),
    shim("the_network_is_the_one_that_is_given", the_network_is_the_one_that_is_given),
    shim("the_network_outlives_its_file", the_network_outlives_its_file),
    shim("no_network_is_the_nodes", no_network_is_the_nodes),
    shim("a_network_that_is_none_is_an_error", a_network_that_is_none_is_an_error),
    shim("shutdown_of_tasks_spares_the_sandbox", shutdown_of_tasks_spares_the_sandbox),
    shim("shutdown_releases_everything", shutdown_releases_everything),
    shim("connect_answers_for_any_id", connect_answers_for_any_id),
    shim("metrics_and_platform_are_told", metrics_and_platform_are_told),
    containers("delete_after_a_lost_sandbox_leaves_nothing", delete_after_a_lost_sandbox_leaves_nothing),
];

fn every_call_answers_with_its_code(world: &World) {
    let sandbox = Sandbox::new(world, "pod");
    assert_eq!(sandbox.begin().unwrap_err().code, Code::FailedPrecondition, "start before create");
    sandbox.create().unwrap();
    assert_eq!(sandbox.create().unwrap_err().code, Code::AlreadyExists, "create twice");
    assert_eq!(sandbox.state(), "SANDBOX_NOTREADY");
    sandbox.begin().unwrap();
    assert_eq!(sandbox.state(), "SANDBOX_READY");
    let PingResponse {} = sandbox.ping().unwrap();
    let request = PingRequest { sandbox_id: "pod".to_owned() };
    let unknown = sandbox.shim.call::<_, PingResponse>(sandbox_service::NAME, "Frobnicate", &request);
    assert_eq!(unknown.unwrap_err().code, Code::Unimplemented);
}

fn another_sandbox_is_not_found(world: &World) {
    let sandbox = Sandbox::start(world);
    let request = PingRequest { sandbox_id: "another".to_owned() };
    // Only the name is read of each request, and all have it in the same field.
    for method in [
        sandbox_service::START_SANDBOX,
        sandbox_service::STOP_SANDBOX,
        sandbox_service::WAIT_SANDBOX,
        sandbox_service::SANDBOX_STATUS,
        sandbox_service::SHUTDOWN_SANDBOX,
        sandbox_service::PING_SANDBOX,
        sandbox_service::SANDBOX_METRICS,
    ] {
        let answer = sandbox.shim.call::<_, PingResponse>(sandbox_service::NAME, method, &request);
        assert_eq!(answer.unwrap_err().code, Code::NotFound, "{method}");
    }
    assert_eq!(sandbox.state(), "SANDBOX_READY");
}

fn the_status_tells_a_process_and_a_time(world: &World) {
    let sandbox = Sandbox::new(world, "pod");
    sandbox.create().unwrap();
    let started = sandbox.begin().unwrap();
    let status = sandbox.status().unwrap();
    assert!(started.pid > 0 && !is_gone(started.pid), "a process that lives: {}", started.pid);
    assert_eq!(status.pid, started.pid);
    assert!(started.created_at.is_some());
    assert_eq!(status.created_at, started.created_at);
    assert_eq!((status.sandbox_id.as_str(), status.exited_at), ("pod", None));
}

fn stop_is_idempotent_and_ends_the_wait(world: &World) {
    let sandbox = Sandbox::start(world);
    let (mut waiting, stream) = sandbox.begin_wait();
    assert_eq!(sandbox.state(), "SANDBOX_READY");
    sandbox.stop().unwrap();
    let answer: WaitSandboxResponse = waiting.end(stream).unwrap();
    assert!(answer.exited_at.is_some());
    sandbox.stop().expect("a second stop is no error");
    let status = sandbox.status().expect("it stays readable");
    assert_eq!(status.state, "SANDBOX_NOTREADY");
    assert_eq!(status.exited_at, answer.exited_at);
    let (mut late, stream) = sandbox.begin_wait();
    assert_eq!(late.end::<WaitSandboxResponse>(stream).unwrap().exited_at, answer.exited_at);
    sandbox.ping().expect("the shim is there until its shutdown");
}

fn stop_ends_members(world: &World) {
    let sandbox = Sandbox::start(world);
    let spec = || Spec::sh("trap '' TERM; echo ready; while :; do sleep 1; done");
    let tasks = ["c1", "c2"].map(|id| Task::start(&sandbox.shim, id, spec()));
    tasks.iter().for_each(|task| task.says("ready"));
    sandbox.stop().unwrap();
    for task in &tasks {
        assert_eq!(task.wait(), 137);
        assert_eq!(task.status(), Status::Stopped, "it is there until it is deleted");
        task.delete().unwrap();
    }
    assert_eq!(sandbox.state(), "SANDBOX_NOTREADY");
}

fn a_stopped_sandbox_takes_no_member(world: &World) {
    let sandbox = Sandbox::start(world);
    sandbox.stop().unwrap();
    let late = Task::try_create(&sandbox.shim, "c1", Spec::sh("exit 0"));
    assert_eq!(late.unwrap_err().code, Code::FailedPrecondition);
}

fn stop_before_start_is_no_error(world: &World) {
    let sandbox = Sandbox::new(world, "pod");
    sandbox.create().unwrap();
    sandbox.stop().unwrap();
    assert_eq!(sandbox.state(), "SANDBOX_NOTREADY");
}

fn the_network_is_the_one_that_is_given(world: &World) {
    let sandbox = Sandbox::start(world);
    let inode = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).unwrap().ino()
    };
    let of_sandbox = inode(&format!("/proc/{}/ns/net", sandbox.status().unwrap().pid));
    assert_eq!(of_sandbox, inode(&sandbox.netns.display().to_string()));
    assert_ne!(of_sandbox, inode("/proc/self/ns/net"));
}

fn the_network_outlives_its_file(world: &World) {
    let sandbox = Sandbox::start(world);
    let before = sandbox.namespace("net");
    nix::mount::umount2(&sandbox.netns, nix::mount::MntFlags::MNT_DETACH).unwrap();
    assert_eq!(sandbox.namespace("net"), before);
    assert_eq!(sandbox.state(), "SANDBOX_READY");
}

fn no_network_is_the_nodes(world: &World) {
    let sandbox = Sandbox::start_on_the_nodes_network(world);
    let own = fs::read_link("/proc/self/ns/net").unwrap().display().to_string();
    assert_eq!(sandbox.namespace("net"), own);
}

fn a_network_that_is_none_is_an_error(world: &World) {
    let mut sandbox = Sandbox::new(world, "pod");
    sandbox.netns = world.dir().join("no-such");
    let outcome = sandbox.create().map(|_| ()).and_then(|()| sandbox.begin().map(|_| ()));
    outcome.unwrap_err();
    assert_ne!(sandbox.status().map_or(String::new(), |status| status.state), "SANDBOX_READY");
}

/// containerd asks for it with every member that it deletes.
fn shutdown_of_tasks_spares_the_sandbox(world: &World) {
    let sandbox = Sandbox::start(world);
    let task = Task::start(&sandbox.shim, "c1", Spec::sh("exit 0"));
    task.wait();
    task.delete().unwrap();
    sandbox.shim.shutdown().expect("an answer");
    assert_eq!(sandbox.state(), "SANDBOX_READY");
    let next = Task::start(&sandbox.shim, "c2", Spec::sh("exit 3"));
    assert_eq!(next.wait(), 3);
}

fn shutdown_releases_everything(world: &World) {
    let sandbox = Sandbox::start(world);
    let task = Task::start(&sandbox.shim, "c1", Spec::sh("exec sleep 1000"));
    let pid = sandbox.status().unwrap().pid;
    sandbox.stop().unwrap();
    task.wait();
    task.delete().unwrap();
    sandbox.shutdown().unwrap();
    sandbox.shim.ends();
    until("the end of the sandbox's process", || is_gone(pid).then_some(()));
    until("the end of the socket", || (!sandbox.shim.socket().exists()).then_some(()));
}

fn connect_answers_for_any_id(world: &World) {
    let sandbox = Sandbox::start(world);
    let connect = |id: &str| -> ConnectResponse {
        sandbox.shim.task(task_service::CONNECT, &ConnectRequest { id: id.to_owned() }).unwrap()
    };
    assert_eq!(connect("pod").shim_pid, sandbox.shim.pid);
    assert_eq!((connect("no-such").shim_pid, connect("no-such").task_pid), (sandbox.shim.pid, 0));
    let task = Task::start(&sandbox.shim, "c1", Spec::sh("exec sleep 1000"));
    assert_eq!(connect("c1").task_pid, task.pid);
}

fn metrics_and_platform_are_told(world: &World) {
    let sandbox = Sandbox::start(world);
    let platform = sandbox.platform().unwrap().platform.unwrap();
    assert_eq!(platform.os, "linux");
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    assert_eq!(platform.architecture, architecture);
    assert!(sandbox.metrics().unwrap().metrics.is_some());
}

fn delete_after_a_lost_sandbox_leaves_nothing(world: &World) {
    let begun = Instant::now();
    let sandbox = Sandbox::start(world);
    let spec = || Spec::sh("sleep 1000 & echo ready; wait").sharing(&["network", "ipc", "uts", "pid"]);
    let tasks = ["c1", "c2", "c3"].map(|id| Task::start(&sandbox.shim, id, spec()));
    tasks.iter().for_each(|task| task.says("ready"));
    tasks[0].exec("e1", &process(&["/bin/busybox", "sleep", "1000"])).begin().unwrap();
    let holder = sandbox.status().unwrap().pid;
    let made = begun.elapsed();
    sandbox.shim.murder();
    let answer = sandbox.shim.delete_in_time(made);
    assert_eq!(answer.exit_status, 137);
    for task in &tasks {
        until("the end of the members", || is_gone(task.pid).then_some(()));
        assert!(!task.is_mounted());
    }
    until("the end of what held the namespaces", || is_gone(holder).then_some(()));
}
