use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::{
    fixtures,
    id::{ContainerId, ContainerName},
    observation::Observation,
    pod::{
        actual::{Follows, Preparing, Running},
        port::{
            hook::Hooking,
            image::ImageUse,
            resize::{MemoryBound, MemoryUse, below_usage},
            signal::Stop,
        },
    },
    record::{ContainerRecord, TerminationRecord, Transition},
    spec::{QosClass, Resizable, ResizePolicy},
    status::PodEvent,
    time::Now,
};

const NOW: Now = Now { mono: Mono(Duration::from_secs(1000)), wall: Timestamp::UNIX_EPOCH };

/// A version of a pod whose container may use so much of a core, in thousandths.
fn version(generation: i64, milli: u64) -> Arc<Pod> {
    let mut container = fixtures::container("web");
    container.resources.limits.cpu_milli = Some(milli);
    let manifest = json!({ "spec": {
        "containers": [{ "name": "web", "resources": { "limits": { "cpu": format!("{milli}m") } } }],
    }, "generation": generation });
    Arc::new(Pod {
        generation: Some(generation),
        qos: QosClass::Burstable,
        manifest: manifest.to_string().into(),
        ..fixtures::pod(vec![container])
    })
}

fn milli(pod: &Pod) -> Option<u64> {
    pod.containers[0].resources.limits.cpu_milli
}

fn web() -> ContainerName {
    ContainerName::new("web")
}

/// A pod whose container runs.
fn running() -> PodMachine {
    let spec = version(1, 500);
    let mut pod = PodMachine::new(Arc::clone(&spec), NOW);
    let id = ContainerId::of(&spec.uid, &web(), 0);
    let run = ContainerRecord { started_in: Some(0), ..ContainerRecord::begun(id, 0, NOW.mono) };
    pod.life.record.containers.insert(web(), run);
    runs(&mut pod);
    pod
}

fn runs(pod: &mut PodMachine) {
    let running = Running {
        known_at: NOW.mono,
        pid: Some(7),
        started_at: NOW.wall,
        hash: pod.life.spec.containers[0].hash,
        stop: Stop::No,
        hook: Hooking::No,
        is_trusted: false,
    };
    pod.set_run(&web(), Run::Running(running));
}

fn told(pod: &mut PodMachine) -> Vec<PodEvent> {
    std::mem::take(&mut pod.notes)
}

fn reasons(pod: &mut PodMachine) -> Vec<String> {
    told(pod).into_iter().map(|note| note.reason.into_owned()).collect()
}

fn has(pod: &PodMachine) -> Option<u64> {
    actuated(pod.life(), &pod.life.spec.containers[0]).map(|actuated| actuated.has.cpu_limit)
}

fn deferred() -> Unallocated {
    Unallocated { is_infeasible: false, message: "too little".into() }
}

#[test]
fn a_pod_keeps_what_it_has_until_more_is_allocated() {
    let mut pod = version(1, 500);
    for (generation, asks, pending_since) in [
        (2, 500, None),
        (3, 800, Some(3)),
        (4, 800, Some(3)),
        (5, 900, Some(5)),
        (6, 500, None),
        (7, 700, Some(7)),
    ] {
        let next = with_allocated(&pod, version(generation, asks));
        assert_eq!((milli(&next), next.generation), (Some(500), Some(generation)), "{generation}");
        let resize = next.resize.as_ref();
        assert_eq!(resize.and_then(|resize| resize.generation), pending_since, "{generation}");
        assert!(resize.is_none_or(|resize| resize.allocated.contains("\"500m\"")), "{resize:?}");
        pod = next;
    }
}

/// The next agent has the manifests of both.
#[test]
fn what_is_read_back_is_what_was() {
    let (before, asks) = (version(1, 500), version(2, 800));
    let was = with_allocated(&before, Arc::clone(&asks));
    assert_eq!(read_back(&before, &asks, was.resize.clone().unwrap()), was);
}

/// What a pod has may differ for good from what its source tells: that is no reason to follow it anew, which has all pods compared again.
#[test]
fn a_version_that_was_told_is_told_once() {
    let mut pod = running();
    let (before, asks) = (Arc::clone(pod.spec()), version(2, 800));
    assert!(pod.was_told(&before) && !pod.was_told(&asks));
    pod.update(Arc::clone(&asks), NOW.mono);
    assert_ne!(*pod.spec(), asks);
    assert!(pod.was_told(&Arc::new(Pod::clone(&asks))) && !pod.was_told(&before));
    pod.update(Arc::clone(&before), NOW.mono);
    assert!(pod.was_told(&before) && !pod.was_told(&asks));
}

/// As the kubelet tells it.
#[test]
fn events_name_what_is_asked_for() {
    let mut pod = running();
    pod.update(version(2, 800), NOW.mono);
    assert!(pod.is_unjudged());
    pod.leave_unallocated("OutOfcpu", deferred());
    let [event] = &told(&mut pod)[..] else { panic!("not one event") };
    let asked =
        "\"containers\":[{\"name\":\"web\",\"resources\":{\"limits\":{\"cpu\":\"800m\"}}}],\"generation\":2";
    assert_eq!(event.reason, "ResizeDeferred");
    assert_eq!(event.message, format!("Pod resize OutOfcpu: {{{asked},\"error\":\"too little\"}}"));
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    pod.resize_failed("no luck", NOW.mono);
    pod.resize_failed("no luck", NOW.mono);
    pod.resized(NOW.mono);
    let told: Vec<_> = told(&mut pod).into_iter().map(|note| (note.reason, note.message)).collect();
    let expected = [
        ("ResizeStarted", format!("Pod resize started: {{{asked}}}")),
        ("ResizeError", format!("Pod resize error: {{{asked},\"error\":\"no luck\"}}")),
        ("ResizeCompleted", format!("Pod resize completed: {{{asked}}}")),
    ];
    assert_eq!(told, expected.map(|(reason, message)| (reason.into(), message)));
}

/// Each try is measured, from when it begins.
#[test]
fn tries_are_measured_until_they_end() {
    let at = |milliseconds| NOW.mono + Duration::from_millis(milliseconds);
    let mut pod = running();
    pod.update(version(2, 800), NOW.mono);
    pod.measured.clear();
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    pod.resize_failed("no luck", at(30));
    // It waits until it is tried again.
    pod.try_resize(at(1000));
    pod.try_resize(at(1100));
    pod.resized(at(1500));
    let tried =
        |is_done, milliseconds| ResizeMeasure::Tried { is_done, took: Duration::from_millis(milliseconds) };
    assert_eq!(pod.measured, [tried(false, 30), tried(true, 500)]);
}

/// A version of a pod that may use so much of a core as a whole, in thousandths, and whose container has no limit of its own.
fn whole(generation: i64, milli: u64) -> Arc<Pod> {
    let manifest = json!({ "spec": {
        "containers": [{ "name": "web" }], "resources": { "limits": { "cpu": format!("{milli}m") } },
    }, "generation": generation });
    Arc::new(Pod {
        resources: Some(fixtures::resources((milli / 2, 0), (milli, 0))),
        containers: vec![Arc::new(fixtures::container("web"))],
        manifest: manifest.to_string().into(),
        ..Pod::clone(&version(generation, milli))
    })
}

#[test]
fn a_pod_keeps_what_it_names_for_itself_until_more_is_allocated_and_until_its_containers_have_it() {
    let mut pod = running();
    pod.life.spec = whole(1, 500);
    let limit = |pod: &Pod| pod.resources.as_ref().and_then(|own| own.limits.cpu_milli);
    let request = |pod: &Pod| pod.resources.as_ref().and_then(|own| own.requests.cpu_milli);
    pod.update(whole(2, 800), NOW.mono);
    assert_eq!((limit(&pod.life.spec), pod.is_unjudged()), (Some(500), true));
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    assert_eq!(
        (limit(&pod.life.spec), has(&pod)),
        (Some(800), Some(500)),
        "its container has the limit of its pod"
    );
    let before = in_force(&pod.life).unwrap();
    assert_eq!((limit(&before), request(&before), milli(&before)), (Some(500), Some(250), Some(500)));
    assert_eq!(request(&taken(&pod.life)), Some(400), "the larger counts against others");
    pod.update(whole(3, 300), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    let before = in_force(&pod.life).unwrap();
    assert_eq!((limit(&before), has(&pod)), (Some(800), Some(500)), "it may have had either");
    assert_eq!(request(&taken(&pod.life)), Some(400));
    let asked: Vec<_> = told(&mut pod).into_iter().map(|note| note.message).collect();
    let of = |generation| {
        format!(
            "Pod resize started: {{\"containers\":[{{\"name\":\"web\",\"resources\":{{}}}}],\"generation\":{generation}}}"
        )
    };
    assert_eq!(asked, [of(2), of(3)], "as the kubelet, which names containers alone");
}

#[test]
fn a_refusal_is_told_once_for_each_that_asks() {
    let mut pod = running();
    let infeasible = || Unallocated { is_infeasible: true, message: "never".into() };
    let other = || Unallocated { message: "still too little".into(), ..deferred() };
    for (generation, milli, why, event, is_asked_again) in [
        (2, 800, deferred(), Some("ResizeDeferred"), true),
        (2, 800, other(), None, true),
        (3, 900, other(), Some("ResizeDeferred"), true),
        // Another version that asks for the same.
        (4, 900, other(), Some("ResizeDeferred"), true),
        (4, 900, other(), None, true),
        (4, 900, infeasible(), Some("ResizeInfeasible"), false),
        (4, 900, infeasible(), None, false),
        (5, 950, deferred(), Some("ResizeDeferred"), true),
    ] {
        pod.update(version(generation, milli), NOW.mono);
        pod.leave_unallocated("x", why.clone());
        assert_eq!(reasons(&mut pod), Vec::from_iter(event), "{generation} {why:?}");
        assert_eq!(pod.asks_for().is_some(), is_asked_again, "{generation} {why:?}");
        let known = pod.life.record.resize.clone().unwrap();
        assert_eq!((known.generation, known.unallocated), (Some(generation), Some(why)), "{generation}");
    }
    pod.update(version(6, 500), NOW.mono);
    assert_eq!((pod.asks_for().is_some(), pod.life.record.resize.clone()), (false, None));
}

#[test]
fn the_time_of_a_condition_is_that_of_its_reason() {
    use ConditionKind::{PodResizeInProgress as InProgress, PodResizePending as Pending};
    let mut pod = running();
    let tell = |pod: &mut PodMachine, kind| {
        pod.life.record.conditions.insert(kind, Transition { holds: true, since: NOW.wall });
    };
    let is_known = |pod: &PodMachine, kind| pod.life.record.conditions.contains_key(&kind);
    pod.update(version(2, 800), NOW.mono);
    pod.leave_unallocated("x", deferred());
    tell(&mut pod, Pending);
    for (generation, milli, is_infeasible, expected) in
        [(2, 800, false, true), (3, 900, false, true), (4, 900, false, true), (4, 900, true, false)]
    {
        pod.update(version(generation, milli), NOW.mono);
        pod.leave_unallocated("x", Unallocated { is_infeasible, message: "other".into() });
        assert_eq!(is_known(&pod, Pending), expected, "{generation} {is_infeasible}");
    }
    pod.update(version(5, 700), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    for (why, expected) in [("a", false), ("b", true)] {
        tell(&mut pod, InProgress);
        pod.resize_failed(why, NOW.mono);
        assert_eq!(is_known(&pod, InProgress), expected, "{why}");
    }
}

#[test]
fn what_runs_has_what_it_was_started_with_until_it_is_given_more() {
    let mut pod = running();
    pod.update(version(2, 800), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    assert_eq!((milli(&pod.life.spec), has(&pod)), (Some(800), Some(500)));
    assert_eq!(milli(&in_force(&pod.life).unwrap()), Some(500));
    assert_eq!(milli(&taken(&pod.life)), Some(800), "the larger counts against others");
    // Something else is allocated before it was given any of it.
    pod.update(version(3, 300), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    assert_eq!((milli(&pod.life.spec), has(&pod)), (Some(300), Some(500)));
    assert_eq!(milli(&taken(&pod.life)), Some(500));
    let record = pod.life.record.containers.get_mut(&web()).unwrap();
    let given = CpuMemory::of(&pod.life.spec, &pod.life.spec.containers[0]);
    record.actuated = record.actuated.map(|actuated| actuated.given(Resizable::Cpu, given));
    assert_eq!((has(&pod), in_force(&pod.life)), (None, None));
    // One that does not run has nothing.
    pod.update(version(4, 600), NOW.mono);
    pod.set_run(&web(), Run::Idle);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    assert_eq!(in_force(&pod.life), None);
}

#[test]
fn what_an_agent_before_may_have_done_is_done_again() {
    let mut pod = running();
    pod.update(version(2, 800), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    pod.take_up_resize();
    // It may have 800 by now, which is not enough to know.
    pod.update(version(3, 500), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    assert_eq!(has(&pod), Some(500), "it is given 500 again");
    assert_eq!(milli(&in_force(&pod.life).unwrap()), Some(800));
    assert_eq!(pod.life.record.resizing.clone().unwrap().generation, Some(3));
}

#[test]
fn a_resize_whose_manifest_was_not_written_is_forgotten_and_told_by_nobody() {
    let with_memory = |version: Arc<Pod>, bytes| {
        let mut pod = Pod::clone(&version);
        Arc::make_mut(&mut pod.containers[0]).resources.limits.memory_bytes = Some(bytes);
        Arc::new(pod)
    };
    let mut pod = running();
    pod.life.spec = with_memory(version(1, 500), 100);
    let before = Arc::clone(&pod.life.spec);
    pod.update(with_memory(version(2, 800), 300), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    remember_memory(&mut pod.life);
    // The state was written, the manifest was not.
    pod.life.spec = before;
    told(&mut pod);
    pod.take_up_resize();
    assert_eq!((pod.life.record.resizing.clone(), in_force(&pod.life)), (None, None));
    assert_eq!(told(&mut pod), []);
}

#[test]
fn a_policy_restarts_for_its_own_resource_alone() {
    for (cpu_restarts, memory_restarts, restarts) in
        [(false, false, false), (true, false, true), (false, true, false), (true, true, true)]
    {
        let mut pod = running();
        let mut asks = Pod::clone(&version(2, 800));
        let policy = ResizePolicy { cpu_restarts, memory_restarts };
        asks.containers =
            vec![Arc::new(Container { resize_policy: policy, ..Container::clone(&asks.containers[0]) })];
        pod.update(Arc::new(asks), NOW.mono);
        pod.allocate(Trigger::PodUpdated, NOW.mono);
        let container = Arc::clone(&pod.life.spec.containers[0]);
        assert_eq!(restarts_to_resize(&pod.life, &container), restarts, "{policy:?}");
        told(&mut pod);
        pod.stop(&web(), NOW.mono);
        let [event] = &told(&mut pod)[..] else { panic!("not one event") };
        let is_for_it = event.message == "Container web resize requires restart";
        assert_eq!(is_for_it, restarts, "{policy:?}: {}", event.message);
    }
}

/// What an earlier try of a start left has a cgroup too, perhaps.
#[test]
fn only_what_runs_and_goes_on_changes_while_it_runs() {
    let mut pod = running();
    pod.update(version(2, 300), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    let changes = |pod: &PodMachine| {
        let container = &pod.life.spec.containers[0];
        assert!(actuated(&pod.life, container).is_some(), "it has what it had");
        changes_running(&pod.life, container).map(|has| has.has.cpu_limit)
    };
    assert_eq!(changes(&pod), Some(500));
    let stopping = Some(TerminationRecord { began: NOW.mono, deadline: NOW.mono });
    pod.life.record.containers.get_mut(&web()).unwrap().stopping = stopping;
    assert_eq!(changes(&pod), None, "it ends");
    pod.life.record.containers.get_mut(&web()).unwrap().stopping = None;
    let again = Preparing {
        hash: 1,
        image: ImageUse::Wanted,
        is_image_told: true,
        rootfs: Resource::Absent,
        refused: None,
        is_under_way: false,
        follows: Follows::AnEnd,
        end: None,
    };
    pod.set_run(&web(), Run::Preparing(again));
    assert_eq!(changes(&pod), None, "it is started again");
}

/// A try comes each minute, and what is used is another number each time.
#[test]
fn a_limit_that_stays_below_what_is_used_is_told_once() {
    let mut pod = running();
    pod.update(version(2, 800), NOW.mono);
    pod.allocate(Trigger::PodUpdated, NOW.mono);
    told(&mut pod);
    let fails = |pod: &mut PodMachine, name: &str, limit, used| {
        let container = Some((ContainerName::new(name), ContainerId::from_known(name)));
        let has = MemoryUse { used, limit: 200 };
        let broken = MemoryBound { container, limit }.broken_by(has).unwrap();
        let of_pod = MemoryBound { container: None, limit: 50 }.broken_by(has).unwrap();
        pod.resize_failed(&below_usage(&[of_pod, broken]), NOW.mono);
        reasons(pod).len()
    };
    assert_eq!(fails(&mut pod, "web1", 20, 60), 1);
    let error = pod.life.record.resizing.clone().unwrap().error;
    assert_eq!(fails(&mut pod, "web1", 20, 131), 0);
    assert_eq!(pod.life.record.resizing.clone().unwrap().error, error, "nothing to write");
    assert_eq!(fails(&mut pod, "web1", 21, 131), 1, "another limit");
    assert_eq!(fails(&mut pod, "web2", 21, 131), 1, "another container");
}

/// The agent before has counted it.
#[test]
fn what_still_waits_after_a_restart_is_not_counted_again() {
    let mut pod = running();
    pod.update(version(2, 800), NOW.mono);
    assert_eq!(pod.measured.len(), 1);
    let (record, spec) = (pod.life.record.clone(), Arc::clone(&pod.life.spec));
    let mut next = PodMachine::restored(record, spec, &Observation::default(), NOW);
    next.measured.clear();
    next.update(version(2, 800), NOW.mono);
    assert_eq!(next.measured, []);
    next.update(version(3, 900), NOW.mono);
    assert_eq!(next.measured.len(), 1);
}
