//! cgroups of pods and of their classes.

use std::sync::Arc;

use berth_core::{
    cgroup::{QosValues, names, translate},
    effect::CgroupRequest,
    event::{Failure, FailureKind, Outcome},
    id::PodUid,
    spec::QosClass,
};

use super::{
    failure::failed,
    host::{Host, blocking},
};
use crate::cgroup::TreeError;

/// Makes the pod's cgroup below its class, with its values.
pub(super) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: CgroupRequest,
) -> Result<Outcome, Failure> {
    let settings = &host.node().cgroups;
    let parent = names::qos(settings, request.qos);
    let path = names::pod(settings, request.qos, pod);
    let files = translate(&request.values, settings.version);
    on_tree(host, move |host| {
        host.cgroups.ensure(&parent)?;
        host.cgroups.ensure(&path)?;
        host.cgroups.write(&path, &files)
    })
    .await
}

/// Sets the values of the three levels above pods, making them where they are missing.
pub(super) async fn set_qos(host: &Arc<Host>, values: QosValues) -> Result<Outcome, Failure> {
    let settings = &host.node().cgroups;
    let levels = [
        (names::kubepods(settings), translate(&values.kubepods, settings.version)),
        (names::qos(settings, QosClass::Burstable), translate(&values.burstable, settings.version)),
        (names::qos(settings, QosClass::BestEffort), translate(&values.best_effort, settings.version)),
    ];
    on_tree(host, move |host| {
        for (path, files) in &levels {
            host.cgroups.ensure(path)?;
            host.cgroups.write(path, files)?;
        }
        Ok(())
    })
    .await
}

/// Kills what is left in the pod's cgroup and removes it.
pub(super) async fn remove(host: &Arc<Host>, pod: &PodUid, qos: QosClass) -> Result<Outcome, Failure> {
    let path = names::pod(&host.node().cgroups, qos, pod);
    on_tree(host, move |host| host.cgroups.remove(&path)).await
}

/// The same under whichever class it is.
pub(super) async fn remove_any(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    for qos in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
        remove(host, pod, qos).await?;
    }
    Ok(Outcome::Done)
}

async fn on_tree(
    host: &Arc<Host>,
    work: impl FnOnce(&Host) -> Result<(), TreeError> + Send + 'static,
) -> Result<Outcome, Failure> {
    let host = Arc::clone(host);
    blocking(move || {
        work(&host).map_err(|error| failed(FailureKind::Transient, &error))?;
        Ok(Outcome::Done)
    })
    .await
}
