//! Requests, counted: what `kubelet_http_requests_total`, `kubelet_http_inflight_requests` and
//! `kubelet_http_requests_duration_seconds` are made of. Source: `pkg/kubelet/server/metrics/metrics.go`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::{server::RequestKind, time::Mono};

use crate::clock;

/// What is counted. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Requests(Arc<Mutex<BTreeMap<RequestKind, Count>>>);

/// Requests of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// That came.
    pub begun: u64,
    /// Whose answer is under way.
    pub under_way: u64,
    /// How long those took that have ended.
    pub took: Duration,
}

/// A request until its answer has ended.
#[derive(Debug)]
pub(super) struct UnderWay {
    requests: Requests,
    kind: RequestKind,
    since: Mono,
}

impl Requests {
    /// All that were counted.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<RequestKind, Count> {
        self.table().clone()
    }

    pub(super) fn begin(&self, kind: RequestKind) -> UnderWay {
        {
            let mut table = self.table();
            let count = table.entry(kind).or_default();
            count.begun += 1;
            count.under_way += 1;
        }
        UnderWay { requests: self.clone(), kind, since: clock::mono() }
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<RequestKind, Count>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let took = clock::mono().since(self.since);
        if let Some(count) = self.requests.table().get_mut(&self.kind) {
            count.under_way = count.under_way.saturating_sub(1);
            count.took = count.took.saturating_add(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_core::server::ServerType;

    use super::*;

    #[test]
    fn a_request_is_under_way_until_its_answer_has_ended() {
        let requests = Requests::default();
        let kind = RequestKind::of("GET", "/pods", ServerType::ReadWrite);
        let count = || requests.counts().get(&kind).map(|count| (count.begun, count.under_way));
        assert_eq!(count(), None);
        let (one, other) = (requests.begin(kind), requests.begin(kind));
        assert_eq!(count(), Some((2, 2)));
        drop(one);
        assert_eq!(count(), Some((2, 1)));
        drop(other);
        assert_eq!(count(), Some((2, 0)));
    }
}
