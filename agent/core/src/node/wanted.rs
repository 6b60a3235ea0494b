//! The pods on the node are compared with those that sources want.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    admit::Verdict,
    machine::{Boot, Node, withdraw},
    sources::{HereSince, Merged},
};
use crate::{
    effect::{Act, Effect},
    id::PodUid,
    pod::PodMachine,
    record::Goal,
    spec::{Pod, Source},
    status::{Note, PodEvent, Severity},
    time::Now,
};

impl Node {
    /// Compares the pods on the node with those that are wanted.
    pub(super) fn reconcile(&mut self, now: Now) {
        match self.boot {
            Boot::Waiting => return,
            Boot::Adopting(_) | Boot::Done => {}
        }
        // Each further round follows a pod that is gone, so this ends.
        while std::mem::take(&mut self.is_uncompared) {
            let here_since = |uid: &PodUid| HereSince::of(&self.pods.get(uid)?.life().record);
            let Merged { pods, refused } = self.sources.merged(here_since);
            self.not_given.retain(|uid| !pods.contains_key(uid));
            self.doubts.retain(|uid| pods.contains_key(uid));
            self.refuse(&refused, &pods);
            self.remove_unwanted(&pods, now);
            self.has_waiting = false;
            self.occupied = None;
            let mut wanted: Vec<(PodUid, Arc<Pod>)> = pods.into_iter().collect();
            // Pods of manifests first, then the older ones (`HandlePodAdditions` of `pkg/kubelet/kubelet.go`).
            wanted.sort_by_key(|(_, spec)| (spec.source == Source::Api, spec.scheduling.created));
            for (uid, spec) in wanted {
                self.want(uid, spec, now);
            }
            self.take_in_orphans();
        }
    }

    fn refuse(&mut self, refused: &[Arc<Pod>], wanted: &BTreeMap<PodUid, Arc<Pod>>) {
        let mut now_refused = BTreeSet::new();
        for pod in refused {
            if !self.refused.contains(&pod.uid) && now_refused.insert(pod.uid.clone()) {
                let message = format!(
                    "Error validating pod {}_{}({}) from {} due to duplicate pod name {:?}, ignoring",
                    pod.name.name,
                    pod.name.namespace,
                    pod.uid,
                    pod.source.as_str(),
                    pod.name.name
                );
                let event = PodEvent {
                    container: None,
                    severity: Severity::Warning,
                    reason: "FailedValidation".into(),
                    message,
                };
                let (name, version) = (pod.name.clone(), pod.version.clone());
                let note = Note { name, version, field_path: String::new(), event };
                let op = self.ops.number();
                self.effects.push_back(Effect::Pod { op, pod: pod.uid.clone(), act: Act::Note(note) });
            }
        }
        let mut refused: BTreeSet<PodUid> = refused.iter().map(|pod| pod.uid.clone()).collect();
        for uid in std::mem::take(&mut self.refused) {
            // Its turn may have come, while what had its name is not gone yet.
            if wanted.contains_key(&uid) {
                refused.insert(uid);
            } else if !refused.contains(&uid) && !self.pods.contains_key(&uid) {
                self.effects.push_back(withdraw(&mut self.ops, uid));
            }
        }
        self.refused = refused;
    }

    fn remove_unwanted(&mut self, wanted: &BTreeMap<PodUid, Arc<Pod>>, now: Now) {
        let have_spoken = self.sources.have_spoken();
        let unwanted = |pod: &&PodMachine| {
            let record = &pod.life().record;
            record.goal == Goal::Wanted
                && !wanted.contains_key(pod.uid())
                && (have_spoken || self.sources.have_replaced(record.source, pod.uid(), &record.name))
                && !(self.not_given.contains(pod.uid()) && self.sources.may_want(record.source, &record.name))
        };
        let unwanted: Vec<PodUid> =
            self.pods.values().filter(unwanted).map(|pod| pod.uid().clone()).collect();
        for uid in unwanted {
            if let Some(pod) = self.pods.get_mut(&uid) {
                pod.remove(now.mono);
            }
            self.advance(&uid, now);
        }
    }

    /// A wanted pod is updated, or begun when nothing with its name or UID is left.
    fn want(&mut self, uid: PodUid, spec: Arc<Pod>, now: Now) {
        if let Some(pod) = self.pods.get_mut(&uid) {
            if pod.life().record.goal == Goal::Wanted
                && !Arc::ptr_eq(pod.spec(), &spec)
                && **pod.spec() != *spec
            {
                pod.update(spec, now.mono);
                self.advance(&uid, now);
            }
            return;
        }
        // A pod of a manifest follows the one before; the API has had the name freed (`allowPodStart` of `pod_workers.go`).
        let follows = spec.source != Source::Api && self.index.has_name(&spec.name);
        if follows || self.orphans.has(&uid) || self.is_name_undecided(&spec) {
            return;
        }
        let verdict = self.judge(&spec, now);
        if let Verdict::Waits = verdict {
            self.has_waiting = true;
            return;
        }
        let mut pod = match &self.boot {
            Boot::Adopting(inherited) if !inherited.is_gone(&uid) => {
                PodMachine::found(spec, &inherited.observation, now)
            }
            Boot::Waiting | Boot::Adopting(_) | Boot::Done => PodMachine::new(spec, now),
        };
        if let Verdict::Rejected { reason, message } = verdict {
            pod.reject(&reason, &message, now);
        }
        // From now on it is withdrawn as any pod.
        self.refused.remove(&uid);
        self.pods.insert(uid.clone(), pod);
        self.advance(&uid, now);
    }

    /// Whether a pod of an earlier run of the agent has the name of this one, and its source has not told whether it is still to be here:
    /// who is here stays, so this one waits until that is known, and nobody is told that it is kept out. It waits for no source beyond
    /// that: manifests that are never read hold up nothing but who has the name of a pod that runs. What ran itself goes on.
    fn is_name_undecided(&self, spec: &Pod) -> bool {
        let has_the_name = |uid: &PodUid| {
            self.pods.get(uid).is_some_and(|pod| {
                let record = &pod.life().record;
                record.name == spec.name
                    && record.goal == Goal::Wanted
                    && self.sources.may_want(record.source, &record.name)
            })
        };
        // One that is to be deleted begins nothing.
        spec.deletion.is_none() && self.not_given.iter().any(has_the_name) && !self.was_found(&spec.uid)
    }

    fn take_in_orphans(&mut self) {
        if !self.sources.are_whole() {
            return;
        }
        if let Boot::Adopting(inherited) = &self.boot {
            let pods = &self.pods;
            self.orphans.collect(&inherited.observation, &inherited.orphans, |uid| pods.contains_key(uid));
            self.boot = Boot::Done;
        }
    }
}
