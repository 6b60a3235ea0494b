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
    selinux,
    spec::{Pod, Source},
    status::{Note, PodEvent, Severity},
    time::Now,
};

impl Node {
    /// Pods of a source whose containers may be started from now on: those that it wants and that are not over here, whoever began them,
    /// but for those whose containers have all run and do not run again. One that is being removed and is wanted again begins anew, and
    /// what cannot be read for the moment goes on.
    pub fn to_start(&self, source: Source) -> impl Iterator<Item = &Pod> {
        let starts_nothing = |here: &PodMachine| {
            let life = here.life();
            life.record.goal == Goal::Wanted && !life.may_start()
        };
        let wanted = self.sources.of(source).iter().map(|pod| &**pod).filter(move |pod| {
            let is_done_here = self.pods.get(&pod.uid).is_some_and(starts_nothing);
            pod.deletion.is_none() && pod.ended.is_none() && !is_done_here
        });
        let is_partial = self.sources.is_partial(source);
        let unread = self.pods.values().filter(move |here| is_partial && here.spec().source == source);
        let unread = unread.filter(|here| here.life().may_start());
        wanted.chain(unread.map(|here| &**here.spec()))
    }

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
            if pod.life().record.goal == Goal::Wanted && !pod.was_told(&spec) {
                pod.update(spec, now.mono);
                // Its resize is told once it is judged.
                if !(self.sources.have_spoken() && self.resizes.judges(pod)) {
                    self.advance(&uid, now);
                }
            }
            return;
        }
        // A pod of a manifest follows the one before; the API has had the name freed (`allowPodStart` of `pod_workers.go`).
        let follows = spec.source != Source::Api && self.index.has_name(&spec.name);
        if follows || self.orphans.has(&uid) || self.is_name_undecided(&spec) {
            return;
        }
        let allocated = spec.told_allocated.as_ref().unwrap_or(&spec);
        let verdict = self.judge(allocated, now);
        if let Verdict::Waits = verdict {
            self.has_waiting = true;
            return;
        }
        let mut pod = match &self.boot {
            Boot::Adopting(inherited) if !inherited.is_gone(&uid) => {
                PodMachine::found(Arc::clone(allocated), &inherited.observation, now)
            }
            Boot::Waiting | Boot::Adopting(_) | Boot::Done => PodMachine::new(Arc::clone(allocated), now),
        };
        if let Verdict::Rejected { reason, message } = verdict {
            pod.reject(&reason, &message, now);
        } else if !pod.was_told(&spec) {
            pod.update(spec, now.mono);
        }
        // From now on it is withdrawn as any pod.
        self.refused.remove(&uid);
        self.pods.insert(uid.clone(), pod);
        self.advance(&uid, now);
    }

    /// Gives a pod with a user namespace of its own ids of the node, when it has none yet. A pod that has ended leaves its own once nothing
    /// is left that has them (`SyncTerminatedPod` of `pkg/kubelet/kubelet.go`).
    pub(super) fn give_ids(&mut self, uid: &PodUid) {
        if !self.pods.get(uid).is_some_and(|pod| pod.life().lacks_ids()) {
            return;
        }
        let has_some = |pod: &&PodMachine| pod.life().remains().is_more_than_directories();
        let taken = self.pods.values().filter(has_some).filter_map(|pod| pod.life().record.ids);
        let ids = self.config.pod_ids.give(uid, taken);
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.give_ids(ids);
        }
    }

    /// Gives a pod an SELinux level of its own, where the node's policy has levels: none that another pod has or names, as far as anything
    /// is left of that. Source: `uniqMcs`, `ReserveLabelV2` of `github.com/opencontainers/selinux`.
    pub(super) fn give_level(&mut self, uid: &PodUid) {
        let Some(labels) = self.config.se_linux.as_ref().filter(|labels| labels.has_levels()) else { return };
        if !self.pods.get(uid).is_some_and(|pod| pod.life().lacks_level()) {
            return;
        }
        let has_some = |pod: &&PodMachine| pod.life().remains().is_more_than_directories();
        let taken = self.pods.values().filter(has_some).flat_map(|pod| pod.life().levels()).collect();
        let level = selinux::free(uid, labels.categories, &taken);
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.give_level(level);
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::{
        config::NodeConfig,
        event::{Event, Restored},
        fixtures,
        id::ContainerId,
        observation::{Observation, ObservedContainer, ObservedSandbox, ObservedTask},
        record::ContainerRecord,
        spec::{Ended, RestartPolicy},
        time::Mono,
    };

    fn now() -> Now {
        Now { mono: Mono(Duration::from_secs(1000)), wall: Timestamp::UNIX_EPOCH }
    }

    fn tell(node: &mut Node, source: Source, pods: &[&Pod], is_whole: bool) {
        let pods = pods.iter().map(|pod| Arc::new(Pod::clone(pod))).collect();
        node.handle(now(), Event::Desired { source, pods, is_whole });
    }

    #[test]
    fn pods_of_the_api_are_to_start_until_they_end_are_deleted_or_refused() {
        let pod = Pod { source: Source::Api, ..fixtures::pod(vec![fixtures::container("main")]) };
        let ended = Ended { succeeded: true, reason: String::new(), message: String::new() };
        let few = NodeConfig { pods_max: 0, ..fixtures::node() };
        for (what, config, wanted, expected) in [
            ("new", fixtures::node(), pod.clone(), 1),
            ("deleted", fixtures::node(), Pod { deletion: Some(Duration::ZERO), ..pod.clone() }, 0),
            ("ended", fixtures::node(), Pod { ended: Some(ended), ..pod.clone() }, 0),
            ("refused", few, pod, 0),
        ] {
            let mut node = Node::new(config, BTreeSet::from([Source::Api]));
            node.handle(now(), Event::Restored(Box::default()));
            tell(&mut node, Source::Api, &[&wanted], true);
            assert_eq!(node.to_start(Source::Api).count(), expected, "{what}");
            assert_eq!(node.to_start(Source::File).count(), 0, "{what}: of another source");
            tell(&mut node, Source::Api, &[], true);
            assert_eq!(node.to_start(Source::Api).count(), 0, "{what}: wanted no more");
        }
    }

    #[test]
    fn pods_that_an_earlier_agent_began_are_to_start_while_their_containers_run_again() {
        for (policy, expected) in
            [(RestartPolicy::Always, 1), (RestartPolicy::OnFailure, 1), (RestartPolicy::Never, 0)]
        {
            let pod = Pod {
                source: Source::Api,
                restart_policy: policy,
                ..fixtures::pod(vec![fixtures::container("main")])
            };
            let (uid, name) = (&pod.uid, &pod.containers[0].name);
            let id = ContainerId::of(uid, name, 0);
            let mut record = PodMachine::new(Arc::new(pod.clone()), now()).life().record.clone();
            let run =
                ContainerRecord { started_in: Some(0), ..ContainerRecord::begun(id.clone(), 0, now().mono) };
            record.containers.insert(name.clone(), run);
            let sandbox = record.sandbox_id.clone();
            let task = ObservedTask::Running { pid: 7, started_at: now().wall };
            let observation = Observation {
                sandboxes: vec![ObservedSandbox {
                    id: sandbox.clone(),
                    pod: uid.clone(),
                    attempt: 0,
                    ready: true,
                    pid: 6,
                }],
                containers: vec![ObservedContainer {
                    id,
                    pod: uid.clone(),
                    name: name.clone(),
                    attempt: 0,
                    sandbox: Some(sandbox),
                    hash: 0,
                    task,
                }],
                ..Observation::default()
            };
            let pods = vec![(record, Arc::new(pod.clone()))];
            let mut node = Node::new(fixtures::node(), BTreeSet::from([Source::Api]));
            let restored = Restored { pods, observation, ..Restored::default() };
            node.handle(now(), Event::Restored(Box::new(restored)));
            assert_eq!(node.to_start(Source::Api).count(), 0, "{policy:?}: nobody wants it yet");
            tell(&mut node, Source::Api, &[&pod], true);
            assert_eq!(node.to_start(Source::Api).count(), expected, "{policy:?}");
        }
    }

    #[test]
    fn pods_of_manifests_are_to_start_while_these_are_unread_and_anew_after_their_removal() {
        let pod = fixtures::pod(vec![fixtures::container("main")]);
        let record = PodMachine::new(Arc::new(pod.clone()), now()).life().record.clone();
        let mut node = Node::new(fixtures::node(), BTreeSet::from([Source::File]));
        let restored = Restored { pods: vec![(record, Arc::new(pod.clone()))], ..Restored::default() };
        node.handle(now(), Event::Restored(Box::new(restored)));
        let (there, none) = ([&pod], []);
        for (what, pods, is_whole, expected) in [
            ("not read yet", &none[..], false, 1),
            ("read", &there[..], true, 1),
            ("removed", &none[..], true, 0),
            ("there again before the end", &there[..], true, 1),
        ] {
            tell(&mut node, Source::File, pods, is_whole);
            assert_eq!(node.to_start(Source::File).count(), expected, "{what}");
        }
        assert!(node.pods.contains_key(&pod.uid), "it was here all the time");
    }
}
