//! How a shim is started and what it tells (`containerd.runtime.bootstrap.v1`, containerd's `core/runtime/v2/README.md`).

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::process::Command;

use berth_proto::task::{ConnectRequest, ConnectResponse, task_service};
use berth_proto::ttrpc::Code;
use berth_proto::types::RuntimeInfo;
use berth_proto::{TASK_V3, runc};
use prost::Message;
use serde_json::Value;

use super::{Case, shim};
use crate::harness::{Bootstrap, Shim, Spec, World, call_program};

pub(super) const CASES: &[Case] = &[
    shim("messages_lead_to_a_socket", messages_lead_to_a_socket),
    shim("options_lead_to_a_socket", options_lead_to_a_socket),
    shim("nothing_leads_to_a_socket", nothing_leads_to_a_socket),
    shim("the_version_that_is_told_is_served", the_version_that_is_told_is_served),
    shim("the_older_version_is_served_too", the_older_version_is_served_too),
    shim("the_socket_is_for_root_alone_cve_2020_15257", the_socket_is_for_root_alone),
    shim("a_broken_bundle_starts_nothing", a_broken_bundle_starts_nothing),
    shim("info_tells_name_version_and_features", info_tells_name_version_and_features),
    shim("a_version_is_printed", a_version_is_printed),
];

fn started<'w>(world: &'w World, id: &str, bootstrap: Bootstrap) -> Shim<'w> {
    Shim::start(world, id, &Spec::sh("exit 0").to_json(), bootstrap)
}

/// Two containers without a group are served by two shims, each at a socket of its own.
fn are_apart(world: &World, bootstrap: Bootstrap) -> [Shim<'_>; 2] {
    let both = ["c1", "c2"].map(|id| started(world, id, bootstrap));
    for shim in &both {
        assert!((2..=3).contains(&shim.result.version), "version {}", shim.result.version);
        assert_eq!(shim.result.protocol, "ttrpc");
    }
    assert_ne!(both[0].socket(), both[1].socket());
    assert_ne!(both[0].pid, both[1].pid);
    both
}

fn messages_lead_to_a_socket(world: &World) {
    for shim in are_apart(world, Bootstrap::Messages) {
        assert!(shim.socket().starts_with(world.dir().join("s")), "in the directory that was named");
    }
}

fn options_lead_to_a_socket(world: &World) {
    are_apart(world, Bootstrap::Options);
}

fn nothing_leads_to_a_socket(world: &World) {
    are_apart(world, Bootstrap::Nothing);
}

fn the_version_that_is_told_is_served(world: &World) {
    let shim = started(world, "c1", Bootstrap::Messages);
    let service = format!("containerd.task.v{}.Task", shim.result.version);
    let request = ConnectRequest { id: "c1".to_owned() };
    let answer: ConnectResponse = shim.call(&service, task_service::CONNECT, &request).unwrap();
    assert_eq!(answer.shim_pid, shim.pid);
    let unknown = [("containerd.task.v9.Task", "Connect"), (TASK_V3, "Frobnicate")];
    for (service, method) in unknown {
        let failure = shim.call::<_, ()>(service, method, &request).unwrap_err();
        assert_eq!(failure.code, Code::Unimplemented, "{service}/{method}");
    }
}

/// containerd asks for version 2 where version 3 is not implemented, and the other way round after a downgrade.
fn the_older_version_is_served_too(world: &World) {
    let shim = started(world, "c1", Bootstrap::Messages);
    let request = ConnectRequest { id: "c1".to_owned() };
    let answer: ConnectResponse = shim.call(task_service::NAME, task_service::CONNECT, &request).unwrap();
    assert_eq!(answer.shim_pid, shim.pid);
}

/// A pod with the node's network reaches every abstract socket: there must be none.
fn the_socket_is_for_root_alone(world: &World) {
    let shim = started(world, "c1", Bootstrap::Messages);
    let metadata = fs::symlink_metadata(shim.socket()).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let directory = fs::metadata(shim.socket().parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(directory & 0o022, 0, "nobody else may replace sockets");
    let descriptors = fs::read_dir(format!("/proc/{}/fd", shim.pid)).unwrap().flatten();
    let links: Vec<String> = descriptors
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .map(|link| link.display().to_string())
        .collect();
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    for line in table.lines().filter(|line| line.contains(" @")) {
        let inode = line.split_whitespace().nth(6).unwrap();
        assert!(!links.contains(&format!("socket:[{inode}]")), "an abstract socket: {line}");
    }
}

fn a_broken_bundle_starts_nothing(world: &World) {
    for (id, config) in
        [("c1", None), ("c2", Some("")), ("c3", Some("{\"annotations\": 7")), ("c4", Some("[]"))]
    {
        let bundle = world.bundle(id);
        fs::create_dir_all(&bundle).unwrap();
        if let Some(config) = config {
            fs::write(bundle.join("config.json"), config).unwrap();
        }
        let output = call_program(world, id, "start", &[]);
        assert!(!output.status.success(), "with {config:?}");
        assert!(!output.stderr.is_empty() || !output.stdout.is_empty(), "why is told, with {config:?}");
    }
}

fn info_tells_name_version_and_features(world: &World) {
    let binary_name = world.program().display().to_string();
    let options = berth_proto::pack(&runc::Options { binary_name, ..runc::Options::default() });
    let output = call_program(world, "", "-info", &options.encode_to_vec());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let info = RuntimeInfo::decode(output.stdout.as_slice()).unwrap();
    assert!(info.name.starts_with("io.containerd."), "{:?}", info.name);
    assert!(!info.version.unwrap().version.is_empty());
    let features = info.features.expect("what the runtime can do");
    let features: Value = serde_json::from_slice(&features.value).unwrap();
    assert_eq!(features["ociVersionMin"], "1.0.0");
}

fn a_version_is_printed(world: &World) {
    let output = Command::new(&world.subject().shim).arg("-v").current_dir(world.dir()).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.bytes().any(|byte| byte.is_ascii_digit()), "{text:?}");
}
