//! A resize waits for room that another pod gives.

use berth_core::{id::PodUid, spec::Pod, status::ConditionKind};

use super::{MIB, is_resize};
use crate::{pods, run::Run};

/// A pod that requests so much, in thousandths of a core, of the two cores of the node.
fn pod(name: &str, milli: u64) -> Pod {
    let mut pod = pods::pod(name, &["main"]);
    pods::edit(&mut pod, "main").resources = pods::resources((milli, MIB), (2000, MIB));
    pod
}

fn waits(run: &Run, name: &str) -> bool {
    let status = &run.world.statuses[&PodUid::new(format!("uid-{name}"))];
    status.conditions.iter().any(|one| one.kind == ConditionKind::PodResizePending)
}

fn shares(run: &Run, name: &str) -> Option<u64> {
    let id = run.world.running(&PodUid::new(format!("uid-{name}")), "main")?;
    run.world.containers[&id].given.shares
}

/// What one gives up is there for others when its cgroup has less, and not before; and nothing else is needed then.
#[test]
fn what_a_pod_has_until_it_has_less_is_not_given_to_another() {
    let mut run = Run::new();
    run.settle();
    run.want(pod("one", 1500));
    run.want(pod("other", 400));
    run.settle();
    run.want(pod("other", 1500));
    run.settle();
    assert!(waits(&run, "other"));
    run.want(pod("one", 100));
    let resize = run.take_asked(is_resize);
    run.settle();
    assert!(waits(&run, "other"), "the cgroup is not changed yet");
    run.open.push_back(resize);
    run.settle();
    assert_eq!((waits(&run, "one"), waits(&run, "other")), (false, false));
    assert_eq!((shares(&run, "one"), shares(&run, "other")), (Some(102), Some(1536)));
    assert_eq!(run.world.violations, Vec::<String>::new());
}
