//! Containers under shims of others, which tell the agent nothing themselves: that one has ended is learnt from containerd.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::{
    event::Event,
    id::{ContainerId, SandboxId},
    observation::{ObservedTask, SandboxReport},
};
use containerd_client::services::v1::{GetContainerRequest, GetRequest};
use tokio::sync::mpsc;

use super::{CallError, Containerd, shims::observed_process};
use crate::{causes::with_causes, clock};

/// Containers that are not followed by way of their shim, with their sandboxes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct GroupedTasks(Arc<Mutex<BTreeMap<ContainerId, SandboxId>>>);

impl GroupedTasks {
    /// Adds a container.
    pub fn add(&self, id: &ContainerId, sandbox: &SandboxId) {
        self.table().insert(id.clone(), sandbox.clone());
    }

    /// Forgets a container that is being removed.
    pub fn forget(&self, id: &ContainerId) {
        self.table().remove(id);
    }

    /// The sandboxes of these.
    pub(super) fn sandboxes(&self) -> Vec<SandboxId> {
        self.table().values().cloned().collect()
    }

    /// Reports each container that has ended.
    pub(super) async fn look_at_all(&self, containerd: &Containerd, events: &mpsc::Sender<Event>) {
        let ids: Vec<ContainerId> = self.table().keys().cloned().collect();
        for id in ids {
            self.look_at(id.as_str(), containerd, events).await;
        }
    }

    /// Reports a container if it has ended and is one of these.
    pub(super) async fn look_at(&self, id: &str, containerd: &Containerd, events: &mpsc::Sender<Event>) {
        let id = ContainerId::from_known(id);
        let Some(sandbox) = self.table().get(&id).cloned() else { return };
        match self.task(containerd, &id).await {
            Ok(ObservedTask::Exited(exit)) => {
                let report = SandboxReport::Exited { id, exit };
                // Fails only when the loop has ended.
                drop(events.send(Event::Sandbox { id: sandbox, report }).await);
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(error = with_causes(&error), "an ended container could not be looked at");
            }
        }
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

    fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, SandboxId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
