//! What is taken away.

use std::collections::BTreeSet;

use berth_core::{
    effect::Act,
    id::{ContainerId, PodUid},
    time::Now,
};

use super::World;

impl World {
    pub(super) fn remove_container(&mut self, pod: &PodUid, removed: &ContainerId, now: Now) {
        let was_silent =
            self.containers.get(removed).is_some_and(|one| self.was_silent.contains(&one.sandbox));
        self.judge(|oracle| oracle.removed(pod, removed, was_silent, now));
        self.exit(removed, 137, now);
        if self.is_by_old_record(pod) {
            self.starts.remove(removed);
        }
        self.starting.retain(|request| request.id != *removed);
        self.unseen.remove(removed);
        self.ending.remove(removed);
        self.reports.retain(|(_, report)| !report.is_exit_of(removed));
        self.containers.remove(removed);
        self.snapshots.remove(removed);
    }

    /// Whether a pod is taken down while its record cannot be written: what goes then may be begun again, should its manifest be
    /// back for another agent, which goes by the old record.
    fn is_by_old_record(&self, pod: &PodUid) -> bool {
        self.unwritten.contains(pod) && self.oracle.is_unwanted(pod)
    }

    pub(super) fn remove(&mut self, pod: &PodUid, act: &Act, now: Now) {
        match act {
            Act::RemoveContainer(request) => self.remove_container(pod, &request.id, now),
            Act::RemoveSandbox(id) => {
                let running = self.containers.values().any(|one| one.sandbox == *id && one.is_running());
                // Of a pod that nobody knows all goes at once.
                if running && !self.was_silent.contains(id) && self.records.contains_key(pod) {
                    self.violate(format!("{pod}: sandbox removed under a running container"));
                }
                let is_by_old_record = self.is_by_old_record(pod);
                self.oracle.sandbox_lost(pod, id, &BTreeSet::new(), now);
                self.oracle.sandbox_removed(pod, id, now);
                self.starting.retain(|request| request.sandbox != *id);
                self.sandboxes.remove(id);
                for (member, _) in self.containers.extract_if(.., |_, one| one.sandbox == *id) {
                    self.snapshots.remove(&member);
                    self.unseen.remove(&member);
                    self.ending.remove(&member);
                    if is_by_old_record {
                        self.starts.remove(&member);
                    }
                }
                self.reports.retain(|(sandbox, _)| sandbox != id);
            }
            Act::RemoveNetwork(id) => {
                self.networks.remove(id);
            }
            Act::RemoveNetns(id) => {
                if self.sandboxes.get(id).is_some_and(|one| one.is_alive) {
                    self.violate(format!("{pod}: netns removed under its sandbox"));
                }
                if self.networks.contains_key(id) && self.records.contains_key(pod) {
                    self.violate(format!("{pod}: netns removed before its network"));
                }
                self.netns.remove(id);
                self.ids.remove(id);
                self.networks.remove(id);
            }
            Act::RemoveVolumes { with_images } => {
                if self.containers.values().any(|one| one.pod == *pod && one.is_running()) {
                    self.violate(format!("{pod}: volumes removed under a running container"));
                }
                self.volumes.retain(|(owner, _)| owner != pod);
                if *with_images {
                    self.volume_layers.retain(|(owner, _), _| owner != pod);
                }
            }
            Act::RemoveCgroup(qos) => {
                if self.containers.values().any(|one| one.pod == *pod) {
                    self.violate(format!("{pod}: cgroup removed before its containers"));
                }
                if self.cgroups.get(pod) == Some(qos) {
                    self.cgroups.remove(pod);
                }
            }
            Act::RemoveDirs(_) => {
                let left = self.left_of(pod);
                if left.iter().any(|what| what != "dirs" && what != "end") {
                    self.violate(format!("{pod}: directories removed before {left:?}"));
                }
                self.dirs.remove(pod);
            }
            Act::Sweep => {
                self.check_sweep(pod);
                self.volumes.retain(|(owner, _)| owner != pod);
                self.volume_layers.retain(|(owner, _), _| owner != pod);
                self.cgroups.remove(pod);
                self.dirs.remove(pod);
            }
            other => panic!("not to be removed: {}", other.name()),
        }
    }
}
