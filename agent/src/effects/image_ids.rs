//! What was read of images before, by the digest of what their records point at: content never changes.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::{Mutex, MutexGuard};

/// Id and size of each; nothing of one that is no image of this node.
#[derive(Debug, Default)]
pub(in crate::effects) struct Weighed(pub(in crate::effects) BTreeMap<String, Option<(String, u64)>>);

/// The same for whoever looks for an image by its id, one at a time: pods may name thousands that are not there. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct KnownIds(Arc<Mutex<Weighed>>);

impl KnownIds {
    /// What is known; nobody else looks meanwhile.
    pub(in crate::effects) async fn lock(&self) -> MutexGuard<'_, Weighed> {
        self.0.lock().await
    }
}
