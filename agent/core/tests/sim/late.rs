//! What was read before something was begun, and is heard after it.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    event::Event,
    id::{ContainerId, PodUid, SandboxId},
    observation::{Exit, ObservedTask, SandboxReport},
    spec::Pod,
};

use crate::{pods, run::Run};

/// When a look at the runtime is begun.
#[derive(Debug, Clone, Copy)]
enum Read {
    /// A shim's state, before the container is started in it.
    ShimBeforeStart,
    /// The whole runtime, before the container is started.
    RuntimeBeforeStart,
    /// The same while the sandbox's shim answers nothing.
    SilentRuntimeBeforeStart,
    /// The whole runtime, before the sandbox is made.
    RuntimeBeforeSandbox,
}

#[test]
fn what_was_begun_after_a_reading_began_is_not_taken_for_gone() {
    for read in [
        Read::ShimBeforeStart,
        Read::RuntimeBeforeStart,
        Read::SilentRuntimeBeforeStart,
        Read::RuntimeBeforeSandbox,
    ] {
        let mut run = Run::new();
        run.settle();
        run.want(pods::pod("web", &["main"]));
        until(&mut run, read);
        let event = match read {
            Read::ShimBeforeStart => {
                let id = run.world.sandboxes.keys().next().cloned().unwrap();
                Event::Sandbox { report: run.read_shim(&id), id }
            }
            Read::SilentRuntimeBeforeStart => {
                let id = run.world.sandboxes.keys().next().cloned().unwrap();
                run.world.fall_silent(&id);
                run.read_runtime();
                run.world.speak(&id);
                Event::RuntimeUp(run.observed.take().unwrap())
            }
            Read::RuntimeBeforeStart | Read::RuntimeBeforeSandbox => {
                run.read_runtime();
                Event::RuntimeUp(run.observed.take().unwrap())
            }
        };
        run.settle();
        let before = run.world.statuses.clone();
        assert_eq!(run.world.containers.values().filter(|one| one.is_running()).count(), 1, "{read:?}");
        run.told.clear();
        run.handle(event.clone());
        run.settle();
        assert_eq!(run.told, [], "{read:?}, heard when the container ran");
        assert_eq!(run.world.statuses, before, "{read:?}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{read:?}");
    }
}

/// The runtime knows no container of it yet, and its shim, which answers nothing while the runtime is read, begins it after that.
#[test]
fn what_was_asked_to_start_in_a_shim_that_hangs_is_not_taken_for_gone() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    until(&mut run, Read::RuntimeBeforeStart);
    let sandbox = run.world.sandboxes.keys().next().cloned().unwrap();
    run.world.fall_silent(&sandbox);
    run.read_runtime();
    run.hear_runtime();
    run.world.speak(&sandbox);
    run.settle();
    assert!(run.world.running(&PodUid::new("uid-web"), "main").is_some(), "{:?}", run.world.statuses);
    assert_eq!(run.world.sandboxes.keys().collect::<Vec<_>>(), [&sandbox]);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// One that began later tells.
#[test]
fn what_a_later_reading_does_not_find_is_gone() {
    let (mut run, id, sandbox) = with_a_container();
    // Somebody deleted it beside the agent, while its shim could not tell.
    run.world.containers.remove(&id);
    let report = run.read_shim(&sandbox);
    run.handle(Event::Sandbox { id: sandbox, report });
    run.settle();
    let uid = PodUid::new("uid-web");
    let record = &run.world.records[&uid].containers.values().next().unwrap();
    assert_eq!(record.last_exit.as_ref().or(record.exit.as_ref()).map(|end| end.exit.code), Some(137));
}

/// A pod at rest, with its only container and its sandbox.
fn with_a_container() -> (Run, ContainerId, SandboxId) {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let (id, sandbox) = {
        let (id, one) = run.world.containers.iter().next().unwrap();
        (id.clone(), one.sandbox.clone())
    };
    (run, id, sandbox)
}

fn until(run: &mut Run, read: Read) {
    let is_next = |effect: &Effect| match read {
        Read::ShimBeforeStart | Read::RuntimeBeforeStart | Read::SilentRuntimeBeforeStart => {
            matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. })
        }
        Read::RuntimeBeforeSandbox => matches!(effect, Effect::Pod { act: Act::EnsureSandbox(_), .. }),
    };
    while !run.open.iter().any(is_next) {
        assert!(run.settle_one(), "{read:?}");
    }
}

/// Whatever is known of the sandbox: an end that the runtime tells is an end.
#[test]
fn an_end_is_taken_in_while_the_sandbox_is_looked_for() {
    let (mut run, id, sandbox) = with_a_container();
    run.restart(Some(&sandbox));
    let now = run.now;
    run.world.exit(&id, 3, now);
    run.world.reports.clear();
    run.read_runtime();
    run.hear_runtime();
    let is_read = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::ReadTerminationMessage(_), .. });
    assert!(run.open.iter().any(is_read), "the end was not taken in: {:?}", run.open);
    run.settle();
    assert!(run.world.running(&PodUid::new("uid-web"), "main").is_some());
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A reading that does not find a container tells nothing of it while its sandbox is looked for: it is stopped for another spec
/// like any that runs, until its shim is known to be gone.
#[test]
fn what_is_not_found_while_its_sandbox_is_looked_for_is_taken_to_run() {
    let (mut run, _, sandbox) = with_a_container();
    run.restart(Some(&sandbox));
    let now = run.now;
    run.world.lose(&sandbox, now);
    run.read_runtime();
    run.hear_runtime();
    let mut changed = Pod::clone(&run.spec("web").unwrap());
    pods::edit(&mut changed, "main").hash += 1;
    run.want(changed);
    let is_signal = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::Signal(_), .. });
    assert!(run.open.iter().any(is_signal), "it is not taken to run: {:?}", run.open);
    run.settle();
    let main = run.world.running(&PodUid::new("uid-web"), "main").expect("it runs again");
    assert_eq!(run.world.containers[&main].hash, 2);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A pod that comes back under its UID has the ids that it had: what was read of its earlier life is not of this one.
#[test]
fn an_end_of_an_earlier_life_is_not_taken_for_one_of_this() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let id = run.world.containers.keys().next().cloned().unwrap();
    let now = run.now;
    run.world.exit(&id, 3, now);
    run.read_runtime();
    let event = Event::RuntimeUp(run.observed.take().unwrap());
    run.unwant("web");
    run.settle();
    assert!(run.world.records.is_empty());
    run.advance(Duration::from_secs(1), |_| {});
    run.want(pods::pod("web", &["main"]));
    run.settle();
    run.told.clear();
    run.handle(event);
    run.settle();
    assert_eq!(run.told, []);
    assert!(run.world.running(&PodUid::new("uid-web"), "main").is_some());
}

/// What a lost shim left on disk does not tell it.
#[test]
fn a_run_that_was_seen_to_run_began_when_it_was_seen_whatever_its_end_tells() {
    let (mut run, id, sandbox) = with_a_container();
    let ObservedTask::Running { started_at, .. } = run.world.containers[&id].task else { panic!("it runs") };
    let exit = Exit { code: 3, started_at: None, finished_at: run.now.wall, oom_killed: false };
    run.handle(Event::Sandbox { id: sandbox, report: SandboxReport::Exited { id, exit } });
    run.settle();
    let record = run.world.records[&PodUid::new("uid-web")].containers.values().next().unwrap();
    let end = record.last_exit.as_ref().or(record.exit.as_ref()).map(|end| end.exit.started_at);
    assert_eq!(end, Some(Some(started_at)));
}

/// What is being made of it would be left.
#[test]
fn a_sandbox_that_is_looked_for_is_removed_when_the_look_is_over() {
    let (mut run, _, sandbox) = with_a_container();
    run.restart(Some(&sandbox));
    let is = |effect: &Effect, is: fn(&Act) -> bool| matches!(effect, Effect::Pod { act, .. } if is(act));
    let looks = |effect: &Effect| is(effect, |act| matches!(act, Act::EnsureSandbox(_)));
    let removes = |effect: &Effect| is(effect, |act| matches!(act, Act::RemoveSandbox(_)));
    run.until_asked(looks);
    run.unwant("web");
    let now = run.now;
    run.world.lose(&sandbox, now);
    while run.world.has_news() {
        run.report();
    }
    while let Some(at) = run.open.iter().position(|effect| !looks(effect)) {
        assert!(!removes(&run.open[at]), "it is removed while it is looked for");
        run.perform(at);
        run.deliver(0);
    }
    run.settle();
    assert!(run.world.sandboxes.is_empty(), "it is left");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A shim that was taken for gone while the runtime was read does what it was asked for before its sandbox is removed.
#[test]
fn a_start_under_way_in_a_sandbox_that_is_replaced_finds_its_network() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    let is_start = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. });
    let start = run.take_asked(is_start);
    let sandbox = run.world.sandboxes.keys().next().cloned().unwrap();
    run.world.fall_silent(&sandbox);
    run.read_runtime();
    run.world.speak(&sandbox);
    let mut observed = run.observed.take().unwrap();
    observed.silent.clear();
    run.handle(Event::RuntimeUp(observed));
    let is_sandbox = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::RemoveSandbox(_), .. });
    while let Some(at) = run.open.iter().position(|effect| !is_sandbox(effect)) {
        run.perform(at);
        run.deliver(0);
    }
    assert!(run.open.iter().any(is_sandbox), "the sandbox stays");
    let now = run.now;
    run.world.perform(&start, now);
    assert_eq!(run.world.violations, Vec::<String>::new());
    run.settle();
    assert_eq!((run.world.networks.len(), run.world.sandboxes.len()), (1, 1));
    assert!(!run.world.networks.contains_key(&sandbox), "the old attachment is left");
}
