//! The writable layer of a container.

use std::sync::Arc;

use crate::{
    effect::Act,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, ContainerName},
    image::ImageInfo,
    oci::Accounts,
    pod::{
        actual::{Preparing, Run},
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        port::image::ImageUse,
        resource::{EndedEffect, Resource},
    },
    time::Now,
    users::HostIds,
};

/// A writable layer to prepare.
#[derive(Debug, Clone, PartialEq)]
pub struct RootfsRequest {
    /// Key of the snapshot.
    pub id: ContainerId,
    /// What it starts from.
    pub image: Arc<ImageInfo>,
    /// Ids of the pod, for which owners of its files are shifted.
    pub ids: Option<HostIds>,
}

impl PodMachine {
    /// Asks for the writable layer of a container that is being prepared.
    pub(in crate::pod) fn ensure_rootfs(&mut self, name: &ContainerName, shared: &mut Shared<'_>) {
        let id = self.life.container_id(name);
        let Run::Preparing(preparing) = self.life.run(name).clone() else { return };
        let ImageUse::Ready(image) = &preparing.image else { return };
        let act =
            Act::EnsureRootfs(RootfsRequest { id, image: Arc::clone(image), ids: self.life.record.ids });
        let op = self.ask(shared, Slot::Rootfs(name.clone()), preparing.rootfs.tries(), act);
        self.set_run(name, Run::Preparing(Preparing { rootfs: Resource::Ensuring(op), ..preparing }));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn rootfs_made(
        &mut self,
        name: &ContainerName,
        ended: EndedEffect,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        let Some(Run::Preparing(preparing)) = self.life.actual.containers.get_mut(name) else {
            return self.made_too_late(ended.op);
        };
        if preparing.rootfs.op() != Some(ended.op) {
            return self.made_too_late(ended.op);
        }
        if let Some(exit) = preparing.end {
            return self.ended_unanswered(name, exit, now);
        }
        let failed = result.as_ref().err().cloned();
        if failed.as_ref().is_some_and(|failure| failure.kind == FailureKind::LayersGone) {
            preparing.image = ImageUse::Wanted;
        }
        preparing.rootfs.settle(ended, accounts(result));
        if let Some(failure) = failed {
            self.complain_about(name, &failure);
        }
    }
}

fn accounts(result: Result<Outcome, Failure>) -> Result<Arc<Accounts>, Failure> {
    let outcome = result?;
    if let Outcome::Rootfs(accounts) = outcome { Ok(accounts) } else { Err(fit::unfitting(&outcome)) }
}
