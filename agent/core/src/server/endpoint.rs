//! What can be asked of the node's server.

use crate::id::{ContainerName, PodName, PodUid};

/// An endpoint, with what the path of the request says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `/healthz` and what is below it.
    Health(HealthCheck),
    /// `/pods`: all pods that are wanted here.
    Pods,
    /// `/runningpods/`: all pods of which something runs.
    RunningPods,
    /// `/stats/summary`.
    Summary,
    /// `/metrics`: of the agent itself.
    Metrics,
    /// `/metrics/cadvisor`: of cgroups.
    MetricsOfCgroups,
    /// `/metrics/resource`: what autoscalers read.
    MetricsOfResources,
    /// `/metrics/probes`.
    MetricsOfProbes,
    /// `/metrics/slis`: of health checks.
    MetricsOfHealth,
    /// `/containerLogs/{namespace}/{pod}/{container}`.
    ContainerLogs(ContainerPath),
    /// `/exec/{namespace}/{pod}[/{uid}]/{container}`.
    Exec(ContainerPath),
    /// `/attach/{namespace}/{pod}[/{uid}]/{container}`.
    Attach(ContainerPath),
    /// `/run/{namespace}/{pod}[/{uid}]/{container}`.
    Run(ContainerPath),
    /// `/portForward/{namespace}/{pod}[/{uid}]`.
    PortForward(PodPath),
    /// `/logs/{path}`: files of the node's log directory, or its journal. The path is relative and has no `..`.
    NodeLogs {
        /// Below the log directory; empty for itself.
        path: String,
    },
    /// `/configz`: the configuration that is in use.
    Configz,
}

/// A check of `/healthz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthCheck {
    /// All of them.
    All,
    /// `/healthz/ping`.
    Ping,
    /// `/healthz/log`.
    Log,
    /// `/healthz/syncloop`.
    SyncLoop,
}

/// A pod in a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPath {
    /// Its namespace and name.
    pub name: PodName,
    /// Its UID, where the path has one: then no other pod of that name is meant.
    pub uid: Option<PodUid>,
}

/// A container in a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPath {
    /// Its pod.
    pub pod: PodPath,
    /// Its name.
    pub container: ContainerName,
}
