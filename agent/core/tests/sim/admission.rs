//! What the Node object says decides who begins, and nobody waits for it who needs it not.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_core::{
    config::NodeConfig,
    effect::{Act, Effect, NodeAct},
    event::{Event, Restored},
    failure::FailureKind,
    id::PodUid,
    node::{Node, NodeInfo, Taint},
    spec::{Pod, RestartPolicy, Scheduling, Source},
};
use jiff::Timestamp;

use crate::{pods, run::Run, world::failure};

/// A node in a cluster.
fn in_cluster() -> Run {
    let mut run = Run::new();
    run.node = Node::new(pods::node(), BTreeSet::from([Source::File, Source::Api]));
    run.handle(Event::Restored(Box::<Restored>::default()));
    run.handle(Event::NetworkReady(Ok(())));
    run
}

fn labelled(zone: &str) -> NodeInfo {
    let labels = BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
    NodeInfo { name: "node".into(), labels, ..NodeInfo::default() }
}

/// A pod of the API server that asks for a zone.
fn asking(name: &str, zone: &str) -> Pod {
    let selector = BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
    let scheduling = Scheduling { selector, ..Scheduling::default() };
    Pod { source: Source::Api, scheduling, ..pods::pod(name, &[name]) }
}

/// Reasons of events of rejected pods.
fn rejections(run: &Run) -> Vec<&str> {
    let reasons = run.told.iter().filter_map(|effect| match effect {
        Effect::Pod { act: Act::Note(note), .. } => Some(&*note.event.reason),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    });
    reasons
        .filter(|reason| ["NodeAffinity", "TaintToleration", "OutOfexample.com/gpu"].contains(reason))
        .collect()
}

fn is_reading(effect: &Effect) -> bool {
    matches!(effect, Effect::Node { act: NodeAct::ReadNodeObject, .. })
}

fn readings(run: &Run) -> usize {
    run.told.iter().filter(|effect| is_reading(effect)).count()
}

fn runs(run: &Run, name: &str) -> bool {
    run.world.containers.values().any(|one| one.name.as_str() == name && one.is_running())
}

/// Watches tell of the pod and of the node in any order.
#[test]
fn a_pod_that_labels_keep_out_is_judged_by_the_object_of_that_moment() {
    for (watched, there, readings_expected, rejected) in [
        (Some("a"), None, 0, &[][..]),
        (Some("b"), Some("a"), 1, &[]),
        (None, Some("a"), 1, &[]),
        (Some("b"), Some("b"), 1, &["NodeAffinity"]),
        (Some("b"), None, 1, &["NodeAffinity"]),
    ] {
        let mut run = in_cluster();
        if let Some(zone) = watched {
            run.handle(Event::NodeInfo(labelled(zone)));
        }
        run.world.node_object = there.map(labelled);
        run.want(asking("web", "a"));
        run.settle();
        let what = format!("watched {watched:?}, there {there:?}");
        assert_eq!(rejections(&run), rejected, "{what}");
        assert_eq!(readings(&run), readings_expected, "{what}");
        assert_eq!(runs(&run, "web"), rejected.is_empty(), "{what}");
    }
}

#[test]
fn one_that_comes_during_a_reading_has_its_own() {
    let mut run = in_cluster();
    run.want(asking("early", "a"));
    assert_eq!(readings(&run), 1);
    run.want(asking("late", "a"));
    assert_eq!(readings(&run), 1, "two at a time");
    run.settle();
    assert_eq!(readings(&run), 2);
    assert_eq!(rejections(&run), ["NodeAffinity"; 2]);
}

/// A node that waits for its certificate can read nothing, however long that takes.
#[test]
fn a_reading_without_an_end_keeps_nobody_out_and_is_begun_again() {
    for (there, rejected) in [(Some("a"), &[][..]), (Some("b"), &["NodeAffinity"]), (None, &["NodeAffinity"])]
    {
        let mut run = in_cluster();
        run.want(Pod { source: Source::File, ..asking("web", "a") });
        run.want(pods::pod("plain", &["plain"]));
        for count in 1..4 {
            assert_eq!(readings(&run), count);
            let at = run.open.iter().position(is_reading).expect("the object is read");
            let reading = run.open.remove(at).expect("it is open");
            let outcome = Err(failure(FailureKind::Unknown, "no end within 60 s"));
            run.handle(Event::Done { op: reading.op(), outcome });
            assert!(rejections(&run).is_empty());
        }
        run.world.node_object = there.map(labelled);
        run.settle();
        assert_eq!(rejections(&run), rejected, "{there:?}");
        assert_eq!(runs(&run, "web"), rejected.is_empty(), "{there:?}");
        assert!(runs(&run, "plain"));
    }
}

#[test]
fn one_that_is_gone_when_the_object_was_read_is_not_judged() {
    let mut run = in_cluster();
    run.want(asking("web", "a"));
    run.unwant("web");
    run.settle();
    assert!(rejections(&run).is_empty());
    run.want(asking("web", "a"));
    run.settle();
    assert_eq!(readings(&run), 2, "what was read for the one before counts for none");
}

/// A node without a cluster has no object to read, and a pod that fits waits for none.
#[test]
fn nobody_else_waits_for_it() {
    let mut run = Run::new();
    run.want(Pod { source: Source::File, ..asking("web", "a") });
    run.settle();
    assert_eq!((readings(&run), rejections(&run)), (0, vec!["NodeAffinity"]));

    let mut run = in_cluster();
    run.want(pods::pod("web", &["web"]));
    run.settle();
    assert_eq!(readings(&run), 0);
    assert!(runs(&run, "web"), "a pod of a manifest waits for the API server");
}

/// Pods that were admitted stay (`requiredDuringSchedulingIgnoredDuringExecution`); taints end pods of the API by a controller.
#[test]
fn what_changes_on_the_node_concerns_those_that_come_later() {
    let mut run = in_cluster();
    run.handle(Event::NodeInfo(labelled("a")));
    run.want(asking("early", "a"));
    run.settle();
    let taint = Taint { key: "down".into(), value: String::new() };
    let changed = NodeInfo { taints: vec![taint], ..labelled("b") };
    run.world.node_object = Some(changed.clone());
    run.handle(Event::NodeInfo(changed));
    run.want(asking("late", "b"));
    run.want(Pod { source: Source::File, ..asking("static", "b") });
    run.settle();
    assert_eq!(rejections(&run), ["TaintToleration"]);
    assert!(runs(&run, "early") && runs(&run, "static") && !runs(&run, "late"));
}

/// Others advertise resources on the node by its object (`removeMissingExtendedResources` of `pkg/kubelet/lifecycle/predicate.go`).
#[test]
fn resources_that_others_put_on_the_node_are_counted() {
    let gpus = |name: &str| {
        let mut pod = Pod { source: Source::Api, ..pods::pod(name, &[name]) };
        pods::edit(&mut pod, name).resources.requests.extended.insert("example.com/gpu".into(), 2);
        pod
    };
    let mut run = in_cluster();
    let extended = BTreeMap::from([("example.com/gpu".to_owned(), 3)]);
    run.handle(Event::NodeInfo(NodeInfo { extended, ..labelled("a") }));
    for name in ["one", "two"] {
        run.want(gpus(name));
        run.settle();
    }
    assert_eq!(rejections(&run), ["OutOfexample.com/gpu"]);
}

/// A scheduler gives the node the next pod as soon as one is told as ended, whose network may still be there.
#[test]
fn a_pod_is_rejected_for_one_that_runs_and_for_none_that_has_ended() {
    let once = |name: &str| {
        let restart_policy = RestartPolicy::Never;
        let mut pod = Pod { source: Source::Api, restart_policy, ..pods::pod(name, &[name]) };
        pods::edit(&mut pod, name).resources.requests.extended.insert("example.com/gpu".into(), 2);
        pod
    };
    let is_removal = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::RemoveNetwork(_), .. });
    for has_ended in [true, false] {
        let mut run = in_cluster();
        let extended = BTreeMap::from([("example.com/gpu".to_owned(), 3)]);
        run.handle(Event::NodeInfo(NodeInfo { extended, ..labelled("a") }));
        let first = once("first");
        let uid = first.uid.clone();
        run.want(first);
        run.settle();
        if has_ended {
            let running = run.world.running(&uid, "first").unwrap();
            run.world.exit(&running, 0, run.now);
            while !run.open.iter().any(is_removal) {
                assert!(run.settle_one(), "the network is not taken down");
            }
        }
        run.want(once("next"));
        let rejected: &[&str] = if has_ended { &[] } else { &["OutOfexample.com/gpu"] };
        run.settle();
        assert_eq!(rejections(&run), rejected);
        assert_eq!(runs(&run, "next"), has_ended);
    }
}

/// Pods with an event of this reason.
fn told_of<'a>(run: &'a Run, reason: &'a str) -> Vec<&'a str> {
    run.notes(reason).map(|(_, note)| note.name.name.as_str()).collect()
}

/// A node may come to have less than those that run asked for: what they have beyond that is missing too.
#[test]
fn a_critical_pod_stops_nobody_in_vain_where_more_is_taken_than_there_is() {
    const SYSTEM: i32 = 2_000_000_000;
    let asking = |name: &str, priority: i32, gpus: u64| {
        let mut pod = Pod { source: Source::Api, priority, ..pods::pod(name, &[name]) };
        pods::edit(&mut pod, name).resources.requests.extended.insert("example.com/gpu".into(), gpus);
        pod
    };
    let with = |gpus: u64| {
        let extended = BTreeMap::from([("example.com/gpu".to_owned(), gpus)]);
        Event::NodeInfo(NodeInfo { extended, ..labelled("a") })
    };
    for (there, stopped) in [
        (&[("system", SYSTEM, 13), ("web", 0, 5)][..], &[][..]),
        (&[("small", 0, 3), ("middle", 0, 4), ("large", 0, 11)], &["large"]),
    ] {
        let mut run = in_cluster();
        run.handle(with(18));
        for (name, priority, gpus) in there {
            run.want(asking(name, *priority, *gpus));
            run.settle();
            assert!(runs(&run, name), "{name}");
        }
        run.handle(with(10));
        run.want(asking("critical", SYSTEM, 3));
        run.settle();
        run.advance(Duration::from_secs(60), Run::settle);
        assert_eq!(told_of(&run, "Preempting"), stopped);
        let rejected: &[&str] = if stopped.is_empty() { &["critical"] } else { &[] };
        assert_eq!(told_of(&run, "UnexpectedAdmissionError"), rejected);
        assert_eq!(runs(&run, "critical"), rejected.is_empty());
    }
}

/// Whatever their UIDs are. A manifest may have a creation time too, as one has that was made from an object (`HandlePodAdditions` of
/// `pkg/kubelet/kubelet.go`, which pods of manifests pass first).
#[test]
fn of_pods_that_come_together_manifests_are_admitted_first_and_then_the_older_ones() {
    let mut run = Run::new();
    let config = NodeConfig { pods_max: 2, ..pods::node() };
    run.node = Node::new(config, BTreeSet::from([Source::File, Source::Api]));
    // What the node before this one has asked for.
    run.open.clear();
    // In the order of their UIDs. They are compared once the runtime was read, all at once.
    for (name, source, created) in
        [("newer", Source::Api, 200), ("older", Source::Api, 100), ("static", Source::File, 300)]
    {
        let created = Some(Timestamp::from_second(created).unwrap());
        let scheduling = Scheduling { created, ..Scheduling::default() };
        run.want(Pod { source, scheduling, ..pods::pod(name, &[name]) });
    }
    run.handle(Event::Restored(Box::<Restored>::default()));
    run.handle(Event::NetworkReady(Ok(())));
    run.settle();
    assert_eq!(told_of(&run, "OutOfpods"), ["newer"]);
    assert!(told_of(&run, "Preempting").is_empty(), "one has given way to the static pod");
    assert!(runs(&run, "older") && runs(&run, "static") && !runs(&run, "newer"));
}

/// The record of a pod that runs may be lost. What comes beside it is judged by what there is now.
#[test]
fn what_ran_goes_on_after_a_restart_with_less_room_whether_it_has_a_record_or_not() {
    let asking = |name: &str| {
        let mut pod = pods::pod(name, &[name]);
        pods::edit(&mut pod, name).resources.requests.extended.insert("example.com/gpu".into(), 2);
        pod
    };
    let with = |gpus: u64| {
        let extended = BTreeMap::from([("example.com/gpu".to_owned(), gpus)]);
        Event::NodeInfo(NodeInfo { extended, ..labelled("a") })
    };
    for has_record in [true, false] {
        let mut run = Run::new();
        run.handle(with(2));
        run.want(asking("web"));
        run.settle();
        let uid = PodUid::new("uid-web");
        let before = run.world.running(&uid, "web");
        assert!(before.is_some());
        if !has_record {
            run.world.records.remove(&uid);
        }
        run.restart_before_manifests(None);
        run.handle(with(1));
        run.tell_manifests();
        run.settle();
        assert_eq!(run.world.running(&uid, "web"), before, "with a record: {has_record}");
        run.want(asking("late"));
        run.settle();
        assert_eq!(told_of(&run, "UnexpectedAdmissionError"), ["late"]);
    }
}

/// A cloud's controller may know other addresses than the machine; what the machine has changes nothing then.
#[test]
fn pods_see_the_addresses_of_the_object() {
    let mut run = in_cluster();
    run.want(pods::pod("web", &["web"]));
    run.settle();
    let seen = |run: &Run| run.world.statuses.values().next().map(|status| status.host_ips.clone());
    assert_eq!(seen(&run), Some(pods::node().ips));
    let ips = vec!["198.51.100.1".parse().unwrap()];
    run.handle(Event::NodeInfo(NodeInfo { ips: ips.clone(), ..labelled("a") }));
    run.settle();
    assert_eq!(seen(&run), Some(ips.clone()));
    let facts = berth_core::config::NodeFacts {
        ips: pods::node().ips,
        hostname: "node".into(),
        ..Default::default()
    };
    run.handle(Event::NodeFacts(facts));
    run.settle();
    assert_eq!(seen(&run), Some(ips));
}
