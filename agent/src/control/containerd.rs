//! Containerd as the runtime of the control socket.

use berth_core::id::ContainerId;
use oci_spec::runtime::Spec;

use super::server::Runtime;
use crate::runtime::{Containerd, recorded_spec};

impl Runtime for Containerd {
    async fn spec(&self, id: &ContainerId) -> Result<Spec, String> {
        recorded_spec(self, id).await
    }
}
