//! The pod's `/dev/shm`, which goes with its IPC namespace.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use berth_shim_core::namespace::UserMaps;
use nix::mount::MsFlags;

use super::error::PodError;
use crate::sys;

/// Where the pod's /dev/shm is mounted on the node.
pub(crate) fn shm_path(bundle: &Path) -> PathBuf {
    bundle.join("shm")
}

/// Mounts it, for the pod's root to own.
pub(super) fn mount(bundle: &Path, bytes: u64, owner: Option<&UserMaps>) -> Result<(), PodError> {
    let path = shm_path(bundle);
    prepare(bundle, &path, owner).map_err(|source| PodError::ShmDirectory { path: path.clone(), source })?;
    let (uid, gid) = owner.map_or((0, 0), |owner| (owner.uids.root(), owner.gids.root()));
    let data = format!("mode=1777,size={bytes},uid={uid},gid={gid}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    nix::mount::mount(Some("shm"), &path, Some("tmpfs"), flags, Some(data.as_str()))
        .map_err(PodError::ShmMount)
}

/// Gives it the SELinux label of a member's mounts, if those have one. What is made in it follows from that and from who makes it: what is
/// there already stays as it is. Source: `linuxContainerMounts` of containerd's `internal/cri/server/container_create.go`.
pub(super) fn label(bundle: &Path, label: &str) -> Result<(), PodError> {
    if label.is_empty() {
        return Ok(());
    }
    match sys::set_label(&shm_path(bundle), label) {
        // A kernel may have no labels in memory.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
        result => result.map_err(|source| PodError::ShmLabel { label: label.to_owned(), source }),
    }
}

/// Makes the directory, and lets the pod's root reach it: a runtime may open it from within the user namespace.
/// containerd does the same with the bundles of containers.
fn prepare(bundle: &Path, path: &Path, owner: Option<&UserMaps>) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let Some(UserMaps { gids, .. }) = owner else { return Ok(()) };
    chown(bundle, None, Some(gids.root()))?;
    fs::set_permissions(bundle, Permissions::from_mode(0o710))
}
