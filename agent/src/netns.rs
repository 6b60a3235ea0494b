//! Named network namespaces: a file below `/run/netns` that a namespace is bound to, which keeps it when nothing runs in
//! it. CNI plugins and tools find them there.
//!
//! Every runtime of the node has its own in that directory, another Berth among them: a name tells nothing. Ours are those
//! with a mark in a directory of this agent's own, made before the namespace and removed after it (decision 0017).

mod owned;

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
};

use berth_cni::netns::{NetnsError as InnerError, bring_up_loopback};
use berth_core::{id::SandboxId, paths, users::HostIds};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
    sys::statfs::{FsType, statfs},
};

/// `NSFS_MAGIC` of `linux/magic.h`: the file system of namespaces.
const NSFS: FsType = FsType(0x6e73_6673);

pub use owned::{hold, is_asked, user_namespace};

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
    /// Somebody else's is in its place.
    #[error(
        "create network namespace {0}: there is one that this agent did not make; remove it if it is nobody's"
    )]
    Foreign(PathBuf),
}

/// The network namespaces of this agent. Clones share them.
#[derive(Debug, Clone)]
pub struct Namespaces {
    marks: PathBuf,
}

impl Namespaces {
    /// Those whose marks are in a directory.
    #[must_use]
    pub fn marked_in(marks: impl Into<PathBuf>) -> Self {
        Self { marks: marks.into() }
    }

    /// Makes that of a sandbox, or finds it. With ids it is owned by a new user namespace of these, else by the node's.
    ///
    /// # Errors
    /// See [`NetnsError`].
    pub fn ensure(&self, sandbox: &SandboxId, ids: Option<HostIds>) -> Result<(), NetnsError> {
        let path = PathBuf::from(paths::netns(sandbox));
        if is_namespace(&path) && !self.mark(sandbox).exists() {
            return Err(NetnsError::Foreign(path));
        }
        self.put_mark(sandbox)?;
        ensure(&path, ids)
    }

    /// Removes that of a sandbox, which the caller knows to be ours. One that is not there is no error.
    ///
    /// # Errors
    /// See [`NetnsError`].
    pub fn remove(&self, sandbox: &SandboxId) -> Result<(), NetnsError> {
        remove(Path::new(&paths::netns(sandbox)))?;
        let mark = self.mark(sandbox);
        match fs::remove_file(&mark) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(NetnsError::Io { act: "remove the mark of", path: mark, source })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes that of a sandbox if it is marked.
    ///
    /// # Errors
    /// See [`NetnsError`].
    pub fn remove_marked(&self, sandbox: &SandboxId) -> Result<(), NetnsError> {
        if self.mark(sandbox).exists() { self.remove(sandbox) } else { Ok(()) }
    }

    /// Marks that of a sandbox that a pod's record names: agents of before made it without a mark.
    ///
    /// # Errors
    /// The mark cannot be made.
    pub fn adopt(&self, sandbox: &SandboxId) -> Result<(), NetnsError> {
        if is_namespace(Path::new(&paths::netns(sandbox))) { self.put_mark(sandbox) } else { Ok(()) }
    }

    /// Sandboxes whose namespace is marked, there or not.
    ///
    /// # Errors
    /// The marks cannot be listed.
    pub fn marked(&self) -> Result<BTreeSet<SandboxId>, NetnsError> {
        let failed = |source| NetnsError::Io { act: "list the marks of", path: self.marks.clone(), source };
        let entries = match fs::read_dir(&self.marks) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            entries => entries.map_err(failed)?,
        };
        let names = entries.map(|entry| Ok(entry.map_err(failed)?.file_name()));
        names
            .filter_map(|name| match name {
                Ok(name) => name.to_str().map(|name| Ok(SandboxId::from_known(name))),
                Err(error) => Some(Err(error)),
            })
            .collect()
    }

    fn mark(&self, sandbox: &SandboxId) -> PathBuf {
        self.marks.join(&*paths::component(sandbox.as_str()))
    }

    fn put_mark(&self, sandbox: &SandboxId) -> Result<(), NetnsError> {
        let mark = self.mark(sandbox);
        let put = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.marks)?;
            fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&mark)
        };
        put().map(drop).map_err(|source| NetnsError::Io { act: "mark", path: mark, source })
    }
}

/// Makes a namespace with `lo` up, or finds it.
///
/// # Errors
/// See [`NetnsError`].
pub fn ensure(path: &Path, ids: Option<HostIds>) -> Result<(), NetnsError> {
    if !is_namespace(path) {
        make(path, ids)?;
    }
    bring_up_loopback(path).map_err(|source| NetnsError::Prepare(path.to_owned(), source))
}

/// Removes a namespace. One that is not there is no error.
///
/// # Errors
/// See [`NetnsError`].
pub fn remove(path: &Path) -> Result<(), NetnsError> {
    let failed = |source| NetnsError::Io { act: "remove", path: path.to_owned(), source };
    // More than one may be bound there, after a crash between two steps.
    while is_namespace(path) {
        let unmounted = umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
        // Somebody else may have unmounted it meanwhile.
        if let Err(errno) = unmounted
            && is_namespace(path)
        {
            return Err(failed(errno.into()));
        }
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn make(path: &Path, ids: Option<HostIds>) -> Result<(), NetnsError> {
    let failed = |source| NetnsError::Io { act: "create", path: path.to_owned(), source };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    let mut open = fs::OpenOptions::new();
    open.write(true).create(true).truncate(false).mode(0o444).open(path).map_err(failed)?;
    if let Some(ids) = ids {
        return owned::make(path, ids).map_err(failed);
    }
    let bound = || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        bind("/proc/thread-self/ns/net", path)
    };
    // A thread of its own, whose network namespace ends with it; the bound file keeps it.
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, bound)?;
        worker.join().map_err(|_panic| io::Error::other("the thread panicked"))?
    })
    .map_err(failed)
}

fn bind(namespace: &str, to: &Path) -> io::Result<()> {
    Ok(mount(Some(namespace), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

/// Whether a namespace is bound there.
pub(crate) fn is_namespace(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_mounts::{tmpfs, with_own_mounts};

    /// Runs with mounts, and a `/run/netns`, of its own.
    fn alone(body: impl FnOnce() + Send) {
        with_own_mounts(|| {
            tmpfs(Path::new("/run"));
            body();
        });
    }

    fn inode(path: &Path) -> u64 {
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap())
    }

    #[test]
    fn a_namespace_is_made_once_found_again_and_removed() {
        alone(|| {
            let (ours, sandbox) = (Namespaces::marked_in("/run/berth/netns"), SandboxId::from_known("pod"));
            let path = PathBuf::from(paths::netns(&sandbox));
            ours.ensure(&sandbox, None).unwrap();
            let made = inode(&path);
            assert_ne!(made, inode(Path::new("/proc/self/ns/net")));
            ours.ensure(&sandbox, None).unwrap();
            assert_eq!(inode(&path), made);
            assert_eq!(ours.marked().unwrap(), BTreeSet::from([sandbox.clone()]));
            for _again in 0..2 {
                ours.remove(&sandbox).unwrap();
                assert!(!path.exists());
                assert_eq!(ours.marked().unwrap(), BTreeSet::new());
            }
        });
    }

    /// Of the same name, even.
    #[test]
    fn another_agents_namespace_is_neither_used_nor_removed() {
        alone(|| {
            let [ours, theirs] = ["/run/berth/netns", "/run/other/netns"].map(Namespaces::marked_in);
            let sandbox = SandboxId::from_known("pod");
            let path = PathBuf::from(paths::netns(&sandbox));
            theirs.ensure(&sandbox, None).unwrap();
            let made = inode(&path);
            assert!(matches!(ours.ensure(&sandbox, None), Err(NetnsError::Foreign(_))));
            assert_eq!(ours.marked().unwrap(), BTreeSet::new());
            ours.remove_marked(&sandbox).unwrap();
            assert_eq!(inode(&path), made);
            // Unless a pod's record says that it is ours.
            ours.adopt(&sandbox).unwrap();
            ours.ensure(&sandbox, None).unwrap();
            ours.remove_marked(&sandbox).unwrap();
            assert!(!path.exists());
        });
    }

    #[test]
    fn a_mark_without_a_namespace_is_a_beginning() {
        alone(|| {
            let (ours, sandbox) = (Namespaces::marked_in("/run/berth/netns"), SandboxId::from_known("pod"));
            ours.adopt(&sandbox).unwrap();
            assert_eq!(ours.marked().unwrap(), BTreeSet::new(), "there is nothing to adopt");
            ours.put_mark(&sandbox).unwrap();
            ours.ensure(&sandbox, None).unwrap();
            ours.put_mark(&sandbox).unwrap();
            ours.remove_marked(&sandbox).unwrap();
            assert_eq!(ours.marked().unwrap(), BTreeSet::new());
        });
    }
}
