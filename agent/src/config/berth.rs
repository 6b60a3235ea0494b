//! `BerthConfiguration` of `berth.dev/v1alpha1`: what the kubelet's configuration has no word for.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::GoDuration;

/// The document. Lives beside a `KubeletConfiguration` in the same files.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BerthConfiguration {
    /// Runtime state of the agent and its socket; `/run/berth`. Best on a tmpfs: it must not outlive a reboot.
    pub state_dir: Option<PathBuf>,
    /// Containerd's own configuration, whose section of CRI holds where this document says nothing;
    /// `/etc/containerd/config.toml`. Empty is none.
    pub containerd_config: Option<PathBuf>,
    /// Settings of CNI.
    pub cni: Option<CniSection>,
    /// How containers are run.
    pub runtime: Option<RuntimeSection>,
    /// Containerd's snapshotter; `overlayfs`.
    pub snapshotter: Option<String>,
    /// Registry settings in containerd's `hosts.toml` form; `/etc/containerd/certs.d`.
    pub registry_config_dir: Option<PathBuf>,
    /// How long a pull may wait for a byte of its registry, as `image_pull_progress_timeout` of containerd's CRI; `5m`.
    pub image_pull_progress_timeout: Option<GoDuration>,
}

/// `cni`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CniSection {
    /// Network configurations; `/etc/cni/net.d`.
    pub conf_dir: Option<PathBuf>,
    /// Plugins, searched in order; `[/opt/cni/bin]`.
    pub bin_dirs: Option<Vec<PathBuf>>,
    /// Results of ADD; `/var/lib/cni`, where libcni keeps them.
    pub cache_dir: Option<PathBuf>,
    /// How often what an earlier agent left attached is tried to be removed, and plugins are told; `1h`.
    pub gc_period: Option<GoDuration>,
    /// Whether plugins of CNI 1.1 are told to remove what is not in `cacheDir`; `false`. Only for a node on which nobody
    /// else attaches anything to the network.
    #[serde(rename = "pluginGC")]
    pub plugin_gc: Option<bool>,
}

/// `runtime`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSection {
    /// `auto`, a name such as `crun` or `runc`, or an absolute path.
    pub oci_runtime: Option<String>,
    /// Containerd runtime by RuntimeClass handler.
    pub handlers: Option<BTreeMap<String, String>>,
    /// Handler of pods without a RuntimeClass; one of `handlers`, or the built-in `berth`.
    pub default_handler: Option<String>,
}
