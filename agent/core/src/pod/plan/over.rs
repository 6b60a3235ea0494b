//! When a pod has ended for good.

use std::time::Duration;

use super::Planner;
use crate::{
    pod::{actual::Run, restart::runs_again},
    record::{ContainerRecord, TerminalRecord},
    spec::{Container, ContainerKind},
};

impl Planner<'_> {
    /// How the pod has ended, when it has: its time is up, an init container failed for good, or no main container will
    /// run again. Sidecars have no say. Sets the alarm for the deadline.
    pub(super) fn over(&mut self) -> Option<TerminalRecord> {
        if self.deadline_has_passed() {
            return Some(TerminalRecord {
                succeeded: false,
                reason: "DeadlineExceeded".into(),
                message: "Pod was active on the node longer than the specified deadline".into(),
            });
        }
        let spec = &self.life.spec;
        let plain =
            |succeeded| Some(TerminalRecord { succeeded, reason: String::new(), message: String::new() });
        if spec.init_containers.iter().any(|one| self.has_failed_for_good(one)) {
            return plain(false);
        }
        if spec.containers.iter().all(|one| self.is_over(one)) {
            let codes = spec.containers.iter().filter_map(|one| self.exit_code(one));
            return plain(codes.into_iter().all(|code| code == 0));
        }
        None
    }

    fn deadline_has_passed(&mut self) -> bool {
        let Some(longest) = self.life.spec.active_deadline else { return false };
        let active = self.now.wall.duration_since(self.life.record.started_at);
        let active = Duration::try_from(active).unwrap_or_default();
        let Some(left) = longest.checked_sub(active).filter(|left| !left.is_zero()) else { return true };
        self.plan.wake(self.now.mono + left);
        false
    }

    fn has_failed_for_good(&self, container: &Container) -> bool {
        match container.kind {
            ContainerKind::Init => {
                self.exit_code(container).is_some_and(|code| code != 0) && self.is_over(container)
            }
            ContainerKind::Main | ContainerKind::Sidecar => false,
        }
    }

    /// Whether a container ended and will not run again.
    pub(super) fn is_over(&self, container: &Container) -> bool {
        let Some(record) = self.life.record.containers.get(&container.name) else { return false };
        let Some(exit) = &record.exit else { return false };
        !is_replaced(record) && !runs_again(container.kind, self.life.spec.restart_policy, exit.exit.code)
    }

    fn exit_code(&self, container: &Container) -> Option<u32> {
        match self.life.run(&container.name) {
            Run::Idle | Run::BackingOff => {}
            Run::Preparing(_) | Run::Starting(_) | Run::Running(_) | Run::Ended(_) => return None,
        }
        let record = self.life.record.containers.get(&container.name)?;
        record.exit.as_ref().map(|exit| exit.exit.code)
    }
}

/// Whether the run was stopped alone, to follow its spec: then it runs again whatever the policy.
pub(super) fn is_replaced(record: &ContainerRecord) -> bool {
    record.stopping.is_some()
}
