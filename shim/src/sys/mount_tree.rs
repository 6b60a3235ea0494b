//! Trees of mounts as descriptors: open_tree(2), mount_setattr(2), move_mount(2).
#![expect(unsafe_code, reason = "these calls have no safe form in nix")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;

/// How much of a tree is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One mount.
    Mount,
    /// With those below it.
    Tree,
}

/// What a clone allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writing {
    /// What its origin allows.
    AsBefore,
    Never,
}

impl Extent {
    fn flag(self) -> libc::c_int {
        match self {
            Self::Mount => 0,
            Self::Tree => libc::AT_RECURSIVE,
        }
    }
}

/// Clones the mount that a handle is in, from there on. The clone is mounted nowhere yet.
pub(crate) fn clone_tree(of: impl AsFd, extent: Extent) -> io::Result<OwnedFd> {
    let flags =
        libc::c_int::try_from(libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC).map_err(io::Error::other)?;
    let flags = flags | libc::AT_EMPTY_PATH | extent.flag();
    // SAFETY: reads an empty C string and takes numbers.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, of.as_fd().as_raw_fd(), c"".as_ptr(), flags) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has a clone show owners as a user namespace maps them; from then on it is private.
pub(crate) fn map_ids(
    tree: impl AsFd,
    namespace: impl AsFd,
    extent: Extent,
    writing: Writing,
) -> io::Result<()> {
    let namespace = u64::try_from(namespace.as_fd().as_raw_fd()).map_err(io::Error::other)?;
    let read_only = match writing {
        Writing::AsBefore => 0,
        Writing::Never => libc::MOUNT_ATTR_RDONLY,
    };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | read_only,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: namespace,
    };
    let flags = libc::AT_EMPTY_PATH | extent.flag();
    // SAFETY: reads an empty C string and one `mount_attr` of the size that is told, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Mounts a clone on a place. Its descriptor stays good.
pub(crate) fn attach(tree: impl AsFd, place: impl AsFd) -> io::Result<()> {
    let flags = libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH;
    let (tree, place) = (tree.as_fd().as_raw_fd(), place.as_fd().as_raw_fd());
    // SAFETY: reads two empty C strings and takes numbers.
    let result =
        unsafe { libc::syscall(libc::SYS_move_mount, tree, c"".as_ptr(), place, c"".as_ptr(), flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
