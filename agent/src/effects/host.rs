//! Everything that executors use.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use berth_core::{
    config::NodeConfig,
    failure::Failure,
    id::{PodUid, SandboxId},
};
use tokio::sync::watch;

use super::{
    SandboxHandlers, SandboxMembers,
    accounts::AccountsCache,
    failure::unknown,
    hooks_under_way::HooksUnderWay,
    image_ids::KnownIds,
    lanes::{Lanes, Place},
    layers::FreshLayers,
    leases::LeasesInUse,
    pulls::PullsUnderWay,
    unwanted::UnwantedPulls,
};
use crate::{
    cgroup::{Systemd, Tree},
    cluster::node::NodeObject,
    config::{Config, CurrentRuntime, RuntimeSettings},
    failpoint::Failpoint,
    metrics::Metrics,
    network::Network,
    objects::Objects,
    one_thread::OneThread,
    registry_accounts::NodeAccounts,
    runtime::{Containerd, GroupedTasks, RuntimeFeatures, Shims, probe::OciCommand},
    store::EndedPods,
    workers::Workers,
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
    pub grouped: GroupedTasks,
    /// CNI.
    pub network: Network,
    /// cgroups.
    pub cgroups: Arc<Tree>,
    /// systemd, which makes slices, with its driver.
    pub systemd: Option<Systemd>,
    /// What shims run containers with, unless the handler names something else.
    pub oci: OciCommand,
    /// What OCI runtimes can do.
    pub features: RuntimeFeatures,
    /// What holds of the settings that may change.
    pub runtime: watch::Receiver<CurrentRuntime>,
    /// Handlers of the sandboxes that there are.
    pub handlers: SandboxHandlers,
    /// Sandboxes that an earlier version left in the store of sandboxes: found once, since nobody puts more of ours there.
    pub stored: BTreeSet<SandboxId>,
    /// Containers of the sandboxes that this agent has made.
    pub members: SandboxMembers,
    /// Objects of the API server.
    pub objects: Objects,
    /// The Node object, where the node has a cluster.
    pub node_object: Option<NodeObject>,
    /// Layers of containers that nothing was started on yet.
    pub fresh_layers: FreshLayers,
    /// Account files by image.
    pub accounts: AccountsCache,
    /// Ids of images by what records point at.
    pub image_ids: KnownIds,
    /// The node's accounts at registries.
    pub node_accounts: NodeAccounts,
    /// Looks for settings of registries.
    pub(crate) registries: OneThread,
    /// Leases under which images are being unpacked.
    pub leases: LeasesInUse,
    /// Pulls that are under way.
    pub pulls: PullsUnderWay,
    /// Hooks that are under way.
    pub hooks: HooksUnderWay,
    /// Tells pulls that they are given up.
    pub unwanted: UnwantedPulls,
    /// What is kept of pods that have ended.
    pub ended: EndedPods,
    /// Bounds on concurrency.
    pub lanes: Lanes,
    /// Processes for files.
    pub workers: Workers,
    /// Where this program was when it began, or another version of it is by now.
    pub program: PathBuf,
    /// What is measured.
    pub metrics: Metrics,
    /// Where to die on purpose.
    pub failpoint: Failpoint,
}

impl Host {
    /// What the core knows of the node.
    pub(super) fn node(&self) -> &NodeConfig {
        &self.config.node
    }

    /// What holds now of the settings that may change.
    pub(super) fn settings(&self) -> Arc<RuntimeSettings> {
        Arc::clone(&self.runtime.borrow().settings)
    }

    /// The pod's directory.
    pub(super) fn pod_dir(&self, pod: &PodUid) -> String {
        berth_core::paths::pod_dir(&self.config.node.paths, pod)
    }
}

/// Runs calls that block on a thread of their own. What the effect holds is theirs until they have returned, also when the
/// effect is given up before.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let place = Place::of_this_task();
    let held = move || {
        let _place = place;
        work()
    };
    // Fails only when the agent is stopping.
    tokio::task::spawn_blocking(held).await.unwrap_or_else(|_cancelled| Err(unknown("the agent is stopping")))
}
