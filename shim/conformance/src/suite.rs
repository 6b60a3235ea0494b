//! The suite: which cases are run with which runtimes, and what becomes of those that a shim is known to fail.

use std::cell::Cell;
use std::panic;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::{Arguments, Trial};

use crate::cases::{Case, GROUPS, Group, Needs, Service};
use crate::deviations::{Deviation, Fails};
use crate::harness::{Endurance, Runtime, Subject, outcome, probe_sandbox, trial};
use crate::proofs::{PROOFS, Proof};

/// A shim that is to be tested.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What tests call it.
    pub name: String,
    /// Its program.
    pub program: PathBuf,
    /// The runtimes to test it with.
    pub runtimes: Vec<Runtime>,
    /// What is to be expected of the sandbox service.
    pub sandbox: SandboxService,
    /// How it is known to deviate from the contract.
    pub deviations: &'static [Deviation],
    /// How long it is made to work before its memory is looked at.
    pub endurance: Endurance,
    /// How often a trial is run that fails.
    pub attempts: Attempts,
}

/// How often a trial is run before it counts as failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// For a shim that is to be proved.
    One,
    /// For a shim that proves the suite, and whose races are not ours to mend. The first failure is said aloud.
    Two,
}

/// Whether a shim must offer the sandbox service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxService {
    /// Its absence is a failure of every case that needs it.
    Required,
    /// It is asked for; where it is missing, cases that need it are shown as ignored.
    Probed,
}

/// Every case for a shim: once with the fake runtime where it is about the shim alone, else with each runtime.
pub fn trials(candidate: &Candidate) -> Vec<Trial> {
    let names: Vec<String> = cases().map(|(group, case)| name_of(group, case)).collect();
    let strangers =
        candidate.deviations.iter().filter(|deviation| !names.iter().any(|n| n == deviation.case));
    let strangers = strangers.map(|deviation| {
        let message = format!("{} is no case: the deviation is about nothing", deviation.case);
        Trial::test(
            format!("deviations::{}::{}", deviation.case, candidate.name),
            move || Err(message.into()),
        )
    });
    let lacks_sandbox = candidate.sandbox == SandboxService::Probed && !offers_sandbox(candidate);
    let known = cases().flat_map(|(group, case)| {
        subjects(candidate, case.needs).into_iter().map(move |subject| {
            let missing = lacks_sandbox && group.service == Service::Sandbox;
            one(candidate, &name_of(group, case), case, &subject, missing)
        })
    });
    strangers.chain(known).collect()
}

/// The proof of each case that no second shim passes: the shim, made wrong in one thing, must fail it.
pub fn proofs(candidate: &Candidate) -> Vec<Trial> {
    PROOFS.iter().map(|proof| one_proof(candidate, proof)).collect()
}

fn one_proof(candidate: &Candidate, Proof { case, fault, shows }: &'static Proof) -> Trial {
    let name = format!("proofs::{case}::{fault:?}");
    let found = cases().find(|(group, one)| name_of(group, one) == *case);
    let subject = found.and_then(|(_, one)| Some((one, subjects(candidate, one.needs).into_iter().next()?)));
    Trial::test(name, move || {
        let (case, subject) = subject.as_ref().ok_or("there is no such case")?;
        let wrong = Subject { fault: Some(*fault), ..subject.clone() };
        match in_silence(outcome(wrong, case.test)) {
            Err(failure) if failure.contains(shows) => Ok(()),
            Err(failure) => Err(format!("fails otherwise than by {shows:?}: {failure}").into()),
            Ok(()) => Err(format!("passes for a shim that is wrong: {fault:?}").into()),
        }
    })
}

/// Runs the cases, more at a time than there are processors: most of the time they wait.
pub fn run(arguments: &Arguments, trials: Vec<Trial>) -> ExitCode {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let test_threads = arguments.test_threads.or(Some(2 * processors));
    let arguments = Arguments { test_threads, ..arguments.clone() };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A line for each shim that does not offer something, so that nobody takes its cases for passed.
pub fn announce(candidate: &Candidate, trials: &[Trial]) {
    let count = trials.iter().filter(|trial| trial.kind() == NOT_OFFERED).count();
    if count > 0 {
        eprintln!(
            "{}: no sandbox service is offered by this shim: {count} cases are not run",
            candidate.name
        );
    }
    for Deviation { case, fails, why, .. } in candidate.deviations {
        let known = match fails {
            Fails::Always => "known deviation, must fail",
            Fails::Sometimes => "known race, may fail",
        };
        eprintln!("{}: {known}: {case}: {why}", candidate.name);
    }
}

const NOT_OFFERED: &str = "not offered by this shim";

fn one(candidate: &Candidate, name: &str, case: &Case, subject: &Subject, missing: bool) -> Trial {
    if missing {
        return trial(name, subject, case.test).with_kind(NOT_OFFERED).with_ignored_flag(true);
    }
    let full_name = format!("{name}::{}", subject.name);
    let deviation = candidate.deviations.iter().find(|deviation| deviation.case == name);
    let (outcome, attempts, said) =
        (outcome(subject.clone(), case.test), candidate.attempts, full_name.clone());
    let judged = move || match deviation {
        None => outcome(),
        Some(deviation) => judge(deviation, in_silence(&outcome)),
    };
    let trial = Trial::test(full_name, move || attempt(&said, attempts, &SPENT, &judged).map_err(Into::into));
    match deviation.map(|deviation| deviation.fails) {
        None => trial,
        Some(Fails::Always) => trial.with_kind("deviates"),
        Some(Fails::Sometimes) => trial.with_kind("races"),
    }
}

/// Second attempts in one run of the suite. More of them are no races of a shim that works, but a machine or a suite that
/// does not.
const SECOND_ATTEMPTS_MAX: u32 = 3;

/// Second attempts of this run.
static SPENT: AtomicU32 = AtomicU32::new(0);

/// Runs a trial as often as is allowed.
fn attempt(
    name: &str,
    attempts: Attempts,
    spent: &AtomicU32,
    trial: impl Fn() -> Result<(), String>,
) -> Result<(), String> {
    match (trial(), attempts) {
        (Err(failure), Attempts::Two) => {
            if spent.fetch_add(1, Ordering::Relaxed) >= SECOND_ATTEMPTS_MAX {
                let text = format!("no second attempt, since {SECOND_ATTEMPTS_MAX} trials had one");
                return Err(format!("{text}: {failure}"));
            }
            eprintln!("{name}: SECOND ATTEMPT, since the first failed: {failure}");
            trial()
        }
        (outcome, _) => outcome,
    }
}

/// What the outcome of a case says that a shim is known to fail. One that fails no more is to be taken off the table.
fn judge(deviation: &Deviation, outcome: Result<(), String>) -> Result<(), String> {
    let Deviation { fails, shows, why, .. } = deviation;
    match (outcome, fails) {
        (Err(failure), _) if failure.contains(shows) => Ok(()),
        (Err(failure), _) => Err(format!("fails otherwise than it is known to: {failure}")),
        (Ok(()), Fails::Always) => Err(format!("passes, though it is known to fail since {why}")),
        (Ok(()), Fails::Sometimes) => Ok(()),
    }
}

thread_local! {
    /// Whether a panic of this thread is expected.
    static SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Runs what is expected to panic, without the message.
fn in_silence<T>(run: impl Fn() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !SILENT.get() {
                loud(info);
            }
        }));
    });
    SILENT.set(true);
    let result = run();
    SILENT.set(false);
    result
}

fn cases() -> impl Iterator<Item = (&'static Group, &'static Case)> {
    GROUPS.iter().flat_map(|group| group.cases.iter().map(move |case| (group, case)))
}

fn name_of(group: &Group, case: &Case) -> String {
    format!("{}::{}", group.name, case.name)
}

fn subjects(candidate: &Candidate, needs: Needs) -> Vec<Subject> {
    let subject = |name: String, runtime: Runtime| Subject {
        name,
        shim: candidate.program.clone(),
        runtime,
        endurance: candidate.endurance,
        fault: None,
    };
    let with = |runtime: &Runtime| subject(format!("{}+{}", candidate.name, runtime.name()), runtime.clone());
    match needs {
        Needs::Shim => vec![subject(candidate.name.clone(), Runtime::fake())],
        Needs::Containers => candidate.runtimes.iter().map(with).collect(),
    }
}

fn offers_sandbox(candidate: &Candidate) -> bool {
    subjects(candidate, Needs::Shim).into_iter().all(probe_sandbox)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deviations::STOCK;

    #[test]
    fn each_case_that_no_second_shim_passes_is_proved_by_a_wrong_one() {
        let sandboxes = cases().filter(|(group, _)| group.service == Service::Sandbox);
        let unproved: Vec<String> = sandboxes
            .map(|(group, case)| name_of(group, case))
            .filter(|name| !PROOFS.iter().any(|proof| proof.case == name))
            .collect();
        assert_eq!(unproved, Vec::<String>::new());
        // What the stock shim always fails is proved by it: `judge` holds each failure to what it is known to show.
        let failed = STOCK.iter().filter(|deviation| deviation.fails == Fails::Always);
        assert!(failed.clone().count() > 0 && failed.into_iter().all(|one| !one.shows.is_empty()));
    }

    #[test]
    fn a_known_failure_is_taken_for_no_other() {
        let known = |fails| Deviation { case: "a::b", fails, shows: "no answer", why: "it hangs" };
        let failed = |text: &str| Err(text.to_owned());
        for (fails, outcome, is_fine) in [
            (Fails::Always, failed("no answer within 60 s"), true),
            (Fails::Always, failed("panicked"), false),
            (Fails::Always, Ok(()), false),
            (Fails::Sometimes, failed("no answer within 60 s"), true),
            (Fails::Sometimes, failed("panicked"), false),
            (Fails::Sometimes, Ok(()), true),
        ] {
            let judged = judge(&known(fails), outcome.clone());
            assert_eq!(judged.is_ok(), is_fine, "{fails:?} {outcome:?}: {judged:?}");
        }
    }

    #[test]
    fn only_who_may_gets_a_second_attempt() {
        for (attempts, failures, runs, is_fine) in [
            (Attempts::One, 0, 1, true),
            (Attempts::One, 1, 1, false),
            (Attempts::Two, 0, 1, true),
            (Attempts::Two, 1, 2, true),
            (Attempts::Two, 2, 2, false),
        ] {
            let run = Cell::new(0);
            let outcome = attempt("a::b", attempts, &AtomicU32::new(0), || {
                run.set(run.get() + 1);
                if run.get() > failures { Ok(()) } else { Err("failed".to_owned()) }
            });
            assert_eq!((run.get(), outcome.is_ok()), (runs, is_fine), "{attempts:?}, {failures} failures");
        }
    }

    #[test]
    fn second_attempts_are_few() {
        let spent = AtomicU32::new(0);
        let races = || {
            let is_first = Cell::new(true);
            let trial = || if is_first.replace(false) { Err("raced".to_owned()) } else { Ok(()) };
            attempt("a::b", Attempts::Two, &spent, trial)
        };
        let fine = (0..10).filter(|_| races().is_ok()).count();
        assert_eq!(fine, SECOND_ATTEMPTS_MAX as usize);
    }
}
