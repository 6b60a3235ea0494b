//! What was told about each task, and the order that it must be told in.

use std::collections::{BTreeMap, BTreeSet};

use berth_shim_core::{Id, Notice};

/// How long the exit of an init may wait for those of its execs, milliseconds.
const EXECS_WAIT_MS: u64 = 2_000;

/// What was told about one task since it was created.
#[derive(Debug, Default)]
struct Task {
    started: bool,
    frozen: bool,
    exit: Exit,
    added_execs: BTreeSet<Id>,
    living_execs: BTreeSet<Id>,
    deletion: Deletion,
    /// When the init was reaped.
    reaped_ms: Option<u64>,
    /// Has or had a process.
    pid: u32,
}

/// Whether a deletion was begun. When it fails, nobody may wait for it any more.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Deletion {
    #[default]
    Unasked,
    Begun,
}

/// How far the end of a task was told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Exit {
    #[default]
    Untold,
    Persisted,
    Published,
}

#[derive(Debug, Default)]
pub(crate) struct Told(BTreeMap<Id, Task>);

impl Told {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn knows(&self, task: &Id) -> bool {
        self.0.contains_key(task)
    }

    pub(crate) fn exit_is_published(&self, task: &Id) -> bool {
        self.0.get(task).is_some_and(|task| task.exit == Exit::Published)
    }

    /// Whether it has or had a process.
    pub(crate) fn has_process(&self, task: &Id) -> bool {
        self.0.get(task).is_some_and(|task| task.pid != 0)
    }

    /// Whether it was made and not started, and its init lives.
    pub(crate) fn is_fresh(&self, task: &Id) -> bool {
        self.lives(task)
            && self.0.get(task).is_some_and(|task| !task.started && task.deletion == Deletion::Unasked)
    }

    /// A deletion was begun.
    pub(crate) fn deleting(&mut self, task: &Id) {
        if let Some(task) = self.0.get_mut(task) {
            task.deletion = Deletion::Begun;
        }
    }

    /// Whether its init was started and lives, and is not frozen.
    pub(crate) fn runs(&self, task: &Id) -> bool {
        self.lives(task) && self.0.get(task).is_some_and(|task| task.started && !task.frozen)
    }

    /// Whether it has a process that was not reaped, or is to be restored.
    pub(crate) fn lives(&self, task: &Id) -> bool {
        self.0.get(task).is_some_and(|task| task.exit == Exit::Untold && task.reaped_ms.is_none())
    }

    pub(crate) fn persisted(&mut self, task: &Id) {
        let task = self.of(task);
        assert_eq!(task.exit, Exit::Untold, "recorded twice");
        task.exit = Exit::Persisted;
    }

    pub(crate) fn init_reaped(&mut self, task: &Id, now_ms: u64) {
        if let Some(task) = self.0.get_mut(task) {
            task.reaped_ms.get_or_insert(now_ms);
        }
    }

    pub(crate) fn of_known(&mut self, task: &Id) {
        self.of(task);
    }

    fn of(&mut self, task: &Id) -> &mut Task {
        self.0.get_mut(task).unwrap_or_else(|| panic!("{task} was not created, or is deleted"))
    }

    /// A task that has not exited, as far as was told.
    fn if_alive(&mut self, id: &Id) -> &mut Task {
        let task = self.of(id);
        assert_eq!(task.exit, Exit::Untold, "{id} has exited");
        task
    }

    pub(crate) fn published(&mut self, notice: Notice, now_ms: u64) {
        match notice {
            Notice::Created { task, pid } => {
                assert!(self.0.insert(task, Task { pid, ..Task::default() }).is_none(), "created twice");
            }
            Notice::Started { task, pid } => {
                let task = self.if_alive(&task);
                assert!(!std::mem::replace(&mut task.started, true), "started twice");
                assert!(task.pid == 0 || task.pid == pid, "started under another pid");
                task.pid = pid;
            }
            Notice::ExecAdded { task, exec } => {
                self.if_alive(&task).added_execs.insert(exec);
            }
            Notice::ExecStarted { task, exec, .. } => {
                let task = self.of(&task);
                assert!(task.added_execs.contains(&exec), "{exec} was not added");
                assert!(task.living_execs.insert(exec), "started twice");
            }
            Notice::Exited { process, pid, .. } => match process.exec {
                Some(exec) => {
                    assert!(self.of(&process.task).living_execs.remove(&exec), "exited without a start");
                }
                None => self.init_exited(&process.task, pid, now_ms),
            },
            Notice::Deleted { task: id, pid, .. } => {
                let task = self.of(&id);
                assert_eq!(task.pid, pid, "deleted under another pid");
                assert!(task.exit == Exit::Published || pid == 0, "deleted before its exit");
                assert!(task.living_execs.is_empty(), "exits that were never told: {:?}", task.living_execs);
                self.0.remove(&id);
            }
            Notice::Paused(task) => {
                assert!(!std::mem::replace(&mut self.if_alive(&task).frozen, true), "paused twice");
            }
            Notice::Resumed(task) => {
                assert!(std::mem::replace(&mut self.if_alive(&task).frozen, false), "resumed twice");
            }
            Notice::Checkpointed(task) => assert!(self.if_alive(&task).started, "saved before its start"),
            Notice::Oom(task) => {
                self.of(&task);
            }
        }
    }

    fn init_exited(&mut self, id: &Id, pid: u32, now_ms: u64) {
        let task = self.of(id);
        assert_eq!(task.exit, Exit::Persisted, "published twice or before it was recorded");
        assert_eq!(task.pid, pid, "exited under another pid");
        task.exit = Exit::Published;
        let given_up = task.reaped_ms.is_some_and(|at| now_ms >= at + EXECS_WAIT_MS);
        assert!(task.living_execs.is_empty() || given_up, "{id} exited before {:?}", task.living_execs);
    }
}
