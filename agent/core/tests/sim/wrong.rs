//! The oracle itself: of each rule, what a wrong core would do once, told amid a life that is right so far. That breaks this rule,
//! and no other. A rule that says several things has a row for each.

mod cluster;
mod hooks;
mod probes;
mod resizes;
mod shown;
mod together;

use std::{collections::BTreeSet, iter, sync::Arc, time::Duration};

use berth_core::{
    effect::{Act, Effect},
    id::{ContainerId, ContainerName, OpId, PodUid, SandboxId},
    pod::port::{
        signal::{SignalRequest, StopSignal},
        start::StartRequest,
    },
    record::{ContainerRecord, PodRecord, TerminationRecord},
    spec::{Pod, RestartPolicy},
    status::{ContainerStatus, Phase, PodStatus},
    time::Now,
};
use jiff::SignedDuration;

use crate::{
    oracle::{Oracle, RULES},
    pods,
    run::Run,
};

/// What the pods here get to end.
const GRACE: Duration = Duration::from_secs(30);

/// How long a container waits after its second end.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// A life at whose end the oracle is told something wrong.
type Wrong = fn(&mut Run);

const WRONG: &[(&str, Wrong)] = &[
    ("SIGKILL comes after the stop signal and the grace period", killed_at_once),
    ("SIGKILL comes after the stop signal and the grace period", killed_unasked),
    ("SIGKILL comes after the stop signal and the grace period", killed_as_soon_as_asked),
    ("SIGKILL comes after the stop signal and the grace period", probes::killed_before_the_probes_grace),
    ("a container is given what was allocated to it", resizes::given_something_else),
    ("a container is given what was allocated to it", resizes::given_what_is_asked_for),
    ("a container is made from its image", made_from_another_image),
    ("a container starts when those before it have begun", hooks::begun_before_the_hook_is_over),
    ("a crashing container waits before it runs again", begun_again_at_once),
    ("a crashing container waits before it runs again", begun_again_after_the_first_wait),
    ("a crashing container waits before it runs again", begun_again_since_the_clock_was_set),
    ("a hook is run when it is its time, once at a time", hooks::run_twice_at_once),
    ("a hook is run when it is its time, once at a time", hooks::run_after_it_was_over),
    ("a hook is run when it is its time, once at a time", hooks::run_before_anything_is_to_stop),
    ("a hook is run when it is its time, once at a time", together::hook_run_though_all_begin_anew),
    ("a pod is forgotten when none of its processes is left", forgotten_while_it_runs),
    ("a pod that has ended ended so", shown::succeeded_while_it_runs),
    ("a pod that has ended ended so", shown::succeeded_in_place_of_failed),
    ("a pod's cgroup is enough for what runs in it", resizes::shrunk_before_its_containers),
    ("a pod's cgroup is enough for what runs in it", resizes::shrunk_before_one_that_shares),
    ("a pod's memory limit becomes lower when what it uses was looked at", resizes::shrunk_unseen),
    ("a pod's memory limit becomes lower when what it uses was looked at", resizes::shrunk_further_than_seen),
    ("a probe asks what runs, one question at a time", probes::asked_twice),
    ("a probe asks what runs, one question at a time", probes::asked_before_it_has_started),
    ("a probe asks what runs, one question at a time", probes::asked_in_a_pod_that_ends),
    ("a probe asks what runs, one question at a time", probes::asked_after_its_end),
    ("a probe asks what runs, one question at a time", probes::asked_when_it_cannot_start_any_more),
    ("a probe's verdict is on disk before it is shown", probes::ready_without_a_record),
    ("a process is removed only when kills have no effect", removed_while_it_runs),
    ("a run is on disk before it starts", begun_without_a_record),
    ("a signal has a reason", stopped_for_nothing),
    ("a signal has a reason", probes::stopped_below_the_threshold),
    ("a signal has a reason", together::stopped_for_another_code),
    ("a verdict is on disk before it is shown", shown::verdict_without_a_record),
    ("all containers begin anew when none of them runs", together::begun_anew_while_another_runs),
    ("an ephemeral container runs once", ephemeral_container_begun_again),
    ("at rest a container has what is allocated to it", resizes::left_at_rest),
    ("at rest a container has what is allocated to it", resizes::told_at_rest),
    ("at rest a pod has ended when it is over", shown::ended_at_rest),
    ("at rest a pod has what it names for itself", resizes::bounded_otherwise_at_rest),
    ("at rest a pod is ready when all of it runs", shown::unready_at_rest),
    ("at rest a resize waits where it does not fit", resizes::waits_at_rest),
    ("at rest a resize waits where it does not fit", resizes::told_to_wait_at_rest),
    ("at rest a resize waits where it does not fit", resizes::waits_untold_at_rest),
    ("at rest the phase is right", shown::pending_at_rest),
    ("at rest what is to run runs", shown::init_container_at_rest),
    ("at rest what is to run runs", together::not_begun_anew),
    ("init containers and sidecars come first, in order", begun_before_its_init_container),
    ("init containers and sidecars come first, in order", begun_again_beside_no_sidecar),
    ("init containers and sidecars come first, in order", together::begun_anew_before_its_init_container),
    ("init containers and sidecars come first, in order", probes::begun_before_its_sidecar_has_started),
    ("nothing starts in a pod that ends", begun_in_a_pod_that_ends),
    ("phases that end a pod stay", shown::running_after_its_end),
    ("ready and started are what the probes said", probes::ready_before_it_said_so),
    ("ready and started are what the probes said", probes::unready_below_the_threshold),
    ("ready and started are what the probes said", probes::started_before_it_said_so),
    ("restart policy", probes::begun_again_though_never),
    ("restart policy", begun_again_after_success),
    ("restart policy", begun_again_though_never),
    ("restart policy", init_container_begun_again_after_success),
    ("restart policy", begun_twice),
    ("restarts are counted", shown::restart_is_not_counted),
    ("restarts are on disk before they are shown", shown::restart_without_a_record),
    ("sidecars stop after all others, the last first", sidecar_stopped_first),
    ("signals go to what was started", signal_to_nothing),
    ("the intent to stop is on disk before a signal", stopped_without_a_record),
    ("the intent to stop is recorded before a signal", stopped_before_that_is_recorded),
    ("the record of an end is what happened", shown::another_code_recorded),
    ("the status of an end is what happened", shown::another_code_shown),
    ("the stop signal waits for the hook before it", hooks::stopped_before_the_hook_is_over),
    ("the stop signal waits for the hook before it", probes::stopped_before_the_hook_in_the_probes_grace),
    ("what does not end by its stop signal is killed when its time is up", never_killed),
    ("what is shown to run was started", shown::shown_to_run_before_it_does),
];

#[test]
fn every_rule_tells_what_breaks_it_and_no_other_does() {
    check(WRONG, Run::new, &RULES);
}

/// Each row breaks its rule alone, and there is one for each rule.
fn check(table: &[(&str, Wrong)], begin: fn() -> Run, rules: &[&str]) {
    for (rule, wrong) in table.iter().copied() {
        let mut run = begin();
        run.settle();
        wrong(&mut run);
        let broken = run.world.violations.iter().map(|text| text.split_once(": ").expect("a rule").0);
        assert_eq!(broken.collect::<BTreeSet<_>>(), BTreeSet::from([rule]), "{:#?}", run.world.violations);
    }
    let mut there: Vec<&str> = table.iter().map(|(rule, _)| *rule).collect();
    there.dedup();
    assert_eq!(there, rules);
}

/// Tells the oracle something that did not happen, in a life that was right so far.
fn lie(run: &mut Run, told: impl FnOnce(&mut Oracle, Now)) {
    assert_eq!(run.world.violations, Vec::<String>::new(), "before the lie");
    let now = run.now;
    run.world.judge(|oracle| told(oracle, now));
}

fn ask(oracle: &mut Oracle, act: Act, now: Now) {
    oracle.asked(&Effect::Pod { op: OpId(u64::MAX), pod: uid(), act }, now);
}

fn signal(oracle: &mut Oracle, start: &StartRequest, signal: StopSignal, now: Now) {
    let request = SignalRequest { sandbox: start.sandbox.clone(), id: start.id.clone(), signal };
    ask(oracle, Act::Signal(request), now);
}

fn later(now: Now, length: Duration) -> Now {
    Now { mono: now.mono + length, ..now }
}

fn term() -> StopSignal {
    StopSignal::Stop("SIGTERM".into())
}

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

/// A pod at rest whose containers run, those of its init containers excepted that have ended.
fn begin(run: &mut Run, containers: &[&str]) {
    begin_with(run, pods::pod("web", containers));
}

fn begin_with(run: &mut Run, pod: Pod) {
    run.want(pod);
    run.settle();
    run.end_init_containers();
    run.settle();
}

/// A pod whose only container is about to be started, and the request.
fn almost_begun(run: &mut Run) -> StartRequest {
    run.want(pods::pod("web", &["main"]));
    let is_start = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. });
    run.until_asked(is_start);
    start_of(run, "main")
}

/// A pod whose main container crashed once and runs again.
fn crashed(run: &mut Run) {
    begin(run, &["main"]);
    exit(run, "main", 1);
    assert!(run.world.running(&uid(), "main").is_some());
}

/// A pod whose only container runs, and runs once.
fn begin_once(run: &mut Run) {
    begin_with(run, Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main"]) });
}

/// A pod that has succeeded.
fn succeeded(run: &mut Run) {
    begin_once(run);
    exit(run, "main", 0);
    assert_eq!(status(run).phase, Phase::Succeeded);
}

fn exit(run: &mut Run, name: &str, code: u32) {
    let (id, now) = (run.world.running(&uid(), name).expect("it runs"), run.now);
    run.world.exit(&id, code, now);
    run.settle();
}

/// How a container was last asked to be started.
fn start_of(run: &Run, name: &str) -> StartRequest {
    let starts = run.told.iter().rev().filter_map(|effect| match effect {
        Effect::Pod { act: Act::StartContainer(request), .. } => Some(&**request),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    });
    let mut its = starts.filter(|request| request.container.name.as_str() == name);
    its.next().expect("it was started").clone()
}

fn record(run: &Run) -> PodRecord {
    run.world.records[&uid()].clone()
}

/// The record of a pod whose end begins now.
fn ending(run: &Run) -> PodRecord {
    let (began, deadline) = (run.now.mono, later(run.now, GRACE).mono);
    PodRecord { termination: Some(TerminationRecord { began, deadline }), ..record(run) }
}

fn record_of<'a>(record: &'a mut PodRecord, name: &str) -> &'a mut ContainerRecord {
    record.containers.get_mut(&ContainerName::new(name)).expect("a container")
}

fn status(run: &Run) -> PodStatus {
    PodStatus::clone(&run.world.statuses[&uid()])
}

fn only_container(status: &mut PodStatus) -> &mut ContainerStatus {
    let [one] = status.containers.as_mut_slice() else { panic!("one container") };
    one
}

/// The next run of a container whose last one has ended, as a core would ask for it that thinks it due.
fn next_run(run: &Run, name: &str) -> (PodRecord, StartRequest) {
    let (mut record, mut start) = (record(run), start_of(run, name));
    start.attempt += 1;
    start.id = ContainerId::of(&uid(), &start.container.name, start.attempt);
    let (attempt, id, sandbox) = (start.attempt, start.id.clone(), record.sandbox);
    let next = record_of(&mut record, name);
    next.last_exit = next.exit.take().or(next.last_exit.take());
    (next.attempt, next.id, next.started_in) = (attempt, id, Some(sandbox));
    (record, start)
}

fn start_next(run: &mut Run, name: &str) {
    let (record, start) = next_run(run, name);
    lie(run, |oracle, now| {
        oracle.stored(&record);
        ask(oracle, Act::StartContainer(Box::new(start)), now);
    });
}

/// A main container is asked to start in the sandbox of the one that began first, and its record says so.
fn begin_next(run: &mut Run, first: &str, index: usize) {
    let mut next = start_of(run, first);
    next.container = Arc::clone(&run.spec("web").expect("it is wanted").containers[index]);
    next.id = ContainerId::of(&uid(), &next.container.name, 0);
    let mut stored = record(run);
    let (id, sandbox) = (next.id.clone(), stored.sandbox);
    let begun = ContainerRecord { id, started_in: Some(sandbox), ..record_of(&mut stored, first).clone() };
    stored.containers.insert(next.container.name.clone(), begun);
    lie(run, |oracle, now| {
        oracle.stored(&stored);
        ask(oracle, Act::StartContainer(Box::new(next)), now);
    });
}

fn killed_at_once(run: &mut Run) {
    begin(run, &["main"]);
    run.unwant("web");
    let main = start_of(run, "main");
    lie(run, |oracle, now| signal(oracle, &main, StopSignal::Kill, now));
}

/// The grace period is over, and nobody has asked it to stop.
fn killed_unasked(run: &mut Run) {
    begin(run, &["main"]);
    let (ending, main) = (ending(run), start_of(run, "main"));
    lie(run, |oracle, now| {
        oracle.desired(iter::empty(), now);
        ask(oracle, Act::Persist(Box::new(ending)), now);
        signal(oracle, &main, StopSignal::Kill, later(now, GRACE));
    });
}

/// The grace period is over, and it was asked to stop only just before.
fn killed_as_soon_as_asked(run: &mut Run) {
    begin(run, &["main"]);
    let (ending, main) = (ending(run), start_of(run, "main"));
    lie(run, |oracle, now| {
        oracle.desired(iter::empty(), now);
        ask(oracle, Act::Persist(Box::new(ending)), now);
        signal(oracle, &main, term(), later(now, GRACE - Duration::from_secs(1)));
        signal(oracle, &main, StopSignal::Kill, later(now, GRACE));
    });
}

fn made_from_another_image(run: &mut Run) {
    let mut start = almost_begun(run);
    Arc::make_mut(&mut start.image).name = "docker.io/library/other:1".into();
    lie(run, |oracle, now| ask(oracle, Act::StartContainer(Box::new(start)), now));
}

fn begun_again_at_once(run: &mut Run) {
    crashed(run);
    exit(run, "main", 1);
    start_next(run, "main");
}

/// The second wait is as long as the first.
fn begun_again_after_the_first_wait(run: &mut Run) {
    crashed(run);
    exit(run, "main", 1);
    run.advance(FIRST_WAIT, Run::settle);
    exit(run, "main", 1);
    run.advance(FIRST_WAIT, Run::settle);
    assert!(run.world.running(&uid(), "main").is_none(), "it waits twice as long");
    start_next(run, "main");
}

/// That its end was an hour ago is said by a clock that was set since.
fn begun_again_since_the_clock_was_set(run: &mut Run) {
    crashed(run);
    exit(run, "main", 1);
    run.step_clock(SignedDuration::from_hours(1));
    start_next(run, "main");
}

fn ephemeral_container_begun_again(run: &mut Run) {
    begin(run, &["main", "debug-a"]);
    exit(run, "debug-a", 1);
    start_next(run, "debug-a");
}

fn forgotten_while_it_runs(run: &mut Run) {
    begin(run, &["main"]);
    lie(run, |oracle, _| oracle.forgotten(&uid()));
}

fn removed_while_it_runs(run: &mut Run) {
    begin(run, &["main"]);
    let main = start_of(run, "main");
    lie(run, |oracle, now| oracle.removed(&uid(), &main.id, false, now));
}

fn begun_without_a_record(run: &mut Run) {
    let start = almost_begun(run);
    let mut without = record(run);
    without.containers.clear();
    lie(run, |oracle, now| {
        oracle.stored(&without);
        ask(oracle, Act::StartContainer(Box::new(start)), now);
    });
}

fn stopped_for_nothing(run: &mut Run) {
    begin(run, &["main"]);
    let (ending, main) = (ending(run), start_of(run, "main"));
    lie(run, |oracle, now| {
        ask(oracle, Act::Persist(Box::new(ending)), now);
        signal(oracle, &main, term(), now);
    });
}

fn begun_before_its_init_container(run: &mut Run) {
    begin(run, &["init-a", "main"]);
    let elsewhere = StartRequest { sandbox: SandboxId::of(&uid(), 1), ..start_of(run, "main") };
    lie(run, |oracle, now| ask(oracle, Act::StartContainer(Box::new(elsewhere)), now));
}

/// All of them have ended, and the sidecar waits longer.
fn begun_again_beside_no_sidecar(run: &mut Run) {
    begin(run, &["side-a", "main"]);
    exit(run, "side-a", 1);
    exit(run, "side-a", 1);
    exit(run, "main", 1);
    start_next(run, "main");
}

fn begun_in_a_pod_that_ends(run: &mut Run) {
    let start = almost_begun(run);
    run.unwant("web");
    lie(run, |oracle, now| ask(oracle, Act::StartContainer(Box::new(start)), now));
}

fn begun_again_after_success(run: &mut Run) {
    let pod = pods::pod("web", &["main", "other"]);
    begin_with(run, Pod { restart_policy: RestartPolicy::OnFailure, ..pod });
    exit(run, "main", 0);
    start_next(run, "main");
}

fn begun_again_though_never(run: &mut Run) {
    let pod = pods::pod("web", &["main", "other"]);
    begin_with(run, Pod { restart_policy: RestartPolicy::Never, ..pod });
    exit(run, "main", 1);
    start_next(run, "main");
}

fn init_container_begun_again_after_success(run: &mut Run) {
    run.want(pods::pod("web", &["init-a", "init-b", "main"]));
    run.settle();
    exit(run, "init-a", 0);
    assert!(run.world.running(&uid(), "init-b").is_some());
    start_next(run, "init-a");
}

fn begun_twice(run: &mut Run) {
    begin(run, &["main"]);
    start_next(run, "main");
}

fn sidecar_stopped_first(run: &mut Run) {
    begin(run, &["side-a", "main"]);
    run.unwant("web");
    let side = start_of(run, "side-a");
    lie(run, |oracle, now| signal(oracle, &side, term(), now));
}

fn signal_to_nothing(run: &mut Run) {
    begin(run, &["main"]);
    let never = StartRequest { id: ContainerId::from_known("never"), ..start_of(run, "main") };
    lie(run, |oracle, now| signal(oracle, &never, term(), now));
}

fn stopped_without_a_record(run: &mut Run) {
    begin(run, &["main"]);
    let main = start_of(run, "main");
    lie(run, |oracle, _| oracle.signal_sent(&uid(), &main.id, &term()));
}

fn stopped_before_that_is_recorded(run: &mut Run) {
    begin(run, &["main"]);
    let main = start_of(run, "main");
    lie(run, |oracle, now| {
        oracle.desired(iter::empty(), now);
        signal(oracle, &main, term(), now);
    });
}

fn never_killed(run: &mut Run) {
    run.world.deaf.insert(ContainerName::new("main"));
    begin(run, &["main"]);
    run.unwant("web");
    run.settle();
    lie(run, |oracle, now| {
        oracle.check_overdue(|_| false, later(now, GRACE + Duration::from_secs(1)));
    });
}
