//! Calls of the shim's program, as containerd makes them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use berth_proto::bootstrap::{BootstrapParams, BootstrapResult, Extension};
use berth_proto::{Any, runc};
use prost::Message;

use super::groups::Driver;
use super::world::World;

/// How containerd talks to `shim start`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bootstrap {
    /// containerd 2.3 and later: a message each way.
    Messages,
    /// containerd 2.0 to 2.2: runtime options there, JSON or a message back.
    Options,
    /// containerd 2.0 to 2.2 without runtime options.
    Nothing,
}

/// What every call of the shim's program carries.
#[derive(Debug)]
pub(crate) struct Call {
    program: PathBuf,
    pub(crate) id: String,
    namespace: String,
    bundle: PathBuf,
    events: PathBuf,
}

impl Call {
    pub(crate) fn of(world: &World, id: &str) -> Call {
        Call {
            program: world.subject().shim.clone(),
            id: id.to_owned(),
            namespace: world.name().to_owned(),
            bundle: world.bundle(id),
            events: world.containerd.socket().to_owned(),
        }
    }

    pub(crate) fn run(&self, action: &str, input: &[u8]) -> Output {
        let Call { program, id, namespace, bundle, events } = self;
        let mut command = Command::new(program);
        let grpc = events.with_extension("");
        command.args(["-namespace", namespace, "-address"]).arg(&grpc).args([
            "-publish-binary",
            "/bin/false",
            "-id",
            id,
        ]);
        if action == "delete" {
            command.arg("-bundle").arg(bundle);
        }
        command.arg(action).current_dir(bundle).env("TTRPC_ADDRESS", events).env("GRPC_ADDRESS", grpc);
        command.env("NAMESPACE", namespace).env("MAX_SHIM_VERSION", "2").env("GOMAXPROCS", "2");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A call that refuses its arguments ends without its input.
        let _unread = child.stdin.take().unwrap().write_all(input).is_err();
        child.wait_with_output().unwrap()
    }
}

/// Calls the shim's program in a bundle, or in the test's directory where `id` is empty.
pub fn call_program(world: &World, id: &str, action: &str, input: &[u8]) -> Output {
    let call = Call::of(world, id);
    if id.is_empty() {
        Call { bundle: world.dir().to_owned(), ..call }.run(action, input)
    } else {
        call.run(action, input)
    }
}

/// What `start` reads from its standard input.
pub(crate) fn bootstrap_input(world: &World, id: &str, bootstrap: Bootstrap) -> Vec<u8> {
    let options = runc_options(world);
    match bootstrap {
        Bootstrap::Nothing => Vec::new(),
        Bootstrap::Options => options.encode_to_vec(),
        Bootstrap::Messages => BootstrapParams {
            instance_id: id.to_owned(),
            namespace: world.name().to_owned(),
            containerd_version: "2.3.4".to_owned(),
            containerd_ttrpc_address: world.containerd.socket().display().to_string(),
            containerd_grpc_address: world.containerd.socket().with_extension("").display().to_string(),
            containerd_binary: "/bin/false".to_owned(),
            extensions: vec![Extension { value: Some(options) }],
            socket_dir: Some(world.dir().join("s").display().to_string()),
            ..BootstrapParams::default()
        }
        .encode_to_vec(),
    }
}

/// The options that `ctr run --runc-binary` gives.
pub(crate) fn runc_options(world: &World) -> Any {
    let binary_name = world.program().display().to_string();
    let systemd_cgroup = world.groups().driver() == Driver::Systemd;
    berth_proto::pack(&runc::Options { binary_name, systemd_cgroup, ..runc::Options::default() })
}

/// Reads what containerd would: a message, or else JSON.
pub(crate) fn parse_result(stdout: &[u8]) -> BootstrapResult {
    if let Ok(result) = BootstrapResult::decode(stdout) {
        return result;
    }
    let json: serde_json::Value = serde_json::from_slice(stdout).expect("a BootstrapResult or JSON");
    BootstrapResult {
        version: i32::try_from(json["version"].as_i64().unwrap()).unwrap(),
        address: json["address"].as_str().unwrap().to_owned(),
        protocol: json["protocol"].as_str().unwrap().to_owned(),
        ..BootstrapResult::default()
    }
}

/// The path of a socket's address.
pub(crate) fn socket_of(address: &str) -> PathBuf {
    Path::new(address.strip_prefix("unix://").unwrap_or_else(|| panic!("a unix address, not {address:?}")))
        .to_owned()
}

/// All that a call has printed.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
