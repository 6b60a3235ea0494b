//! Children: runtime calls and the processes of containers, reaped in one place.

use std::fs;
use std::path::PathBuf;

use berth_shim_core::{Code, Event, Failure, Id, OpId, Process};

use super::Shim;
use super::checkpoints::{CriuFiles, Dumping};
use super::jobs::Job;
use crate::criu::Word;
use crate::io::{Console, Prepared};
use crate::runtime::Delete;
use crate::{bundle, runtime, sys};

/// One call of the OCI runtime that is under way.
pub(super) struct RuntimeCall {
    pub(super) op: OpId,
    /// The runtime's word for it.
    pub(super) verb: &'static str,
    pub(super) process: Process,
    /// Where the runtime writes its errors.
    pub(super) log: PathBuf,
    pub(super) deadline_ms: u64,
    pub(super) then: Then,
}

/// What its end leads to.
pub(super) enum Then {
    /// Nothing else.
    Finish,
    /// A file is removed.
    FinishAndRemove(PathBuf),
    /// A container or exec runs.
    Spawned(Box<Spawning>),
    /// The root file system is unmounted; a runtime that did not take the container for a dead one is asked again.
    Deleted(Delete),
    /// A checkpoint was written.
    Dumped(Dumping),
    /// A restore has failed; what the runtime may have left is gone now.
    NotRestored(Failure),
    /// A creation has failed; what the runtime may have left is gone now.
    Undone(Failure),
    /// It was no call of the runtime but a copy of the shim.
    Job(Job),
}

impl Then {
    /// The runtime failed without a word.
    fn note_silence(&mut self) {
        let files = match self {
            Self::Dumped(dumping) => Some(&mut dumping.files),
            Self::Spawned(spawning) => spawning.restore.as_mut(),
            Self::Finish
            | Self::FinishAndRemove(_)
            | Self::Deleted(_)
            | Self::NotRestored(_)
            | Self::Undone(_)
            | Self::Job(_) => None,
        };
        if let Some(files) = files {
            files.word = Word::Nothing;
        }
    }
}

pub(super) struct Spawning {
    pub(super) pid_file: PathBuf,
    /// Another file to remove.
    pub(super) process_file: Option<PathBuf>,
    pub(super) console: Option<Console>,
    pub(super) kept: Prepared,
    /// The pid of the process's logging program.
    pub(super) logger: Option<u32>,
    /// Where criu works, when a checkpoint is restored.
    pub(super) restore: Option<CriuFiles>,
}

impl Shim {
    /// Reaps every child that has exited. One signal may stand for many.
    pub(super) fn reap(&mut self) {
        // Emptied before the children are looked at, so that none is missed.
        let _spurious = self.signals.read().is_err();
        loop {
            let Some((pid, code)) = sys::reap() else { return };
            match self.calls.ended(pid) {
                Some(call) => self.call_ended(call, code),
                None if self.compression_ended(pid) => {}
                None => {
                    self.calls.logger_reaped(pid);
                    self.observe_oom_of(pid);
                    self.happen(Event::ChildExited { pid, code });
                }
            }
        }
    }

    /// Kills the runtime call of an action that is no longer wanted.
    pub(super) fn cancel(&mut self, op: OpId) {
        self.cancel_parked(op);
        self.calls.kill(op);
    }

    fn call_ended(&mut self, mut call: RuntimeCall, code: u32) {
        call.then = match call.then {
            Then::Job(job) => {
                call.then = Then::Finish;
                return self.job_ended(call, job, code);
            }
            then => then,
        };
        let RuntimeCall { op, verb, process, log, mut then, .. } = call;
        let result = if code == 0 {
            Ok(())
        } else {
            let said = runtime::last_error(&log);
            if said.is_none() {
                then.note_silence();
            }
            Err(runtime::failure(verb, code, said.as_deref()))
        };
        remove(&log);
        match then {
            Then::Finish => self.happen(Event::Finished { op, result }),
            Then::FinishAndRemove(file) => {
                remove(&file);
                self.happen(Event::Finished { op, result });
            }
            Then::Spawned(spawning) => self.spawning_ended(op, &process, *spawning, result),
            Then::Deleted(Delete::Stopped) if result.is_err() => {
                if let Err(failure) = self.delete(op, &process.task, Delete::ByForce) {
                    self.happen(Event::Finished { op, result: Err(failure) });
                }
            }
            Then::Deleted(_) => {
                // What the runtime could not remove is found by `delete`; the mount would keep the snapshot busy.
                self.begin_unmount(op, &process.task, Job::Unmounted(result));
            }
            Then::Job(_) => {}
            Then::Dumped(dumping) => self.happen(Event::Finished { op, result: dumping.end(result) }),
            Then::NotRestored(failure) => {
                self.processes.remove_named_groups(&process.task);
                self.happen(Event::Spawned { op, result: Err(failure) });
            }
            Then::Undone(failure) => {
                if let Some(container) = self.processes.container(&process.task).filter(|_| result.is_ok()) {
                    bundle::remove_record(&container.bundle);
                }
                self.undone(op, &process.task, failure);
            }
        }
    }

    pub(super) fn spawning_ended(
        &mut self,
        op: OpId,
        process: &Process,
        spawning: Spawning,
        result: Result<(), Failure>,
    ) {
        let Spawning { pid_file, process_file, console, kept, logger, restore } = spawning;
        let is_restore = restore.is_some();
        let result = match restore {
            Some(files) => files.end(result),
            None => result,
        };
        let result = result.and_then(|()| {
            let pid = runtime::read_pid(&pid_file)
                .ok_or_else(|| Failure::new(Code::Internal, "the runtime reported no pid"))?;
            let master = console.as_ref().map(Console::take_master).transpose();
            let failed = |error: std::io::Error| {
                Failure::new(Code::Internal, format!("failed to connect the process's streams: {error}"))
            };
            let ends = (kept, master.map_err(failed)?);
            self.streams.install(process, ends, &mut self.watches, &mut self.clients).map_err(failed)?;
            Ok(pid)
        });
        // An init's stays, for `delete`.
        if process.exec.is_some() {
            remove(&pid_file);
        }
        if let Some(file) = process_file {
            remove(&file);
        }
        match (&result, logger) {
            (Ok(_), pid) => self.streams.set_logger(process, pid),
            (Err(_), Some(pid)) => self.calls.kill_logger(pid),
            (Err(_), None) => {}
        }
        match (&result, &process.exec) {
            (Ok(pid), None) => self.processes.began(&process.task, *pid, &mut self.watches),
            (Ok(pid), Some(_)) => self.processes.exec_began(process, *pid),
            (Err(failure), None) if is_restore => {
                self.undo_restore(op, process, failure.clone());
                return;
            }
            (Err(failure), None) => {
                self.undo_create(op, process, failure.clone());
                return;
            }
            (Err(_), Some(_)) => self.drop_io(process),
        }
        self.happen(Event::Spawned { op, result });
    }

    /// Undoes a creation of which the runtime knows nothing any more, or cannot be made to forget.
    pub(super) fn undone(&mut self, op: OpId, task: &Id, failure: Failure) {
        self.begin_unmount(op, task, Job::Unmade(failure));
    }
}

fn remove(path: &PathBuf) {
    let _absent = fs::remove_file(path).is_err();
}
