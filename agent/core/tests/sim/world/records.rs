//! What becomes of records: written, or not, or said not to be.

use berth_core::{
    effect::{Act, Effect},
    event::Outcome,
    failure::Failure,
    id::PodUid,
    record::PodRecord,
};

use super::{Disk, World, disk_is_full};

impl World {
    pub(super) fn persist(&mut self, record: &PodRecord) -> Result<Outcome, Failure> {
        if self.disk != Disk::Full {
            self.check_record(record);
            self.records.insert(record.uid.clone(), record.clone());
            let allocated = self.allocated(&record.uid);
            self.judge(|oracle| oracle.stored(record));
            if let Some(allocated) = allocated {
                self.judge(|oracle| oracle.may_begin(record, &allocated));
            }
        }
        if self.disk == Disk::Works { Ok(Outcome::Done) } else { Err(disk_is_full()) }
    }

    /// The agent learns what came of the last write of a record.
    pub(crate) fn told_write(&mut self, effect: &Effect, is_written: bool) {
        let Effect::Pod { pod, act, .. } = effect else { return };
        if matches!(act, Act::Persist(_)) {
            self.oracle.written(pod, is_written);
        }
        if is_written {
            self.unwritten.remove(pod);
        } else {
            self.unwritten.insert(pod.clone());
        }
    }

    pub(super) fn forget(&mut self, pod: &PodUid) -> Result<Outcome, Failure> {
        let left = self.left_of(pod);
        if !left.is_empty() {
            self.violate(format!("{pod}: forgotten with {left:?} left"));
        }
        if self.disk != Disk::Full {
            self.judge(|oracle| oracle.forgotten(pod));
            self.records.remove(pod);
            self.starts.retain(|_, (owner, _)| owner != pod);
        }
        if self.disk == Disk::Works { Ok(Outcome::Done) } else { Err(disk_is_full()) }
    }

    /// Everything on the node that a pod has.
    pub(crate) fn left_of(&self, pod: &PodUid) -> Vec<String> {
        let mut left = Vec::new();
        let mut add = |is_there: bool, what: &str| {
            if is_there {
                left.push(what.to_owned());
            }
        };
        add(self.dirs.contains(pod), "dirs");
        add(self.ends.contains_key(pod), "end");
        add(self.cgroups.contains_key(pod), "cgroup");
        add(self.volumes.iter().any(|(owner, _)| owner == pod), "volume");
        add(self.volume_layers.keys().any(|(owner, _)| owner == pod), "layer of a volume");
        add(self.netns.values().any(|owner| owner == pod), "netns");
        add(self.networks.values().any(|owner| owner == pod), "network");
        add(self.sandboxes.values().any(|sandbox| sandbox.pod == *pod), "sandbox");
        add(self.snapshots.values().any(|owner| owner == pod), "snapshot");
        add(self.containers.values().any(|container| container.pod == *pod), "container");
        left
    }
}
