//! Copies of the shim that do one thing elsewhere and end.
#![expect(unsafe_code, reason = "fork has no safe form")]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork as nix_fork, getpid, getppid};

use super::descriptor::close_all;

/// What a child exits with that could not be prepared.
const UNPREPARED: i32 = 255;

/// A child, which is killed and reaped with this value.
#[derive(Debug)]
pub(crate) struct Child(Option<Pid>);

/// Runs something in a copy of the shim, which exits with the value, and dies if the shim does.
///
/// Nobody may look into the copy but who may look into everything: it has the shim's memory and files, and may be on its
/// way into a pod.
pub(crate) fn fork(run: impl FnOnce() -> i32) -> io::Result<Child> {
    let shim = getpid();
    // SAFETY: of the shim's threads but this one, each writes a file and holds no lock but its own, which nobody else
    // needs, and the allocator's, which fork(3) of the C library leaves open in the child: it may do whatever the shim may.
    match unsafe { nix_fork() }? {
        ForkResult::Parent { child } => Ok(Child(Some(child))),
        ForkResult::Child => {
            let prepared =
                prctl::set_dumpable(false).and_then(|()| prctl::set_pdeathsig(Some(Signal::SIGKILL)));
            let code = if prepared.is_ok() && getppid() == shim { run() } else { UNPREPARED };
            // SAFETY: _exit runs nothing of this process's.
            unsafe { libc::_exit(code) }
        }
    }
}

/// Has a copy of this process live on without it, and out of the sight of whoever reads what it prints. The copy must not
/// drop what it has of this process.
pub(crate) fn stand_alone() -> io::Result<()> {
    prctl::set_pdeathsig(None)?;
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    dup2_stderr(&nothing)?;
    // It is closed with all others.
    let _number = nothing.into_raw_fd();
    close_all();
    Ok(())
}

/// A child that has entered somewhere, and stays there for as long as this value lives.
pub(crate) fn stand_in(enter: impl FnOnce() -> nix::Result<()>) -> io::Result<Child> {
    let (mut reader, writer) = io::pipe()?;
    let child = fork(|| {
        let code = enter().err().map_or(0, |error| error as i32);
        // A shim that has died is told nothing, and takes this process along.
        let _told = (&writer).write_all(&code.to_ne_bytes()).is_ok();
        loop {
            nix::unistd::pause();
        }
    })?;
    drop(writer);
    told(&mut reader).map(|()| child)
}

/// Waits for an error number, or 0, from a child that has the other end.
pub(super) fn told(reader: &mut impl Read) -> io::Result<()> {
    let mut code = [0; size_of::<i32>()];
    reader.read_exact(&mut code)?;
    match i32::from_ne_bytes(code) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

impl Child {
    /// Leaves it to whoever reaps the shim's children; returns its pid.
    pub(crate) fn into_id(mut self) -> u32 {
        self.0.take().and_then(|pid| u32::try_from(pid.as_raw()).ok()).unwrap_or(0)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.and_then(|pid| u32::try_from(pid.as_raw()).ok()).unwrap_or(0)
    }

    /// Whether it has ended, however.
    pub(crate) fn has_ended(&mut self) -> bool {
        let Some(pid) = self.0 else { return true };
        let ended = !matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive));
        if ended {
            self.0 = None;
        }
        ended
    }

    /// Waits for the end and returns the exit code.
    pub(crate) fn wait(mut self) -> io::Result<i32> {
        let Some(pid) = self.0.take() else { return Ok(0) };
        match reap(pid)? {
            WaitStatus::Exited(_, code) => Ok(code),
            _ => Err(io::Error::other("the process that was to do it was killed")),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(pid) = self.0.take() {
            // It is not reaped, so the number is still its own.
            let _ended = kill(pid, Signal::SIGKILL).is_err();
            let _reaped = reap(pid).is_ok();
        }
    }
}

fn reap(pid: Pid) -> io::Result<WaitStatus> {
    loop {
        match waitpid(pid, None) {
            Err(nix::Error::EINTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Has a command do something in its own process before it becomes another program. Nothing that allocates or locks is
/// to be done there.
pub(crate) fn before_exec(
    command: &mut Command,
    act: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: as in `fork` above, the closure finds no lock held in the copy that it runs in.
    unsafe { command.pre_exec(act) };
}
