//! What of effects their metrics name.

use std::{sync::Arc, time::Duration};

use berth_core::{
    effect::{Act, Effect, NodeAct},
    id::OpId,
    oci::{ContainerPlan, HostDevices},
    pod::port::{
        network::NetnsRequest,
        probe::{ExecProbe, ProbeCall, ProbeRequest},
        sandbox::SandboxRequest,
        start::StartRequest,
        volume::{Backing, VolumeRequest},
    },
    spec::{Container, Pod},
};

use super::*;

const MANIFEST: &str = r#"{
    "metadata": { "name": "web", "namespace": "shop", "uid": "1-a" },
    "spec": { "containers": [{ "name": "main", "image": "i" }], "volumes": [
        { "name": "a", "emptyDir": {} },
        { "name": "b", "hostPath": { "path": "/srv" } },
        { "name": "c", "configMap": { "name": "c" } },
        { "name": "d", "secret": { "secretName": "d" } },
        { "name": "e", "downwardAPI": { "items": [{ "path": "e", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        { "name": "f", "projected": { "sources": [{ "configMap": { "name": "f" } }] } }
    ] }
}"#;

fn pod() -> Arc<Pod> {
    crate::manifest::pod_from_json(MANIFEST, Source::Api).unwrap()
}

fn start(kind: ContainerKind) -> Act {
    let pod = pod();
    let container = Arc::new(Container { kind, ..(*pod.containers[0]).clone() });
    let plan = ContainerPlan {
        spec: Default::default(),
        seccomp_file: None,
        app_armor: None,
        vm_label: None,
        relabel: None,
        host_devices: HostDevices::None,
        devices: Vec::new(),
        files: Vec::new(),
        image_volumes: Vec::new(),
        sub_paths: Vec::new(),
        mount_sources: Vec::new(),
        log_path: String::new(),
        labels: [].into(),
        warnings: Vec::new(),
    };
    Act::StartContainer(Box::new(StartRequest {
        target: None,
        unplanned: None,
        id: ContainerId::from_known("c1"),
        attempt: 0,
        sandbox: SandboxId::of(&pod.uid, 0),
        container,
        pod,
        image: Arc::new(image()),
        plan,
    }))
}

fn sandbox(runtime: Option<&str>) -> Act {
    let pod = Arc::new(Pod { runtime: runtime.map(str::to_owned), ..(*pod()).clone() });
    let (id, hostname) = (SandboxId::of(&pod.uid, 0), "web".to_owned());
    let sysctls = Vec::new();
    Act::EnsureSandbox(Box::new(SandboxRequest { id, attempt: 0, pod, hostname, sysctls, ids: None }))
}

fn probe(kind: ProbeKind, call: ProbeCall) -> Act {
    let (id, timeout) = (ContainerId::from_known("c1"), Duration::from_secs(1));
    Act::Probe(Box::new(ProbeRequest { id, kind, call, timeout }))
}

#[test]
fn effects_are_about_what_is_begun_made_or_asked() {
    let of = |act| Subject::of(&Effect::Pod { op: OpId(1), pod: PodUid::new("1-a"), act });
    for kind in [ContainerKind::Main, ContainerKind::Init, ContainerKind::Sidecar, ContainerKind::Ephemeral] {
        assert_eq!(of(start(kind)), Subject::Container(kind, UserMode::Node));
    }
    for (runtime, handler) in [(None, ""), (Some("crun"), "crun")] {
        assert_eq!(of(sandbox(runtime)), Subject::Sandbox(handler.to_owned(), UserMode::Node));
    }
    let volumes = pod().volumes.clone();
    let plugins = volumes.into_iter().map(|volume| {
        let volume = VolumeRequest {
            pod: pod(),
            volume,
            fs_group: None,
            backing: Ok(Backing::Disk),
            image: None,
            ids: None,
        };
        of(Act::EnsureVolume(Box::new(volume)))
    });
    let expected = ["empty-dir", "host-path", "configmap", "secret", "downward-api", "projected"];
    let named = |subject| match subject {
        Subject::Volume(plugin) => plugin.trim_start_matches("kubernetes.io/"),
        other => panic!("{other:?}"),
    };
    assert_eq!(plugins.map(named).collect::<Vec<_>>(), expected);
    for kind in [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness] {
        let command = ProbeCall::Exec(ExecProbe {
            sandbox: SandboxId::from_known("s"),
            command: vec!["true".to_owned()],
        });
        let server = ProbeCall::Tcp { host: "10.0.0.1".to_owned(), port: 80 };
        for (call, asks) in [(command, Asks::Command), (server, Asks::Server)] {
            let expected = Subject::Probe(PodUid::new("1-a"), ContainerId::from_known("c1"), kind, asks);
            assert_eq!(of(probe(kind, call)), expected);
        }
    }
    let netns = NetnsRequest { sandbox: SandboxId::from_known("s"), ids: None };
    for act in [Act::Forget, Act::EnsureNetns(netns), Act::RemoveVolumes { with_images: true }, Act::Sweep] {
        assert_eq!(of(act), Subject::Other);
    }
    assert_eq!(Subject::of(&Effect::Node { op: OpId(1), act: NodeAct::ReadNodeObject }), Subject::Other);
}
