//! The pods that sources want, merged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

use crate::{
    id::{PodName, PodUid},
    spec::{Pod, Source},
};

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

    /// Whether a pod of an earlier run of the agent, which no source has given since, may still be wanted: it can be in
    /// what its source could not read. A pod with its name tells that it is not.
    pub(super) fn may_want(&self, source: Source, name: &PodName) -> bool {
        self.partial.contains(&source) && !self.desired.values().flatten().any(|pod| pod.name == *name)
    }

    /// Pods by UID, one per name. Of several with one name the pod that is on the node already stays, else the first
    /// one wins: files before URL before API, each in its own order. Of two that are on the node the one that began last stays: the
    /// other was to go then, which an agent that was killed could not write down. One that is to be deleted begins nothing, and keeps
    /// nobody out: the API server waits for its end, whoever has its name.
    pub(super) fn merged(&self, here_since: impl Fn(&PodUid) -> Option<Timestamp>) -> Merged {
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
    use super::*;
    use crate::fixtures;

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
        for (file, api, expected) in [
            (None, None, Source::File),
            (Some(1), None, Source::File),
            (None, Some(1), Source::Api),
            (Some(1), Some(2), Source::Api),
            (Some(2), Some(1), Source::File),
            (Some(1), Some(1), Source::File),
        ] {
            let since = |uid: &PodUid| if uid.as_str() == Source::File.as_str() { file } else { api };
            let merged = sources.merged(|uid| Timestamp::from_second(since(uid)?).ok());
            let kept: Vec<Source> = merged.pods.values().map(|pod| pod.source).collect();
            assert_eq!((kept, merged.refused.len()), (vec![expected], 1), "{file:?} {api:?}");
        }
    }
}
