//! When the node loop is told what the API server wants of it.
//!
//! A pod that comes, goes or is to run otherwise is told of at once. For what volumes alone show of a pod, its labels and annotations,
//! nobody waits: that is told with whatever else changes within a moment. So a flood of changes is a few tellings, however fast
//! they come, and leaves the node loop to the pods that start and end meanwhile.

use std::time::Duration;

use crate::time::Mono;

/// For so long what is in no hurry waits for what comes after it. The kubelet takes up to a `syncFrequency` (a minute) for the same.
const GATHERED_FOR: Duration = Duration::from_secs(1);
/// Between two tellings at least: far less than a start takes, and each telling has all pods in it, which come by the hundred.
const APART: Duration = Duration::from_millis(20);

/// What is untold, and when it is told.
#[derive(Debug, Default)]
pub struct Telling {
    due: Option<Mono>,
    told: Option<Mono>,
}

impl Telling {
    /// Something has changed that pods start or end by.
    pub fn hurries(&mut self, now: Mono) {
        self.by(now);
    }

    /// Something has changed that is only shown.
    pub fn can_wait(&mut self, now: Mono) {
        self.by(now + GATHERED_FOR);
    }

    /// When the node loop is to be told.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.due
    }

    /// Whether it is to be told now.
    #[must_use]
    pub fn is_due(&self, now: Mono) -> bool {
        self.due.is_some_and(|at| at <= now)
    }

    /// It is told all that has changed.
    pub fn told(&mut self, now: Mono) {
        (self.due, self.told) = (None, Some(now));
    }

    fn by(&mut self, at: Mono) {
        let at = self.told.map_or(at, |told| at.max(told + APART));
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Mono {
        Mono(Duration::from_millis(millis))
    }

    #[test]
    fn starts_and_ends_are_told_at_once_and_what_is_shown_within_a_second() {
        type Change = fn(&mut Telling, Mono);
        let (hurries, waits): (Change, Change) = (Telling::hurries, Telling::can_wait);
        for (what, changes, told) in [
            ("nothing", vec![], None),
            ("a start", vec![(hurries, 5000)], Some(5000)),
            ("what is shown", vec![(waits, 5000)], Some(6000)),
            ("what is shown waits no longer for more of it", vec![(waits, 5000), (waits, 5900)], Some(6000)),
            ("a start does not wait with it", vec![(waits, 5000), (hurries, 5100)], Some(5100)),
            ("nor for it", vec![(hurries, 5000), (waits, 5000)], Some(5000)),
            ("a start right after a telling", vec![(hurries, 1001)], Some(1020)),
            ("and those after it", vec![(hurries, 1001), (hurries, 1019)], Some(1020)),
        ] {
            let mut telling = Telling::default();
            telling.told(at(1000));
            for (change, millis) in changes {
                change(&mut telling, at(millis));
            }
            assert_eq!(telling.poll_timeout(), told.map(at), "{what}");
            if let Some(told) = told {
                assert!(!telling.is_due(at(told - 1)) && telling.is_due(at(told)), "{what}");
            }
        }
    }

    #[test]
    fn a_flood_is_one_telling_in_a_second_and_no_start_waits_for_it() {
        let (mut telling, mut tellings) = (Telling::default(), 0);
        for millis in 0..10_000 {
            telling.can_wait(at(millis));
            if millis % 1000 == 500 {
                telling.hurries(at(millis));
                assert!(telling.is_due(at(millis)));
            }
            if telling.is_due(at(millis)) {
                telling.told(at(millis));
                tellings += 1;
            }
        }
        assert!((10..=20).contains(&tellings), "{tellings}");
    }
}
