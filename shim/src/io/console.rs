//! The socket on which the OCI runtime hands over the master of a container's terminal.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::sys;

/// Listens until the runtime has finished; the file goes with the value.
#[derive(Debug)]
pub(crate) struct Console {
    listener: UnixListener,
    path: PathBuf,
}

impl Console {
    /// Listens in `directory`, which must be short enough for a socket path and closed to others.
    pub(crate) fn listen(directory: &Path, name: &str) -> io::Result<Self> {
        let path = directory.join(name);
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

impl Drop for Console {
    fn drop(&mut self) {
        // Left behind, the name would only be in the way of nobody: it is unique.
        let _gone = std::fs::remove_file(&self.path).is_err();
    }
}
