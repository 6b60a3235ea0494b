use berth_proto::shim::{IdMapping, NamespaceMode, SandboxOptions};
use berth_shim_core::{Code, Failure};
use serde_json::{Value, json};

use super::*;

/// A change for the worse.
type Weaken = fn(&mut SandboxOptions);

fn pod(netns: &str, options: Option<SandboxOptions>) -> Pod {
    Pod::new("s".to_owned(), "/run/b".into(), netns.to_owned(), options).unwrap()
}

fn ids(first: u32) -> Vec<IdMapping> {
    vec![IdMapping { container_id: 0, host_id: first, size: 65_536 }]
}

fn all_pods() -> SandboxOptions {
    SandboxOptions {
        ipc: NamespaceMode::Pod.into(),
        uts: NamespaceMode::Pod.into(),
        ..SandboxOptions::default()
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
        {"type": "user", "path": "/proc/78/ns/user"},
    ], "uidMappings": []}, "mounts": [{"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}]});
    let mut pod = pod("/run/netns/p", Some(all_pods()));
    pod.shm = true;
    pod.adopt(&mut config).unwrap();
    let shim = std::process::id();
    let path = |at: usize| config.pointer(&format!("/linux/namespaces/{at}/path")).and_then(Value::as_str);
    assert_eq!(path(0), Some(format!("/proc/{shim}/ns/net").as_str()));
    assert_eq!(path(1), Some(format!("/proc/{shim}/ns/ipc").as_str()));
    assert_eq!(path(2), None);
    // Other containers' namespaces, of a pod that does not share any.
    assert_eq!(path(3), Some("/proc/77/ns/pid"));
    assert_eq!(path(5), Some("/proc/78/ns/user"));
    assert!(config.pointer("/linux/uidMappings").is_some());
    assert_eq!(config.pointer("/mounts/0/source").and_then(Value::as_str), Some("/run/b/shm"));
    assert_eq!(config.pointer("/mounts/0/options"), Some(&json!(["rbind", "rprivate", "rw"])));
}

/// By whoever begins last, where members have labels of their own.
#[test]
fn the_pods_shm_has_the_label_of_a_members_mounts() {
    let bundle = tempfile::tempdir().unwrap();
    let shm = bundle.path().join("shm");
    std::fs::create_dir(&shm).unwrap();
    let mut pod =
        Pod::new("s".to_owned(), bundle.path().into(), "/run/netns/p".to_owned(), Some(all_pods())).unwrap();
    pod.shm = true;
    let mut adopt = |mounts: Value, label: Value| {
        let namespaces = json!([{"type": "ipc", "path": "/proc/1/ns/ipc"}]);
        pod.adopt(&mut json!({"linux": {"namespaces": namespaces, "mountLabel": label}, "mounts": mounts}))
            .unwrap();
        crate::sys::label(&shm).ok()
    };
    let own = || json!([{"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}]);
    let volume = json!([{"destination": "/dev/shm", "type": "bind", "source": "/volume"}]);
    for (mounts, label, expected) in [
        (own(), json!(null), None),
        (own(), json!(""), None),
        (volume, json!("u:r:t:s0:c1,c2"), None),
        (own(), json!("u:r:t:s0:c1,c2"), Some("u:r:t:s0:c1,c2")),
        (own(), json!("u:r:t:s0:c3"), Some("u:r:t:s0:c3")),
        (own(), json!(null), Some("u:r:t:s0:c3")),
    ] {
        assert_eq!(adopt(mounts, label).as_deref(), expected);
    }
}

#[test]
fn a_volume_at_the_pods_shm_stays() {
    let mount =
        json!({"destination": "/dev/shm", "type": "bind", "source": "/volume", "options": ["rbind", "rw"]});
    let mut config =
        json!({"linux": {"namespaces": [{"type": "ipc", "path": "/proc/1/ns/ipc"}]}, "mounts": [mount]});
    let mut pod = pod("/run/netns/p", Some(all_pods()));
    pod.shm = true;
    pod.adopt(&mut config).unwrap();
    assert_eq!(config.pointer("/mounts/0"), Some(&mount));
}

#[test]
fn a_pod_on_the_nodes_network_leaves_network_paths_alone() {
    let mut config = json!({"linux": {"namespaces": [{"type": "network", "path": "/run/netns/x"}]}});
    let before = config.clone();
    pod("", None).adopt(&mut config).unwrap();
    assert_eq!(config, before);
}

#[test]
fn options_that_would_weaken_the_pod_are_refused_at_once() {
    let weak: [(&str, Weaken); 8] = [
        ("the node's root", |options| options.uid_mappings = ids(0)),
        ("neither", |options| options.gid_mappings = Vec::new()),
        ("overlap", |options| options.uid_mappings.extend(ids(200_000))),
        ("node's pid namespace", |options| options.pid = NamespaceMode::Node.into()),
        ("node's ipc namespace", |options| options.ipc = NamespaceMode::Node.into()),
        ("mode 7 is unknown", |options| options.uts = 7),
        ("/dev/shm", |options| options.shm_size = 1),
        ("core_pattern", |options| {
            options.sysctls.insert("kernel.core_pattern".to_owned(), "|/bin/x".to_owned());
        }),
    ];
    for (why, weaken) in weak {
        let mut options =
            SandboxOptions { uid_mappings: ids(100_000), gid_mappings: ids(100_000), ..all_pods() };
        assert_eq!(pod("/run/netns/p", Some(options.clone())).options(), Some(&options));
        weaken(&mut options);
        let made = Pod::new("s".to_owned(), "/run/b".into(), "/run/netns/p".to_owned(), Some(options));
        let failure = Failure::from(made.unwrap_err());
        assert_eq!(failure.code, Code::InvalidArgument, "{}", failure.message);
        assert!(failure.message.contains(why), "{}", failure.message);
    }
}
