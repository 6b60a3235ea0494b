//! Out-of-memory kills: told as they happen, and at the latest with the exit of the container.

use berth_shim_core::{Event, Id};

use super::Shim;

impl Shim {
    pub(super) fn oom_ready(&mut self, task: &Id) {
        let now_ms = self.now().mono_ms;
        if self.processes.oom_noticed(task, now_ms) {
            self.look_for_oom(task);
        }
    }

    /// Looks again at the counters for which it is time.
    pub(super) fn look_again(&mut self, now_ms: u64) {
        for task in self.processes.due_looks(now_ms) {
            self.processes.plan_next_look(&task, now_ms);
            self.look_for_oom(&task);
        }
    }

    fn look_for_oom(&mut self, task: &Id) {
        match self.processes.counted(task) {
            Some(kills) => self.happen(Event::OomObserved { task: task.clone(), kills }),
            // The group is gone, which wakes the watch for ever.
            None => self.processes.unwatch_memory(task, &mut self.watches),
        }
    }

    /// Reads the counter before the exit of a container's init is told, so that reason and code arrive together.
    pub(super) fn observe_oom_of(&mut self, pid: u32) {
        let Some(task) = self.processes.task_of_init(pid) else { return };
        if let Some(kills) = self.processes.counted(&task).or_else(|| self.claimed(&task)) {
            self.happen(Event::OomObserved { task, kills });
        }
    }

    /// Kills in a container whose group has gone before its counter was read, by the group above when that is a pod's.
    fn claimed(&mut self, task: &Id) -> Option<u64> {
        self.pod.as_ref()?;
        for other in self.processes.others(task) {
            if let Some(kills) = self.processes.counted(&other) {
                self.happen(Event::OomObserved { task: other, kills });
            }
        }
        self.processes.claim(task)
    }
}
