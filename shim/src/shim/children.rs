//! Children: runtime calls and the processes of containers, reaped in one place.

use std::fs;
use std::path::PathBuf;

use berth_shim_core::{Code, Event, Failure, Id, OpId, Process};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Shim;
use crate::cgroup::{self, Cgroup, OomWatch};
use crate::container::{Container, OomLook};
use crate::io::{Console, Prepared};
use crate::poll::Interest;
use crate::runtime::Delete;
use crate::{bundle, mount, runtime};

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
    /// A creation has failed; what the runtime may have left is gone now.
    Undone(Failure),
}

pub(super) struct Spawning {
    pub(super) pid_file: PathBuf,
    /// Another file to remove.
    pub(super) process_file: Option<PathBuf>,
    pub(super) console: Option<Console>,
    pub(super) kept: Prepared,
}

impl Shim {
    /// Reaps every child that has exited. One signal may stand for many.
    pub(super) fn reap(&mut self) {
        // Emptied before the children are looked at, so that none is missed.
        let _spurious = self.signals.read().is_err();
        loop {
            let (pid, code) = match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return,
                // Killed by a real-time signal, which nix has no name for, after it was reaped.
                Err(nix::errno::Errno::EINVAL) | Ok(_) => continue,
                Err(_interrupted) => continue,
            };
            let (Ok(pid), Ok(code)) = (u32::try_from(pid.as_raw()), u32::try_from(code)) else { continue };
            match self.calls.remove(&pid) {
                Some(call) => self.call_ended(call, code),
                None => {
                    self.observe_oom_of(pid);
                    self.happen(Event::ChildExited { pid, code });
                }
            }
        }
    }

    /// Kills runtime calls that take too long; they end as failures.
    pub(super) fn kill_late_calls(&mut self, now_ms: u64) {
        for (pid, call) in self.calls.iter_mut().filter(|(_, call)| call.deadline_ms <= now_ms) {
            crate::log::warning!(
                "killing runtime {} of {}, which takes too long",
                call.verb,
                call.process.task
            );
            cgroup::signal_process(*pid, nix::libc::SIGKILL);
            call.deadline_ms = now_ms + runtime::CALL_MS_MAX;
        }
    }

    /// Kills the runtime call of an action that is no longer wanted.
    pub(super) fn cancel(&self, op: OpId) {
        for pid in self.calls.iter().filter(|(_, call)| call.op == op).map(|(pid, _)| *pid) {
            cgroup::signal_process(pid, nix::libc::SIGKILL);
        }
    }

    fn call_ended(&mut self, call: RuntimeCall, code: u32) {
        let RuntimeCall { op, verb, process, log, then, .. } = call;
        let result = if code == 0 { Ok(()) } else { Err(runtime::failure(verb, &process.task, code, &log)) };
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
                if let Some(container) = self.containers.get(&process.task) {
                    mount::unmount_all(&container.bundle.join("rootfs"));
                }
                self.happen(Event::Finished { op, result });
            }
            Then::Undone(failure) => {
                if let Some(container) = self.containers.get(&process.task).filter(|_| result.is_ok()) {
                    bundle::remove_record(&container.bundle);
                }
                self.undone(op, &process.task, failure);
            }
        }
    }

    fn spawning_ended(
        &mut self,
        op: OpId,
        process: &Process,
        spawning: Spawning,
        result: Result<(), Failure>,
    ) {
        let Spawning { pid_file, process_file, console, kept } = spawning;
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
        match (&result, &process.exec) {
            (Ok(pid), None) => self.watch_container(&process.task, *pid),
            (Ok(pid), Some(_)) => self.note_exec(process, *pid),
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
        match OomWatch::new(cgroup) {
            Ok(watch) => {
                if let Ok(token) = self.poll.add(&watch, Interest::Read) {
                    self.sources.insert(token, super::Source::Oom(task.clone()));
                    container.oom = Some((token, watch));
                }
            }
            // The counter is still read at the end.
            Err(error) => crate::log::warning!("failed to watch the memory of {task}: {error}"),
        }
    }

    fn note_exec(&mut self, process: &Process, pid: u32) {
        self.exec_pids.insert(process.clone(), pid);
        // Execs that the shim names itself may have to end with all they started.
        let Some(exec) = process.exec.as_ref().filter(|exec| exec.as_str().starts_with('~')) else { return };
        let name = format!("berth-exec-{}", exec.as_str().trim_start_matches('~'));
        if let Some(group) = Cgroup::of(pid).and_then(|cgroup| cgroup.make_child(&name)) {
            cgroup::move_tree(pid, &group);
            self.exec_groups.insert(process.clone(), group);
        }
    }

    pub(super) fn undone(&mut self, op: OpId, task: &Id, failure: Failure) {
        if let Some(container) = self.containers.remove(task) {
            mount::unmount_all(&container.bundle.join("rootfs"));
        }
        bundle::remove_member(&self.home.bundle, task);
        self.drop_io(&Process::init(task));
        self.happen(Event::Spawned { op, result: Err(failure) });
    }

    pub(super) fn oom_ready(&mut self, task: &Id) {
        let now_ms = self.now().mono_ms;
        let Some(container) = self.containers.get_mut(task) else { return };
        if let Some((_, watch)) = &container.oom {
            watch.clear();
        }
        container.oom_look = Some(OomLook::begin(now_ms));
        self.look_for_oom(task);
    }

    /// Looks again at the counters for which it is time.
    pub(super) fn look_again(&mut self, now_ms: u64) {
        let due = |container: &Container| container.oom_look.is_some_and(|look| look.at_ms <= now_ms);
        let tasks: Vec<Id> = self
            .containers
            .iter()
            .filter(|(_, container)| due(container))
            .map(|(id, _)| id.clone())
            .collect();
        for task in tasks {
            if let Some(container) = self.containers.get_mut(&task) {
                container.oom_look = container.oom_look.and_then(|look| look.next(now_ms));
            }
            self.look_for_oom(&task);
        }
    }

    fn look_for_oom(&mut self, task: &Id) {
        let Some(container) = self.containers.get_mut(task) else { return };
        match container.cgroup.as_ref().and_then(Cgroup::oom_kills) {
            Some(kills) => self.happen(Event::OomObserved { task: task.clone(), kills }),
            // The group is gone, which wakes the watch for ever.
            None => {
                container.oom_look = None;
                if let Some((token, watch)) = container.oom.take() {
                    self.poll.remove(&watch);
                    self.sources.remove(&token);
                }
            }
        }
    }

    /// Reads the counter before the exit of a container's init is told, so that reason and code arrive together.
    fn observe_oom_of(&mut self, pid: u32) {
        let of = |(task, container): (&Id, &Container)| {
            let kills = container.cgroup.as_ref().filter(|_| container.pid == pid)?.oom_kills()?;
            Some((task.clone(), kills))
        };
        if let Some((task, kills)) = self.containers.iter().find_map(of) {
            self.happen(Event::OomObserved { task, kills });
        }
    }
}

fn remove(path: &PathBuf) {
    let _absent = fs::remove_file(path).is_err();
}
