//! Network namespaces, as containerd's clients hand them down.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Makes a network namespace that is held by a file.
pub fn make_netns(path: &Path) -> PathBuf {
    File::create(path).unwrap();
    let target = path.to_owned();
    // The namespace of a thread of its own, which ends with it; the mount keeps the namespace.
    let made = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        mount(Some("/proc/thread-self/ns/net"), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .unwrap();
    });
    made.join().unwrap();
    path.to_owned()
}
