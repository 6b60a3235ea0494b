//! Health checks, by the names of Kubernetes' own components. Source: `k8s.io/component-base/metrics/prometheus/slis`.

use berth_core::server::Check;
use prometheus::{Gauge, GaugeVec, IntCounterVec, Registry, Result};

use super::families::Families;

/// The endpoint that they are of.
const KIND: &str = "healthz";

/// Families of health checks.
#[derive(Debug)]
pub(super) struct Health {
    registry: Registry,
    last: GaugeVec,
    total: IntCounterVec,
}

impl Health {
    /// None was judged yet. When the agent began is shown beside them.
    pub(super) fn new(agent_began: &Gauge) -> Result<Self> {
        let registry = Registry::new();
        registry.register(Box::new(agent_began.clone()))?;
        let families = Families(&registry);
        let help = "Whether a health check went well when it was judged last.";
        let last = families.gauge("kubernetes_healthcheck", help, &["name", "type"])?;
        let help = "Health checks, by what came of them.";
        let total = families.counter("kubernetes_healthchecks_total", help, &["name", "status", "type"])?;
        Ok(Self { registry, last, total })
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(super) fn checked<'a>(&self, checks: impl IntoIterator<Item = &'a Check>) {
        for Check { name, failure } in checks {
            let (status, value) = if failure.is_none() { ("success", 1.0) } else { ("error", 0.0) };
            self.last.with_label_values(&[*name, KIND]).set(value);
            self.total.with_label_values(&[*name, status, KIND]).inc();
        }
    }

    /// Nothing was judged yet, again.
    pub(super) fn reset(&self) {
        self.last.reset();
        self.total.reset();
    }
}
