//! `/metrics/resource`: what autoscalers read.

use std::sync::Arc;

use super::{Response, Served, metrics_cadvisor::text};

/// The text.
pub(super) async fn answer(served: &Arc<Served>) -> Response {
    text(served.stats.resource_metrics().await)
}
