//! What was told about each task, and the order that it must be told in.

use std::collections::BTreeMap;

use berth_shim_core::{Exit, Id, Notice, Process};

/// How long the exit of an init may wait for those of its execs, milliseconds.
const EXECS_WAIT_MS: u64 = 2_000;

/// What was told about one task since it was created.
#[derive(Debug, Default)]
pub(crate) struct Task {
    /// Of the init that it has or had; 0 before a checkpoint is restored.
    pub(crate) pid: u32,
    pub(crate) started: bool,
    pub(crate) frozen: bool,
    pub(crate) end: End,
    pub(crate) execs: BTreeMap<Id, Exec>,
    pub(crate) deletion: Deletion,
    /// When the init was reaped.
    reaped_ms: Option<u64>,
    /// Kills for memory that were seen.
    pub(crate) kills: u64,
}

/// Whether a deletion was begun, and nobody was told that it has failed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deletion {
    #[default]
    Unasked,
    Begun,
}

/// How far the end of a task was told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    #[default]
    Untold,
    /// On disk, for who comes when the shim is gone.
    Recorded(Exit),
    Published(Exit),
}

/// An exec that containerd has added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exec {
    Added,
    Started(u32),
    Exited,
}

#[derive(Debug, Default)]
pub(crate) struct Told(BTreeMap<Id, Task>);

impl Told {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = (&Id, &Task)> {
        self.0.iter()
    }

    pub(crate) fn task(&self, task: &Id) -> Option<&Task> {
        self.0.get(task)
    }

    pub(crate) fn knows(&self, task: &Id) -> bool {
        self.0.contains_key(task)
    }

    pub(crate) fn exec(&self, process: &Process) -> Option<Exec> {
        self.0.get(&process.task)?.execs.get(process.exec.as_ref()?).copied()
    }

    /// Whether something may be started in it: its init has not ended, as far as is known, and is not frozen.
    pub(crate) fn takes_processes(&self, task: &Id) -> bool {
        let takes = |task: &Task| {
            task.pid != 0 && !task.frozen && task.end == End::Untold && task.deletion == Deletion::Unasked
        };
        self.0.get(task).is_some_and(takes)
    }

    pub(crate) fn exit_is_published(&self, task: &Id) -> bool {
        self.0.get(task).is_some_and(|task| matches!(task.end, End::Published(_)))
    }

    /// A deletion was begun.
    pub(crate) fn deleting(&mut self, task: &Id) {
        if let Some(task) = self.0.get_mut(task) {
            task.deletion = Deletion::Begun;
        }
    }

    /// Who asked for a deletion was told that it has failed: the task goes on as it was.
    pub(crate) fn not_deleted(&mut self, task: &Id) {
        if let Some(task) = self.0.get_mut(task) {
            task.deletion = Deletion::Unasked;
        }
    }

    pub(crate) fn exec_deleted(&mut self, process: &Process) {
        if let (Some(task), Some(exec)) = (self.0.get_mut(&process.task), &process.exec) {
            task.execs.remove(exec);
        }
    }

    /// An exit was recorded, or recorded again since more of it is known.
    pub(crate) fn recorded(&mut self, id: &Id, exit: Exit) {
        let task = self.of(id);
        match task.end {
            End::Untold => {}
            End::Recorded(before) => {
                assert_eq!(Exit { oom_kills: before.oom_kills, ..exit }, before, "{id} has ended otherwise");
                assert!(exit.oom_kills > before.oom_kills, "{id} is recorded twice");
            }
            End::Published(_) => panic!("{id} is recorded after it was told"),
        }
        task.end = End::Recorded(exit);
    }

    /// Whoever finds the shim dead now finds the end of every init that was reaped, with all that was seen of it.
    pub(crate) fn check_recorded(&self, is_reaped: impl Fn(u32) -> bool) {
        for (id, task) in &self.0 {
            match task.end {
                End::Untold => assert!(task.pid == 0 || !is_reaped(task.pid), "{id} has ended unrecorded"),
                End::Recorded(exit) => assert_eq!(exit.oom_kills, task.kills, "kills in {id} are unrecorded"),
                End::Published(_) => {}
            }
        }
    }

    pub(crate) fn oom_seen(&mut self, task: &Id, kills: u64) {
        if let Some(task) = self.0.get_mut(task) {
            task.kills = task.kills.max(kills);
        }
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

    /// A task that has not exited, as far as was recorded.
    fn if_alive(&mut self, id: &Id) -> &mut Task {
        let task = self.of(id);
        assert_eq!(task.end, End::Untold, "{id} has exited");
        task
    }

    /// A task whose exit may be known and was not told.
    fn if_not_told(&mut self, id: &Id) -> &mut Task {
        let task = self.of(id);
        assert!(!matches!(task.end, End::Published(_)), "{id} was told to have exited");
        task
    }

    pub(crate) fn published(&mut self, notice: Notice, now_ms: u64) {
        match notice {
            Notice::Created { task, pid } => {
                assert!(self.0.insert(task, Task { pid, ..Task::default() }).is_none(), "created twice");
            }
            Notice::Started { task, pid } => {
                let task = self.if_not_told(&task);
                assert!(!std::mem::replace(&mut task.started, true), "started twice");
                assert!(task.pid == 0 || task.pid == pid, "started under another pid");
                task.pid = pid;
            }
            Notice::ExecAdded { task, exec } => {
                let before = self.if_alive(&task).execs.insert(exec, Exec::Added);
                assert_eq!(before, None, "added twice");
            }
            Notice::ExecStarted { task, exec, pid } => {
                let before = self.of(&task).execs.insert(exec, Exec::Started(pid));
                assert_eq!(before, Some(Exec::Added), "started twice or unadded");
            }
            Notice::Exited { process, pid, exit } => match process.exec {
                Some(exec) => {
                    let before = self.of(&process.task).execs.insert(exec, Exec::Exited);
                    assert_eq!(before, Some(Exec::Started(pid)), "exited without a start");
                }
                None => self.init_exited(&process.task, pid, exit, now_ms),
            },
            Notice::Deleted { task: id, pid, exit } => {
                let task = self.of(&id);
                assert_eq!(task.pid, pid, "deleted under another pid");
                assert!(task.end == End::Published(exit) || pid == 0, "deleted before its exit");
                let living: Vec<_> = task.execs.iter().filter(|(_, exec)| is_started(exec)).collect();
                assert!(living.is_empty(), "exits that were never told: {living:?}");
                self.0.remove(&id);
            }
            Notice::Paused(task) => {
                assert!(!std::mem::replace(&mut self.if_alive(&task).frozen, true), "paused twice");
            }
            Notice::Resumed(task) => {
                assert!(std::mem::replace(&mut self.if_alive(&task).frozen, false), "resumed twice");
            }
            Notice::Checkpointed(task) => {
                assert!(self.if_not_told(&task).started, "saved before its start");
            }
            Notice::Oom(task) => {
                self.of(&task);
            }
        }
    }

    fn init_exited(&mut self, id: &Id, pid: u32, exit: Exit, now_ms: u64) {
        let task = self.of(id);
        assert_eq!(task.end, End::Recorded(exit), "published twice, or not as it was recorded");
        assert_eq!(task.pid, pid, "exited under another pid");
        task.end = End::Published(exit);
        let given_up = task.reaped_ms.is_some_and(|at| now_ms >= at + EXECS_WAIT_MS);
        let living = task.execs.values().any(is_started);
        assert!(!living || given_up, "{id} exited before {:?}", task.execs);
    }
}

fn is_started(exec: &Exec) -> bool {
    matches!(exec, Exec::Started(_))
}
