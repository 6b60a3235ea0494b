use super::*;

fn pod(netns: &str, options: Option<SandboxOptions>) -> Pod {
    Pod::new("s".to_owned(), "/run/b".into(), netns.to_owned(), options)
}

fn all_pods() -> SandboxOptions {
    SandboxOptions {
        ipc: NamespaceMode::Pod.into(),
        uts: NamespaceMode::Pod.into(),
        ..SandboxOptions::default()
    }
}

#[test]
fn cve_2022_0811_sysctls_reach_only_the_pods_own_namespaces() {
    let own = pod("/run/netns/p", Some(all_pods()));
    for (name, path) in [
        ("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"),
        ("net/ipv4/conf/eth0.100/forwarding", "/proc/sys/net/ipv4/conf/eth0.100/forwarding"),
        ("net.ipv4.conf.eth0/100.forwarding", "/proc/sys/net/ipv4/conf/eth0.100/forwarding"),
        ("kernel.shm_rmid_forced", "/proc/sys/kernel/shm_rmid_forced"),
        ("kernel.msgmax", "/proc/sys/kernel/msgmax"),
        ("fs.mqueue.msg_max", "/proc/sys/fs/mqueue/msg_max"),
    ] {
        assert_eq!(sysctl_path(name, &own).unwrap(), PathBuf::from(path));
    }
    for name in [
        "kernel.core_pattern",
        "vm.swappiness",
        "net",
        "",
        "net..ipv4",
        "net/../kernel/core_pattern",
        "net.//.//.kernel.core_pattern",
        "net.ipv4.ip_forward+kernel.core_pattern",
        "net.ipv4.ip_forward\nkernel.core_pattern",
        "net/./ipv4",
        "fs.mqueue./..",
    ] {
        sysctl_path(name, &own).expect_err(name);
    }
    let node = pod("", Some(SandboxOptions::default()));
    for name in ["net.ipv4.ip_forward", "kernel.shmmax", "fs.mqueue.msg_max"] {
        sysctl_path(name, &node).expect_err(name);
    }
}

#[test]
fn entries_with_a_path_lead_to_the_pod_and_others_stay() {
    let mut config = json!({"linux": {"namespaces": [
        {"type": "network", "path": "/proc/1/ns/net"},
        {"type": "ipc", "path": "/proc/1/ns/ipc"},
        {"type": "uts"},
        {"type": "pid", "path": "/proc/77/ns/pid"},
        {"type": "mount"},
    ]}, "mounts": [{"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}]});
    let mut pod = pod("/run/netns/p", Some(all_pods()));
    pod.shm = true;
    pod.adopt(&mut config).unwrap();
    let shim = std::process::id();
    let path = |at: usize| config.pointer(&format!("/linux/namespaces/{at}/path")).and_then(Value::as_str);
    assert_eq!(path(0), Some(format!("/proc/{shim}/ns/net").as_str()));
    assert_eq!(path(1), Some(format!("/proc/{shim}/ns/ipc").as_str()));
    assert_eq!(path(2), None);
    // Another container's pid namespace, for a pod that does not share one.
    assert_eq!(path(3), Some("/proc/77/ns/pid"));
    assert_eq!(config.pointer("/mounts/0/source").and_then(Value::as_str), Some("/run/b/shm"));
}

#[test]
fn a_pod_on_the_nodes_network_leaves_network_paths_alone() {
    let mut config = json!({"linux": {"namespaces": [{"type": "network", "path": "/run/netns/x"}]}});
    let before = config.clone();
    pod("", None).adopt(&mut config).unwrap();
    assert_eq!(config, before);
}
