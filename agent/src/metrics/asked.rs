//! Values that are asked for whenever somebody reads them.

use std::{fmt, sync::Arc};

use prometheus::{
    Gauge, Opts, Result,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// A family of one value.
#[derive(Clone)]
pub(super) struct Asked {
    gauge: Gauge,
    value: Arc<dyn Fn() -> f64 + Send + Sync>,
}

impl Asked {
    pub(super) fn new(
        name: &str,
        help: &str,
        value: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Result<Self> {
        Ok(Self { gauge: Gauge::with_opts(Opts::new(name, help))?, value: Arc::new(value) })
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gauge.fmt(out)
    }
}

impl Collector for Asked {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set((self.value)());
        self.gauge.collect()
    }
}
