//! What plugins print into.
//!
//! A plugin goes on when this process ends. Of a usual pipe the only reader would be gone by then, and the next word that the plugin
//! prints would end it (SIGPIPE, which programs in Go die of too). So a plugin's end is open for reading as well: each process that can
//! print is a reader itself. This process sees the end all the same, which depends on writers alone. The plugin has its standard
//! descriptors and no other; a further one, for reading, would take a fork of this process.
//!
//! What nobody reads stays in the pipe, which holds a mebibyte: a plugin, or a process that it left behind, that prints more waits until
//! it is killed. A file in memory (memfd) has no such bound, and is emptied by whoever opens `/dev/stderr` to write.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, fcntl};

/// How much is held that nobody has read, in bytes: the most that the kernel gives to anybody (`fs.pipe-max-size`).
const CAPACITY: i32 = 1 << 20;

/// A pipe that does not break: where it is read, and what is printed into.
pub(crate) fn unbroken() -> io::Result<(OwnedFd, File)> {
    let (reader, writer) = io::pipe()?;
    let again = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let both = File::options().read(true).write(true).open(again)?;
    if let Err(error) = fcntl(&both, FcntlArg::F_SETPIPE_SZ(CAPACITY)) {
        tracing::debug!(%error, "a CNI plugin has a pipe of the usual size");
    }
    Ok((reader.into(), both))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn what_is_printed_to_nobody_ends_nobody() {
        let (reader, mut both) = unbroken().unwrap();
        drop(reader);
        // As much as a pipe of the usual size holds.
        both.write_all(&[b'x'; 64 << 10]).unwrap();
    }

    #[test]
    fn the_end_is_seen_when_nobody_can_print_any_more() {
        let (reader, mut both) = unbroken().unwrap();
        let copy = both.try_clone().unwrap();
        both.write_all(b"said").unwrap();
        drop((both, copy));
        let mut said = String::new();
        File::from(reader).read_to_string(&mut said).unwrap();
        assert_eq!(said, "said");
    }
}
