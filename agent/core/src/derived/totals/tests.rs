use std::sync::Arc;

use super::*;
use crate::fixtures;

fn asking(kind: ContainerKind, cpu_milli: u64, memory_bytes: u64) -> Container {
    let resources = fixtures::resources((cpu_milli, memory_bytes), (2 * cpu_milli, 2 * memory_bytes));
    Container { kind, resources, ..fixtures::container("web") }
}

fn pod(init: &[(ContainerKind, u64)], main: &[u64]) -> Pod {
    let mut pod = fixtures::pod(main.iter().map(|cpu| asking(ContainerKind::Main, *cpu, 0)).collect());
    pod.init_containers = init.iter().map(|(kind, cpu)| Arc::new(asking(*kind, *cpu, 0))).collect();
    pod
}

#[test]
fn init_containers_run_beside_the_sidecars_before_them() {
    use ContainerKind::{Init, Sidecar};
    for (init, main, expected) in [
        (&[][..], &[][..], None),
        (&[], &[100, 200], Some(300)),
        (&[(Init, 500)], &[100, 200], Some(500)),
        (&[(Init, 50), (Init, 250)], &[100], Some(250)),
        (&[(Sidecar, 50)], &[100], Some(150)),
        (&[(Sidecar, 50), (Init, 90)], &[100], Some(150)),
        (&[(Sidecar, 50), (Init, 110)], &[100], Some(160)),
        (&[(Init, 110), (Sidecar, 50)], &[100], Some(150)),
        (&[(Sidecar, 10), (Init, 500), (Sidecar, 20)], &[100], Some(510)),
        (&[(Sidecar, 50), (Sidecar, 60)], &[], Some(110)),
        (&[(Init, 0)], &[0], None),
    ] {
        assert_eq!(requests(&pod(init, main)).cpu_milli, expected, "{init:?} {main:?}");
        assert_eq!(limits(&pod(init, main)).cpu_milli, expected.map(|cpu| 2 * cpu), "{init:?} {main:?}");
    }
}

#[test]
fn what_the_pod_names_takes_the_place_of_the_sum() {
    let mut pod = pod(&[], &[100, 200]);
    pod.resources = Some(fixtures::resources((1000, 0), (0, 64)));
    assert_eq!(requests(&pod).cpu_milli, Some(1000));
    assert_eq!(of_containers(&pod.init_containers, &pod.containers).requests.cpu_milli, Some(300));
    assert_eq!((limits(&pod).cpu_milli, limits(&pod).memory_bytes), (Some(600), Some(64)));
}

#[test]
fn a_limit_binds_when_everyone_has_it_or_the_pod() {
    let cpu = |limits: &Quantities| limits.cpu_milli;
    assert!(every_container_limits(&pod(&[], &[100, 200]), cpu));
    assert!(!every_container_limits(&pod(&[], &[100, 0]), cpu));
    assert!(!every_container_limits(&pod(&[(ContainerKind::Init, 0)], &[100]), cpu));
    for (init, expected) in [
        (&[(ContainerKind::Sidecar, 50), (ContainerKind::Init, 0)][..], true),
        (&[(ContainerKind::Sidecar, 50), (ContainerKind::Sidecar, 0)], true),
        (&[(ContainerKind::Init, 50), (ContainerKind::Init, 0)], false),
        (&[(ContainerKind::Init, 0), (ContainerKind::Sidecar, 50)], false),
    ] {
        assert_eq!(every_container_limits(&pod(init, &[100]), cpu), expected, "{init:?}");
        assert!(!every_container_limits(&pod(init, &[0]), cpu), "{init:?}");
    }
    let mut partly = pod(&[], &[100, 0]);
    partly.resources = Some(fixtures::resources((0, 0), (500, 0)));
    assert!(every_container_limits(&partly, cpu));
    partly.resources = Some(fixtures::resources((0, 0), (0, 500)));
    assert!(!every_container_limits(&partly, cpu));
}

#[test]
fn huge_pages_and_extended_resources_add_up() {
    let mut one = fixtures::container("one");
    one.resources.requests.hugepages_bytes = [(2 << 20, 10)].into();
    one.resources.requests.extended = [("example.com/gpu".to_owned(), 1)].into();
    let mut two = one.clone();
    two.resources.requests.hugepages_bytes = [(2 << 20, 5), (1 << 30, 7)].into();
    let mut pod = fixtures::pod(vec![one, two]);
    assert_eq!(requests(&pod).hugepages_bytes, [(2 << 20, 15), (1 << 30, 7)].into());
    assert_eq!(requests(&pod).extended, [("example.com/gpu".to_owned(), 2)].into());
    let mut own = fixtures::resources((0, 0), (0, 0));
    own.requests.hugepages_bytes = [(2 << 20, 99)].into();
    pod.resources = Some(own);
    assert_eq!(requests(&pod).hugepages_bytes, [(2 << 20, 99), (1 << 30, 7)].into());
}

#[test]
fn amounts_saturate() {
    assert_eq!(requests(&pod(&[], &[u64::MAX / 2, u64::MAX / 2, 9])).cpu_milli, Some(u64::MAX));
}
