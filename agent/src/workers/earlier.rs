//! Workers of earlier agents that still hang.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::{AsFd, OwnedFd};

use super::record::{Busy, WorkerState, busy, look};

/// How long those that are killed may take to end at the start of an agent, all together. What is left then hangs in the
/// kernel.
pub(super) const END_WITHIN: Duration = Duration::from_millis(500);

/// One that hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Earlier {
    /// Its record.
    pub(super) path: PathBuf,
    /// The process.
    pub(super) process: u32,
    /// What it is at.
    pub(super) busy: Busy,
}

impl Earlier {
    /// Whether it still hangs. One whose record cannot be read is taken to.
    pub(super) fn hangs(&self) -> bool {
        !matches!(look(&self.path), Ok(WorkerState::Ended))
    }
}

/// Ends every worker that an earlier agent left, and tells which cannot be ended.
pub(super) fn end_all(dir: &Path) -> io::Result<Vec<Earlier>> {
    let mut killed = Vec::new();
    for (path, process) in living(dir)? {
        killed.extend(kill(&path, process));
    }
    let until = Instant::now() + END_WITHIN;
    for process in &killed {
        wait_for_end(process, until)?;
    }
    at_something(dir)
}

fn wait_for_end(process: &OwnedFd, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], timeout) {
            // A signal for the agent, such as one of the end of a child.
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Those that are at something. One that is not has not begun anything, and begins nothing without its agent.
pub(super) fn at_something(dir: &Path) -> io::Result<Vec<Earlier>> {
    let all = living(dir)?.into_iter();
    Ok(all.filter_map(|(path, process)| Some(Earlier { busy: busy(process)?, path, process })).collect())
}

/// The records of those that live, and their processes.
fn living(dir: &Path) -> io::Result<Vec<(PathBuf, u32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if let WorkerState::Lives(process) = look(&path)? {
            found.push((path, process));
        }
    }
    Ok(found)
}

/// The process is held before its lock is looked at, so that a successor with its number is never meant.
fn kill(path: &Path, process: u32) -> Option<OwnedFd> {
    let held = pidfd_open(Pid::from_raw(i32::try_from(process).ok()?)?, PidfdFlags::empty()).ok()?;
    if !matches!(look(path), Ok(WorkerState::Lives(_))) {
        return None;
    }
    pidfd_send_signal(&held, Signal::KILL).ok()?;
    Some(held)
}
