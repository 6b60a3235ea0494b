//! Control groups that outlive their containers for a moment.

use berth_shim_core::Id;

use super::Processes;
use crate::bundle;
use crate::cgroup::Cgroup;
use crate::container::Looks;

/// Groups that a runtime did not remove, whose last processes are dying.
pub(super) struct Leftover {
    task: Id,
    cgroup: Cgroup,
    looks: Looks,
}

impl Processes {
    /// Removes what the runtime has left of the groups of a container that it deleted: now, or when it is empty.
    pub(in crate::shim) fn sweep(&mut self, task: &Id, now_ms: u64) {
        let Some(cgroup) = self.containers.get(task).and_then(|container| container.cgroup.clone()) else {
            return;
        };
        if !cgroup.sweep() {
            let looks = Looks::begin(now_ms);
            self.leftovers.push(Leftover { task: task.clone(), cgroup, looks });
        }
    }

    /// Removes the groups of a container that never was, if they are empty: crun leaves them when a restore fails.
    pub(in crate::shim) fn remove_named_groups(&self, task: &Id) {
        let config =
            self.containers.get(task).and_then(|container| bundle::read_config(&container.bundle).ok());
        let path = config.as_ref().and_then(|config| config.pointer("/linux/cgroupsPath")?.as_str());
        if let Some(cgroup) = path.and_then(Cgroup::named) {
            let _gone = cgroup.remove();
        }
    }

    /// Leaves the groups to a new container of the same name.
    pub(in crate::shim) fn leave_groups_to(&mut self, task: &Id) {
        self.leftovers.retain(|leftover| leftover.task != *task);
    }

    /// Looks again at the groups for which it is time. Nothing is killed any more: somebody may have taken them over.
    pub(in crate::shim) fn sweep_again(&mut self, now_ms: u64) {
        self.leftovers.retain_mut(|leftover| {
            if leftover.looks.at_ms > now_ms {
                return true;
            }
            if leftover.cgroup.remove() {
                return false;
            }
            let Some(looks) = leftover.looks.next(now_ms) else {
                crate::log::warning!(
                    "failed to remove the control groups of {}: they are busy",
                    leftover.task
                );
                return false;
            };
            leftover.looks = looks;
            true
        });
    }

    pub(in crate::shim) fn has_leftovers(&self) -> bool {
        !self.leftovers.is_empty()
    }

    /// When that is.
    pub(in crate::shim) fn sweep_at_ms(&self) -> Option<u64> {
        self.leftovers.iter().map(|leftover| leftover.looks.at_ms).min()
    }
}
