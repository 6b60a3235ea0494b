//! Pods that are wanted and not here are admitted, kept waiting or rejected.

use std::sync::Arc;

use super::{
    admission::{self, Insufficient, Occupied, Refusal, Room},
    machine::{Boot, Node},
};
use crate::{
    id::PodUid,
    pod::{
        PodMachine,
        actual::{Life, Stage},
        resize,
    },
    spec::{Pod, Source},
    time::Now,
};

/// Reason of a pod that others do not make room for.
pub(super) const NO_VICTIMS: &str = "UnexpectedAdmissionError";

/// What becomes of a pod that is wanted.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It begins.
    Admitted,
    /// It begins when those that give way to it are gone, or is judged again when the node was read anew.
    Waits,
    /// It never begins.
    Rejected {
        /// Reason of the event and of the status.
        reason: String,
        /// For people.
        message: String,
    },
}

impl Node {
    /// What becomes of a pod. One that ran here goes on, whatever the node has left: nobody is rejected by a restart of the agent. One
    /// that has ended or is to be deleted is not begun anyway.
    pub(super) fn judge(&mut self, pod: &Pod, now: Now) -> Verdict {
        if self.was_found(&pod.uid) || pod.ended.is_some() || pod.deletion.is_some() {
            return Verdict::Admitted;
        }
        let mut here = self.occupied.take().unwrap_or_else(|| {
            // One of which nothing runs any more is told as ended: a scheduler counts it no more and gives the node the next one, while its
            // network and volumes are still being taken down (`filterOutInactivePods` of `pkg/kubelet/kubelet_pods.go`).
            let here = self.specs(|pod| takes_room(pod.life()));
            Occupied::by(here.iter().map(|pod| &**pod))
        });
        let refusals = self.refusals(pod, &here);
        if refusals.is_empty() {
            here.add(pod);
        }
        self.occupied = Some(here);
        let Some(first) = refusals.first() else { return Verdict::Admitted };
        let is_by_labels = refusals.iter().all(Refusal::is_by_labels);
        if is_by_labels && self.sources.have(Source::Api) && !self.doubts.were_settled(&pod.uid) {
            return Verdict::Waits;
        }
        if !pod.is_critical() {
            return rejected(first);
        }
        if let Some(unfit) = refusals.iter().find(|one| matches!(one, Refusal::Unfit { .. })) {
            return rejected(unfit);
        }
        match self.make_room(pod, now) {
            Ok(()) => Verdict::Waits,
            Err(message) => Verdict::Rejected { reason: NO_VICTIMS.to_owned(), message },
        }
    }

    /// Has others give way to a critical pod, unless those that go already are enough; why it would not help.
    pub(super) fn make_room(&mut self, pod: &Pod, now: Now) -> Result<(), String> {
        let stays = |other: &PodMachine| other.life().stage() == Stage::Run && *other.uid() != pod.uid;
        let staying = self.specs(stays);
        let refusals = self.refusals(pod, &Occupied::by(staying.iter().map(|pod| &**pod)));
        let insufficient: Vec<Insufficient> = refusals.into_iter().filter_map(insufficient).collect();
        if insufficient.is_empty() {
            return Ok(());
        }
        let others: Vec<&Pod> = staying.iter().map(|pod| &**pod).collect();
        let victims =
            admission::victims(pod, &others, &insufficient).map_err(|missing| no_victims(&missing))?;
        let victims: Vec<PodUid> = victims.into_iter().map(|pod| pod.uid.clone()).collect();
        for uid in victims {
            if let Some(victim) = self.pods.get_mut(&uid) {
                victim.preempt(now);
            }
            self.advance(&uid, now);
        }
        Ok(())
    }

    /// Whether the runtime knew a pod when it was read, with what an earlier run of the agent left.
    pub(super) fn was_found(&self, uid: &PodUid) -> bool {
        match &self.boot {
            Boot::Adopting(inherited) => inherited.observation.pods().contains(uid),
            Boot::Waiting | Boot::Done => false,
        }
    }

    /// Pods as they take room of the node.
    pub(super) fn specs(&self, which: impl Fn(&PodMachine) -> bool) -> Vec<Arc<Pod>> {
        self.pods.values().filter(|pod| which(pod)).map(|pod| resize::taken(pod.life())).collect()
    }

    pub(super) fn refusals(&self, pod: &Pod, here: &Occupied) -> Vec<Refusal> {
        let room = Room {
            node: &self.info,
            allocatable: &self.config.allocatable,
            pods_max: self.config.pods_max,
            unsafe_sysctls: &self.config.unsafe_sysctls,
            app_armor: self.config.app_armor,
        };
        admission::check(pod, here, room)
    }
}

/// Whether it is counted against others.
pub(super) fn takes_room(life: &Life) -> bool {
    life.remains().is_more_than_directories() && !life.has_stopped()
}

fn rejected(refusal: &Refusal) -> Verdict {
    Verdict::Rejected { reason: refusal.reason(), message: refusal.message() }
}

fn insufficient(refusal: Refusal) -> Option<Insufficient> {
    match refusal {
        Refusal::Insufficient(insufficient) => Some(insufficient),
        Refusal::Unfit { .. } => None,
    }
}

/// Source: `toString` of `pkg/kubelet/preemption/preemption.go`, with what is put around it.
fn no_victims(missing: &[(String, u64)]) -> String {
    let missing: String =
        missing.iter().map(|(resource, amount)| format!("(res: {resource}, q: {amount}), ")).collect();
    format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: \
         no set of running pods found to reclaim resources: [{missing}]"
    )
}
