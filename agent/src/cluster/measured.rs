//! Requests to the API server, counted by the names of client-go (`k8s.io/component-base/metrics/prometheus/restclient`).
//!
//! There is one API server for a process, whose clients are made anew whenever certificates change: what is counted outlives them all.

use std::{
    pin::Pin,
    sync::LazyLock,
    task::{Context, Poll},
    time::Instant,
};

use http::{Request, Response};
use kube::client::Body;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};
use tower::{BoxError, Service};

/// Seconds until the head of an answer.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// The families; none where they cannot be made, which their names alone decide.
static FAMILIES: LazyLock<Option<Families>> = LazyLock::new(|| Families::new().ok());

/// What is counted of requests.
#[derive(Debug, Clone)]
pub struct Families {
    /// By code, method and host; `<error>` where there was no answer.
    pub total: IntCounterVec,
    /// By verb and host.
    pub seconds: HistogramVec,
}

impl Families {
    fn new() -> prometheus::Result<Self> {
        let total = Opts::new("rest_client_requests_total", "Requests to the API server.");
        let seconds = HistogramOpts::new(
            "rest_client_request_duration_seconds",
            "Seconds until the API server answers, by verb.",
        );
        Ok(Self {
            total: IntCounterVec::new(total, &["code", "method", "host"])?,
            seconds: HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["verb", "host"])?,
        })
    }
}

/// What is counted.
#[must_use]
pub fn request_families() -> Option<Families> {
    FAMILIES.clone()
}

/// The service, with its requests counted.
#[derive(Debug, Clone)]
pub(super) struct Measured<S>(pub(super) S);

impl<S, B> Service<Request<Body>> for Measured<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().clone();
        let host =
            request.uri().authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        let (began, answer) = (Instant::now(), self.0.call(request));
        Box::pin(async move {
            let answer = answer.await;
            if let Some(families) = &*FAMILIES {
                let code = answer
                    .as_ref()
                    .map_or("<error>".to_owned(), |answer| answer.status().as_u16().to_string());
                families.total.with_label_values(&[code.as_str(), method.as_str(), &host]).inc();
                let seconds = families.seconds.with_label_values(&[method.as_str(), &host]);
                seconds.observe(began.elapsed().as_secs_f64());
            }
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_and_failures_are_counted_by_code_method_and_host() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            match request.uri().path() {
                "/gone" => Ok(Response::builder().status(410).body(()).unwrap()),
                _ => Err(BoxError::from("nobody is there")),
            }
        });
        let mut measured = Measured(service);
        for (method, path) in [("GET", "/gone"), ("GET", "/gone"), ("PATCH", "/away")] {
            let uri = format!("https://counted.example:6443{path}");
            let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            let answer = measured.call(request).await;
            assert_eq!(answer.is_ok(), path == "/gone");
        }
        let families = request_families().unwrap();
        let total = |code: &str, method: &str| {
            families.total.with_label_values(&[code, method, "counted.example:6443"]).get()
        };
        assert_eq!((total("410", "GET"), total("<error>", "PATCH"), total("200", "GET")), (2, 1, 0));
        let took = families.seconds.with_label_values(&["GET", "counted.example:6443"]);
        assert_eq!(took.get_sample_count(), 2);
    }
}
