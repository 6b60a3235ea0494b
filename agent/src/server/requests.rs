//! Requests, counted. Source: `pkg/kubelet/server/metrics/metrics.go`.

use std::{sync::Arc, time::Instant};

use berth_core::server::RequestKind;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

/// What they are counted by.
const LABELS: [&str; 4] = ["method", "path", "server_type", "long_running"];

/// What is counted. Clones share it.
#[derive(Debug, Clone)]
pub struct Requests {
    /// Those that came.
    pub total: IntCounterVec,
    /// Those whose answer is under way.
    pub under_way: IntGaugeVec,
    /// How long they took, in seconds.
    pub seconds: HistogramVec,
}

/// A request until its answer has ended, and the session that it began. Clones share it: the last of them ends it.
#[derive(Debug, Clone)]
pub(super) struct UnderWay {
    _counted: Arc<Counted>,
}

/// A request that was begun, and which ends when this is dropped.
#[derive(Debug)]
struct Counted {
    requests: Requests,
    kind: RequestKind,
    since: Instant,
}

impl Requests {
    /// Nothing was counted yet.
    ///
    /// # Errors
    /// None that depends on anything but the names.
    pub fn new() -> prometheus::Result<Self> {
        let total = Opts::new("kubelet_http_requests_total", "Requests to the node's server.");
        let under_way = Opts::new(
            "kubelet_http_inflight_requests",
            "Requests to the node's server whose answer is under way.",
        );
        let seconds = HistogramOpts::new(
            "kubelet_http_requests_duration_seconds",
            "Seconds that requests to the node's server take.",
        );
        Ok(Self {
            total: IntCounterVec::new(total, &LABELS)?,
            under_way: IntGaugeVec::new(under_way, &LABELS)?,
            seconds: HistogramVec::new(seconds, &LABELS)?,
        })
    }

    pub(super) fn begin(&self, kind: RequestKind) -> UnderWay {
        let labels = labels(kind);
        self.total.with_label_values(&labels).inc();
        self.under_way.with_label_values(&labels).inc();
        UnderWay { _counted: Arc::new(Counted { requests: self.clone(), kind, since: Instant::now() }) }
    }
}

#[cfg(test)]
impl Requests {
    /// Of a kind: how many came, how many are under way, and how many were timed.
    pub(super) fn counts(&self, kind: RequestKind) -> (u64, i64, u64) {
        let of = labels(kind);
        let timed = self.seconds.with_label_values(&of).get_sample_count();
        (self.total.with_label_values(&of).get(), self.under_way.with_label_values(&of).get(), timed)
    }
}

fn labels(kind: RequestKind) -> [&'static str; 4] {
    let long_running = if kind.is_long_running { "true" } else { "false" };
    [kind.method, kind.path, kind.server_type.as_str(), long_running]
}

impl Drop for Counted {
    fn drop(&mut self) {
        let labels = labels(self.kind);
        self.requests.under_way.with_label_values(&labels).dec();
        self.requests.seconds.with_label_values(&labels).observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use berth_core::server::ServerType;

    use super::*;

    #[test]
    fn a_request_is_under_way_until_its_answer_has_ended() {
        let requests = Requests::new().unwrap();
        let kind = RequestKind::of("GET", "/pods", ServerType::ReadWrite);
        let count = || requests.counts(kind);
        assert_eq!(count(), (0, 0, 0));
        let (one, other) = (requests.begin(kind), requests.begin(kind));
        assert_eq!(count(), (2, 2, 0));
        let session = one.clone();
        drop(one);
        assert_eq!(count(), (2, 2, 0), "what it has begun goes on");
        drop(session);
        assert_eq!(count(), (2, 1, 1));
        drop(other);
        assert_eq!(count(), (2, 0, 2));
    }
}
