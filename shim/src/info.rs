//! `-info` and `-v`: what the shim is and what its runtime can do.

use std::io::{self, Read, Write};

use berth_proto::types::{RuntimeInfo, RuntimeRequest, RuntimeVersion};
use berth_proto::{Any, runc, unpack};
use prost::Message;

use crate::runtime::Runtime;

/// Most bytes read from standard input.
const STDIN_BYTES_MAX: u64 = 4 << 20;
/// The runtime's name in containerd.
const NAME: &str = "io.containerd.berth.v1";
/// The type that containerd unpacks features from (`core/runtime/v2/task_manager.go`).
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

pub(crate) fn info() -> io::Result<()> {
    let mut stdin = Vec::new();
    io::stdin().take(STDIN_BYTES_MAX).read_to_end(&mut stdin)?;
    // Options of another kind, or none: the default runtime is described.
    let options = options(&stdin).unwrap_or_default();
    let runtime = Runtime::new(&options.binary_name, Vec::new(), "", "");
    let features = runtime.plain().arg("features").stdout(std::process::Stdio::piped()).output();
    let features = features.ok().filter(|output| output.status.success() && !output.stdout.is_empty());
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let info = RuntimeInfo {
        name: NAME.to_owned(),
        version: Some(RuntimeVersion { version, revision: String::new() }),
        features: features.map(|output| Any { type_url: FEATURES.to_owned(), value: output.stdout }),
        ..Default::default()
    };
    io::stdout().write_all(&info.encode_to_vec())
}

/// containerd sends a `RuntimeRequest`, or the options alone.
fn options(stdin: &[u8]) -> Option<runc::Options> {
    let any = RuntimeRequest::decode(stdin)
        .ok()
        .and_then(|request| request.options)
        .or_else(|| Any::decode(stdin).ok());
    any.and_then(|any| unpack(&any).ok())
}

pub(crate) fn version() -> io::Result<()> {
    writeln!(io::stdout(), "containerd-shim-berth-v1 {}", env!("CARGO_PKG_VERSION"))
}
