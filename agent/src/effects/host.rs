//! Everything that executors use.

use std::sync::Arc;

use berth_core::{config::NodeConfig, event::Failure, id::PodUid};

use super::{failure::unknown, grouped::Grouped, lanes::Lanes, rootfs::AccountsCache};
use crate::{
    cgroup::{Systemd, Tree},
    config::Config,
    failpoint::Failpoint,
    network::Network,
    runtime::{Containerd, Shims, probe::OciCommand},
};

/// The ports that effects are performed on.
#[derive(Debug)]
pub struct Host {
    /// Settings.
    pub config: Arc<Config>,
    /// Containerd.
    pub containerd: Containerd,
    /// Shims being followed.
    pub shims: Shims,
    /// Containers under shims of others.
    pub grouped: Grouped,
    /// CNI.
    pub network: Network,
    /// cgroups.
    pub cgroups: Tree,
    /// Who makes slices, with the systemd driver.
    pub systemd: Option<Systemd>,
    /// What shims run containers with.
    pub oci: OciCommand,
    /// Account files by image.
    pub accounts: AccountsCache,
    /// Bounds on concurrency.
    pub lanes: Lanes,
    /// Where to die on purpose.
    pub failpoint: Failpoint,
}

impl Host {
    /// What the core knows of the node.
    pub(super) fn node(&self) -> &NodeConfig {
        &self.config.node
    }

    /// The pod's directory.
    pub(super) fn pod_dir(&self, pod: &PodUid) -> String {
        berth_core::paths::pod_dir(&self.config.node.paths, pod)
    }
}

/// Runs calls that block on a thread of their own.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    // Fails only when the agent is stopping.
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_cancelled| Err(unknown("the agent is stopping")))
}
