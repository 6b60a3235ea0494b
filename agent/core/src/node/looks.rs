//! When each pod is looked at: once in a period, at a moment of its own, so that a full node looks at one after another.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use crate::{id::PodUid, time::Mono};

/// The shortest period, so that no setting makes the agent look all the time.
const PERIOD_MIN: Duration = Duration::from_secs(1);

/// The next look at each pod.
#[derive(Debug)]
pub(super) struct Looks {
    period: Duration,
    due: BTreeSet<(Mono, PodUid)>,
    pods: BTreeMap<PodUid, Mono>,
}

impl Looks {
    pub(super) fn every(period: Duration) -> Self {
        Self { period: period.max(PERIOD_MIN), due: BTreeSet::new(), pods: BTreeMap::new() }
    }

    /// A pod is on the node.
    pub(super) fn add(&mut self, uid: &PodUid, now: Mono) {
        if !self.pods.contains_key(uid) {
            self.set(uid, now);
        }
    }

    /// A pod is gone.
    pub(super) fn remove(&mut self, uid: &PodUid) {
        if let Some(at) = self.pods.remove(uid) {
            self.due.remove(&(at, uid.clone()));
        }
    }

    /// The pods whose moment has come; the next one of each is set.
    pub(super) fn take_due(&mut self, now: Mono) -> Vec<PodUid> {
        let due: Vec<PodUid> =
            self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, uid)| uid.clone()).collect();
        for uid in &due {
            self.remove(uid);
            self.set(uid, now);
        }
        due
    }

    /// When the next moment comes.
    pub(super) fn poll_timeout(&self) -> Option<Mono> {
        self.due.first().map(|(at, _)| *at)
    }

    fn set(&mut self, uid: &PodUid, now: Mono) {
        let at = next(uid, now, self.period);
        self.due.insert((at, uid.clone()));
        self.pods.insert(uid.clone(), at);
    }
}

/// The next moment of a pod after `now`. It depends on the UID alone, so that a restart of the agent brings no two together.
fn next(uid: &PodUid, now: Mono, period: Duration) -> Mono {
    let mut hasher = DefaultHasher::new();
    uid.as_str().hash(&mut hasher);
    let period_ms = period.as_millis().max(1);
    let phase = u128::from(hasher.finish()) % period_ms;
    let since = (now.0.as_millis() + period_ms - phase) % period_ms;
    let wait = u64::try_from(period_ms - since).unwrap_or(u64::MAX);
    Mono(Duration::from_millis(u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX).saturating_add(wait)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(millis: u64) -> Mono {
        Mono(Duration::from_millis(millis))
    }

    fn uid(number: u32) -> PodUid {
        PodUid::new(format!("0b1c-{number}"))
    }

    #[test]
    fn each_pod_has_one_look_in_a_period_and_always_at_the_same_moment() {
        for number in 0..100 {
            let first = next(&uid(number), at(123_456), MINUTE);
            assert!(first > at(123_456) && first <= at(183_456), "{first:?}");
            assert_eq!(next(&uid(number), first, MINUTE), first + MINUTE);
            let just_before = Mono(first.0.saturating_sub(Duration::from_millis(1)));
            assert_eq!(next(&uid(number), just_before, MINUTE), first, "also for another agent");
        }
    }

    #[test]
    fn a_thousand_pods_are_not_looked_at_at_once() {
        let mut looks = Looks::every(MINUTE);
        (0..1000).for_each(|number| looks.add(&uid(number), at(5000)));
        let mut most = 0;
        let mut all = BTreeSet::new();
        for second in 0..60 {
            let due = looks.take_due(at(5000 + 1000 * (second + 1)));
            most = most.max(due.len());
            all.extend(due);
        }
        assert_eq!(all.len(), 1000, "each within the period");
        // 17 are the mean.
        assert!(most < 40, "{most} in one second");
    }

    #[test]
    fn a_pod_that_is_gone_is_not_looked_at_and_nothing_is_kept_of_it() {
        let mut looks = Looks::every(MINUTE);
        looks.add(&uid(1), at(0));
        looks.add(&uid(1), at(30_000));
        assert_eq!(looks.due.len(), 1);
        looks.remove(&uid(1));
        assert_eq!((looks.poll_timeout(), looks.pods.len()), (None, 0));
        assert_eq!(looks.take_due(at(100_000)), []);
    }

    #[test]
    fn what_was_missed_while_the_machine_slept_is_made_up_for_once() {
        let mut looks = Looks::every(MINUTE);
        looks.add(&uid(1), at(0));
        assert_eq!(looks.take_due(at(3_600_000)), [uid(1)]);
        assert!(looks.poll_timeout() > Some(at(3_600_000)));
        assert_eq!(Looks::every(Duration::ZERO).period, PERIOD_MIN);
    }
}
