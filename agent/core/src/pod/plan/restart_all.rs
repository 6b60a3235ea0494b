//! How all containers of a pod are stopped that begin anew: at once and in no order, without preStop hooks and without a grace
//! period but the shortest there is. The sandbox stays, and so do ephemeral containers.
//!
//! Source: KEP-5532, `computePodActions` and `getContainersToReset` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.

use std::time::Duration;

use super::{Planner, stop::Turn};
use crate::{
    pod::{actual::Run, step::Step},
    time::Mono,
};

/// From the end that calls for it to the next runs, at least. A kubelet knows no back-off for them, and hears of ends once in a
/// second (`genericPlegRelistPeriod` of `pkg/kubelet/kubelet.go`).
const PAUSE: Duration = Duration::from_secs(1);

impl Planner<'_> {
    /// Stops what runs, and begins anew when nothing of it is left. What the containers share is kept meanwhile.
    pub(super) fn restart_all(&mut self, began: Mono) {
        self.resources();
        for container in &self.life.spec.ephemeral_containers {
            self.running_container(container);
        }
        let mut is_left = false;
        for container in self.life.spec.fixed_containers() {
            self.stop_container(container, Turn::Now);
            is_left |= match self.life.run(&container.name) {
                Run::Idle | Run::BackingOff => self.is_being_removed(&container.name),
                Run::Preparing(_) | Run::Starting(_) | Run::Running(_) | Run::Ended(_) => true,
            };
        }
        if !is_left && self.has_come(began + PAUSE) {
            self.push(Step::BeginAll);
        }
    }
}
