//! `/metrics` and `/metrics/probes`.

use http::StatusCode;

use super::super::{Response, Served, answer::of};

/// The text format of Prometheus.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn of_agent(served: &Served) -> Response {
    of(StatusCode::OK, TEXT, served.host.metrics.text(&served.view))
}

pub(super) fn of_probes(served: &Served) -> Response {
    of(StatusCode::OK, TEXT, served.host.metrics.probes_text())
}
