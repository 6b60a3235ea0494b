//! Parts of volumes, bound for containers.
//!
//! The volume's content is a pod's to choose, and may change while it is looked at (CVE-2017-1002101, CVE-2021-25741).
//! So the part is opened by one `openat2` that the kernel keeps beneath the volume's root, and that very descriptor is
//! mounted: no path is walked twice. Links within the volume are followed, as kubelet does: volumes that are updated
//! atomically consist of them. So are absolute ones that the node resolves to a place in the volume, which is then opened without a link. What is
//! mounted below the part stays outside.

use std::{
    fs,
    io::{self, ErrorKind},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use berth_core::{
    failure::{Failure, FailureKind},
    oci::{PartOf, SubPathBind},
};
use nix::errno::Errno;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fchmod, fstat, mkdirat, open, openat},
    mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount},
};

use serde::{Deserialize, Serialize};

use super::{
    failure::{failed, local},
    host_files,
};
use crate::{contained::open_within, volumes::unmount_below};

/// Longest path below a volume, in parts.
const PARTS_MAX: usize = 255;

/// What of a part of a volume did not work: users are told no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::effects) enum Stage {
    /// To make it, since it was missing.
    Making,
    /// The image does not have it, as it is written. What is in an image tells nothing of the node.
    OfImage(String),
    /// Anything else.
    Preparing,
}

/// Binds a part of a volume, making it when it is missing.
pub(in crate::effects) fn bind(request: &SubPathBind) -> Result<(), (Stage, Failure)> {
    let SubPathBind { volume, of, sub_path, target, .. } = request;
    let opened = match of {
        PartOf::Volume => open_beneath(Path::new(volume), sub_path),
        PartOf::Image(written) => {
            let opened = open_directory(Path::new(volume), sub_path, written);
            opened.map_err(|error| (Stage::OfImage(written.clone()), error))
        }
    };
    let source = opened.map_err(|(stage, error)| {
        let failure = match &stage {
            Stage::Making => local("make a part of the volume", format!("{volume}/{sub_path}"))(error),
            Stage::Preparing => local("open a part of the volume", format!("{volume}/{sub_path}"))(error),
            Stage::OfImage(_) => failed(FailureKind::Transient, &error),
        };
        (stage, failure)
    })?;
    place(&source, Path::new(target))
        .map_err(|error| (Stage::Preparing, local("bind a part of the volume to", target)(error)))
}

/// Opens `sub_path` without ever leaving `volume`, and makes it when nothing is there.
fn open_beneath(volume: &Path, sub_path: &str) -> Result<OwnedFd, (Stage, io::Error)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = open(volume, flags, Mode::empty()).map_err(|errno| (Stage::Preparing, errno.into()))?;
    let opened = match walk(root.as_fd(), sub_path) {
        Err(error) if error.kind() == ErrorKind::CrossesDevices => {
            let resolved = resolve(volume, sub_path).map_err(|error| (Stage::Preparing, error))?;
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let opened = open_within(root.as_fd(), &resolved, OFlags::PATH, resolve);
            return opened.or_else(|error| made_where_missing(error, &root, &resolved));
        }
        opened => opened,
    };
    opened.or_else(|error| made_where_missing(error, &root, sub_path))
}

fn made_where_missing(
    error: io::Error,
    root: &OwnedFd,
    sub_path: &str,
) -> Result<OwnedFd, (Stage, io::Error)> {
    match error.kind() {
        ErrorKind::NotFound => make(root, sub_path).map_err(|error| (Stage::Making, error)),
        _ => Err((Stage::Preparing, error)),
    }
}

/// Where a path leads on the node, which has to be in the volume: the way from its root, with what is missing at the end. It may lead elsewhere
/// by the time at which it is opened. Source: `EvalSymlinks` and `PathWithinBase` in `doBindSubPath` and `SafeMakeDir` of
/// `pkg/volume/util/subpath/subpath_linux.go`.
fn resolve(volume: &Path, sub_path: &str) -> io::Result<String> {
    if sub_path.starts_with('/') {
        return Err(ErrorKind::CrossesDevices.into());
    }
    let whole = fs::canonicalize(volume)?;
    let mut parts = parts_of(sub_path);
    let mut missing = Vec::new();
    loop {
        match fs::canonicalize(volume.join(parts.join("/"))) {
            Err(error) if error.kind() == ErrorKind::NotFound && !parts.is_empty() => {
                missing.extend(parts.pop());
            }
            Err(error) => return Err(error),
            Ok(found) => {
                let way = found.strip_prefix(&whole).ok().ok_or(ErrorKind::CrossesDevices)?;
                let way = way.to_str().ok_or(ErrorKind::InvalidFilename)?;
                let way = [".", way].into_iter().filter(|part| !part.is_empty());
                return Ok(way.chain(missing.into_iter().rev()).collect::<Vec<_>>().join("/"));
            }
        }
    }
}

/// Opens a directory of an image. Its links lead nowhere else, and absolute ones nowhere, as under containerd (`ensureImageSubPath` of
/// `internal/cri/server/container_image_mount.go`), in whose words is told why it cannot be.
fn open_directory(volume: &Path, sub_path: &str, written: &str) -> io::Result<OwnedFd> {
    let root = open(volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let found = walk(root.as_fd(), sub_path)
        .map_err(|error| io::Error::other(format!("openat {written}: {}", in_words_of_go(&error))))?;
    match FileType::from_raw_mode(fstat(&found)?.st_mode).is_dir() {
        true => Ok(found),
        false => Err(io::Error::other(format!("only directory subpath is supported, subpath: {written:?}"))),
    }
}

fn in_words_of_go(error: &io::Error) -> String {
    match (error.kind(), error.raw_os_error()) {
        (ErrorKind::CrossesDevices, _) => "path escapes from parent".to_owned(),
        (_, Some(code)) => Errno::from_raw(code).desc().to_lowercase(),
        (_, None) => error.to_string(),
    }
}

/// Makes directories with the volume's own mode, whatever the umask, its set-group-id bit included: what owns the volume by
/// `fsGroup` owns them too.
/// Source: `doSafeMakeDir` of `pkg/volume/util/subpath/subpath_linux.go`.
fn make(root: &OwnedFd, sub_path: &str) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(fstat(root)?.st_mode & 0o7777);
    let parts = parts_of(sub_path);
    if parts.len() > PARTS_MAX {
        return Err(ErrorKind::InvalidFilename.into());
    }
    let mut made = String::new();
    for part in parts {
        let parent = if made.is_empty() { ".".to_owned() } else { made.clone() };
        let parent = walk(root.as_fd(), &parent)?;
        match mkdirat(&parent, part, mode) {
            Ok(()) => set_mode(&parent, part, mode)?,
            Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        if !made.is_empty() {
            made.push('/');
        }
        made.push_str(part);
    }
    walk(root.as_fd(), &made)
}

fn parts_of(sub_path: &str) -> Vec<&str> {
    sub_path.split('/').filter(|part| !matches!(*part, "" | ".")).collect()
}

/// Gives a directory that was just made its mode. It may have been exchanged since: a link is refused.
fn set_mode(parent: &OwnedFd, name: &str, mode: Mode) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(fchmod(openat(parent, name, flags, Mode::empty())?, mode)?)
}

fn walk(root: BorrowedFd<'_>, path: &str) -> io::Result<OwnedFd> {
    open_within(root, path, OFlags::PATH, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
}

/// Mounts what `source` is at `target`, in place of what an earlier start of the container put there.
fn place(source: &OwnedFd, target: &Path) -> io::Result<()> {
    let is_dir = FileType::from_raw_mode(fstat(source)?.st_mode).is_dir();
    remove_mounts(target)?;
    if let Some(parent) = target.parent() {
        host_files::make_dir(parent, 0o750).map_err(|failure| io::Error::other(failure.message))?;
    }
    if fs::symlink_metadata(target).is_ok_and(|found| found.is_dir() != is_dir) {
        if is_dir { fs::remove_file(target)? } else { fs::remove_dir(target)? }
    }
    if is_dir {
        fs::create_dir(target).or_else(exists_is_fine)?;
    } else {
        fs::OpenOptions::new().write(true).create(true).truncate(false).open(target)?;
    }
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(source, "", flags)?;
    move_mount(&tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

/// Takes away what is mounted at `target`, however often.
fn remove_mounts(target: &Path) -> io::Result<()> {
    loop {
        match unmount(target, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Mounts of the volume are in it, or a process is.
            Err(rustix::io::Errno::BUSY) => unmount_below(target).map_err(io::Error::other)?,
            // Nothing is mounted there, or nothing is there.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn exists_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests;
