//! QEMU with KVM: Debian's usual kernel, where guests of KVM run.
//!
//! Files are reached through 9p, whose root is the world's `share`. Two serial lines carry the outputs, a third the console.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::job::Init;
use super::world::{Machine, Plan};
use crate::wait::{self, Look};

/// The kernel, and what makes its first file system.
pub(super) const PACKAGES: &[&str] = &["linux-image-amd64", "initramfs-tools", "zstd"];
/// The two files of a kernel, and what their names begin with in `/boot`.
const KERNEL: [(&str, &str); 2] = [("vmlinuz", "vmlinuz-"), ("initrd", "initrd.img-")];

const PROGRAM: &str = "qemu-system-x86_64";
const MEMORY: &str = "4G";

/// The first sector of a disk that tells of its life: it loads π, writes [`TRIAL_BYTE`] to [`TRIAL_PORT`] and halts. π, because
/// some hosts have a KVM that interprets every instruction, at a thousandth of the speed, and knows but a few.
const TRIAL: [u8; 9] = [0xd9, 0xeb, 0xb0, TRIAL_BYTE, 0xe6, TRIAL_PORT, 0xf4, 0xeb, 0xfd];
const TRIAL_PORT: u8 = 0xf4;
const TRIAL_BYTE: u8 = 0x10;
/// What QEMU ends with for that byte: twice the byte, and one.
const TRIAL_CODE: i32 = 2 * TRIAL_BYTE as i32 + 1;
/// A guest that works needs a fraction of a second.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);
const SECTOR: usize = 512;

/// Whether QEMU is installed and a guest runs with KVM. That `/dev/kvm` opens says little: there are hosts on which it
/// does and no guest ever runs.
pub(super) fn works() -> Result<bool> {
    let installed = Command::new(PROGRAM).arg("--version").stdout(process::Stdio::null()).status();
    if !installed.is_ok_and(|status| status.success()) || !Path::new("/dev/kvm").exists() {
        return Ok(false);
    }
    let mut sector = TRIAL.to_vec();
    sector.resize(SECTOR, 0);
    sector[SECTOR - 2..].copy_from_slice(&[0x55, 0xaa]);
    let disk = std::env::temp_dir().join(format!("berth-vm-trial-{}", process::id()));
    fs::write(&disk, sector).with_context(|| format!("write {}", disk.display()))?;
    let code = trial(&disk);
    fs::remove_file(&disk)?;
    Ok(code? == Some(TRIAL_CODE))
}

fn trial(disk: &Path) -> Result<Option<i32>> {
    let mut qemu = Command::new(PROGRAM)
        .args(["-accel", "kvm", "-m", "32", "-display", "none", "-no-reboot", "-boot", "c"])
        .args(["-device", &format!("isa-debug-exit,iobase={TRIAL_PORT:#x},iosize=1")])
        .args(["-drive", &format!("file={},format=raw,if=ide", disk.display())])
        .stdin(process::Stdio::null())
        .stdout(process::Stdio::null())
        .stderr(process::Stdio::null())
        .spawn()
        .context("start QEMU")?;
    let ended = wait::until("a guest of KVM", TRIAL_LIMIT, || {
        Ok(qemu.try_wait()?.map_or_else(|| Look::NotYet("running".to_owned()), Look::Ready))
    });
    match ended {
        Ok(status) => Ok(status.code()),
        Err(_late) => {
            qemu.kill()?;
            qemu.wait()?;
            Ok(None)
        }
    }
}

/// Starts the machine.
pub(super) fn start(plan: &Plan) -> Result<Machine> {
    let kernel = plan.disk.kernel();
    let [(vmlinuz, _), (initrd, _)] = KERNEL;
    let processors = thread::available_parallelism()?.to_string();
    let console = plan.console.try_clone()?;
    inherit(&console)?;
    let mut command = Command::new("setsid");
    command
        .args([PROGRAM, "-accel", "kvm", "-cpu", "max", "-m", MEMORY, "-smp", &processors])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .arg("-kernel")
        .arg(kernel.join(vmlinuz))
        .arg("-initrd")
        .arg(kernel.join(initrd))
        .args(["-append", &parameters(plan.job.init)])
        // What the guest writes goes to a temporary file of QEMU, so that guests know nothing of each other.
        .args(["-snapshot", "-drive"])
        .arg(format!("file={},format=raw,if=virtio", plan.disk.image().display()))
        .arg("-fsdev")
        .arg(format!(
            "local,id=share,path={},security_model=none,multidevs=remap",
            plan.dir.join("share").display()
        ))
        .args(["-device", "virtio-9p-pci,fsdev=share,mount_tag=share"])
        .env("TMPDIR", &plan.dir)
        .stderr(plan.console.try_clone()?);
    let console = format!("file:/dev/fd/{}", console.as_raw_fd());
    Machine::spawn(command, plan.job.stdio, |command, errors| {
        match errors {
            Some(errors) => {
                command.args(["-serial", "file:/dev/fd/1", "-serial", &format!("file:/dev/fd/{errors}")])
            }
            None => command.args([
                "-chardev",
                "stdio,id=out,signal=off",
                "-serial",
                "chardev:out",
                "-serial",
                "null",
            ]),
        }
        .args(["-serial", &console]);
    })
}

/// Copies the kernel and its first file system.
pub(super) fn keep_kernel(tree: &Path, kernel: &Path) -> Result<()> {
    fs::create_dir(kernel)?;
    for (name, begin) in KERNEL {
        let boot = fs::read_dir(tree.join("boot"))?;
        let files = boot.filter_map(Result::ok).map(|entry| entry.path());
        let is_it =
            |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(begin));
        let file = files.into_iter().find(is_it).with_context(|| format!("no {begin} in /boot"))?;
        fs::copy(&file, kernel.join(name)).with_context(|| format!("copy {}", file.display()))?;
    }
    Ok(())
}

fn inherit(file: &File) -> Result<()> {
    fcntl(file, FcntlArg::F_SETFD(FdFlag::empty())).context("hand a file down")?;
    Ok(())
}

fn parameters(init: Init) -> String {
    let (first, argument) = match init {
        Init::Plain => ("/usr/lib/berth/guest", " -- guest-init"),
        Init::Systemd => ("/usr/lib/systemd/systemd", ""),
    };
    format!(
        "root=/dev/vda rootfstype=ext4 rw console=ttyS2 panic=-1 hostname=guest lsm=yama,apparmor \
         berth.share=9p init={first}{argument}"
    )
}
