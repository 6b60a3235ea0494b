//! The one value that everything in the agent is built from.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use berth_core::{
    cluster::{node::NodeSettings, proxy::Proxies, throttle::Rate},
    config::{MemoryVolumes, NodeConfig},
    image::access::Verification,
};

use super::{LiveFacts, RuntimeSettings, RuntimeSource, ServerSettings};

/// Everything that the agent is built from: checked, with every default applied.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What the core knows of the node.
    pub node: NodeConfig,
    /// Containerd's socket (`containerRuntimeEndpoint`).
    pub containerd_socket: PathBuf,
    /// Namespace within containerd: `k8s.io`, so that every tool of the field finds the pods.
    pub containerd_namespace: String,
    /// Longest time a call to containerd may take (`runtimeRequestTimeout`); pulls are not bound by it.
    pub runtime_timeout: Duration,
    /// Where the certificate of the node's server comes from; `None` where there is no server (`enableServer`).
    pub serving: Option<ServingCertificate>,
    /// The node's server; `None` where there is none.
    pub server: Option<ServerSettings>,
    /// The cluster that the node is of; `None` where it has none.
    pub cluster: Option<Cluster>,
    /// Where the agent says that it lives (`healthzBindAddress`, `healthzPort`); `None` is nowhere.
    pub healthz: Option<SocketAddr>,
    /// File or directory of manifests (`staticPodPath`).
    pub static_pod_path: Option<PathBuf>,
    /// How often manifests are read again, beside being watched (`fileCheckFrequency`).
    pub file_check: Duration,
    /// Settings of CNI.
    pub cni: Cni,
    /// The OCI runtime of pods.
    pub oci_runtime: OciRuntime,
    /// Statistics.
    pub stats: StatsSettings,
    /// Accounts at registries that every pod may use.
    pub registry_accounts: RegistryAccounts,
    /// What the agent begins with of that which may change while it runs.
    pub runtime: RuntimeSettings,
    /// Where that is read again.
    pub runtime_source: RuntimeSource,
    /// Which images ask pods for credentials though they are on the node.
    pub image_verification: Verification,
    /// How long a pull may wait for a byte of its registry.
    pub pull_progress_timeout: Duration,
    /// The agent's own socket, for the command line.
    pub control_socket: PathBuf,
    /// Where what changes on the node is read again.
    pub live: LiveFacts,
    /// What becomes of volumes in memory when the machine runs short of it.
    pub memory_volumes: MemoryVolumes,
    /// Requests about logs.
    pub log_requests: LogRequests,
    /// Whether chains of iptables are made for other components (`makeIPTablesUtilChains`).
    pub makes_iptables_chains: bool,
    /// Feature gates that this version acts on.
    pub gates: Vec<FeatureGate>,
    /// The agent's own `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Whether settings of the kernel are left as they are, and refused where they do not fit (`protectKernelDefaults`).
    pub protect_kernel_defaults: bool,
    /// Where settings of the kernel are: `/proc/sys`, or what tests name in its place (`BERTH_SYSCTL_ROOT`).
    pub sysctl_root: PathBuf,
    /// Where the agent kills or stops itself on purpose: tests name a point here (`BERTH_ABORT_AT`).
    pub abort_at: Option<String>,
}

/// A feature gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureGate {
    /// Its name.
    pub name: &'static str,
    /// How far the feature is in Kubernetes: `ALPHA`, `BETA`, `DEPRECATED`, or nothing where it is there for good.
    pub stage: &'static str,
    /// Whether it is on.
    pub is_on: bool,
}

/// How requests about logs are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRequests {
    /// What is shown of the node's own logs.
    pub of_node: NodeLogAccess,
    /// Whether one stream of a container can be asked for (the feature gate `PodLogsQuerySplitStreams`).
    pub may_split_streams: bool,
}

/// What is shown of the node's own logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeLogAccess {
    /// Nothing (`enableSystemLogHandler: false`).
    Nothing,
    /// Files of the log directory.
    Files,
    /// Logs of services too (`enableSystemLogQuery`).
    Services,
}

/// Settings of statistics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatsSettings {
    /// How often volumes are measured (`volumeStatsAggPeriod`); `None` is never.
    pub volume_period: Option<Duration>,
    /// Cgroup that is shown as the runtime's (`--runtime-cgroups`).
    pub runtime_cgroup: Option<String>,
    /// Cgroup that is shown as that of the system (`systemCgroups`).
    pub system_cgroup: Option<String>,
}

/// Accounts at registries that the node has, for every pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryAccounts {
    /// Directories that may have a `config.json`, the first of which counts.
    pub json_dirs: Vec<PathBuf>,
    /// Directories that may have a `.dockercfg`, which counts where there is no `config.json`.
    pub plain_dirs: Vec<PathBuf>,
    /// Programs that say accounts (`--image-credential-provider-config`).
    pub providers: Vec<CredentialProvider>,
}

/// A program that says accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialProvider {
    /// Its name, for the log.
    pub name: String,
    /// What is run.
    pub command: String,
    /// With these arguments.
    pub args: Vec<String>,
    /// And more of the environment.
    pub env: Vec<(String, String)>,
    /// Version of what it is asked and answers.
    pub version: String,
    /// Images that it is asked for.
    pub images: Vec<String>,
    /// How long an answer holds that does not say so.
    pub keep: Duration,
}

/// Where the certificate of the node's own server comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServingCertificate {
    /// Files that somebody else keeps (`tlsCertFile`, `tlsPrivateKeyFile`).
    Files {
        /// The certificate, with those between it and its authority.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// `kubelet.crt` and `kubelet.key` of a directory (`--cert-dir`), which are made where they are missing.
    SelfSigned {
        /// The directory.
        dir: PathBuf,
    },
    /// The cluster gives it, and another one before it ends (`serverTLSBootstrap`).
    OfCluster {
        /// Where it is kept (`--cert-dir`).
        dir: PathBuf,
    },
}

/// The cluster that the node is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Where its API server is, and who the node is there (`--kubeconfig`).
    pub kubeconfig: PathBuf,
    /// How a certificate is asked for where the kubeconfig is missing (`--bootstrap-kubeconfig`).
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Proxies on the way to it that the environment names.
    pub proxies: Proxies,
    /// Where certificates are (`--cert-dir`).
    pub cert_dir: PathBuf,
    /// Whether the client certificate is replaced before it ends (`rotateCertificates`).
    pub rotates: bool,
    /// What the Node object says.
    pub node: NodeSettings,
    /// How fast events may be sent.
    pub events: EventRate,
    /// How fast other requests may follow each other.
    pub requests: RequestRate,
}

/// The rate of events (`eventRecordQPS`, `eventBurst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRate(pub Rate);

/// The rate of all other requests (`kubeAPIQPS`, `kubeAPIBurst`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate(pub Rate);

/// Settings of CNI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cni {
    /// Directory in which results are kept for DEL and CHECK.
    pub cache_dir: PathBuf,
    /// How often leftovers are collected.
    pub gc_period: Duration,
    /// Whether plugins are told what is valid, and so remove the rest.
    pub plugin_gc: bool,
}

/// Which OCI runtime runs the containers of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OciRuntime {
    /// Crun where a probe at start shows that it works here, else runc.
    Auto,
    /// This one, found in `PATH`.
    Named(String),
    /// This file.
    Path(PathBuf),
}
