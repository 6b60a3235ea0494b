//! The sandbox service.

use std::fs;

use berth_proto::sandbox::{
    PingRequest, PingResponse, PlatformRequest, PlatformResponse, ShutdownSandboxRequest,
    ShutdownSandboxResponse, WaitSandboxRequest, WaitSandboxResponse, sandbox_service,
};
use berth_proto::shim::NamespaceMode;
use berth_proto::task::{ConnectRequest, ConnectResponse, ShutdownRequest, task_service};
use berth_proto::ttrpc::Code;

use crate::harness::{
    Bootstrap, Pod, SANDBOX_CONFIG, Shim, Spec, Task, World, create, make_netns, options, start, status,
};
use crate::{Case, EVERY, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("every_call_answers_with_its_code", FAKE, every_call_answers_with_its_code),
    ("another_sandbox_is_not_found", FAKE, another_sandbox_is_not_found),
    ("the_sandbox_is_this_process", FAKE, the_sandbox_is_this_process),
    ("stop_ends_members_and_waits", EVERY, stop_ends_members_and_waits),
    ("no_netns_is_the_nodes_network", FAKE, no_netns_is_the_nodes_network),
    ("task_shutdown_spares_the_sandbox", FAKE, task_shutdown_spares_the_sandbox),
    ("connect_answers_for_any_id", FAKE, connect_answers_for_any_id),
    ("members_share_what_they_ask_for", REAL, members_share_what_they_ask_for),
    ("members_share_processes_when_asked", REAL, members_share_processes_when_asked),
    ("sysctls_are_set_in_the_pod", FAKE, sysctls_are_set_in_the_pod),
    ("state_is_closed_to_others_cve_2021_41103", EVERY, state_is_closed_to_others),
    ("both_sockets_are_for_root_alone_cve_2020_15257", FAKE, both_sockets_are_for_root_alone),
];

fn every_call_answers_with_its_code(world: &World) {
    let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
    assert_eq!(start(&shim).unwrap_err().code, Code::FailedPrecondition, "start before create");
    let netns = make_netns(&world.dir().join("netns"));
    let options = options(world, &world.dir().join("agent.sock"));
    create(&shim, &options, &netns).unwrap();
    assert_eq!(create(&shim, &options, &netns).unwrap_err().code, Code::AlreadyExists, "create twice");
    assert_eq!(status(&shim).unwrap().state, "SANDBOX_NOTREADY");
    start(&shim).unwrap();
    assert_eq!(status(&shim).unwrap().state, "SANDBOX_READY");
    let request = PingRequest { sandbox_id: shim.id.clone() };
    let PingResponse {} = shim.call(sandbox_service::NAME, sandbox_service::PING_SANDBOX, &request).unwrap();
    let request = PlatformRequest { sandbox_id: shim.id.clone() };
    let answer: PlatformResponse =
        shim.call(sandbox_service::NAME, sandbox_service::PLATFORM, &request).unwrap();
    assert_eq!(answer.platform.unwrap().os, "linux");
    let unknown = shim.call::<_, PingResponse>(sandbox_service::NAME, "Frobnicate", &request);
    assert_eq!(unknown.unwrap_err().code, Code::Unimplemented);
}

fn another_sandbox_is_not_found(world: &World) {
    let pod = Pod::start(world);
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
        let answer = pod.shim.call::<_, PingResponse>(sandbox_service::NAME, method, &request);
        assert_eq!(answer.unwrap_err().code, Code::NotFound, "{method}");
    }
    assert_eq!(pod.status().state, "SANDBOX_READY");
}

fn the_sandbox_is_this_process(world: &World) {
    let pod = Pod::start(world);
    let status = pod.status();
    assert_eq!((pod.started.pid, status.pid), (pod.shim.pid, pod.shim.pid));
    assert!(pod.started.created_at.is_some());
    assert_eq!(status.created_at, pod.started.created_at);
    assert_eq!(status.sandbox_id, "pod");
    let of = |process: &str, kind: &str| fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap();
    let (shim, own) = (pod.shim.pid.to_string(), std::process::id().to_string());
    for kind in ["net", "ipc", "uts"] {
        assert_ne!(of(&shim, kind), of(&own, kind), "{kind}");
    }
    for kind in ["pid", "mnt", "user"] {
        assert_eq!(of(&shim, kind), of(&own, kind), "{kind}");
    }
}

fn stop_ends_members_and_waits(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    let mut waiting = pod.shim.connect();
    let request = WaitSandboxRequest { sandbox_id: pod.shim.id.clone() };
    let stream = waiting.begin(sandbox_service::NAME, sandbox_service::WAIT_SANDBOX, &request);
    pod.stop().unwrap();
    let answer: WaitSandboxResponse = waiting.end(stream).unwrap();
    assert!(answer.exited_at.is_some());
    assert_eq!(task.wait(), 137);
    pod.stop().expect("a second stop is no error");
    let status = pod.status();
    assert_eq!(status.state, "SANDBOX_NOTREADY");
    assert!(status.exited_at.is_some());
    let late = Task::try_create(&pod.shim, "c2", Spec::sh("exit 0"), "", "").map(|_| ());
    assert_eq!(late.unwrap_err().code, Code::FailedPrecondition);
}

fn no_netns_is_the_nodes_network(world: &World) {
    let shim = Shim::start(world, "pod", SANDBOX_CONFIG, Bootstrap::Messages);
    create(&shim, &options(world, &world.dir().join("agent.sock")), std::path::Path::new("")).unwrap();
    start(&shim).unwrap();
    let net = |process: u32| fs::read_link(format!("/proc/{process}/ns/net")).unwrap();
    assert_eq!(net(shim.pid), net(std::process::id()));
}

fn task_shutdown_spares_the_sandbox(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("exit 0"));
    task.wait();
    task.delete().unwrap();
    let request = ShutdownRequest { id: "c1".to_owned(), now: true };
    let (): () = pod.shim.task(task_service::SHUTDOWN, &request).unwrap();
    assert_eq!(pod.status().state, "SANDBOX_READY");
    let request = ShutdownSandboxRequest { sandbox_id: pod.shim.id.clone() };
    let ShutdownSandboxResponse {} =
        pod.shim.call(sandbox_service::NAME, sandbox_service::SHUTDOWN_SANDBOX, &request).unwrap();
    pod.shim.ends();
}

fn connect_answers_for_any_id(world: &World) {
    let pod = Pod::start(world);
    let connect = |id: &str| -> ConnectResponse {
        pod.shim.task(task_service::CONNECT, &ConnectRequest { id: id.to_owned() }).unwrap()
    };
    assert_eq!(connect("pod").shim_pid, pod.shim.pid);
    assert_eq!((connect("no-such").shim_pid, connect("no-such").task_pid), (pod.shim.pid, 0));
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    assert_eq!(connect("c1").task_pid, task.pid);
}

fn members_share_what_they_ask_for(world: &World) {
    let pod = Pod::start(world);
    let script = "for kind in net ipc uts pid; do readlink /proc/self/ns/$kind; done; hostname; stat -f -c %T /dev/shm";
    let sharing = Task::start(&pod.shim, "c1", Spec::sh(script).sharing(&["network", "ipc", "uts"]));
    assert_eq!(sharing.wait(), 0);
    let alone = Task::start(&pod.shim, "c2", Spec::sh(script));
    assert_eq!(alone.wait(), 0);
    let of_shim = |kind: &str| {
        let link = fs::read_link(format!("/proc/{}/ns/{kind}", pod.shim.pid)).unwrap();
        link.display().to_string()
    };
    let (sharing, alone) = (sharing.log.text("stdout"), alone.log.text("stdout"));
    let (sharing, alone): (Vec<&str>, Vec<&str>) = (sharing.lines().collect(), alone.lines().collect());
    for (at, kind) in ["net", "ipc", "uts"].into_iter().enumerate() {
        assert_eq!(sharing[at], of_shim(kind), "{kind} is the pod's");
        assert_ne!(alone[at], of_shim(kind), "{kind} is the container's own");
    }
    assert_ne!(sharing[3], of_shim("pid"), "the pid namespace was not asked for");
    assert_eq!(sharing[4], "the-pod");
    assert_eq!(sharing[5], "tmpfs");
}

fn members_share_processes_when_asked(world: &World) {
    let pod = Pod::start_with(world, |options| options.pid = NamespaceMode::Pod.into());
    let kinds = ["network", "ipc", "uts", "pid"];
    let first = Task::start(&pod.shim, "c1", Spec::sh("echo ready; exec sleep 4711").sharing(&kinds));
    first.log.says("ready");
    let second = Task::start(&pod.shim, "c2", Spec::sh("ps -o args; echo pid $$").sharing(&kinds));
    assert_eq!(second.wait(), 0);
    let seen = second.log.text("stdout");
    assert!(seen.contains("sleep 4711"), "{seen}");
    assert!(!seen.contains("pid 1\n"), "PID 1 is the pod's own");
    assert_eq!(first.status(), berth_proto::process::Status::Running, "a member's end is its own");
}

fn sysctls_are_set_in_the_pod(world: &World) {
    let pod = Pod::start_with(world, |options| {
        options.sysctls.insert("net.ipv4.ip_default_ttl".to_owned(), "77".to_owned());
        options.sysctls.insert("kernel.shm_rmid_forced".to_owned(), "1".to_owned());
    });
    let inside = |name: &str| {
        let path = format!("/proc/sys/{name}");
        let pid = pod.shim.pid.to_string();
        let output = std::process::Command::new("nsenter")
            .args(["-t", &pid, "-n", "-i", "cat", &path])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(inside("net/ipv4/ip_default_ttl"), "77");
    assert_eq!(inside("kernel/shm_rmid_forced"), "1");
    assert_ne!(fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").unwrap().trim(), "77");
}

/// Whoever may enter a state directory finds a container's set-user-id programs in it.
fn state_is_closed_to_others(world: &World) {
    use std::os::unix::fs::PermissionsExt;
    let pod = Pod::start(world);
    let _task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    let top = std::path::Path::new("/run/berth-shim");
    let of_this_world = |runtime: std::path::PathBuf| runtime.join(world.name());
    let mut below: Vec<_> =
        fs::read_dir(top).unwrap().flatten().map(|entry| of_this_world(entry.path())).collect();
    below.retain(|dir| dir.exists());
    assert!(!below.is_empty(), "the runtime keeps its state below {}", top.display());
    below.push(top.to_owned());
    for dir in below {
        let mode = fs::metadata(&dir).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", dir.display());
    }
}

fn both_sockets_are_for_root_alone(world: &World) {
    use std::os::unix::fs::PermissionsExt;
    let pod = Pod::start(world);
    for socket in [&pod.shim.socket(), &pod.agent_socket] {
        let mode = fs::metadata(socket).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", socket.display());
    }
    // A pod with the node's network reaches every abstract socket: there must be none.
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let abstract_ones =
        table.lines().filter(|line| line.contains('@') && line.contains("containerd-shim")).count();
    assert_eq!(abstract_ones, 0);
}
