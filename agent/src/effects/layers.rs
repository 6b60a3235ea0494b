//! Writable layers that this agent has just had made, and that nothing was started on yet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::id::ContainerId;
use containerd_client::types::Mount;
use tokio::time::Instant;

/// Layers that are kept: more than wait for their first start at a time. Of those beyond it containerd is asked.
const LAYERS_MAX: usize = 256;
/// How long a layer is fresh. Of one that waited longer containerd is asked: a snapshotter may look whether the layers below are still there.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// Fresh layers by container, each until somebody takes it.
#[derive(Debug, Default)]
pub struct FreshLayers(Mutex<BTreeMap<ContainerId, Fresh>>);

#[derive(Debug)]
struct Fresh {
    snapshotter: String,
    mounts: Vec<Mount>,
    made: Instant,
}

impl FreshLayers {
    /// A snapshotter has made it, and says how it is mounted.
    pub(in crate::effects) fn keep(&self, id: &ContainerId, snapshotter: &str, mounts: &[Mount]) {
        let mut layers = self.layers();
        if layers.len() < LAYERS_MAX {
            let (snapshotter, mounts) = (snapshotter.to_owned(), mounts.to_vec());
            let fresh = Fresh { snapshotter, mounts, made: Instant::now() };
            layers.insert(id.clone(), fresh);
        }
    }

    /// How it is mounted, when this snapshotter has made it a moment ago: once, since nobody knows what becomes of it then.
    pub(in crate::effects) fn take(&self, id: &ContainerId, snapshotter: &str) -> Option<Vec<Mount>> {
        let fresh = self.layers().remove(id)?;
        let is_fresh = fresh.snapshotter == snapshotter && fresh.made.elapsed() <= FRESH_FOR;
        is_fresh.then_some(fresh.mounts)
    }

    /// It goes, or may be older than it seems.
    pub(in crate::effects) fn forget(&self, id: &ContainerId) {
        self.layers().remove(id);
    }

    fn layers(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Fresh>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(source: &str) -> Vec<Mount> {
        vec![Mount { source: source.to_owned(), ..Mount::default() }]
    }

    #[test]
    fn a_fresh_layer_is_taken_once_from_who_made_it() {
        type Act = fn(&FreshLayers, &ContainerId);
        let id = ContainerId::from_known("c1");
        let cases: [(&str, Act, Option<Vec<Mount>>); 5] = [
            ("made", |_, _| {}, Some(mounts("a"))),
            ("taken", |layers, id| drop(layers.take(id, "overlayfs")), None),
            ("asked for by another snapshotter", |layers, id| drop(layers.take(id, "native")), None),
            ("forgotten", |layers, id| layers.forget(id), None),
            ("made anew", |layers, id| layers.keep(id, "overlayfs", &mounts("b")), Some(mounts("b"))),
        ];
        for (what, act, expected) in cases {
            let layers = FreshLayers::default();
            layers.keep(&id, "overlayfs", &mounts("a"));
            act(&layers, &id);
            assert_eq!(layers.take(&id, "overlayfs"), expected, "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_layer_is_fresh_for_a_while() {
        let id = ContainerId::from_known("c1");
        let layers = FreshLayers::default();
        for (waits, expected) in [(FRESH_FOR, true), (FRESH_FOR + Duration::from_millis(1), false)] {
            layers.keep(&id, "overlayfs", &mounts("a"));
            tokio::time::advance(waits).await;
            assert_eq!(layers.take(&id, "overlayfs").is_some(), expected, "{waits:?}");
        }
    }

    #[test]
    fn fresh_layers_are_bounded_by_their_number() {
        let layers = FreshLayers::default();
        let id = |number: usize| ContainerId::from_known(format!("c{number}"));
        for number in 0..=LAYERS_MAX {
            layers.keep(&id(number), "overlayfs", &mounts("a"));
        }
        assert_eq!(layers.layers().len(), LAYERS_MAX);
        assert_eq!(layers.take(&id(LAYERS_MAX), "overlayfs"), None);
        layers.forget(&id(0));
        layers.keep(&id(LAYERS_MAX), "overlayfs", &mounts("a"));
        assert_eq!(layers.take(&id(LAYERS_MAX), "overlayfs"), Some(mounts("a")));
    }
}
