//! The shim at its borders: how it is started, and clients that misbehave.

use std::process::Command;

use berth_proto::TASK_V3;
use berth_proto::task::{
    ConnectRequest, ConnectResponse, StateRequest, StateResponse, WaitRequest, WaitResponse, task_service,
};
use berth_proto::ttrpc::Code;
use berth_proto::types::RuntimeInfo;
use prost::Message;

use crate::harness::{Bootstrap, Pod, SANDBOX_CONFIG, Shim, Spec, Task, World};
use crate::{Case, FAKE};

pub(crate) const CASES: &[Case] = &[
    ("both_bootstraps_lead_to_a_socket", FAKE, both_bootstraps_lead_to_a_socket),
    ("both_versions_of_the_task_service_answer", FAKE, both_versions_of_the_task_service_answer),
    ("answers_overtake_each_other", FAKE, answers_overtake_each_other),
    ("broken_clients_break_only_themselves", FAKE, broken_clients_break_only_themselves),
    ("bad_ids_are_refused", FAKE, bad_ids_are_refused),
    ("info_and_version_are_printed", FAKE, info_and_version_are_printed),
];

fn both_bootstraps_lead_to_a_socket(world: &World) {
    let messages = Shim::start(world, "p1", SANDBOX_CONFIG, Bootstrap::Messages);
    let options = Shim::start(world, "p2", SANDBOX_CONFIG, Bootstrap::Options);
    for shim in [&messages, &options] {
        assert_eq!((shim.result.version, shim.result.protocol.as_str()), (3, "ttrpc"));
    }
    assert_ne!(messages.socket(), options.socket());
    assert!(messages.socket().starts_with(world.dir().join("s")), "containerd says where");
}

fn both_versions_of_the_task_service_answer(world: &World) {
    let pod = Pod::start(world);
    for service in [task_service::NAME, TASK_V3] {
        let answer: ConnectResponse =
            pod.shim.call(service, task_service::CONNECT, &ConnectRequest { id: "x".to_owned() }).unwrap();
        assert_eq!(answer.shim_pid, pod.shim.pid);
    }
    let unknown = pod.shim.call::<_, ()>("containerd.task.v9.Task", "Connect", &());
    assert_eq!(unknown.unwrap_err().code, Code::Unimplemented);
}

fn answers_overtake_each_other(world: &World) {
    let pod = Pod::start(world);
    let task = Task::start(&pod.shim, "c1", Spec::sh("sleep 1000"));
    let mut conn = pod.shim.connect();
    let request = WaitRequest { id: "c1".to_owned(), exec_id: String::new() };
    let waiting = conn.begin(TASK_V3, task_service::WAIT, &request);
    let request = StateRequest { id: "c1".to_owned(), exec_id: String::new() };
    let state: StateResponse = conn.call(TASK_V3, task_service::STATE, &request).unwrap();
    assert_eq!(state.pid, task.pid);
    task.kill(9).unwrap();
    assert_eq!(conn.end::<WaitResponse>(waiting).unwrap().exit_status, 137);
}

fn broken_clients_break_only_themselves(world: &World) {
    let pod = Pod::start(world);
    let oversized = [&[0, 0x50, 0, 0, 0, 0, 0, 1, 1, 0][..], &vec![0; 0x50_0000]].concat();
    let table: [(&str, &[u8]); 6] = [
        ("half a header", &[0, 0, 0]),
        ("half a message", &[0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 7]),
        ("an even stream", &[0, 0, 0, 0, 0, 0, 0, 2, 1, 0]),
        ("data for nobody", &[0, 0, 0, 1, 0, 0, 0, 9, 3, 0, 7]),
        ("a request that is none", &[0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0xff]),
        ("a message beyond the limit", &oversized),
    ];
    for (what, bytes) in table {
        let mut broken = pod.shim.connect();
        broken.raw(bytes);
        drop(broken);
        let answer: ConnectResponse =
            pod.shim.task(task_service::CONNECT, &ConnectRequest { id: "x".to_owned() }).unwrap();
        assert_eq!(answer.shim_pid, pod.shim.pid, "after {what}");
    }
}

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
