//! The guest's root file system: a Debian tree as an image, and its kernel beside it.
//!
//! Invariant: the name of the directory holds a hash of the recipe, and the directory appears only when it is whole.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount, umount};
use sha2::{Digest, Sha256};

use super::{Backend, Part, supervisor};
use crate::{components, image};

/// Its own kernel needs the C library of the same release, and nothing older has its features.
const SUITE: &str = "sid";
/// What tests and guests need beside Debian's essential packages and a kernel.
const PACKAGES: &[&str] = &[
    "busybox-static",
    "crun",
    "curl",
    "dbus",
    "e2fsprogs",
    "erofs-utils",
    "fuse-overlayfs",
    "fuse3",
    "iproute2",
    "iptables",
    "kmod",
    "libseccomp2",
    "netcat-openbsd",
    "openssl",
    "procps",
    "systemd",
    "systemd-sysv",
];
/// Left out of the image.
const CLUTTER: &[&str] = &[
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
];
/// Written over the tree: path, mode, content.
const FILES: &[(&str, u32, &str)] = &[
    ("usr/lib/berth/guest", 0o755, include_str!("tree/guest")),
    ("etc/systemd/system/berth-job.service", 0o644, include_str!("tree/berth-job.service")),
    ("etc/hostname", 0o644, "guest\n"),
    ("etc/hosts", 0o644, "127.0.0.1 localhost\n127.0.1.1 guest\n"),
];
/// Units: what starts the job, and no login prompts, which would take its ports.
const LINKS: &[(&str, &str)] = &[
    ("etc/systemd/system/multi-user.target.wants/berth-job.service", "/etc/systemd/system/berth-job.service"),
    ("etc/systemd/system/getty.target", "/dev/null"),
    ("etc/systemd/system/systemd-logind.service", "/dev/null"),
    ("etc/systemd/system/systemd-firstboot.service", "/dev/null"),
];
/// Programs of this machine in place of the tree's, by their places in both. They are static. The suite for clusters compares what
/// busybox's shell says, and later ones say more.
const OWN: &[(&str, &str)] = &[("/bin/busybox", "usr/bin/busybox")];
/// What is being made, and where worlds are mounted.
const PART: &str = "part";
const WORLD: &str = "world";
const KERNEL: &str = "kernel";
/// The image is sparse; what a guest writes goes elsewhere.
const SIZE: &str = "1900M";

const DIR: &str = "BERTH_VM_DISK_DIR";
const BACKEND: &str = "BERTH_VM_DISK_BACKEND";

/// A built image, for a kind of machine.
#[derive(Debug)]
pub struct Disk {
    backend: Backend,
    dir: PathBuf,
}

impl Disk {
    /// Builds the image unless it is there; `say` hears of what takes minutes.
    ///
    /// # Errors
    /// A program is missing or failed; the log is named.
    pub fn build(backend: Backend, mut say: impl FnMut(&str)) -> Result<Self> {
        let all = components::workspace().join("target/vm");
        fs::create_dir_all(all.join(WORLD))?;
        let disk = Self { backend, dir: all.join(recipe(backend)) };
        let lock = File::create(all.join("lock"))?;
        let _one_builder = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
        if disk.image().is_file() {
            return Ok(disk);
        }
        say("making a Debian tree (a minute or two, the first time)");
        let part = all.join(PART);
        if part.exists() {
            fs::remove_dir_all(&part)?;
        }
        fs::create_dir_all(&part)?;
        let status = supervisor::in_namespaces(Part::Debootstrap, |command| {
            Ok(command.env(DIR, &part).env(BACKEND, backend.name()))
        })?;
        ensure!(status.success(), "no tree was made: see {}", part.join("build.log").display());
        // Of other recipes. What a running guest uses of them stays until its end.
        for entry in fs::read_dir(&all)? {
            let old = entry?.path();
            let is_of_kind = old
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(&format!("{}-", backend.name())));
            if is_of_kind {
                fs::remove_dir_all(&old).with_context(|| format!("remove {}", old.display()))?;
            }
        }
        fs::rename(&part, disk.dir())?;
        Ok(disk)
    }

    /// The disk in a directory.
    pub(super) fn at(dir: PathBuf, backend: Backend) -> Self {
        Self { backend, dir }
    }

    /// The kind of machine that it is for.
    #[must_use]
    pub const fn backend(&self) -> Backend {
        self.backend
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The image of the root file system.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.dir.join("root.img")
    }

    /// Directory of its kernel.
    pub(super) fn kernel(&self) -> PathBuf {
        self.dir.join(KERNEL)
    }

    /// Directory of what guests have for themselves.
    pub(super) fn locks(&self) -> PathBuf {
        self.dir.with_file_name("locks")
    }

    /// An empty directory, for a world to be mounted on. It is never removed, which would unmount what is on it.
    pub(super) fn world(&self) -> PathBuf {
        world_beside(&self.dir)
    }
}

fn world_beside(dir: &Path) -> PathBuf {
    dir.with_file_name(WORLD)
}

fn recipe(backend: Backend) -> String {
    let mut hash = Sha256::new();
    let kernel = [backend.packages(), backend.later_packages()];
    hash.update(format!("{SUITE} {PACKAGES:?} {kernel:?} {CLUTTER:?} {FILES:?} {LINKS:?} {OWN:?} {SIZE}"));
    let mut hex = image::hex(&hash.finalize());
    hex.truncate(16);
    format!("{}-{hex}", backend.name())
}

/// In namespaces, where nothing that debootstrap mounts can stay: makes tree, image and kernel.
pub(super) fn in_namespaces() -> Result<ExitCode> {
    supervisor::settle_in()?;
    let dir = PathBuf::from(std::env::var_os(DIR).context("no directory was named")?);
    let backend = Backend::named(&std::env::var(BACKEND)?)?;
    let world = world_beside(&dir);
    mount(Some("tmpfs"), &world, Some("tmpfs"), MsFlags::empty(), Some("mode=755"))?;
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>)?;
    let tree = world.join("tree");
    let log = File::create(dir.join("build.log"))?;
    let mirror = mirror()?;
    logged(
        Command::new("debootstrap")
            .arg("--variant=minbase")
            .arg(format!("--include={}", [PACKAGES, backend.packages()].concat().join(",")))
            .args([SUITE.as_ref(), tree.as_os_str(), mirror.as_ref()]),
        &log,
    )?;
    if !backend.later_packages().is_empty() {
        mount(Some("proc"), &tree.join("proc"), Some("proc"), MsFlags::empty(), None::<&str>)?;
        // A mirror that was frozen at some day is as good as it was for debootstrap.
        let apt = ["-q", "-o", "Acquire::Check-Valid-Until=false"];
        logged(in_tree(&tree).args(apt).arg("update"), &log)?;
        let install = ["install", "-y", "--no-install-recommends"];
        logged(in_tree(&tree).args(apt).args(install).args(backend.later_packages()), &log)?;
        umount(&tree.join("proc"))?;
    }
    finish(&tree)?;
    backend.keep_kernel(&tree, &dir.join(KERNEL))?;
    logged(
        Command::new("/usr/sbin/mke2fs")
            .args(["-q", "-t", "ext4", "-O", "^has_journal", "-E", "lazy_itable_init=0", "-d"])
            .args([tree.as_os_str(), dir.join("root.img").as_os_str(), SIZE.as_ref()]),
        &log,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// apt in the tree.
fn in_tree(tree: &Path) -> Command {
    let mut command = Command::new("/usr/sbin/chroot");
    command.arg(tree).arg("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Takes away what nobody needs and writes what makes a guest of it.
fn finish(tree: &Path) -> Result<()> {
    for path in CLUTTER {
        fs::remove_dir_all(tree.join(path)).with_context(|| format!("remove {path}"))?;
    }
    for (path, mode, content) in FILES {
        let path = tree.join(path);
        make_parent(&path)?;
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
    }
    for (from, to) in OWN {
        fs::copy(from, tree.join(to)).with_context(|| format!("copy {from}"))?;
    }
    for (path, target) in LINKS {
        let path = tree.join(path);
        make_parent(&path)?;
        symlink(target, &path).with_context(|| format!("link {}", path.display()))?;
    }
    Ok(fs::create_dir(tree.join("berth"))?)
}

pub(super) fn make_parent(path: &Path) -> Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))
        .with_context(|| format!("make the directory of {}", path.display()))
}

/// The mirror from which this machine installs Debian packages.
fn mirror() -> Result<String> {
    let listed = Command::new("apt-get")
        .args(["indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", "Created-By: Packages"])
        .output()
        .context("start apt-get")?;
    let listed = String::from_utf8(listed.stdout)?;
    let mirror = listed.lines().find_map(|line| line.strip_prefix("Debian Debian "));
    mirror.map(str::to_owned).context("apt knows no mirror of Debian: run apt-get update on a Debian machine")
}

fn logged(command: &mut Command, log: &File) -> Result<()> {
    let status = command
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .status()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    ensure!(status.success(), "{} ended with {status}", command.get_program().display());
    Ok(())
}
