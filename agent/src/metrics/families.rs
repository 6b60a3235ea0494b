//! Families of metrics in a registry, each made in one call.

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, Result, core::Collector,
    exponential_buckets,
};

/// Seconds that a start of a pod may take.
pub(super) const START_SECONDS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// Seconds that a pull may take.
pub(super) const PULL_SECONDS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];

/// Seconds that a volume may take.
pub(super) const VOLUME_SECONDS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Seconds that an operation on the runtime may take.
pub(super) fn operation_seconds() -> Result<Vec<f64>> {
    exponential_buckets(0.005, 2.5, 14)
}

/// A count; those of a node are far below what a float cannot tell apart.
pub(super) fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// Makes families that are shown by a registry. The bounds of histograms are the kubelet's, since recording rules name them.
/// Source: `pkg/kubelet/metrics/metrics.go`.
#[derive(Debug)]
pub(super) struct Families<'registry>(pub(super) &'registry Registry);

impl Families<'_> {
    pub(super) fn counter(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        let family = self.shown(IntCounterVec::new(Opts::new(name, help), labels)?)?;
        if labels.is_empty() {
            // Without labels there is one series, from the beginning on.
            drop(family.with_label_values::<&str>(&[]));
        }
        Ok(family)
    }

    pub(super) fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        self.shown(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let family = self.shown(HistogramVec::new(options, labels)?)?;
        if labels.is_empty() {
            drop(family.with_label_values::<&str>(&[]));
        }
        Ok(family)
    }

    fn shown<C: Collector + Clone + 'static>(&self, family: C) -> Result<C> {
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }
}
