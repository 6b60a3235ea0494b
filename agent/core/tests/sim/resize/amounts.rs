//! What the cgroup of a container that runs is given, and what is not to be taken from it.

use berth_core::{
    effect::{Act, Effect},
    failure::FailureKind,
    id::ContainerName,
    pod::port::resize::{MemoryBound, MemoryUse, ResizeRequest, below_usage},
    spec::{CpuMemory, Pod, Quantities},
    status::ConditionKind,
};

use super::{MIB, condition, done, given, is_resize, level, running, uid, version};
use crate::{
    pods,
    run::Run,
    world::{Given, failure},
};

/// What a container may use: thousandths of a core, and MiB.
const NONE: (u64, u64) = (0, 0);

/// The same as [`version`], where [`NONE`] is no limit.
fn perhaps_limited(generation: i64, limits: [(u64, u64); 2]) -> Pod {
    let mut pod = version(generation, limits);
    for (name, limits) in ["main", "other"].into_iter().zip(limits) {
        if limits == NONE {
            pods::edit(&mut pod, name).resources.limits = Quantities::default();
        }
    }
    pod
}

/// The same, where so much of a core is requested for one of them.
fn requesting(pod: Pod, name: &str, milli: u64) -> Pod {
    let mut pod = pod;
    pods::edit(&mut pod, name).resources.requests.cpu_milli = Some(milli);
    pod
}

/// Asks for other resources, and gives what follows of resizes; nothing that was asked for before is among it.
fn asks(run: &mut Run, pod: Pod) -> Vec<ResizeRequest> {
    run.told.clear();
    run.want(pod);
    run.settle();
    resizes(run)
}

fn resizes(run: &Run) -> Vec<ResizeRequest> {
    let request = |effect: &Effect| match effect {
        Effect::Pod { act: Act::ResizeContainer(request), .. } => Some(ResizeRequest::clone(request)),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    };
    run.told.iter().filter_map(request).collect()
}

/// The next change of a container fails, and may have been made.
fn fails(run: &mut Run) {
    let resize = run.take_asked(is_resize);
    run.finished.push_back((resize.op(), Err(failure(FailureKind::Transient, "it hangs"))));
    run.deliver(0);
}

/// Limits in MiB, of the pod where there is no name.
fn bounds(request: &ResizeRequest) -> Vec<(Option<&str>, u64)> {
    let bounds = request.lowered.bounds.iter();
    bounds.map(|one| (one.container.as_ref().map(|(name, _)| name.as_str()), one.limit / MIB)).collect()
}

#[test]
fn whatever_is_lowered_is_compared_with_what_is_used_before_the_first_change() {
    for (what, asked, expected) in [
        ("one of two", [(100, 300), (100, 50)], &[(Some("other"), 50)][..]),
        (
            "both, and so the pod",
            [(100, 90), (200, 50)],
            &[(None, 140), (Some("main"), 90), (Some("other"), 50)],
        ),
        ("none", [(100, 100), (200, 300)], &[]),
        ("one is taken away", [NONE, (200, 200)], &[]),
    ] {
        let mut run = running();
        let first = asks(&mut run, perhaps_limited(2, asked));
        assert_eq!(bounds(&first[0]), expected, "{what}");
        let of_cpu = |one: &&ResizeRequest| one.resources.cpu().is_some();
        assert!(first.iter().filter(of_cpu).all(|one| one.lowered.bounds.is_empty()), "{what}");
        assert_eq!(run.world.violations, Vec::<String>::new());
    }
    let mut run = running();
    asks(&mut run, perhaps_limited(2, [NONE, NONE]));
    let limited = asks(&mut run, perhaps_limited(3, [(100, 100), (200, 200)]));
    assert_eq!(bounds(&limited[0]), [(None, 300), (Some("main"), 100), (Some("other"), 200)]);
}

/// What it may have been given is more than what it is to have now.
#[test]
fn a_limit_that_may_be_in_force_is_lowered_too() {
    let mut run = running();
    run.want(version(2, [(100, 300), (200, 200)]));
    fails(&mut run);
    let next = asks(&mut run, version(3, [(100, 150), (200, 200)]));
    assert_eq!(bounds(&next[0]), [(None, 350), (Some("main"), 150)]);
}

#[test]
fn a_limit_is_not_set_at_or_below_what_is_used() {
    let (limit, id) = (1000, running().world.running(&uid(), "main").expect("it runs"));
    let of_pod = MemoryBound { container: None, limit };
    let of_container = MemoryBound { container: Some((ContainerName::new("main"), id)), limit };
    for (used, before, is_broken) in [
        (0, 2000, false),
        (999, 2000, false),
        (1000, 2000, true),
        (1001, 2000, true),
        (1001, u64::MAX, true),
        (1000, 1001, true),
        // It is so low already, and full.
        (1000, 1000, false),
        (900, 900, false),
    ] {
        let expected = |whose: &str| {
            is_broken.then(|| {
                format!("attempting to set {whose} memory limit (1000) below current usage ({used})")
            })
        };
        let has = MemoryUse { used, limit: before };
        assert_eq!(of_pod.broken_by(has), expected("pod"), "{has:?}");
        assert_eq!(of_container.broken_by(has), expected("container \"main\""), "{has:?}");
    }
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(below_usage(&texts(&["one"])), "cannot decrease memory limits: one");
    assert_eq!(below_usage(&texts(&["one", "two"])), "cannot decrease memory limits: [one, two]");
}

#[test]
fn what_is_requested_changes_alone() {
    let mut run = running();
    let asked = asks(&mut run, requesting(version(2, [(100, 100), (200, 200)]), "main", 50));
    let shares: Vec<_> = asked.iter().map(|one| (one.name.as_str(), one.resources.cpu().clone())).collect();
    let [("main", Some(cpu))] = &shares[..] else { panic!("{shares:?}") };
    assert_eq!((cpu.shares(), cpu.quota()), (Some(51), Some(10_000)));
    let id = run.world.running(&uid(), "main").unwrap();
    let expected = Given { quota: Some(10_000), memory: Some(100 * MIB), shares: Some(51) };
    assert_eq!(run.world.containers[&id].given, expected);
    assert_eq!(run.notes("ResizeCompleted").count(), 1);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// One that has never had one is given none: crun cannot take away what is not there.
#[test]
fn a_limit_of_cpu_is_taken_away_where_there_may_be_one() {
    let quota = |asked: &[ResizeRequest]| {
        let mut of_cpu = asked.iter().filter_map(|one| one.resources.cpu().clone());
        of_cpu.next().expect("CPU changes").quota()
    };
    let never = perhaps_limited(1, [NONE, (200, 200)]);
    let begun = || {
        let mut run = Run::new();
        run.settle();
        run.want(never.clone());
        run.settle();
        run
    };
    let mut run = begun();
    assert_eq!(quota(&asks(&mut run, requesting(never.clone(), "main", 20))), None);
    let mut more = never.clone();
    pods::edit(&mut more, "main").resources.requests.memory_bytes = Some(2 * MIB);
    let limits = asks(&mut run, more)
        .iter()
        .filter_map(|one| one.resources.memory().as_ref()?.limit())
        .collect::<Vec<_>>();
    assert_eq!(limits, Vec::<i64>::new(), "of memory neither");
    assert_eq!(run.world.violations, Vec::<String>::new());

    let mut run = begun();
    let mut limited = never.clone();
    pods::edit(&mut limited, "main").resources.limits.cpu_milli = Some(100);
    run.want(limited);
    fails(&mut run);
    assert_eq!(quota(&asks(&mut run, requesting(never.clone(), "main", 20))), Some(-1));

    let mut run = running();
    assert_eq!(quota(&asks(&mut run, perhaps_limited(2, [NONE, (200, 200)]))), Some(-1));
    assert_eq!(given(&run, "main"), (0, 0));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn no_limit_is_more_than_any() {
    let changes = |run: &Run| -> Vec<String> {
        let of_containers =
            done(run).into_iter().filter_map(|one| Some(one.strip_prefix("resize-container ")?.to_owned()));
        of_containers.collect()
    };
    let mut run = running();
    asks(&mut run, perhaps_limited(2, [NONE, (100, 100)]));
    let expected = ["other memory=104857600", "main memory=-1", "other quota=10000", "main quota=-1"];
    assert_eq!(changes(&run), expected);
    assert_eq!((given(&run, "main"), level(&run)), ((0, 0), (0, 0)));
    asks(&mut run, perhaps_limited(3, [(100, 100), NONE]));
    let expected = ["main memory=104857600", "other memory=-1", "main quota=10000", "other quota=-1"];
    assert_eq!(changes(&run), expected);
    asks(&mut run, perhaps_limited(4, [(100, 100), (50, 50)]));
    assert_eq!(changes(&run), ["other memory=52428800", "other quota=5000"]);
    assert_eq!((given(&run, "other"), level(&run)), ((50, 50), (150, 150)));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn of_two_limits_none_is_the_larger() {
    let of =
        |cpu_limit, memory_limit| CpuMemory { cpu_request: 1, cpu_limit, memory_request: 1, memory_limit };
    for (one, other, least, most) in [
        ((100, 0), (200, 100), (100, 100), (200, 0)),
        ((0, 0), (100, 100), (100, 100), (0, 0)),
        ((0, 200), (0, 100), (0, 100), (0, 200)),
        ((100, 100), (100, 100), (100, 100), (100, 100)),
    ] {
        let [one, other, least, most] = [one, other, least, most].map(|(cpu, memory)| of(cpu, memory));
        assert_eq!((one.max(other), other.max(one)), (most, most), "{one:?} {other:?}");
        assert_eq!((one.min(other), other.min(one)), (least, least), "{one:?} {other:?}");
    }
}

/// Whether it was made is not known: what the container has for sure is what it had.
#[test]
fn a_change_that_failed_is_not_shown() {
    let mut run = running();
    run.want(version(2, [(100, 300), (200, 200)]));
    fails(&mut run);
    run.settle();
    let in_progress = condition(&run, ConditionKind::PodResizeInProgress).expect("it says so");
    assert_eq!(in_progress.reason, "Error");
    let status = &run.world.statuses[&uid()];
    let shown = status.containers.iter().find(|one| one.name.as_str() == "main").expect("it is shown");
    let shown = shown.actuated.map(|amounts| amounts.memory_limit / MIB);
    assert_eq!(shown, Some(100));
}
