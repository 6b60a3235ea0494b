//! Removal of trees that pods could write to.
//!
//! Walked by descriptors that follow no link and cross no mount: whatever a pod has put there, nothing outside is
//! touched (CVE-2017-1002102). A mount that was left is an error, not emptied.

use std::{
    collections::VecDeque,
    ffi::{CStr, CString, OsStr},
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2, statat, unlinkat,
};

/// Directories held open at a time, however deep the tree is: those above them are found again by `..`.
const OPEN_MAX: usize = 64;

/// Flags of a directory that is read.
const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

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
    remove_tree_in(&parent, name)
}

/// The same by its name in a directory that is open, whatever becomes of the path to that.
///
/// # Errors
/// When something in it cannot be removed, such as a mount point.
pub fn remove_tree_in(parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    let name = CString::new(name.as_encoded_bytes())?;
    let Some(dir) = remove_or_open(&parent, &name)? else { return Ok(()) };
    let mut walk = Walk { levels: Vec::new(), open: VecDeque::new() };
    walk.descend(&name, dir)?;
    walk.empty()?;
    gone(unlinkat(&parent, &name, AtFlags::REMOVEDIR))
}

/// A walk through a tree, without a bound to its depth.
struct Walk {
    /// The directories from the top down to the current one.
    levels: Vec<Level>,
    /// The last of them.
    open: VecDeque<Dir>,
}

struct Level {
    name: CString,
    id: FileId,
}

/// Device and inode.
type FileId = (u64, u64);

impl Walk {
    /// Removes everything in the top directory.
    fn empty(&mut self) -> io::Result<()> {
        while let Some(dir) = self.open.back_mut() {
            match dir.next() {
                Some(entry) => {
                    let entry = entry?;
                    let name = entry.file_name();
                    if matches!(name.to_bytes(), b"." | b"..") {
                        continue;
                    }
                    if let Some(inner) = remove_or_open(dir.fd()?, name)? {
                        self.descend(name, inner)?;
                    }
                }
                None => self.ascend()?,
            }
        }
        Ok(())
    }

    fn descend(&mut self, name: &CStr, dir: OwnedFd) -> io::Result<()> {
        self.levels.push(Level { name: name.to_owned(), id: id(&dir)? });
        self.open.push_back(Dir::new(dir)?);
        if self.open.len() > OPEN_MAX {
            self.open.pop_front();
        }
        Ok(())
    }

    /// Removes the current directory, which is empty, from the one above; the top one is left.
    fn ascend(&mut self) -> io::Result<()> {
        let (Some(done), Some(level)) = (self.open.pop_back(), self.levels.pop()) else { return Ok(()) };
        let Some(above) = self.levels.last() else { return Ok(()) };
        if self.open.is_empty() {
            let dir = openat(done.fd()?, c"..", READ, Mode::empty())?;
            // Moved meanwhile, it could be in any directory.
            if id(&dir)? != above.id {
                return Err(io::Error::other("a directory in it was moved while it was removed"));
            }
            self.open.push_back(Dir::new(dir)?);
        }
        match self.open.back() {
            Some(above) => gone(unlinkat(above.fd()?, &level.name, AtFlags::REMOVEDIR)),
            None => Ok(()),
        }
    }
}

fn id(dir: impl AsFd) -> io::Result<FileId> {
    let stat = fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes what can be removed at once. What is left is a directory with something in it.
fn remove_or_open(parent: impl AsFd, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let parent = parent.as_fd();
    let remove = |flags| gone(unlinkat(parent, name, flags)).map(|()| None);
    let is_dir = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode).is_dir(),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    if !is_dir {
        return remove(AtFlags::empty());
    }
    // Often it is empty.
    if unlinkat(parent, name, AtFlags::REMOVEDIR).is_ok() {
        return Ok(None);
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(parent, name, READ, Mode::empty(), resolve) {
        Ok(dir) => Ok(Some(dir)),
        // Changed into something else since it was looked at: what it is now is removed.
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => remove(AtFlags::empty()),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn gone(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(errno) if errno != rustix::io::Errno::NOENT => Err(errno.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use nix::mount::{MsFlags, mount};

    use super::*;
    use crate::own_mounts::with_own_mounts;

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

    /// Every process of a pod can make such a tree. No path leads to its end.
    #[test]
    fn a_tree_of_any_depth_is_removed_with_few_descriptors() {
        const DEEP: usize = 5000;
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("tree");
        fs::create_dir(&top).unwrap();
        let mut at = open(&top, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for level in 0..DEEP {
            let mode = Mode::from_raw_mode(0o755);
            rustix::fs::mkdirat(&at, c"d", mode).unwrap();
            if level % 100 == 0 {
                rustix::fs::symlinkat(c"/", &at, c"link").unwrap();
                // Each may come before or after the way down.
                for name in [c"a", c"b", c"y", c"z"] {
                    rustix::fs::mkdirat(&at, name, mode).unwrap();
                    let other = openat(&at, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
                    rustix::fs::mkdirat(&other, c"inner", mode).unwrap();
                }
            }
            at = openat(&at, c"d", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        }
        drop(at);
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_directory_that_was_moved_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir_all(outside.join("b")).unwrap();
        let open = |path: &Path| open(path, READ, Mode::empty()).unwrap();
        let mut walk = Walk { levels: Vec::new(), open: VecDeque::new() };
        walk.descend(c"a", open(&tree.join("a"))).unwrap();
        walk.descend(c"b", open(&tree.join("a/b"))).unwrap();
        walk.open.pop_front();
        fs::rename(tree.join("a/b"), outside.join("moved")).unwrap();
        walk.empty().unwrap_err();
        assert!(outside.join("b").exists() && outside.join("moved").exists());
    }

    #[test]
    fn what_is_mounted_in_it_is_not_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, host) = (dir.path().join("tree"), dir.path().join("host"));
        fs::create_dir_all(tree.join("volume")).unwrap();
        fs::create_dir(&host).unwrap();
        fs::write(host.join("precious"), "").unwrap();
        with_own_mounts(|| {
            mount(Some(&host), &tree.join("volume"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
            remove_tree(&tree).unwrap_err();
        });
        assert!(host.join("precious").exists());
        remove_tree(&tree).unwrap();
    }
}
