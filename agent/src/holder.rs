//! Namespaces of a pod that no process of its own holds: made by a thread, kept by files that they are bound to.
//!
//! For pods under shims of others only; ours hold their pod's namespaces themselves.

use std::{
    fs, io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    thread,
};

use berth_core::{id::SandboxId, spec::Sysctl};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    unistd::sethostname,
};

/// Name of the file of the IPC namespace.
pub const IPC: &str = "ipc";
/// Name of the file of the UTS namespace.
pub const UTS: &str = "uts";
/// Name of the directory that is the pod's `/dev/shm`.
pub const SHM: &str = "shm";
/// Exists when everything is in place.
const COMPLETE: &str = "complete";

/// Digits of the sandbox id in a directory's name, as in the name of its network namespace.
const DIGITS: usize = 20;

/// Size of a pod's `/dev/shm`, as containerd's CRI makes it.
const SHM_OPTIONS: &str = "mode=1777,size=65536k";

/// What to hold.
#[derive(Debug, Clone)]
pub struct Holder {
    /// Where.
    pub dir: PathBuf,
    /// Host name of a UTS namespace; none for the node's.
    pub hostname: Option<String>,
    /// Whether there is an IPC namespace, with a `/dev/shm`.
    pub has_ipc: bool,
    /// The pod's network namespace, for its sysctls.
    pub netns: Option<PathBuf>,
    /// Sysctls of the namespaces, checked.
    pub sysctls: Vec<Sysctl>,
}

/// Why the namespaces could not be made or let go.
#[derive(Debug, thiserror::Error)]
#[error("{act} {path}")]
pub struct HolderError {
    act: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The directory of a sandbox.
#[must_use]
pub fn dir(run: &str, sandbox: &SandboxId) -> PathBuf {
    let digits: String = sandbox.as_str().chars().take(DIGITS).collect();
    Path::new(run).join("grouped").join(digits)
}

/// Whether everything of a sandbox is in place.
#[must_use]
pub fn is_ready(run: &str, sandbox: &SandboxId) -> bool {
    dir(run, sandbox).join(COMPLETE).exists()
}

/// Makes the namespaces, or finds them.
///
/// # Errors
/// See [`HolderError`].
pub fn ensure(holder: &Holder) -> Result<(), HolderError> {
    let path = &holder.dir;
    if path.join(COMPLETE).exists() {
        return Ok(());
    }
    remove(path)?;
    let make = || -> io::Result<()> {
        fs::create_dir_all(path.join(SHM))?;
        // A thread of its own, whose namespaces end with it; the bound files keep them.
        thread::scope(|scope| {
            let thread = thread::Builder::new().name("holder".to_owned());
            let worker = thread.spawn_scoped(scope, || hold(holder))?;
            worker.join().map_err(|_panic| io::Error::other("the thread panicked"))?
        })?;
        fs::write(path.join(COMPLETE), "")
    };
    make().map_err(|source| HolderError { act: "make the pod's namespaces in", path: path.clone(), source })
}

/// Lets the namespaces go. Nothing there is no error.
///
/// # Errors
/// See [`HolderError`].
pub fn remove(dir: &Path) -> Result<(), HolderError> {
    if !dir.exists() {
        return Ok(());
    }
    for name in [IPC, UTS, SHM] {
        while umount2(&dir.join(name), MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).is_ok() {}
    }
    fs::remove_dir_all(dir).map_err(|source| HolderError { act: "remove", path: dir.to_owned(), source })
}

fn hold(holder: &Holder) -> io::Result<()> {
    if let Some(netns) = &holder.netns {
        setns(fs::File::open(netns)?.as_fd(), CloneFlags::CLONE_NEWNET)?;
    }
    if let Some(hostname) = &holder.hostname {
        unshare(CloneFlags::CLONE_NEWUTS)?;
        sethostname(hostname)?;
        bind("/proc/thread-self/ns/uts", &holder.dir.join(UTS))?;
    }
    if holder.has_ipc {
        unshare(CloneFlags::CLONE_NEWIPC)?;
        bind("/proc/thread-self/ns/ipc", &holder.dir.join(IPC))?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("shm"), &holder.dir.join(SHM), Some("tmpfs"), flags, Some(SHM_OPTIONS))?;
    }
    for Sysctl { name, value } in &holder.sysctls {
        let file = format!("/proc/sys/{}", name.replace('.', "/"));
        fs::write(&file, value).map_err(|error| io::Error::other(format!("set {name}: {error}")))?;
    }
    Ok(())
}

fn bind(namespace: &str, file: &Path) -> io::Result<()> {
    fs::write(file, "")?;
    Ok(mount(Some(namespace), file, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_mounts::with_own_mounts;

    #[test]
    fn namespaces_outlive_the_thread_that_made_them() {
        let run = tempfile::tempdir().unwrap();
        let sandbox = SandboxId::from_known("0123456789abcdef0123456789abcdef");
        let holder = Holder {
            dir: dir(&run.path().display().to_string(), &sandbox),
            hostname: Some("pod-1".to_owned()),
            has_ipc: true,
            netns: None,
            sysctls: vec![Sysctl { name: "kernel.shm_rmid_forced".to_owned(), value: "1".to_owned() }],
        };
        with_own_mounts(|| {
            ensure(&holder).unwrap();
            ensure(&holder).unwrap();
            setns(fs::File::open(holder.dir.join(UTS)).unwrap(), CloneFlags::CLONE_NEWUTS).unwrap();
            assert_eq!(nix::unistd::gethostname().unwrap(), "pod-1");
            setns(fs::File::open(holder.dir.join(IPC)).unwrap(), CloneFlags::CLONE_NEWIPC).unwrap();
            assert_eq!(fs::read_to_string("/proc/sys/kernel/shm_rmid_forced").unwrap().trim(), "1");
            remove(&holder.dir).unwrap();
            remove(&holder.dir).unwrap();
        });
        assert!(!holder.dir.exists());
        assert_ne!(nix::unistd::gethostname().unwrap(), "pod-1");
    }
}
