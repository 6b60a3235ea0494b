//! What an earlier run of the agent left, for pods that are wanted, until every source was read whole.
//!
//! That may take for ever: a manifest that cannot be read stays as it is until somebody mends it, and meanwhile pods come and go.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    id::{PodUid, SandboxId},
    observation::Observation,
    record::PodRecord,
    spec::Source,
    time::Mono,
};

/// Pods that went and are kept in mind. They count for a reading that began before they went and is heard since: so many static pods
/// do not go within one.
const GONE_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Inherited {
    pub(super) observation: Observation,
    pub(super) orphans: BTreeSet<PodUid>,
    /// Pods that went since the runtime was read and may come back under their UID, and when they went: what was read tells nothing
    /// of one that does.
    gone: BTreeMap<PodUid, Mono>,
}

impl Inherited {
    pub(super) fn new(observation: Observation, orphans: BTreeSet<PodUid>) -> Self {
        Self { observation, orphans, gone: BTreeMap::new() }
    }

    /// Nothing of the pod is left.
    pub(super) fn forget(&mut self, record: &PodRecord, now: Mono) {
        let uid = &record.uid;
        self.drop_seen(uid);
        let its: BTreeSet<&SandboxId> = record.earlier_sandbox.iter().chain([&record.sandbox_id]).collect();
        self.observation.unrecorded.retain(|id| !its.contains(id));
        self.observation.silent.retain(|id| !its.contains(id));
        self.orphans.remove(uid);
        match record.source {
            // The API server gives no UID twice.
            Source::Api => {}
            Source::File | Source::Http => self.remember(uid.clone(), now),
        }
    }

    fn remember(&mut self, uid: PodUid, now: Mono) {
        self.gone.insert(uid, now);
        if self.gone.len() > GONE_MAX {
            let first = self.gone.iter().min_by_key(|(_, at)| **at).map(|(uid, _)| uid.clone());
            first.and_then(|uid| self.gone.remove(&uid));
        }
    }

    /// The runtime was read anew, perhaps before some pods went.
    pub(super) fn read(&mut self, observation: Observation) {
        self.gone.retain(|_, at| observation.asked_at <= *at);
        self.observation = observation;
        for uid in self.gone.keys().cloned().collect::<Vec<_>>() {
            self.drop_seen(&uid);
        }
    }

    /// Whether nothing that was read can be of a pod.
    pub(super) fn is_gone(&self, uid: &PodUid) -> bool {
        self.gone.contains_key(uid)
    }

    fn drop_seen(&mut self, uid: &PodUid) {
        self.observation.sandboxes.retain(|seen| seen.pod != *uid);
        self.observation.containers.retain(|seen| seen.pod != *uid);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use jiff::Timestamp;

    use super::*;
    use crate::{fixtures, observation::ObservedSandbox, pod::PodMachine, spec::Pod, time::Now};

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    fn record(uid: &str, source: Source) -> PodRecord {
        let pod = Pod { uid: PodUid::new(uid), source, ..fixtures::pod(Vec::new()) };
        let now = Now { mono: at(1), wall: Timestamp::UNIX_EPOCH };
        PodMachine::new(Arc::new(pod), now).life().record.clone()
    }

    /// A reading in which the sandboxes of these pods are.
    fn reading(asked_at: u64, uids: &[&str]) -> Observation {
        let seen = |uid: &&str| {
            let pod = PodUid::new(*uid);
            ObservedSandbox { id: SandboxId::of(&pod, 0), pod, attempt: 0, ready: true, pid: 7 }
        };
        let sandboxes: Vec<ObservedSandbox> = uids.iter().map(seen).collect();
        let ids: BTreeSet<SandboxId> = sandboxes.iter().map(|one| one.id.clone()).collect();
        let (unrecorded, silent) = (ids.clone(), ids);
        Observation { asked_at: at(asked_at), sandboxes, containers: Vec::new(), unrecorded, silent }
    }

    /// Pod `web` goes at 10, beside `other`; then the runtime is read perhaps.
    #[test]
    fn what_was_read_before_a_pod_went_tells_nothing_of_it() {
        for (source, read_at, is_gone, is_seen) in [
            (Source::File, None, true, false),
            (Source::Http, None, true, false),
            // Its UID does not come back.
            (Source::Api, None, false, false),
            (Source::File, Some(9), true, false),
            (Source::File, Some(10), true, false),
            // It is here again.
            (Source::File, Some(11), false, true),
        ] {
            let uids = ["other", "web"];
            let mut inherited = Inherited::new(reading(5, &uids), uids.map(PodUid::new).into());
            inherited.forget(&record("web", source), at(10));
            let web = PodUid::new("web");
            let id = SandboxId::of(&web, 0);
            let left = &inherited.observation;
            assert!(!left.unrecorded.contains(&id) && !left.silent.contains(&id), "{source:?}");
            assert_eq!((left.unrecorded.len(), left.silent.len()), (1, 1), "{source:?}");
            assert_eq!(inherited.orphans, BTreeSet::from([PodUid::new("other")]), "{source:?}");
            if let Some(read_at) = read_at {
                inherited.read(reading(read_at, &uids));
            }
            let seen = inherited.observation.pods().contains(&web);
            assert_eq!((inherited.is_gone(&web), seen), (is_gone, is_seen), "{source:?} {read_at:?}");
            assert!(inherited.observation.pods().contains(&PodUid::new("other")));
        }
    }

    #[test]
    fn however_many_pods_go_the_last_ones_are_kept_in_mind() {
        let mut inherited = Inherited::default();
        let number = |number: usize| u64::try_from(number).unwrap();
        for count in 0..GONE_MAX + 10 {
            inherited.forget(&record(&format!("api-{count}"), Source::Api), at(number(count)));
            inherited.forget(&record(&format!("file-{count}"), Source::File), at(number(count)));
        }
        assert_eq!(inherited.gone.len(), GONE_MAX);
        let is_gone = |count: usize| inherited.is_gone(&PodUid::new(format!("file-{count}")));
        assert!(!is_gone(0) && !is_gone(9) && is_gone(10) && is_gone(GONE_MAX + 9));
    }
}
