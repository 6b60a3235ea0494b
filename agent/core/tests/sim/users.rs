//! Pods with user namespaces of their own, of which there are more than ids.

use std::time::Duration;

use berth_core::{
    config::NodeConfig,
    effect::{Act, Effect},
    id::PodUid,
    spec::{Pod, UserMode},
    users::PodIds,
};

use crate::{pods, run::Run};

fn pod(name: &str) -> Pod {
    Pod { users: UserMode::Pod, ..pods::pod(name, &["main"]) }
}

fn is_running(run: &Run, name: &str) -> bool {
    run.world.running(&PodUid::new(format!("uid-{name}")), "main").is_some()
}

/// Without them it would run with the ids of the node.
#[test]
fn a_pod_for_which_there_are_no_ids_waits_until_another_has_gone() {
    let pod_ids = PodIds::of(1 << 16, 1 << 16, 1 << 16, 1).unwrap();
    let mut run = Run::with(NodeConfig { pod_ids, ..pods::node() });
    run.settle();
    run.want(pod("one"));
    run.settle();
    run.want(pod("two"));
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((is_running(&run, "one"), is_running(&run, "two")), (true, false));
    let two = PodUid::new("uid-two");
    let is_sandbox = |effect: &&Effect| matches!(effect, Effect::Pod { pod, act: Act::EnsureSandbox(_), .. } if *pod == two);
    assert_eq!(run.told.iter().find(is_sandbox), None);
    let told = run.notes("FailedCreatePodSandBox").find(|(pod, _)| **pod == two);
    let message = &told.expect("it is told").1.event.message;
    assert!(message.contains("could not find an empty slot to allocate a user namespace"), "{message}");
    run.unwant("one");
    run.settle();
    run.advance(Duration::from_secs(600), Run::settle);
    assert!(is_running(&run, "two"), "it has those of the pod that has gone");
    assert_eq!(run.world.violations, Vec::<String>::new());
}
