//! Probes that ask what they should not, and what is made of answers that were none.

use berth_core::{
    event::Outcome,
    pod::port::probe::{ProbeAnswer, ProbeCall, ProbeRequest},
    spec::{Hook, Probe, ProbeKind, Probes},
};

use super::*;

/// A pod at rest whose containers are asked; nothing was answered yet.
fn begin_asked(run: &mut Run, probes: Probes, policy: RestartPolicy) {
    let mut pod = pods::pod("web", &["main", "other"]);
    pods::edit(&mut pod, "main").probes = probes;
    pod.restart_policy = policy;
    run.want(pod);
    ask_at_rest(run);
}

/// Nobody answers what is asked.
fn ask_at_rest(run: &mut Run) {
    rest(run);
    while run.probes.is_empty() {
        run.advance(Duration::from_millis(100), rest);
    }
}

fn rest(run: &mut Run) {
    while run.settle_one_but_probes() {}
}

fn readiness() -> Probes {
    Probes { readiness: Some(Probe { failures: 2, ..pods::probe() }), ..Probes::default() }
}

fn liveness() -> Probes {
    let probe = Probe { failures: 2, grace: Some(Duration::from_secs(5)), ..pods::probe() };
    Probes { liveness: Some(probe), ..Probes::default() }
}

fn startup() -> Probes {
    Probes { startup: Some(pods::probe()), ..Probes::default() }
}

fn question(run: &Run, kind: ProbeKind) -> Act {
    let call = ProbeCall::Tcp { host: "10.0.0.1".into(), port: 80 };
    let (id, timeout) = (start_of(run, "main").id, Duration::from_secs(1));
    Act::Probe(Box::new(ProbeRequest { id, kind, call, timeout }))
}

/// Asks once more and tells the oracle the answer, a second later.
fn said(oracle: &mut Oracle, question: &Act, is_success: bool, now: Now) {
    let effect = Effect::Pod { op: OpId(u64::MAX), pod: uid(), act: question.clone() };
    let answer = if is_success { ProbeAnswer::Success } else { ProbeAnswer::Failure("sick".into()) };
    oracle.asked(&effect, now);
    oracle.probed(&effect, &Ok(Outcome::Probed(answer)), now);
}

fn main_of(status: &mut PodStatus) -> &mut ContainerStatus {
    status.containers.iter_mut().find(|one| one.name.as_str() == "main").expect("a container")
}

pub(super) fn asked_twice(run: &mut Run) {
    begin_asked(run, readiness(), RestartPolicy::Always);
    let again = question(run, ProbeKind::Readiness);
    lie(run, |oracle, now| ask(oracle, again, now));
}

pub(super) fn asked_before_it_has_started(run: &mut Run) {
    begin_asked(run, Probes { liveness: Some(pods::probe()), ..startup() }, RestartPolicy::Always);
    let early = question(run, ProbeKind::Liveness);
    lie(run, |oracle, now| ask(oracle, early, now));
}

pub(super) fn asked_in_a_pod_that_ends(run: &mut Run) {
    begin_asked(run, liveness(), RestartPolicy::Always);
    run.probe();
    run.unwant("web");
    let late = question(run, ProbeKind::Liveness);
    lie(run, |oracle, now| ask(oracle, late, now));
}

pub(super) fn asked_after_its_end(run: &mut Run) {
    begin_asked(run, readiness(), RestartPolicy::Never);
    run.probe();
    let late = question(run, ProbeKind::Readiness);
    exit(run, "main", 0);
    lie(run, |oracle, now| ask(oracle, late, now));
}

/// It failed three times at intervals of its period, and before that as early tries may.
pub(super) fn asked_when_it_cannot_start_any_more(run: &mut Run) {
    begin_asked(run, startup(), RestartPolicy::Always);
    let sick = ProbeAnswer::Failure("sick".into());
    run.world.sick.insert((ContainerName::new("main"), ProbeKind::Startup), sick);
    while run.probe() {}
    let question = question(run, ProbeKind::Startup);
    lie(run, |oracle, now| {
        let at = |periods: u32| later(now, pods::probe().period * periods);
        for periods in 1..=3 {
            said(oracle, &question, false, at(periods));
            assert_eq!(oracle.violations, Vec::<String>::new());
        }
        ask(oracle, question, at(4));
    });
}

pub(super) fn ready_without_a_record(run: &mut Run) {
    begin_asked(run, readiness(), RestartPolicy::Always);
    run.settle();
    let (mut before, shown) = (record(run), status(run));
    record_of(&mut before, "main").probed.ready = false;
    lie(run, |oracle, now| {
        oracle.stored(&before);
        oracle.shown(&uid(), &shown, now);
    });
}

pub(super) fn ready_before_it_said_so(run: &mut Run) {
    begin_asked(run, readiness(), RestartPolicy::Always);
    let (mut stored, mut shown) = (record(run), status(run));
    record_of(&mut stored, "main").probed.ready = true;
    main_of(&mut shown).ready = true;
    lie(run, |oracle, now| {
        oracle.stored(&stored);
        oracle.shown(&uid(), &shown, now);
    });
}

pub(super) fn started_before_it_said_so(run: &mut Run) {
    begin_asked(run, startup(), RestartPolicy::Always);
    let (mut stored, mut shown) = (record(run), status(run));
    record_of(&mut stored, "main").probed.started = true;
    let main = main_of(&mut shown);
    (main.started, main.ready) = (true, true);
    lie(run, |oracle, now| {
        oracle.stored(&stored);
        oracle.shown(&uid(), &shown, now);
    });
}

pub(super) fn unready_below_the_threshold(run: &mut Run) {
    begin_asked(run, readiness(), RestartPolicy::Always);
    run.settle();
    let (mut stored, mut shown, question) = (record(run), status(run), question(run, ProbeKind::Readiness));
    record_of(&mut stored, "main").probed.ready = false;
    main_of(&mut shown).ready = false;
    lie(run, |oracle, now| {
        said(oracle, &question, false, now);
        oracle.stored(&stored);
        oracle.shown(&uid(), &shown, now);
    });
}

/// The record of a pod whose main container is stopped since its probe failed.
fn unhealthy(run: &Run) -> PodRecord {
    let mut record = record(run);
    let (began, deadline) = (run.now.mono, later(run.now, Duration::from_secs(5)).mono);
    record_of(&mut record, "main").stopping = Some(TerminationRecord { began, deadline });
    record
}

pub(super) fn stopped_below_the_threshold(run: &mut Run) {
    begin_asked(run, liveness(), RestartPolicy::Always);
    run.settle();
    let (record, main) = (unhealthy(run), start_of(run, "main"));
    let question = question(run, ProbeKind::Liveness);
    lie(run, |oracle, now| {
        said(oracle, &question, false, now);
        ask(oracle, Act::Persist(Box::new(record)), now);
        signal(oracle, &main, term(), now);
    });
}

pub(super) fn killed_before_the_probes_grace(run: &mut Run) {
    begin_asked(run, liveness(), RestartPolicy::Always);
    run.settle();
    let (record, main) = (unhealthy(run), start_of(run, "main"));
    let question = question(run, ProbeKind::Liveness);
    lie(run, |oracle, now| {
        said(oracle, &question, false, now);
        said(oracle, &question, false, now);
        ask(oracle, Act::Persist(Box::new(record)), now);
        signal(oracle, &main, term(), now);
        signal(oracle, &main, StopSignal::Kill, later(now, Duration::from_secs(4)));
    });
}

/// The pod gives no time, but the probe does.
pub(super) fn stopped_before_the_hook_in_the_probes_grace(run: &mut Run) {
    let mut pod = pods::pod("web", &["main", "other"]);
    pods::edit(&mut pod, "main").probes = liveness();
    pods::edit(&mut pod, "main").lifecycle.pre_stop = Some(Hook::Exec(vec!["do".into()]));
    run.want(Pod { grace: Duration::ZERO, ..pod });
    ask_at_rest(run);
    run.settle();
    let (record, main) = (unhealthy(run), start_of(run, "main"));
    let question = question(run, ProbeKind::Liveness);
    lie(run, |oracle, now| {
        said(oracle, &question, false, now);
        said(oracle, &question, false, now);
        ask(oracle, Act::Persist(Box::new(record)), now);
        signal(oracle, &main, term(), now);
    });
}

pub(super) fn begun_again_though_never(run: &mut Run) {
    begin_asked(run, liveness(), RestartPolicy::Never);
    run.world
        .sick
        .insert((ContainerName::new("main"), ProbeKind::Liveness), ProbeAnswer::Failure("sick".into()));
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert!(run.world.running(&uid(), "main").is_none(), "it was killed");
    start_next(run, "main");
}

pub(super) fn begun_before_its_sidecar_has_started(run: &mut Run) {
    let mut pod = pods::pod("web", &["side-a", "main"]);
    pods::edit(&mut pod, "side-a").probes = startup();
    run.want(pod);
    ask_at_rest(run);
    begin_next(run, "side-a", 0);
}
