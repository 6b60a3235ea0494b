//! Sandboxes: made by the pod's runtime, removed by whichever made them.

use std::sync::Arc;

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{PodUid, SandboxId},
    pod::port::sandbox::SandboxRequest,
};

use super::{berth, container, grouped, handlers, kill, port::Runtime, records};
use crate::effects::{failure::failed, host::Host};

/// Makes the pod's sandbox, or finds it.
pub(in crate::effects) async fn ensure(
    host: &Arc<Host>,
    request: &SandboxRequest,
) -> Result<Outcome, Failure> {
    let known = host.handlers.get(&request.id);
    let mut handler = match &known {
        Some(known) => Arc::clone(known),
        None => handlers::named_by(host, &request.pod).await?,
    };
    Runtime::of(host, &handler).accepts(request)?;
    let recorded = records::ensure_sandbox(host, request, &handler).await?;
    if !recorded.is_new && known.is_none() {
        // An earlier try, whose handler may have been another.
        let earlier = records::handler(host, &request.id).await?;
        handler = earlier.map_or(handler, Arc::new);
    }
    host.handlers.keep(&request.id, Arc::clone(&handler));
    let pid = Runtime::of(host, &handler).ensure_sandbox(request, recorded).await?;
    let features = if request.pod.asks_for_recursive_read_only() {
        let told = host.features.of(&handler.runtime).await;
        told.map_err(|error| failed(FailureKind::Transient, &error))?
    } else {
        host.features.known(&handler.runtime)
    };
    Ok(Outcome::Sandbox { pid, recursive_read_only: features.recursive_read_only })
}

/// Stops the pod's sandbox with everything in it, and forgets it. Under which runtime it was made, a handler that was taken
/// out of the configuration can no longer tell: both look for what is theirs.
pub(in crate::effects) async fn remove(
    host: &Arc<Host>,
    pod: &PodUid,
    id: &SandboxId,
) -> Result<Outcome, Failure> {
    host.shims.forget(id);
    host.handlers.forget(id);
    if records::of_another(host, id.as_str()).await?.is_some() {
        return Ok(Outcome::Done);
    }
    kill::must_answer(host, id).await?;
    let members = match host.members.take(id) {
        Some(members) => members,
        None => records::members(host, pod, id).await?,
    };
    for container in members {
        container::remove(host, &container).await?;
    }
    grouped::remove_sandbox(host, id).await?;
    host.failpoint.reach("grouped.released");
    berth::remove_sandbox(host, id).await?;
    records::delete_sandbox(host, id).await?;
    Ok(Outcome::Done)
}
