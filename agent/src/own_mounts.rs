//! Mounts that nobody but one test sees.

use std::{path::Path, thread};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};

/// Runs in a thread that has its mounts to itself.
pub(crate) fn with_own_mounts<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
            body()
        });
        worker.join().unwrap()
    })
}

/// Mounts a tmpfs.
pub(crate) fn tmpfs(at: &Path) {
    mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
}
