//! The socket of a group: found, or made, by one `start` at a time.
//!
//! Who may listen is decided under a lock of the directory, which the kernel gives back however its holder ends. A path
//! that somebody listens on is joined; one that nobody does is a dead shim's and replaced.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, socket};
use nix::sys::stat::{Mode, fchmod};
use thiserror::Error;

/// Longest socket path: sun_path has 108 bytes on Linux and 104 elsewhere, of which one ends it.
const PATH_BYTES_MAX: usize = 103;
const FNV_BASE: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
/// Time to wait for other `start`s, each of which holds the lock for less than a millisecond.
const LOCK_TIME_MAX: Duration = Duration::from_secs(5);
const LOCK_LOOK_EVERY: Duration = Duration::from_millis(2);

/// Why there is no socket.
#[derive(Debug, Error)]
pub(crate) enum SocketError {
    #[error("make socket directory {path}: the path is not absolute", path = path.display())]
    RelativeDirectory { path: PathBuf },
    #[error("make socket directory {path}", path = path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("lock socket directory {path}", path = path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("listen on {path}: the path is longer than {PATH_BYTES_MAX} bytes", path = path.display())]
    LongPath { path: PathBuf },
    #[error("listen on {path}", path = path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("look for a shim at {path}", path = path.display())]
    Look { path: PathBuf, source: io::Error },
}

/// The owner of the socket.
#[derive(Debug)]
pub(super) enum Claim {
    /// A shim serves the group already.
    Joined,
    /// The group is ours to serve.
    Ours(UnixListener),
}

/// One path per containerd, namespace and group, the same for every build of this program.
pub(crate) fn socket_path(
    directory: &Path,
    address: &str,
    namespace: &str,
    group: &str,
) -> Result<PathBuf, SocketError> {
    if !directory.is_absolute() {
        return Err(SocketError::RelativeDirectory { path: directory.to_owned() });
    }
    let path = directory.join(name_of(&[address, namespace, group]));
    check_length(&path).map(|()| path)
}

/// A name for a file that follows from these and hardly from others. Two bases, since 64 bits of a hash that is not
/// cryptographic are few. What it is made of is not secret and not hostile: they are containerd's own.
pub(crate) fn name_of(parts: &[&str]) -> String {
    format!("{:016x}{:016x}", fnv(FNV_BASE, parts), fnv(!FNV_BASE, parts))
}

/// FNV-1a over texts, each ended by a byte that none contains.
fn fnv(base: u64, parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(base, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

fn check_length(path: &Path) -> Result<(), SocketError> {
    let fits = path.as_os_str().len() <= PATH_BYTES_MAX;
    fits.then_some(()).ok_or_else(|| SocketError::LongPath { path: path.to_owned() })
}

/// Finds the shim that listens on a path, or listens there.
pub(super) fn claim(path: &Path) -> Result<Claim, SocketError> {
    // Most containers of a group find its shim, and need no lock for that.
    if is_served(path)? {
        return Ok(Claim::Joined);
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    make_private(directory)?;
    let _lock = lock(directory)?;
    if is_served(path)? { Ok(Claim::Joined) } else { listen(path).map(Claim::Ours) }
}

/// Makes the directory for root alone to enter; one that others may write to would let them replace sockets.
pub(super) fn make_private(directory: &Path) -> Result<(), SocketError> {
    let fail = |source| SocketError::Directory { path: directory.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o711).create(directory).map_err(fail)?;
    let mode = fs::metadata(directory).map_err(fail)?.permissions().mode();
    if mode & 0o022 != 0 {
        fs::set_permissions(directory, Permissions::from_mode(mode & 0o7755)).map_err(fail)?;
    }
    Ok(())
}

fn lock(directory: &Path) -> Result<Flock<File>, SocketError> {
    let fail = |source| SocketError::Lock { path: directory.to_owned(), source };
    let deadline = Instant::now() + LOCK_TIME_MAX;
    let mut file = File::open(directory).map_err(fail)?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((again, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = again,
            Err((_, Errno::EWOULDBLOCK)) => return Err(fail(io::ErrorKind::TimedOut.into())),
            Err((_, error)) => return Err(fail(error.into())),
        }
        thread::sleep(LOCK_LOOK_EVERY);
    }
}

/// Whether somebody listens. A shim whose backlog is full is there as well, and must not be waited for.
pub(super) fn is_served(path: &Path) -> Result<bool, SocketError> {
    let fail = |error: Errno| SocketError::Look { path: path.to_owned(), source: error.into() };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(fail)?;
    let address = UnixAddr::new(path).map_err(fail)?;
    match connect(probe.as_raw_fd(), &address) {
        Ok(()) | Err(Errno::EAGAIN) => Ok(true),
        // Nothing there; a socket without a listener, or no socket at all, which `listen` replaces or tells.
        Err(Errno::ENOENT | Errno::ECONNREFUSED | Errno::ENOTDIR) => Ok(false),
        Err(error) => Err(fail(error)),
    }
}

/// Listens on a path where nobody does, for root alone to connect.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, SocketError> {
    let fail = |source| SocketError::Listen { path: path.to_owned(), source };
    check_length(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        Ok(()) | Err(_) => {}
    }
    bind_private(path).map_err(|error| fail(error.into()))
}

/// The path takes its mode from the socket, so nobody else can connect at any time. The umask would be that of all threads.
fn bind_private(path: &Path) -> nix::Result<UnixListener> {
    let listener = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    fchmod(&listener, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
    nix::sys::socket::listen(&listener, Backlog::MAXALLOWABLE)?;
    Ok(UnixListener::from(listener))
}

/// Removes the socket of a shim that is gone; one that another shim has put in its place meanwhile stays. Tells whether
/// nobody listens there.
pub(crate) fn remove_unserved(path: &Path) -> bool {
    // Without its directory there is no socket.
    let Some(_lock) = path.parent().and_then(|directory| lock(directory).ok()) else { return true };
    let is_unserved = is_served(path).is_ok_and(|served| !served);
    if is_unserved {
        remove(path);
    }
    is_unserved
}

pub(super) fn remove(path: &Path) {
    // The shim removes its own when it ends in good order.
    let _gone = fs::remove_file(path).is_err();
}
