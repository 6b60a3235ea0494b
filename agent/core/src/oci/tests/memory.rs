//! Memory of a container: who is killed with whom, what is protected, slowed down and swapped.

use oci_spec::runtime::LinuxResources;

use super::Bench;
use crate::{
    config::{CgroupVersion, MemoryQos, MemoryReservation, SwapBehavior},
    fixtures,
    oci::resized,
    spec::{Container, Pod, QosClass, Resizable, Resources, Source},
};

const GIB: u64 = 1 << 30;

fn resources(bench: &Bench) -> LinuxResources {
    bench.spec().linux().clone().unwrap().resources().clone().unwrap()
}

/// What the container's files get that have no other word in the spec, shown in the order of their names.
fn files(bench: &Bench) -> Vec<String> {
    let unified = resources(bench).unified().clone().unwrap_or_default();
    let mut files: Vec<_> = unified.iter().map(|(name, value)| format!("{name}={value}")).collect();
    files.sort();
    files
}

#[test]
fn an_oom_kill_takes_the_whole_container_on_version_2() {
    for (version, oom_group, expected) in [
        (CgroupVersion::V1, true, vec![]),
        (CgroupVersion::V2, true, vec!["memory.oom.group=1"]),
        (CgroupVersion::V2, false, vec![]),
    ] {
        let bench = Bench::with(|bench| {
            bench.node.cgroups.version = version;
            bench.node.cgroups.oom_group = oom_group;
        });
        assert_eq!(files(&bench), expected, "{version:?} {oom_group}");
    }
}

#[test]
fn memory_is_protected_and_slowed_down_by_class() {
    use MemoryReservation::{None, Tiered};
    use QosClass::{BestEffort, Burstable, Guaranteed};
    const HIGH: &str = "memory.high=199229440";
    for (policy, qos, (request, limit), expected) in [
        (Tiered, Guaranteed, (200, 200), vec!["memory.low=0", "memory.min=209715200"]),
        (Tiered, Burstable, (100, 200), vec![HIGH, "memory.low=104857600", "memory.min=0"]),
        (Tiered, Burstable, (0, 0), vec!["memory.low=0", "memory.min=0"]),
        (Tiered, BestEffort, (0, 0), vec!["memory.low=0", "memory.min=0"]),
        (None, Guaranteed, (200, 200), vec!["memory.low=0", "memory.min=0"]),
        (None, Burstable, (100, 200), vec![HIGH, "memory.low=0", "memory.min=0"]),
    ] {
        let mut bench = Bench::with(|bench| {
            bench.node.cgroups.oom_group = false;
            bench.node.cgroups.memory_qos =
                Some(MemoryQos { throttling_factor: 0.9, reservation: policy, page_bytes: 4096 });
            bench.pod.qos = qos;
            bench.container.resources = fixtures::resources((0, request << 20), (0, limit << 20));
        });
        assert_eq!(files(&bench), expected, "{policy:?} {qos:?} {request} {limit}");
        bench.node.cgroups.version = CgroupVersion::V1;
        assert_eq!(files(&bench), Vec::<String>::new());
    }
}

#[test]
fn swap_is_bounded_by_the_file_of_the_version() {
    use CgroupVersion::{V1, V2};
    // Files of version 2; memory and swap together, of version 1.
    for (version, swap, limit, expected, together) in [
        (V2, SwapBehavior::NoSwap, GIB, vec!["memory.swap.max=0"], None),
        (V2, SwapBehavior::NoSwap, 0, vec!["memory.swap.max=0"], None),
        (V2, SwapBehavior::LimitedSwap { node_bytes: 8 * GIB }, GIB, vec!["memory.swap.max=536870912"], None),
        (V2, SwapBehavior::Uncounted, GIB, vec![], None),
        (V1, SwapBehavior::NoSwap, GIB, vec![], Some(1 << 30)),
        (V1, SwapBehavior::NoSwap, 0, vec![], None),
        (V1, SwapBehavior::Uncounted, GIB, vec![], None),
    ] {
        let bench = Bench::with(|bench| {
            bench.node.cgroups.version = version;
            bench.node.cgroups.oom_group = false;
            bench.node.cgroups.swap = swap;
            bench.pod.qos = QosClass::Burstable;
            bench.pod.source = Source::Api;
            bench.container.resources = fixtures::resources((0, GIB / 2), (0, limit));
        });
        assert_eq!(files(&bench), expected, "{version:?} {swap:?} {limit}");
        let memory = resources(&bench).memory().unwrap();
        assert_eq!(memory.swap(), together, "{version:?} {swap:?} {limit}");
    }
}

/// Where it is slowed down is told by its limit: where there is none any more it is not slowed down at all, whatever it was.
#[test]
fn a_resize_changes_what_is_protected_and_from_where_it_is_slowed_down() {
    let qos = MemoryQos { throttling_factor: 0.9, reservation: MemoryReservation::Tiered, page_bytes: 4096 };
    for (memory_qos, (request, limit), expected) in [
        (Some(qos), (100, 200), &["memory.high=199229440", "memory.low=104857600", "memory.min=0"][..]),
        (Some(qos), (200, 200), &["memory.high=max", "memory.low=209715200", "memory.min=0"]),
        (Some(qos), (0, 0), &["memory.high=max", "memory.low=0", "memory.min=0"]),
        (None, (100, 200), &[]),
    ] {
        let mut node = fixtures::node();
        node.cgroups.memory_qos = memory_qos;
        node.unreserved = Default::default();
        let resources = fixtures::resources((0, request << 20), (0, limit << 20));
        let container = Container { resources, ..fixtures::container("web") };
        let pod = Pod { qos: QosClass::Burstable, ..fixtures::pod(vec![container.clone()]) };
        let given = |resource| {
            let given = resized(&node, &pod, &container, resource, true).unified().clone();
            let mut files: Vec<_> =
                given.unwrap_or_default().iter().map(|(name, value)| format!("{name}={value}")).collect();
            files.sort();
            files
        };
        assert_eq!(given(Resizable::Memory), expected, "{request} {limit}");
        assert_eq!(given(Resizable::Cpu), [""; 0], "{request} {limit}");
    }
}

/// Of one that runs, one resource changes at a time, and what is no more is taken away; swap and kills stay as they are.
#[test]
fn a_resize_changes_one_resource() {
    use CgroupVersion::{V1, V2};
    let bounded = fixtures::resources((100, 1 << 20), (200, 2 << 20));
    for (version, resources, resource, cpu, memory, files) in [
        (V2, bounded.clone(), Resizable::Cpu, Some((Some(102), Some(20_000))), None, Vec::<String>::new()),
        (V2, bounded.clone(), Resizable::Memory, None, Some((2 << 20, None)), vec![]),
        (V1, bounded, Resizable::Memory, None, Some((2 << 20, Some(2 << 20))), vec![]),
        (V2, Resources::default(), Resizable::Cpu, Some((Some(2), Some(-1))), None, vec![]),
        (V2, Resources::default(), Resizable::Memory, None, Some((-1, None)), vec![]),
    ] {
        let mut node = fixtures::node();
        node.cgroups.version = version;
        node.cgroups.swap = SwapBehavior::NoSwap;
        let container = Container { resources, ..fixtures::container("web") };
        let pod = fixtures::pod(vec![container.clone()]);
        let given = resized(&node, &pod, &container, resource, true);
        let has = given.cpu().as_ref().map(|cpu| (cpu.shares(), cpu.quota()));
        assert_eq!(has, cpu, "{version:?} {resource:?}");
        let has = given.memory().as_ref().and_then(|memory| Some((memory.limit()?, memory.swap())));
        assert_eq!(has, memory, "{version:?} {resource:?}");
        let has: Vec<String> = given.unified().clone().unwrap_or_default().into_keys().collect();
        assert_eq!(has, files, "{version:?} {resource:?}");
        assert_eq!(given.devices(), &None);
    }
    let (node, container) = (fixtures::node(), fixtures::container("web"));
    let pod = fixtures::pod(vec![container.clone()]);
    let never_limited = |resource| resized(&node, &pod, &container, resource, false);
    let cpu = never_limited(Resizable::Cpu).cpu().as_ref().map(|cpu| (cpu.shares(), cpu.quota()));
    assert_eq!(cpu, Some((Some(2), None)));
    let memory =
        never_limited(Resizable::Memory).memory().as_ref().map(|memory| (memory.limit(), memory.swap()));
    assert_eq!(memory, Some((None, None)), "runc would give it swap without bound");
}
