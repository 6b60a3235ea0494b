//! All containers of a pod begin anew: plans, phases and the condition as tables.

use std::{sync::Arc, time::Duration};

use berth_core::{
    pod::{
        actual::{Life, Run},
        plan::{Network, World, plan},
        port::removal::{Leftover, Removal},
        status,
        step::Step,
    },
    record::{EndedBy, TerminalRecord, TerminationRecord},
    spec::{Hook, RestartPolicy},
    status::{ConditionKind, ContainerState, Phase, PodStatus},
    time::{Mono, Now},
};

use crate::{
    lives::{NOW, exited, name, now, prepared, record, running, runs},
    pods,
};

/// The code for which all begin anew.
const CODE: u32 = 42;

const CONTAINERS: [&str; 4] = ["init-a", "side-b", "web", "log"];

/// A pod all of whose containers run, with a rule for `web`.
fn ruled() -> Life {
    let mut life = running(&CONTAINERS, RestartPolicy::Never);
    pods::restart_all_on(Arc::make_mut(&mut life.spec), "web", CODE);
    life
}

/// All are to begin anew since one has ended, and the others run.
fn called() -> Life {
    let mut life = ruled();
    exited(&mut life, "web", CODE);
    life.record.restarting = Some(TerminationRecord { began: Mono(NOW), deadline: later(2) });
    life
}

/// None is left.
fn stopped() -> Life {
    let mut life = called();
    for one in ["side-b", "log"] {
        exited(&mut life, one, 143);
    }
    life
}

fn begun() -> Life {
    let mut life = stopped();
    life.record.restarting = None;
    for run in life.record.containers.values_mut() {
        (run.last_exit, run.anew, run.started_in, run.attempt) = (run.exit.take(), true, None, 1);
    }
    life
}

fn later(seconds: u64) -> Mono {
    Mono(NOW + Duration::from_secs(seconds))
}

fn planned(life: &Life, at: Mono) -> Vec<Step> {
    let world = World { config: &pods::node(), network: &Network::Ready };
    plan(life, world, Now { mono: at, ..now() }).steps
}

fn stopping(life: &mut Life, one: &str) {
    record(life, one).stopping = Some(TerminationRecord { began: Mono(NOW), deadline: later(2) });
}

fn out_of_time() -> Vec<Step> {
    vec![Step::End(TerminalRecord {
        succeeded: false,
        reason: "DeadlineExceeded".into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
        by: EndedBy::Itself,
    })]
}

#[test]
fn all_are_stopped_at_once_and_begin_when_none_is_left() {
    type Case = (&'static str, fn() -> Life, fn(&mut Life), u64, Vec<Step>);
    let signalled: fn(&mut Life) = |life| ["side-b", "log"].iter().for_each(|one| stopping(life, one));
    let both =
        |step: fn(berth_core::id::ContainerName) -> Step| vec![step(name("side-b")), step(name("log"))];
    let cases: [Case; 15] = [
        ("nothing has ended", ruled, |_| {}, 0, vec![]),
        ("another code", ruled, |life| exited(life, "web", 1), 0, vec![]),
        ("that code", ruled, |life| exited(life, "web", CODE), 0, vec![Step::RestartAll]),
        ("that code of another", ruled, |life| exited(life, "log", CODE), 0, vec![]),
        ("they run", called, |_| {}, 0, both(Step::Stop)),
        ("they are to stop", called, signalled, 0, both(Step::Term)),
        // What waits for its turn otherwise has not had its stop signal yet.
        (
            "they have not ended",
            called,
            signalled,
            2,
            vec![Step::Term(name("side-b")), Step::Kill(name("log"))],
        ),
        (
            "one has a hook before its stop",
            called,
            |life| {
                let spec = Arc::make_mut(&mut life.spec);
                pods::edit(spec, "log").lifecycle.pre_stop = Some(Hook::Exec(vec!["do".into()]));
                ["side-b", "log"].iter().for_each(|one| stopping(life, one));
            },
            0,
            both(Step::Term),
        ),
        (
            "one may have been started",
            stopped,
            |life| prepared(life, "log"),
            1,
            vec![Step::Look(name("log"))],
        ),
        ("nobody knows yet", stopped, |life| prepared(life, "log"), 2, vec![Step::Discard(name("log"))]),
        ("none is left", stopped, |_| {}, 0, vec![]),
        ("none is left for a second", stopped, |_| {}, 1, vec![Step::BeginAll]),
        (
            "one is being removed",
            stopped,
            |life| {
                let id = life.container_id(&name("log"));
                life.actual.removals.insert(
                    Leftover::Container(id),
                    Removal::Removing { op: berth_core::id::OpId(1), tries: 0 },
                );
            },
            1,
            vec![],
        ),
        (
            "its time is up",
            stopped,
            |life| Arc::make_mut(&mut life.spec).active_deadline = Some(Duration::from_secs(0)),
            1,
            out_of_time(),
        ),
        ("they begin", begun, |_| {}, 1, CONTAINERS.map(|one| Step::Begin(name(one))).to_vec()),
    ];
    for (what, base, change, seconds, steps) in cases {
        let mut life = base();
        change(&mut life);
        assert_eq!(planned(&life, later(seconds)), steps, "{what}");
    }
}

/// Of those that have begun, init containers come first, as in a pod that is new.
#[test]
fn main_containers_wait_for_init_containers_again() {
    let mut life = begun();
    for one in CONTAINERS {
        prepared(&mut life, one);
    }
    assert_eq!(planned(&life, Mono(NOW)), [Step::Start(name("init-a"))]);
    exited(&mut life, "init-a", 0);
    assert_eq!(planned(&life, Mono(NOW)), [Step::Start(name("side-b"))]);
    runs(&mut life, "side-b");
    assert_eq!(planned(&life, Mono(NOW)), [Step::Start(name("web"))]);
}

fn shown(life: &Life) -> PodStatus {
    status::of(life, &pods::node(), None, now())
}

#[test]
fn a_pod_tells_that_its_containers_begin_anew_and_has_not_ended() {
    type Case = (&'static str, fn() -> Life, fn(&mut Life), Phase, (bool, &'static str));
    let started = (true, "RestartAllContainersStarted");
    let cases: [Case; 7] = [
        ("nothing has ended", ruled, |_| {}, Phase::Running, (false, "")),
        ("they are stopped", called, |_| {}, Phase::Running, started),
        ("all have ended", stopped, |_| {}, Phase::Running, started),
        (
            "an init container has failed",
            stopped,
            |life| exited(life, "init-a", 143),
            Phase::Running,
            started,
        ),
        ("they begin", begun, |_| {}, Phase::Running, (false, "")),
        ("an init container runs again", begun, |life| runs(life, "init-a"), Phase::Pending, (false, "")),
        ("all have ended otherwise", ruled, ended, Phase::Failed, (false, "PodFailed")),
    ];
    for (what, base, change, phase, (holds, reason)) in cases {
        let mut life = base();
        change(&mut life);
        let status = shown(&life);
        let one = status.conditions.last().filter(|one| one.kind == ConditionKind::AllContainersRestarting);
        let one = one.expect("the last of all");
        assert_eq!((status.phase, one.holds, one.reason.as_str()), (phase, holds, reason), "{what}");
        let message = if holds { "container exited with restart policy rule" } else { "" };
        assert_eq!(one.message, message, "{what}");
    }
    let without = shown(&running(&CONTAINERS, RestartPolicy::Never));
    assert!(without.conditions.iter().all(|one| one.kind != ConditionKind::AllContainersRestarting));
}

fn ended(life: &mut Life) {
    exited(life, "side-b", 143);
    exited(life, "web", 1);
    exited(life, "log", 0);
}

/// Each shows how it ended, and its restarts when they happen.
#[test]
fn what_begins_anew_waits_with_its_last_end() {
    let life = begun();
    for one in shown(&life).all_containers() {
        let ContainerState::Waiting { reason, .. } = &one.state else { panic!("{one:?}") };
        assert_eq!((reason.as_str(), one.restart_count), ("PodInitializing", 0));
        assert_eq!(one.last_state.is_some(), !matches!(life.run(&one.name), Run::Running(_)), "{one:?}");
    }
}
