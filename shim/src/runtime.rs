//! Calls of the OCI runtime (runc, crun, youki): one short process each, which the loop reaps.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth_shim_core::{Code, Failure, Id};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use crate::cgroup::Cgroup;
use crate::io::ChildStreams;
use crate::start::name_of;
use crate::sys;

/// Where runtimes keep their state, per runtime, containerd and its namespace, unless a client names a directory.
const ROOT: &str = "/run/berth-shim";
/// Time that one call may take before it is killed, milliseconds. The slowest call that is not a failure is a creation
/// on a machine that starts hundreds at once.
pub(crate) const CALL_MS_MAX: u64 = 120_000;
/// Most bytes of a runtime's log that are read for its error.
const LOG_BYTES_MAX: u64 = 64 << 10;

/// The containerd whose state has no directory of its own: the one that a node has.
const USUAL_CONTAINERD: &str = "/run/containerd/containerd.sock";

/// Who asks for containers: their ids are unique in a namespace of one containerd, and not on the node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    /// containerd's socket.
    pub(crate) address: &'a str,
    pub(crate) namespace: &'a str,
}

impl Client<'_> {
    fn state_in(self, directory: &Path) -> PathBuf {
        match self.address {
            "" | USUAL_CONTAINERD => directory.join(self.namespace),
            other => directory.join(name_of(&[other])).join(self.namespace),
        }
    }
}

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
    pub(crate) fn new(name: &str, mut args: Vec<String>, root: &str, client: Client<'_>) -> Self {
        let binary = if name.is_empty() { default_binary(&mut args) } else { PathBuf::from(name) };
        let root = match root {
            "" => {
                let file = binary.file_name().map_or_else(|| "runtime".into(), ToOwned::to_owned);
                client.state_in(&Path::new(ROOT).join(file))
            }
            root => Path::new(root).join(client.namespace),
        };
        Self { binary, args, root }
    }

    /// A call with its global arguments. Errors go to `log`, since the standard streams may be the container's.
    pub(crate) fn call(&self, log: &Path) -> Command {
        let mut command = self.plain();
        command.arg("--log").arg(log).args(["--log-format", "json"]);
        command
    }

    /// The arguments with which `exec` starts a process in a group `name` below the container's, so that none of its
    /// children is born elsewhere. There are none where the runtime has no such wish: crun on cgroup v1 would leave the
    /// process outside of the container's limits in every hierarchy that lacks the group.
    pub(crate) fn in_group(&self, cgroup: &Cgroup, name: &str) -> Option<[String; 2]> {
        let program = self.binary.file_name()?.to_str()?;
        let group = match (program, cgroup) {
            ("runc" | "crun", Cgroup::Unified(_)) => name.to_owned(),
            ("runc", Cgroup::Split(_)) => format!("{}:{name}", cgroup.tree_controller()?),
            _ => return None,
        };
        Some(["--cgroup".to_owned(), group])
    }

    /// A call without a log: its errors go to its standard error.
    pub(crate) fn plain(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(&self.args).arg("--root").arg(&self.root);
        // That of containerd's unit. With one, `start` waits until the container says that it is ready, as go-runc knows too.
        command.env_remove("NOTIFY_SOCKET");
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
    find(name).is_some()
}

/// Where a program is, as calls of it by name find it.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// Has a call end when the shim is killed: what it still made would be made behind the back of `delete`. To be asked
/// last, since the kernel forgets it with a change of user namespace.
pub(crate) fn end_with_shim(command: &mut Command) {
    let shim = Pid::this();
    sys::before_exec(command, move || {
        prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
        // The shim was killed before the line above.
        if Pid::parent() == shim { Ok(()) } else { Err(Errno::ESRCH.into()) }
    });
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

/// The failure of a call, with the last error in its log, in the words of the stock shim (`runtimeError` of
/// `cmd/containerd-shim-runc-v2/process/init.go`).
pub(crate) fn failure(what: &str, code: u32, said: Option<&str>) -> Failure {
    let reason = said.map_or_else(|| format!("it exited with {code} and said nothing"), str::to_owned);
    Failure::new(Code::Internal, format!("OCI runtime {what} failed: {reason}"))
}

/// The last error in the log of a call.
pub(crate) fn last_error(log: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(log).ok()?.take(LOG_BYTES_MAX).read_to_string(&mut text).ok()?;
    parse_last_error(&text)
}

/// Runtimes log JSON objects, each on a line or, as newer ones of crun do, on several; and plain text when they fail
/// before they read their arguments.
fn parse_last_error(text: &str) -> Option<String> {
    let mut last = None;
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let mut objects = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let object = if rest.starts_with('{') { objects.next().and_then(Result::ok) } else { None };
        let after = match object {
            Some(object) => {
                last = error_of(&object).or(last);
                rest.get(objects.byte_offset()..)
            }
            None => {
                let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
                last = Some(line.to_owned());
                Some(after)
            }
        };
        rest = after.unwrap_or_default().trim_start();
    }
    last
}

/// The message of a log entry that tells of an error.
fn error_of(entry: &Value) -> Option<String> {
    let level = entry.get("level").and_then(Value::as_str)?;
    let message = entry.get("msg").and_then(Value::as_str)?;
    matches!(level, "error" | "fatal" | "panic").then(|| message.to_owned())
}

/// The pid that a call wrote.
pub(crate) fn read_pid(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Client<'_> = Client { address: USUAL_CONTAINERD, namespace: "k8s.io" };

    #[test]
    fn the_last_error_of_a_log_is_the_reason() {
        let runc = r#"{"level":"warning","msg":"w","time":"t"}
{"level":"error","msg":"runc create failed: no such file","time":"t"}
"#;
        let crun = r#"{ "msg": "executable file `nope` not found in $PATH", "level": "error", "time": "t" }"#;
        let crun_1_28 = "{\n  \"msg\": \"first\",\n  \"level\": \"error\"\n}\n{\n  \"msg\": \"w\",\n  \"level\": \"warning\"\n}\n";
        for (text, reason) in [
            (runc, Some("runc create failed: no such file")),
            (crun, Some("executable file `nope` not found in $PATH")),
            (crun_1_28, Some("first")),
            ("{ cut off\n", Some("{ cut off")),
            ("42 is no level\n\n", Some("42 is no level")),
            ("unknown flag --frob\n", Some("unknown flag --frob")),
            (r#"{"level":"warning","msg":"w"}"#, None),
            ("", None),
        ] {
            assert_eq!(parse_last_error(text).as_deref(), reason, "{text}");
        }
    }

    #[test]
    fn a_runtime_does_not_hear_of_the_socket_of_containerds_unit() {
        let runtime = Runtime { binary: "runc".into(), root: "/run/r".into(), args: Vec::new() };
        let plain = runtime.plain();
        assert!(plain.get_envs().any(|(name, value)| name == "NOTIFY_SOCKET" && value.is_none()));
    }

    #[test]
    fn an_exec_begins_in_its_own_group_where_the_runtime_can() {
        let unified = Cgroup::Unified("/sys/fs/cgroup/c1".into());
        let one = |name: &str| (name.to_owned(), PathBuf::from(format!("/sys/fs/cgroup/{name}/c1")));
        let split = Cgroup::Split([one("memory"), one("pids")].into());
        for (binary, cgroup, group) in [
            ("/usr/bin/runc", &unified, Some("e")),
            ("/usr/bin/runc", &split, Some("pids:e")),
            ("crun", &unified, Some("e")),
            ("crun", &split, None),
            ("youki", &unified, None),
        ] {
            let runtime = Runtime::new(binary, Vec::new(), "", USUAL);
            let wanted = group.map(|group| ["--cgroup".to_owned(), group.to_owned()]);
            assert_eq!(runtime.in_group(cgroup, "e"), wanted, "{binary}");
        }
    }

    #[test]
    fn state_is_kept_apart_by_runtime_containerd_and_namespace() {
        let root = |name, root, client| Runtime::new(name, Vec::new(), root, client).root;
        assert_eq!(root("/usr/bin/crun", "", USUAL), PathBuf::from("/run/berth-shim/crun/k8s.io"));
        assert_eq!(root("crun", "/run/mine", USUAL), PathBuf::from("/run/mine/k8s.io"));
        let second = Client { address: "/run/second/containerd.sock", ..USUAL };
        let other = root("crun", "", second);
        assert_eq!(other.file_name(), Some("k8s.io".as_ref()));
        let of_containerd = other.parent().and_then(Path::parent);
        assert_eq!(of_containerd, Some(Path::new("/run/berth-shim/crun")), "{}", other.display());
        assert_eq!(root("crun", "/run/mine", second), PathBuf::from("/run/mine/k8s.io"));
    }
}
