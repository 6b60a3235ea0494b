//! What is kept of pods that have ended.

use std::sync::Arc;

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    record::PodRecord,
};

use super::{
    failure::failed,
    host::{Host, blocking},
};

/// Keeps how a pod has ended.
pub(super) async fn keep(host: &Arc<Host>, record: PodRecord) -> Result<Outcome, Failure> {
    let ended = host.ended.clone();
    blocking(move || ended.keep(&record).map_err(|error| failed(FailureKind::Transient, &error))).await?;
    Ok(Outcome::Done)
}

/// Drops what was kept of a pod.
pub(super) async fn drop(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    let (ended, pod) = (host.ended.clone(), pod.clone());
    blocking(move || ended.drop(&pod).map_err(|error| failed(FailureKind::Transient, &error))).await?;
    Ok(Outcome::Done)
}
