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

macro_rules! kinds {
    ($($kind:ident,)*) => {
        /// Which endpoint it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "they are those of Endpoint")]
        pub enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// All that there are.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];
        }
    };
}

kinds! {
    Health, Pods, RunningPods, Summary, Metrics, MetricsOfCgroups, MetricsOfResources, MetricsOfProbes, MetricsOfHealth, ContainerLogs,
    Exec, Attach, Run, PortForward, NodeLogs, Configz,
}

impl Endpoint {
    /// Which one it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Health(_) => Kind::Health,
            Self::Pods => Kind::Pods,
            Self::RunningPods => Kind::RunningPods,
            Self::Summary => Kind::Summary,
            Self::Metrics => Kind::Metrics,
            Self::MetricsOfCgroups => Kind::MetricsOfCgroups,
            Self::MetricsOfResources => Kind::MetricsOfResources,
            Self::MetricsOfProbes => Kind::MetricsOfProbes,
            Self::MetricsOfHealth => Kind::MetricsOfHealth,
            Self::ContainerLogs(_) => Kind::ContainerLogs,
            Self::Exec(_) => Kind::Exec,
            Self::Attach(_) => Kind::Attach,
            Self::Run(_) => Kind::Run,
            Self::PortForward(_) => Kind::PortForward,
            Self::NodeLogs { .. } => Kind::NodeLogs,
            Self::Configz => Kind::Configz,
        }
    }
}

impl Kind {
    /// Methods that it takes, in the order in which they are told; none where it takes all of them. Source: routes of `server.go`; what is
    /// a handler there (`Handle`) does not look at the method.
    #[must_use]
    pub fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Exec | Self::Attach | Self::PortForward | Self::Summary => &["GET", "POST"],
            Self::Run => &["POST"],
            Self::Pods | Self::RunningPods | Self::ContainerLogs | Self::NodeLogs => &["GET"],
            Self::Health
            | Self::Metrics
            | Self::MetricsOfCgroups
            | Self::MetricsOfResources
            | Self::MetricsOfProbes
            | Self::MetricsOfHealth
            | Self::Configz => &[],
        }
    }

    /// Whether it takes a method. Nothing takes `CONNECT`, after which a connection is no longer one of HTTP.
    #[must_use]
    pub fn takes(self, method: &str) -> bool {
        let methods = self.methods();
        method != "CONNECT" && (methods.is_empty() || methods.contains(&method))
    }

    /// Whether its answer may be another protocol.
    #[must_use]
    pub fn is_stream(self) -> bool {
        matches!(self, Self::Exec | Self::Attach | Self::PortForward)
    }

    /// Requests for it, in all forms: methods, and paths in the namespace `ns`, of the pod `p` with the UID `u`, of the container `c`. Each
    /// asks for something that may not be given to everybody.
    #[must_use]
    pub fn examples(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Health => &[
                ("GET", "/healthz"),
                ("GET", "/healthz/ping"),
                ("GET", "/healthz/log"),
                ("GET", "/healthz/syncloop"),
                ("HEAD", "/healthz"),
            ],
            Self::Pods => &[("GET", "/pods"), ("GET", "/pods/")],
            Self::RunningPods => &[("GET", "/runningpods/"), ("GET", "/runningpods")],
            Self::Summary => &[("GET", "/stats/summary"), ("POST", "/stats/summary")],
            Self::Metrics => &[("GET", "/metrics"), ("POST", "/metrics")],
            Self::MetricsOfCgroups => &[("GET", "/metrics/cadvisor")],
            Self::MetricsOfResources => &[("GET", "/metrics/resource")],
            Self::MetricsOfProbes => &[("GET", "/metrics/probes")],
            Self::MetricsOfHealth => &[("GET", "/metrics/slis"), ("DELETE", "/metrics/slis")],
            Self::ContainerLogs => &[("GET", "/containerLogs/ns/p/c")],
            Self::Exec => &[
                ("GET", "/exec/ns/p/c"),
                ("POST", "/exec/ns/p/c"),
                ("GET", "/exec/ns/p/u/c"),
                ("POST", "/exec/ns/p/u/c"),
            ],
            Self::Attach => &[
                ("GET", "/attach/ns/p/c"),
                ("POST", "/attach/ns/p/c"),
                ("GET", "/attach/ns/p/u/c"),
                ("POST", "/attach/ns/p/u/c"),
            ],
            Self::Run => &[("POST", "/run/ns/p/c"), ("POST", "/run/ns/p/u/c")],
            Self::PortForward => &[
                ("GET", "/portForward/ns/p"),
                ("POST", "/portForward/ns/p"),
                ("GET", "/portForward/ns/p/u"),
                ("POST", "/portForward/ns/p/u"),
            ],
            Self::NodeLogs => &[("GET", "/logs"), ("GET", "/logs/"), ("GET", "/logs/syslog")],
            Self::Configz => &[("GET", "/configz"), ("GET", "/%63onfigz")],
        }
    }

    /// The examples of all endpoints.
    pub fn all_examples() -> impl Iterator<Item = (Self, &'static str, &'static str)> {
        let of = |&kind: &Self| kind.examples().iter().map(move |(method, path)| (kind, *method, *path));
        Self::ALL.iter().flat_map(of)
    }
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
    /// Its UID, where the path has one. Where it counts, no other pod of that name is meant.
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
