//! What a tree uses, as a worker measures it. Source: `pkg/volume/util/fs/fs.go` `DiskUsage`, `Info`.
//!
//! A tree is a pod's: deep, wide, with links, mounts and files that come and go. What is beyond a bound is not counted, so the figure
//! is then too low, and never made of another's files.

use std::{
    collections::HashSet,
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatVfs, fstat, fstatfs, fstatvfs,
        openat, openat2, statat,
    },
    io::Errno,
};
use serde::{Deserialize, Serialize};

/// Directories below each other that are looked into: each is held open.
const DEPTH_MAX: usize = 128;

/// Entries of one tree: some seconds of work where all is in memory.
const ENTRIES_MAX: u64 = 4_000_000;

/// Files with several names that are told apart: 16 bytes each.
const LINKED_MAX: usize = 1 << 18;

/// Directories of one tree whose turn is yet to come: their names are held.
const WAITING_MAX: usize = 1 << 18;

/// How long one piece of work looks at trees. One that is not done by then counts as far as it was seen.
pub(crate) const MEASURED_WITHIN: Duration = Duration::from_secs(30);

/// Size of a block in `stat`.
const BLOCK: u64 = 512;

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: i64 = 0x0102_1994;

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Tree {
    /// A file, or a directory with all that is below it.
    Whole(String),
    /// The files directly in a directory.
    Files(String),
    /// The file system that a path is on, and nothing below it.
    FileSystem(String),
}

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// When, in seconds since 1970.
    pub(crate) at: i64,
    /// Bytes on disk.
    pub(crate) bytes: u64,
    /// Inodes.
    pub(crate) inodes: u64,
    /// Capacity, free bytes, bytes free for all, inodes, free inodes of the file system.
    pub(crate) file_system: [u64; 5],
}

/// Measures trees. `None` for one that is not there, or cannot be looked at.
pub(crate) fn measure(trees: &[Tree]) -> Vec<Option<Measured>> {
    let until = Instant::now() + MEASURED_WITHIN;
    trees.iter().map(|tree| one(tree, until).ok()).collect()
}

fn one(tree: &Tree, until: Instant) -> io::Result<Measured> {
    let (Tree::Whole(path) | Tree::Files(path) | Tree::FileSystem(path)) = tree;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = if matches!(tree, Tree::FileSystem(_)) { flags - OFlags::NOFOLLOW } else { flags };
    let top = openat(CWD, path, flags, Mode::empty())?;
    let mut count = Count::until(until);
    let file_system = fstatvfs(&top)?;
    match tree {
        Tree::FileSystem(_) => {}
        Tree::Files(_) => count.files(&top)?,
        Tree::Whole(_) if is_own_tmpfs(&top)? => {
            count.bytes = (file_system.f_blocks.saturating_sub(file_system.f_bfree))
                .saturating_mul(file_system.f_frsize);
            count.inodes = file_system.f_files.saturating_sub(file_system.f_ffree);
        }
        Tree::Whole(_) => count.tree(&top)?,
    }
    let at = Timestamp::now().as_second();
    Ok(Measured { at, bytes: count.bytes, inodes: count.inodes, file_system: room(&file_system) })
}

fn room(stat: &StatVfs) -> [u64; 5] {
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    [bytes(stat.f_blocks), bytes(stat.f_bfree), bytes(stat.f_bavail), stat.f_files, stat.f_ffree]
}

/// Whether a directory is a file system in memory of its own, which knows what it has.
fn is_own_tmpfs(top: &OwnedFd) -> io::Result<bool> {
    if fstatfs(top)?.f_type != TMPFS || !is_dir(&fstat(top)?) {
        return Ok(false);
    }
    let above = statat(top, c"..", AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(above.st_dev != fstat(top)?.st_dev)
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

struct Count {
    until: Instant,
    is_over: bool,
    entries: u64,
    waiting: usize,
    bytes: u64,
    inodes: u64,
    /// Files with several names that were counted.
    linked: HashSet<u64>,
}

/// A directory and those in it that are still to be looked into.
struct Level {
    dir: OwnedFd,
    below: Vec<CString>,
}

impl Count {
    fn until(until: Instant) -> Self {
        Self { until, is_over: false, entries: 0, waiting: 0, bytes: 0, inodes: 0, linked: HashSet::new() }
    }

    /// All of a tree.
    fn tree(&mut self, top: &OwnedFd) -> io::Result<()> {
        let stat = fstat(top)?;
        self.add(&stat);
        if !is_dir(&stat) {
            return Ok(());
        }
        let mut levels = Vec::new();
        levels.extend(self.level(top, c".", stat.st_dev)?);
        while let Some(level) = levels.last_mut().filter(|_| !self.is_over()) {
            let Some(name) = level.below.pop() else {
                levels.pop();
                continue;
            };
            self.waiting = self.waiting.saturating_sub(1);
            if levels.len() < DEPTH_MAX
                && let Some(level) = levels.last()
            {
                let inner = self.level(&level.dir, &name, stat.st_dev)?;
                levels.extend(inner);
            }
        }
        Ok(())
    }

    /// Files directly in a directory.
    fn files(&mut self, top: &OwnedFd) -> io::Result<()> {
        let Some(dir) = enter(top, c".")? else { return Ok(()) };
        self.each(&dir, |count, _, stat| {
            if !is_dir(stat) {
                count.add(stat);
            }
        })
    }

    /// Counts what is in a directory. `None` where it has gone, or another file system is mounted.
    fn level(&mut self, above: &OwnedFd, name: &CStr, device: u64) -> io::Result<Option<Level>> {
        let Some(dir) = enter(above, name)? else { return Ok(None) };
        let mut below = Vec::new();
        self.each(&dir, |count, name, stat| {
            if stat.st_dev != device {
                return;
            }
            count.add(stat);
            if is_dir(stat) && count.waiting < WAITING_MAX {
                count.waiting += 1;
                below.push(name.to_owned());
            }
        })?;
        Ok(Some(Level { dir, below }))
    }

    fn each(&mut self, dir: &OwnedFd, mut entry: impl FnMut(&mut Self, &CStr, &Stat)) -> io::Result<()> {
        for found in Dir::read_from(dir)? {
            // One that goes while it is read has no more.
            let Ok(found) = found else { break };
            if self.is_over() {
                break;
            }
            let name = found.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries += 1;
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            if let Ok(stat) = statat(dir, name, flags) {
                entry(self, name, &stat);
            }
        }
        Ok(())
    }

    /// Whether a bound is met. The clock is asked now and then.
    fn is_over(&mut self) -> bool {
        let is_late = self.entries.is_multiple_of(64) && Instant::now() >= self.until;
        self.is_over |= is_late || self.entries >= ENTRIES_MAX;
        self.is_over
    }

    /// A file with several names counts once.
    fn add(&mut self, stat: &Stat) {
        let has_names = stat.st_nlink > 1 && !is_dir(stat);
        if has_names && self.linked.len() < LINKED_MAX && !self.linked.insert(stat.st_ino) {
            return;
        }
        self.inodes = self.inodes.saturating_add(1);
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK));
    }
}

/// Opens a directory below one: no link is followed and no mount crossed, not even one of the same file system.
fn enter(above: impl AsFd, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(above, name, flags, Mode::empty(), resolve) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS | Errno::AGAIN) => {
            Ok(None)
        }
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests;
