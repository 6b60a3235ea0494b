//! Runs each test in a lab of its own: a process that is this program again, with the test's name.
//!
//! Whatever a test starts ends with its lab, however the test ends; a test that passes and leaves
//! something behind fails.

#![expect(clippy::print_stderr, reason = "what a failing test has to say")]

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;
use std::{env, process};

use anyhow::{Context, Result, bail, ensure};
use berth_integration::components::Set;
use berth_integration::lab::{self, World};
use berth_integration::old::{self, Profiles};
use berth_integration::vm::{self, Feature};
use berth_integration::wait::{self, Look};
use berth_integration::{binaries, components, files, stored};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest time a test may take, on a machine busy with another one.
const LIMIT: Duration = Duration::from_secs(240);
/// The same of a test that waits for minutes.
pub(crate) const LONG_LIMIT: Duration = Duration::from_secs(6 * 60);
/// How long a stopped lab may take to end.
const END_LIMIT: Duration = Duration::from_secs(20);
/// More than a machine has processors: they wait now and then. With more they only wait for each other.
const AT_ONCE: usize = 3;
/// Those that wait for long, beside these.
const LONG_AT_ONCE: usize = 4;

/// One test.
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) body: Body,
    /// What a run in a lab has to end with.
    pub(crate) expect: Expect,
    /// Without this it says nothing, and is left out in a guest that was declared to lack it.
    pub(crate) needs: Option<Feature>,
    /// No other test runs beside it, since what it does is felt in all of the machine.
    pub(crate) alone: bool,
    /// It waits for long and does little: it begins before others, which run meanwhile.
    pub(crate) long: bool,
    /// The commit whose programs it runs too.
    pub(crate) old: Option<&'static str>,
    /// Longest time that it may take. Of those that wait for long, those that may take longest begin first.
    pub(crate) limit: Duration,
}

impl Test {
    /// The same test, which needs something of its machine.
    pub(crate) fn needs(self, feature: Feature) -> Self {
        Self { needs: Some(feature), ..self }
    }

    /// The same test, which runs programs of an earlier commit too.
    pub(crate) fn with_programs_of(self, commit: &'static str) -> Self {
        Self { old: Some(commit), ..self }
    }

    /// The same test, which may take longer than others.
    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The same test, which waits for most of a minute or longer.
    pub(crate) fn long(self) -> Self {
        Self { long: true, ..self }
    }

    /// The same test, with no other beside it.
    pub(crate) fn alone(self) -> Self {
        Self { alone: true, ..self }
    }
}

/// What a test does.
pub(crate) enum Body {
    Plain(fn() -> Result<()>),
    /// The same for every value of a list.
    Of(fn(&str) -> Result<()>, String),
}

/// How a test in its lab has to end.
#[derive(Clone, Copy)]
pub(crate) enum Expect {
    /// Without a failure, and leaving nothing.
    Pass,
    /// With a failure that says this.
    Fail(&'static str),
}

impl Body {
    fn run(&self) -> Result<()> {
        match self {
            Self::Plain(body) => body(),
            Self::Of(body, value) => body(value),
        }
    }
}

/// A test that has to pass.
pub(crate) fn test(name: &str, body: fn() -> Result<()>) -> Test {
    of(name.to_owned(), Body::Plain(body))
}

/// A test that has to pass, whose body may be that of others too.
pub(crate) fn of(name: String, body: Body) -> Test {
    Test { name, body, expect: Expect::Pass, needs: None, alone: false, long: false, old: None, limit: LIMIT }
}

/// Plays the part of this process: all tests, or one of them in its lab.
pub(crate) fn main(tests: Vec<Test>) -> ExitCode {
    if lab::inside() {
        return lab::run(|| run_one(&tests));
    }
    let mut arguments = Arguments::from_args();
    // A thread for each that waits for its place keeps none of the others waiting.
    let long = tests.iter().filter(|test| test.long).count();
    arguments.test_threads = arguments.test_threads.or(Some(AT_ONCE + long));
    if !arguments.list
        && let Err(failure) = prepare(&selected_commits(&arguments, &tests))
    {
        eprintln!("{failure:#}");
        return ExitCode::FAILURE;
    }
    let trial = |test: Test| {
        let lacking = test.needs.filter(|feature| vm::lacks(*feature));
        if let Some(feature) = lacking {
            eprintln!("LEFT OUT, since this machine has no {}: {}", feature.name(), test.name);
        }
        let cut_off = test.old.filter(|commit| old::is_cut_off(commit));
        if let Some(commit) = cut_off {
            eprintln!(
                "LEFT OUT, since this clone is without {commit} (git fetch --unshallow): {}",
                test.name
            );
        }
        let is_left_out = lacking.is_some() || cut_off.is_some();
        let name = test.name.clone();
        let run = move || {
            in_a_lab(&test).inspect_err(|failed| remember(&test.name, failed.message().unwrap_or_default()))
        };
        Trial::test(name, run).with_ignored_flag(is_left_out)
    };
    // Those that are to be alone come last: whoever waits for all others to end keeps those that could begin meanwhile from it.
    let (alone, together): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.alone);
    let (mut long, others): (Vec<_>, Vec<_>) = together.into_iter().partition(|test| test.long);
    // Else they would end last, alone.
    long.sort_by_key(|test| Reverse(test.limit));
    let trials = long.into_iter().chain(others).chain(alone).map(trial).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Logs are long, and what a reader sees of them is often their end.
    for why in REASONS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        eprintln!("FAILED {why}");
    }
    conclusion.exit_code()
}

/// Why tests failed, each in a few lines.
static REASONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Most of a reason that is told again.
const REASON_MAX: usize = 2_000;

fn remember(name: &str, why: &str) {
    // What the lab said last, after its logs, or why there was none.
    let why = why.rsplit_once(&format!("\n{name}: ")).map_or(why, |(_logs, why)| why);
    let why = &why[..why.floor_char_boundary(REASON_MAX)];
    REASONS.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{name}: {}", why.trim()));
}

/// The commits whose programs the tests need that are to run.
fn selected_commits(arguments: &Arguments, tests: &[Test]) -> BTreeSet<&'static str> {
    let matches = |test: &Test, filter: &String| {
        if arguments.exact { test.name == *filter } else { test.name.contains(filter.as_str()) }
    };
    let selected = tests.iter().filter(|test| arguments.filter.as_ref().is_none_or(|one| matches(test, one)));
    selected
        .filter(|test| !arguments.skip.iter().any(|one| matches(test, one)))
        .filter_map(|test| test.old)
        .filter(|commit| !old::is_cut_off(commit))
        .collect()
}

fn prepare(commits: &BTreeSet<&'static str>) -> Result<()> {
    if vm::is_guest() {
        return Ok(());
    }
    components::build(Set::PinnedForTests, |step| eprintln!("{step}"))?;
    commits.iter().try_for_each(|commit| old::build(commit, Profiles::Tests))?;
    stored::build()?;
    binaries::build()
}

/// In the lab: finds the test by its name and runs it.
fn run_one(tests: &[Test]) -> ExitCode {
    let name = env::args().nth(1).unwrap_or_default();
    let Some(test) = tests.iter().find(|test| test.name == name) else {
        eprintln!("no test named {name}");
        return ExitCode::FAILURE;
    };
    let failure = match panic::catch_unwind(AssertUnwindSafe(|| test.body.run())) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failure)) => format!("{failure:#}"),
        // The panic has printed its message.
        Err(_) => "panicked".to_owned(),
    };
    eprintln!("\n{name}: {failure}");
    if let Err(failure) = World::here().and_then(|world| world.show_logs()) {
        eprintln!("no logs: {failure:#}");
    }
    // Once more, where it is found at once.
    eprintln!("\n{name}: {failure}");
    ExitCode::FAILURE
}

/// Places of tests that do not wait for long.
static PLACES: Places = Places { free: Mutex::new(AT_ONCE), freed: Condvar::new() };
/// Places of those that do.
static LONG_PLACES: Places = Places { free: Mutex::new(LONG_AT_ONCE), freed: Condvar::new() };

struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// Gives the place back.
struct Place(&'static Places);

impl Places {
    /// Waits until there is one.
    fn take(&'static self) -> Place {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Place(self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

/// Who runs on the machine: one that is to be alone, or any others.
static MACHINE: RwLock<()> = RwLock::new(());

/// Outside: runs the test in a new lab and judges how that ended.
fn in_a_lab(test: &Test) -> Result<(), Failed> {
    // Nothing is guarded but the time, so one that panicked does no harm.
    let alone = test.alone.then(|| MACHINE.write().unwrap_or_else(PoisonError::into_inner));
    let _beside = alone.is_none().then(|| MACHINE.read().unwrap_or_else(PoisonError::into_inner));
    let _place = if test.long { &LONG_PLACES } else { &PLACES }.take();
    let output = Output::new(&test.name);
    let ended = run_lab(test, &output).map_err(|failure| Failed::from(format!("{failure:#}")))?;
    let text = output.text();
    match test.expect {
        Expect::Pass if ended.success() => Ok(()),
        Expect::Fail(reason) if !ended.success() && text.contains(reason) => Ok(()),
        Expect::Pass => Err(Failed::from(format!("{ended}\n{text}"))),
        Expect::Fail(reason) => Err(Failed::from(format!("not failed with {reason:?}: {ended}\n{text}"))),
    }
}

fn run_lab(test: &Test, output: &Output) -> Result<ExitStatus> {
    let Test { name, limit, .. } = test;
    let file = files::create(&output.0)?;
    let mut lab = lab::command([name.as_str()])?
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context("start the lab")?;
    let ended = wait::until(&format!("{name} to end"), *limit, || {
        Ok(lab.try_wait()?.map_or_else(|| Look::NotYet("still running".to_owned()), Look::Ready))
    });
    if let Err(failure) = ended {
        // The supervisor ends the lab and clears up.
        kill(Pid::from_raw(i32::try_from(lab.id())?), Signal::SIGTERM)?;
        wait::until("the lab to end", END_LIMIT, || {
            Ok(lab.try_wait()?.map_or_else(|| Look::NotYet("still running".to_owned()), Look::Ready))
        })?;
        bail!("{failure:#}\n{}", output.text());
    }
    ended
}

/// The file that takes what a lab prints.
struct Output(PathBuf);

impl Output {
    fn new(name: &str) -> Self {
        let name = name.replace("::", "-");
        Self(env::temp_dir().join(format!("berth-it-{}-{name}.txt", process::id())))
    }

    /// What was printed, whatever that is: programs of a lab may print what is no text.
    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.0).unwrap_or_default()).into_owned()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Left behind only when the temporary directory itself is broken.
        drop(fs::remove_file(&self.0));
    }
}

/// As `assert_eq!`, but an error, so that the lab tells what its components logged.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Result<()> {
    ensure!(found == wanted, "{what}: found {found:?}, wanted {wanted:?}");
    Ok(())
}
