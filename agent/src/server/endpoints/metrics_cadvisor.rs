//! `/metrics/cadvisor`: what each cgroup uses.

use std::sync::Arc;

use http::StatusCode;

use super::{Response, Served, of};

/// The kind of text that Prometheus reads.
const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The text.
pub(super) async fn answer(served: &Arc<Served>) -> Response {
    text(served.stats.cgroup_metrics().await)
}

/// A text of metrics.
pub(super) fn text(metrics: String) -> Response {
    of(StatusCode::OK, KIND, metrics)
}
