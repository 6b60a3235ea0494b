//! What a handler's configuration changes of a spec.

use oci_spec::runtime::Spec;

use super::Bench;
use crate::oci::{
    HandlerTerms, HostDevice, HostDeviceKind, NodeParts, PrivilegedDevices, complete, with_terms,
};

fn spec(bench: &Bench) -> Spec {
    let device = HostDevice {
        path: "/dev/fuse".into(),
        kind: HostDeviceKind::Char,
        major: 10,
        minor: 229,
        mode: 0o666,
        uid: 0,
        gid: 0,
    };
    complete(&bench.plan().unwrap(), NodeParts { devices: &[device], ..NodeParts::default() }).unwrap()
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
    let plain = spec(&bench);
    let of = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.into()).collect();
        let terms =
            HandlerTerms { pod_annotations: &patterns, devices: PrivilegedDevices::All, is_vm: false };
        with_terms(plain.clone(), None, &bench.pod.annotations, false, terms)
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
        let spec = with_terms(spec(&bench), None, &bench.pod.annotations, is_privileged, terms);
        let linux = spec.linux().clone().unwrap();
        let found = linux.devices().as_ref().is_some_and(|devices| !devices.is_empty());
        let rules = linux.resources().clone().unwrap().devices().clone().unwrap();
        assert_eq!((found, rules[0].allow()), (has_devices, may_use), "{is_privileged} {devices:?}");
    }
}
