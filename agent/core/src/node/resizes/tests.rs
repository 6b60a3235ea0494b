use std::{
    collections::{BTreeMap, BTreeSet},
    sync::mpsc,
    thread,
    time::Duration,
};

use jiff::Timestamp;

use super::*;
use crate::{
    config::SwapBehavior,
    effect::{Act, Effect},
    event::{Event, Restored},
    fixtures,
    metrics::Requested,
    pod::resize::read_back,
    spec::{Resize, Scheduling, Source},
    time::Mono,
};

const MIB: u64 = 1 << 20;

fn now() -> Now {
    Now { mono: Mono(Duration::from_secs(1000)), wall: Timestamp::UNIX_EPOCH }
}

/// A pod of the API server that requests so much, in thousandths of a core and bytes.
fn pod(name: &str, requests: (u64, u64)) -> Pod {
    let container =
        Container { resources: fixtures::resources(requests, (0, 0)), ..fixtures::container("web") };
    let mut pod = Pod { source: Source::Api, ..fixtures::pod(vec![container]) };
    pod.uid = PodUid::new(name);
    pod.name.name = name.to_owned();
    pod.qos = QosClass::Burstable;
    pod.manifest = format!("{{\"name\":\"{name}\",\"asks\":\"{requests:?}\"}}").into();
    pod
}

/// One that is told to have waited for more of a core than it has.
fn told(name: &str, has: u64, asked: u64) -> Pod {
    let (allocated, waits) = (pod(name, (has, MIB)), pod(name, (asked, MIB)));
    let resize = Resize {
        allocated: Arc::clone(&allocated.manifest),
        generation: waits.generation,
        unallocated: Some(Unallocated { is_infeasible: false, message: "it was told before".into() }),
    };
    Pod { told_allocated: Some(read_back(&allocated, &waits, resize)), ..waits }
}

fn node() -> Node {
    let mut config = fixtures::node();
    config.allocatable = fixtures::resources((1000, 1000 * MIB), (0, 0)).requests;
    let mut node = Node::new(config, BTreeSet::from([Source::Api]));
    node.handle(now(), Event::Restored(Box::<Restored>::default()));
    node
}

fn tell(node: &mut Node, pods: &[&Pod]) {
    let pods = pods.iter().map(|pod| Arc::new(Pod::clone(pod))).collect();
    node.handle(now(), Event::Desired { source: Source::Api, pods, is_whole: true });
}

/// What each pod has of a core, and why it has not what it asks for.
fn is(node: &Node, name: &str) -> (u64, Option<String>) {
    let spec = node.pods[&PodUid::new(name)].spec();
    let why = spec.resize.as_ref().map(|resize| resize.unallocated.clone().expect("judged").message);
    (spec.containers[0].resources.requests.cpu_milli.unwrap_or(0), why)
}

#[test]
fn what_fits_beside_others_is_allocated_and_the_rest_waits_for_room() {
    let mut node = node();
    let (one, other) = (pod("one", (400, MIB)), pod("other", (400, MIB)));
    tell(&mut node, &[&one, &other]);
    let more = pod("one", (600, MIB));
    tell(&mut node, &[&more, &other]);
    assert_eq!(is(&node, "one"), (600, None));
    let most = pod("other", (500, MIB));
    tell(&mut node, &[&more, &most]);
    let why = "Node didn't have enough resource: cpu, requested: 500, used: 600, capacity: 1000";
    assert_eq!(is(&node, "other"), (400, Some(why.to_owned())));
    let less = pod("one", (500, MIB));
    tell(&mut node, &[&less, &most]);
    assert_eq!((is(&node, "one"), is(&node, "other")), ((500, None), (500, None)));
    // It waits for one to go.
    let all = pod("other", (900, MIB));
    tell(&mut node, &[&less, &all]);
    assert!(is(&node, "other").1.is_some());
    tell(&mut node, &[&all]);
    assert_eq!(is(&node, "other"), (900, None));
}

/// What gave room is told of each that had waited.
#[test]
fn what_is_allocated_after_it_waited_says_what_gave_room() {
    use Trigger::{PodTerminated, PodUpdated};
    let (one, other) = (pod("one", (400, MIB)), pod("other", (400, MIB)));
    let more = pod("other", (700, MIB));
    for (what, then, expected) in [
        ("another asks for less", vec![pod("one", (200, MIB)), more.clone()], Some(PodUpdated)),
        ("another goes, of which nothing runs", vec![more.clone()], Some(PodTerminated)),
        ("nothing", vec![one.clone(), more.clone()], None),
        ("it asks for what it has", vec![one.clone(), other.clone()], None),
    ] {
        let mut node = node();
        tell(&mut node, &[&one, &other]);
        tell(&mut node, &[&one, &more]);
        let asks = Requested { resource: "cpu", requirement: "requests", operation: "increase" };
        assert_eq!(node.take_measured(), [ResizeMeasure::Requested(asks)], "{what}");
        tell(&mut node, &then.iter().collect::<Vec<_>>());
        let accepted = |one: &ResizeMeasure| matches!(one, ResizeMeasure::Accepted(_));
        let accepted: Vec<_> = node.take_measured().into_iter().filter(accepted).collect();
        let expected: Vec<_> = expected.into_iter().map(ResizeMeasure::Accepted).collect();
        assert_eq!(accepted, expected, "{what}");
    }
}

#[test]
fn nothing_is_judged_before_all_sources_have_spoken() {
    let mut node = Node::new(fixtures::node(), BTreeSet::from([Source::Api, Source::File]));
    node.handle(now(), Event::Restored(Box::<Restored>::default()));
    tell(&mut node, &[&pod("one", (100, MIB))]);
    tell(&mut node, &[&pod("one", (200, MIB))]);
    let has = |node: &Node| node.pods[&PodUid::new("one")].spec().containers[0].resources.requests.cpu_milli;
    assert_eq!(has(&node), Some(100));
    node.handle(now(), Event::Desired { source: Source::File, pods: Vec::new(), is_whole: true });
    assert_eq!(has(&node), Some(200));
}

/// Of those that wait, one gets what there is.
#[test]
fn those_that_wait_have_their_turns() {
    for (what, first, second, expected) in [
        ("no more before more", pod("b", (100, MIB)), pod("a", (700, MIB)), "b"),
        ("no more memory before more", pod("b", (100, MIB / 2)), pod("a", (100, 700 * MIB)), "b"),
        ("priority", Pod { priority: 5, ..pod("b", (700, MIB)) }, pod("a", (700, MIB)), "b"),
        ("class", Pod { qos: QosClass::Guaranteed, ..pod("b", (700, MIB)) }, pod("a", (700, MIB)), "b"),
        ("else alike", pod("b", (700, MIB)), pod("a", (700, MIB)), "a"),
    ] {
        let mut node = node();
        let before = |pod: &Pod| {
            let mut before = Pod::clone(pod);
            let requests = if what.starts_with("no more") { (200, MIB) } else { (100, MIB) };
            let container = Container {
                resources: fixtures::resources(requests, (0, 0)),
                ..Container::clone(&before.containers[0])
            };
            before.containers = vec![Arc::new(container)];
            before.manifest = "{}".into();
            before
        };
        tell(&mut node, &[&before(&first), &before(&second)]);
        let pods = [Arc::new(first), Arc::new(second)];
        for pod in &pods {
            let machine = node.pods.get_mut(&pod.uid).expect("it is here");
            machine.update(Arc::clone(pod), now().mono);
            node.advance(&pod.uid.clone(), now());
        }
        assert_eq!(node.in_turn().first().map(PodUid::as_str), Some(expected), "{what}");
    }
}

/// A condition that has been there for longer comes first.
#[test]
fn who_waits_longest_is_first_of_those_that_are_alike() {
    let mut node = node();
    tell(&mut node, &[&pod("a", (100, MIB)), &pod("b", (100, MIB)), &pod("c", (700, MIB))]);
    let ask = |node: &mut Node, at: i64, pods: &[&Pod]| {
        let now = Now { wall: Timestamp::from_second(at).unwrap(), ..now() };
        let pods = pods.iter().map(|pod| Arc::new(Pod::clone(pod))).collect();
        node.handle(now, Event::Desired { source: Source::Api, pods, is_whole: true });
    };
    let (a, b, c) = (pod("a", (100, MIB)), pod("b", (600, MIB)), pod("c", (700, MIB)));
    ask(&mut node, 10, &[&a, &b, &c]);
    let a = pod("a", (600, MIB));
    ask(&mut node, 20, &[&a, &b, &c]);
    assert_eq!(node.in_turn(), ["b", "a"].map(PodUid::new));
    ask(&mut node, 30, &[&a, &b]);
    assert_eq!((is(&node, "b"), is(&node, "a").1.is_some()), ((600, None), true));
}

#[test]
fn a_critical_pod_has_others_give_way() {
    let mut node = node();
    let critical = Pod { priority: 2_000_000_000, ..pod("critical", (200, MIB)) };
    let other = pod("other", (700, MIB));
    tell(&mut node, &[&critical, &other]);
    let more = Pod { priority: 2_000_000_000, ..pod("critical", (900, MIB)) };
    tell(&mut node, &[&more, &other]);
    let gone = &node.pods[&PodUid::new("other")].life().record.terminal;
    assert_eq!(gone.as_ref().map(|end| end.reason.as_str()), Some("Preempting"));
    assert_eq!(is(&node, "critical"), (900, None), "nothing of the other runs");
    let too_much = Pod { priority: 2_000_000_000, ..pod("critical", (1100, MIB)) };
    tell(&mut node, &[&too_much, &other]);
    let (has, why) = is(&node, "critical");
    assert_eq!(has, 900);
    assert!(why.as_ref().is_some_and(|why| why.contains("no set of running pods found")), "{why:?}");
}

#[test]
fn what_is_never_allocated_says_why() {
    let swap = SwapBehavior::LimitedSwap { node_bytes: 1 << 30 };
    let (has, more) = (pod("one", (100, MIB)), pod("one", (100, 2 * MIB)));
    let restarts = |pod: &Pod| {
        let policy = crate::spec::ResizePolicy { memory_restarts: true, cpu_restarts: false };
        let container = Container { resize_policy: policy, ..Container::clone(&pod.containers[0]) };
        Pod { containers: vec![Arc::new(container)], ..pod.clone() }
    };
    for (what, has, asked, swap, why) in [
        ("plain", has.clone(), more.clone(), SwapBehavior::NoSwap, None),
        ("with swap", has.clone(), more.clone(), swap, Some(Infeasible::Swap)),
        ("with swap, by a restart", restarts(&has), restarts(&more), swap, None),
        ("of CPU, with swap", has.clone(), pod("one", (200, MIB)), swap, None),
    ] {
        let mut node = fixtures::node();
        node.cgroups.swap = swap;
        assert_eq!(infeasible(&has, &asked, &node), why, "{what}");
    }
}

/// What was allocated is in no record: the machine was switched off. Source: `TestRetryPendingResizes` and its like put what is allocated
/// in place of what is asked for (`pkg/kubelet/allocation/allocation_manager.go` `AddPod`).
#[test]
fn what_waited_before_the_machine_was_switched_off_is_judged_again_from_what_it_had() {
    for (has, asked, other, expected, others) in [
        // It was deferred, and is again. Others have the room that it does not take.
        (400, 5000, 400, (400, true), true),
        // There is room for it now.
        (400, 600, 300, (600, false), true),
        // What it has does not fit any more.
        (1200, 5000, 100, (1200, true), true),
    ] {
        let mut node = node();
        tell(&mut node, &[&told("waits", has, asked), &pod("other", (other, MIB))]);
        let (cpu, why) = is(&node, "waits");
        assert_eq!((cpu, why.is_some()), expected, "{has} {asked}");
        let is_refused = |name: &str| node.pods[&PodUid::new(name)].life().record.terminal.is_some();
        assert_eq!(is_refused("waits"), has > 1000, "{has}");
        assert_eq!(!is_refused("other"), others, "{has} {asked}");
        let record = &node.pods[&PodUid::new("waits")].life().record;
        assert_eq!(record.manifest, pod("waits", (asked, MIB)).manifest);
        // That it waits was told before.
        let is_told = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::Note(note), .. } if note.event.reason == "ResizeDeferred");
        assert!(!node.effects.iter().any(is_told), "{has} {asked}");
    }
}

/// A version that is told once more is not followed once more: with one that waits each turn would call for another, without an end.
#[expect(clippy::disallowed_methods, reason = "a failure would never end")]
#[test]
fn one_that_waits_and_one_that_is_over_with_another_resize_are_compared_once() {
    let mut node = node();
    tell(&mut node, &[]);
    let zone = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let scheduling = Scheduling { selector: zone, ..Scheduling::default() };
    let waits = Pod { scheduling, ..pod("a-waits", (100, MIB)) };
    let over = told("over", 1200, 5000);
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        tell(&mut node, &[&waits, &over]);
        done.send(node.pods.len()).expect("somebody waits");
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok(1), "the one that is over");
}
