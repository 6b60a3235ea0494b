//! Logging programs: containerd's `binary://` and `binary-v2://` protocol.
//!
//! A program gets standard output and error of a process as descriptors 3 and 4, and says on descriptor 5 that it is
//! ready, before which the process is not started (`NewBinaryIO` in `cmd/containerd-shim-runc-v2/process/io.go`). Its
//! environment is the process's name and containerd's namespace, nothing else. What it does with what it reads is its
//! own affair, as with the runc shim: a process whose logging program does not read waits once its pipe is full, and
//! one whose logging program has gone is told by SIGPIPE.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use super::open::{OpenError, nonblocking, pipe};
use super::uri::{Program, Readiness};
use crate::pod::Pod;
use crate::{oom_score, sys};

/// Time that a program may take to say that it is ready, milliseconds. The runc shim waits for ever.
pub(crate) const READY_MS_MAX: u64 = 30_000;

/// The container whose streams they are, as logging programs are told.
#[derive(Debug)]
pub(crate) struct Owner<'a> {
    /// The container's name, or the exec's.
    pub(crate) name: &'a str,
    pub(crate) namespace: &'a str,
    /// The pod that it is a member of.
    pub(crate) pod: Option<&'a Pod>,
}

/// A program that was started.
#[derive(Debug)]
pub(crate) struct Logger {
    pub(crate) pid: u32,
    /// What it says, watched until it has.
    pub(crate) ready: File,
    readiness: Readiness,
}

/// What a program has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    Ready,
    /// It closed the descriptor without the byte that it should have written.
    NotReady,
}

impl Logger {
    /// Starts a program, on the node's network and not on the pod's; returns the ends of its streams that a process writes to.
    pub(super) fn start(owner: &Owner<'_>, program: &Program) -> Result<(OwnedFd, OwnedFd, Self), OpenError> {
        let (stdout, out) = pipe()?;
        let (stderr, err) = pipe()?;
        let (ready, told) = pipe()?;
        nonblocking(&ready).map_err(OpenError::Pipe)?;
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).env_clear();
        command.env("CONTAINER_ID", owner.name).env("CONTAINER_NAMESPACE", owner.namespace);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        oom_score::give(&mut command, oom_score::OF_NODE);
        if let Some(pod) = owner.pod {
            pod.on_node(&mut command);
        }
        let pid = sys::spawn_with(&mut command, [stdout, stderr, told])
            .map_err(|source| OpenError::Binary { program: program.path.clone(), source })?;
        Ok((out, err, Self { pid, ready: File::from(ready), readiness: program.readiness }))
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let waits =
            |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        match (self.ready.read(&mut [0]), self.readiness) {
            (Err(error), _) if waits(&error) => Answer::Nothing,
            (Ok(0) | Err(_), Readiness::ByWriting) => Answer::NotReady,
            (Ok(_) | Err(_), _) => Answer::Ready,
        }
    }
}
