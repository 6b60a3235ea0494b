//! The shim at its borders: how it is started, and clients that misbehave.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;

use berth_proto::TASK_V3;
use berth_proto::task::{ConnectRequest, ConnectResponse, task_service};
use berth_proto::ttrpc::{Code, Status};
use berth_proto::types::RuntimeInfo;
use prost::Message;

use crate::harness::{Conn, Pod, World, until};
use crate::{Case, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("bad_ids_are_refused", FAKE, bad_ids_are_refused),
    ("without_descriptors_clients_are_turned_away", FAKE, without_descriptors_clients_are_turned_away),
    ("info_and_version_are_printed", FAKE, info_and_version_are_printed),
];

fn bad_ids_are_refused(world: &World) {
    let pod = Pod::start(world);
    for id in ["", ".", "..", "../pod", "a/b", "a\0b", "-rf", &"x".repeat(1000)] {
        let request = berth_proto::task::CreateTaskRequest {
            id: id.to_owned(),
            bundle: world.dir().display().to_string(),
            ..berth_proto::task::CreateTaskRequest::default()
        };
        let refused =
            pod.shim.task::<_, berth_proto::task::CreateTaskResponse>(task_service::CREATE, &request);
        assert_eq!(refused.unwrap_err().code, Code::InvalidArgument, "{id:?}");
    }
}

/// Left to wait, they would wake the shim without end.
fn without_descriptors_clients_are_turned_away(world: &World) {
    const CLIENTS: usize = 40;
    let pod = Pod::start(world);
    let mut first = pod.shim.connect();
    let connect = |conn: &mut Conn| {
        let answer: Result<ConnectResponse, Status> =
            conn.call(TASK_V3, task_service::CONNECT, &ConnectRequest { id: "pod".to_owned() });
        answer.map(|answer| answer.shim_pid)
    };
    let open = fs::read_dir(format!("/proc/{}/fd", pod.shim.pid)).unwrap().count();
    let limit = |most: usize| {
        let pid = pod.shim.pid.to_string();
        let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={most}:")]).status();
        assert!(limited.unwrap().success());
    };
    limit(open + CLIENTS / 2);
    let clients: Vec<UnixStream> =
        (0..CLIENTS).map(|_| UnixStream::connect(pod.shim.socket()).unwrap()).collect();
    assert_eq!(connect(&mut first), Ok(pod.shim.pid), "who was there is served");
    let turned_away = || {
        let ended = |client: &&UnixStream| {
            client.set_nonblocking(true).unwrap();
            matches!((&**client).read(&mut [0]), Ok(0))
        };
        clients.iter().filter(ended).count()
    };
    // Numbers between open descriptors are free, too.
    until("the end of the last clients", || (turned_away() >= CLIENTS / 4).then_some(()));
    assert!(turned_away() < CLIENTS, "the first ones are served");
    drop(clients);
    limit(1024);
    until("a new client to be served", || {
        let request = ConnectRequest { id: "pod".to_owned() };
        let mut conn = Conn::try_open(&pod.shim.socket()).ok()?;
        conn.try_call::<_, ConnectResponse>(TASK_V3, task_service::CONNECT, &request)
    });
}

fn info_and_version_are_printed(world: &World) {
    let shim = env!("CARGO_BIN_EXE_containerd-shim-berth-v1");
    let run = |flag: &str| {
        let output = Command::new(shim).arg(flag).current_dir(world.dir()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let info = RuntimeInfo::decode(run("-info").as_slice()).unwrap();
    assert_eq!(info.name, "io.containerd.berth.v1");
    assert!(!info.version.unwrap().version.is_empty());
    assert!(String::from_utf8(run("-v")).unwrap().contains(env!("CARGO_PKG_VERSION")));
}
