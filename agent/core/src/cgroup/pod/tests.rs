use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    config::{MemoryQos, MemoryReservation},
    fixtures,
    spec::Resources,
};

const MIB: u64 = 1 << 20;

fn pod(qos: QosClass, containers: &[Resources]) -> Pod {
    let container = |resources: &Resources| crate::spec::Container {
        resources: resources.clone(),
        ..fixtures::container("web")
    };
    Pod { qos, ..fixtures::pod(containers.iter().map(container).collect()) }
}

/// Shares, quota, period, memory.
fn values(pod: &Pod, node: &NodeConfig) -> (Option<u64>, Option<u64>, Option<u64>, Option<u64>) {
    let values = pod_values(pod, node);
    (values.cpu_shares, values.cpu_quota_us, values.cpu_period_us, values.memory_bytes_max)
}

#[test]
fn values_of_a_pod() {
    use QosClass::{BestEffort, Burstable, Guaranteed};
    let node = fixtures::node();
    let both = fixtures::resources((500, 64 * MIB), (500, 64 * MIB));
    let none = Resources::default();
    for (qos, containers, expected) in [
        (BestEffort, vec![none.clone()], (Some(2), None, None, None)),
        (
            Guaranteed,
            vec![both.clone(), both.clone()],
            (Some(1024), Some(100_000), Some(100_000), Some(128 * MIB)),
        ),
        (Burstable, vec![both, none], (Some(512), None, None, None)),
        (
            Burstable,
            vec![fixtures::resources((100, 0), (200, 64 * MIB))],
            (Some(102), Some(20_000), Some(100_000), Some(64 * MIB)),
        ),
        (
            Burstable,
            vec![fixtures::resources((100, 0), (200, 0)), fixtures::resources((0, 0), (300, 64 * MIB))],
            (Some(102), Some(50_000), Some(100_000), None),
        ),
        (Burstable, vec![fixtures::resources((0, MIB), (0, 0))], (Some(2), None, None, None)),
    ] {
        assert_eq!(values(&pod(qos, &containers), &node), expected, "{qos:?} {containers:?}");
    }
}

#[test]
fn an_init_container_without_limits_leaves_the_pod_unbounded() {
    let both = fixtures::resources((500, 64 * MIB), (1000, 128 * MIB));
    let mut pod = pod(QosClass::Burstable, &[both]);
    pod.init_containers = vec![Arc::new(fixtures::container("setup"))];
    assert_eq!(values(&pod, &fixtures::node()), (Some(512), None, None, None));
}

#[test]
fn bounds_of_the_pod_itself() {
    let mut pod = pod(QosClass::Burstable, &[Resources::default()]);
    pod.resources = Some(fixtures::resources((1000, 64 * MIB), (2000, 128 * MIB)));
    assert_eq!(values(&pod, &fixtures::node()), (Some(1024), Some(200_000), Some(100_000), Some(128 * MIB)));
}

#[test]
fn settings_of_the_node() {
    let mut node = fixtures::node();
    node.cgroups.pod_pids_max = Some(512);
    node.cgroups.cfs_period = Duration::from_millis(5);
    node.cgroups.hugepage_sizes = [2 * MIB, 1024 * MIB].into();
    let mut resources = fixtures::resources((500, MIB), (500, MIB));
    resources.requests.hugepages_bytes = [(2 * MIB, 8 * MIB)].into();
    let pod = pod(QosClass::Guaranteed, &[resources]);
    let got = pod_values(&pod, &node);
    assert_eq!((got.cpu_quota_us, got.cpu_period_us, got.pids_max), (Some(2500), Some(5000), Some(512)));
    assert_eq!(got.hugepages_bytes_max, [(2 * MIB, 8 * MIB), (1024 * MIB, 0)].into());
    node.cgroups.cfs_quota = false;
    let got = pod_values(&pod, &node);
    assert_eq!((got.cpu_quota_us, got.cpu_period_us), (None, Some(5000)));
}

#[test]
fn values_of_the_levels_above() {
    let mut node = fixtures::node();
    node.cgroups.hugepage_sizes = [2 * MIB].into();
    node.cgroups.kubepods.resources.hugepages_bytes = [(2 * MIB, 16 * MIB), (1024 * MIB, 0)].into();
    let burstable = |milli| pod(QosClass::Burstable, &[fixtures::resources((milli, 0), (0, 0))]);
    let others = [
        pod(QosClass::Guaranteed, &[fixtures::resources((900, 1), (900, 1))]),
        pod(QosClass::BestEffort, &[]),
    ];
    let pods = [burstable(250), burstable(750)];
    let got = qos_values(&node, &totals(&node, pods.iter().chain(&others)));
    assert_eq!(got.kubepods.cpu_shares, Some(3584));
    assert_eq!(got.kubepods.cpus.as_deref(), Some("0-3"));
    // What may be evicted at the end of: more than is allocatable.
    assert_eq!(got.kubepods.memory_bytes_max, Some(15 << 29));
    assert_eq!(got.kubepods.hugepages_bytes_max, [(2 * MIB, 16 * MIB)].into());
    assert_eq!((got.kubepods.cpu_period_us, got.kubepods.pids_max), (None, Some(30_000)));
    assert_eq!(got.burstable, CgroupValues { cpu_shares: Some(1024), ..CgroupValues::default() });
    assert_eq!(got.best_effort, CgroupValues { cpu_shares: Some(2), ..CgroupValues::default() });
    assert_eq!(qos_values(&node, &QosTotals::default()).burstable.cpu_shares, Some(2));
}

#[test]
fn protection_of_a_pod_and_of_the_levels_above() {
    let mut node = fixtures::node();
    let memory = |bytes| fixtures::resources((100, bytes), (100, 0));
    let pods = [
        pod(QosClass::Guaranteed, &[memory(10), memory(20)]),
        pod(QosClass::Burstable, &[memory(300)]),
        pod(QosClass::Burstable, &[memory(4000), memory(0)]),
        pod(QosClass::BestEffort, &[Resources::default()]),
    ];
    let protected = |values: &CgroupValues| (values.memory_bytes_min, values.memory_bytes_low);
    let all = |node: &NodeConfig| {
        let above = qos_values(node, &totals(node, &pods));
        let of_pods = pods.iter().map(|pod| protected(&pod_values(pod, node))).collect::<Vec<_>>();
        ([above.kubepods, above.burstable, above.best_effort].map(|level| protected(&level)), of_pods)
    };
    assert_eq!(all(&node), ([(None, None); 3], vec![(None, None); 4]));
    let qos = |reservation| MemoryQos { throttling_factor: 0.9, reservation, page_bytes: 4096 };
    let none = (Some(0), Some(0));
    node.cgroups.memory_qos = Some(qos(MemoryReservation::None));
    assert_eq!(all(&node), ([none, (None, Some(0)), (None, None)], vec![none; 4]));
    node.cgroups.memory_qos = Some(qos(MemoryReservation::Tiered));
    let above = [(Some(4330), Some(4300)), (None, Some(4300)), (None, None)];
    let of_pods = vec![(Some(30), Some(0)), (Some(0), Some(300)), (Some(0), Some(4000)), none];
    assert_eq!(all(&node), (above, of_pods));
}

fn totals<'a>(node: &NodeConfig, pods: impl IntoIterator<Item = &'a Pod>) -> QosTotals {
    let mut totals = QosTotals::default();
    for pod in pods {
        totals.add(Some(QosShare::of(pod, node)));
    }
    totals
}

#[test]
fn a_pod_that_was_added_and_taken_away_leaves_nothing() {
    let node = fixtures::node();
    let burstable = |milli| pod(QosClass::Burstable, &[fixtures::resources((milli, 0), (0, 0))]);
    let pods = [burstable(250), burstable(u64::MAX), burstable(u64::MAX)];
    let mut sum = totals(&node, &pods);
    assert_eq!(qos_values(&node, &sum).burstable.cpu_shares, Some(cpu::shares(u64::MAX)));
    for pod in &pods[1..] {
        sum.subtract(Some(QosShare::of(pod, &node)));
    }
    assert_eq!(sum, totals(&node, &pods[..1]));
}

#[test]
fn what_is_enough_for_two_bounds_only_what_both_do() {
    let values = |amount: Option<u64>| CgroupValues {
        cpu_shares: amount,
        cpu_quota_us: amount,
        memory_bytes_max: amount,
        hugepages_bytes_max: BTreeMap::from([(2 << 20, amount.unwrap_or(0))]),
        ..CgroupValues::default()
    };
    for (one, other, bound) in [
        (Some(1), Some(2), Some(2)),
        (Some(2), Some(1), Some(2)),
        (Some(1), None, None),
        (None, Some(1), None),
        (None, None, None),
    ] {
        let both = values(one).enough_for(values(other));
        assert_eq!((both.cpu_quota_us, both.memory_bytes_max), (bound, bound), "{one:?} {other:?}");
        assert_eq!(both.cpu_shares, one.max(other), "{one:?} {other:?}");
        assert_eq!(both.hugepages_bytes_max[&(2 << 20)], one.max(other).unwrap_or(0));
    }
}
