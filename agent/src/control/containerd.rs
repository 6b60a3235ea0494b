//! Containerd as the runtime of the control socket.

use berth_core::id::ContainerId;
use containerd_client::services::v1::GetContainerRequest;
use oci_spec::runtime::Spec;

use super::server::Runtime;
use crate::{causes::with_causes, runtime::Containerd};

impl Runtime for Containerd {
    async fn spec(&self, id: &ContainerId) -> Result<Spec, String> {
        let mut client = self.containers();
        let request = GetContainerRequest { id: id.as_str().to_owned() };
        let answer = self.call("get container", id.as_str(), client.get(request)).await;
        let container = answer.map_err(|error| with_causes(&error))?.container;
        let spec = container.and_then(|container| container.spec).ok_or("the record has no spec")?;
        serde_json::from_slice(&spec.value).map_err(|error| with_causes(&error))
    }
}
