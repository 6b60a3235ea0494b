//! When the probes of each pod ask next. An answer that changes nothing costs its pod no plan.

use std::collections::{BTreeMap, BTreeSet};

use super::Node;
use crate::{
    event::Outcome,
    failure::Failure,
    id::{ContainerName, OpId, PodUid},
    pod::port::probe::Verdict,
    spec::ProbeKind,
    time::{Mono, Now},
};

/// The next moment of each pod that has one.
#[derive(Debug, Default)]
pub(super) struct Probes {
    due: BTreeSet<(Mono, PodUid)>,
    pods: BTreeMap<PodUid, Mono>,
}

impl Probes {
    pub(super) fn set(&mut self, uid: &PodUid, at: Option<Mono>) {
        if self.pods.get(uid).copied() == at {
            return;
        }
        if let Some(before) = self.pods.remove(uid) {
            self.due.remove(&(before, uid.clone()));
        }
        if let Some(at) = at {
            self.due.insert((at, uid.clone()));
            self.pods.insert(uid.clone(), at);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Mono> {
        self.due.first().map(|(at, _)| *at)
    }

    fn due(&self, now: Mono) -> Vec<PodUid> {
        self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, uid)| uid.clone()).collect()
    }
}

impl Node {
    /// Asks what is due.
    pub(super) fn ask_probes(&mut self, now: Now) {
        for uid in self.probes.due(now.mono) {
            self.ask_probes_of(&uid, now);
        }
    }

    /// Asks what is due of one pod. What has just become so waits for no timer, which takes a millisecond at least.
    pub(super) fn ask_due_probes_of(&mut self, uid: &PodUid, now: Now) {
        if self.probes.pods.get(uid).is_some_and(|at| *at <= now.mono) {
            self.ask_probes_of(uid, now);
        }
    }

    fn ask_probes_of(&mut self, uid: &PodUid, now: Now) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.begin_probes(&mut self.ops, &mut self.effects, now);
            pod.tell_notes(&mut self.ops, &mut self.effects);
            self.probes.set(uid, pod.probe_at());
        }
    }

    /// Takes an answer.
    pub(super) fn probed(
        &mut self,
        uid: &PodUid,
        op: OpId,
        (name, kind): (ContainerName, ProbeKind),
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        match pod.probed(op, &name, kind, result, now) {
            Verdict::Changed => self.advance(uid, now),
            Verdict::Same => pod.tell_notes(&mut self.ops, &mut self.effects),
        }
        // What became due by it is asked at once.
        self.ask_probes_of(uid, now);
    }
}
