//! Children: runtime calls and the processes of containers, reaped in one place.

use std::fs;
use std::path::PathBuf;

use berth_shim_core::{Code, Event, Failure, Id, OpId, Process};

use super::Shim;
use super::checkpoints::{CriuFiles, Dumping};
use super::jobs::Job;
use crate::cgroup::{self, Cgroup};
use crate::criu::Word;
use crate::io::{Console, Prepared};
use crate::runtime::{Delete, Runtime};
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
            Err(runtime::failure(verb, &process.task, code, said.as_deref()))
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
                self.remove_named_groups(&process.task);
                self.happen(Event::Spawned { op, result: Err(failure) });
            }
            Then::Undone(failure) => {
                if let Some(container) = self.containers.get(&process.task).filter(|_| result.is_ok()) {
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
            self.install(process, kept, master.map_err(failed)?).map_err(failed)?;
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
            (Ok(_), pid) => self.ios.entry(process.clone()).or_default().logger = pid,
            (Err(_), Some(pid)) => self.calls.kill_logger(pid),
            (Err(_), None) => {}
        }
        match (&result, &process.exec) {
            (Ok(pid), None) => self.watch_container(&process.task, *pid),
            (Ok(pid), Some(_)) => self.note_exec(process, *pid),
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

    /// Finds the container's cgroup while its init waits to be started, and watches its memory from then on.
    fn watch_container(&mut self, task: &Id, pid: u32) {
        let Some(container) = self.containers.get_mut(task) else { return };
        container.pid = pid;
        container.cgroup = Cgroup::of(pid);
        let Some(cgroup) = &container.cgroup else { return };
        // For `delete`, should the runtime be no help then.
        if let Err(error) = bundle::write_record(&container.bundle, task, &container.runtime, Some(cgroup)) {
            crate::log::warning!("failed to note the control groups of {task}: {}", crate::chain(&error));
        }
        self.watch_memory(task);
    }

    /// Makes the group of an exec that the shim names itself, and may have to end with all it started; returns what
    /// tells the runtime of it.
    pub(super) fn group_exec(&mut self, process: &Process, runtime: &Runtime) -> Option<[String; 2]> {
        let name = own_group(process)?;
        let cgroup = self.containers.get(&process.task)?.cgroup.as_ref()?;
        let arguments = runtime.in_group(cgroup, &name)?;
        self.exec_groups.insert(process.clone(), cgroup.make_child(&name)?);
        Some(arguments)
    }

    fn note_exec(&mut self, process: &Process, pid: u32) {
        self.exec_pids.insert(process.clone(), pid);
        if self.exec_groups.contains_key(process) {
            return;
        }
        // The runtime cannot begin an exec in a group: what it has started by now is moved there.
        if let Some(name) = own_group(process)
            && let Some(group) = Cgroup::of(pid).and_then(|cgroup| cgroup.make_child(&name))
        {
            cgroup::move_tree(pid, &group);
            self.exec_groups.insert(process.clone(), group);
        }
    }

    /// Undoes a creation of which the runtime knows nothing any more, or cannot be made to forget.
    pub(super) fn undone(&mut self, op: OpId, task: &Id, failure: Failure) {
        self.begin_unmount(op, task, Job::Unmade(failure));
    }
}

/// The name of the group of an exec of the shim's own service.
fn own_group(process: &Process) -> Option<String> {
    let number = process.exec.as_ref()?.as_str().strip_prefix('~')?;
    Some(format!("berth-exec-{number}"))
}

fn remove(path: &PathBuf) {
    let _absent = fs::remove_file(path).is_err();
}
