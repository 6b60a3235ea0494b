//! Checkpoints: containers written to a directory by criu, and brought back from one.

use std::fs;
use std::path::{Path, PathBuf};

use berth_shim_core::{Event, Failure, Id, OpId, Process, ReqId};

use super::Shim;
use super::actions::{Streams, gone};
use super::children::{Spawning, Then};
use super::clients::Pending;
use super::jobs::Making;
use crate::call::Call;
use crate::criu::{self, Dump, Word};
use crate::runtime::{self, Delete};
use crate::{bundle, container};

/// What is left to do when a checkpoint was written, or was not.
pub(super) struct Dumping {
    pub(super) files: CriuFiles,
    /// The checkpoint's directory, if there was none before.
    made: Option<PathBuf>,
}

/// Where criu works.
pub(super) struct CriuFiles {
    work: PathBuf,
    /// The shim's own work directory goes at the end.
    own: bool,
    log: &'static str,
    /// Where the log of a failure is kept for people, as the runc shim does.
    kept_log: PathBuf,
    pub(super) word: Word,
}

impl CriuFiles {
    fn new(bundle: &Path, op: OpId, asked: Option<&PathBuf>, log: &'static str) -> Self {
        let own = bundle.join(format!("criu-{}", op.0));
        let kept_log = bundle.join(format!("criu-{log}"));
        Self { work: asked.cloned().unwrap_or(own), own: asked.is_none(), log, kept_log, word: Word::Error }
    }

    /// Clears up, and says why criu has failed if it has.
    pub(super) fn end(self, result: Result<(), Failure>) -> Result<(), Failure> {
        let log = self.work.join(self.log);
        let result = result.map_err(|failure| {
            let _no_log = fs::copy(&log, &self.kept_log).is_err();
            criu::failure(failure, self.word, &log, runtime::find("criu").as_deref())
        });
        if self.own {
            let _absent = fs::remove_dir_all(&self.work).is_err();
        }
        result
    }
}

impl Dumping {
    pub(super) fn end(self, result: Result<(), Failure>) -> Result<(), Failure> {
        if let Some(image) = self.made.filter(|_| result.is_err()) {
            let _absent = fs::remove_dir_all(image).is_err();
        }
        self.files.end(result)
    }
}

impl Shim {
    pub(super) fn checkpoint(&mut self, op: OpId, task: &Id, from: ReqId) -> Result<(), Failure> {
        let Some(Pending { call: Call::Checkpoint(request), .. }) = self.clients.request(from) else {
            return Err(gone());
        };
        let dump = Dump::of(request)?;
        let container = self.processes.container(task).ok_or_else(gone)?;
        if !container.streams.terminal {
            criu::check_streams(&container::wiring(&container.streams)?)?;
        }
        let files = CriuFiles::new(&container.bundle, op, dump.work.as_ref(), "dump.log");
        let made = (!dump.image.exists()).then(|| dump.image.clone());
        let (mut command, log) = self.processes.command(op, task)?;
        dump.arguments(&mut command, &files.work);
        command.arg(task.as_str());
        let then = Then::Dumped(Dumping { files, made });
        let mut call = self.runtime_call(op, "checkpoint", Process::init(task), log, then);
        call.deadline_ms = self.now().mono_ms + criu::CALL_MS_MAX;
        self.spawn(&mut command, None, call)
    }

    /// Makes everything ready for a restore, which the start of the container is.
    pub(super) fn prepare(&mut self, op: OpId, task: &Id, from: ReqId) -> Result<(), Failure> {
        let container = self.plan(from)?;
        container::wiring(&container.streams)?;
        self.make(op, task, container, Making::Prepare)
    }

    pub(super) fn restore(&mut self, op: OpId, task: &Id) -> Result<(), Failure> {
        let container = self.processes.container(task).ok_or_else(gone)?;
        let restore = container.restore.clone().ok_or_else(gone)?;
        let (bundle, streams) = (container.bundle.clone(), container.streams.clone());
        let flags = container.flags.clone();
        let (mut command, log) = self.processes.command(op, task)?;
        let Streams { child, mut kept, console } =
            self.open_streams(op, task.as_str(), container::wiring(&streams)?, streams.terminal)?;
        let files = CriuFiles::new(&bundle, op, restore.work.as_ref(), "restore.log");
        let pid_file = bundle.join(bundle::INIT_PID);
        command.args(&flags.global);
        restore.arguments(&mut command, &files.work);
        command.args(&flags.restore).arg("--bundle").arg(&bundle).arg("--pid-file").arg(&pid_file);
        if let Some(console) = &console {
            command.arg("--console-socket").arg(console.path());
        }
        command.arg(task.as_str());
        let logger = kept.logger.take();
        let pid = logger.as_ref().map(|logger| logger.pid);
        let spawning =
            Spawning { pid_file, process_file: None, console, kept, logger: pid, restore: Some(files) };
        let then = Then::Spawned(Box::new(spawning));
        let mut call = self.runtime_call(op, "restore", Process::init(task), log, then);
        call.deadline_ms = self.now().mono_ms + criu::CALL_MS_MAX;
        self.spawn_logged(command, child, call, logger)
    }

    /// Removes what the runtime may have left of a container that it could not restore, then tells.
    pub(super) fn undo_restore(&mut self, op: OpId, process: &Process, failure: Failure) {
        self.drop_io(process);
        let spawned = self.processes.command(op, &process.task).and_then(|(mut command, log)| {
            Delete::ByForce.arguments(&mut command, &process.task);
            let then = Then::NotRestored(failure.clone());
            let call = self.runtime_call(op, "delete", process.clone(), log, then);
            self.spawn(&mut command, None, call)
        });
        if spawned.is_err() {
            self.happen(Event::Spawned { op, result: Err(failure) });
        }
    }
}
