//! What was read for somebody who asks, and the answers that are made of it.

use std::sync::Arc;

use berth_core::stats::{self, Collected, DiskUsage, summary::Summary};

use super::{StatsError, cgroupfs::ROOT};
use crate::causes::with_causes;

/// Of what statistics are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Processors, memory and swap, of pods and the node.
    ProcessorsAndMemory,
    /// What is on disks, too.
    Everything,
}

/// What was read. To make an answer of it takes time when there are many pods.
#[derive(Debug)]
pub struct Reading {
    pub(super) read: Result<Arc<Collected>, StatsError>,
    pub(super) disks: Option<DiskUsage>,
}

impl Reading {
    /// What `/stats/summary` says.
    ///
    /// # Errors
    /// See [`StatsError`].
    pub fn summary(self) -> Result<Summary, StatsError> {
        let read = self.read?;
        let summary = match &self.disks {
            None => stats::cpu_and_memory(&read),
            Some(disks) => stats::summary(&read, disks),
        };
        summary.ok_or(StatsError::NoRoot(ROOT))
    }

    /// The text of `/metrics/resource`. A failure is a metric of it.
    #[must_use]
    pub fn resource_metrics(self) -> String {
        let summary = self.summary();
        if let Err(error) = &summary {
            tracing::warn!(error = with_causes(error), "statistics cannot be read");
        }
        stats::resource_metrics(summary.ok().as_ref())
    }

    /// The text of `/metrics/cadvisor`. A failure is a metric of it.
    #[must_use]
    pub fn cgroup_metrics(self) -> String {
        if let Err(error) = &self.read {
            tracing::warn!(error = with_causes(error), "statistics cannot be read");
        }
        stats::cgroup_metrics(self.read.ok().as_deref(), &self.disks.unwrap_or_default())
    }
}
