//! Files and directories of the log directory, opened without ever leaving it.
//!
//! Links are followed as long as they stay below, such as those of `/var/log/containers`. The kubelet follows all of them.

use std::{
    fs::File,
    io::{self, ErrorKind},
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Component, Path},
};

use berth_core::server::file_server::Listed;
use jiff::Timestamp;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, open, readlinkat, statat as stat_of};

use crate::contained::{open_within, opened_to_read};

/// Links of one path that name their target from the root: those that the kernel leaves to us.
const LINKS_MAX: usize = 8;

/// Names of one directory that are listed. A node has some hundred pods, each with one there.
pub(in crate::server) const NAMES_MAX: usize = 1 << 16;

/// What is at a path.
#[derive(Debug)]
pub(super) enum Found {
    File(Opened),
    Directory { names: OwnedFd, modified: Option<Timestamp> },
}

/// A regular file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) bytes: u64,
    pub(super) modified: Option<Timestamp>,
}

/// Opens what is at a path below `root`.
pub(super) fn found(root: &Path, path: &str) -> io::Result<Found> {
    // A pipe or a device is not opened.
    let file = opened_to_read(&opened(root, path)?)?.ok_or(ErrorKind::PermissionDenied)?;
    let file = File::from(file);
    let metadata = file.metadata()?;
    let nanoseconds = i32::try_from(metadata.mtime_nsec()).unwrap_or_default();
    let modified = Timestamp::new(metadata.mtime(), nanoseconds).ok();
    if metadata.is_dir() {
        return Ok(Found::Directory { names: file.into(), modified });
    }
    if !metadata.is_file() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    Ok(Found::File(Opened { file, bytes: metadata.len(), modified }))
}

/// Whether there is something at a path below `root`; if not, why.
pub(super) fn statat(root: &Path, path: &str) -> Result<(), String> {
    let told = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => format!("statat {path}: no such file or directory"),
        ErrorKind::PermissionDenied => format!("statat {path}: path escapes from parent"),
        _ => format!("statat {path}: {error}"),
    };
    if path.starts_with('/') {
        return Err(told(ErrorKind::PermissionDenied.into()));
    }
    found(root, path).map(|_found| ()).map_err(told)
}

/// What a directory has.
pub(super) fn listed(directory: OwnedFd) -> io::Result<Vec<Listed>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.as_str(), "." | "..") {
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Unknown => stat_of(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            kind => kind == FileType::Directory,
        };
        if names.len() == NAMES_MAX {
            return Err(io::Error::other("it has too many names"));
        }
        names.push(Listed { name, is_directory });
    }
    Ok(names)
}

fn opened(root: &Path, path: &str) -> io::Result<OwnedFd> {
    let directory = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut path = path.trim_matches('/').to_owned();
    for _ in 0..=LINKS_MAX {
        let below = if path.is_empty() { "." } else { &path };
        match below_root(directory.as_fd(), below, OFlags::PATH) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::XDEV.raw_os_error()) => {
                path = target(directory.as_fd(), root, &path)?;
            }
            result => return result,
        }
    }
    Err(ErrorKind::PermissionDenied.into())
}

/// Where a link leads that names its target from the root, as long as that is below the log directory.
fn target(directory: BorrowedFd<'_>, root: &Path, path: &str) -> io::Result<String> {
    let outside = || io::Error::from(ErrorKind::PermissionDenied);
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    let parent =
        below_root(directory, parent, OFlags::PATH | OFlags::DIRECTORY).map_err(|_outside| outside())?;
    let link = readlinkat(&parent, name, Vec::new()).map_err(|_no_link| outside())?;
    let target = Path::new(std::ffi::OsStr::from_bytes(link.as_bytes()));
    let below = target.strip_prefix(root).map_err(|_elsewhere| outside())?;
    let is_plain = below.components().all(|component| matches!(component, Component::Normal(_)));
    below.to_str().filter(|_| is_plain).map(str::to_owned).ok_or_else(outside)
}

fn below_root(directory: BorrowedFd<'_>, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    open_within(directory, path, flags, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}
