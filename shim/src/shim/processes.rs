//! Processes: containers and execs, with their control groups.

mod figures;
mod leftovers;
mod memory;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use berth_shim_core::{Failure, Id, Kills, OpId, Process, Scope};

use super::actions::gone;
use super::watches::Watches;
use crate::cgroup::{self, Cgroup};
use crate::container::{Container, ExecPlan};
use crate::runtime::Runtime;
use crate::{answer, bundle};
use leftovers::Leftover;

#[derive(Default)]
pub(super) struct Processes {
    containers: BTreeMap<Id, Container>,
    /// Kills for memory that groups have counted which are above those of containers.
    kills_above: BTreeMap<PathBuf, Kills>,
    /// Execs that are to be started, and those that were.
    execs: BTreeMap<Process, ExecPlan>,
    /// Execs that run, by name.
    exec_pids: BTreeMap<Process, u32>,
    /// Groups of execs that end with everything they started.
    exec_groups: BTreeMap<Process, PathBuf>,
    /// Groups of containers that are deleted.
    leftovers: Vec<Leftover>,
}

impl Processes {
    pub(super) fn add(&mut self, task: &Id, container: Container) {
        self.containers.insert(task.clone(), container);
    }

    pub(super) fn remove(&mut self, task: &Id) {
        self.containers.remove(task);
    }

    pub(super) fn container(&self, task: &Id) -> Option<&Container> {
        self.containers.get(task)
    }

    pub(super) fn container_mut(&mut self, task: &Id) -> Option<&mut Container> {
        self.containers.get_mut(task)
    }

    fn cgroup(&self, task: &Id) -> Option<&Cgroup> {
        self.containers.get(task)?.cgroup.as_ref()
    }

    /// Removes groups within a container's that nothing is in.
    pub(super) fn prune_groups(&self, task: &Id) {
        if let Some(cgroup) = self.cgroup(task) {
            cgroup.prune();
        }
    }

    /// A call of a container's runtime, and where that writes its errors.
    pub(super) fn command(&self, op: OpId, task: &Id) -> Result<(Command, PathBuf), Failure> {
        let container = self.containers.get(task).ok_or_else(gone)?;
        let log = container.bundle.join(format!("runtime-{}.log", op.0));
        Ok((Runtime::call(&container.runtime, &log), log))
    }

    /// Finds the container's cgroup while its init waits to be started, and watches its memory from then on.
    pub(super) fn began(&mut self, task: &Id, pid: u32, watches: &mut Watches) {
        let Some(container) = self.containers.get_mut(task) else { return };
        container.pid = pid;
        container.cgroup = Cgroup::of(pid);
        let Some(cgroup) = &container.cgroup else { return };
        // For `delete`, should the runtime be no help then.
        if let Err(error) = bundle::write_record(&container.bundle, task, &container.runtime, Some(cgroup)) {
            crate::log::warning!(
                "failed to note the control groups of {task}: {}",
                crate::with_causes(&error)
            );
        }
        self.watch_memory(task, watches);
    }

    /// Notes an exec that is to be started.
    pub(super) fn add_exec(&mut self, process: Process, plan: ExecPlan) {
        self.execs.insert(process, plan);
    }

    pub(super) fn exec(&self, process: &Process) -> Option<&ExecPlan> {
        self.execs.get(process)
    }

    /// Where the streams of a container or exec lead.
    pub(super) fn streams(&self, process: &Process) -> Option<&answer::Streams> {
        let exec = self.execs.get(process).map(|plan| &plan.streams);
        let init = self.containers.get(&process.task).map(|container| &container.streams);
        if process.exec.is_some() { exec } else { init }
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

    /// An exec runs.
    pub(super) fn exec_began(&mut self, process: &Process, pid: u32) {
        self.exec_pids.insert(process.clone(), pid);
        if self.exec_groups.contains_key(process) {
            return;
        }
        if let Some(name) = own_group(process) {
            self.move_exec(process, pid, &name);
        }
    }

    /// Moves an exec that the runtime could not begin in a group of its own into one, with what it has started by now. It is below
    /// the container's, which is known since its init was created: the runtime has begun the exec there.
    fn move_exec(&mut self, process: &Process, pid: u32, name: &str) {
        let known = self.cgroup(&process.task);
        if let Some(group) = known.and_then(|cgroup| cgroup.make_child(name)) {
            cgroup::move_tree(pid, &group);
            self.exec_groups.insert(process.clone(), group);
        }
    }

    pub(super) fn signal(&self, process: &Process, pid: u32, signal: i32, scope: Scope) {
        match scope {
            Scope::Process => {
                cgroup::signal_process(pid, signal);
            }
            Scope::Container => {
                let cgroup =
                    self.containers.get(&process.task).and_then(|container| container.cgroup.as_ref());
                match cgroup {
                    Some(cgroup) => cgroup.signal_all(signal),
                    // Without a cgroup of its own the container is its init, whose pid namespace goes with it.
                    None if self.is_living(&process.task, pid) => {
                        cgroup::signal_process(pid, signal);
                    }
                    None => {}
                }
            }
            Scope::Tree => {
                if let Some(group) = self.exec_groups.get(process) {
                    cgroup::kill_group(group);
                }
                cgroup::signal_process(pid, signal);
            }
        }
    }

    /// Whether the pid is still that of the container's init, which was not reaped.
    fn is_living(&self, task: &Id, pid: u32) -> bool {
        self.containers.get(task).is_some_and(|container| container.pid == pid)
    }

    /// Drops everything that is held for a process, and returns the container if it was its init.
    pub(super) fn let_go(&mut self, process: &Process, watches: &mut Watches) -> Option<Container> {
        self.execs.remove(process);
        self.exec_pids.remove(process);
        if let Some(group) = self.exec_groups.remove(process) {
            cgroup::dissolve(&group);
        }
        if process.exec.is_some() {
            return None;
        }
        let mut container = self.containers.remove(&process.task)?;
        if let Some((token, watch)) = container.oom.take() {
            watches.end(&watch, token);
        }
        Some(container)
    }
}

/// The name of the group of an exec of the shim's own service.
fn own_group(process: &Process) -> Option<String> {
    let number = process.exec.as_ref()?.as_str().strip_prefix('~')?;
    Some(format!("berth-exec-{number}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use berth_proto::task::CreateTaskRequest;

    use super::*;
    use crate::container;
    use crate::runtime::Client;

    fn with_groups(cgroup: Option<Cgroup>) -> Container {
        let request = CreateTaskRequest { bundle: "/b/c1".to_owned(), ..CreateTaskRequest::default() };
        let planned = container::plan(&request, None, Client { address: "", namespace: "" }).unwrap();
        Container { cgroup, ..planned }
    }

    /// Its process tells of none: nothing is searched for among the mounts of the node, which a probe would do again and again.
    #[test]
    fn an_exec_is_moved_below_the_groups_that_its_container_is_known_to_have() {
        let (top, pid) = (tempfile::tempdir().unwrap(), u32::MAX);
        let (pids, memory) = (top.path().join("pids/c1"), top.path().join("memory/c1"));
        fs::create_dir_all(&pids).unwrap();
        fs::create_dir_all(&memory).unwrap();
        let split = [("pids".to_owned(), pids.clone()), ("memory".to_owned(), memory.clone())].into();
        let [known, unknown, exec] = ["c1", "c2", "e1"].map(|id| Id::parse(id).unwrap());
        let mut processes = Processes::default();
        processes.add(&known, with_groups(Some(Cgroup::Split(split))));
        processes.add(&unknown, with_groups(None));
        for task in [&known, &unknown] {
            processes.move_exec(&Process::exec(task, &exec), pid, "berth-exec-1");
        }
        let group = pids.join("berth-exec-1");
        assert_eq!(processes.exec_groups, [(Process::exec(&known, &exec), group.clone())].into());
        assert_eq!(fs::read_to_string(group.join("cgroup.procs")).unwrap(), pid.to_string());
        assert_eq!(fs::read_dir(memory).unwrap().count(), 0, "not where processes are not listed");
    }
}
