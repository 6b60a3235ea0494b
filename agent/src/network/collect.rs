//! Collection: what an earlier life of this agent left is removed, and plugins are told what is valid where that is wanted.
//!
//! Leftovers are found once, when the agent starts, and only become fewer: while it runs, what is attached belongs to a pod,
//! whose record ends after its attachment does. Which ones they are, and when to try again, the core says
//! (`berth_core::derived::network::upkeep`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_cni::{Gc, plan};
use berth_core::{
    derived::network::upkeep::{self, Collected, Marked},
    id::SandboxId,
};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::{Network, NetworkError, PLUGINS_WITHIN, blocking, sandboxes};
use crate::causes::with_causes;

/// Sandboxes of an earlier life, each with a lock that is held while it is removed.
#[derive(Debug, Default)]
pub(super) struct Leftovers(Mutex<BTreeMap<SandboxId, Arc<AsyncMutex<()>>>>);

impl Leftovers {
    fn add(&self, sandboxes: BTreeSet<SandboxId>) {
        self.all().extend(sandboxes.into_iter().map(|sandbox| (sandbox, Arc::default())));
    }

    /// Takes one out, when nobody is removing it any more.
    pub(super) async fn claim(&self, sandbox: &SandboxId) {
        let lock = self.all().get(sandbox).cloned();
        if let Some(lock) = lock {
            let _removed = lock.lock().await;
            self.all().remove(sandbox);
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Arc<AsyncMutex<()>>>> {
        // The map is whole whenever the lock is free.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// Finds what an earlier life left. `recorded` are the sandboxes of pods' records, whose namespaces are ours whoever
    /// marked them; `known` are those and the runtime's. What cannot be read is told and left alone.
    pub async fn find_leftovers(&self, recorded: BTreeSet<SandboxId>, known: &BTreeSet<SandboxId>) {
        let attachments = match self.0.runtime.own().await {
            Ok(records) => sandboxes(records),
            Err(error) => {
                tracing::warn!(error = with_causes(&error), "attachments of an earlier agent are not seen");
                BTreeSet::new()
            }
        };
        self.0.orphans.find(attachments.clone()).await;
        let ours = self.0.namespaces.clone();
        let adopted = blocking(move || {
            for sandbox in &recorded {
                ours.adopt(sandbox)?;
            }
            Ok(ours.marked()?)
        });
        let namespaces = adopted.await.unwrap_or_else(|error| {
            tracing::warn!(
                error = with_causes(&error),
                "network namespaces of an earlier agent are not seen"
            );
            BTreeSet::new()
        });
        self.0.leftovers.add(upkeep::leftovers(&Marked { namespaces, attachments }, known));
    }

    /// Removes leftovers now and from time to time, and tells plugins. Runs until the agent stops.
    pub(super) async fn keep_collecting(&self) {
        loop {
            let collected = self.collect().await;
            tokio::time::sleep(upkeep::collect_after(collected, self.0.config.gc_period)).await;
        }
    }

    async fn collect(&self) -> Collected {
        let due: Vec<_> =
            self.0.leftovers.all().iter().map(|(id, lock)| (id.clone(), Arc::clone(lock))).collect();
        for (sandbox, lock) in due {
            let _removing = lock.lock().await;
            // A pod may have claimed it meanwhile.
            if !self.0.leftovers.all().contains_key(&sandbox) {
                continue;
            }
            match self.remove_leftover(&sandbox).await {
                Ok(()) => {
                    tracing::info!(%sandbox, "the network of a sandbox of no pod was removed");
                    self.0.leftovers.all().remove(&sandbox);
                }
                Err(error) => {
                    tracing::warn!(%sandbox, error = with_causes(&error), "the network of a sandbox of no pod is left");
                }
            }
        }
        let busy = self.0.config.plugin_gc && self.tell_plugins().await;
        Collected { left: self.0.leftovers.all().len(), busy }
    }

    /// The namespace goes last: plugins look into it.
    async fn remove_leftover(&self, sandbox: &SandboxId) -> Result<(), NetworkError> {
        self.detach_by_record(sandbox).await?;
        let (ours, sandbox) = (self.0.namespaces.clone(), sandbox.clone());
        blocking(move || Ok(ours.remove_marked(&sandbox)?)).await
    }

    /// Whether the network was busy.
    async fn tell_plugins(&self) -> bool {
        let told = async {
            let list = self.load().await?;
            if !plan::has_gc(&list) {
                return Ok(Gc::NotWanted);
            }
            let (runtime, deadline) =
                (self.0.plugins.detaching(&self.0.runtime), Instant::now() + PLUGINS_WITHIN);
            self.call(runtime.gc(&list, &BTreeSet::new(), deadline)).await
        };
        match told.await {
            Ok(Gc::Asked { failures }) => {
                for failure in failures {
                    tracing::warn!(
                        error = with_causes(&failure),
                        "a CNI plugin could not collect what is not attached"
                    );
                }
            }
            Ok(Gc::NotWanted) => {}
            Ok(Gc::Busy) => return true,
            Ok(Gc::Unsure(files)) => {
                tracing::warn!(?files, "no CNI plugin was told to collect: these files cannot be read");
            }
            Err(error) => tracing::warn!(error = with_causes(&error), "no CNI plugin was told to collect"),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn who_needs_a_sandbox_waits_for_its_removal_and_keeps_it() {
        let leftovers = Leftovers::default();
        let [one, two] = ["one", "two"].map(SandboxId::from_known);
        leftovers.add(BTreeSet::from([one.clone(), two.clone()]));
        let lock = leftovers.all().get(&one).cloned().unwrap();
        let removing = lock.try_lock().unwrap();
        let mut waits = Box::pin(leftovers.claim(&one));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(leftovers.claim(&two).now_or_never().is_some(), "another one is no reason to wait");
        drop(removing);
        assert!(waits.as_mut().now_or_never().is_some());
        assert!(leftovers.all().is_empty());
        assert!(leftovers.claim(&one).now_or_never().is_some(), "what is no leftover");
    }
}
