//! The pods that sources want, merged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use crate::{
    id::{PodName, PodUid},
    record::{Goal, PodRecord},
    spec::{Pod, Source},
    time::Mono,
};

/// Every source of pods has told what it wants. The node alone says so: who acts on it cannot do so before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcesHaveSpoken(pub(super) ());

/// What each source wants.
#[derive(Debug)]
pub(super) struct Sources {
    configured: BTreeSet<Source>,
    desired: BTreeMap<Source, Vec<Arc<Pod>>>,
    /// Sources of which a part could not be read yet.
    partial: BTreeSet<Source>,
}

/// All sources as one.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Merged {
    /// The pods that are to be on the node.
    pub(super) pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Those that another one keeps out: it has the same name.
    pub(super) refused: Vec<Arc<Pod>>,
}

/// Since when a pod is on the node; the greater of two began later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HereSince {
    /// When the oldest of its runs was begun. Only this node knows that, and nobody sets the clock that it goes by. A pod begins its
    /// containers with its record, so one that has none did not come so far, and keeps out none that did.
    begun_at: Option<Mono>,
    /// When it began, by its source or by a clock that may have been set: where nothing better tells.
    started_at: Timestamp,
}

impl HereSince {
    /// `None` when the pod is to go.
    pub(super) fn of(record: &PodRecord) -> Option<Self> {
        let begun_at = record.containers.values().map(|run| run.begun_at).min();
        (record.goal == Goal::Wanted).then_some(Self { begun_at, started_at: record.started_at })
    }
}

impl Sources {
    pub(super) fn new(configured: BTreeSet<Source>) -> Self {
        Self { configured, desired: BTreeMap::new(), partial: BTreeSet::new() }
    }

    pub(super) fn set(&mut self, source: Source, pods: Vec<Arc<Pod>>, is_whole: bool) {
        self.desired.insert(source, pods);
        if is_whole {
            self.partial.remove(&source);
        } else {
            self.partial.insert(source);
        }
    }

    /// What a source wanted when it was heard last.
    pub(super) fn of(&self, source: Source) -> &[Arc<Pod>] {
        self.desired.get(&source).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a part of a source could not be read when it was heard last.
    pub(super) fn is_partial(&self, source: Source) -> bool {
        self.partial.contains(&source)
    }

    /// Whether this is one of them.
    pub(super) fn have(&self, source: Source) -> bool {
        self.configured.contains(&source)
    }

    /// Whether every configured source has spoken: before that, what nobody wants may still be wanted.
    pub(super) fn have_spoken(&self) -> bool {
        self.configured.iter().all(|source| self.desired.contains_key(source))
    }

    /// Whether every configured source was read whole: what no source wants then is nobody's.
    pub(super) fn are_whole(&self) -> bool {
        self.have_spoken() && self.partial.is_empty()
    }

    /// Whether a pod's own source was read whole and gives another one of its name in its place: what the others would say changes
    /// nothing. The API server may be a static pod, which runs only once its manifest was mended.
    pub(super) fn have_replaced(&self, source: Source, uid: &PodUid, name: &PodName) -> bool {
        let pods = self.desired.get(&source).filter(|_| !self.partial.contains(&source));
        let named = || pods.into_iter().flatten().filter(|pod| pod.name == *name);
        named().next().is_some() && named().all(|pod| pod.uid != *uid)
    }

    /// Whether a pod of an earlier run of the agent, which no source has given since, may still be wanted: its source was not heard yet, or
    /// it can be in what that could not read. Another one of this source with its name tells that it is not.
    pub(super) fn may_want(&self, source: Source, name: &PodName) -> bool {
        match self.desired.get(&source) {
            None => self.configured.contains(&source),
            Some(pods) => self.partial.contains(&source) && !pods.iter().any(|pod| pod.name == *name),
        }
    }

    /// Pods by UID, one per name. Of several with one name the pod that is on the node already stays, else the first
    /// one wins: files before URL before API, each in its own order. Of two that are on the node the one that began last stays: the
    /// other was to go then, which an agent that was killed could not write down. One that is to be deleted begins nothing, and keeps
    /// nobody out: the API server waits for its end, whoever has its name.
    pub(super) fn merged(&self, here_since: impl Fn(&PodUid) -> Option<HereSince>) -> Merged {
        let all = || self.desired.values().flatten();
        let is_leaving = |pod: &Pod| pod.deletion.is_some();
        let mut names: BTreeMap<&PodName, &Arc<Pod>> = BTreeMap::new();
        for pod in all().filter(|pod| !is_leaving(pod)) {
            let holder = names.entry(&pod.name).or_insert(pod);
            if here_since(&pod.uid) > here_since(&holder.uid) {
                *holder = pod;
            }
        }
        let mut merged = Merged::default();
        for pod in all() {
            let is_holder = names.get(&pod.name).is_some_and(|holder| Arc::ptr_eq(holder, pod));
            if (is_holder || is_leaving(pod)) && !merged.pods.contains_key(&pod.uid) {
                merged.pods.insert(pod.uid.clone(), Arc::clone(pod));
            } else {
                merged.refused.push(Arc::clone(pod));
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        fixtures,
        id::{ContainerId, ContainerName},
        pod::PodMachine,
        record::ContainerRecord,
        time::Now,
    };

    #[test]
    fn a_name_is_the_last_ones_that_is_here_and_else_the_first_ones() {
        let pod = |source: Source| {
            Arc::new(Pod { source, uid: PodUid::new(source.as_str()), ..fixtures::pod(Vec::new()) })
        };
        let of = [Source::File, Source::Api];
        let mut sources = Sources::new(of.into());
        for source in of {
            sources.set(source, vec![pod(source)], true);
        }
        // When the oldest run was begun by the clock that nobody sets, and when the pod began by what was told.
        let here = |begun: Option<u64>, told: i64| {
            let begun_at = begun.map(|seconds| Mono(Duration::from_secs(seconds)));
            Some(HereSince { begun_at, started_at: Timestamp::from_second(told).unwrap() })
        };
        for (file, api, expected) in [
            (None, None, Source::File),
            (here(Some(1), 1), None, Source::File),
            (None, here(Some(1), 1), Source::Api),
            (here(None, 9), None, Source::File),
            (None, here(None, 1), Source::Api),
            (here(Some(1), 1), here(Some(2), 2), Source::Api),
            (here(Some(2), 2), here(Some(1), 1), Source::File),
            (here(Some(1), 1), here(Some(1), 1), Source::File),
            // Whatever the source says, or a clock that was set.
            (here(Some(1), 9), here(Some(2), 1), Source::Api),
            (here(Some(2), 1), here(Some(1), 9), Source::File),
            // What never came to begin anything keeps nobody out that did.
            (here(Some(1), 1), here(None, 9), Source::File),
            (here(None, 9), here(Some(1), 1), Source::Api),
            // Nothing better tells.
            (here(None, 1), here(None, 2), Source::Api),
            (here(None, 2), here(None, 1), Source::File),
        ] {
            let since = |uid: &PodUid| if uid.as_str() == Source::File.as_str() { file } else { api };
            let merged = sources.merged(since);
            let kept: Vec<Source> = merged.pods.values().map(|pod| pod.source).collect();
            assert_eq!((kept, merged.refused.len()), (vec![expected], 1), "{file:?} {api:?}");
        }
    }

    #[test]
    fn a_source_may_want_what_it_was_not_heard_to_leave_out() {
        use Source::{Api, File, Http};
        let pod = |source: Source| Arc::new(Pod { source, ..fixtures::pod(Vec::new()) });
        let name = fixtures::pod(Vec::new()).name;
        // Who has spoken, whether all of that could be read, and whether a pod of the name is in it.
        for (told, expected) in [
            (&[][..], true),
            (&[(Api, true, false)], true),
            (&[(Api, true, true)], true),
            (&[(File, true, false)], false),
            (&[(File, true, true)], false),
            (&[(File, false, false)], true),
            (&[(File, false, true)], false),
            (&[(File, false, false), (Api, true, true)], true),
            (&[(File, true, false), (Api, false, false)], false),
        ] {
            let mut sources = Sources::new([File, Api].into());
            for (source, is_whole, has_name) in told {
                let pods = has_name.then(|| pod(*source)).into_iter().collect();
                sources.set(*source, pods, *is_whole);
            }
            assert_eq!(sources.may_want(File, &name), expected, "{told:?}");
            assert!(!sources.may_want(Http, &name), "nobody reads that");
        }
    }

    #[test]
    fn a_pod_is_here_since_the_oldest_of_its_runs_was_begun_until_it_is_to_go() {
        let pod = fixtures::pod(vec![fixtures::container("web"), fixtures::container("log")]);
        let at = |seconds| Mono(Duration::from_secs(seconds));
        for (goal, begun, expected) in [
            (Goal::Wanted, &[][..], Some(None)),
            (Goal::Wanted, &[("web", 7)], Some(Some(7))),
            (Goal::Wanted, &[("web", 7), ("log", 5)], Some(Some(5))),
            (Goal::Wanted, &[("web", 5), ("log", 7)], Some(Some(5))),
            (Goal::Removed, &[("web", 5)], None),
        ] {
            let now = Now { mono: at(9), wall: Timestamp::UNIX_EPOCH };
            let mut record = PodMachine::new(Arc::new(pod.clone()), now).life().record.clone();
            record.goal = goal;
            for (name, seconds) in begun {
                let name = ContainerName::new(*name);
                let id = ContainerId::of(&pod.uid, &name, 0);
                record.containers.insert(name, ContainerRecord::begun(id, 0, at(*seconds)));
            }
            let since = HereSince::of(&record);
            assert_eq!(since.map(|since| since.begun_at), expected.map(|at_s| at_s.map(at)), "{begun:?}");
        }
    }
}
