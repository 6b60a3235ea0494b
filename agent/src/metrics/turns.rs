//! Turns of the node loop, by the names of the kubelet's relist.
//!
//! The kubelet lists all containers again and again, and acts on what has changed. Here the loop is told of each change, and compares all
//! that it holds with what is wanted. A turn is one such comparison with its effects begun: who reads how long a relist takes learns
//! how long nobody could be heard. No event is thrown away. Source: `pkg/kubelet/pleg/generic.go`.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use berth_core::time::Mono;
use jiff::Timestamp;
use prometheus::{DEFAULT_BUCKETS, HistogramVec, Registry, Result};

use super::{asked::Asked, families::Families};

/// Families of turns.
#[derive(Debug)]
pub(super) struct Turns {
    seconds: HistogramVec,
    apart: HistogramVec,
    /// When the last one began.
    last: Mutex<Option<Mono>>,
}

impl Turns {
    pub(super) fn new(registry: &Registry) -> Result<Self> {
        let families = Families(registry);
        let name = "kubelet_pleg_relist_duration_seconds";
        let help = "Seconds that a turn of the node loop takes.";
        let seconds = families.histogram(name, help, &[], DEFAULT_BUCKETS)?;
        let name = "kubelet_pleg_relist_interval_seconds";
        let help = "Seconds from the beginning of a turn of the node loop to that of the next.";
        let apart = families.histogram(name, help, &[], DEFAULT_BUCKETS)?;
        let help = "Events that the node loop has thrown away: none.";
        families.counter("kubelet_pleg_discard_events", help, &[])?;
        Ok(Self { seconds, apart, last: Mutex::default() })
    }

    /// A turn begins.
    pub(super) fn begins(&self, now: Mono) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if let Some(last) = last {
            self.apart.with_label_values::<&str>(&[]).observe(now.since(last).as_secs_f64());
        }
    }

    /// One has ended.
    pub(super) fn ended(&self, took: Duration) {
        self.seconds.with_label_values::<&str>(&[]).observe(took.as_secs_f64());
    }
}

/// When the loop was last known to go on: now while it waits, as nothing is to be done, else when its turn began.
pub(super) fn last_seen(busy_since: impl Fn() -> Option<Mono> + Send + Sync + 'static) -> Result<Asked> {
    let help = "When the node loop had last looked at everything, in seconds since 1970.";
    Asked::new("kubelet_pleg_last_seen_seconds", help, move || {
        let busy = busy_since().map_or(Duration::ZERO, |since| crate::clock::mono().since(since));
        let now = Timestamp::now().as_duration();
        now.as_secs_f64().floor() - busy.as_secs_f64().floor()
    })
}
