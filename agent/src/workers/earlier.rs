//! Workers of earlier agents that still hang.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::{AsFd, OwnedFd};

use super::record::{Busy, WorkerState, Written, look, started};

/// How long those that are killed may take to end at the start of an agent, all together. What is left then hangs in the
/// kernel.
const END_WITHIN: Duration = Duration::from_millis(500);

/// One that hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Earlier {
    path: PathBuf,
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
    let killed: Vec<OwnedFd> = records(dir)?.iter().filter_map(|(_, written)| kill(written)).collect();
    let until = Instant::now() + END_WITHIN;
    for process in &killed {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], timeout)?;
    }
    let left = records(dir)?.into_iter();
    // One that is at nothing ends by itself.
    Ok(left
        .filter_map(|(path, written)| Some(Earlier { path, process: written.process, busy: written.busy? }))
        .collect())
}

/// The records of those that live.
fn records(dir: &Path) -> io::Result<Vec<(PathBuf, Written)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        match look(&path)? {
            WorkerState::Lives(Some(written)) => found.push((path, written)),
            // One without content has not begun anything, and begins nothing without its agent.
            WorkerState::Lives(None) | WorkerState::Ended => {}
        }
    }
    Ok(found)
}

/// The process is held before it is looked at, so that a successor with its number is never meant.
fn kill(written: &Written) -> Option<OwnedFd> {
    let process =
        pidfd_open(Pid::from_raw(i32::try_from(written.process).ok()?)?, PidfdFlags::empty()).ok()?;
    if started(written.process)? != written.started {
        return None;
    }
    pidfd_send_signal(&process, Signal::KILL).ok()?;
    Some(process)
}
