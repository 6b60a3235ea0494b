//! cgroups of pods and of their classes.

use std::sync::Arc;

use berth_core::{
    cgroup::{CgroupFile, CgroupValues, QosValues, Slice, kept_by, names, slice, slice_name, translate},
    config::CgroupSettings,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    pod::port::cgroup::CgroupRequest,
    spec::QosClass,
};

use super::{
    failure::failed,
    host::{Host, blocking},
};
use crate::cgroup::{Systemd, SystemdError, Tree, TreeError};

/// A level to be there, with its values.
pub(super) struct Level {
    path: String,
    slice: Slice,
    files: Vec<CgroupFile>,
}

impl Level {
    fn new(settings: &CgroupSettings, path: String, values: CgroupValues) -> Self {
        let values = kept_by(settings.driver, values);
        Self {
            slice: slice(&path, &values, settings.version),
            files: translate(&values, settings.version),
            path,
        }
    }

    /// Whether it is there and has its values.
    pub(super) fn is_kept(&self, tree: &Tree) -> Result<bool, TreeError> {
        tree.has(&self.path, &self.files)
    }
}

/// The level of a pod.
pub(super) fn level_of(host: &Host, pod: &PodUid, request: CgroupRequest) -> Level {
    let settings = &host.node().cgroups;
    Level::new(settings, names::pod(settings, request.qos, pod), request.values)
}

/// Makes the pod's cgroup below its class, with its values.
pub(super) async fn ensure(
    host: &Arc<Host>,
    pod: &PodUid,
    request: CgroupRequest,
) -> Result<Outcome, Failure> {
    let settings = &host.node().cgroups;
    let levels = vec![
        Level::new(settings, names::qos(settings, request.qos), CgroupValues::default()),
        level_of(host, pod, request),
    ];
    ensure_levels(host, levels).await
}

/// Sets the values of the three levels above pods, making them where they are missing.
pub(super) async fn set_qos(host: &Arc<Host>, values: QosValues) -> Result<Outcome, Failure> {
    let settings = &host.node().cgroups;
    let levels = vec![
        Level::new(settings, names::kubepods(settings), values.kubepods),
        Level::new(settings, names::qos(settings, QosClass::Burstable), values.burstable),
        Level::new(settings, names::qos(settings, QosClass::BestEffort), values.best_effort),
    ];
    ensure_levels(host, levels).await
}

/// Kills what is left in the pod's cgroup and removes it.
pub(super) async fn remove(host: &Arc<Host>, pod: &PodUid, qos: QosClass) -> Result<Outcome, Failure> {
    let path = names::pod(&host.node().cgroups, qos, pod);
    if let Some(systemd) = &host.systemd {
        // Else systemd gives what is left in it another minute and a half to end.
        let level = path.clone();
        on_tree(host, move |host| {
            host.cgroups.kill(&level);
            Ok(())
        })
        .await?;
        stop_slice(systemd, &path).await.map_err(|error| refused(&error))?;
    }
    on_tree(host, move |host| host.cgroups.remove(&path)).await
}

/// The same under whichever class it is.
pub(super) async fn remove_any(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    for qos in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
        remove(host, pod, qos).await?;
    }
    Ok(Outcome::Done)
}

async fn ensure_levels(host: &Arc<Host>, levels: Vec<Level>) -> Result<Outcome, Failure> {
    if let Some(systemd) = &host.systemd {
        let slices: Vec<_> = levels.iter().map(|level| (level.path.as_str(), &level.slice)).collect();
        systemd.ensure_all(&host.cgroups, &slices).await.map_err(|error| refused(&error))?;
    }
    on_tree(host, move |host| {
        for Level { path, files, .. } in &levels {
            host.cgroups.ensure(path)?;
            host.cgroups.write(path, files)?;
        }
        Ok(())
    })
    .await
}

async fn stop_slice(systemd: &Systemd, path: &str) -> Result<(), SystemdError> {
    systemd.connect().await?.stop(slice_name(path)).await
}

/// Whether a late call was heard is not known.
fn refused(error: &SystemdError) -> Failure {
    let kind = match error {
        SystemdError::Late { .. } => FailureKind::Unknown,
        SystemdError::Connect(..) | SystemdError::Call { .. } | SystemdError::Job { .. } => {
            FailureKind::Transient
        }
    };
    failed(kind, error)
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
