//! Hooks that are under way, until they have ended or are given up.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::id::OpId;
use tokio::task::AbortHandle;

/// Tasks of hooks that are under way. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct HooksUnderWay(Arc<Mutex<BTreeMap<OpId, AbortHandle>>>);

impl HooksUnderWay {
    /// Begins one.
    pub(super) fn begin(&self, op: OpId, task: impl Future<Output = ()> + Send + 'static) {
        let mut all = self.lock();
        let hooks = self.clone();
        let task = tokio::spawn(async move {
            task.await;
            hooks.lock().remove(&op);
        });
        all.insert(op, task.abort_handle());
    }

    /// Gives one up, if it is there: it tells nothing any more.
    pub fn give_up(&self, op: OpId) {
        if let Some(task) = self.lock().remove(&op) {
            task.abort();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<OpId, AbortHandle>> {
        // Nothing that can panic is done under it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn what_is_given_up_ends_and_what_has_ended_is_forgotten() {
        let hooks = HooksUnderWay::default();
        let (held, given_up) = oneshot::channel::<()>();
        hooks.begin(OpId(1), async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        let (done, ended) = oneshot::channel();
        hooks.begin(OpId(2), async move { done.send(()).unwrap() });
        ended.await.unwrap();
        hooks.give_up(OpId(1));
        given_up.await.unwrap_err();
        tokio::task::yield_now().await;
        hooks.give_up(OpId(2));
        assert!(hooks.lock().is_empty());
    }
}
