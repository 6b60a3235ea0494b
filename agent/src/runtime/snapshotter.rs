//! What a snapshotter says of itself.

use std::time::Duration;

use containerd_client::services::v1::{Plugin, PluginsRequest};

use super::{CallError, Containerd};

/// Capability of one that has the files of a layer belong to others, for which nothing is copied (`core/snapshots/snapshotter.go`,
/// `client/snapshotter_opts_unix.go` of containerd).
pub const REMAP_IDS: &str = "remap-ids";

/// Where a snapshotter has its layers. `None` where it does not say so.
///
/// # Errors
/// See [`CallError`].
pub async fn layers_dir(
    containerd: &Containerd,
    snapshotter: &str,
    within: Duration,
) -> Result<Option<String>, CallError> {
    let plugin = ask(containerd, snapshotter, within).await?;
    let root = plugin.and_then(|mut plugin| plugin.exports.remove("root"));
    Ok(root.map(|root| root.trim_end_matches('/').to_owned()).filter(|root| root.starts_with('/')))
}

/// Whether a snapshotter can [shift owners](REMAP_IDS).
///
/// # Errors
/// See [`CallError`].
pub async fn shifts_owners(
    containerd: &Containerd,
    snapshotter: &str,
    within: Duration,
) -> Result<bool, CallError> {
    let plugin = ask(containerd, snapshotter, within).await?;
    Ok(plugin.is_some_and(|plugin| plugin.capabilities.iter().any(|capability| capability == REMAP_IDS)))
}

async fn ask(
    containerd: &Containerd,
    snapshotter: &str,
    within: Duration,
) -> Result<Option<Plugin>, CallError> {
    let filter = format!("type==io.containerd.snapshotter.v1,id=={snapshotter}");
    let request = PluginsRequest { filters: vec![filter] };
    let mut client = containerd.introspection();
    let asking = client.plugins(request);
    let answer = containerd.call_within(within, "ask for the snapshotter", snapshotter, asking).await?;
    Ok(answer.plugins.into_iter().next())
}
