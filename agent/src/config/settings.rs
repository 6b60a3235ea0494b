//! The one value that everything in the agent is built from.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use berth_core::{cluster::node::NodeSettings, config::NodeConfig};

use super::{LiveFacts, PodRuntime};

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
    /// Containerd runtime by handler name; the empty name, which is always there, is the default.
    pub runtime_handlers: BTreeMap<String, PodRuntime>,
    /// Containerd's snapshotter for container layers.
    pub snapshotter: String,
    /// Directory of registry settings in containerd's `hosts.toml` form.
    pub registry_config_dir: PathBuf,
    /// How long a pull may wait for a byte of its registry.
    pub pull_progress_timeout: Duration,
    /// The agent's own socket, for the command line.
    pub control_socket: PathBuf,
    /// Where what changes on the node is read again.
    pub live: LiveFacts,
    /// The agent's own `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Whether settings of the kernel are left as they are, and refused where they do not fit (`protectKernelDefaults`).
    pub protect_kernel_defaults: bool,
    /// Where settings of the kernel are: `/proc/sys`, or what tests name in its place (`BERTH_SYSCTL_ROOT`).
    pub sysctl_root: PathBuf,
    /// Where the agent kills itself on purpose: tests of crash recovery name a point here (`BERTH_ABORT_AT`).
    pub abort_at: Option<String>,
}

/// The cluster that the node is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Where its API server is, and who the node is there (`--kubeconfig`).
    pub kubeconfig: PathBuf,
    /// How a certificate is asked for where the kubeconfig is missing (`--bootstrap-kubeconfig`).
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Where certificates are (`--cert-dir`).
    pub cert_dir: PathBuf,
    /// Whether the client certificate is replaced before it ends (`rotateCertificates`).
    pub rotates: bool,
    /// What the Node object says.
    pub node: NodeSettings,
    /// How fast events may be sent (`eventRecordQPS`, `eventBurst`).
    pub events: Rate,
    /// How fast other requests may follow each other (`kubeAPIQPS`, `kubeAPIBurst`).
    pub requests: Rate,
}

/// How fast requests may follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// In a second, on average.
    pub per_second: u32,
    /// At once.
    pub burst: u32,
}

/// Settings of CNI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cni {
    /// Directory of network configurations.
    pub conf_dir: PathBuf,
    /// Directories of plugins, searched in order.
    pub bin_dirs: Vec<PathBuf>,
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
