//! A walk through the levels below one, by descriptors: a container makes as many below its own as the kernel lets it, with
//! paths longer than a call takes.

use std::{
    collections::VecDeque,
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat},
    io::Errno,
};

/// Levels held open at a time, however deep the tree is: those above them are found again by `..`.
const OPEN_MAX: usize = 64;

/// Flags of a level that is read.
const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Calls `enter` for a level and for each below it, those above first, and `leave` with a level and the name of one directly
/// below it when that and all below it were walked. A level that is not there, or goes meanwhile, is no error.
pub(super) fn walk(
    top: &Path,
    mut enter: impl FnMut(BorrowedFd<'_>),
    mut leave: impl FnMut(BorrowedFd<'_>, &CStr) -> io::Result<()>,
) -> io::Result<()> {
    let Some(dir) = open(CWD, top)? else { return Ok(()) };
    enter(dir.as_fd());
    let mut walk = Walk { levels: Vec::new(), open: VecDeque::new() };
    walk.descend(CString::default(), dir)?;
    while let (Some(level), Some(dir)) = (walk.levels.last_mut(), walk.open.back()) {
        match level.below.pop() {
            Some(name) => {
                if let Some(inner) = open(dir, &name)? {
                    enter(inner.as_fd());
                    walk.descend(name, inner)?;
                }
            }
            None => {
                if let (name, Some(above)) = walk.ascend()? {
                    leave(above, &name)?;
                }
            }
        }
    }
    Ok(())
}

struct Walk {
    /// From the top down to the current one.
    levels: Vec<Level>,
    /// The last of them.
    open: VecDeque<OwnedFd>,
}

struct Level {
    name: CString,
    id: LevelId,
    /// Those directly below that were not walked yet.
    below: Vec<CString>,
}

/// Device and inode.
type LevelId = (u64, u64);

impl Walk {
    fn descend(&mut self, name: CString, dir: OwnedFd) -> io::Result<()> {
        self.levels.push(Level { name, id: id(&dir)?, below: below(&dir)? });
        self.open.push_back(dir);
        if self.open.len() > OPEN_MAX {
            self.open.pop_front();
        }
        Ok(())
    }

    /// Goes from the current level to the one above, and tells both.
    fn ascend(&mut self) -> io::Result<(CString, Option<BorrowedFd<'_>>)> {
        let name = self.levels.pop().map(|level| level.name).unwrap_or_default();
        let done = self.open.pop_back();
        if let (Some(above), Some(done)) = (self.levels.last(), done)
            && self.open.is_empty()
        {
            let dir = openat(&done, c"..", READ, Mode::empty())?;
            if id(&dir)? != above.id {
                return Err(io::Error::other("a level was moved while those below it were walked"));
            }
            self.open.push_back(dir);
        }
        Ok((name, self.open.back().map(AsFd::as_fd)))
    }
}

fn open(above: impl AsFd, name: impl rustix::path::Arg) -> io::Result<Option<OwnedFd>> {
    match openat(above, name, READ, Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn id(dir: impl AsFd) -> io::Result<LevelId> {
    let stat = fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// One that goes while it is read has none.
fn below(dir: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = match entry {
            Err(Errno::NOENT) => break,
            entry => entry?,
        };
        let is_level = entry.file_type() == FileType::Directory;
        if is_level && !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_level_is_entered_and_left_and_files_are_none() {
        let dir = tempfile::tempdir().unwrap();
        for level in ["", "a", "a/b", "c"] {
            fs::create_dir_all(dir.path().join(level)).unwrap();
            fs::write(dir.path().join(level).join("cgroup.procs"), "").unwrap();
        }
        let (mut entered, mut left) = (0, Vec::new());
        let leave = |_above: BorrowedFd<'_>, name: &CStr| {
            left.push(name.to_owned());
            Ok(())
        };
        walk(dir.path(), |_level| entered += 1, leave).unwrap();
        left.sort_unstable();
        assert_eq!((entered, left), (4, [c"a", c"b", c"c"].map(CStr::to_owned).to_vec()));
    }

    /// What is above it now is another's, and not looked into.
    #[test]
    fn a_level_that_was_moved_ends_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        let (top, elsewhere) = (dir.path().join("top"), dir.path().join("elsewhere"));
        fs::create_dir(&elsewhere).unwrap();
        // The last that is held open has one above it that is not.
        let first = top.join("l");
        fs::create_dir_all(first.join("l/".repeat(OPEN_MAX - 1))).unwrap();
        let mut entered = 0;
        let enter = |_level: BorrowedFd<'_>| {
            entered += 1;
            if entered == OPEN_MAX + 1 {
                fs::rename(&first, elsewhere.join("l")).unwrap();
            }
        };
        let mut left = 0;
        let leave = |_above: BorrowedFd<'_>, _name: &CStr| {
            left += 1;
            Ok(())
        };
        let error = walk(&top, enter, leave).unwrap_err();
        assert!(error.to_string().contains("was moved"), "{error}");
        assert_eq!(left, OPEN_MAX - 1, "what is elsewhere now was not left there");
    }
}
