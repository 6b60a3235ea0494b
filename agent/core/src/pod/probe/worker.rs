//! One probe of one run of a container: where it is, and what an answer leads to.

use super::{Dial, Rhythm, Try};
use crate::{
    id::{ContainerId, OpId},
    spec::Probe,
    time::Mono,
};

/// How often a question that could not be asked is asked in a row (`maxProbeRetries` of `pkg/kubelet/prober/prober.go`).
const TRIES_MAX: u32 = 3;

/// A probe of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::pod) struct Worker {
    /// The run.
    pub(in crate::pod) run: ContainerId,
    /// Where it is.
    pub(in crate::pod) state: State,
    streak: Option<Streak>,
}

/// Where a probe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pod) enum State {
    /// Asks then.
    Due {
        /// When.
        at: Mono,
        /// Which try.
        which: Try,
        /// How often it could not be asked before, in a row.
        errors: u32,
    },
    /// Has asked.
    Asking {
        /// The effect.
        op: OpId,
        /// When.
        at: Mono,
        /// Which try.
        which: Try,
        /// How often it could not be asked before, in a row.
        errors: u32,
    },
    /// Its answer is not wanted any more, and has not come.
    Ending {
        /// The effect.
        op: OpId,
    },
}

/// The same answer in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Streak {
    is_success: bool,
    length: u32,
}

/// What follows from an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pod) struct Step {
    /// Whether people are told of what went wrong.
    pub(in crate::pod) is_told: bool,
    /// What it adds up to, when that is enough.
    pub(in crate::pod) verdict: Option<bool>,
}

impl Step {
    const NOTHING: Self = Self { is_told: false, verdict: None };
}

impl Worker {
    /// A probe that may ask from `from` on.
    pub(in crate::pod) fn new(run: ContainerId, rhythm: Rhythm, from: Mono, is_early: bool) -> Self {
        let (at, which) = rhythm.first(from, is_early);
        Self { run, state: State::Due { at, which, errors: 0 }, streak: None }
    }

    /// When it asks.
    pub(in crate::pod) fn due_at(&self) -> Option<Mono> {
        match self.state {
            State::Due { at, .. } => Some(at),
            State::Asking { .. } | State::Ending { .. } => None,
        }
    }

    /// How it connects when it asks.
    pub(in crate::pod) fn dial(&self) -> Dial {
        match self.state {
            State::Due { which, .. } | State::Asking { which, .. } => Dial::of(which),
            State::Ending { .. } => Dial::Once,
        }
    }

    /// Whether a question of it is under way.
    pub(in crate::pod) fn is_asking(&self) -> bool {
        match self.state {
            State::Due { .. } => false,
            State::Asking { .. } | State::Ending { .. } => true,
        }
    }

    /// It asks now.
    pub(in crate::pod) fn ask(&mut self, op: OpId, now: Mono) {
        match self.state {
            State::Due { which, errors, .. } => self.state = State::Asking { op, at: now, which, errors },
            State::Asking { .. } | State::Ending { .. } => {}
        }
    }

    /// It is not wanted any more; whether something of it is still to end.
    pub(in crate::pod) fn end(&mut self) -> bool {
        match self.state {
            State::Due { .. } => false,
            State::Asking { op, .. } => {
                self.state = State::Ending { op };
                true
            }
            State::Ending { .. } => true,
        }
    }

    /// Takes the answer that was waited for: `None` when it could not be asked.
    pub(in crate::pod) fn answer(
        &mut self,
        probe: &Probe,
        rhythm: Rhythm,
        answer: Option<bool>,
        is_early: bool,
        now: Mono,
    ) -> Step {
        let State::Asking { at: asked_at, which, errors, .. } = self.state else { return Step::NOTHING };
        let is_regular = which == Try::Regular;
        if answer.is_none() && is_regular && errors + 1 < TRIES_MAX {
            self.state = State::Due { at: now, which, errors: errors + 1 };
            return Step::NOTHING;
        }
        let verdict = answer
            .filter(|is_success| *is_success || is_regular)
            .and_then(|is_success| self.count(probe, is_success));
        // An early try has done what it was for.
        let is_early = is_early && answer != Some(true);
        let (at, which) = rhythm.next(which, asked_at, is_early, now);
        self.state = State::Due { at, which, errors: 0 };
        Step { is_told: is_regular || answer == Some(true), verdict }
    }

    fn count(&mut self, probe: &Probe, is_success: bool) -> Option<bool> {
        let before =
            self.streak.filter(|streak| streak.is_success == is_success).map_or(0, |streak| streak.length);
        let length = before.saturating_add(1);
        self.streak = Some(Streak { is_success, length });
        let wanted = if is_success { probe.successes } else { probe.failures };
        (length >= wanted).then_some(is_success)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        fixtures,
        id::{ContainerName, PodUid},
        spec::ProbeKind,
    };

    const OP: OpId = OpId(1);

    fn worker(probe: &Probe, is_early: bool) -> (Worker, Rhythm) {
        let rhythm = Rhythm::of(&PodUid::new("u"), &ContainerName::new("web"), ProbeKind::Liveness, probe);
        (Worker::new(ContainerId::from_known("run"), rhythm, Mono::default(), is_early), rhythm)
    }

    /// Asks when it is due and answers 5 ms later.
    fn ask(worker: &mut Worker, rhythm: Rhythm, probe: &Probe, answer: Option<bool>) -> Step {
        let at = worker.due_at().unwrap();
        worker.ask(OP, at);
        worker.answer(probe, rhythm, answer, false, at + Duration::from_millis(5))
    }

    #[test]
    fn thresholds_count_answers_in_a_row() {
        // Successes and failures that count, answers (`+`, `-`, `?` for three times not asked) and verdicts (`.` for none).
        for (successes, failures, answers, verdicts) in [
            (1, 3, "+--+---", "+..+..-"),
            (1, 1, "-+-", "-+-"),
            (2, 2, "++-+--+", ".+...-."),
            (3, 1, "-++-+++", "-..-..+"),
            (1, 3, "--?-", "..?-"),
            (1, 3, "----", "..--"),
        ] {
            let probe = Probe { successes, failures, ..fixtures::probe() };
            let (mut worker, rhythm) = worker(&probe, false);
            let mut found = String::new();
            for answer in answers.chars() {
                found.push(match answer {
                    '?' => {
                        for _ in 0..TRIES_MAX {
                            assert_eq!(ask(&mut worker, rhythm, &probe, None).verdict, None);
                        }
                        '?'
                    }
                    answer => match ask(&mut worker, rhythm, &probe, Some(answer == '+')).verdict {
                        None => '.',
                        Some(true) => '+',
                        Some(false) => '-',
                    },
                });
            }
            assert_eq!(found, verdicts, "{successes} {failures} {answers}");
        }
    }

    #[test]
    fn what_could_not_be_asked_is_asked_three_times_at_once_told_once_and_counts_for_nothing() {
        let probe = Probe { failures: 1, ..fixtures::probe() };
        let (mut worker, rhythm) = worker(&probe, false);
        let first = worker.due_at().unwrap();
        for tries in 1..=3 {
            let step = ask(&mut worker, rhythm, &probe, None);
            assert_eq!(step, Step { is_told: tries == 3, verdict: None }, "{tries}");
        }
        assert_eq!(worker.due_at(), Some(first + probe.period), "then it waits for its turn");
    }

    #[test]
    fn an_early_try_tells_and_counts_nothing_but_success() {
        let probe = Probe { failures: 1, ..fixtures::probe() };
        for (answer, expected) in [
            (Some(true), Step { is_told: true, verdict: Some(true) }),
            (Some(false), Step::NOTHING),
            (None, Step::NOTHING),
        ] {
            let (mut worker, rhythm) = worker(&probe, true);
            let at = worker.due_at().unwrap();
            worker.ask(OP, at);
            assert_eq!(worker.answer(&probe, rhythm, answer, true, at), expected, "{answer:?}");
            let is_again = worker.due_at() == Some(at + Duration::from_millis(100));
            assert_eq!(is_again, answer != Some(true), "{answer:?}");
        }
    }

    #[test]
    fn an_early_try_connects_once_and_others_again() {
        let probe = fixtures::probe();
        for (is_early, expected) in [(true, Dial::Once), (false, Dial::Again)] {
            let (worker, _) = worker(&probe, is_early);
            assert_eq!(worker.dial(), expected);
        }
    }

    #[test]
    fn what_is_not_wanted_any_more_keeps_its_place_until_it_has_ended() {
        let probe = fixtures::probe();
        let (mut worker, rhythm) = worker(&probe, false);
        assert!(!worker.end(), "nothing was asked");
        let at = worker.due_at().unwrap();
        worker.ask(OP, at);
        assert!(worker.end() && worker.end() && worker.is_asking());
        assert_eq!(worker.due_at(), None);
        assert_eq!(worker.answer(&probe, rhythm, Some(false), false, at), Step::NOTHING);
    }
}
