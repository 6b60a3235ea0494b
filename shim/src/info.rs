//! `-info` and `-v`: what the shim is and what its runtime can do.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;

use berth_proto::shim::SandboxOptions;
use berth_proto::types::{RuntimeInfo, RuntimeRequest, RuntimeVersion};
use berth_proto::{Any, runc, unpack};
use prost::Message;

use crate::runtime::{Client, Runtime};

/// Most bytes read from standard input.
const STDIN_BYTES_MAX: u64 = 4 << 20;
/// The runtime's name in containerd.
const NAME: &str = "io.containerd.berth.v1";
/// The type that containerd unpacks features from (`core/runtime/v2/task_manager.go`).
const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";
/// The annotation that names mount types and prefixes which containerd 2.2 and later leave to the shim.
const ALLOWED_MOUNTS: &str = "containerd.io/runtime-allow-mounts";
const MOUNTS: &str = "format/*,mkdir/*,mkfs/*,loop,erofs";
/// Where containerd, too, looks whether the kernel has it (`internal/dmverity`).
const DM_VERITY: &str = "/sys/module/dm_verity";

pub(crate) fn info() -> io::Result<()> {
    let mut stdin = Vec::new();
    io::stdin().take(STDIN_BYTES_MAX).read_to_end(&mut stdin)?;
    // Options of another kind, or none: the default runtime is described.
    let options = options(&stdin).unwrap_or_default();
    let runtime = Runtime::new(&options.binary_name, Vec::new(), "", Client { address: "", namespace: "" });
    let features = runtime.plain().arg("features").stdout(std::process::Stdio::piped()).output();
    let features = features.ok().filter(|output| output.status.success() && !output.stdout.is_empty());
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let info = RuntimeInfo {
        name: NAME.to_owned(),
        version: Some(RuntimeVersion { version, revision: String::new() }),
        features: features.map(|output| Any { type_url: FEATURES.to_owned(), value: output.stdout }),
        annotations: announced(Path::new(DM_VERITY).exists()),
        ..Default::default()
    };
    io::stdout().write_all(&info.encode_to_vec())
}

/// The mounts that containerd leaves to the shim (`docs/mounts.md` of containerd): those that its mount manager would
/// otherwise perform and write into its database, for each container, before and after its life.
///
/// Only all of them can be announced: a template is filled in where the mounts are that it names. So none is where
/// containerd can do more with one of them, which is to verify an erofs layer with dm-verity.
fn announced(has_dm_verity: bool) -> BTreeMap<String, String> {
    let mounts = (!has_dm_verity).then(|| (ALLOWED_MOUNTS.to_owned(), MOUNTS.to_owned()));
    mounts.into_iter().collect()
}

/// containerd sends the options alone (`core/runtime/v2/task_manager.go`), which decode as a `RuntimeRequest` too; the
/// API's description has the request. Of our own options, what the runc shim's have too is taken.
pub(crate) fn options(stdin: &[u8]) -> Option<runc::Options> {
    let runc = |any: &Any| unpack::<runc::Options>(any).ok();
    let ours = |any: &Any| {
        let SandboxOptions { runtime_binary: binary_name, .. } = unpack(any).ok()?;
        Some(runc::Options { binary_name, ..Default::default() })
    };
    let of = |any: Any| runc(&any).or_else(|| ours(&any));
    let alone = Any::decode(stdin).ok().and_then(of);
    alone.or_else(|| RuntimeRequest::decode(stdin).ok()?.options.and_then(of))
}

pub(crate) fn version() -> io::Result<()> {
    writeln!(io::stdout(), "containerd-shim-berth-v1 {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_announced_all_or_none() {
        assert_eq!(announced(false).into_values().collect::<Vec<_>>(), [MOUNTS]);
        assert_eq!(announced(true).len(), 0);
    }
}
