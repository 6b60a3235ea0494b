//! Texts of metrics: `/metrics` and what is below it. Source: `HandlerFor` of `promhttp` of `github.com/prometheus/client_golang`.

use std::{io::Write as _, sync::Arc};

use berth_core::server::takes_gzip;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;

use super::{
    super::{
        Response, Served,
        answer::{of, text},
        lanes::Whole,
    },
    places,
};
use crate::{
    metrics::Metrics,
    stats::{Part, Reading},
};

/// The text format of Prometheus.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics that the agent counts itself.
#[derive(Debug, Clone, Copy)]
pub(super) enum Own {
    /// Of the agent.
    Agent,
    /// Of probes.
    Probes,
    /// Of health checks. Source: `k8s.io/component-base/metrics/prometheus/slis`.
    Health,
}

/// How a text is asked for.
#[derive(Debug)]
pub(super) struct Asked {
    encoding: Encoding,
    places: Whole,
}

impl Asked {
    pub(super) fn of(served: &Served, request: Request<Incoming>) -> Self {
        Self { encoding: Encoding::of(request.headers()), places: places(served, request) }
    }
}

/// The text of what the agent counts itself.
pub(super) async fn own(served: &Arc<Served>, own: Own, asked: Asked) -> Response {
    let (Asked { encoding, places }, served_there) = (asked, Arc::clone(served));
    let make = move || {
        let metrics = &served_there.host.metrics;
        encoding.answer(match own {
            Own::Agent => metrics.text(),
            Own::Probes => metrics.probes_text(),
            Own::Health => metrics.health_text(),
        })
    };
    places.answer(make).await
}

/// Has what was counted of health checks begin anew. Source: `SLIMetricsWithReset` of `k8s.io/component-base/metrics/prometheus/slis`.
pub(super) fn reset(metrics: &Metrics) -> Response {
    metrics.reset_health();
    text(StatusCode::OK, "metrics reset\n")
}

/// The text of what is read when it is asked for.
pub(super) async fn read(served: &Served, part: Part, text: fn(Reading) -> String, asked: Asked) -> Response {
    let Asked { encoding, places } = asked;
    let make = move |read| encoding.answer(text(read));
    places.answer_after(served.stats.read(part), make).await
}

/// How a text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Plain,
    Gzip,
}

impl Encoding {
    fn of(headers: &HeaderMap) -> Self {
        let all = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        if takes_gzip(&all.collect::<Vec<_>>().join(",")) { Self::Gzip } else { Self::Plain }
    }

    fn answer(self, text: String) -> Response {
        if self == Self::Plain {
            return of(StatusCode::OK, TEXT, text);
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        // What is written to memory does not fail.
        let Ok(packed) = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()) else {
            return of(StatusCode::OK, TEXT, text);
        };
        let mut response = of(StatusCode::OK, TEXT, packed);
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        response
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use berth_core::server::Check;
    use flate2::read::GzDecoder;
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    #[test]
    fn what_was_counted_of_checks_begins_anew_where_that_is_asked_for() {
        let metrics = Metrics::new("n", crate::view::View::default()).unwrap();
        metrics.checked(&[Check { name: "ping", failure: None }]);
        assert!(metrics.health_text().contains("kubernetes_healthcheck"));
        let told = reset(&metrics);
        let body = told.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
        assert_eq!(body, "metrics reset\n");
        assert!(!metrics.health_text().contains("kubernetes_healthcheck"));
    }

    #[test]
    fn a_text_is_packed_for_those_who_take_it() {
        for (accepted, is_packed) in
            [(vec![], false), (vec!["br", "deflate, gzip"], true), (vec!["gzip;q=0"], false)]
        {
            let mut headers = HeaderMap::new();
            for one in &accepted {
                headers.append(header::ACCEPT_ENCODING, HeaderValue::from_static(one));
            }
            let response = Encoding::of(&headers).answer("a 1\n".repeat(1000));
            assert_eq!(response.headers().contains_key(header::CONTENT_ENCODING), is_packed, "{accepted:?}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], TEXT);
            let body = response.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
            let mut text = String::new();
            if is_packed {
                assert!(body.len() < 1000);
                GzDecoder::new(body.as_ref()).read_to_string(&mut text).unwrap();
            } else {
                text.push_str(str::from_utf8(&body).unwrap());
            }
            assert_eq!(text, "a 1\n".repeat(1000));
        }
    }
}
