//! Containers under shims of others, which tell the agent nothing themselves: that one has ended is learnt from containerd. When such a shim
//! dies, its tasks are gone without a trace but for an event: containerd kills what ran, and tells of its end once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::{
    event::Event,
    id::{ContainerId, SandboxId},
    observation::{Exit, ObservedTask, SandboxReport},
};
use containerd_client::services::v1::{GetContainerRequest, GetRequest};
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{CallError, Containerd, shims::observed_process};
use crate::{causes::with_causes, clock};

/// How a container ends whose shim has died, where nobody told: containerd kills what is left.
const KILLED: u32 = 137;

/// Containers that are not followed by way of their shim. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct GroupedTasks(Arc<Mutex<BTreeMap<ContainerId, Followed>>>);

#[derive(Debug)]
struct Followed {
    sandbox: SandboxId,
    /// Whether it was seen to run: then it has ended when there is none.
    has_run: bool,
    /// Whether there was none at the last look. Of a shim that has just died containerd ends what is left, and tells of that when it has.
    is_missed: bool,
}

impl Followed {
    fn of(sandbox: &SandboxId, has_run: bool) -> Self {
        Self { sandbox: sandbox.clone(), has_run, is_missed: false }
    }
}

impl GroupedTasks {
    /// Adds a container that an earlier agent made, and perhaps began.
    pub fn add(&self, id: &ContainerId, sandbox: &SandboxId) {
        self.table().insert(id.clone(), Followed::of(sandbox, false));
    }

    /// Adds a container that was begun.
    pub fn begun(&self, id: &ContainerId, sandbox: &SandboxId) {
        self.table().insert(id.clone(), Followed::of(sandbox, true));
    }

    /// Forgets a container that is being removed.
    pub fn forget(&self, id: &ContainerId) {
        self.table().remove(id);
    }

    /// Whether one of these was seen to run.
    #[cfg(test)]
    pub(crate) fn has_run(&self, id: &ContainerId) -> bool {
        self.table().get(id).is_some_and(|followed| followed.has_run)
    }

    /// The sandboxes of these.
    pub(super) fn sandboxes(&self) -> Vec<SandboxId> {
        self.table().values().map(|followed| followed.sandbox.clone()).collect()
    }

    /// Reports each container that has ended.
    pub(super) async fn look_at_all(&self, containerd: &Containerd, events: &mpsc::Sender<Event>) {
        let ids: Vec<ContainerId> = self.table().keys().cloned().collect();
        for id in ids {
            self.look_at(&id, None, containerd, events).await;
        }
    }

    /// Reports a container if it has ended and is one of these. `told` is its end by an event.
    pub(super) async fn look_at(
        &self,
        id: &ContainerId,
        told: Option<Exit>,
        containerd: &Containerd,
        events: &mpsc::Sender<Event>,
    ) {
        if !self.table().contains_key(id) {
            return;
        }
        let task = self.task(containerd, id).await.inspect_err(|error| {
            tracing::debug!(error = with_causes(error), "an ended container could not be looked at");
        });
        let Some((sandbox, exit)) = self.end_of(id, told, task.ok()) else { return };
        let report = SandboxReport::Exited { id: id.clone(), exit };
        // Fails only when the loop has ended.
        drop(events.send(Event::Sandbox { id: sandbox, report }).await);
    }

    /// The end of a container by what containerd has of it, if anything, and what was told.
    fn end_of(
        &self,
        id: &ContainerId,
        told: Option<Exit>,
        task: Option<ObservedTask>,
    ) -> Option<(SandboxId, Exit)> {
        let mut table = self.table();
        let followed = table.get_mut(id)?;
        let is_missed = matches!(task, Some(ObservedTask::Absent));
        let was_missed = std::mem::replace(&mut followed.is_missed, is_missed);
        let exit = match task {
            Some(ObservedTask::Exited(exit)) => Some(exit),
            Some(ObservedTask::Absent) if followed.has_run => told.or_else(|| was_missed.then(killed)),
            Some(ObservedTask::Running { .. }) => {
                followed.has_run = true;
                None
            }
            None if followed.has_run => told,
            _ => None,
        };
        Some((followed.sandbox.clone(), exit?))
    }

    /// What containerd says of a container's task.
    ///
    /// # Errors
    /// When containerd does not answer.
    pub async fn task(&self, containerd: &Containerd, id: &ContainerId) -> Result<ObservedTask, CallError> {
        let get = GetRequest { container_id: id.to_string(), exec_id: String::new() };
        let mut client = containerd.tasks();
        let process = match containerd.call("look at task", id.as_str(), client.get(get)).await {
            Ok(answer) => answer.process.unwrap_or_default(),
            Err(error) if error.is_not_found() => return Ok(ObservedTask::Absent),
            Err(error) => return Err(error),
        };
        let get = GetContainerRequest { id: id.to_string() };
        let mut client = containerd.containers();
        let record = containerd.call("read container", id.as_str(), client.get(get)).await?.container;
        let created_at = record.and_then(|record| clock::of_proto(&record.created_at?));
        Ok(observed_process(&process, created_at))
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Followed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn killed() -> Exit {
    Exit { code: KILLED, started_at: None, finished_at: Timestamp::now(), oom_killed: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_that_ran_and_is_not_there_has_ended() {
        let (id, sandbox) = (ContainerId::from_known("c"), SandboxId::from_known("s"));
        let exit =
            |code| Exit { code, started_at: None, finished_at: Timestamp::UNIX_EPOCH, oom_killed: false };
        let running = || ObservedTask::Running { pid: 7, started_at: Timestamp::UNIX_EPOCH };
        for (has_run, told, task, expected) in [
            (true, None, Some(running()), None),
            (true, Some(exit(3)), Some(running()), None),
            (true, Some(exit(3)), Some(ObservedTask::Exited(exit(4))), Some(4)),
            (false, None, Some(ObservedTask::Exited(exit(4))), Some(4)),
            (true, Some(exit(3)), Some(ObservedTask::Absent), Some(3)),
            (true, None, Some(ObservedTask::Absent), None),
            // It was made and not begun.
            (false, Some(exit(3)), Some(ObservedTask::Absent), None),
            (false, None, Some(ObservedTask::Absent), None),
            // Containerd does not answer.
            (true, Some(exit(3)), None, Some(3)),
            (true, None, None, None),
            (false, Some(exit(3)), None, None),
            (true, Some(exit(3)), Some(ObservedTask::Created), None),
            (true, None, Some(ObservedTask::Unknown), None),
        ] {
            let tasks = GroupedTasks::default();
            if has_run {
                tasks.begun(&id, &sandbox);
            } else {
                tasks.add(&id, &sandbox);
            }
            let end = tasks.end_of(&id, told, task.clone()).map(|(_, exit)| exit.code);
            assert_eq!(end, expected, "{has_run} {told:?} {task:?}");
        }
    }

    #[test]
    fn one_that_an_earlier_agent_began_is_followed_once_it_was_seen() {
        let (id, sandbox) = (ContainerId::from_known("c"), SandboxId::from_known("s"));
        let tasks = GroupedTasks::default();
        tasks.add(&id, &sandbox);
        let running = ObservedTask::Running { pid: 7, started_at: Timestamp::UNIX_EPOCH };
        assert_eq!(tasks.end_of(&id, None, Some(running)), None);
        let look = |task| tasks.end_of(&id, None, task).map(|(of, exit)| (of, exit.code));
        // Its shim may have died a moment ago, and containerd not have ended it yet.
        assert_eq!(look(Some(ObservedTask::Absent)), None);
        assert_eq!(look(None), None, "containerd did not answer");
        assert_eq!(look(Some(ObservedTask::Absent)), None);
        assert_eq!(look(Some(ObservedTask::Absent)), Some((sandbox, 137)));
        tasks.forget(&id);
        assert_eq!(tasks.end_of(&id, None, Some(ObservedTask::Absent)), None);
    }
}
