//! Where layers are.

use std::time::Duration;

use containerd_client::services::v1::PluginsRequest;

use super::{CallError, Containerd};

/// Where a snapshotter has its layers. `None` where it does not say so.
///
/// # Errors
/// See [`CallError`].
pub async fn layers_dir(
    containerd: &Containerd,
    snapshotter: &str,
    within: Duration,
) -> Result<Option<String>, CallError> {
    let filter = format!("type==io.containerd.snapshotter.v1,id=={snapshotter}");
    let request = PluginsRequest { filters: vec![filter] };
    let mut client = containerd.introspection();
    let asking = client.plugins(request);
    let answer = containerd.call_within(within, "ask for the snapshotter", snapshotter, asking).await?;
    let root = answer.plugins.into_iter().find_map(|mut plugin| plugin.exports.remove("root"));
    Ok(root.map(|root| root.trim_end_matches('/').to_owned()).filter(|root| root.starts_with('/')))
}
