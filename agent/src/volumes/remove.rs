//! Removal of trees that pods could write to.
//!
//! Walked by descriptors that follow no link and cross no mount: whatever a pod has put there, nothing outside is
//! touched (CVE-2017-1002102). A mount that was left is an error, not emptied.

use std::{ffi::CStr, io, os::fd::OwnedFd, path::Path};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, open, openat2, statat, unlinkat};

/// Deepest tree that is removed. Each level holds one descriptor open.
const DEPTH_MAX: usize = 512;

/// Removes a directory or file with everything in it. One that is not there is no error.
///
/// # Errors
/// When something in it cannot be removed, such as a mount point.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match open(parent, flags, Mode::empty()) {
        Ok(parent) => parent,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let name = std::ffi::CString::new(name.as_encoded_bytes())?;
    remove_entry(&parent, &name, DEPTH_MAX)
}

fn remove_entry(parent: &OwnedFd, name: &CStr, depth: usize) -> io::Result<()> {
    let is_dir = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode).is_dir(),
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    if !is_dir {
        return gone(unlinkat(parent, name, AtFlags::empty()));
    }
    // Often it is empty.
    if unlinkat(parent, name, AtFlags::REMOVEDIR).is_ok() {
        return Ok(());
    }
    if depth == 0 {
        return Err(io::ErrorKind::QuotaExceeded.into());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let dir = match openat2(parent, name, flags, Mode::empty(), resolve) {
        Ok(dir) => dir,
        // Changed into something else since it was looked at: what it is now is removed.
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
            return gone(unlinkat(parent, name, AtFlags::empty()));
        }
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            remove_entry(&dir, entry.file_name(), depth - 1)?;
        }
    }
    gone(unlinkat(parent, name, AtFlags::REMOVEDIR))
}

fn gone(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(errno) if errno != rustix::io::Errno::NOENT => Err(errno.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, thread};

    use nix::{
        mount::{MsFlags, mount},
        sched::{CloneFlags, unshare},
    };

    use super::*;

    #[test]
    fn cve_2017_1002102_links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "").unwrap();
        fs::write(tree.join("a/file"), "").unwrap();
        symlink(&outside, tree.join("a/b/link")).unwrap();
        symlink("../outside", dir.path().join("link")).unwrap();
        remove_tree(&tree).unwrap();
        remove_tree(&dir.path().join("link")).unwrap();
        remove_tree(&dir.path().join("none/none")).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn what_is_mounted_in_it_is_not_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, host) = (dir.path().join("tree"), dir.path().join("host"));
        fs::create_dir_all(tree.join("volume")).unwrap();
        fs::create_dir(&host).unwrap();
        fs::write(host.join("precious"), "").unwrap();
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
                mount(Some(&host), &tree.join("volume"), None::<&str>, MsFlags::MS_BIND, None::<&str>)
                    .unwrap();
                remove_tree(&tree).unwrap_err();
            });
            worker.join().unwrap();
        });
        assert!(host.join("precious").exists());
        remove_tree(&tree).unwrap();
    }
}
