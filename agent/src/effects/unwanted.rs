//! Pulls under way that nobody may want any more.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::id::OpId;
use tokio_util::sync::CancellationToken;

/// What tells each pull under way that it is given up. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct UnwantedPulls(Arc<Mutex<BTreeMap<OpId, CancellationToken>>>);

impl UnwantedPulls {
    /// One begins. What it gives is held until that has ended.
    pub(super) fn begin(&self, op: OpId) -> UnderWay {
        self.lock().insert(op, CancellationToken::new());
        UnderWay { pulls: self.clone(), op }
    }

    /// Tells one, if it is there, that it is given up.
    pub fn give_up(&self, op: OpId) {
        if let Some(token) = self.lock().get(&op) {
            token.cancel();
        }
    }

    /// By which one hears of it.
    pub(super) fn of(&self, op: OpId) -> CancellationToken {
        self.lock().get(&op).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<OpId, CancellationToken>> {
        // Nothing that can panic is done under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pull that is under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    pulls: UnwantedPulls,
    op: OpId,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.pulls.lock().remove(&self.op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_told_and_no_other_and_what_has_ended_is_forgotten() {
        let pulls = UnwantedPulls::default();
        let (one, two) = (pulls.begin(OpId(1)), pulls.begin(OpId(2)));
        let (first, second) = (pulls.of(OpId(1)), pulls.of(OpId(2)));
        pulls.give_up(OpId(1));
        assert!(first.is_cancelled() && !second.is_cancelled());
        drop((one, two));
        pulls.give_up(OpId(2));
        assert!(!second.is_cancelled() && pulls.lock().is_empty());
    }
}
