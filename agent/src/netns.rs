//! Named network namespaces: a file below `/run/netns` that a namespace is bound to, which keeps it when nothing runs in
//! it. CNI plugins and tools find them there.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    thread,
};

use berth_cni::netns::{NetnsError as InnerError, bring_up_loopback, refuse_router_advertisements};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::statfs::{FsType, statfs},
};

/// `NSFS_MAGIC` of `linux/magic.h`: the file system of namespaces.
const NSFS: FsType = FsType(0x6e73_6673);

/// Where named namespaces are.
const DIR: &str = "/run/netns";

/// What the names of ours begin with.
const PREFIX: &str = "berth-";

/// Why a namespace could not be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// A call failed.
    #[error("{act} network namespace {path}")]
    Io {
        /// What was tried.
        act: &'static str,
        /// Which namespace.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It is there but could not be prepared.
    #[error("prepare network namespace {0}")]
    Prepare(PathBuf, #[source] InnerError),
}

/// Makes a namespace with `lo` up, or finds it.
///
/// # Errors
/// See [`NetnsError`].
pub fn ensure(path: &Path) -> Result<(), NetnsError> {
    if !is_namespace(path) {
        make(path)?;
    }
    let prepare = || {
        bring_up_loopback(path)?;
        refuse_router_advertisements(path)
    };
    prepare().map_err(|source| NetnsError::Prepare(path.to_owned(), source))
}

/// Removes a namespace. One that is not there is no error.
///
/// # Errors
/// See [`NetnsError`].
pub fn remove(path: &Path) -> Result<(), NetnsError> {
    let failed = |source| NetnsError::Io { act: "remove", path: path.to_owned(), source };
    // More than one may be bound there, after a crash between two steps.
    while is_namespace(path) {
        umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|errno| failed(errno.into()))?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Namespaces of ours that are not among those that are needed.
#[must_use]
pub fn unneeded(needed: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(DIR) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX)))
        .map(|entry| entry.path())
        .filter(|path| !needed.contains(path))
        .collect()
}

fn make(path: &Path) -> Result<(), NetnsError> {
    let failed = |source| NetnsError::Io { act: "create", path: path.to_owned(), source };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    let mut open = fs::OpenOptions::new();
    open.write(true).create(true).truncate(false).mode(0o444).open(path).map_err(failed)?;
    let bind = || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        Ok(mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
    };
    // A thread of its own, whose network namespace ends with it; the bound file keeps it.
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, bind)?;
        worker.join().map_err(|_panic| io::Error::other("the thread panicked"))?
    })
    .map_err(failed)
}

fn is_namespace(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_made_once_found_again_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("netns/pod");
        // Mounts of this thread alone.
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
                ensure(&path).unwrap();
                let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
                let made = inode(&path);
                assert_ne!(made, inode(Path::new("/proc/self/ns/net")));
                ensure(&path).unwrap();
                assert_eq!(inode(&path), made);
                remove(&path).unwrap();
                remove(&path).unwrap();
                assert!(!path.exists());
            });
            worker.join().unwrap();
        });
    }
}
