//! Work that may have to wait for a disk: mounting and unmounting, and finding files. Copies of the shim do it, so that the loop goes on; each
//! of them is a call, reaped as those of the runtime are.
//!
//! A copy that the kernel keeps waiting cannot even be killed. Nothing else of the pod waits for it, and it keeps nothing
//! open; a deletion waits for its unmounting however long that takes, since a second try would wait as well.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use berth_shim_core::{Code, Event, Failure, Id, OpId, Process};

use super::Shim;
use super::children::{RuntimeCall, Then};
use crate::io::check_file;
use crate::pod::{Node, Pod};
use crate::{bundle, container, mount, sys};

/// What the end of a job leads to.
pub(super) enum Job {
    /// The root file system is there: the container is created, or is prepared for a restore.
    Mounted(Making),
    /// The files can be opened that an exec's output goes to.
    Checked(Process),
    /// A deletion is complete, as the runtime has ended its part.
    Unmounted(Result<(), Failure>),
    /// A container could not be made, and nothing is left of it.
    Unmade(Failure),
}

/// What a root file system is mounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Making {
    Create,
    Prepare,
}

impl Shim {
    /// Mounts the root file system of a container, and goes on with it.
    pub(super) fn begin_mount(&mut self, op: OpId, task: &Id, making: Making) -> Result<(), Failure> {
        let Some(container) = self.processes.container(task) else { return Err(super::actions::gone()) };
        let (rootfs, bundle) = (container.rootfs.clone(), container.bundle.clone());
        let files = container::files(&container.streams);
        let work = || {
            check(&files)?;
            Ok(mount::mount_all(&rootfs, &bundle)?)
        };
        self.begin_job(op, "mount", task, Job::Mounted(making), work)
    }

    /// Looks whether files can be opened, and goes on with an exec.
    pub(super) fn begin_check(
        &mut self,
        op: OpId,
        process: &Process,
        files: Vec<PathBuf>,
    ) -> Result<(), Failure> {
        let then = Job::Checked(process.clone());
        self.begin_job(op, "open", &process.task, then, || check(&files))
    }

    /// Unmounts what a container had, and goes on.
    pub(super) fn begin_unmount(&mut self, op: OpId, task: &Id, then: Job) {
        let Some(bundle) = self.processes.container(task).map(|container| container.bundle.clone()) else {
            self.job_done(op, task, then, Ok(()));
            return;
        };
        let work = || {
            mount::unmount_bundle(&bundle);
            Ok(())
        };
        // Without a copy, what is mounted is left to `delete`.
        if let Err((failure, then)) = self.try_job(op, "unmount", task, then, work) {
            crate::log::warning!("failed to unmount {}: {failure}", bundle.display());
            self.job_done(op, task, then, Ok(()));
        }
    }

    fn begin_job(
        &mut self,
        op: OpId,
        verb: &'static str,
        task: &Id,
        then: Job,
        work: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.try_job(op, verb, task, then, work).map_err(|(failure, _)| failure)
    }

    fn try_job(
        &mut self,
        op: OpId,
        verb: &'static str,
        task: &Id,
        then: Job,
        work: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), (Failure, Job)> {
        let Some(container) = self.processes.container(task) else {
            return Err((super::actions::gone(), then));
        };
        let note = container.bundle.join(format!("{verb}-{}.failure", op.0));
        let copy = self.copy(|entered| {
            let done = entered.map_err(not_begun).and_then(|()| work());
            done.map_or_else(|failure| tell(&failure, &note), |()| 0)
        });
        match copy {
            Ok(copy) => {
                let call = self.runtime_call(op, verb, Process::init(task), note, Then::Job(then));
                self.calls.began(copy.into_id(), call);
                Ok(())
            }
            Err(error) => Err((not_begun(error), then)),
        }
    }

    /// Does something in a copy of the shim that is on the node, if it could go there, and has no descriptors.
    pub(super) fn copy(&self, work: impl FnOnce(io::Result<()>) -> i32) -> io::Result<sys::Child> {
        let node = self.pod.as_ref().and_then(Pod::node);
        sys::fork(|| {
            sys::keep_children_to_oneself();
            let entered = node.map_or(Ok(()), Node::enter);
            sys::close_all();
            work(entered)
        })
    }

    /// A copy has ended.
    pub(super) fn job_ended(&mut self, call: RuntimeCall, then: Job, code: u32) {
        let RuntimeCall { op, verb, process, log, .. } = call;
        let result = if code == 0 { Ok(()) } else { Err(told(verb, code, &log)) };
        let _absent = fs::remove_file(&log).is_err();
        self.job_done(op, &process.task, then, result);
    }

    fn job_done(&mut self, op: OpId, task: &Id, then: Job, result: Result<(), Failure>) {
        match (then, result) {
            (Job::Mounted(making), Ok(())) => {
                if let Err(failure) = self.go_on(op, task, making) {
                    self.unmake(op, task, failure);
                }
            }
            (Job::Mounted(_), Err(failure)) => self.unmake(op, task, failure),
            (Job::Checked(process), result) => {
                if let Err(failure) = result.and_then(|()| self.exec(op, &process, None)) {
                    self.happen(Event::Finished { op, result: Err(failure) });
                }
            }
            (Job::Unmounted(deleted), _) => {
                if deleted.is_ok() {
                    let now_ms = self.now().mono_ms;
                    self.processes.sweep(task, now_ms);
                }
                self.happen(Event::Finished { op, result: deleted });
            }
            (Job::Unmade(failure), _) => {
                self.processes.remove(task);
                bundle::remove_member(&self.home.bundle, task);
                self.drop_io(&Process::init(task));
                self.happen(Event::Finished { op, result: Err(failure) });
            }
        }
    }

    fn go_on(&mut self, op: OpId, task: &Id, making: Making) -> Result<(), Failure> {
        match making {
            Making::Create => self.call_create(op, task),
            Making::Prepare => {
                self.happen(Event::Finished { op, result: Ok(()) });
                Ok(())
            }
        }
    }

    /// Undoes what came before the runtime, which was not asked yet.
    fn unmake(&mut self, op: OpId, task: &Id, failure: Failure) {
        if let Some(container) = self.processes.container(task) {
            bundle::remove_record(&container.bundle);
        }
        self.begin_unmount(op, task, Job::Unmade(failure));
    }
}

fn check(files: &[PathBuf]) -> Result<(), Failure> {
    files
        .iter()
        .try_for_each(|file| check_file(file))
        .map_err(|error| Failure::new(Code::Internal, format!("failed to {}", crate::with_causes(&error))))
}

fn not_begun(error: io::Error) -> Failure {
    Failure::new(Code::Internal, format!("failed to make a copy of the shim that mounts: {error}"))
}

/// The codes by the numbers that copies exit with.
const CODES: [Code; 7] = [
    Code::Internal,
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::Unimplemented,
    Code::ResourceExhausted,
];

/// Leaves a failure for the shim to find; returns what to exit with.
fn tell(failure: &Failure, note: &Path) -> i32 {
    let _untold = fs::write(note, &failure.message).is_err();
    let at = CODES.iter().position(|code| *code == failure.code).unwrap_or(0);
    i32::try_from(at + 1).unwrap_or(1)
}

/// The failure that a copy has left. One that was killed has left none.
fn told(verb: &str, code: u32, note: &Path) -> Failure {
    let at = usize::try_from(code).ok().and_then(|number| number.checked_sub(1));
    match (at.and_then(|at| CODES.get(at)), fs::read_to_string(note)) {
        (Some(code), Ok(message)) => Failure::new(*code, message),
        _ => Failure::new(Code::Internal, format!("failed to {verb}: it was ended with {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_come_back_as_they_were() {
        let directory = tempfile::tempdir().unwrap();
        let note = directory.path().join("note");
        for code in CODES {
            let failure = Failure::new(code, "failed to mount\nx");
            let exit = u32::try_from(tell(&failure, &note)).unwrap();
            assert_eq!(told("mount", exit, &note), failure);
        }
        let killed = told("mount", 137, &note);
        assert_eq!((killed.code, killed.message.contains("137")), (Code::Internal, true));
    }
}
