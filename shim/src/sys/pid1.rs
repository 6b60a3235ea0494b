//! The process that is PID 1 of a pod with a shared pid namespace: it reaps, and dies with the shim.
//!
//! Members see it and, with `CAP_SYS_PTRACE`, may look into it, trace it and write its memory. So it has nothing of the
//! node: its program is executed anew, without the shim's memory, environment or descriptors, from a read-only mount
//! (CVE-2019-5736); its root is an empty file system that is all there is in its mount namespace; it has no capability.
#![expect(unsafe_code, reason = "clone with CLONE_PARENT, capset and sigwaitinfo have no safe form")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, chdir, pivot_root};

use super::fork::{fork, told};
use super::namespace::become_root;

/// The action of the program that is PID 1.
pub(crate) const POD_INIT: &str = "pod-init";
/// What members see of it.
const NAME: &str = "berth-pod";
/// A directory of every node, covered in the mount namespace of PID 1 alone.
const ROOT: &str = "/run";
const PROGRAM: &str = "/run/init";

/// Makes the pod's pid namespace, with a PID 1 that only reaps; returns its pid in the shim's own namespace.
///
/// `enter` brings the maker of the namespace into the user namespace that is to own it.
pub(crate) fn spawn_pid1(enter: impl FnOnce() -> io::Result<()>) -> io::Result<u32> {
    let (mut ready, ready_writer) = io::pipe()?;
    let (mut born, born_writer) = io::pipe()?;
    let maker = fork(|| {
        let made = enter().and_then(|()| clone_pid1(&ready_writer));
        let (code, pid) = made.map_or_else(|error| (errno(&error), 0), |pid| (0, pid));
        let told = tell(&born_writer, code).and_then(|()| tell(&born_writer, pid));
        i32::from(told.is_err())
    })?;
    drop((ready_writer, born_writer));
    told(&mut born)?;
    let mut pid = [0; size_of::<i32>()];
    io::Read::read_exact(&mut born, &mut pid)?;
    let pid = i32::from_ne_bytes(pid);
    maker.wait()?;
    if let Err(error) = told(&mut ready) {
        super::kill(pid, libc::SIGKILL);
        waitpid(Pid::from_raw(pid), None)?;
        return Err(error);
    }
    u32::try_from(pid).map_err(io::Error::other)
}

/// As the shim's own child, so that the shim reaps it and its death signal comes with the shim's end.
fn clone_pid1(ready: &impl AsFd) -> io::Result<i32> {
    let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_PARENT | libc::SIGCHLD;
    // SAFETY: without CLONE_VM and without a stack this is fork(2), from a copy of the shim, which has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(flags), 0, 0, 0, 0) };
    match pid {
        0 => {
            let error = become_pid1(ready).err().unwrap_or_else(|| io::ErrorKind::Other.into());
            let _told = tell(ready, errno(&error)).is_ok();
            // SAFETY: _exit runs nothing of this process's.
            unsafe { libc::_exit(1) }
        }
        pid => i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or_else(io::Error::last_os_error),
    }
}

/// Executes the shim's program from a mount that nobody can write to. Returns only what has failed.
fn become_pid1(ready: &impl AsFd) -> io::Result<()> {
    prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
    let program = program()?;
    become_root()?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    let options = Some("mode=755,size=4k,nr_inodes=4");
    mount(Some(NAME), ROOT, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, options)?;
    File::create(PROGRAM)?;
    let source = format!("/proc/self/fd/{}", program.as_raw_fd());
    mount(Some(source.as_str()), PROGRAM, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    read_only(PROGRAM)?;
    let stdout = ready.as_fd().try_clone_to_owned()?;
    Err(Command::new(PROGRAM).arg0(NAME).arg(POD_INIT).env_clear().stdout(stdout).exec())
}

/// The shim's program, or the one that has taken its place, as this mount namespace has it: what `/proc/self/exe` leads to
/// is of the shim's, and cannot be mounted here. Opened with the shim's rights, not with the pod's.
fn program() -> io::Result<File> {
    let path = fs::read_link("/proc/self/exe")?;
    let path = path.to_str().map_or(path.as_path(), |path| Path::new(path.trim_end_matches(" (deleted)")));
    fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)
}

/// A mount in a user namespace keeps the restrictions that it has.
fn read_only(path: &str) -> io::Result<()> {
    let has = statvfs(path)?.flags();
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    for (kept, flag) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        flags.set(flag, has.contains(kept));
    }
    Ok(mount(None::<&str>, path, None::<&str>, flags, None::<&str>)?)
}

/// Is PID 1: lets everything go, says so on standard output, and reaps until it dies.
pub(crate) fn pod_init() -> io::Result<()> {
    let stdout = io::stdout();
    let confined = confine();
    tell(&stdout, confined.as_ref().err().map_or(0, errno))?;
    confined?;
    // SAFETY: closes every descriptor of this process; none is used after this.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
    let children = SigSet::from(Signal::SIGCHLD);
    loop {
        while super::reap().is_some() {}
        // The signal is blocked, so that none is missed between the two calls.
        let _spurious = children.wait().is_err();
    }
}

fn confine() -> io::Result<()> {
    prctl::set_pdeathsig(Some(Signal::SIGKILL))?;
    prctl::set_name(c"berth-pod")?;
    chdir(ROOT)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")?;
    read_only("/")?;
    prctl::set_no_new_privs()?;
    drop_capabilities()?;
    prctl::set_dumpable(false)?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None)?;
    Ok(())
}

fn drop_capabilities() -> io::Result<()> {
    // `capset(2)`, version 3: a header of version and pid, and two times three sets.
    let header: [u32; 2] = [0x2008_0522, 0];
    let none = [0_u32; 6];
    // SAFETY: both arrays have the layout that the version says, and outlive the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn tell(to: &impl AsFd, number: i32) -> io::Result<()> {
    let mut file = File::from(to.as_fd().try_clone_to_owned()?);
    file.write_all(&number.to_ne_bytes())
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
