//! What is answered, one file for each endpoint.

mod container_logs;
mod health;
mod metrics;
pub(super) mod node_logs;
mod pods;
mod summary;

use std::sync::Arc;

use berth_core::server::Endpoint;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;

use self::{container_logs::ContainerLogs, metrics::Own, node_logs::NodeLogs};
use super::{
    Response, Served,
    answer::{error, json, of},
    streaming::{attach, exec, port_forward, run},
};
use crate::{
    program::Program,
    stats::{Part, Reading},
};

/// The node's own logs. Source: `nodeLogDir` of `pkg/kubelet/kubelet_server_journal.go`.
const NODE_LOGS: &str = "/var/log";

/// Answers a request that is allowed.
pub(super) async fn answer(served: &Arc<Served>, endpoint: Endpoint, request: Request<Incoming>) -> Response {
    let whole = served.lanes.whole.of(request.extensions());
    match endpoint {
        Endpoint::Exec(path) => exec(&served.streaming, &path, request),
        Endpoint::Attach(path) => attach(&served.streaming, &path, request),
        Endpoint::Run(path) => run(&served.streaming, &path, request).await,
        Endpoint::PortForward(path) => port_forward(&served.streaming, &path, request),
        Endpoint::Health(check) => health::answer(served, check, request.uri().query()),
        Endpoint::Pods => pods::wanted(served.view.clone(), &whole).await,
        Endpoint::RunningPods => pods::running(served.view.clone(), &whole).await,
        Endpoint::Configz => of(StatusCode::OK, "application/json", served.configz.as_bytes().to_vec()),
        Endpoint::Metrics => metrics::own(served, Own::Agent, request.headers(), &whole).await,
        Endpoint::MetricsOfProbes => metrics::own(served, Own::Probes, request.headers(), &whole).await,
        Endpoint::MetricsOfHealth => {
            metrics::health(served, request.method(), request.headers(), &whole).await
        }
        Endpoint::MetricsOfCgroups => {
            let text = Reading::cgroup_metrics;
            metrics::read(served, Part::Everything, text, request.headers(), &whole).await
        }
        Endpoint::MetricsOfResources => {
            let text = Reading::resource_metrics;
            metrics::read(served, Part::ProcessorsAndMemory, text, request.headers(), &whole).await
        }
        Endpoint::ContainerLogs(path) => {
            served.container_logs().answer(&path, request.uri().query(), Timestamp::now())
        }
        Endpoint::NodeLogs { path } => {
            let (parts, _nothing) = request.into_parts();
            served.node_logs().answer(&path, &parts).await
        }
        Endpoint::Summary => summary::answer(served, request.uri().query().unwrap_or_default(), &whole).await,
    }
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

    fn node_logs(&self) -> NodeLogs {
        NodeLogs {
            root: NODE_LOGS.into(),
            access: self.host.config.log_requests.of_node,
            journalctl: Program { command: "journalctl".to_owned(), ..Program::default() },
            lanes: self.lanes.clone(),
        }
    }
}
