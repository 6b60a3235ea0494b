//! What an agent finds when it begins, and whenever it reads the whole runtime.

use std::{collections::BTreeSet, sync::Arc};

use berth_core::{
    event::Restored,
    id::{PodUid, SandboxId},
    observation::{Observation, ObservedContainer, ObservedSandbox, ObservedTask},
    pod::resize,
    record::PodRecord,
    time::Now,
};

use super::World;

impl World {
    /// What the runtime would tell.
    pub(crate) fn observation(&self, now: Now) -> Observation {
        let recorded = self.sandboxes.iter().filter(|(_, one)| one.is_recorded);
        let sandboxes = recorded.map(|(id, one)| ObservedSandbox {
            id: id.clone(),
            pod: one.pod.clone(),
            attempt: one.attempt,
            ready: self.answers(id),
            pid: if self.answers(id) { 100 } else { 0 },
        });
        let containers = self.containers.iter().map(|(id, one)| ObservedContainer {
            id: id.clone(),
            pod: one.pod.clone(),
            name: one.name.clone(),
            attempt: one.attempt,
            sandbox: Some(one.sandbox.clone()),
            hash: one.hash,
            // Only its shim tells of it.
            task: if self.silent.contains(&one.sandbox) { ObservedTask::Unknown } else { one.task.clone() },
        });
        let unrecorded = self.sandboxes.iter().filter(|(_, one)| one.is_alive && !one.is_recorded);
        Observation {
            asked_at: now.mono,
            sandboxes: sandboxes.collect(),
            containers: containers.collect(),
            unrecorded: unrecorded.map(|(id, _)| id.clone()).collect(),
            silent: self.silent.clone(),
        }
    }

    fn answers(&self, id: &SandboxId) -> bool {
        self.sandboxes.get(id).is_some_and(|one| one.is_alive) && !self.silent.contains(id)
    }

    /// The machine is switched off and on: what was in memory is gone, and nothing runs.
    pub(crate) fn reboot(&mut self, now: Now) {
        self.oracle.rebooted(&self.ends, now);
        self.reports.clear();
        self.silent.clear();
        self.starting.clear();
        self.ending.clear();
        self.unseen.clear();
        self.records.clear();
        self.cgroups.clear();
        self.netns.clear();
        self.ids.clear();
        self.networks.clear();
        self.unwritten.clear();
        for sandbox in self.sandboxes.values_mut() {
            sandbox.is_alive = false;
        }
        for container in self.containers.values_mut() {
            container.task = ObservedTask::Absent;
        }
    }

    /// The shell itself collects network namespaces and attachments that belong to nothing, and containerd layers of which no
    /// container tells.
    fn collect(&mut self) {
        let (records, sandboxes) = (&self.records, &self.sandboxes);
        let is_used = |id: &SandboxId, uid: &PodUid| records.contains_key(uid) || sandboxes.contains_key(id);
        self.netns.retain(|id, uid| is_used(id, uid));
        self.networks.retain(|id, uid| is_used(id, uid));
        let containers = &self.containers;
        self.snapshots.retain(|id, uid| records.contains_key(uid) || containers.contains_key(id));
    }

    /// What an agent that begins would find. Reports are not kept for it: it sees the exits themselves.
    pub(crate) fn restored(&mut self, now: Now) -> Restored {
        self.reports.clear();
        self.collect();
        self.unanswered.clear();
        self.unheard.clone_from(&self.silent);
        for id in &self.silent {
            self.oracle.silenced(id, now);
        }
        // What was shown of them was known to the agent alone, which said so.
        for uid in std::mem::take(&mut self.unwritten) {
            self.statuses.remove(&uid);
        }
        let read_back = |record: &PodRecord| {
            let pod = &self.specs[&record.manifest];
            let pod = match &record.resize {
                Some(resize) => resize::read_back(&self.specs[&resize.allocated], pod, resize.clone()),
                None => Arc::clone(pod),
            };
            (record.clone(), pod)
        };
        let ended = self.ends.iter().filter(|(uid, _)| !self.records.contains_key(*uid));
        let ended = ended.map(|(_, record)| read_back(record)).collect();
        let pods = self.records.values().map(read_back).collect();
        let known = |uid: &PodUid| self.records.contains_key(uid) || self.ends.contains_key(uid);
        // Their marks are in the directories: a cgroup alone proves nothing.
        let orphans: BTreeSet<PodUid> = self.dirs.iter().filter(|uid| !known(uid)).cloned().collect();
        Restored { pods, ended, observation: self.observation(now), orphans: orphans.into_iter().collect() }
    }
}
