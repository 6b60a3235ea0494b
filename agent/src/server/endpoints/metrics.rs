//! `/metrics`, `/metrics/probes` and `/metrics/slis`.

use http::StatusCode;

use super::{
    super::{Response, Served, answer::of},
    health,
};

/// The text format of Prometheus.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn of_agent(served: &Served) -> Response {
    of(StatusCode::OK, TEXT, served.host.metrics.text())
}

/// Health checks, judged now. Source: `k8s.io/component-base/metrics/prometheus/slis`.
pub(super) fn of_health(served: &Served) -> Response {
    of(StatusCode::OK, TEXT, served.host.metrics.health_text(&health::checks(served)))
}

pub(super) fn of_probes(served: &Served) -> Response {
    of(StatusCode::OK, TEXT, served.host.metrics.probes_text())
}
