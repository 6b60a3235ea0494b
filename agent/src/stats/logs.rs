//! How large logs of containers are, among the metrics of the agent. Source: `pkg/kubelet/metrics/collectors/log_metrics.go`.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use berth_core::stats;
use prometheus::{
    GaugeVec, Opts, Result,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{Inner, Stats};
use crate::clock;

/// The family. It is measured in the background while somebody reads it, as `/stats/summary` is.
#[derive(Clone)]
pub struct LogSizes {
    bytes: GaugeVec,
    /// Its metrics are among what the statistics hold.
    stats: Weak<Inner>,
    /// Held by whoever collects.
    collecting: Arc<Mutex<()>>,
}

impl fmt::Debug for LogSizes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("LogSizes")
    }
}

impl Stats {
    /// Sizes of logs as a family of metrics.
    ///
    /// # Errors
    /// When its name or its labels cannot be used, which only the program decides.
    pub fn log_sizes(&self) -> Result<LogSizes> {
        let name = "kubelet_container_log_filesystem_used_bytes";
        let options = Opts::new(name, "Bytes that logs of a container take on their file system.");
        let bytes = GaugeVec::new(options, &["uid", "namespace", "pod", "container"])?;
        Ok(LogSizes { bytes, stats: Arc::downgrade(&self.0), collecting: Arc::default() })
    }
}

impl Collector for LogSizes {
    fn desc(&self) -> Vec<&Desc> {
        self.bytes.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(own) = self.stats.upgrade().map(Stats) else { return Vec::new() };
        own.0.wanted.send_replace(Some(clock::mono()));
        let disks = own.disks().clone();
        let _alone = self.collecting.lock().unwrap_or_else(PoisonError::into_inner);
        self.bytes.reset();
        let pods = own.0.view.pods();
        let here = pods.iter().map(|pod| (&pod.status.uid, &pod.pod.name));
        for (labels, bytes) in stats::log_sizes(&disks, here) {
            self.bytes.with_label_values(&labels).set(bytes as f64);
        }
        self.bytes.collect()
    }
}
