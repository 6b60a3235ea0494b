//! Other resources than a pod has are asked for while it runs.

mod amounts;
mod lower;
mod room;

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    failure::FailureKind,
    id::{ContainerName, PodUid},
    spec::{Pod, QosClass, ResizePolicy, Resources},
    status::{Condition, ConditionKind},
};

use crate::{
    pods,
    run::Run,
    world::{Given, failure},
};

const MIB: u64 = 1 << 20;

/// A version of a pod whose containers may use so much: thousandths of a core, and MiB.
fn version(generation: i64, limits: [(u64, u64); 2]) -> Pod {
    let mut pod = pods::pod("web", &["main", "other"]);
    for (name, (milli, mib)) in ["main", "other"].into_iter().zip(limits) {
        pods::edit(&mut pod, name).resources = pods::resources((10, MIB), (milli, mib * MIB));
    }
    Pod { generation: Some(generation), qos: QosClass::Burstable, ..pod }
}

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

fn condition(run: &Run, kind: ConditionKind) -> Option<Condition> {
    run.world.statuses[&uid()].conditions.iter().find(|one| one.kind == kind).cloned()
}

fn given(run: &Run, name: &str) -> (u64, u64) {
    let id = run.world.running(&uid(), name).expect("it runs");
    let Given { quota, memory, .. } = run.world.containers[&id].given;
    (quota.unwrap_or(0) / 100, memory.unwrap_or(0) / MIB)
}

fn level(run: &Run) -> (u64, u64) {
    let Given { quota, memory, .. } = run.world.levels[&uid()];
    (quota.unwrap_or(0) / 100, memory.unwrap_or(0) / MIB)
}

/// What was done to cgroups, in order.
fn done(run: &Run) -> Vec<String> {
    let names = std::collections::BTreeMap::new();
    let is_of_cgroups = |effect: &&Effect| {
        matches!(
            effect,
            Effect::Pod { act: Act::EnsureCgroup(_) | Act::ResizeContainer(_) | Act::CheckMemory(_), .. }
        )
    };
    let text = |effect: &Effect| crate::tell::effect(effect, &names).replace("uid-web ", "");
    run.told.iter().filter(is_of_cgroups).map(text).collect()
}

fn is_resize(effect: &Effect) -> bool {
    matches!(effect, Effect::Pod { act: Act::ResizeContainer(_), .. })
}

/// A node on which the pod runs.
fn running() -> Run {
    let mut run = Run::new();
    run.settle();
    run.want(version(1, [(100, 100), (200, 200)]));
    run.settle();
    run.told.clear();
    run
}

/// Has `look` go on from each point of what `begin` has begun: how many things were done by then.
fn at_each_point(begin: impl Fn() -> Run, look: impl Fn(Run, usize)) {
    let mut points = 0;
    loop {
        let mut run = begin();
        let is_over = !(0..points).all(|_| run.settle_one());
        look(run, points);
        if is_over {
            break;
        }
        points += 1;
    }
    assert!(points > 8, "only {points} points");
}

#[test]
fn the_pod_grows_first_and_shrinks_last_memory_comes_before_cpu_and_less_before_more() {
    let mut run = running();
    run.want(version(2, [(300, 300), (100, 100)]));
    run.settle();
    let expected = [
        "ensure-cgroup memory=419430400 quota=40000",
        "resize-container other memory=104857600",
        "resize-container main memory=314572800",
        "resize-container other quota=10000",
        "resize-container main quota=30000",
    ];
    assert_eq!(done(&run), expected);
    assert_eq!(
        (given(&run, "main"), given(&run, "other"), level(&run)),
        ((300, 300), (100, 100), (400, 400))
    );
    run.told.clear();
    run.want(version(3, [(100, 100), (100, 100)]));
    run.settle();
    let expected = [
        "resize-container main memory=104857600",
        "resize-container main quota=10000",
        "ensure-cgroup memory=419430400 quota=20000",
        "check-memory 209715200",
        "ensure-cgroup memory=209715200 quota=20000",
    ];
    assert_eq!(done(&run), expected);
    assert_eq!(run.world.starts.values().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(run.world.records[&uid()].resizing, None);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn it_is_in_progress_with_its_error_until_all_of_it_is_done() {
    let mut run = running();
    run.want(version(2, [(100, 50), (200, 200)]));
    let at = run.until_asked(is_resize);
    let in_progress = |run: &Run| condition(run, ConditionKind::PodResizeInProgress);
    let told = in_progress(&run).expect("it says so");
    assert_eq!((told.reason.as_str(), told.generation), ("", Some(2)));
    let resize = run.open.remove(at).unwrap();
    run.finished
        .push_back((resize.op(), Err(failure(FailureKind::Transient, "cannot decrease memory limits"))));
    run.deliver(0);
    run.settle();
    let told = in_progress(&run).expect("it says so");
    assert_eq!((told.reason.as_str(), told.message.as_str()), ("Error", "cannot decrease memory limits"));
    assert_eq!((given(&run, "main"), level(&run)), ((100, 100), (300, 300)), "nothing was changed");
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((in_progress(&run), given(&run, "main"), level(&run)), (None, (100, 50), (300, 250)));
    for (reason, count) in [("ResizeStarted", 1), ("ResizeError", 1), ("ResizeCompleted", 1)] {
        assert_eq!(run.notes(reason).count(), count, "{reason}");
    }
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn one_that_does_not_fit_waits_and_goes_on_with_what_it_has() {
    let mut run = running();
    let mut asks = version(2, [(100, 100), (200, 200)]);
    pods::edit(&mut asks, "main").resources = pods::resources((5000, MIB), (6000, 100 * MIB));
    run.want(asks);
    run.settle();
    let since = |run: &Run| {
        let pending = condition(run, ConditionKind::PodResizePending).expect("it says that it waits");
        assert_eq!((pending.reason.as_str(), pending.generation), ("Deferred", Some(2)));
        pending.since
    };
    let before = since(&run);
    for restarts in [false, true] {
        if restarts {
            run.restart(None);
        }
        let id = run.world.running(&uid(), "main").unwrap();
        let now = run.now;
        run.world.exit(&id, 1, now);
        run.report();
        run.advance(Duration::from_secs(60), Run::settle);
        assert_eq!((since(&run), given(&run, "main")), (before, (100, 100)), "restarted: {restarts}");
        assert_eq!(run.notes("ResizeDeferred").count(), 1, "restarted: {restarts}");
    }
    run.want(version(3, [(100, 100), (200, 200)]));
    run.settle();
    assert_eq!(condition(&run, ConditionKind::PodResizePending), None, "nobody asks any more");
    assert_eq!(run.world.records[&uid()].resize, None);
    assert_eq!(run.notes("ResizeStarted").count(), 0);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn a_container_restarts_where_its_policy_says_so() {
    let asking = |generation, main| {
        let mut pod = version(generation, [main, (200, 200)]);
        pods::edit(&mut pod, "main").resize_policy =
            ResizePolicy { memory_restarts: true, cpu_restarts: false };
        pod
    };
    let mut run = Run::new();
    run.settle();
    run.want(asking(1, (100, 100)));
    run.settle();
    let first = run.world.running(&uid(), "main").unwrap();
    run.want(asking(2, (150, 100)));
    run.settle();
    assert_eq!(run.world.running(&uid(), "main"), Some(first.clone()), "not for CPU");
    run.told.clear();
    run.want(asking(3, (150, 300)));
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_ne!(run.world.running(&uid(), "main"), Some(first));
    assert_eq!((given(&run, "main"), level(&run)), ((150, 300), (350, 500)));
    assert!(!run.told.iter().any(is_resize));
    let killing: Vec<_> = run.notes("Killing").map(|(_, note)| note.event.message.clone()).collect();
    assert_eq!(killing, ["Container main resize requires restart"]);
    assert_eq!(run.notes("ResizeCompleted").count(), 1);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// What the pod's cgroup has is enough for what both had, or for what both are to have.
#[test]
fn another_gets_no_more_while_one_that_is_to_have_less_ends() {
    let mut run = running();
    let main = run.world.running(&uid(), "main").unwrap();
    run.world.deaf.insert(ContainerName::new("main"));
    let mut next = version(1, [(100, 100), (200, 200)]);
    pods::edit(&mut next, "main").hash = 7;
    run.want(next);
    run.settle();
    let mut asks = version(2, [(50, 50), (220, 220)]);
    pods::edit(&mut asks, "main").hash = 7;
    run.want(asks);
    run.settle();
    assert_eq!(run.world.running(&uid(), "main"), Some(main), "it does not hear its signal");
    assert_eq!((given(&run, "other"), level(&run)), ((200, 200), (300, 300)));
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((given(&run, "main"), given(&run, "other"), level(&run)), ((50, 50), (220, 220), (270, 270)));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// So the pod's use is asked when theirs has gone, and of theirs nothing is.
#[test]
fn those_that_restart_end_before_limits_of_others_become_lower() {
    let asking = |generation, limits| {
        let mut pod = version(generation, limits);
        pods::edit(&mut pod, "main").resize_policy =
            ResizePolicy { memory_restarts: true, cpu_restarts: false };
        pod
    };
    let mut run = Run::new();
    run.settle();
    run.want(asking(1, [(100, 100), (200, 200)]));
    run.settle();
    run.want(asking(2, [(100, 50), (200, 150)]));
    let at = run.until_asked(is_resize);
    assert_eq!(run.world.running(&uid(), "main"), None);
    let Effect::Pod { act: Act::ResizeContainer(request), .. } = &run.open[at] else { panic!("another") };
    let bounds: Vec<_> =
        request.lowered.bounds.iter().map(|bound| (&bound.container, bound.limit / MIB)).collect();
    let other = Some((request.name.clone(), request.id.clone()));
    assert_eq!(bounds, [(&None, 200), (&other, 150)]);
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((given(&run, "main"), given(&run, "other"), level(&run)), ((100, 50), (200, 150), (300, 200)));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A version of a pod that may use so much as a whole: thousandths of a core, and MiB. One of its containers has limits of its own.
fn whole(generation: i64, (milli, mib): (u64, u64)) -> Pod {
    let mut pod = version(generation, [(100, 100), (200, 200)]);
    pods::edit(&mut pod, "other").resources = Resources::default();
    pod.resources = Some(pods::resources((50, 50 * MIB), (milli, mib * MIB)));
    Pod { manifest: pods::manifest(&pod, u64::try_from(generation).unwrap()), ..pod }
}

/// A node on which a pod runs that may use so much as a whole.
fn running_whole(limits: (u64, u64)) -> Run {
    let mut run = Run::new();
    run.settle();
    run.want(whole(1, limits));
    run.settle();
    assert_eq!((given(&run, "main"), given(&run, "other"), level(&run)), ((100, 100), limits, limits));
    run.told.clear();
    run
}

#[test]
fn what_a_pod_names_for_itself_grows_before_and_shrinks_after_those_that_share_it() {
    let mut run = running_whole((300, 300));
    run.want(whole(2, (500, 400)));
    run.settle();
    let expected = [
        "ensure-cgroup memory=419430400 quota=50000",
        "resize-container other memory=419430400",
        "resize-container other quota=50000",
    ];
    assert_eq!(done(&run), expected);
    run.told.clear();
    run.want(whole(3, (200, 300)));
    run.settle();
    let expected = [
        "resize-container other memory=314572800",
        "resize-container other quota=20000",
        "check-memory 314572800",
        "ensure-cgroup memory=314572800 quota=20000",
    ];
    assert_eq!(done(&run), expected);
    assert_eq!((given(&run, "other"), level(&run)), ((200, 300), (200, 300)));
    assert_eq!(run.world.starts.values().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(run.world.records[&uid()].resizing, None);
    assert_eq!(run.notes("ResizeCompleted").count(), 1);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Nothing of its containers changes: they have limits of their own.
#[test]
fn a_pod_that_uses_too_much_keeps_its_limit_and_says_so() {
    let version = |generation, mib| {
        let mut pod = whole(generation, (500, mib));
        pods::edit(&mut pod, "other").resources = pods::resources((10, MIB), (200, 100 * MIB));
        pod
    };
    let mut run = Run::new();
    run.settle();
    run.want(version(1, 300));
    run.settle();
    run.told.clear();
    run.world.used.insert(uid(), 250 * MIB);
    run.want(version(2, 200));
    run.settle();
    let told = condition(&run, ConditionKind::PodResizeInProgress).expect("it says so");
    assert_eq!((told.reason.as_str(), told.message.as_str()), ("Error", "cannot decrease memory limits"));
    assert_eq!((done(&run), level(&run)), (vec!["check-memory 209715200".to_owned()], (500, 300)));
    // What has ended meanwhile runs again.
    let id = run.world.running(&uid(), "main").unwrap();
    let now = run.now;
    run.world.exit(&id, 1, now);
    run.report();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((given(&run, "main"), level(&run)), ((100, 100), (500, 300)));
    run.restart(None);
    run.world.used.remove(&uid());
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((condition(&run, ConditionKind::PodResizeInProgress), level(&run)), (None, (500, 200)));
    for (reason, count) in [("ResizeStarted", 1), ("ResizeError", 1), ("ResizeCompleted", 1)] {
        assert_eq!(run.notes(reason).count(), count, "{reason}");
    }
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// That of its pod is its own, where it has none.
#[test]
fn a_container_restarts_for_a_limit_of_its_pod_where_its_policy_says_so() {
    let version = |generation, limits| {
        let mut pod = whole(generation, limits);
        for name in ["main", "other"] {
            pods::edit(&mut pod, name).resize_policy =
                ResizePolicy { memory_restarts: true, cpu_restarts: false };
        }
        pod
    };
    let mut run = Run::new();
    run.settle();
    run.want(version(1, (300, 300)));
    run.settle();
    let [main, other] = ["main", "other"].map(|name| run.world.running(&uid(), name));
    run.want(version(2, (400, 300)));
    run.settle();
    assert_eq!(run.world.running(&uid(), "other"), other, "not for CPU");
    run.want(version(3, (400, 350)));
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(run.world.running(&uid(), "main"), main, "it has a limit of its own");
    assert_ne!(run.world.running(&uid(), "other"), other);
    assert_eq!((given(&run, "other"), level(&run)), ((400, 350), (400, 350)));
    assert_eq!(run.notes("ResizeCompleted").count(), 2);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn a_kill_at_any_point_of_a_resize_of_a_pod_ends_in_the_same_state() {
    for (from, to) in [((300, 300), (500, 200)), ((500, 200), (300, 300))] {
        let asked = || {
            let mut run = running_whole(from);
            run.want(whole(2, to));
            run
        };
        at_each_point(asked, |mut run, points| {
            run.restart(None);
            run.settle();
            run.advance(Duration::from_secs(60), Run::settle);
            assert_eq!((given(&run, "other"), level(&run)), (to, to), "killed at {points}");
            assert_eq!(run.world.records[&uid()].resizing, None, "killed at {points}");
            assert_eq!(run.world.starts.values().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 1]);
            assert_eq!(run.world.violations, Vec::<String>::new(), "killed at {points}");
        });
    }
}

/// Each agent takes up what the one before was at, wherever that was killed.
#[test]
fn a_kill_at_any_point_of_a_resize_ends_in_the_same_state() {
    let asked = || {
        let mut run = running();
        run.want(version(2, [(300, 300), (100, 100)]));
        run
    };
    at_each_point(asked, |mut run, points| {
        run.restart(None);
        run.settle();
        run.advance(Duration::from_secs(60), Run::settle);
        let all = (given(&run, "main"), given(&run, "other"), level(&run));
        assert_eq!(all, ((300, 300), (100, 100), (400, 400)), "killed at {points}");
        assert_eq!(run.world.records[&uid()].resizing, None, "killed at {points}");
        assert_eq!(condition(&run, ConditionKind::PodResizeInProgress), None, "killed at {points}");
        assert_eq!(run.world.starts.values().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(run.world.violations, Vec::<String>::new(), "killed at {points}");
    });
}
