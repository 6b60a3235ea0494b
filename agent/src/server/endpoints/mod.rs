//! What is answered, one file for each endpoint.

mod container_logs;
mod health;
mod metrics;
pub(super) mod node_logs;
mod pods;
mod summary;

use std::sync::Arc;

use berth_core::server::Endpoint;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;

use self::{
    container_logs::ContainerLogs,
    metrics::{Asked, Own},
};
use super::{
    Response, Served,
    answer::{error, json, of},
    lanes::Whole,
    streaming::{attach, exec, port_forward, run},
};
use crate::stats::{Part, Reading};

/// Answers a request that is allowed.
pub(super) async fn answer(served: &Arc<Served>, endpoint: Endpoint, request: Request<Incoming>) -> Response {
    match endpoint {
        Endpoint::Exec(path) => exec(&served.streaming, &path, request),
        Endpoint::Attach(path) => attach(&served.streaming, &path, request),
        Endpoint::Run(path) => run(&served.streaming, &path, request).await,
        Endpoint::PortForward(path) => port_forward(&served.streaming, &path, request),
        Endpoint::Health(check) => health::answer(served, check, request.uri().query()),
        Endpoint::Configz => of(StatusCode::OK, "application/json", served.configz.as_bytes().to_vec()),
        Endpoint::ContainerLogs(path) => {
            served.container_logs().answer(&path, request.uri().query(), Timestamp::now())
        }
        Endpoint::NodeLogs { path } => {
            let (parts, _nothing) = request.into_parts();
            served.node_logs.answer(&path, &parts).await
        }
        Endpoint::Pods => pods::wanted(served.view.clone(), &places(served, request)).await,
        Endpoint::RunningPods => pods::running(served.view.clone(), &places(served, request)).await,
        Endpoint::Metrics => metrics::own(served, Own::Agent, Asked::of(served, request)).await,
        Endpoint::MetricsOfProbes => metrics::own(served, Own::Probes, Asked::of(served, request)).await,
        Endpoint::MetricsOfHealth if request.method() == Method::DELETE => {
            metrics::reset(&served.host.metrics)
        }
        Endpoint::MetricsOfHealth => metrics::own(served, Own::Health, Asked::of(served, request)).await,
        Endpoint::MetricsOfCgroups => {
            let asked = Asked::of(served, request);
            metrics::read(served, Part::Everything, Reading::cgroup_metrics, asked).await
        }
        Endpoint::MetricsOfResources => {
            let asked = Asked::of(served, request);
            metrics::read(served, Part::ProcessorsAndMemory, Reading::resource_metrics, asked).await
        }
        Endpoint::Summary => {
            let part = summary::part(request.uri().query().unwrap_or_default());
            summary::answer(served, part, &places(served, request)).await
        }
    }
}

/// The places of an answer that may have to wait for them. Nothing else of its request is kept meanwhile.
fn places(served: &Served, request: Request<Incoming>) -> Whole {
    let places = served.lanes.whole.of(request.extensions());
    drop(request);
    places
}

impl Served {
    fn container_logs(&self) -> ContainerLogs<'_> {
        let config = &self.host.config;
        ContainerLogs {
            view: &self.view,
            paths: &config.node.paths,
            lanes: &self.lanes,
            may_split: config.log_requests.may_split_streams,
        }
    }
}
