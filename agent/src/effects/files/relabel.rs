//! In a worker: SELinux labels of files that containers mount.
//!
//! A tree is a pod's to write meanwhile: it is walked by descriptors that follow no link and cross no mount, so nothing outside of it is
//! labelled. Source: containerd `internal/cri/opts/spec_linux_opts.go` `withMounts`; `Relabel`, `rchcon` of
//! `github.com/opencontainers/selinux`.

use std::{
    ffi::CStr,
    io::{self, ErrorKind},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use berth_core::failure::{Failure, FailureKind};
use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, XattrFlags, fstat,
        fstatfs, getxattr, open, openat, openat2, setxattr, statx,
    },
    io::Errno,
};

use super::wire::{MountedText, RelabelText};
use crate::contained::open_within;

/// The attribute that is a file's label.
const ATTRIBUTE: &CStr = c"security.selinux";

/// `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Longest label that is compared: those of policies have some 50 bytes, with many categories some hundred.
const LABEL_MAX: usize = 4096;

/// Directories below each other that are walked: each is held open. containerd walks by paths, of which none leads deeper.
const DEPTH_MAX: usize = 2048;

/// Gives all of a place a label, the place itself last. A file system that has none stays as it is.
pub(in crate::effects) fn relabel(label: &str, place: &RelabelText) -> Result<(), Failure> {
    let root = &place.root;
    match top(place).and_then(|top| top.map_or(Ok(()), |top| tree(top, label))) {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        // A part of a volume may tell what is secret.
        result => result.map_err(|error| {
            let message = format!("relabel {root:?} with {label:?} failed: {error}");
            Failure { kind: FailureKind::Transient, message }
        }),
    }
}

/// What is to be labelled. A part is found as it was to be bound, beneath its root; what another mount shows there, or over the root, is none
/// of it, and what has gone since has no label.
fn top(place: &RelabelText) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = open(Path::new(&place.root), flags, Mode::empty())?;
    if is_mounted_over(&root, place.mounted)? {
        return Ok(None);
    }
    let Some(part) = place.part.as_deref() else { return Ok(Some(root)) };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    match open_within(root.as_fd(), part, OFlags::PATH, resolve) {
        Err(error) if matches!(error.kind(), ErrorKind::CrossesDevices | ErrorKind::NotFound) => Ok(None),
        found => found.map(Some),
    }
}

/// Whether a root shows what another has mounted there: a file system of the node's, that a privileged container bound to its volume.
/// Over a directory that was bound that cannot be told.
fn is_mounted_over(root: &OwnedFd, mounted: MountedText) -> io::Result<bool> {
    let found = statx(root, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    Ok(match mounted {
        MountedText::Nothing => is_mount,
        MountedText::Memory => is_mount && !is_in_memory(fstatfs(root)?.f_type),
        MountedText::Bound => false,
    })
}

/// Of what the agent mounts itself.
fn is_in_memory(magic: i64) -> bool {
    matches!(magic, TMPFS_MAGIC | HUGETLBFS_MAGIC)
}

/// Walks a tree without recursion.
fn tree(top: OwnedFd, label: &str) -> io::Result<()> {
    let mut above: Vec<Dir> = Vec::new();
    above.extend(directory(&top)?);
    while let Some(dir) = above.last_mut() {
        let Some(entry) = dir.read() else {
            set(dir.fd()?, label)?;
            above.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Some(found) = below(dir.fd()?, name)? else { continue };
        match directory(&found)? {
            None => set(&found, label)?,
            Some(_) if above.len() == DEPTH_MAX => {
                return Err(io::Error::other(format!("directories are more than {DEPTH_MAX} deep")));
            }
            Some(inner) => above.push(inner),
        }
    }
    set(&top, label)
}

/// Opens a path for reading where it is a directory.
fn directory(path: &OwnedFd) -> io::Result<Option<Dir>> {
    if FileType::from_raw_mode(fstat(path)?.st_mode) != FileType::Directory {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(Some(Dir::new(openat(path, c".", flags, Mode::empty())?)?))
}

/// What is at a name in a directory: a link itself, and nothing that is mounted there. `None` for that, and for what has gone.
fn below(dir: impl AsFd, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(dir, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::XDEV) => Ok(None),
        found => Ok(Some(found?)),
    }
}

/// Gives what a descriptor is open for a label, unless it has it. The path leads to that very file, be it a link.
fn set(file: impl AsFd, label: &str) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let mut found = [0; LABEL_MAX];
    let has_it = getxattr(&path, ATTRIBUTE, &mut found).is_ok_and(|length| {
        found[..length].strip_suffix(b"\0").unwrap_or(&found[..length]) == label.as_bytes()
    });
    if has_it {
        return Ok(());
    }
    match setxattr(&path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests;
