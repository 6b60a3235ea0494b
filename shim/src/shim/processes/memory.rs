//! The counters of out-of-memory kills: watched, looked at again, and claimed from the group above.

use std::path::PathBuf;

use berth_shim_core::{Id, Kills};

use super::Processes;
use crate::cgroup::{Cgroup, OomWatch};
use crate::container::{Container, Looks};
use crate::poll::Interest;
use crate::shim::watches::{Source, Watches};

impl Processes {
    /// Watches the memory of a container whose init waits to be started.
    pub(super) fn watch_memory(&mut self, task: &Id, watches: &mut Watches) {
        let Some(container) = self.containers.get_mut(task) else { return };
        let Some(cgroup) = &container.cgroup else { return };
        if let Some((group, counted)) = above(cgroup) {
            self.kills_above.entry(group).or_insert_with(|| Kills::since(counted));
        }
        match OomWatch::new(cgroup) {
            Ok(watch) => {
                let source = Source::Oom(task.clone());
                if let Ok(token) = watches.add(&watch, Interest::Read, source) {
                    container.oom = Some((token, watch));
                }
            }
            // The counter is still read at the end.
            Err(error) => crate::log::warning!("failed to watch the memory of {task}: {error}"),
        }
    }

    /// A watch was woken, and the counter is looked at again for a while; returns whether the container is known.
    pub(in crate::shim) fn oom_noticed(&mut self, task: &Id, now_ms: u64) -> bool {
        let Some(container) = self.containers.get_mut(task) else { return false };
        if let Some((_, watch)) = &container.oom {
            watch.clear();
        }
        container.oom_look = Some(Looks::begin(now_ms));
        true
    }

    /// The containers whose counter it is time to look at.
    pub(in crate::shim) fn due_looks(&self, now_ms: u64) -> Vec<Id> {
        let due = |container: &Container| container.oom_look.is_some_and(|look| look.at_ms <= now_ms);
        self.containers.iter().filter(|(_, container)| due(container)).map(|(id, _)| id.clone()).collect()
    }

    pub(in crate::shim) fn plan_next_look(&mut self, task: &Id, now_ms: u64) {
        if let Some(container) = self.containers.get_mut(task) {
            container.oom_look = container.oom_look.and_then(|look| look.next(now_ms));
        }
    }

    /// When the first of them is due.
    pub(in crate::shim) fn look_at_ms(&self) -> Option<u64> {
        self.containers.values().filter_map(|container| Some(container.oom_look?.at_ms)).min()
    }

    /// Forgets the watch of a group that is gone.
    pub(in crate::shim) fn unwatch_memory(&mut self, task: &Id, watches: &mut Watches) {
        let Some(container) = self.containers.get_mut(task) else { return };
        container.oom_look = None;
        if let Some((token, watch)) = container.oom.take() {
            watches.end(&watch, token);
        }
    }

    pub(in crate::shim) fn task_of_init(&self, pid: u32) -> Option<Id> {
        let ended = self.containers.iter().find(|(_, container)| container.pid == pid);
        ended.map(|(task, _)| task.clone())
    }

    pub(in crate::shim) fn others(&self, task: &Id) -> Vec<Id> {
        self.containers.keys().filter(|other| *other != task).cloned().collect()
    }

    /// Kills in a container, by its own group; `None` when that is gone.
    pub(in crate::shim) fn counted(&mut self, task: &Id) -> Option<u64> {
        let container = self.containers.get_mut(task)?;
        let cgroup = container.cgroup.as_ref()?;
        let kills = cgroup.oom_kills()?;
        let more = kills.saturating_sub(container.oom_kills);
        container.oom_kills = container.oom_kills.max(kills);
        if let Some(Cgroup::Unified(group)) = cgroup.parent()
            && let Some(above) = self.kills_above.get_mut(&group)
        {
            above.told(more);
        }
        Some(kills)
    }

    /// Kills in a container whose group has gone, by the group above, in which those of the others are counted already.
    pub(in crate::shim) fn claim(&mut self, task: &Id) -> Option<u64> {
        let container = self.containers.get_mut(task)?;
        let (group, counted) = above(container.cgroup.as_ref()?)?;
        container.oom_kills += self.kills_above.get_mut(&group)?.claim(counted);
        Some(container.oom_kills)
    }
}

/// The group above a container's, and the kills below it. Version 1 does not count them.
fn above(cgroup: &Cgroup) -> Option<(PathBuf, u64)> {
    let parent = cgroup.parent()?;
    let kills = parent.oom_kills()?;
    match parent {
        Cgroup::Unified(group) => Some((group, kills)),
        Cgroup::Split(_) => None,
    }
}
