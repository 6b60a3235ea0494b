//! What an agent finds when it begins, and whenever it reads the whole runtime.

use std::{collections::BTreeSet, sync::Arc};

use berth_core::{
    event::Restored,
    id::PodUid,
    observation::{Observation, ObservedContainer, ObservedSandbox, ObservedTask},
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
            ready: one.is_alive,
            pid: if one.is_alive { 100 } else { 0 },
        });
        let containers = self.containers.iter().map(|(id, one)| ObservedContainer {
            id: id.clone(),
            pod: one.pod.clone(),
            name: one.name.clone(),
            attempt: one.attempt,
            sandbox: Some(one.sandbox.clone()),
            hash: one.hash,
            task: one.task.clone(),
        });
        let unrecorded = self.sandboxes.iter().filter(|(_, one)| one.is_alive && !one.is_recorded);
        Observation {
            asked_at: now.mono,
            sandboxes: sandboxes.collect(),
            containers: containers.collect(),
            unrecorded: unrecorded.map(|(id, _)| id.clone()).collect(),
        }
    }

    /// The machine is switched off and on: what was in memory is gone, and nothing runs.
    pub(crate) fn reboot(&mut self, now: Now) {
        self.oracle.rebooted(&self.ends, now);
        self.reports.clear();
        self.silent.clear();
        self.starting.clear();
        self.records.clear();
        self.cgroups.clear();
        self.netns.clear();
        self.networks.clear();
        self.unwritten.clear();
        for sandbox in self.sandboxes.values_mut() {
            sandbox.is_alive = false;
        }
        for container in self.containers.values_mut() {
            container.task = ObservedTask::Absent;
        }
    }

    /// What an agent that begins would find. Reports are not kept for it: it sees the exits themselves.
    pub(crate) fn restored(&mut self, now: Now) -> Restored {
        self.reports.clear();
        self.unanswered.clear();
        // What was shown of them was known to the agent alone, which said so.
        for uid in std::mem::take(&mut self.unwritten) {
            self.statuses.remove(&uid);
        }
        let read_back = |record: &PodRecord| (record.clone(), Arc::clone(&self.specs[&record.manifest]));
        let ended = self.ends.iter().filter(|(uid, _)| !self.records.contains_key(*uid));
        let ended = ended.map(|(_, record)| read_back(record)).collect();
        let pods = self.records.values().map(read_back).collect();
        let with_files = self.dirs.iter().chain(self.cgroups.keys()).chain(self.netns.values());
        let known = |uid: &PodUid| self.records.contains_key(uid) || self.ends.contains_key(uid);
        let orphans: BTreeSet<PodUid> = with_files.filter(|uid| !known(uid)).cloned().collect();
        Restored { pods, ended, observation: self.observation(now), orphans: orphans.into_iter().collect() }
    }
}
