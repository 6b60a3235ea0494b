//! Directories and images that are made before their mount.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;

use berth_shim_core::mount::{Directory, Format, Image, Owner};
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, ftruncate, unlinkat};

use super::place::{open_beneath, open_beneath_as};
use super::{MountError, tool};

/// Makes a directory. One that is there stays as it is: it may be the root of a container that has run before, which is
/// free to change its mode.
pub(super) fn make_directory(root: impl AsFd, directory: &Directory) -> Result<(), MountError> {
    let path = &directory.path.path;
    let fail = |source| MountError::Directory { path: path.clone(), source };
    let (parent, name) = parent_of(&root, path)?;
    let mode = Mode::from_bits_truncate(directory.mode);
    match mkdirat(&parent, name, mode) {
        Ok(()) => {}
        Err(Errno::EEXIST) => return Ok(()),
        Err(error) => return Err(fail(error)),
    }
    let made = open_beneath_as(&parent, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    // Not what the umask left of it.
    fchmod(&made, mode).map_err(fail)?;
    if let Some(Owner { uid, gid }) = directory.owner {
        fchown(&made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).map_err(fail)?;
    }
    Ok(())
}

/// Makes an image, unless it is there. It gets its name when it is whole: what a crash leaves is never mounted.
pub(super) fn make_image(root: impl AsFd, image: &Image) -> Result<(), MountError> {
    let path = &image.path.path;
    let fail = |source| MountError::Image { path: path.clone(), source };
    let (parent, name) = parent_of(&root, path)?;
    match open_beneath(&parent, name) {
        Ok(_there) => return Ok(()),
        Err(MountError::Open { source: Errno::ENOENT, .. }) => {}
        Err(error) => return Err(error),
    }
    let draft = format!(".{name}.berth");
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(&parent, draft.as_str(), flags, Mode::from_bits_truncate(0o640)).map_err(fail)?;
    let made = fill(&file, image).and_then(|()| {
        renameat2(&parent, draft.as_str(), &parent, name, RenameFlags::RENAME_NOREPLACE).map_err(fail)
    });
    if made.is_err() {
        // The first error is the one to tell.
        let _left = unlinkat(&parent, draft.as_str(), UnlinkatFlags::NoRemoveDir).is_err();
    }
    made
}

fn fill(file: &OwnedFd, image: &Image) -> Result<(), MountError> {
    let fail = |source| MountError::Image { path: image.path.path.clone(), source };
    let size = i64::try_from(image.size_bytes).map_err(|_large| fail(Errno::EFBIG))?;
    ftruncate(file, size).map_err(fail)?;
    let mut command = match image.format {
        Format::Ext2 => Command::new("mkfs.ext2"),
        Format::Ext3 => Command::new("mkfs.ext3"),
        Format::Ext4 => Command::new("mkfs.ext4"),
        Format::Xfs => Command::new("mkfs.xfs"),
    };
    command.arg("-q");
    match (image.format, &image.uuid) {
        (Format::Ext2 | Format::Ext3 | Format::Ext4, Some(uuid)) => command.args(["-U", uuid]),
        (Format::Xfs, Some(uuid)) => command.args(["-m", &format!("uuid={uuid}")]),
        (_, None) => &mut command,
    };
    // This process's descriptor, seen from the child.
    tool::run(command.arg(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())))
}

/// The directory that a path is in, and its last component.
fn parent_of(root: impl AsFd, path: &str) -> Result<(OwnedFd, &str), MountError> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((open_beneath_as(root, parent, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?, name))
}
