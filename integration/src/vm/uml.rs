//! User-Mode Linux: the machine is a process, and runs where KVM does not.
//!
//! Its files are reached through hostfs, whose root is the world's `share`. Serial lines carry the outputs.

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};

use super::Feature;
use super::disk::make_parent;
use super::job::Init;
use super::world::{Machine, Plan, bind};

/// Libraries of the kernel, which is a program here: the C library, and what that loads when a thread is cancelled.
const LIBRARIES: [&str; 2] = ["libc.so.6", "libgcc_s.so.1"];
/// Its kernel and modules.
pub(super) const PACKAGES: &[&str] = &["user-mode-linux"];
/// What its kernel, as Debian builds it, does not have.
pub(super) const LACKS: &[Feature] = &[Feature::Nat, Feature::Checkpoints];
/// What the guest may use; only what it touches is taken from the host.
const MEMORY: &str = "4G";

/// Copies the kernel and what it is linked to, at the paths that it asks for; puts its modules where a guest looks.
pub(super) fn keep_kernel(tree: &Path, kernel: &Path) -> Result<()> {
    let triplet = format!("{ARCH}-linux-gnu");
    let loader = match ARCH {
        "x86_64" => "lib64/ld-linux-x86-64.so.2",
        other => bail!("User-Mode Linux does not exist for {other}"),
    };
    let mut files =
        vec![("usr/bin/linux.uml".to_owned(), "bin/linux".to_owned()), (loader.into(), loader.into())];
    files
        .extend(LIBRARIES.map(|name| (format!("usr/lib/{triplet}/{name}"), format!("lib/{triplet}/{name}"))));
    for (from, to) in files {
        let to = kernel.join(to);
        make_parent(&to)?;
        fs::copy(tree.join(&from), &to).with_context(|| format!("copy {from}"))?;
    }
    let modules = tree.join("usr/lib/uml/modules");
    let versions = fs::read_dir(&modules).with_context(|| format!("read {}", modules.display()))?;
    fs::create_dir_all(tree.join("usr/lib/modules"))?;
    for version in versions {
        let version = version?.file_name();
        let link = tree.join("usr/lib/modules").join(&version);
        symlink(Path::new("/usr/lib/uml/modules").join(&version), link)?;
    }
    Ok(())
}

/// Starts the machine in a root of its own, since its kernel needs the C library of its release.
pub(super) fn start(plan: &Plan) -> Result<Machine> {
    let kernel = plan.disk.kernel();
    for entry in fs::read_dir(&kernel).with_context(|| format!("read {}", kernel.display()))? {
        let from = entry?.path();
        bind(&from, &plan.dir.join(from.file_name().unwrap_or_default()), MsFlags::MS_RDONLY)?;
    }
    for dir in ["proc", "tmp", "image"] {
        fs::create_dir(plan.dir.join(dir))?;
    }
    bind(Path::new("/dev"), &plan.dir.join("dev"), MsFlags::empty())?;
    mount(Some("proc"), &plan.dir.join("proc"), Some("proc"), MsFlags::empty(), None::<&str>)?;
    bind(&plan.disk.image(), &plan.dir.join("image/root.img"), MsFlags::MS_RDONLY)?;
    // In a session of its own, since a kernel that panics ends its process group.
    let mut command = Command::new("setsid");
    command.arg("/usr/sbin/chroot").arg(&plan.dir).arg("/bin/linux").args(arguments(plan.job.init));
    // Its temporary files, the guest's memory among them, are on the world's tmpfs.
    command.env_clear().env("TMPDIR", "/tmp").env("HOME", "/tmp");
    command.stderr(plan.console.try_clone()?);
    let last: &[&str] = match plan.job.init {
        Init::Plain => &["--", "guest-init"],
        Init::Systemd => &[],
    };
    Machine::spawn(command, plan.job.stdio, |command, errors| {
        match errors {
            Some(errors) => command.args(["ssl0=null,fd:1".to_owned(), format!("ssl1=null,fd:{errors}")]),
            None => command.arg("ssl0=fd:0,fd:1"),
        }
        .args(last);
    })
}

fn arguments(init: Init) -> Vec<String> {
    let first = match init {
        Init::Plain => "/usr/lib/berth/guest",
        Init::Systemd => "/usr/lib/systemd/systemd",
    };
    [
        &format!("mem={MEMORY}"),
        "seccomp=on",
        // What the guest writes goes to memory, so that guests know nothing of each other.
        "ubd0=/tmp/cow,/image/root.img",
        "root=/dev/ubda",
        "rootfstype=ext4",
        "rw",
        "uml_dir=/tmp/",
        "console=tty0",
        "con=null",
        "con0=null,fd:2",
        "ssl=null",
        "lsm=yama,apparmor",
        "hostname=guest",
        "panic=1",
        "berth.share=hostfs",
        &format!("init={first}"),
    ]
    .map(str::to_owned)
    .into()
}
