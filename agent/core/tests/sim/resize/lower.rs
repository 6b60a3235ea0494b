//! The memory limit of a pod becomes lower when what the pod uses fits, whatever its containers do meanwhile.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    spec::{Pod, Quantities, ResizePolicy, Resources},
    status::ConditionKind,
};

use super::{MIB, at_each_point, condition, given, level, uid, version};
use crate::{pods, run::Run};

/// A version whose first container begins anew for another memory limit.
fn asking(generation: i64, mib: u64) -> Pod {
    let mut pod = version(generation, [(100, mib), (200, 200)]);
    pods::edit(&mut pod, "main").resize_policy = ResizePolicy { memory_restarts: true, cpu_restarts: false };
    pod
}

/// The same, of a pod that names CPU for itself and no memory.
fn naming_cpu(generation: i64, mib: u64) -> Pod {
    let cpu = |milli| Quantities { cpu_milli: Some(milli), ..Quantities::default() };
    let resources = Resources { requests: cpu(100), limits: cpu(600 + u64::try_from(generation).unwrap()) };
    let pod = Pod { resources: Some(resources), ..asking(generation, mib) };
    Pod { manifest: pods::manifest(&pod, u64::try_from(generation).unwrap()), ..pod }
}

fn exit(run: &mut Run) {
    let id = run.world.running(&uid(), "main").expect("it runs");
    let now = run.now;
    run.world.exit(&id, 1, now);
    run.report();
    run.settle();
}

fn error(run: &Run) -> Option<String> {
    condition(run, ConditionKind::PodResizeInProgress).map(|told| told.message)
}

fn begin(first: Pod) -> Run {
    let mut run = Run::new();
    run.settle();
    run.want(first);
    run.settle();
    run.world.used.insert(uid(), 280 * MIB);
    run
}

/// What runs is asked for anew, and the pod has what it had: more is used than it is to have.
fn is_refused(run: &mut Run) {
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(error(run).as_deref(), Some("cannot decrease memory limits"));
    assert_eq!((given(run, "main").1, level(run).1), (50, 300));
    run.restart(None);
    run.settle();
    assert_eq!((given(run, "main").1, level(run).1), (50, 300), "after a restart");
    run.world.used.insert(uid(), 200 * MIB);
    run.advance(Duration::from_secs(120), Run::settle);
    assert_eq!((error(run), level(run).1), (None, 250));
    assert_eq!(run.world.records[&uid()].resizing, None);
    assert_eq!(run.notes("ResizeCompleted").count(), 1);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn a_container_that_restarts_does_not_take_memory_from_its_pod_that_is_used() {
    let mut run = begin(asking(1, 100));
    run.want(asking(2, 50));
    run.settle();
    is_refused(&mut run);
}

#[test]
fn nor_does_one_that_waits_for_its_next_run() {
    let mut run = begin(asking(1, 100));
    while run.world.running(&uid(), "main").is_some() {
        exit(&mut run);
    }
    run.want(asking(2, 50));
    run.settle();
    is_refused(&mut run);
}

#[test]
fn nor_does_a_pod_that_names_cpu_alone() {
    let mut run = begin(naming_cpu(1, 100));
    run.want(naming_cpu(2, 50));
    run.settle();
    is_refused(&mut run);
}

/// The limit of another one is refused while it begins anew.
#[test]
fn one_that_restarts_beside_one_that_goes_on_waits_for_its_room_alone() {
    let both = |generation| {
        let mut pod = asking(generation, 50);
        pods::edit(&mut pod, "other").resources = pods::resources((10, MIB), (200, 150 * MIB));
        pod
    };
    let mut run = begin(asking(1, 100));
    run.want(both(2));
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(error(&run).as_deref(), Some("cannot decrease memory limits"));
    assert_eq!((given(&run, "main").1, given(&run, "other").1, level(&run).1), (50, 200, 300));
    run.world.used.remove(&uid());
    run.advance(Duration::from_secs(120), Run::settle);
    assert_eq!((given(&run, "main").1, given(&run, "other").1, level(&run).1), (50, 150, 200));
    assert_eq!((error(&run), run.world.violations.clone()), (None, Vec::new()));
}

/// A later version is judged by what the pod has, and not by what the one before allocated.
#[test]
fn versions_that_follow_each_other_take_nothing_that_is_used() {
    let mut run = begin(asking(1, 100));
    for (generation, mib) in [(2, 50), (3, 60), (4, 50)] {
        run.want(asking(generation, mib));
        run.advance(Duration::from_secs(60), Run::settle);
        assert_eq!((given(&run, "main").1, level(&run).1), (mib, 300), "{generation}");
    }
    run.want(asking(5, 100));
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((error(&run), level(&run).1), (None, 300));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// More is used in between: the kernel refuses, or it is looked at anew.
#[test]
fn what_is_used_when_it_was_looked_at_is_looked_at_anew() {
    let is_write = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::EnsureCgroup(request), .. } if request.values.memory_bytes_max == Some(250 * MIB));
    for restarts in [false, true] {
        let mut run = begin(asking(1, 100));
        run.world.used.insert(uid(), 200 * MIB);
        run.want(asking(2, 50));
        run.until_asked(is_write);
        run.world.used.insert(uid(), 280 * MIB);
        if restarts {
            run.restart(None);
        }
        run.settle();
        run.advance(Duration::from_secs(60), Run::settle);
        assert_eq!((given(&run, "main").1, level(&run).1), (50, 300), "restarts: {restarts}");
        assert!(error(&run).is_some_and(|error| !error.is_empty()), "restarts: {restarts}");
        run.world.used.clear();
        run.advance(Duration::from_secs(120), Run::settle);
        assert_eq!((error(&run), level(&run).1), (None, 250), "restarts: {restarts}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "restarts: {restarts}");
    }
}

#[test]
fn a_kill_at_any_point_of_one_that_fits_leaves_what_is_used() {
    let fits = || {
        let mut run = begin(asking(1, 100));
        run.world.used.insert(uid(), 200 * MIB);
        run.want(asking(2, 50));
        run
    };
    at_each_point(fits, |mut run, points| {
        let was_low = level(&run).1 == 250;
        run.restart(None);
        run.world.used.insert(uid(), 280 * MIB);
        run.settle();
        run.advance(Duration::from_secs(60), Run::settle);
        // One that is not known to be done begins with a look, at what it may have had.
        let is_done = was_low && run.world.records[&uid()].resizing.is_none();
        let mib = if is_done { 250 } else { 300 };
        assert_eq!((given(&run, "main").1, level(&run).1), (50, mib), "killed at {points}");
        run.world.used.clear();
        run.advance(Duration::from_secs(120), Run::settle);
        assert_eq!((error(&run), level(&run).1), (None, 250), "killed at {points}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "killed at {points}");
    });
}

#[test]
fn a_kill_at_any_point_takes_nothing_that_is_used() {
    let is_too_low = || {
        let mut run = begin(asking(1, 100));
        run.want(asking(2, 50));
        run
    };
    at_each_point(is_too_low, |mut run, points| {
        run.restart(None);
        run.settle();
        run.advance(Duration::from_secs(60), Run::settle);
        assert_eq!((given(&run, "main").1, level(&run).1), (50, 300), "killed at {points}");
        run.world.used.clear();
        run.advance(Duration::from_secs(120), Run::settle);
        assert_eq!((error(&run), level(&run).1), (None, 250), "killed at {points}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "killed at {points}");
    });
}
