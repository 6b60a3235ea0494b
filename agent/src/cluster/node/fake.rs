//! Clients whose server is a value.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response, request::Parts};
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Bytes};
use kube::{Client, client::Body};
use tower::BoxError;

use crate::cluster::Clients;

/// Clients of a server that answers a request by its head and what was sent.
pub(super) fn clients<S, B>(
    server: &Arc<Mutex<S>>,
    answer: fn(&mut S, &Parts, &[u8]) -> Response<B>,
) -> Clients
where
    S: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (parts, body) = request.into_parts();
            let sent = body.collect().await.unwrap().to_bytes();
            Ok::<_, Infallible>(answer(&mut server.lock().unwrap(), &parts, &sent))
        }
    });
    Clients::new(Client::new(service, "default"))
}
