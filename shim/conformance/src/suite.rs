//! The suite: which cases are run with which runtimes, and what becomes of those that a shim is known to fail.

use std::cell::Cell;
use std::panic;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Once;

use libtest_mimic::{Arguments, Trial};

use crate::cases::{Case, GROUPS, Group, Needs, Service};
use crate::deviations::Deviation;
use crate::harness::{Endurance, Runtime, Subject, World, outcome, probe_sandbox, trial};

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
    for Deviation { case, why, .. } in candidate.deviations {
        eprintln!("{}: known deviation, must fail: {case}: {why}", candidate.name);
    }
}

const NOT_OFFERED: &str = "not offered by this shim";

fn one(candidate: &Candidate, name: &str, case: &Case, subject: &Subject, missing: bool) -> Trial {
    let deviation = candidate.deviations.iter().find(|deviation| deviation.case == name);
    match deviation {
        _ if missing => trial(name, subject, case.test).with_kind(NOT_OFFERED).with_ignored_flag(true),
        None => trial(name, subject, case.test),
        Some(deviation) => deviating(name, subject, case.test, deviation),
    }
}

/// A case that must fail: the shim is known to deviate, and one that does no more is to be taken off the table.
fn deviating(name: &str, subject: &Subject, test: fn(&World), deviation: &'static Deviation) -> Trial {
    let inner = outcome(subject.clone(), test);
    Trial::test(format!("{name}::{}", subject.name), move || match in_silence(&inner) {
        Err(failure) if failure.contains(deviation.shows) => Ok(()),
        Err(failure) => Err(format!("fails otherwise than it is known to: {failure}").into()),
        Ok(()) => Err(format!("passes, though it is known to fail since {}", deviation.why).into()),
    })
    .with_kind("deviates")
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
