//! What is on the node under UIDs of which there is no record: what is proven to be this agent's, and what is not and stays
//! (invariant 13, decision 0029).

use std::collections::{BTreeMap, BTreeSet};

use crate::id::PodUid;

/// Everything that is on the node under UIDs of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Directories of pods, each with the run directory that its mark names.
    pub dirs: BTreeMap<PodUid, Option<String>>,
    /// UIDs in the names of cgroups, which bear no mark.
    pub cgroups: BTreeSet<PodUid>,
}

/// The same without what is known, by whose it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proven {
    /// This agent's: the mark in the pod's directory says so.
    pub ours: BTreeSet<PodUid>,
    /// Of nobody that could be told: left alone.
    pub others: BTreeSet<PodUid>,
}

/// Tells what is this agent's, whose run directory is `run`. A UID is `known` when a record of a pod tells what is to become
/// of it, or a record in containerd that another agent made; what containerd has `observed` of ours is taken in by that.
#[must_use]
pub fn prove(seen: &Seen, run: &str, known: &BTreeSet<PodUid>, observed: &BTreeSet<PodUid>) -> Proven {
    let is_marked = |uid: &PodUid| seen.dirs.get(uid).is_some_and(|mark| mark.as_deref() == Some(run));
    let all = seen.dirs.keys().chain(&seen.cgroups).filter(|uid| !known.contains(*uid)).cloned();
    let (ours, mut others): (BTreeSet<_>, BTreeSet<_>) = all.partition(is_marked);
    others.retain(|uid| !observed.contains(uid));
    Proven { ours, others }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "/run/berth";

    fn set(uids: &[&str]) -> BTreeSet<PodUid> {
        uids.iter().map(|uid| PodUid::new(*uid)).collect()
    }

    #[test]
    fn nothing_is_ours_without_a_mark_that_names_us() {
        let marks = [
            ("ours", Some(RUN)),
            ("second", Some("/run/second/berth")),
            ("prefix", Some("/run/berth/")),
            ("empty", Some("")),
            ("bare", None),
        ];
        let seen = Seen {
            dirs: marks.iter().map(|(uid, mark)| (PodUid::new(*uid), mark.map(str::to_owned))).collect(),
            cgroups: set(&["ours", "second", "bare", "cgroup-alone"]),
        };
        let strangers = ["bare", "cgroup-alone", "empty", "prefix", "second"];
        for (known, observed, ours, others) in [
            (&[][..], &[][..], &["ours"][..], &strangers[..]),
            // A record says what is to become of it.
            (&["ours"], &[], &[], &strangers),
            (&["bare", "cgroup-alone"], &[], &["ours"], &["empty", "prefix", "second"]),
            // What is left of ours in containerd has a label that proves it, mark or not.
            (&[], &["bare", "ours"], &["ours"], &["cgroup-alone", "empty", "prefix", "second"]),
        ] {
            let expected = Proven { ours: set(ours), others: set(others) };
            assert_eq!(prove(&seen, RUN, &set(known), &set(observed)), expected, "{known:?} {observed:?}");
        }
        assert_eq!(prove(&Seen::default(), RUN, &set(&[]), &set(&[])), Proven::default());
    }
}
