//! What only the node can say.

use oci_spec::runtime::{LinuxDeviceType, LinuxSeccompAction};

use super::Bench;
use crate::{
    id::VolumeName,
    oci::{BlockVolume, HostDevice, HostDeviceKind, NodeParts, complete},
    spec::{ClaimVolume, Seccomp, Volume, VolumeDevice, VolumeSource},
};

fn with_profile() -> Bench {
    Bench::with(|bench| bench.container.security.seccomp = Some(Seccomp::Localhost("a.json".into())))
}

#[test]
fn a_profile_of_the_node_takes_the_place_of_the_stand_in() {
    let text = r#"{
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{ "names": ["read", "write"], "action": "SCMP_ACT_ALLOW" }]
    }"#;
    let spec =
        complete(&with_profile().plan().unwrap(), NodeParts { seccomp: Some(text), ..NodeParts::default() })
            .unwrap();
    let filter = spec.linux().clone().unwrap().seccomp().clone().unwrap();
    assert_eq!(filter.default_action(), LinuxSeccompAction::ScmpActErrno);
    assert_eq!(filter.syscalls().as_ref().unwrap()[0].names(), &["read", "write"]);
}

#[test]
fn cve_2023_2431_a_profile_that_cannot_be_read_starts_nothing() {
    let plan = with_profile().plan().unwrap();
    let linux = plan.spec.linux().clone().unwrap();
    let stand_in = linux.seccomp().clone().unwrap();
    assert_eq!(stand_in.default_action(), LinuxSeccompAction::ScmpActKillProcess);
    assert_eq!(stand_in.syscalls(), &None);
    for text in [
        None,
        Some(""),
        Some(" \n"),
        Some("{}"),
        Some("null"),
        Some("[]"),
        Some("{"),
        Some(r#"{"defaultAction": "SCMP_ACT_NO_SUCH"}"#),
        Some(r#"{"defaultAction": ""}"#),
        Some(r#"{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"]}]}"#),
        Some(r#"{"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_NO_SUCH"]}"#),
    ] {
        let error = complete(&plan, NodeParts { seccomp: text, ..NodeParts::default() }).unwrap_err();
        assert!(error.to_string().contains("/var/lib/kubelet/seccomp/a.json"), "{text:?}: {error}");
        assert_eq!(error.reason(), "CreateContainerError");
    }
}

#[test]
fn devices_of_the_node_are_for_privileged_containers() {
    let devices = [HostDevice {
        path: "/dev/fuse".into(),
        kind: HostDeviceKind::Char,
        major: 10,
        minor: 229,
        mode: 0o666,
        uid: 0,
        gid: 3,
    }];
    let parts = NodeParts { devices: &devices, ..NodeParts::default() };
    let plain = complete(&Bench::new().plan().unwrap(), parts).unwrap();
    assert_eq!(plain, Bench::new().spec());
    let privileged = Bench::with(|bench| bench.container.security.privileged = true);
    let spec = complete(&privileged.plan().unwrap(), parts).unwrap();
    let device = spec.linux().clone().unwrap().devices().as_ref().unwrap()[0].clone();
    let json = serde_json::to_value(device).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666, "uid": 0, "gid": 3
        })
    );
}

#[test]
fn a_volume_that_is_a_device_is_a_device_with_its_rule_and_no_mount() {
    let name = VolumeName::new("data");
    let with = |read_only: bool, privileged: bool| {
        Bench::with(|bench| {
            let claim = ClaimVolume { name: "mine".into(), read_only, is_of_pod: false };
            bench.pod.volumes = vec![Volume { name: name.clone(), source: VolumeSource::Claim(claim) }];
            bench.volumes.insert(name.clone(), "/dev/loop7".into());
            bench.container.devices = vec![VolumeDevice { volume: name.clone(), path: "/dev//raw".into() }];
            bench.container.security.privileged = privileged;
        })
    };
    let host = |path: &str, minor| HostDevice {
        path: path.into(),
        kind: HostDeviceKind::Block,
        major: 7,
        minor,
        mode: 0o660,
        uid: 0,
        gid: 6,
    };
    let (volumes, devices) = ([host("/dev/loop7", 7)], [host("/dev/raw", 1), host("/dev/loop7", 7)]);
    for (read_only, access) in [(false, "mrw"), (true, "r")] {
        let plan = with(read_only, false).plan().unwrap();
        assert_eq!(
            plan.devices,
            [BlockVolume { host: "/dev/loop7".into(), path: "/dev/raw".into(), read_only }]
        );
        let parts = NodeParts { volumes: &volumes, ..NodeParts::default() };
        let spec = complete(&plan, parts).unwrap();
        let linux = spec.linux().clone().unwrap();
        let [device] = linux.devices().as_deref().unwrap() else { panic!("{:?}", linux.devices()) };
        assert_eq!((device.path().to_str().unwrap(), device.typ()), ("/dev/raw", LinuxDeviceType::B));
        assert_eq!((device.major(), device.minor(), device.gid()), (7, 7, Some(6)));
        let rules = linux.resources().clone().unwrap().devices().clone().unwrap();
        let [none, rule] = rules.as_slice() else { panic!("{rules:?}") };
        assert!(!none.allow() && rule.allow());
        assert_eq!((rule.typ(), rule.major(), rule.minor()), (Some(LinuxDeviceType::B), Some(7), Some(7)));
        assert_eq!(rule.access().as_deref(), Some(access));
        let mounts = spec.mounts().clone().unwrap();
        assert!(mounts.iter().all(|mount| mount.destination().to_str() != Some("/dev/raw")));
    }
    // A privileged container has the node's devices, and its own at their places.
    let parts = NodeParts { volumes: &volumes, devices: &devices, ..NodeParts::default() };
    let linux = complete(&with(false, true).plan().unwrap(), parts).unwrap().linux().clone().unwrap();
    let found: Vec<_> =
        linux.devices().iter().flatten().map(|one| (one.path().display().to_string(), one.minor())).collect();
    assert_eq!(found, [("/dev/loop7".to_owned(), 7), ("/dev/raw".to_owned(), 7)]);

    let mut missing = with(false, false);
    missing.volumes.clear();
    let error = missing.error();
    assert_eq!(error.to_string(), "cannot find volume \"data\" to pass into container \"web\"");
}
