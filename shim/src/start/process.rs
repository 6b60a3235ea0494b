//! The serving process, and its word that it is up.
//!
//! Its standard output is a pipe to `start` until then: it says [`READY`] and closes it, or says why it cannot serve. A
//! process that dies closes it too, so `start` waits for one thing only.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use thiserror::Error;

use crate::args::Args;

/// What a shim that serves has said.
const READY: &str = "ready";
/// Time that it may take until then; it needs a millisecond, but a machine may be busy.
const READY_TIME_MAX: Duration = Duration::from_secs(10);
/// Most bytes of a reason.
const REASON_BYTES_MAX: u64 = 4096;

/// Why no process serves.
#[derive(Debug, Error)]
pub(crate) enum ProcessError {
    #[error("start the shim process")]
    Spawn(#[source] io::Error),
    #[error("hear from the shim process")]
    Hear(#[source] io::Error),
    #[error("start the shim process: it {how}{reason}", how = how(*status))]
    Died { status: ExitStatus, reason: String },
}

/// A process that serves, or is about to.
#[derive(Debug)]
pub(super) struct Serving {
    child: Child,
    said: ChildStdout,
}

impl Serving {
    /// Starts it: in the bundle, with the socket, and with the bundle's log for whatever it says. Without huge pages,
    /// which would cost each pod megabytes; the setting is inherited, so it is made here.
    pub(super) fn spawn(
        args: &Args,
        events_address: Option<&str>,
        listener: &UnixListener,
    ) -> Result<Self, ProcessError> {
        fcntl(listener, FcntlArg::F_SETFD(FdFlag::empty()))
            .map_err(|error| ProcessError::Spawn(error.into()))?;
        let _larger = prctl::set_thp_disable(true).is_err();
        let mut command = Command::new("/proc/self/exe");
        if let Ok(own) = std::env::current_exe() {
            command.arg0(own);
        }
        command.args(["-namespace", &args.namespace, "-id", &args.id, "-address", &args.address]);
        command.args(["-socket-fd", &listener.as_raw_fd().to_string()]);
        if args.debug {
            command.arg("-debug");
        }
        if let Some(address) = events_address {
            command.env("TTRPC_ADDRESS", address);
        }
        let log = open_log().map_or_else(Stdio::null, Stdio::from);
        command.arg("serve").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(ProcessError::Spawn)?;
        let said =
            child.stdout.take().ok_or_else(|| ProcessError::Spawn(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { child, said })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it serves.
    pub(super) fn ready(&mut self) -> Result<(), ProcessError> {
        let deadline = Instant::now() + READY_TIME_MAX;
        wait_readable(&self.said, deadline).map_err(ProcessError::Hear)?;
        let mut text = String::new();
        self.said.by_ref().take(REASON_BYTES_MAX).read_to_string(&mut text).map_err(ProcessError::Hear)?;
        if text == READY {
            return Ok(());
        }
        let status = self.child.wait().map_err(ProcessError::Hear)?;
        let reason = text.trim();
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        Err(ProcessError::Died { status, reason })
    }

    /// Ends it by force, whatever it is doing.
    pub(super) fn end(mut self) {
        let _dead = self.child.kill().is_err();
        let _reaped = self.child.wait().is_err();
    }
}

/// Tells `start` that this process serves. From here on nothing holds containerd's pipe or ours open.
pub(crate) fn tell_ready() -> io::Result<()> {
    tell(READY)?;
    // Standard output is the log now, as standard error is.
    nix::unistd::dup2_stdout(io::stderr().as_fd()).map_err(io::Error::from)
}

/// Tells `start` why this process does not serve.
pub(crate) fn tell(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn wait_readable(source: &impl AsFd, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(source.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The log FIFO for both directions and never to wait for (containerd issues #4509, #4546).
fn open_log() -> Option<OwnedFd> {
    let log: File =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("log").ok()?;
    Some(log.into())
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
