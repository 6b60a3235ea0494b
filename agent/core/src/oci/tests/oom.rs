//! `oom_score_adj` by the kubelet's formula, on a node of 8 GiB.

use std::sync::Arc;

use crate::{
    fixtures,
    oci::score_adj,
    spec::{Container, ContainerKind, Pod, QosClass, Resources, Source},
};

const GIB: u64 = 1 << 30;

fn asking(name: &str, kind: ContainerKind, memory: u64) -> Container {
    Container { kind, resources: fixtures::resources((0, memory), (0, 0)), ..fixtures::container(name) }
}

fn main(memory: u64) -> Container {
    asking("main", ContainerKind::Main, memory)
}

#[test]
fn by_class() {
    let node = fixtures::node();
    let container = main(0);
    const NODE: &str = "system-node-critical";
    const CLUSTER: &str = "system-cluster-critical";
    use Source::{Api, File};
    for (qos, source, class, priority, expected) in [
        (QosClass::Guaranteed, Api, "", 0, -997),
        (QosClass::BestEffort, Api, "", 0, 1000),
        (QosClass::Burstable, Api, "", 0, 999),
        (QosClass::BestEffort, Api, NODE, 2_000_001_000, -997),
        (QosClass::Burstable, File, NODE, 2_000_001_000, -997),
        (QosClass::BestEffort, File, NODE, 0, -997),
        (QosClass::BestEffort, Api, NODE, 0, 1000),
        (QosClass::BestEffort, Api, CLUSTER, 2_000_000_000, 1000),
        (QosClass::BestEffort, File, "", 2_000_001_000, 1000),
    ] {
        let priority_class = class.into();
        let pod = Pod { qos, source, priority, priority_class, ..fixtures::pod(vec![container.clone()]) };
        assert_eq!(score_adj(&pod, &container, &node), expected, "{qos:?} {source:?} {class} {priority}");
    }
}

#[test]
fn burstable_by_its_share_of_the_memory() {
    let node = fixtures::node();
    for (memory, expected) in [
        (0, 999),
        (1, 999),
        (8 * GIB / 1000 + 1, 999),
        (8 * GIB / 500 + 1, 998),
        (8 * GIB / 10, 901),
        (4 * GIB, 500),
        (8 * GIB, 3),
        (80 * GIB, 3),
        (u64::MAX, 3),
    ] {
        let container = main(memory);
        let pod = Pod { qos: QosClass::Burstable, ..fixtures::pod(vec![container.clone()]) };
        assert_eq!(score_adj(&pod, &container, &node), expected, "{memory}");
    }
}

#[test]
fn a_sidecar_is_killed_no_sooner_than_the_least_main_container() {
    let node = fixtures::node();
    for (own, mains, expected) in
        [(0, vec![4 * GIB, 2 * GIB], 750), (6 * GIB, vec![4 * GIB, 2 * GIB], 250), (0, vec![0], 999)]
    {
        let sidecar = asking("sidecar", ContainerKind::Sidecar, own);
        let pod = Pod {
            qos: QosClass::Burstable,
            init_containers: vec![Arc::new(sidecar.clone())],
            ..fixtures::pod(mains.iter().map(|memory| main(*memory)).collect())
        };
        assert_eq!(score_adj(&pod, &sidecar, &node), expected, "{own} {mains:?}");
    }
}

#[test]
fn what_the_pod_asks_for_beyond_its_containers_is_shared() {
    let node = fixtures::node();
    let container = main(GIB);
    let pod = Pod {
        qos: QosClass::Burstable,
        resources: Some(Resources { ..fixtures::resources((0, 4 * GIB), (0, 0)) }),
        ..fixtures::pod(vec![container.clone(), main(GIB)])
    };
    assert_eq!(score_adj(&pod, &container, &node), 750);
}

#[test]
fn never_below_what_the_agent_may_give() {
    let mut node = fixtures::node();
    node.oom_score_floor = -500;
    let container = main(0);
    let pod = Pod { qos: QosClass::Guaranteed, ..fixtures::pod(vec![container.clone()]) };
    assert_eq!(score_adj(&pod, &container, &node), -500);
    let pod = Pod { qos: QosClass::BestEffort, ..pod };
    assert_eq!(score_adj(&pod, &container, &node), 1000);
}

#[test]
fn a_node_of_unknown_size_does_no_harm() {
    let mut node = fixtures::node();
    node.capacity.memory_bytes = None;
    let container = main(GIB);
    let pod = Pod { qos: QosClass::Burstable, ..fixtures::pod(vec![container.clone()]) };
    assert_eq!(score_adj(&pod, &container, &node), 3);
}
