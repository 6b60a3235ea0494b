//! Paths that the kernel keeps within a directory, whatever links and exchanges are below it.

use std::{
    io::{self, ErrorKind},
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2},
    path::Arg,
};

/// Tries of one open. The kernel cannot tell that a `..` stayed within the root when anything on the node was renamed or
/// mounted meanwhile, and asks to try again: openat2(2), EAGAIN. On a busy node it asks often, but each try is short.
const TRIES_MAX: usize = 128;

/// Opens `path` as `root` resolves it, where `resolve` says what may not be left or followed.
///
/// # Errors
/// Those of openat2(2); `Interrupted` when the kernel could not be sure at any try.
pub(crate) fn open_within(
    root: BorrowedFd<'_>,
    path: impl Arg + Copy,
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

/// Opens for reading what was opened as a path (`O_PATH`), where that is a regular file or a directory. Whatever else is there, as a device
/// or a pipe, is not opened, since that alone may do something; `None` then.
///
/// # Errors
/// It cannot be looked at or opened.
pub(crate) fn opened_to_read(path: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let is_wanted = match FileType::from_raw_mode(fstat(path)?.st_mode) {
        FileType::RegularFile | FileType::Directory => true,
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => false,
    };
    if !is_wanted {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(Some(open(format!("/proc/self/fd/{}", path.as_raw_fd()), flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::{fd::AsFd, unix::fs::symlink},
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use inotify::{Inotify, WatchMask};

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

    #[test]
    fn what_is_neither_file_nor_directory_is_not_even_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (file, pipe) = (dir.path().join("file"), dir.path().join("pipe"));
        fs::write(&file, "").unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut inotify = Inotify::init().unwrap();
        for path in [&file, &pipe] {
            inotify.watches().add(path, WatchMask::OPEN).unwrap();
        }
        let root = open(dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let opened = |name: &str| {
            let path = open_within(root.as_fd(), name, OFlags::PATH, ResolveFlags::BENEATH).unwrap();
            opened_to_read(&path).unwrap().is_some()
        };
        let mut buffer = [0; 1024];
        assert!(!opened("pipe") && opened("."));
        let untold = inotify.read_events(&mut buffer).map(Iterator::count);
        assert_eq!(untold.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(opened("file"));
        assert_eq!(inotify.read_events(&mut buffer).unwrap().count(), 1);
    }
}
