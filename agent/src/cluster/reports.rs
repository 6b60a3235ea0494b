//! From the node loop to the one that speaks with the API server: what pods are now. Only the newest of each waits, so nobody waits for
//! anybody and nothing grows.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_core::{id::PodUid, node::SourcesHaveSpoken, pod::port::status::Published};
use tokio::sync::Notify;

/// What became of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Report {
    /// It is this now.
    Is(Published),
    /// It is no more.
    Withdrawn,
}

/// What waits.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) pods: BTreeMap<PodUid, Report>,
    /// Every source of pods has spoken.
    pub(super) sources_have_spoken: Option<SourcesHaveSpoken>,
}

/// The way there. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Reports(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    something_waits: Notify,
}

impl Reports {
    /// A pod is this now.
    pub fn publish(&self, published: Published) {
        let uid = published.status.uid.clone();
        self.put(|waiting| waiting.pods.insert(uid, Report::Is(published)));
    }

    /// A pod is no more.
    pub fn withdraw(&self, uid: &PodUid) {
        self.put(|waiting| waiting.pods.insert(uid.clone(), Report::Withdrawn));
    }

    /// Every source of pods has spoken.
    pub fn sources_have_spoken(&self, heard: SourcesHaveSpoken) {
        self.put(|waiting| waiting.sources_have_spoken = Some(heard));
    }

    /// Waits for something, and takes all of it.
    pub(super) async fn take(&self) -> Waiting {
        loop {
            let notified = self.0.something_waits.notified();
            {
                let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if waiting.sources_have_spoken.is_some() || !waiting.pods.is_empty() {
                    return std::mem::take(&mut waiting);
                }
            }
            notified.await;
        }
    }

    fn put<T>(&self, change: impl FnOnce(&mut Waiting) -> T) {
        // No writer can leave a half-made entry behind.
        change(&mut self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.something_waits.notify_one();
    }
}
