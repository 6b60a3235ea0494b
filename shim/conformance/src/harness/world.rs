//! Everything a test has, and its end.

use std::any::Any;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use berth_proto::ttrpc::Code;
use libtest_mimic::Trial;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use super::containerd::Containerd;
use super::groups::{Driver, Groups};
use super::leaks;
use super::program::copy_program;
use super::sandbox::Sandbox;
use super::subject::Subject;
use super::traces::Traces;

/// Gives the process, and so everything it starts, mounts of its own.
///
/// `/run` is empty in it, since runtimes keep their state there, but for the ways to systemd. A cgroup2 hierarchy beside
/// cgroup v1 is covered: crun refuses such a mixture, and leaves files where it was.
pub fn isolate() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    cover_run()?;
    let mixed = Path::new("/sys/fs/cgroup/unified");
    if mixed.join("cgroup.controllers").exists() {
        mount(Some("tmpfs"), mixed, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    }
    Ok(())
}

fn cover_run() -> io::Result<()> {
    let cover = tempfile::tempdir()?;
    mount(Some("tmpfs"), cover.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    for kept in ["systemd", "dbus"] {
        let (from, to) = (Path::new("/run").join(kept), cover.path().join(kept));
        if from.is_dir() {
            fs::create_dir(&to)?;
            mount(Some(&from), &to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
        }
    }
    mount(Some(cover.path()), "/run", None::<&str>, MsFlags::MS_MOVE, None::<&str>)?;
    Ok(())
}

/// A test of one subject, ended by a search for what it left behind.
pub fn trial(name: &str, subject: &Subject, test: fn(&World)) -> Trial {
    let run = outcome(subject.clone(), test);
    Trial::test(format!("{name}::{}", subject.name), move || run().map_err(Into::into))
}

/// Whether a subject passes a test, and else why not.
pub fn outcome(subject: Subject, test: fn(&World)) -> impl Fn() -> Result<(), String> {
    move || {
        let world = World::new(subject.clone());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            test(&world);
            world.end_shims();
        }));
        let left = if outcome.is_ok() { leaks::settled(&world) } else { Vec::new() };
        world.clean_up();
        match outcome {
            Err(panic) => Err(message(panic.as_ref())),
            Ok(()) if left.is_empty() => Ok(()),
            Ok(()) => Err(format!("left behind: {left:#?}")),
        }
    }
}

/// What a test has panicked with.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the test panicked").to_owned()
}

/// Whether a shim has a sandbox service. One that cannot be asked has not said no.
pub fn probe_sandbox(subject: Subject) -> bool {
    let world = World::new(subject);
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let answer = Sandbox::new(&world, "pod").platform();
        world.end_shims();
        answer
    }));
    world.clean_up();
    !matches!(answer, Ok(Err(status)) if status.code == Code::Unimplemented)
}

/// Everything a test has: a directory, an events service, a name for its cgroups, and the shims that it starts.
#[derive(Debug)]
pub struct World {
    dir: TempDir,
    subject: Subject,
    program: PathBuf,
    /// The events service.
    pub containerd: Containerd,
    /// Names the test among others: its containerd namespace, and its cgroups.
    name: String,
    groups: Groups,
    shims: Mutex<Vec<Traces>>,
}

impl World {
    fn new(subject: Subject) -> World {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short, since sockets live in it; in memory, since it has a link for each of busybox's commands.
        let dir = tempfile::Builder::new().prefix("bs").tempdir_in("/run").unwrap();
        let program = subject.runtime.entry(dir.path());
        let name = format!("berth-shim-test-{}-{number}", std::process::id());
        let containerd = Containerd::listen(dir.path(), &name);
        make_rootfs(&dir.path().join("rootfs"));
        let driver = if subject.runtime.contains() { Driver::of_machine() } else { Driver::Cgroupfs };
        let groups = Groups::new(driver, &name, subject.runtime.name());
        World { dir, subject, program, containerd, name, groups, shims: Mutex::default() }
    }

    /// What is under test.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The test's own directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The OCI runtime's program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The containerd namespace of this test.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cgroups of its containers.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The bundle of a sandbox or container.
    pub fn bundle(&self, id: &str) -> PathBuf {
        self.dir().join("bundles").join(id)
    }

    /// A directory that is `/shared` in every container.
    pub fn shared(&self) -> PathBuf {
        self.dir().join("rootfs/shared")
    }

    /// Where `/shared/name` is for a container's processes, which with the fake runtime run outside.
    pub fn shared_path(&self, name: &str) -> String {
        if self.subject.runtime.contains() {
            format!("/shared/{name}")
        } else {
            self.shared().join(name).display().to_string()
        }
    }

    pub(crate) fn register(&self, traces: Traces) {
        self.shims.lock().unwrap().push(traces);
    }

    /// Sockets that are left of shims which have ended by themselves. Of those that were killed, tests ask.
    pub(crate) fn stale_sockets(&self) -> Vec<PathBuf> {
        let shims = self.shims.lock().unwrap();
        let murdered: Vec<u32> =
            shims.iter().filter(|shim| shim.is_murdered()).map(|shim| shim.pid).collect();
        let others = shims.iter().filter(|shim| !murdered.contains(&shim.pid) && shim.socket.exists());
        others.map(|shim| shim.socket.clone()).collect()
    }

    fn end_shims(&self) {
        let shims = self.shims.lock().unwrap();
        shims.iter().for_each(Traces::end_tasks);
        shims.iter().for_each(Traces::end);
    }

    /// Ends by force what a failed test left, and what costs descriptors.
    fn clean_up(&self) {
        for shim in self.shims.lock().unwrap().iter() {
            shim.destroy();
        }
        leaks::destroy(self);
        self.containerd.go_away();
    }
}

/// A root filesystem of busybox.
fn make_rootfs(rootfs: &Path) {
    for dir in ["bin", "dev", "proc", "tmp", "etc", "shared"] {
        fs::create_dir_all(rootfs.join(dir)).unwrap();
    }
    let busybox = Path::new("/bin/busybox");
    assert!(busybox.exists(), "busybox, statically linked, is installed");
    copy_program(busybox, &rootfs.join("bin/busybox"));
    let applets = Command::new(busybox).arg("--list").output().unwrap();
    for applet in String::from_utf8(applets.stdout).unwrap().lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", rootfs.join("bin").join(applet)).unwrap();
    }
}
