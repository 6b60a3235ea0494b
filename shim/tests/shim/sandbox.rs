//! The sandbox service.

use std::fs;
use std::path::Path;

use berth_proto::sandbox::{ShutdownSandboxRequest, ShutdownSandboxResponse, sandbox_service};
use berth_proto::task::{ConnectRequest, ConnectResponse, task_service};

use crate::harness::{Pod, Spec, Task, World};
use crate::{Case, EVERY, FAKE, REAL};

pub(crate) const CASES: &[Case] = &[
    ("the_sandbox_is_this_process", FAKE, the_sandbox_is_this_process),
    ("it_goes_when_its_last_answer_was_read", FAKE, it_goes_when_its_last_answer_was_read),
    ("members_share_what_they_ask_for", REAL, members_share_what_they_ask_for),
    ("sysctls_are_set_in_the_pod", FAKE, sysctls_are_set_in_the_pod),
    ("state_is_closed_to_others_cve_2021_41103", EVERY, state_is_closed_to_others),
    ("both_sockets_are_for_root_alone_cve_2020_15257", FAKE, both_sockets_are_for_root_alone),
];

fn the_sandbox_is_this_process(world: &World) {
    let pod = Pod::start(world);
    let status = pod.status();
    assert_eq!((pod.started.pid, status.pid), (pod.shim.pid, pod.shim.pid));
    assert!(pod.started.created_at.is_some());
    assert_eq!(status.created_at, pod.started.created_at);
    assert_eq!(status.sandbox_id, "pod");
    // Else containerd would take it for a leaked one when it starts.
    assert_eq!(pod.pids().unwrap(), [pod.shim.pid]);
    let info = |name: &str| status.info.get(name).map(String::as_str);
    assert_eq!(info("pid"), Some(pod.shim.pid.to_string().as_str()));
    assert_eq!(info("state"), Some("SANDBOX_READY"));
    let of = |process: &str, kind: &str| fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap();
    let (shim, own) = (pod.shim.pid.to_string(), std::process::id().to_string());
    for kind in ["net", "ipc", "uts"] {
        assert_ne!(of(&shim, kind), of(&own, kind), "{kind}");
    }
    for kind in ["pid", "mnt", "user"] {
        assert_eq!(of(&shim, kind), of(&own, kind), "{kind}");
    }
    pod.stop().unwrap();
    assert_eq!(pod.pids().unwrap(), [pod.shim.pid], "until it is shut down");
}

/// containerd's client takes an answer for lost whose connection is closed before it has come to it.
fn it_goes_when_its_last_answer_was_read(world: &World) {
    let pod = Pod::start(world);
    let mut client = pod.shim.connect();
    let request = ShutdownSandboxRequest { sandbox_id: pod.shim.id.clone() };
    let ShutdownSandboxResponse {} =
        client.call(sandbox_service::NAME, sandbox_service::SHUTDOWN_SANDBOX, &request).unwrap();
    assert!(!pod.shim.socket().exists(), "nobody can come any more");
    let request = ConnectRequest { id: String::new() };
    let answer: Option<ConnectResponse> =
        client.try_call(berth_proto::TASK_V3, task_service::CONNECT, &request);
    assert!(answer.is_some(), "the connection is its client's to close");
    drop(client);
    pod.shim.ends();
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
    let top = Path::new("/run/berth-shim");
    let entries = |dir: &Path| fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let containerds = entries(top).filter(|path| path.is_dir()).flat_map(|runtime| entries(&runtime));
    let below: Vec<_> = containerds.map(|dir| dir.join(world.name())).filter(|dir| dir.is_dir()).collect();
    assert!(!below.is_empty(), "the runtime keeps its state below {}", top.display());
    for dir in below.iter().flat_map(|dir| dir.ancestors().take_while(|above| above.starts_with(top))) {
        let mode = fs::metadata(dir).unwrap().permissions().mode() & 0o777;
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
