//! Labels by the node's file of contexts and the options of pods and containers.

use super::*;
use crate::fixtures;

/// As `container-selinux` has them.
const CONTEXTS: &str = r#"
# Of containers.
process = "system_u:system_r:container_t:s0"
content = "system_u:object_r:virt_var_lib_t:s0"
file = "system_u:object_r:container_file_t:s0"
; of others
ro_file="system_u:object_r:container_ro_file_t:s0"
sandbox_kvm_process = "system_u:system_r:svirt_qemu_net_t:s0"
kvm_process = "system_u:system_r:container_kvm_t:s0"
init_process = "system_u:system_r:container_init_t:s0"
"#;

const PROCESS: &str = "system_u:system_r:container_t";
const FILE: &str = "system_u:object_r:container_file_t";

fn node() -> SeLinux {
    SeLinux::of(CONTEXTS, 1024)
}

/// User, role, type and level.
fn options([user, role, kind, level]: [&str; 4]) -> SeLinuxOptions {
    let [user, role, kind, level] = [user, role, kind, level].map(str::to_owned);
    SeLinuxOptions { user, role, kind, level }
}

fn of(node: Option<&SeLinux>, pod: [&str; 4], own: [&str; 4]) -> Result<Labels, LabelError> {
    let mut container = fixtures::container("web");
    container.security.se_linux = options(own);
    let mut of_pod = fixtures::pod(vec![container.clone()]);
    of_pod.security.se_linux = options(pod);
    labels(node, &of_pod, &container, Some("s0:c5,c9"))
}

const NONE: [&str; 4] = [""; 4];

#[test]
fn a_containers_options_are_its_own_or_else_its_pods_and_its_level_is_the_pods() {
    for (pod, own, process, file) in [
        (NONE, NONE, format!("{PROCESS}:s0:c5,c9"), format!("{FILE}:s0:c5,c9")),
        (["", "", "", "s0:c1,c2"], NONE, format!("{PROCESS}:s0:c1,c2"), format!("{FILE}:s0:c1,c2")),
        (
            ["", "", "spc_t", ""],
            NONE,
            "system_u:system_r:spc_t:s0:c5,c9".to_owned(),
            format!("{FILE}:s0:c5,c9"),
        ),
        // What the two say is not mixed, but for the level.
        (
            ["pod_u", "pod_r", "pod_t", "s0:c1,c2"],
            ["", "", "own_t", ""],
            "system_u:system_r:own_t:s0:c1,c2".to_owned(),
            format!("{FILE}:s0:c1,c2"),
        ),
        (
            ["", "", "", "s0:c1,c2"],
            ["own_u", "own_r", "", "s0:c3"],
            "own_u:own_r:container_t:s0:c3".to_owned(),
            "own_u:object_r:container_file_t:s0:c3".to_owned(),
        ),
    ] {
        let found = of(Some(&node()), pod, own).unwrap();
        assert_eq!((found.process, found.mount), (Some(process), Some(file)), "{pod:?} {own:?}");
    }
}

#[test]
fn a_privileged_containers_process_has_none_and_its_files_have() {
    let mut container = fixtures::container("web");
    container.security.privileged = true;
    container.security.se_linux = options(["", "", "spc_t", ""]);
    let pod = fixtures::pod(vec![container.clone()]);
    let found = labels(Some(&node()), &pod, &container, Some("s0:c5,c9")).unwrap();
    assert_eq!(found, Labels { mount: Some(format!("{FILE}:s0:c5,c9")), ..Labels::default() });
}

#[test]
fn a_virtual_machines_process_has_the_type_of_those_whatever_is_asked_for() {
    let own = ["", "", "own_t", ""];
    let found = of(Some(&node()), NONE, own).unwrap();
    assert_eq!(found.vm_process.as_deref(), Some("system_u:system_r:container_kvm_t:s0:c5,c9"));
    let without = SeLinux { kvm_process: None, ..node() };
    let found = of(Some(&without), NONE, own).unwrap();
    assert_eq!(found.vm_process, Some(format!("{PROCESS}:s0:c5,c9")));
}

#[test]
fn a_policy_may_have_no_levels_or_nothing_for_containers() {
    let file = |text: &str| SeLinux::of(text, 1024);
    let none = Labels::default();
    let only = |mount: &str| Labels { mount: Some(mount.to_owned()), ..Labels::default() };
    let all = |process: &str, mount: &str| Labels {
        process: Some(process.to_owned()),
        vm_process: Some(process.to_owned()),
        mount: Some(mount.to_owned()),
    };
    for (text, has_levels, expected) in [
        ("", false, none.clone()),
        ("process = \"a:b:c:s0\"", false, none.clone()),
        ("process = \"a:b\"\nfile = \"d:e\"", false, none),
        ("file = \"d:e:f:s0\"", false, only("d:e:f:s0")),
        ("process = a:b:c\nfile = d:e:f", false, all("a:b:c", "d:e:f")),
        ("process = a:b:c\nfile = d:e:f:s0", false, all("a:b:c", "d:e:f:s0")),
        ("process = a:b:c:s0\nfile = d:e:f", true, all("a:b:c:s0:c5,c9", "d:e:f:s0:c5,c9")),
        ("process = x:y:z:s0\nprocess=\"a:b:c\"\n file=d:e:f", false, all("a:b:c", "d:e:f")),
    ] {
        let node = file(text);
        assert_eq!(node.has_levels(), has_levels, "{text}");
        assert_eq!(of(Some(&node), NONE, NONE), Ok(expected), "{text}");
    }
    // One that is named holds all the same.
    let found = of(Some(&file("process = a:b:c\nfile = d:e:f")), NONE, ["", "", "", "s0:c1"]).unwrap();
    assert_eq!(
        (found.process.as_deref(), found.mount.as_deref()),
        (Some("a:b:c:s0:c1"), Some("d:e:f:s0:c1"))
    );
}

#[test]
fn what_makes_no_label_is_refused_and_a_level_without_selinux_too() {
    let level = |text: &str| Err(LabelError::Level(text.to_owned()));
    let part = |part, value: &str| Err(LabelError::Part { part, value: value.to_owned() });
    for (own, without, with) in [
        (["", "", "", "secret"], level("secret"), level("secret")),
        (["", "", "", "s0:c1,c2\",size=9"], level("s0:c1,c2\",size=9"), level("s0:c1,c2\",size=9")),
        (["u\"", "", "", ""], Ok(()), part("user", "u\"")),
        (["", "r,x", "", ""], Ok(()), part("role", "r,x")),
        (["", "", "spc_t:s0", ""], Ok(()), part("type", "spc_t:s0")),
        (["", "", "a b", ""], Ok(()), part("type", "a b")),
        (["", "", "a\0", ""], Ok(()), part("type", "a\0")),
        (["", "", "a\n", ""], Ok(()), part("type", "a\n")),
        (["", "", "t\u{e9}", ""], Ok(()), part("type", "t\u{e9}")),
        (["a-b.c_d$", "r", "t", "s0"], Ok(()), Ok(())),
    ] {
        assert_eq!(of(None, NONE, own).map(drop), without, "{own:?}");
        assert_eq!(of(Some(&node()), NONE, own).map(drop), with, "{own:?}");
        // As those of the pod.
        assert_eq!(of(Some(&node()), own, NONE).map(drop), with, "{own:?}");
        let mut pod = fixtures::pod(vec![]);
        pod.security.se_linux = options(own);
        assert_eq!(check_sandbox(Some(&node()), &pod, Some("s0:c5,c9")), with, "{own:?}");
        assert_eq!(check_sandbox(None, &pod, None), without, "{own:?}");
    }
    assert_eq!(of(None, NONE, ["", "", "spc_t", "s0:c1"]), Ok(Labels::default()));
    let told = of(None, NONE, ["", "", "", "s0:x"]).unwrap_err().to_string();
    assert_eq!(told, "the format of 'level' \"s0:x\" is not correct");
}

#[test]
fn a_pod_without_a_level_begins_nothing_where_others_have_some() {
    let container = fixtures::container("web");
    let pod = fixtures::pod(vec![container.clone()]);
    let without_levels = SeLinux::of("process = a:b:c\nfile = d:e:f", 2);
    let with_levels = SeLinux { categories: 2, ..node() };
    let refused = Err(LabelError::NoLevel(2));
    for (node, expected) in [(None, Ok(())), (Some(&without_levels), Ok(())), (Some(&with_levels), refused)] {
        assert_eq!(labels(node, &pod, &container, None).map(drop), expected);
        assert_eq!(check_sandbox(node, &pod, None), expected);
    }
}
