//! What the shell keeps of a container and of an exec, and how they are read from requests.

use std::path::PathBuf;

use berth_proto::runc;
use berth_proto::shim::SandboxOptions;
use berth_proto::task::{CreateTaskRequest, ExecProcessRequest};
use berth_proto::types::Mount;
use berth_proto::{AnyError, unpack};
use berth_shim_core::{Code, Failure};
use serde_json::Value;

use crate::answer::Streams;
use crate::bundle;
use crate::cgroup::{Cgroup, OomWatch};
use crate::criu::Restore;
use crate::io::{StdinUri, StreamUri, UriError, Wiring};
use crate::pod::Pod;
use crate::poll::Token;
use crate::runtime::{Client, Runtime};

/// Most output kept of each stream of an `ExecSync`, so that eight at a time stay far below 16 MiB. A probe or a hook
/// needs a few KiB; a client that wants more streams with `Exec`.
const OUTPUT_BYTES_MAX: u64 = 512 << 10;

/// A container that exists for the runtime.
pub(crate) struct Container {
    pub(crate) bundle: PathBuf,
    pub(crate) runtime: Runtime,
    pub(crate) streams: Streams,
    pub(crate) rootfs: Vec<Mount>,
    pub(crate) flags: CreateFlags,
    /// The checkpoint that it is made of.
    pub(crate) restore: Option<Restore>,
    /// Its own process as JSON, once an exec was asked to run as that does.
    pub(crate) process: Option<Vec<u8>>,
    pub(crate) pid: u32,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) oom: Option<(Token, OomWatch)>,
    /// Processes killed for memory, as far as is known.
    pub(crate) oom_kills: u64,
    /// When the counter is looked at again, and how often still.
    pub(crate) oom_look: Option<Looks>,
}

/// What the kernel has yet to do is looked at again for a while: cgroup v1 wakes before it kills, and a group is removed
/// when all in it have died.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looks {
    pub(crate) at_ms: u64,
    pub(crate) left: u32,
}

impl Looks {
    /// Time between looks, and their number: a kill for memory that takes longer is told with the next, or with the exit.
    const EVERY_MS: u64 = 20;
    const LOOKS: u32 = 50;

    pub(crate) fn begin(now_ms: u64) -> Self {
        Self { at_ms: now_ms + Self::EVERY_MS, left: Self::LOOKS }
    }

    pub(crate) fn next(self, now_ms: u64) -> Option<Self> {
        (self.left > 1).then(|| Self { at_ms: now_ms + Self::EVERY_MS, left: self.left - 1 })
    }
}

/// How a container is created.
#[derive(Debug, Clone, Default)]
pub(crate) struct CreateFlags {
    /// Global arguments.
    pub(crate) global: Vec<String>,
    /// Arguments of `create`.
    pub(crate) create: Vec<&'static str>,
    /// Arguments of `restore`.
    pub(crate) restore: Vec<&'static str>,
}

/// An exec that is to be started.
#[derive(Debug, Clone)]
pub(crate) struct ExecPlan {
    /// OCI `Process` as JSON.
    pub(crate) process: Vec<u8>,
    pub(crate) streams: Streams,
}

/// The bundle and runtime that a creation request names. Its options may be those of the runc shim or, in the record of
/// the container, ours; what they leave open is the sandbox's.
pub(crate) fn plan(
    request: &CreateTaskRequest,
    pod: Option<&Pod>,
    client: Client<'_>,
) -> Result<Container, Failure> {
    let bundle = PathBuf::from(&request.bundle);
    if !bundle.is_absolute() {
        return Err(invalid(format!("the bundle path {:?} is not absolute", request.bundle)));
    }
    let restore = Restore::of(request)?;
    let mut flags = CreateFlags::default();
    let mut runtime = None;
    if let Some(any) = &request.options {
        match unpack::<runc::Options>(any) {
            Ok(options) => {
                flags = CreateFlags::of(&options);
                let asks = !options.binary_name.is_empty() || !options.root.is_empty();
                runtime = asks.then(|| Runtime::new(&options.binary_name, Vec::new(), &options.root, client));
            }
            Err(error @ AnyError::Decode { .. }) => return Err(invalid(crate::with_causes(&error))),
            Err(AnyError::OtherType { .. }) => {
                if let Ok(options) = unpack::<SandboxOptions>(any) {
                    runtime = Some(Runtime::new(&options.runtime_binary, options.runtime_args, "", client));
                }
            }
        }
    }
    let runtime = runtime.unwrap_or_else(|| {
        let options = pod.and_then(Pod::options).cloned().unwrap_or_default();
        Runtime::new(&options.runtime_binary, options.runtime_args, "", client)
    });
    Ok(Container {
        streams: Streams {
            bundle: request.bundle.clone(),
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        },
        rootfs: request.rootfs.clone(),
        flags,
        restore,
        bundle,
        runtime,
        process: None,
        pid: 0,
        cgroup: None,
        oom: None,
        oom_kills: 0,
        oom_look: None,
    })
}

impl CreateFlags {
    fn of(options: &runc::Options) -> Self {
        let mut flags = Self::default();
        if options.systemd_cgroup {
            flags.global.push("--systemd-cgroup".to_owned());
        }
        if options.no_pivot_root {
            flags.create.push("--no-pivot");
            flags.restore.push("--no-pivot");
        }
        if options.no_new_keyring {
            flags.create.push("--no-new-keyring");
        }
        flags
    }
}

impl ExecPlan {
    /// An exec that containerd adds.
    pub(crate) fn of(request: &ExecProcessRequest) -> Result<Self, Failure> {
        let spec = request.spec.as_ref().map(|any| any.value.as_slice()).unwrap_or_default();
        let process = with_terminal(spec, request.terminal)?;
        let streams = Streams {
            bundle: String::new(),
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        Ok(Self { process, streams })
    }

    /// An exec of the shim's own service.
    pub(crate) fn own(process: &[u8], terminal: Terminal) -> Result<Self, Failure> {
        let terminal = match terminal {
            Terminal::Never => false,
            Terminal::AsAsked => parse(process)?.get("terminal").and_then(Value::as_bool).unwrap_or(false),
        };
        let streams = Streams { terminal, ..Streams::default() };
        Ok(Self { process: with_terminal(process, terminal)?, streams })
    }

    /// An exec that runs a command as the container's own process runs. Source: `execInternal` of containerd's
    /// `internal/cri/server/container_execsync.go`.
    pub(crate) fn beside(
        container: &mut Container,
        command: &[String],
        terminal: bool,
    ) -> Result<Self, Failure> {
        let mut process = container.own_process()?;
        process["args"] = command.into();
        process["terminal"] = Value::Bool(terminal);
        if terminal {
            let is_term = |entry: &Value| entry.as_str().is_some_and(|entry| entry.starts_with("TERM="));
            match process.get_mut("env").and_then(Value::as_array_mut) {
                Some(env) if env.iter().any(is_term) => {}
                Some(env) => env.push("TERM=xterm".into()),
                None => process["env"] = Value::from(vec!["TERM=xterm"]),
            }
        }
        let streams = Streams { terminal, ..Streams::default() };
        Ok(Self { process: process.to_string().into_bytes(), streams })
    }
}

impl Container {
    /// What `config.json` says of its process: read once, since a probe asks again and again.
    fn own_process(&mut self) -> Result<Value, Failure> {
        if let Some(known) = &self.process {
            return parse(known);
        }
        let mut config = bundle::read_config(&self.bundle).map_err(|error| {
            Failure::new(Code::Internal, format!("failed to {}", crate::with_causes(&error)))
        })?;
        let process = config.get_mut("process").map(Value::take).filter(Value::is_object);
        let process = process.ok_or_else(|| {
            Failure::new(Code::Internal, "config.json of the container has no process".to_owned())
        })?;
        self.process = Some(process.to_string().into_bytes());
        Ok(process)
    }
}

/// Whether an exec may have a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Terminal {
    Never,
    AsAsked,
}

/// What is sent is no longer than a message may be, and what is read no longer than a file of a bundle: a process may begin
/// with megabytes of environment.
fn parse(process: &[u8]) -> Result<Value, Failure> {
    let value: Value = serde_json::from_slice(process)
        .map_err(|error| invalid(format!("the process description is not JSON: {error}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(invalid("the process description is not an object".to_owned()))
    }
}

fn with_terminal(process: &[u8], terminal: bool) -> Result<Vec<u8>, Failure> {
    let mut value = parse(process)?;
    value["terminal"] = Value::Bool(terminal);
    Ok(value.to_string().into_bytes())
}

/// Where the URIs of a request lead.
pub(crate) fn wiring(streams: &Streams) -> Result<Wiring, Failure> {
    let bad = |error: UriError| invalid(format!("failed to {error}"));
    Ok(Wiring::Uris {
        stdin: StdinUri::parse(&streams.stdin).map_err(bad)?,
        stdout: StreamUri::parse(&streams.stdout).map_err(bad)?,
        stderr: StreamUri::parse(&streams.stderr).map_err(bad)?,
    })
}

/// Files that output is copied to.
pub(crate) fn files(streams: &Streams) -> Vec<PathBuf> {
    let file = |uri: &String| match StreamUri::parse(uri) {
        Ok(StreamUri::File(path)) => Some(path),
        // What is none is refused where the streams are opened.
        Ok(_) | Err(_) => None,
    };
    [&streams.stdout, &streams.stderr].into_iter().filter_map(file).collect()
}

/// Bytes to keep of each stream of an `ExecSync`.
pub(crate) fn output_bytes_max(asked: u64) -> usize {
    let bytes = if asked == 0 { OUTPUT_BYTES_MAX } else { asked.min(OUTPUT_BYTES_MAX) };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn invalid(message: String) -> Failure {
    Failure::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_decides_about_an_execs_terminal() {
        let process = br#"{"args":["sh"],"terminal":true}"#;
        let plan = ExecPlan::own(process, Terminal::Never).unwrap();
        assert_eq!(parse(&plan.process).unwrap().get("terminal"), Some(&Value::Bool(false)));
        let plan = ExecPlan::own(process, Terminal::AsAsked).unwrap();
        assert!(plan.streams.terminal);
        for bad in [b"[]".as_slice(), b"", b"{"] {
            ExecPlan::own(bad, Terminal::Never).expect_err("not a process");
        }
    }

    #[test]
    fn a_command_runs_as_the_containers_own_process() {
        let bundle = tempfile::tempdir().unwrap();
        // As in a namespace of thousands of services: more than 1 MiB.
        let mut env: Vec<String> = (0..12_000).map(|number| format!("S{number}={number:0100}")).collect();
        let own = serde_json::json!({
            "args": ["init"], "terminal": true, "cwd": "/srv", "env": env, "user": {"uid": 7}, "capabilities": {"bounding": ["CAP_KILL"]},
        });
        bundle::write_config(bundle.path(), &serde_json::json!({"process": own})).unwrap();
        let request = CreateTaskRequest {
            bundle: bundle.path().to_str().unwrap().to_owned(),
            ..CreateTaskRequest::default()
        };
        let mut container = plan(&request, None, Client { address: "", namespace: "" }).unwrap();
        let command = ["cat".to_owned(), "/x".to_owned()];
        let plan = ExecPlan::beside(&mut container, &command, false).unwrap();
        let mut expected = own;
        expected["args"] = serde_json::json!(["cat", "/x"]);
        expected["terminal"] = Value::Bool(false);
        assert_eq!(parse(&plan.process).unwrap(), expected);
        // It is read once.
        std::fs::remove_file(bundle.path().join("config.json")).unwrap();
        let plan = ExecPlan::beside(&mut container, &command, true).unwrap();
        env.push("TERM=xterm".to_owned());
        expected["env"] = env.into();
        expected["terminal"] = Value::Bool(true);
        assert_eq!(parse(&plan.process).unwrap(), expected);
        assert!(plan.streams.terminal);
    }

    #[test]
    fn cve_2022_1708_no_client_raises_the_output_limit() {
        assert_eq!(output_bytes_max(5), 5);
        for asked in [0, 16 << 20, u64::MAX] {
            assert!(2 * output_bytes_max(asked) < berth_proto::ttrpc::MESSAGE_LEN_MAX);
        }
    }
}
