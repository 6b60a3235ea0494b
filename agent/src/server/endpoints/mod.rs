//! What is answered, one file for each endpoint.

mod container_logs;
mod health;
mod metrics;
mod metrics_cadvisor;
mod metrics_resource;
mod node_logs;
mod pods;
mod summary;

use std::sync::Arc;

use berth_core::server::Endpoint;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;

use self::{container_logs::ContainerLogs, node_logs::NodeLogs};
use super::{
    Response, Served,
    answer::{error, json, of},
    streaming::{attach, exec, port_forward, run},
};
use crate::program::Program;

/// The node's own logs. Source: `nodeLogDir` of `pkg/kubelet/kubelet_server_journal.go`.
const NODE_LOGS: &str = "/var/log";

/// Answers a request that is allowed.
pub(super) async fn answer(served: &Arc<Served>, endpoint: Endpoint, request: Request<Incoming>) -> Response {
    match endpoint {
        Endpoint::Exec(path) => exec(&served.streaming, &path, request),
        Endpoint::Attach(path) => attach(&served.streaming, &path, request),
        Endpoint::Run(path) => run(&served.streaming, &path, request).await,
        Endpoint::PortForward(path) => port_forward(&served.streaming, &path, request),
        Endpoint::Health(check) => health::answer(served, check, request.uri().query()),
        Endpoint::Pods => pods::wanted(served.view.clone()).await,
        Endpoint::RunningPods => pods::running(&served.view),
        Endpoint::Configz => of(StatusCode::OK, "application/json", served.configz.as_bytes().to_vec()),
        Endpoint::Metrics => metrics::of_agent(served),
        Endpoint::MetricsOfProbes => metrics::of_probes(served),
        Endpoint::MetricsOfHealth => metrics::of_health(served),
        Endpoint::ContainerLogs(path) => {
            served.container_logs().answer(&path, request.uri().query(), Timestamp::now())
        }
        Endpoint::NodeLogs { path } => {
            let (parts, _nothing) = request.into_parts();
            served.node_logs().answer(&path, &parts).await
        }
        Endpoint::Summary => summary::answer(served, request.uri().query().unwrap_or_default()).await,
        Endpoint::MetricsOfCgroups => metrics_cadvisor::answer(served).await,
        Endpoint::MetricsOfResources => metrics_resource::answer(served).await,
    }
}

impl Served {
    fn container_logs(&self) -> ContainerLogs<'_> {
        let config = &self.host.config;
        ContainerLogs {
            view: &self.view,
            paths: &config.node.paths,
            lane: &self.logs.containers,
            may_split: config.log_requests.may_split_streams,
        }
    }

    fn node_logs(&self) -> NodeLogs {
        NodeLogs {
            root: NODE_LOGS.into(),
            access: self.host.config.log_requests.of_node,
            journalctl: Program { command: "journalctl".to_owned(), ..Program::default() },
            lanes: self.logs.clone(),
        }
    }
}
