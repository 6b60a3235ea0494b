//! Everything a test has, and its end.

use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Trial;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use super::containerd::Containerd;
use super::leaks;
use super::runtime::Runtime;
use super::shim::Traces;

/// Gives the process, and so everything it starts, mounts of its own.
///
/// `/run` is empty in it, since runtimes keep their state there. A cgroup2 hierarchy beside cgroup v1 is covered:
/// crun refuses such a mixture, and leaves files where it was.
pub(crate) fn isolate() -> Result<(), nix::Error> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    let mixed = Path::new("/sys/fs/cgroup/unified");
    if mixed.join("cgroup.controllers").exists() {
        mount(Some("tmpfs"), mixed, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    }
    Ok(())
}

/// A test with one runtime, ended by a search for what it left behind.
pub(crate) fn trial(name: &str, runtime: Runtime, test: fn(&World)) -> Trial {
    Trial::test(format!("{name}::{}", runtime.name()), move || {
        let world = World::new(runtime)?;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            test(&world);
            world.end_shims();
        }));
        let left = if outcome.is_ok() { leaks::settled(&world) } else { Vec::new() };
        world.clean_up();
        match outcome {
            Err(_) => Err("the test panicked".into()),
            Ok(()) if left.is_empty() => Ok(()),
            Ok(()) => Err(format!("left behind: {left:#?}").into()),
        }
    })
}

pub(crate) struct World {
    dir: TempDir,
    pub(crate) runtime: Runtime,
    program: PathBuf,
    pub(crate) containerd: Containerd,
    /// Names the test among others: its containerd namespace and the parent of its cgroups.
    name: String,
    shims: Mutex<Vec<Traces>>,
}

impl World {
    fn new(runtime: Runtime) -> Result<World, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short, since sockets live in it.
        let dir = tempfile::Builder::new().prefix("bs").tempdir_in("/tmp").unwrap();
        let program = runtime.program(dir.path())?;
        let name = format!("berth-shim-test-{}-{number}", std::process::id());
        let containerd = Containerd::listen(dir.path(), &name);
        make_rootfs(&dir.path().join("rootfs"));
        Ok(World { dir, runtime, program, containerd, name, shims: Mutex::default() })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The OCI runtime's program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The containerd namespace of this test, and the parent of the cgroups of its containers.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The bundle of a sandbox or container.
    pub(crate) fn bundle(&self, id: &str) -> PathBuf {
        self.dir().join("bundles").join(id)
    }

    /// A directory that is `/shared` in every container.
    pub(crate) fn shared(&self) -> PathBuf {
        self.dir().join("rootfs/shared")
    }

    /// Where `/shared/name` is for a container's processes, which with the fake runtime run outside.
    pub(crate) fn shared_path(&self, name: &str) -> String {
        match self.runtime {
            Runtime::Fake => self.shared().join(name).display().to_string(),
            Runtime::Crun | Runtime::Runc => format!("/shared/{name}"),
        }
    }

    pub(super) fn register(&self, traces: Traces) {
        self.shims.lock().unwrap().push(traces);
    }

    fn end_shims(&self) {
        for shim in self.shims.lock().unwrap().iter() {
            shim.end();
        }
    }

    /// Ends by force what a failed test left.
    fn clean_up(&self) {
        for shim in self.shims.lock().unwrap().iter() {
            shim.destroy();
        }
        leaks::destroy(self);
    }
}

/// A root filesystem of busybox.
fn make_rootfs(rootfs: &Path) {
    for dir in ["bin", "dev", "proc", "tmp", "etc", "shared"] {
        fs::create_dir_all(rootfs.join(dir)).unwrap();
    }
    fs::copy("/bin/busybox", rootfs.join("bin/busybox")).expect("busybox, statically linked, is installed");
    let applets = Command::new("/bin/busybox").arg("--list").output().unwrap();
    for applet in String::from_utf8(applets.stdout).unwrap().lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", rootfs.join("bin").join(applet)).unwrap();
    }
}
