//! Owners that a mount shows: mount_setattr(2).
#![expect(unsafe_code, reason = "the call has no safe form in nix or rustix")]

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

use nix::libc;

/// Has a clone of mounts that is mounted nowhere show owners as a user namespace maps them.
pub(crate) fn map_owners(tree: impl AsFd, namespace: impl AsFd) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: u64::try_from(namespace.as_fd().as_raw_fd()).map_err(io::Error::other)?,
    };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
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
