//! What nobody knows is removed: also when that fails, hangs or succeeds half, and when containerd has forgotten a part of it.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    failure::FailureKind,
    id::{PodUid, SandboxId},
};

use crate::{pods, run::Run, tell, world::failure};

/// Longer than all waits between tries, and than a shim is asked before it is killed.
const LONG: Duration = Duration::from_secs(3600);

fn uid() -> PodUid {
    PodUid::new("stray-1")
}

/// A node with a pod that is wanted, and one that nobody knows; the agent has not seen it yet.
fn with_a_stray() -> Run {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let now = run.now;
    run.world.stray(&uid(), now);
    run
}

fn check_removed(run: &Run, what: &str) {
    assert_eq!(run.world.left_of(&uid()), Vec::<String>::new(), "{what}");
    assert!(run.world.running(&PodUid::new("uid-web"), "main").is_some(), "{what}: the wanted pod goes on");
    assert_eq!(run.world.violations, Vec::<String>::new(), "{what}");
}

/// The next effect of this kind is not performed, or half, and fails.
fn fail(run: &mut Run, kind: &str, why: FailureKind, is_half: bool) {
    let effect = run.take_asked(|effect| tell::kind_of(effect) == kind);
    let now = run.now;
    assert!(!is_half || run.world.perform_half(&effect, now), "{kind} has no half");
    run.finished.push_back((effect.op(), Err(failure(why, "no luck"))));
    let last = run.finished.len() - 1;
    run.deliver(last);
}

#[test]
fn a_removal_of_an_orphan_is_repeated_until_it_has_worked() {
    let (failed, hung) = (FailureKind::Transient, FailureKind::Unknown);
    let kinds = [
        ("remove-container", false),
        ("remove-container", true),
        ("remove-sandbox", false),
        ("remove-netns", false),
        ("sweep", false),
        ("sweep", true),
    ];
    for (kind, is_half) in kinds {
        for why in [failed, hung] {
            let mut run = with_a_stray();
            run.restart(None);
            for _ in 0..3 {
                fail(&mut run, kind, why, is_half);
                run.advance(Duration::from_secs(60), |_| {});
            }
            run.settle();
            run.advance(LONG, Run::settle);
            check_removed(&run, &format!("{kind} {why:?} half {is_half}"));
        }
    }
}

/// Its containers say which it is. It may run, answer nothing or be gone, and the agent may begin or only come back to
/// containerd.
#[test]
fn an_orphans_sandbox_goes_also_when_containerd_has_no_record_of_it() {
    for is_agent_new in [false, true] {
        for shim in ["runs", "hangs", "is gone"] {
            let mut run = with_a_stray();
            let (id, now) = (SandboxId::of(&uid(), 0), run.now);
            run.world.sandboxes.get_mut(&id).unwrap().is_recorded = false;
            match shim {
                "hangs" => run.world.fall_silent(&id),
                "is gone" => run.world.lose(&id, now),
                _ => {}
            }
            if is_agent_new {
                run.restart(None);
            } else {
                run.set_runtime(true);
                run.set_runtime(false);
            }
            run.settle();
            run.advance(LONG, Run::settle);
            check_removed(&run, &format!("its shim {shim}, new agent {is_agent_new}"));
        }
    }
}

/// What kept it was that containerd was away, however long.
#[test]
fn an_orphan_goes_as_soon_as_containerd_is_back() {
    let mut run = with_a_stray();
    run.restart(None);
    run.set_runtime(true);
    run.advance(LONG, Run::settle);
    assert!(!run.world.left_of(&uid()).is_empty(), "it was removed without containerd");
    run.set_runtime(false);
    run.settle();
    check_removed(&run, "containerd was away for an hour");
}

/// A shim that cannot be killed now is killed later, and not asked as often again before.
#[test]
fn a_kill_of_an_orphans_shim_is_repeated_after_a_while() {
    let mut run = with_a_stray();
    run.world.fall_silent(&SandboxId::of(&uid(), 0));
    run.restart(None);
    let is_asked = |run: &Run, kind: &str| run.open.iter().any(|effect| tell::kind_of(effect) == kind);
    while !is_asked(&run, "kill-shim") {
        if !run.settle_one() {
            run.advance(Duration::from_secs(1), |_| {});
        }
    }
    fail(&mut run, "kill-shim", FailureKind::Transient, false);
    assert!(!is_asked(&run, "kill-shim") && !is_asked(&run, "remove-sandbox"), "{:?}", run.open);
    run.advance(Duration::from_secs(60), |_| {});
    assert!(is_asked(&run, "kill-shim"), "{:?}", run.open);
    run.settle();
    run.advance(LONG, Run::settle);
    check_removed(&run, "its shim was killed at the second try");
}

/// A pod with its UID waits until all of it is gone.
#[test]
fn a_pod_begins_when_nothing_of_an_orphan_under_its_uid_is_left() {
    let mut run = with_a_stray();
    run.restart(None);
    let mut pod = pods::pod("new", &["main"]);
    pod.uid = uid();
    run.want(pod);
    let is_begun = |run: &Run| run.world.records.contains_key(&uid());
    while !run.open.iter().any(|effect| matches!(effect, Effect::Pod { act: Act::Sweep, .. })) {
        assert!(!is_begun(&run), "it has begun beside what is left");
        assert!(run.settle_one(), "nothing is swept");
    }
    fail(&mut run, "sweep", FailureKind::Transient, false);
    assert!(!is_begun(&run), "it has begun beside what is left");
    run.advance(Duration::from_secs(60), Run::settle);
    assert!(run.world.running(&uid(), "main").is_some(), "it never begins");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Its sweep failed, and then more of it was found, which goes first.
#[test]
fn an_orphan_that_waits_for_another_wakes_nobody() {
    let mut run = Run::new();
    run.settle();
    run.world.stray_files(&uid());
    run.restart(None);
    fail(&mut run, "sweep", FailureKind::Transient, false);
    let now = run.now;
    run.world.stray(&uid(), now);
    run.set_runtime(true);
    run.set_runtime(false);
    // Nobody answers for a while.
    run.advance(Duration::from_secs(60), |_| {});
    let wakes_at = run.node.poll_timeout();
    assert!(wakes_at.is_none_or(|at| at > run.now.mono), "it is to be woken at once, for ever");
    run.settle();
    run.advance(LONG, Run::settle);
    assert_eq!(run.world.left_of(&uid()), Vec::<String>::new());
    assert_eq!(run.world.violations, Vec::<String>::new());
}
