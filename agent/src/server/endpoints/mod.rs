//! What is answered, one file for each endpoint.

mod health;
mod pods;

use std::sync::Arc;

use berth_core::server::Endpoint;
use http::{Request, StatusCode};
use hyper::body::Incoming;

use super::{
    Response, Served,
    answer::{error, of},
};

/// Answers a request that is allowed.
pub(super) async fn answer(served: &Arc<Served>, endpoint: Endpoint, request: Request<Incoming>) -> Response {
    match endpoint {
        Endpoint::Health(check) => health::answer(served, check, request.uri().query()),
        Endpoint::Pods => pods::wanted(served.view.clone()).await,
        Endpoint::RunningPods => pods::running(&served.view),
        Endpoint::Configz => of(StatusCode::OK, "application/json", served.configz.as_bytes().to_vec()),
        _ => error(StatusCode::NOT_FOUND, "404 page not found"),
    }
}
