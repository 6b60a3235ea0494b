//! Which resizes are allocated, and in which order.
//!
//! One that does not fit waits, and is judged again when other pods have gone, have ended or take less, or when the node has changed. None is
//! before every source of pods has told what it wants.
//!
//! Source: `retryPendingResizes`, `sortPendingResizes` and `handlePodResourcesResize` of `pkg/kubelet/allocation/allocation_manager.go`,
//! `pkg/kubelet/allocation/handlers.go`.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc};

use super::{
    admission::{Occupied, Refusal},
    admit::{NO_VICTIMS, takes_room},
    machine::Node,
};
use crate::{
    cgroup::swap_max,
    config::NodeConfig,
    derived::totals,
    id::PodUid,
    metrics::{Infeasible, ResizeMeasure, Trigger},
    pod::PodMachine,
    spec::{Container, Pod, QosClass, Unallocated},
    status::ConditionKind,
    time::Now,
};

/// As the kubelet says it.
fn message(why: Infeasible) -> &'static str {
    match why {
        Infeasible::Swap => "In-place resize of containers with swap is not supported.",
    }
}

/// Resizes that wait.
#[derive(Debug, Default)]
pub(super) struct Resizes {
    asking: BTreeSet<PodUid>,
    /// Of pods that are not told before they are judged.
    untold: BTreeSet<PodUid>,
    /// Pods that are being given what was allocated to them: they may take less then.
    under_way: BTreeSet<PodUid>,
    /// After what those that wait are to be judged again.
    due: Option<Trigger>,
}

impl Resizes {
    /// Those that wait may fit now.
    pub(super) fn room_has_changed(&mut self) {
        self.is_due_after(Trigger::Node);
    }

    fn is_due_after(&mut self, trigger: Trigger) {
        self.due.get_or_insert(trigger);
    }

    /// A pod is not here any more.
    pub(super) fn gone(&mut self, uid: &PodUid) {
        self.asking.remove(uid);
        self.under_way.remove(uid);
        self.is_due_after(Trigger::PodsRemoved);
    }

    /// Something may have changed of a pod.
    pub(super) fn follow(&mut self, pod: &PodMachine) {
        let (uid, life) = (pod.uid(), pod.life());
        if pod.asks_for().is_none() {
            self.asking.remove(uid);
        } else if self.asking.insert(uid.clone()) {
            self.is_due_after(Trigger::PodUpdated);
        }
        if life.record.resizing.is_some() {
            self.under_way.insert(uid.clone());
        } else if self.under_way.remove(uid) {
            self.is_due_after(Trigger::PodResized);
        }
        if !self.asking.is_empty() && !takes_room(life) {
            self.is_due_after(Trigger::PodTerminated);
        }
    }

    /// Whether a pod asks for something that is to be judged first.
    pub(super) fn judges(&mut self, pod: &PodMachine) -> bool {
        let is_unjudged = pod.is_unjudged();
        if is_unjudged {
            self.asking.insert(pod.uid().clone());
            self.untold.insert(pod.uid().clone());
            self.is_due_after(Trigger::PodUpdated);
        }
        is_unjudged
    }
}

/// What becomes of a resize.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Allocated,
    /// Others are being ended for it. The kubelet waits until they have.
    Waits,
    /// Not yet.
    Deferred {
        /// The reason that the event names.
        reason: String,
        message: String,
    },
    /// Never.
    Infeasible(Infeasible),
}

impl Node {
    /// Judges those that wait, when one of them may fit that did not.
    pub(super) fn judge_resizes(&mut self, now: Now) {
        // Each further round follows room that others have given.
        while self.sources.have_spoken()
            && let Some(trigger) = self.resizes.due.take()
        {
            self.judge_all(trigger, now);
        }
    }

    fn judge_all(&mut self, trigger: Trigger, now: Now) {
        for uid in self.in_turn() {
            let asked = self.pods.get(&uid).and_then(|pod| Some((Arc::clone(pod.spec()), pod.asks_for()?)));
            let asked = asked.map(|(has, asked)| (has, Arc::clone(asked)));
            if let Some((has, asked)) = asked {
                let verdict = self.judge_resize(&has, &asked, now);
                if let Some(pod) = self.pods.get_mut(&uid) {
                    match verdict {
                        Verdict::Allocated => pod.allocate(trigger, now.mono),
                        Verdict::Waits => {}
                        Verdict::Deferred { reason, message } => {
                            pod.leave_unallocated(&reason, Unallocated { is_infeasible: false, message });
                        }
                        Verdict::Infeasible(why) => {
                            pod.measured.push(ResizeMeasure::Infeasible(why));
                            let message = message(why).to_owned();
                            pod.leave_unallocated("Infeasible", Unallocated { is_infeasible: true, message });
                        }
                    }
                }
            }
            self.resizes.untold.remove(&uid);
            self.advance(&uid, now);
        }
        for uid in std::mem::take(&mut self.resizes.untold) {
            self.advance(&uid, now);
        }
    }

    /// Those that ask for no more first, which always fits; then by priority, by class, and by how long they wait.
    fn in_turn(&self) -> Vec<PodUid> {
        let key = |pod: &PodMachine| {
            let asked = pod.asks_for()?;
            let since = pod.life().record.conditions.get(&ConditionKind::PodResizePending);
            let since = since.map(|waits| waits.since);
            let is_guaranteed = asked.qos == QosClass::Guaranteed;
            let order =
                (is_more(pod.spec(), asked), Reverse(asked.priority), !is_guaranteed, since.is_none(), since);
            Some((order, pod.uid().clone()))
        };
        let asking = self.resizes.asking.iter().filter_map(|uid| self.pods.get(uid));
        let mut asking: Vec<_> = asking.filter_map(key).collect();
        asking.sort();
        asking.into_iter().map(|(_, uid)| uid).collect()
    }

    fn judge_resize(&mut self, has: &Pod, asked: &Pod, now: Now) -> Verdict {
        if let Some(why) = infeasible(has, asked, &self.config) {
            return Verdict::Infeasible(why);
        }
        let others = self.specs(|pod| takes_room(pod.life()) && *pod.uid() != asked.uid);
        let refusals = self.refusals(asked, &Occupied::by(others.iter().map(|pod| &**pod)));
        let Some(first) = refusals.first() else { return Verdict::Allocated };
        let unfit = refusals.iter().find(|one| matches!(one, Refusal::Unfit { .. }));
        let (reason, message) = match unfit {
            Some(unfit) if asked.is_critical() => (unfit.reason(), unfit.message()),
            None if asked.is_critical() => match self.make_room(asked, now) {
                Ok(()) => return Verdict::Waits,
                Err(message) => (NO_VICTIMS.to_owned(), message),
            },
            Some(_) | None => (first.reason(), first.message()),
        };
        Verdict::Deferred { reason, message }
    }
}

/// Whether it requests more than it has.
fn is_more(has: &Pod, asked: &Pod) -> bool {
    let (has, asked) = (totals::requests(has), totals::requests(asked));
    asked.cpu_milli > has.cpu_milli || asked.memory_bytes > has.memory_bytes
}

/// Why it can never be allocated.
fn infeasible(has: &Pod, asked: &Pod, node: &NodeConfig) -> Option<Infeasible> {
    let swaps = |pod: &Pod, container: &Container| swap_max(pod, &container.resources, node) > Some(0);
    let changes_swap = |container: &Container| {
        let before = has.fixed_containers().find(|before| before.name == container.name);
        before.is_some_and(|before| {
            before.resources.requests.memory_bytes != container.resources.requests.memory_bytes
                && !before.resize_policy.memory_restarts
                && (swaps(has, before) || swaps(asked, container))
        })
    };
    asked.fixed_containers().any(|container| changes_swap(container)).then_some(Infeasible::Swap)
}

#[cfg(test)]
mod tests;
