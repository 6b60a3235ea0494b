//! Out-of-memory kills: told as they happen, and at the latest with the exit of the container.

use std::path::PathBuf;

use berth_shim_core::{Event, Id, Kills};

use super::Shim;
use super::watches::Source;
use crate::cgroup::{Cgroup, OomWatch};
use crate::container::{Container, Looks};
use crate::poll::Interest;

impl Shim {
    /// Watches the memory of a container whose init waits to be started.
    pub(super) fn watch_memory(&mut self, task: &Id) {
        let Some(container) = self.containers.get_mut(task) else { return };
        let Some(cgroup) = &container.cgroup else { return };
        if let Some((group, counted)) = above(cgroup) {
            self.kills_above.entry(group).or_insert_with(|| Kills::since(counted));
        }
        match OomWatch::new(cgroup) {
            Ok(watch) => {
                let source = Source::Oom(task.clone());
                if let Ok(token) = self.watches.add(&watch, Interest::Read, source) {
                    container.oom = Some((token, watch));
                }
            }
            // The counter is still read at the end.
            Err(error) => crate::log::warning!("failed to watch the memory of {task}: {error}"),
        }
    }

    pub(super) fn oom_ready(&mut self, task: &Id) {
        let now_ms = self.now().mono_ms;
        let Some(container) = self.containers.get_mut(task) else { return };
        if let Some((_, watch)) = &container.oom {
            watch.clear();
        }
        container.oom_look = Some(Looks::begin(now_ms));
        self.look_for_oom(task);
    }

    /// Looks again at the counters for which it is time.
    pub(super) fn look_again(&mut self, now_ms: u64) {
        let due = |container: &Container| container.oom_look.is_some_and(|look| look.at_ms <= now_ms);
        let tasks: Vec<Id> = self
            .containers
            .iter()
            .filter(|(_, container)| due(container))
            .map(|(id, _)| id.clone())
            .collect();
        for task in tasks {
            if let Some(container) = self.containers.get_mut(&task) {
                container.oom_look = container.oom_look.and_then(|look| look.next(now_ms));
            }
            self.look_for_oom(&task);
        }
    }

    fn look_for_oom(&mut self, task: &Id) {
        if let Some(kills) = self.counted(task) {
            self.happen(Event::OomObserved { task: task.clone(), kills });
            return;
        }
        // The group is gone, which wakes the watch for ever.
        let Some(container) = self.containers.get_mut(task) else { return };
        container.oom_look = None;
        if let Some((token, watch)) = container.oom.take() {
            self.watches.end(&watch, token);
        }
    }

    /// Reads the counter before the exit of a container's init is told, so that reason and code arrive together.
    pub(super) fn observe_oom_of(&mut self, pid: u32) {
        let ended = self.containers.iter().find(|(_, container)| container.pid == pid);
        let Some(task) = ended.map(|(task, _)| task.clone()) else { return };
        if let Some(kills) = self.counted(&task).or_else(|| self.claimed(&task)) {
            self.happen(Event::OomObserved { task, kills });
        }
    }

    /// Kills in a container, by its own group; `None` when that is gone.
    fn counted(&mut self, task: &Id) -> Option<u64> {
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

    /// Kills in a container whose group has gone before its counter was read, by the group above when that is a pod's.
    fn claimed(&mut self, task: &Id) -> Option<u64> {
        self.pod.as_ref()?;
        let others: Vec<Id> = self.containers.keys().filter(|other| *other != task).cloned().collect();
        for other in others {
            if let Some(kills) = self.counted(&other) {
                self.happen(Event::OomObserved { task: other, kills });
            }
        }
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
