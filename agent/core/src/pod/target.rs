//! The container whose processes an ephemeral container sees.

use super::{
    actual::{Life, Preparing, Run},
    machine::PodMachine,
};
use crate::{
    id::{ContainerId, ContainerName},
    observation::ObservedTask,
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

impl Target {
    /// Whether what is found of its run is still the process that was joined by its id: so long that id was no other's.
    #[must_use]
    pub fn is(&self, found: &ObservedTask) -> bool {
        matches!(found, ObservedTask::Running { pid, .. } if *pid == self.pid)
    }
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

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::observation::Exit;

    #[test]
    fn processes_are_those_of_the_run_that_was_joined_and_no_other() {
        let target = Target { id: ContainerId::from_known("c1"), pid: 7 };
        let started_at = Timestamp::UNIX_EPOCH;
        let ended = Exit { code: 0, started_at: None, finished_at: started_at, oom_killed: false };
        for (found, expected) in [
            (ObservedTask::Running { pid: 7, started_at }, true),
            // It began again meanwhile, and its number may be a stranger's.
            (ObservedTask::Running { pid: 8, started_at }, false),
            (ObservedTask::Exited(ended), false),
            (ObservedTask::Absent, false),
            (ObservedTask::Created, false),
            (ObservedTask::Unknown, false),
        ] {
            assert_eq!(target.is(&found), expected, "{found:?}");
        }
    }
}
