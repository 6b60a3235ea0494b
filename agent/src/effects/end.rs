//! What is kept of pods that have ended.

use std::sync::Arc;

use berth_core::{
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    record::PodRecord,
};

use super::{
    changeable,
    failure::failed,
    host::{Host, blocking},
};
use crate::workers::Sort;

/// Keeps how a pod has ended.
pub(super) async fn keep(host: &Arc<Host>, record: PodRecord) -> Result<Outcome, Failure> {
    root_answers(host, &record.uid).await?;
    let ended = host.ended.clone();
    blocking(move || ended.keep(&record).map_err(|error| failed(FailureKind::Transient, &error))).await?;
    Ok(Outcome::Done)
}

/// Drops what was kept of a pod.
pub(super) async fn drop(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    root_answers(host, pod).await?;
    let (ended, pod) = (host.ended.clone(), pod.clone());
    blocking(move || ended.drop(&pod).map_err(|error| failed(FailureKind::Transient, &error))).await?;
    Ok(Outcome::Done)
}

/// Threads write here, so it is a worker that waits for a disk that does not answer.
async fn root_answers(host: &Host, pod: &PodUid) -> Result<(), Failure> {
    let root = [host.node().paths.root.clone().into()];
    let answered = changeable(&host.workers, pod.as_str(), Sort::Ends, &root).await;
    answered.map_err(|message| Failure { kind: FailureKind::Transient, message })
}
