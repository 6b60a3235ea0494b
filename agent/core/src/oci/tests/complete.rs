//! What only the node can say.

use oci_spec::runtime::LinuxSeccompAction;

use super::Bench;
use crate::{
    oci::{HostDevice, HostDeviceKind, NodeParts, complete},
    spec::Seccomp,
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
