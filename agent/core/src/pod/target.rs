//! The container whose processes an ephemeral container sees.

use super::{
    actual::{Life, Preparing, Run},
    machine::PodMachine,
};
use crate::{
    id::{ContainerId, ContainerName},
    oci::ConfigError,
    spec::{Container, PidMode},
    time::Mono,
};

/// A container whose process namespace another one joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its run.
    pub id: ContainerId,
    /// Process id of its init.
    pub pid: u32,
}

/// Whose process namespace a container joins, where it names one and would have its own otherwise. Source: `getTargetID` of
/// `pkg/kubelet/kuberuntime/kuberuntime_container.go`, `validateTargetContainer` of containerd's `internal/cri/server/helpers.go`.
pub(super) fn target(life: &Life, container: &Container) -> Result<Option<Target>, ConfigError> {
    let Some(name) = &container.target else { return Ok(None) };
    let has_begun = life.record.containers.get(name).is_some_and(|record| {
        record.started_in.is_some() || record.exit.is_some() || record.last_exit.is_some()
    });
    if !has_begun {
        return Err(ConfigError::NoTarget { name: name.to_string() });
    }
    match life.spec.pid {
        PidMode::Pod | PidMode::Node => return Ok(None),
        PidMode::Container => {}
    }
    let pid = match life.run(name) {
        Run::Running(running) => running.pid,
        Run::Idle | Run::BackingOff | Run::Preparing(_) | Run::Starting(_) | Run::Ended(_) => None,
    };
    let pid = pid.ok_or_else(|| ConfigError::TargetNotRunning { name: name.to_string() })?;
    Ok(Some(Target { id: life.container_id(name), pid }))
}

impl PodMachine {
    /// A container runs: what could not start for lack of that is tried again.
    pub(super) fn end_waits_for_target(&mut self, target: &ContainerName, now: Mono) {
        let all = self.life.spec.ephemeral_containers.iter();
        for container in all.filter(|one| one.target.as_ref() == Some(target)) {
            if let Some(Run::Preparing(Preparing { refused: Some(refusal), .. })) =
                self.life.actual.containers.get_mut(&container.name)
            {
                refusal.retry.at = refusal.retry.at.min(now);
            }
        }
    }
}
