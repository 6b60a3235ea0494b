//! Requests that nobody should send end in an error on that request.

use std::fs;

use berth_proto::Any;
use berth_proto::task::{
    ConnectRequest, ConnectResponse, CreateTaskRequest, CreateTaskResponse, ExecProcessRequest,
    UpdateTaskRequest, task_service,
};
use berth_proto::types::Mount;

use super::{Case, containers, shim};
use crate::harness::{Shim, Spec, Streams, Task, World};

pub(super) const CASES: &[Case] = &[
    shim("broken_clients_break_only_themselves", broken_clients_break_only_themselves),
    containers("bad_ids_are_refused", bad_ids_are_refused),
    containers("broken_bundles_are_refused", broken_bundles_are_refused),
    shim("unknown_streams_are_refused", unknown_streams_are_refused),
    shim("unknown_mounts_are_refused", unknown_mounts_are_refused),
    shim("what_is_no_process_is_refused", what_is_no_process_is_refused),
    containers("what_is_no_resource_is_refused", what_is_no_resource_is_refused),
    shim("options_of_another_kind_are_refused", options_of_another_kind_are_refused),
];

fn plain(world: &World) -> Shim<'_> {
    Shim::start_for(world, "c1", &Spec::sh(""))
}

fn is_well(shim: &Shim<'_>, after: &str) {
    let request = ConnectRequest { id: "x".to_owned() };
    let answer: ConnectResponse = shim.task(task_service::CONNECT, &request).unwrap();
    assert_eq!(answer.shim_pid, shim.pid, "after {after}");
}

fn broken_clients_break_only_themselves(world: &World) {
    let shim = plain(world);
    let oversized = [&[0, 0x50, 0, 0, 0, 0, 0, 1, 1, 0][..], &vec![0; 0x50_0000]].concat();
    let table: [(&str, &[u8]); 7] = [
        ("half a header", &[0, 0, 0]),
        ("half a message", &[0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 7]),
        ("an even stream", &[0, 0, 0, 0, 0, 0, 0, 2, 1, 0]),
        ("data for nobody", &[0, 0, 0, 1, 0, 0, 0, 9, 3, 0, 7]),
        ("a request that is none", &[0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0xff]),
        ("an unknown type", &[0, 0, 0, 1, 0, 0, 0, 1, 99, 0, 7]),
        ("a message beyond the limit", &oversized),
    ];
    for (what, bytes) in table {
        let mut broken = shim.connect();
        // The shim may have hung up before it had all of it.
        let _refused = broken.try_raw(bytes).is_err();
        drop(broken);
        is_well(&shim, what);
    }
}

fn bad_ids_are_refused(world: &World) {
    let shim = plain(world);
    for id in [".", "..", "../c1", "a/b", "a\0b", "-rf", &"x".repeat(1000)] {
        let request = CreateTaskRequest {
            id: id.to_owned(),
            bundle: world.bundle("c1").display().to_string(),
            options: shim.task_options.clone(),
            ..CreateTaskRequest::default()
        };
        shim.task::<_, CreateTaskResponse>(task_service::CREATE, &request).expect_err(id);
        is_well(&shim, id);
    }
}

fn broken_bundles_are_refused(world: &World) {
    let shim = plain(world);
    let missing = Task::request(&shim, "c2", &Spec::sh(""), Streams::default());
    let missing = CreateTaskRequest { bundle: world.bundle("no-such").display().to_string(), ..missing };
    shim.task::<_, CreateTaskResponse>(task_service::CREATE, &missing).expect_err("no bundle");
    for config in ["", "{", "[]", "{\"linux\": 7}", "{\"ociVersion\":\"1.1.0\",\"process\":{\"args\":3}}"] {
        let request = Task::request(&shim, "c3", &Spec::sh(""), Streams::default());
        fs::write(world.bundle("c3").join("config.json"), config).unwrap();
        shim.task::<_, CreateTaskResponse>(task_service::CREATE, &request).expect_err(config);
        is_well(&shim, config);
    }
    let task = Task::start(&shim, "c3", Spec::sh("exit 4"));
    assert_eq!(task.wait(), 4, "nothing is left of them");
}

fn unknown_streams_are_refused(world: &World) {
    let shim = plain(world);
    for uri in ["gopher:///tmp/x", "binary:///no/such/program", "file:///proc/no/such/file"] {
        let streams = Streams { stdin: String::new(), stdout: uri.to_owned(), stderr: uri.to_owned() };
        Task::create_with(&shim, "c1", Spec::sh(""), streams).expect_err(uri);
        is_well(&shim, uri);
    }
}

fn unknown_mounts_are_refused(world: &World) {
    let shim = plain(world);
    for (r#type, source) in [("no-such-type", "none"), ("bind", "/no/such/source")] {
        let mount = Mount {
            r#type: r#type.to_owned(),
            source: source.to_owned(),
            target: String::new(),
            options: Vec::new(),
        };
        let request = Task::request(&shim, "c1", &Spec::sh(""), Streams::default());
        let request = CreateTaskRequest { rootfs: vec![mount], ..request };
        shim.task::<_, CreateTaskResponse>(task_service::CREATE, &request).expect_err(r#type);
        is_well(&shim, r#type);
    }
}

fn what_is_no_process_is_refused(world: &World) {
    let shim = plain(world);
    let _task = Task::start(&shim, "c1", Spec::sh("exec sleep 1000"));
    for value in [&b""[..], b"{", b"7", b"\xff\xfe"] {
        let request = ExecProcessRequest {
            id: "c1".to_owned(),
            exec_id: "e1".to_owned(),
            spec: Some(Any { type_url: "x".to_owned(), value: value.to_vec() }),
            ..ExecProcessRequest::default()
        };
        shim.task::<_, ()>(task_service::EXEC, &request).expect_err("no process");
        is_well(&shim, "what is no process");
    }
}

fn what_is_no_resource_is_refused(world: &World) {
    let shim = plain(world);
    let task = Task::start(&shim, "c1", Spec::sh("exec sleep 1000"));
    for value in [&b"{"[..], b"7", b"[]", b"\xff\xfe"] {
        let type_url = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".to_owned();
        let resources = Some(Any { type_url, value: value.to_vec() });
        let request = UpdateTaskRequest { id: "c1".to_owned(), resources, ..UpdateTaskRequest::default() };
        shim.task::<_, ()>(task_service::UPDATE, &request).expect_err("no resources");
    }
    assert_eq!(task.state().unwrap().pid, task.pid);
}

fn options_of_another_kind_are_refused(world: &World) {
    let shim = plain(world);
    let options = Any { type_url: "containerd.runc.v1.Options".to_owned(), value: vec![0xff, 0xff, 0xff] };
    let request = Task::request(&shim, "c1", &Spec::sh(""), Streams::default());
    let request = CreateTaskRequest { options: Some(options), ..request };
    shim.task::<_, CreateTaskResponse>(task_service::CREATE, &request).expect_err("no options");
    is_well(&shim, "what are no options");
}
