//! What a handler's configuration changes of a spec.

use oci_spec::runtime::Spec;

use super::Bench;
use crate::oci::{
    BlockVolume, ContainerPlan, HandlerTerms, HostDevice, HostDeviceKind, NodeParts, PrivilegedDevices,
    complete, with_terms,
};

/// With a device of the node, and volumes that are devices.
fn plan(bench: &Bench, volumes: &[BlockVolume]) -> (ContainerPlan, Spec) {
    let device = |path: &str, kind, major, minor| HostDevice {
        path: path.into(),
        kind,
        major,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
    };
    let fuse = device("/dev/fuse", HostDeviceKind::Char, 10, 229);
    let disk = device("/dev/sdb", HostDeviceKind::Block, 8, 16);
    let plan = ContainerPlan { devices: volumes.to_vec(), ..bench.plan().unwrap() };
    let parts = NodeParts { devices: &[fuse], volumes: &[disk], ..NodeParts::default() };
    let spec = complete(&plan, parts).unwrap();
    (plan, spec)
}

#[test]
fn annotations_that_the_handler_names_are_passed_and_none_of_ours_is_replaced() {
    let bench = Bench::with(|bench| {
        for (name, value) in [
            ("io.katacontainers.config.hypervisor.default_vcpus", "4"),
            ("io.kubernetes.cri.container-type", "sandbox"),
            ("org.systemd.property.ExecStartPre", "x"),
        ] {
            bench.pod.annotations.insert(name.into(), value.into());
        }
    });
    let (plan, plain) = plan(&bench, &[]);
    let of = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.into()).collect();
        let terms =
            HandlerTerms { pod_annotations: &patterns, devices: PrivilegedDevices::All, is_vm: false };
        with_terms(plain.clone(), &plan, &bench.pod.annotations, false, terms)
    };
    assert_eq!(of(&[]), plain, "without a word nothing of the pod is passed");
    let passed = of(&["io.katacontainers.*", "io.kubernetes.*"]);
    let [before, after] = [&plain, &passed].map(|spec| spec.annotations().clone().unwrap());
    let added: Vec<_> = after.iter().filter(|(name, value)| before.get(*name) != Some(*value)).collect();
    let vcpus = ("io.katacontainers.config.hypervisor.default_vcpus".to_owned(), "4".to_owned());
    assert_eq!(added, [(&vcpus.0, &vcpus.1)]);
}

#[test]
fn privileged_containers_get_the_devices_that_the_handler_leaves_them() {
    // Privileged, what the handler says, devices that it has, whether it may use all.
    for (is_privileged, devices, has_devices, may_use) in [
        (true, PrivilegedDevices::All, true, true),
        (true, PrivilegedDevices::Allowed, false, true),
        (true, PrivilegedDevices::None, false, false),
        (false, PrivilegedDevices::None, false, false),
        (false, PrivilegedDevices::All, false, false),
    ] {
        let bench = Bench::with(|bench| bench.container.security.privileged = is_privileged);
        let terms = HandlerTerms { pod_annotations: &[], devices, is_vm: false };
        let volume =
            BlockVolume { host: "/dev/sdb".to_owned(), path: "/dev/data".to_owned(), read_only: false };
        for volumes in [&[][..], &[volume]] {
            let (plan, spec) = plan(&bench, volumes);
            let spec = with_terms(spec, &plan, &bench.pod.annotations, is_privileged, terms);
            let linux = spec.linux().clone().unwrap();
            let found: Vec<_> = linux.devices().iter().flatten().map(|device| device.path()).collect();
            let has = |path: &str| found.iter().any(|one| **one == *path);
            assert_eq!(has("/dev/fuse"), has_devices, "{is_privileged} {devices:?}");
            assert_eq!(has("/dev/data"), !volumes.is_empty(), "{is_privileged} {devices:?}");
            let rules = linux.resources().clone().unwrap().devices().clone().unwrap();
            assert_eq!(rules[0].allow(), may_use, "{is_privileged} {devices:?}");
            assert!(rules[1..].iter().all(|rule| rule.allow()), "{is_privileged} {devices:?}");
            assert_eq!(rules.len(), 1 + volumes.len());
        }
    }
}
