//! Calls of the OCI runtime (runc, crun, youki): one short process each, which the loop reaps.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth_shim_core::{Code, Failure, Id};
use nix::sys::prctl;
use serde_json::Value;

use crate::io::ChildStreams;

/// Where runtimes keep their state, per runtime and containerd namespace, unless a client names a directory.
const ROOT: &str = "/run/berth-shim";
/// Time that one call may take before it is killed, milliseconds. The slowest call that is not a failure is a creation
/// on a machine that starts hundreds at once.
pub(crate) const CALL_MS_MAX: u64 = 120_000;
/// Most bytes of a runtime's log that are read for its error.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// An OCI runtime and how it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Runtime {
    pub(crate) binary: PathBuf,
    /// Put before the command.
    pub(crate) args: Vec<String>,
    /// The value of `--root`.
    pub(crate) root: PathBuf,
}

impl Runtime {
    /// A runtime as a client asked for it; an empty name means runc where it is installed, else crun.
    pub(crate) fn new(name: &str, mut args: Vec<String>, root: &str, namespace: &str) -> Self {
        let binary = if name.is_empty() { default_binary(&mut args) } else { PathBuf::from(name) };
        let root = match root {
            "" => {
                let file = binary.file_name().map_or_else(|| "runtime".into(), ToOwned::to_owned);
                Path::new(ROOT).join(file).join(namespace)
            }
            root => Path::new(root).join(namespace),
        };
        Self { binary, args, root }
    }

    /// A call with its global arguments. Errors go to `log`, since the standard streams may be the container's.
    pub(crate) fn call(&self, log: &Path) -> Command {
        let mut command = self.plain();
        command.arg("--log").arg(log).args(["--log-format", "json"]);
        command
    }

    /// A call without a log: its errors go to its standard error.
    pub(crate) fn plain(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(&self.args).arg("--root").arg(&self.root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

/// How a container is deleted. Force kills what is left and then looks whether it has gone, in runc every 100 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delete {
    Stopped,
    ByForce,
}

impl Delete {
    /// Makes the runtime forget a container.
    pub(crate) fn arguments(self, command: &mut Command, id: &Id) {
        command.arg("delete");
        if self == Self::ByForce {
            command.arg("--force");
        }
        command.arg(id.as_str());
    }
}

/// runc where it is installed, else crun, told not to look for systemd where there is none.
fn default_binary(args: &mut Vec<String>) -> PathBuf {
    if in_path("runc") || !in_path("crun") {
        return "runc".into();
    }
    if args.is_empty() && !Path::new("/run/systemd/system").exists() {
        args.push("--cgroup-manager=cgroupfs".to_owned());
    }
    "crun".into()
}

fn in_path(name: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|directory| directory.join(name).is_file()))
}

/// Starts a call and returns its pid. The call runs with transparent huge pages as the node has them, which the shim
/// itself goes without.
pub(crate) fn spawn(command: &mut Command, streams: Option<ChildStreams>) -> io::Result<u32> {
    if let Some(ChildStreams { stdin, stdout, stderr }) = streams {
        command.stdin(stdin).stdout(stdout).stderr(stderr);
    }
    with_huge_pages(|| command.spawn()).map(|child| child.id())
}

/// Runs something while children inherit the node's setting for transparent huge pages.
fn with_huge_pages<T>(run: impl FnOnce() -> T) -> T {
    let disabled = prctl::get_thp_disable().unwrap_or(false);
    let changed = disabled && prctl::set_thp_disable(false).is_ok();
    let result = run();
    if changed {
        // Memory, not correctness, depends on it.
        let _larger = prctl::set_thp_disable(true).is_err();
    }
    result
}

/// The failure of a call, from the last error in its log.
pub(crate) fn failure(what: &str, id: &Id, code: u32, log: &Path) -> Failure {
    let reason = last_error(log).unwrap_or_else(|| format!("it exited with {code} and said nothing"));
    Failure::new(Code::Internal, format!("OCI runtime {what} of {id} failed: {reason}"))
}

fn last_error(log: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(log).ok()?.take(LOG_BYTES_MAX).read_to_string(&mut text).ok()?;
    parse_last_error(&text)
}

/// Runtimes log one JSON object per line, or plain text when they fail before they read their arguments.
fn parse_last_error(text: &str) -> Option<String> {
    let line = |line: &str| match serde_json::from_str::<Value>(line) {
        Ok(entry) => {
            let level = entry.get("level").and_then(Value::as_str)?;
            let message = entry.get("msg").and_then(Value::as_str)?;
            matches!(level, "error" | "fatal" | "panic").then(|| message.to_owned())
        }
        Err(_not_json) => Some(line.to_owned()),
    };
    text.lines().rev().filter(|text| !text.trim().is_empty()).find_map(line)
}

/// The pid that a call wrote.
pub(crate) fn read_pid(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_a_log_is_the_reason() {
        let runc = r#"{"level":"warning","msg":"w","time":"t"}
{"level":"error","msg":"runc create failed: no such file","time":"t"}
"#;
        let crun = r#"{ "msg": "executable file `nope` not found in $PATH", "level": "error", "time": "t" }"#;
        for (text, reason) in [
            (runc, Some("runc create failed: no such file")),
            (crun, Some("executable file `nope` not found in $PATH")),
            ("unknown flag --frob\n", Some("unknown flag --frob")),
            (r#"{"level":"warning","msg":"w"}"#, None),
            ("", None),
        ] {
            assert_eq!(parse_last_error(text).as_deref(), reason, "{text}");
        }
    }

    #[test]
    fn state_is_kept_apart_by_runtime_and_namespace() {
        let runtime = Runtime::new("/usr/bin/crun", Vec::new(), "", "k8s.io");
        assert_eq!(runtime.root, PathBuf::from("/run/berth-shim/crun/k8s.io"));
        let runtime = Runtime::new("crun", Vec::new(), "/run/mine", "k8s.io");
        assert_eq!(runtime.root, PathBuf::from("/run/mine/k8s.io"));
    }
}
