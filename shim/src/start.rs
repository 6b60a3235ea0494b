//! `start`: makes the socket and the process that serves it, and says where they are.
//!
//! containerd runs this in the bundle, with runtime options or bootstrap parameters on standard input, and reads the
//! address from standard output. It is printed once the shim has told that it is up; a shim that ends before is an error
//! with its reason, and leaves nothing behind.

mod process;
mod socket;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use berth_proto::bootstrap::BootstrapParams;
use berth_shim_core::{Id, IdError};
use prost::Message;
use serde_json::{Value, json};
use thiserror::Error;

use crate::args::Args;
use crate::bundle::{self, BundleError};
use process::{ProcessError, Serving};
pub(crate) use process::{tell, tell_ready};
use socket::{Claim, claim};
pub(crate) use socket::{SocketError, listen, name_of, remove_unserved, socket_path};

/// Where shims listen when containerd does not say (`defaults.DefaultStateDir` of containerd).
const SOCKET_DIR: &str = "/run/containerd/s";
/// Most bytes read from standard input.
const STDIN_BYTES_MAX: usize = 4 << 20;
/// Annotations that say which containers share a shim, strongest first (`manager_linux.go` of the runc shim).
const GROUPS: [&str; 2] = ["io.containerd.runc.v2.group", SANDBOX];
const SANDBOX: &str = "io.kubernetes.cri.sandbox-id";
/// Annotation that says whether a container is its sandbox's first, `sandbox`, or lives in it, `container`
/// (`internal/cri/annotations/annotations.go` of containerd).
const KIND: &str = "io.kubernetes.cri.container-type";

/// Why no shim could be started.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("access the bundle")]
    Bundle(#[from] BundleError),
    #[error("read config.json: {what} is not {wanted}")]
    Config { what: &'static str, wanted: &'static str },
    #[error("join sandbox {sandbox}: no shim serves it: it has ended, make the sandbox again")]
    NoSandbox { sandbox: String },
    #[error("read standard input")]
    Stdin(#[source] io::Error),
    #[error("read standard input: it has more than {STDIN_BYTES_MAX} bytes")]
    LongStdin,
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("print the address")]
    Print(#[source] io::Error),
}

/// Where the shim of a container in no group listens when containerd names no directory.
pub(crate) fn usual_socket(args: &Args) -> Result<PathBuf, SocketError> {
    socket_path(Path::new(SOCKET_DIR), &args.address, &args.namespace, &args.id)
}

pub(crate) fn start(args: &Args) -> Result<(), StartError> {
    let id = Id::parse(&args.id)?;
    let stdin = read_stdin()?;
    let bundle = Path::new(".");
    let config = bundle::read_config(bundle)?;
    let group = group(&config)?.unwrap_or_else(|| id.as_str().to_owned());
    let asked = Asked::of(&stdin, args);
    let path = socket_path(&asked.socket_dir, &args.address, &args.namespace, &group)?;
    if lives_in(&config) == Some(group.as_str()) {
        return join(bundle, &path, group);
    }
    // Noted before there is one, so that nothing that happens to this process leaves a socket that nobody knows.
    bundle::write_sockets(bundle, [path.as_path()].into_iter())?;
    match claim(&path).inspect_err(|_| bundle::remove_shim_notes(bundle))? {
        Claim::Joined => print(&path),
        Claim::Ours(listener) => serve(args, &asked, bundle, &path, &listener),
    }
}

/// Finds the shim of a sandbox. One of the container's own would be nobody's: whoever removes the sandbox after its shim has
/// nothing to remove.
fn join(bundle: &Path, path: &Path, sandbox: String) -> Result<(), StartError> {
    if !socket::is_served(path)? {
        return Err(StartError::NoSandbox { sandbox });
    }
    bundle::write_sockets(bundle, [path].into_iter())?;
    print(path)
}

/// Starts the serving process and notes it, or leaves nothing.
fn serve(
    args: &Args,
    asked: &Asked,
    bundle: &Path,
    path: &Path,
    listener: &UnixListener,
) -> Result<(), StartError> {
    let mut serving = None;
    let done = Serving::spawn(args, asked.events_address.as_deref(), listener)
        .map_err(StartError::from)
        .and_then(|started| {
            let serving = serving.insert(started);
            bundle::write_shim_pid(bundle, serving.pid())?;
            serving.ready()?;
            print(path)
        });
    if done.is_err() {
        if let Some(serving) = serving {
            serving.end();
        }
        // The listener is open yet, so that nobody took the path for a dead shim's and put another socket there.
        socket::remove(path);
        bundle::remove_shim_notes(bundle);
    }
    done
}

fn read_stdin() -> Result<Vec<u8>, StartError> {
    let mut stdin = Vec::new();
    let most = STDIN_BYTES_MAX as u64 + 1;
    io::stdin().take(most).read_to_end(&mut stdin).map_err(StartError::Stdin)?;
    if stdin.len() > STDIN_BYTES_MAX { Err(StartError::LongStdin) } else { Ok(stdin) }
}

/// The group that a container's annotations put it in.
pub(crate) fn group(config: &Value) -> Result<Option<String>, StartError> {
    let wrong = |what, wanted| StartError::Config { what, wanted };
    let config = config.as_object().ok_or_else(|| wrong("the whole", "an object"))?;
    let annotations = match config.get("annotations") {
        None | Some(Value::Null) => return Ok(None),
        Some(annotations) => annotations.as_object().ok_or_else(|| wrong("annotations", "an object"))?,
    };
    for name in GROUPS {
        match annotations.get(name) {
            None => {}
            Some(Value::String(group)) if group.is_empty() => {}
            Some(Value::String(group)) => return Ok(Some(group.clone())),
            Some(_) => return Err(wrong(name, "a text")),
        }
    }
    Ok(None)
}

/// The sandbox that a container cannot be without.
fn lives_in(config: &Value) -> Option<&str> {
    let annotation = |name: &str| config.pointer("/annotations")?.get(name)?.as_str();
    annotation(SANDBOX).filter(|_| annotation(KIND) == Some("container"))
}

/// What containerd 2.3 and later says on standard input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) socket_dir: PathBuf,
    /// Where events go, if the environment does not say.
    events_address: Option<String>,
}

impl Asked {
    /// Runtime options, which earlier versions send, decode as parameters too, with the type's name in the place of the
    /// id.
    pub(crate) fn of(stdin: &[u8], args: &Args) -> Self {
        let params = BootstrapParams::decode(stdin).ok();
        let params = params
            .filter(|params| params.instance_id == args.id && params.namespace == args.namespace)
            .unwrap_or_default();
        let socket_dir = params.socket_dir.filter(|directory| !directory.is_empty());
        Self {
            socket_dir: socket_dir.unwrap_or_else(|| SOCKET_DIR.to_owned()).into(),
            events_address: Some(params.containerd_ttrpc_address).filter(|address| !address.is_empty()),
        }
    }
}

/// JSON is the one form that every containerd from 2.0 on reads; version 3 lets members join without another process.
fn print(path: &Path) -> Result<(), StartError> {
    let result = json!({"version": 3, "address": format!("unix://{}", path.display()), "protocol": "ttrpc"});
    let mut stdout = io::stdout();
    stdout.write_all(result.to_string().as_bytes()).and_then(|()| stdout.flush()).map_err(StartError::Print)
}

#[cfg(test)]
mod tests;
