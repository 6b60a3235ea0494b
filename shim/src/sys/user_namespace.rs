//! A user namespace that nobody is in.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

use nix::sched::{CloneFlags, unshare};

use super::stand_in;

/// Makes a user namespace with these maps (`user_namespaces(7)`).
///
/// The kernel makes one only for a process, so a child lives for as long as the maps are written.
pub(crate) fn user_namespace(uid_map: &str, gid_map: &str) -> io::Result<OwnedFd> {
    let child = stand_in(|| unshare(CloneFlags::CLONE_NEWUSER))?;
    let pid = child.id();
    fs::write(format!("/proc/{pid}/uid_map"), uid_map)?;
    fs::write(format!("/proc/{pid}/gid_map"), gid_map)?;
    Ok(File::open(format!("/proc/{pid}/ns/user"))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_the_kernel_refuses_is_an_error() {
        user_namespace("nonsense", "0 0 1\n").expect_err("no map");
    }
}
