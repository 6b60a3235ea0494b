//! The program as a worker.

use std::{
    ffi::OsString,
    fs, io,
    os::{fd::AsFd, unix::net::UnixStream},
    path::PathBuf,
    process::ExitCode,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{frame, record::Record};

/// First argument of a worker.
pub(super) const ARGUMENT: &str = "file_worker";

/// What the kernel kills first is measured by this file (`proc(5)`).
const OWN_SCORE: &str = "/proc/self/oom_score_adj";

/// The score of any process. The agent's is for the agent alone: a worker that takes much memory is killed, and its work is
/// done again.
const SCORE: &str = "0";

/// How a worker was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where its record is to be, but for the process at the end of the name.
    record: PathBuf,
}

impl Options {
    /// The options, when the program was started as a worker.
    #[must_use]
    pub fn from_args(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let mut args = args.into_iter().skip(1);
        if args.next()? != ARGUMENT {
            return None;
        }
        Some(Self { record: args.next()?.into() })
    }
}

/// Performs what comes on descriptor 0 and answers there, until the agent has gone. Each piece is two messages: what it is,
/// for the record, and the work, which `perform` understands.
#[must_use]
pub fn serve(options: Options, perform: impl Fn(&[u8]) -> Vec<u8>) -> ExitCode {
    // One that is not allowed is no reason not to work.
    drop(fs::write(OWN_SCORE, SCORE));
    match answer_all(options, perform) {
        Ok(()) => ExitCode::SUCCESS,
        // The agent sees the end of the connection, and says what it means.
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer_all(options: Options, perform: impl Fn(&[u8]) -> Vec<u8>) -> io::Result<()> {
    let mut agent = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let content = io::stdout().as_fd().try_clone_to_owned()?;
    let record = Record::begin(&options.record, content)?;
    while let (Some(busy), Some(work)) = (frame::read(&mut agent)?, frame::read(&mut agent)?) {
        record.set(Some(&serde_json::from_slice(&busy)?))?;
        // The next agent may be there already, and may have asked another.
        if has_gone(&agent)? {
            return Ok(());
        }
        let answer = perform(&work);
        record.set(None)?;
        frame::write(&mut agent, &answer)?;
    }
    Ok(())
}

fn has_gone(agent: &UnixStream) -> io::Result<bool> {
    let mut polled = [PollFd::new(agent.as_fd(), PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO)?;
    Ok(polled[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP)))
}
