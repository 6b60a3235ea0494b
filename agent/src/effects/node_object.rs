//! The Node object, read for a pod that its labels keep out.

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
};

use super::{failure::failed, host::Host};

pub(super) async fn read(host: &Host) -> Result<Outcome, Failure> {
    let Some(object) = &host.node_object else {
        let message = "the node has no cluster, and so no object".to_owned();
        return Err(Failure { kind: FailureKind::Config, message });
    };
    let info = object.read().await.map_err(|error| failed(FailureKind::Transient, &error))?;
    Ok(Outcome::NodeObject(Box::new(info)))
}
