//! `start`: makes the socket and the process that serves it, and says where they are.
//!
//! containerd runs this in the bundle, with runtime options or bootstrap parameters on standard input, and reads the
//! address from standard output. The socket listens before the process that accepts is up, so nothing waits for it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth_proto::bootstrap::BootstrapParams;
use berth_shim_core::{Id, IdError};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::sys::prctl;
use prost::Message;
use serde_json::{Value, json};
use thiserror::Error;

use crate::args::Args;
use crate::bundle::{self, BundleError};

/// Where shims listen when containerd does not say (`defaults.DefaultStateDir` of containerd).
const SOCKET_DIR: &str = "/run/containerd/s";
/// Longest socket path: sun_path has 108 bytes on Linux and 104 elsewhere, of which one ends it.
const SOCKET_PATH_BYTES_MAX: usize = 103;
const FNV_BASE: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
/// Most bytes read from standard input.
const STDIN_BYTES_MAX: u64 = 4 << 20;
/// Annotations that say which containers share a shim, strongest first (`manager_linux.go` of the runc shim).
const GROUPS: [&str; 2] = ["io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"];

/// Why no shim could be started.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("access the bundle")]
    Bundle(#[from] BundleError),
    #[error("read standard input")]
    Stdin(#[source] io::Error),
    #[error("make socket directory {path}", path = path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("listen on {path}: the path is longer than {SOCKET_PATH_BYTES_MAX} bytes", path = path.display())]
    LongPath { path: PathBuf },
    #[error("listen on {path}", path = path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("start the shim process")]
    Spawn(#[source] io::Error),
    #[error("print the address")]
    Print(#[source] io::Error),
}

pub(crate) fn start(args: &Args) -> Result<(), StartError> {
    let id = Id::parse(&args.id)?;
    let mut stdin = Vec::new();
    io::stdin().take(STDIN_BYTES_MAX).read_to_end(&mut stdin).map_err(StartError::Stdin)?;
    let config = bundle::read_config(Path::new("."))?;
    let group = group(&config).unwrap_or_else(|| id.as_str().to_owned());
    let directory = socket_dir(&stdin, args);
    let path = socket_path(&directory, &args.address, &args.namespace, &group)?;
    if UnixStream::connect(&path).is_ok() {
        return print(&path);
    }
    make_private(&directory)?;
    let listener = listen(&path)?;
    let pid = spawn(args, &listener)?;
    bundle::write_shim_pid(Path::new("."), pid)?;
    bundle::write_sockets(Path::new("."), [path.as_path()].into_iter())?;
    print(&path)
}

/// The group that a container's annotations put it in.
fn group(config: &Value) -> Option<String> {
    let annotations = config.get("annotations")?;
    let named =
        |name: &&str| annotations.get(*name).and_then(Value::as_str).filter(|group| !group.is_empty());
    GROUPS.iter().find_map(named).map(str::to_owned)
}

/// The directory that containerd 2.3 and later names, if that is what standard input holds. Runtime options, which
/// earlier versions send, decode as parameters too, with the type's name in the place of the id.
fn socket_dir(stdin: &[u8], args: &Args) -> PathBuf {
    let params = BootstrapParams::decode(stdin).ok();
    let ours = params.filter(|params| params.instance_id == args.id && params.namespace == args.namespace);
    let directory = ours.and_then(|params| params.socket_dir).filter(|directory| directory.starts_with('/'));
    directory.map_or_else(|| PathBuf::from(SOCKET_DIR), PathBuf::from)
}

/// One path per containerd, namespace and group, the same for every build of this program.
fn socket_path(directory: &Path, address: &str, namespace: &str, group: &str) -> Result<PathBuf, StartError> {
    let parts = [address, namespace, group];
    // Two bases, since 64 bits of a hash that is not cryptographic are few. Names are not secret and not hostile: they
    // are containerd's own.
    let path = directory.join(format!("{:016x}{:016x}", fnv(FNV_BASE, &parts), fnv(!FNV_BASE, &parts)));
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX { Err(StartError::LongPath { path }) } else { Ok(path) }
}

/// FNV-1a over texts, each ended by a byte that none contains.
fn fnv(base: u64, parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(base, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

/// Makes the directory for root alone to enter; one that others may write to would let them replace sockets.
fn make_private(directory: &Path) -> Result<(), StartError> {
    let fail = |source| StartError::Directory { path: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o711).create(directory).map_err(fail)?;
    let mode = fs::metadata(directory).map_err(fail)?.permissions().mode();
    if mode & 0o022 != 0 {
        fs::set_permissions(directory, Permissions::from_mode(mode & 0o7755)).map_err(fail)?;
    }
    Ok(())
}

/// Listens on a path where nobody does, for root alone to connect.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, StartError> {
    let fail = |source| StartError::Listen { path: path.to_owned(), source };
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(StartError::LongPath { path: path.to_owned() });
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        Ok(()) | Err(_) => {}
    }
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    nix::sys::stat::umask(before);
    listener.map_err(fail)
}

/// Starts the serving process: in the bundle, with the socket, and with the bundle's log for whatever it says. Without
/// huge pages, which would cost each pod megabytes; the setting is inherited, so it is made here.
fn spawn(args: &Args, listener: &UnixListener) -> Result<u32, StartError> {
    let fail = |error: nix::Error| StartError::Spawn(error.into());
    fcntl(listener, FcntlArg::F_SETFD(FdFlag::empty())).map_err(fail)?;
    let (stdout, stderr) = match open_log() {
        Some((first, second)) => (Stdio::from(first), Stdio::from(second)),
        None => (Stdio::null(), Stdio::null()),
    };
    let _larger = prctl::set_thp_disable(true).is_err();
    let mut command = Command::new("/proc/self/exe");
    if let Ok(own) = std::env::current_exe() {
        command.arg0(own);
    }
    command.args(["-namespace", &args.namespace, "-id", &args.id, "-address", &args.address]);
    command.args(["-socket-fd", &listener.as_raw_fd().to_string()]);
    if args.debug {
        command.arg("-debug");
    }
    command.arg("serve").stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    command.spawn().map(|child| child.id()).map_err(StartError::Spawn)
}

/// The log FIFO for both directions and never to wait for (containerd issues #4509, #4546).
fn open_log() -> Option<(OwnedFd, OwnedFd)> {
    let log: File =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("log").ok()?;
    let second = log.try_clone().ok()?;
    Some((log.into(), second.into()))
}

/// JSON is the one form that every containerd from 2.0 on reads; version 3 lets members join without another process.
fn print(path: &Path) -> Result<(), StartError> {
    let result = json!({"version": 3, "address": format!("unix://{}", path.display()), "protocol": "ttrpc"});
    io::stdout().write_all(result.to_string().as_bytes()).map_err(StartError::Print)
}

#[cfg(test)]
mod tests;
