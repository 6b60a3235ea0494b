//! The socket on which the OCI runtime hands over the master of a container's terminal.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::sys;

/// Where all shims have them: a short path, closed to everyone else.
pub(crate) const CONSOLE_DIR: &str = "/run/berth-shim/console";

/// Listens until the runtime has finished; the file goes with the value.
#[derive(Debug)]
pub(crate) struct Console {
    listener: UnixListener,
    path: PathBuf,
}

impl Console {
    /// Listens under a number that this process uses once.
    pub(crate) fn listen(number: u64) -> io::Result<Self> {
        let path = Path::new(CONSOLE_DIR).join(format!("{}{number}", prefix(std::process::id())));
        // What is there is of a shim that was killed, whose pid this one has now.
        let _absent = fs::remove_file(&path).is_err();
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The master that the runtime sent before it ended.
    pub(crate) fn take_master(&self) -> io::Result<OwnedFd> {
        let (connection, _) = self.listener.accept()?;
        connection.set_nonblocking(true)?;
        sys::receive(&connection)
    }
}

/// Removes what a shim that was killed has left.
pub(crate) fn remove_consoles(shim: u32) {
    let of_shim = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with(&prefix(shim)));
    for entry in fs::read_dir(CONSOLE_DIR).into_iter().flatten().flatten() {
        if of_shim(&entry.file_name()) {
            let _gone = fs::remove_file(entry.path()).is_err();
        }
    }
}

/// How the names of a shim's sockets begin.
fn prefix(shim: u32) -> String {
    format!("{shim}-")
}

impl Drop for Console {
    fn drop(&mut self) {
        // Left behind, it is in nobody's way, and goes with the shim.
        let _gone = fs::remove_file(&self.path).is_err();
    }
}
