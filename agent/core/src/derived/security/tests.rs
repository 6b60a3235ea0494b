use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::{
    event::{Event, Restored},
    fixtures,
    id::{Attempt, SandboxId},
    node::Node,
    observation::{Observation, ObservedSandbox},
    spec::{Source, UserMode},
    time::{Mono, Now},
};

fn pod(name: &str, value: &str) -> Pod {
    let mut pod = fixtures::pod(vec![]);
    pod.security.sysctls = vec![Sysctl { name: name.into(), value: value.into() }];
    pod
}

fn patterns(allowed: &[&str]) -> Vec<String> {
    allowed.iter().map(|pattern| (*pattern).to_owned()).collect()
}

fn check_one(name: &str, value: &str, allowed: &[&str]) -> Result<String, SysctlError> {
    check_sysctls(&pod(name, value), &patterns(allowed)).map(|mut all| all.remove(0).name)
}

#[test]
fn safe_sysctls_are_for_everyone() {
    for name in SAFE {
        assert_eq!(check_one(name, "1", &[]).as_deref(), Ok(name));
    }
    assert_eq!(check_one("net/ipv4/tcp_syncookies", "1", &[]).as_deref(), Ok("net.ipv4.tcp_syncookies"));
    assert_eq!(check_sysctls(&fixtures::pod(vec![]), &[]), Ok(vec![]));
}

#[test]
fn others_need_the_nodes_permission() {
    for (name, allowed, normal) in [
        ("kernel.msgmax", &["kernel.msgmax"][..], Some("kernel.msgmax")),
        ("kernel.shmmax", &["kernel.shm*"], Some("kernel.shmmax")),
        ("net.core.somaxconn", &["net.core.*"], Some("net.core.somaxconn")),
        ("net/core/somaxconn", &["net.core.*"], Some("net.core.somaxconn")),
        ("net.ipv4.conf.eth0/100.forwarding", &["net/ipv4/*"], Some("net.ipv4.conf.eth0/100.forwarding")),
        ("net/ipv4/conf/eth0.100/forwarding", &["net.ipv4.*"], Some("net.ipv4.conf.eth0/100.forwarding")),
        ("fs.mqueue.msg_max", &["fs.mqueue.*"], Some("fs.mqueue.msg_max")),
        ("net.core.somaxconn", &[], None),
        ("net.core.somaxconn", &["net.core.somaxcon"], None),
        ("net.core.somaxconn2", &["net.core.somaxconn"], None),
        ("kernel.sem", &["net.*"], None),
        // Not namespaced: whatever the node says.
        ("kernel.core_pattern", &["kernel.*", "kernel.core_pattern", "*"], None),
        ("vm.swappiness", &["vm.*"], None),
        ("fs.file-max", &["fs.*"], None),
        ("netfilter.x", &["net*"], None),
    ] {
        let got = check_one(name, "1", allowed);
        match normal {
            Some(normal) => assert_eq!(got.as_deref(), Ok(normal)),
            None => {
                assert_eq!(
                    got.unwrap_err().to_string(),
                    format!("forbidden sysctl: {name:?} not allowlisted")
                );
            }
        }
    }
}

#[test]
fn namespaces_of_the_node_are_left_alone() {
    let allowed = patterns(&["kernel.sem", "net.core.*"]);
    for (name, network, ipc, expected) in [
        ("net.ipv4.tcp_syncookies", NetworkMode::Node, IpcMode::Pod, Err("Net")),
        ("net.core.somaxconn", NetworkMode::Node, IpcMode::Pod, Err("Net")),
        ("kernel.shm_rmid_forced", NetworkMode::Pod, IpcMode::Node, Err("IPC")),
        ("kernel.sem", NetworkMode::Pod, IpcMode::Node, Err("IPC")),
        ("kernel.sem", NetworkMode::Node, IpcMode::Pod, Ok(())),
        ("net.core.somaxconn", NetworkMode::Pod, IpcMode::Node, Ok(())),
    ] {
        let pod = Pod { network, ipc, ..pod(name, "1") };
        let got = check_sysctls(&pod, &allowed).map(|_| ());
        let expected = expected.map_err(|namespace| SysctlError::OfNode { name: name.into(), namespace });
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn a_network_of_its_own_lets_every_user_listen_and_ping() {
    const PORTS: &str = "net.ipv4.ip_unprivileged_port_start";
    const PING: &str = "net.ipv4.ping_group_range";
    for (network, own, expected) in [
        (NetworkMode::Pod, &[][..], &[(PORTS, "0"), (PING, "0 2147483647")][..]),
        (NetworkMode::Pod, &[(PORTS, "1024")], &[(PORTS, "1024"), (PING, "0 2147483647")]),
        (NetworkMode::Pod, &[("net/ipv4/ping_group_range", "1 0")], &[(PING, "1 0"), (PORTS, "0")]),
        (NetworkMode::Pod, &[(PING, "1 0"), (PORTS, "80")], &[(PING, "1 0"), (PORTS, "80")]),
        (NetworkMode::Node, &[], &[]),
        (NetworkMode::Node, &[("kernel.shm_rmid_forced", "1")], &[("kernel.shm_rmid_forced", "1")]),
    ] {
        let sysctl = |(name, value): &(&str, &str)| Sysctl { name: (*name).into(), value: (*value).into() };
        let mut pod = Pod { network, ..fixtures::pod(vec![]) };
        pod.security.sysctls = own.iter().map(sysctl).collect();
        let expected: Vec<Sysctl> = expected.iter().map(sysctl).collect();
        assert_eq!(sandbox_sysctls(&pod, &[]), Ok(expected), "{network:?} {own:?}");
    }
    let mapped = Pod { users: UserMode::Pod, ..fixtures::pod(vec![]) };
    let ports = Sysctl { name: PORTS.into(), value: "0".into() };
    assert_eq!(sandbox_sysctls(&mapped, &[]), Ok(vec![ports]), "a user namespace has not all groups");
    sandbox_sysctls(&pod("vm.swappiness", "1"), &[]).unwrap_err();
}

#[test]
fn cve_2022_0811_names_and_values_smuggle_nothing_in() {
    for name in [
        "",
        ".",
        "..",
        "net..ipv4",
        ".net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_syncookies.",
        "net.ipv4.../../kernel/core_pattern",
        "net/../kernel/core_pattern",
        "net.ipv4.tcp_syncookies=1+kernel.core_pattern",
        "net.ipv4.tcp_syncookies+kernel.core_pattern",
        "net.ipv4.tcp_syncookies\nkernel.core_pattern",
        "net.ipv4.tcp_syncookies\0",
        "net.ipv4.tcp_syncookies ",
        "NET.ipv4.tcp_syncookies",
        "net.ipv4.*",
        "-net.ipv4",
        "net.ipv4.é",
        &"net.".repeat(64),
    ] {
        assert_eq!(
            check_one(name, "1", &["net.*", "kernel.shm*"]),
            Err(SysctlError::Name { name: name.into() }),
            "{name:?}"
        );
    }
    for value in [
        "1+kernel.core_pattern=|/bin/sh",
        "1=2",
        "1\nkernel.core_pattern",
        "1\0",
        "1\r2",
        "\u{1b}[2J",
        &"1".repeat(4097),
    ] {
        assert!(matches!(check_one(SAFE[1], value, &[]), Err(SysctlError::Value { .. })), "{value:?}");
    }
    for value in ["", "0", "32768 60999", "4096\t131072\t6291456", "8080,9148-9150", "fq_codel"] {
        assert!(check_one(SAFE[1], value, &[]).is_ok(), "{value:?}");
    }
}

#[test]
fn one_bad_sysctl_refuses_the_pod() {
    let mut pod = pod(SAFE[0], "1");
    pod.security.sysctls.push(Sysctl { name: "vm.swappiness".into(), value: "1".into() });
    let name = "vm.swappiness".to_owned();
    assert_eq!(check_sysctls(&pod, &[]), Err(SysctlError::NotAllowed { name }));
}

#[test]
fn patterns_of_the_configuration() {
    for (pattern, valid) in [
        ("kernel.msg*", true),
        ("kernel.shm_rmid_forced", true),
        ("net.core.*", true),
        ("net.*", true),
        ("net.ipv4.conf.*", true),
        ("fs.mqueue.*", true),
        ("*", false),
        ("net*", false),
        ("kernel.*", false),
        ("vm.swappiness", false),
        ("net.*.x", false),
        ("net.core.**", false),
        ("", false),
        ("net.core.\n*", false),
    ] {
        assert_eq!(is_valid_pattern(pattern), valid, "{pattern:?}");
    }
}

proptest! {
    #[test]
    fn what_passes_is_one_path_below_net_or_ipc(name in "[a-z./_*+=\n-]{0,24}", allowed in "[a-z./*]{0,8}") {
        if let Ok(name) = check_one(&name, "1", &[&allowed, "net.*", "kernel.shm*"]) {
            prop_assert!(!name.contains("..") && !name.starts_with(['.', '/']));
            prop_assert!(name.starts_with("net.") || name.starts_with("kernel.") || name.starts_with("fs.mqueue."));
        }
    }
}

/// A pod that is wanted while the node is taken over has no record either, and is admitted like one that comes later.
/// One that the runtime knows goes on.
#[test]
fn a_refused_pod_is_refused_at_the_start_of_the_agent_too() {
    let now = Now { mono: Mono::default(), wall: Timestamp::UNIX_EPOCH };
    let spec = Arc::new(pod("kernel.msgmax", "1"));
    let seen = ObservedSandbox {
        id: SandboxId::from_known("4f0a"),
        pod: spec.uid.clone(),
        attempt: Attempt::default(),
        ready: true,
        pid: 7,
    };
    let known = Observation { sandboxes: vec![seen], ..Observation::default() };
    let refused = |observation: &Observation| {
        let mut node = Node::new(fixtures::node(), BTreeSet::from([Source::File]));
        let restored = Restored { observation: observation.clone(), ..Restored::default() };
        node.handle(now, Event::Restored(Box::new(restored)));
        let pods = vec![Arc::clone(&spec)];
        node.handle(now, Event::Desired { source: Source::File, pods, is_whole: true });
        let pod = node.pods().next().unwrap();
        let end = pod.life().record.terminal.as_ref();
        // One without containers ends at once.
        end.map(|end| end.reason.clone()).filter(|reason| !reason.is_empty())
    };
    assert_eq!(refused(&Observation::default()).as_deref(), Some("SysctlForbidden"));
    assert_eq!(refused(&known), None);
}
