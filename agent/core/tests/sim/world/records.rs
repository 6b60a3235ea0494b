//! What becomes of records: written, or not, or said not to be.

use berth_core::{event::Outcome, failure::Failure, id::PodUid, record::PodRecord};

use super::{Disk, World, disk_is_full};

impl World {
    pub(super) fn persist(&mut self, record: &PodRecord) -> Result<Outcome, Failure> {
        if self.disk != Disk::Full {
            self.check_record(record);
            self.records.insert(record.uid.clone(), record.clone());
            self.judge(|oracle| oracle.stored(record));
        }
        self.oracle.written(&record.uid, self.disk == Disk::Works);
        if self.disk == Disk::Works {
            self.unwritten.remove(&record.uid);
            return Ok(Outcome::Done);
        }
        self.unwritten.insert(record.uid.clone());
        Err(disk_is_full())
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
        if self.disk != Disk::Works {
            self.unwritten.insert(pod.clone());
            return Err(disk_is_full());
        }
        self.unwritten.remove(pod);
        Ok(Outcome::Done)
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
        add(self.netns.values().any(|owner| owner == pod), "netns");
        add(self.networks.values().any(|owner| owner == pod), "network");
        add(self.sandboxes.values().any(|sandbox| sandbox.pod == *pod), "sandbox");
        add(self.snapshots.values().any(|owner| owner == pod), "snapshot");
        add(self.containers.values().any(|container| container.pod == *pod), "container");
        left
    }
}
