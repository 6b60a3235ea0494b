//! Paths that the kernel keeps within a directory, whatever links and exchanges are below it.

use std::{
    io::{self, ErrorKind},
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

/// Tries of one open. The kernel cannot tell that a `..` stayed within the root when anything on the node was renamed or
/// mounted meanwhile, and asks to try again: openat2(2), EAGAIN. On a busy node it asks often, but each try is short.
const TRIES_MAX: usize = 128;

/// Opens `path` as `root` resolves it, where `resolve` says what may not be left or followed.
///
/// # Errors
/// Those of openat2(2); `Interrupted` when the kernel could not be sure at any try.
pub(crate) fn open_within(
    root: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    for _ in 0..TRIES_MAX {
        match openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(rustix::io::Errno::AGAIN) => {}
            result => return Ok(result?),
        }
    }
    Err(ErrorKind::Interrupted.into())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsFd, unix::fs::symlink},
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use rustix::fs::open;

    use super::*;

    /// So many that some are interrupted: with one try each this test fails.
    const OPENS: usize = 5000;

    #[test]
    fn renames_elsewhere_fail_no_open() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/a/b/c")).unwrap();
        fs::write(dir.path().join("root/file"), "").unwrap();
        symlink("../../../../../file", dir.path().join("root/a/b/c/link")).unwrap();
        let root = open(dir.path().join("root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (one, two) = (dir.path().join("one"), dir.path().join("two"));
                fs::write(&one, "").unwrap();
                while !done.load(Ordering::Relaxed) {
                    fs::rename(&one, &two).unwrap();
                    fs::rename(&two, &one).unwrap();
                }
            });
            let failed = (0..OPENS).find_map(|_| {
                open_within(root.as_fd(), "a/b/c/link", OFlags::PATH, ResolveFlags::IN_ROOT).err()
            });
            done.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }
}
