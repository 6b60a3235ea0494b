//! What is answered, one file for each endpoint.

use std::sync::Arc;

use berth_core::server::Endpoint;
use http::{Request, StatusCode};
use hyper::body::Incoming;

use super::{
    Response, Served,
    answer::{empty, error, json, of},
};

/// Answers a request that is allowed.
pub(super) async fn answer(
    _served: &Arc<Served>,
    endpoint: Endpoint,
    _request: Request<Incoming>,
) -> Response {
    match endpoint {
        _ => error(StatusCode::NOT_FOUND, "404 page not found"),
    }
}
