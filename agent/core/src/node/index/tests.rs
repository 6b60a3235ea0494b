//! What an event costs: which pods the node looks at for it.

use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::{
    config::NodeConfig,
    effect::Effect,
    event::{Event, Restored},
    failure::{Failure, FailureKind},
    fixtures,
    id::{Attempt, OpId},
    node::Node,
    observation::{Observation, SandboxReport},
    spec::Source,
    time::Now,
};

/// In the middle, so that a walk from either side meets another.
const ONE: &str = "uid-1";

fn at(mono: Mono) -> Now {
    Now { mono, wall: Timestamp::UNIX_EPOCH }
}

fn begin() -> Now {
    at(Mono(Duration::from_secs(1000)))
}

fn pods(count: usize) -> Event {
    let pod = |number: usize| {
        let mut pod = fixtures::pod(vec![fixtures::container("main")]);
        pod.uid = PodUid::new(format!("uid-{number}"));
        pod.name.name = format!("web-{number}");
        Arc::new(pod)
    };
    Event::Desired { source: Source::File, pods: (0..count).map(pod).collect(), is_whole: true }
}

/// A node that looks at no pod by itself during the test.
fn node_with(count: usize) -> Node {
    let config = NodeConfig { sync_frequency: Duration::from_secs(86_400), ..fixtures::node() };
    let mut node = Node::new(config, BTreeSet::from([Source::File]));
    let nothing = Restored {
        pods: Vec::new(),
        ended: Vec::new(),
        observation: Observation::default(),
        orphans: Vec::new(),
    };
    node.handle(begin(), Event::Restored(Box::new(nothing)));
    node.handle(begin(), Event::NetworkReady(Ok(())));
    node.handle(begin(), pods(count));
    node
}

fn asked(node: &Node) -> BTreeMap<PodUid, usize> {
    node.pods.iter().map(|(uid, pod)| (uid.clone(), pod.asked())).collect()
}

/// Has something happen to one pod of several.
fn costs_one(node: &mut Node, what: &str, happen: impl FnOnce(&mut Node)) {
    let before = asked(node);
    happen(node);
    let after = asked(node);
    let looked_at: Vec<&str> =
        before.iter().filter(|(uid, count)| after[*uid] != **count).map(|(uid, _)| uid.as_str()).collect();
    assert_eq!(looked_at, [ONE], "{what}");
}

/// Any effect of the pod that is asked for and has an outcome.
fn open_op(node: &mut Node) -> OpId {
    let effects = std::iter::from_fn(|| node.poll_effect());
    let of_one = effects.filter_map(|effect| match effect {
        Effect::Pod { op, pod, .. } if pod.as_str() == ONE => Some(op),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    });
    of_one.last().unwrap()
}

#[test]
fn what_happens_to_one_pod_costs_a_look_at_that_pod_alone() {
    let mut node = node_with(3);
    let op = open_op(&mut node);
    let failure = Failure { kind: FailureKind::Transient, message: "no".to_owned() };
    costs_one(&mut node, "an outcome", |node| {
        node.handle(begin(), Event::Done { op, outcome: Err(failure) });
    });
    let next = node.poll_timeout().unwrap();
    costs_one(&mut node, "time", |node| node.handle_timeout(at(next)));
    let id = SandboxId::of(&PodUid::new(ONE), Attempt::default());
    let report = SandboxReport::Lost { at: Timestamp::UNIX_EPOCH };
    costs_one(&mut node, "a report", |node| {
        node.handle(at(next), Event::Sandbox { id, report });
        assert!(node.poll_timeout().is_some());
    });
}

/// All pods are compared when a source has said what it wants, each of them once: not once more for each new one.
#[test]
fn a_new_pod_is_not_compared_with_all_others() {
    let costs = [4, 8].map(|count| {
        let mut node = node_with(3);
        let before = node.pods[&PodUid::new(ONE)].asked();
        node.handle(begin(), pods(count));
        assert_eq!(node.pods.len(), count);
        node.pods[&PodUid::new(ONE)].asked() - before
    });
    assert_eq!(costs[0], costs[1]);
}
