//! What everybody sees of a pod.

use std::sync::Arc;

use crate::{
    effect::{Act, Effect},
    event::Outcome,
    failure::Failure,
    id::SandboxId,
    ops::Purpose,
    pod::{
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::{EndedEffect, Resource},
    },
    spec::{Pod, Source},
    status::PodStatus,
    time::Mono,
};

/// What is to be seen of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// What it is to be.
    pub pod: Arc<Pod>,
    /// What it is.
    pub status: Arc<PodStatus>,
    /// The sandbox it runs in, once there is one.
    pub sandbox: Option<SandboxId>,
    /// How much of it is left.
    pub remains: Remains,
}

/// How much of a pod is left on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remains {
    /// It runs, or is being taken down.
    Something,
    /// Its directories and logs at most: no container, volume, sandbox or cgroup. Source: `SyncTerminatedPod` of
    /// `pkg/kubelet/kubelet.go`.
    Directories,
    /// The same, and none of its containers was ever begun here since its source told that it had ended: its source knows how.
    NothingToTell,
    /// More than directories of a pod of which there is nothing to tell either, such as what a reboot left: it is being taken down.
    Leftovers,
}

impl Remains {
    /// Whether more than directories is left.
    #[must_use]
    pub fn is_more_than_directories(self) -> bool {
        match self {
            Self::Something | Self::Leftovers => true,
            Self::Directories | Self::NothingToTell => false,
        }
    }

    /// Whether the node knows how the pod is, whatever its source has of it.
    #[must_use]
    pub fn is_to_be_told(self) -> bool {
        match self {
            Self::Something | Self::Directories => true,
            Self::NothingToTell | Self::Leftovers => false,
        }
    }
}

/// How far publishing is.
#[derive(Debug)]
pub(in crate::pod) struct Publishing {
    /// What everybody sees, or will when that has worked.
    shown: Option<Published>,
    /// The last effect.
    last: Resource<()>,
}

impl Publishing {
    /// Nothing was published yet.
    pub(in crate::pod) fn nothing() -> Self {
        Self { shown: None, last: Resource::Absent }
    }

    /// The status that was published last.
    pub(in crate::pod) fn status(&self) -> Option<&Arc<PodStatus>> {
        self.shown.as_ref().map(|shown| &shown.status)
    }
}

impl PodMachine {
    /// Asks for the status to be published when it is not the one that everybody sees.
    pub(in crate::pod) fn publish(&mut self, status: PodStatus, shared: &mut Shared<'_>, now: Mono) {
        let sandbox = self.shown_sandbox();
        // Nobody but the API server waits for the end.
        let remains = match self.life.spec.source {
            Source::Api => self.life.remains(),
            Source::File | Source::Http => Remains::Something,
        };
        let is_shown = self.publishing.shown.as_ref().is_some_and(|shown| {
            *shown.status == status
                && shown.sandbox == sandbox
                && shown.remains == remains
                && Arc::ptr_eq(&shown.pod, &self.life.spec)
        });
        let tries = match &self.publishing.last {
            Resource::Failed(retry) if retry.at > now => {
                let at = retry.at;
                return self.wake(at);
            }
            Resource::Failed(retry) => retry.tries,
            _ if is_shown => return,
            Resource::Absent | Resource::Unknown | Resource::Ensuring(_) | Resource::Ready(()) => 0,
        };
        let published =
            Published { pod: Arc::clone(&self.life.spec), status: Arc::new(status), sandbox, remains };
        let uid = self.uid().clone();
        let op = shared.ops.open(Purpose::Pod { uid: uid.clone(), slot: Slot::Status, tries });
        shared.effects.push_back(Effect::Pod { op, pod: uid, act: Act::Publish(published.clone()) });
        self.publishing.shown = Some(published);
        self.publishing.last = Resource::Ensuring(op);
    }

    /// The sandbox, while it runs or may; one that is looked at again stays what it was.
    fn shown_sandbox(&self) -> Option<SandboxId> {
        match &self.life.actual.sandbox {
            Resource::Ready(_) | Resource::Unknown => Some(self.life.sandbox_id()),
            Resource::Ensuring(_) => self.publishing.shown.as_ref().and_then(|shown| shown.sandbox.clone()),
            Resource::Absent | Resource::Failed(_) => None,
        }
    }

    /// Takes the outcome.
    pub(in crate::pod) fn published(&mut self, ended: EndedEffect, result: Result<Outcome, Failure>) {
        self.publishing.last.settle(ended, fit::done(result));
    }
}
