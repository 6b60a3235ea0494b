//! The pulls of this agent that are under way, by image: pods may each pull the same with secrets of their own.

use std::collections::BTreeMap;

use tokio::sync::{Mutex, MutexGuard};

/// How many of each image there are.
#[derive(Debug, Default)]
pub struct PullsUnderWay(Mutex<BTreeMap<String, u32>>);

impl PullsUnderWay {
    /// The table, which nobody else sees while what is written of a pull is changed with it.
    pub(in crate::effects) async fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.0.lock().await
    }
}
