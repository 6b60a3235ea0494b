//! What containerd has recorded of a container's process: shims before version 4 cannot run a command by themselves.

use berth_core::id::ContainerId;
use containerd_client::services::v1::GetContainerRequest;
use oci_spec::runtime::Spec;

use super::Containerd;
use crate::causes::with_causes;

/// The OCI spec that a container was created with.
///
/// # Errors
/// Why there is none, for people.
pub async fn recorded_spec(containerd: &Containerd, id: &ContainerId) -> Result<Spec, String> {
    let mut client = containerd.containers();
    let request = GetContainerRequest { id: id.as_str().to_owned() };
    let answer = containerd.call("get container", id.as_str(), client.get(request)).await;
    let container = answer.map_err(|error| with_causes(&error))?.container;
    let spec = container.and_then(|container| container.spec).ok_or("the record has no spec")?;
    serde_json::from_slice(&spec.value).map_err(|error| with_causes(&error))
}
