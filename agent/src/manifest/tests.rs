use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use berth_core::{
    derived::app_armor,
    id::VolumeName,
    spec::{
        AppArmorProfile, ContainerKind, EnvSource, FileKeyRef, Hook, HostPathType, ImagePullPolicy, Medium,
        MountPropagation, NetworkMode, PidMode, Protocol, QosClass, RestartPolicy, SeLinuxOptions, Seccomp,
        Source, Stdin, SubPath, TerminationMessagePolicy, VolumeSource,
    },
};

use super::*;

mod claims;
mod image_volumes;
mod unacted;

pub(super) fn origin() -> Origin<'static> {
    let seen = "2026-11-21T07:00:00Z".parse().unwrap();
    Origin { source: Source::File, place: "web.yaml", node: "node-1", seen }
}

fn one(text: &str) -> Manifest {
    let mut all = read(text, &origin()).unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn faults(text: &str) -> String {
    read(text, &origin()).unwrap_err().to_string()
}

/// A pod with `spec` beside one container, whose fields beyond name and image are `container`.
fn pod(spec: &str, container: &str) -> String {
    let container = container.replace('\n', "\n    ");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - name: c\n    image: busybox:1\n    {container}\n  {}\n",
        spec.replace('\n', "\n  ")
    )
}

const FULL: &str = include_str!("tests/full.yaml");

#[test]
fn a_full_pod_becomes_the_cores() {
    let Manifest { pod, unsupported, unknown } = one(FULL);
    assert_eq!(unknown, [""; 0]);
    assert_eq!(pod.name.to_string(), "prod/full-node-1");
    assert_eq!(pod.labels, BTreeMap::from([("app".to_owned(), "full".to_owned())]));
    assert_eq!((pod.restart_policy, pod.grace), (RestartPolicy::OnFailure, Duration::from_secs(5)));
    assert_eq!((pod.network, pod.pid, pod.qos), (NetworkMode::Pod, PidMode::Pod, QosClass::Burstable));
    assert_eq!((pod.priority, pod.active_deadline), (2_000_001_000, Some(Duration::from_secs(60))));
    assert_eq!(pod.security.fs_group, Some(2000));
    assert_eq!(pod.security.seccomp, Some(Seccomp::RuntimeDefault));
    assert_eq!(pod.security.sysctls[0].name, "net.ipv4.tcp_syncookies");
    let kinds: Vec<_> = pod.all_containers().map(|one| (one.name.as_str(), one.kind)).collect();
    assert_eq!(
        kinds,
        [("init", ContainerKind::Init), ("side", ContainerKind::Sidecar), ("main", ContainerKind::Main)]
    );
    assert_eq!(
        pod.volumes[0].source,
        VolumeSource::EmptyDir { medium: Medium::Memory, size_limit_bytes: Some(64 << 20) }
    );
    let host = VolumeSource::HostPath { path: "/etc/ssl".to_owned(), kind: HostPathType::Directory };
    assert_eq!(pod.volumes[1].source, host);
    let main = &pod.containers[0];
    assert_eq!(main.pull_policy, ImagePullPolicy::Always);
    assert_eq!(main.resources.requests.cpu_milli, Some(101));
    assert_eq!(
        main.resources.requests.memory_bytes,
        Some(128 << 20),
        "the limit is the request where none is given"
    );
    assert_eq!(main.env[0].source, EnvSource::Value("1".to_owned()));
    assert_eq!(main.env[1].source, EnvSource::Field("status.podIP".to_owned()));
    let EnvSource::Resource(selector) = &main.env[2].source else { panic!("{:?}", main.env[2]) };
    assert_eq!(selector.divisor, 1 << 20);
    assert_eq!((main.ports[0].protocol, main.ports[0].host_port), (Protocol::Udp, Some(5353)));
    assert_eq!(main.mounts[0].sub_path, SubPath::Fixed("data".to_owned()));
    assert_eq!(main.mounts[1].propagation, MountPropagation::HostToContainer);
    assert_eq!((main.stdio.stdin, main.stdio.tty), (Stdin::Once, true));
    assert_eq!(main.security.capabilities.add, ["NET_ADMIN"]);
    assert!(!pod.scheduling.selector.is_empty());
    let drain = Hook::Exec(["sleep", "1"].map(str::to_owned).to_vec());
    assert_eq!(main.lifecycle.pre_stop, Some(drain));
    assert_eq!(unsupported, [""; 0]);
}

#[test]
fn a_file_of_variables_is_in_an_empty_dir_of_the_pod() {
    let of = |volume: &str, path: &str, key: &str| {
        let file = format!("{{volumeName: {volume}, path: {path}, key: {key}, optional: true}}");
        let env = format!("env: [{{name: A, valueFrom: {{fileKeyRef: {file}}}}}]");
        pod("volumes: [{name: data, emptyDir: {}}, {name: host, hostPath: {path: /}}]", &env)
    };
    let (volume, path, key) = (VolumeName::new("data"), "sub/env".to_owned(), "K".to_owned());
    let expected = FileKeyRef { volume, path, key, optional: true };
    assert_eq!(one(&of("data", "sub/env", "K")).pod.containers[0].env[0].source, EnvSource::File(expected));
    for (text, field) in [
        (of("host", "env", "K"), "volumeName: the pod has no emptyDir `host`"),
        (of("none", "env", "K"), "volumeName: the pod has no emptyDir `none`"),
        (of("data", "a/../env", "K"), "path: `a/../env` is not a path without `..`"),
        (of("data", "''", "K"), "path: `` is not a path without `..`"),
        (of("data", "env", "a=b"), "key: must be printable ASCII without `=`"),
    ] {
        let told = faults(&text);
        assert!(told.contains(&format!("env[0].valueFrom.fileKeyRef.{field}")), "{told}");
    }
}

#[test]
fn an_empty_dir_is_on_disk_in_memory_or_in_huge_pages() {
    let of = |medium: &str| pod(&format!("volumes: [{{name: data, emptyDir: {{medium: {medium}}}}}]"), "");
    for (medium, expected) in [
        ("''", Medium::Disk),
        ("Memory", Medium::Memory),
        ("HugePages", Medium::HugePages(None)),
        ("HugePages-2Mi", Medium::HugePages(Some(2 << 20))),
        ("HugePages-2048Ki", Medium::HugePages(Some(2 << 20))),
    ] {
        let source = VolumeSource::EmptyDir { medium: expected, size_limit_bytes: None };
        assert_eq!(one(&of(medium)).pod.volumes[0].source, source, "{medium}");
    }
    for (medium, why) in [
        ("HugePages-", "must be `HugePages-` and a page size, such as `2Mi`"),
        ("HugePages-0", "must be `HugePages-` and a page size, such as `2Mi`"),
        ("HugePages-2Q", "must be `HugePages-` and a page size, such as `2Mi`"),
        ("Disk", "`Disk` is not one of"),
    ] {
        let told = faults(&of(medium));
        assert!(told.contains(&format!("spec.volumes[0].emptyDir.medium: {why}")), "{told}");
    }
}

#[test]
fn what_is_no_capability_is_passed_over_and_told() {
    for name in ["CAP_NET_ADMIN", "NET-ADMIN", "'net_admin '", "''"] {
        let add = format!("securityContext: {{capabilities: {{add: [{name}, net_raw]}}}}");
        let manifest = one(&pod("", &add));
        assert_eq!(manifest.pod.containers[0].security.capabilities.add, ["NET_RAW"], "{name}");
        assert_eq!(manifest.unsupported, ["spec.containers[0].securityContext.capabilities.add[0]"]);
    }
}

/// Source: `IsOvercommitAllowed` of `pkg/apis/core/v1/helper/helpers.go`.
#[test]
fn resources_that_are_called_kubernetes_own_may_be_overcommitted() {
    for name in ["kubernetes.io/batch-cpu", "node.kubernetes.io/batch-cpu"] {
        for resources in [
            format!("{{requests: {{{name}: 1000}}}}"),
            format!("{{requests: {{{name}: 1000}}, limits: {{{name}: 2000}}}}"),
        ] {
            let found = one(&pod("", &format!("resources: {resources}"))).pod;
            let requests = &found.containers[0].resources.requests;
            assert_eq!(requests.extended.get(name), Some(&1000), "{resources}");
        }
    }
}

/// Source: `validatePodHostNetworkDeps` of `pkg/apis/core/validation/validation.go`.
#[test]
fn ports_in_the_nodes_network_are_those_of_the_node_for_main_containers_alone() {
    let init = "initContainers: [{name: s, image: x, ports: [{containerPort: 80, hostPort: 81}]}]";
    let found = one(&pod(&format!("hostNetwork: true\n{init}"), "")).pod;
    assert_eq!(found.init_containers[0].ports[0].host_port, Some(81));
}

#[test]
fn resources_of_vendors_are_told_of_a_static_pod() {
    let manifest = one(&pod("", "resources: {limits: {example.com/dongle: 1}}"));
    assert_eq!(manifest.unsupported, ["spec.containers[0].resources.limits.example.com/dongle"]);
}

#[test]
fn a_static_pod_is_marked_as_the_kubelet_marks_it() {
    let pod = one(&pod("", "")).pod;
    assert_eq!(pod.name.to_string(), "default/web-node-1");
    assert_eq!(pod.uid.as_str().len(), 32);
    assert!(pod.uid.as_str().bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(pod.annotations["kubernetes.io/config.source"], "file");
    assert_eq!(pod.annotations["kubernetes.io/config.hash"], pod.uid.as_str());
    assert_eq!(pod.annotations["kubernetes.io/config.seen"], "2026-11-21T07:00:00Z");
    let manifest: serde_json::Value = serde_json::from_str(&pod.manifest).unwrap();
    assert_eq!(manifest["spec"]["nodeName"], "node-1");
    assert_eq!(
        manifest["spec"]["tolerations"][0],
        serde_json::json!({"operator": "Exists", "effect": "NoExecute"})
    );
    assert!(pod.is_critical());
}

#[test]
fn the_uid_follows_manifest_node_and_file_and_nothing_else() {
    let uid = |text: &str, origin: &Origin<'_>| read(text, origin).unwrap()[0].pod.uid.clone();
    let (text, base) = (pod("", ""), origin());
    let first = uid(&text, &base);
    assert_eq!(
        first,
        uid(&text.replace("  image: busybox:1", "  # a remark\n    image: 'busybox:1'"), &base)
    );
    assert_eq!(first, uid(&text, &Origin { seen: jiff::Timestamp::UNIX_EPOCH, ..base.clone() }));
    assert_ne!(first, uid(&text.replace("busybox:1", "busybox:2"), &base));
    assert_ne!(first, uid(&text, &Origin { node: "node-2", ..base.clone() }));
    assert_ne!(first, uid(&text, &Origin { place: "other.yaml", ..base.clone() }));
    assert_eq!(uid(&text.replace("name: web}", "name: web, uid: abc-1}"), &base).as_str(), "abc-1");
}

#[test]
fn a_pod_read_back_from_its_record_is_the_same() {
    let pod = one(FULL).pod;
    assert_eq!(pod_from_json(&pod.manifest, Source::File), Ok(pod.clone()));
    let newer = pod.manifest.replacen("\"spec\":{", "\"spec\":{\"fieldOfALaterRelease\":1,", 1);
    assert_eq!(pod_from_json(&newer, Source::File).map(|pod| pod.uid.clone()), Ok(pod.uid.clone()));
    assert_eq!(pod_from_json("{", Source::File).unwrap_err().0.len(), 1);
}

/// A pod of the API may have characters that no manifest has, and more values than any.
#[test]
fn whatever_a_pod_of_the_api_has_is_read_back_from_its_record() {
    let args: Vec<String> = (0..250_000).map(|_| String::new()).collect();
    let odd = "\u{7f}\u{80}\u{9b}\u{fffe}\u{ffff}";
    let given = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "u1", "annotations": { "a": odd } },
        "spec": { "containers": [
            { "name": "c", "image": "i", "args": args, "env": [{ "name": "E", "value": odd }] },
        ] },
    }));
    let pod = api_pod(&given.unwrap(), jiff::Timestamp::UNIX_EPOCH).unwrap().pod;
    assert_eq!(pod.annotations["a"], odd);
    assert_eq!(pod_from_json(&pod.manifest, Source::Api), Ok(pod));
}

/// As under a kubelet, which drops them: a field of a newer API must not stop a pod. They are told.
#[test]
fn fields_that_are_not_known_are_told_and_stop_nothing() {
    let text = pod("restartpolicy: Never", "fieldOfALaterRelease: {a: 1}")
        + "status: {newInStatus: 1, phase: Running}\n";
    let found = one(&text);
    assert_eq!(found.pod.containers.len(), 1);
    assert_eq!(
        found.unknown,
        [
            "web.yaml:8: spec.containers[0].fieldOfALaterRelease: unknown field",
            "web.yaml:9: spec.restartpolicy: unknown field, did you mean `restartPolicy`?",
        ]
    );
}

#[test]
fn a_variable_can_show_the_node_by_both_of_its_names() {
    for path in ["spec.nodeName", "spec.host"] {
        let found =
            one(&pod("", &format!("env: [{{name: A, valueFrom: {{fieldRef: {{fieldPath: {path}}}}}}}]")));
        assert_eq!(found.pod.containers[0].env[0].source, EnvSource::Field(path.to_owned()));
    }
}

#[test]
fn a_relative_mount_path_begins_at_the_root() {
    let found = one(&pod("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: a/b}]"));
    assert_eq!(found.pod.containers[0].mounts[0].path, "/a/b");
}

#[test]
fn the_class_of_service_follows_the_resources() {
    for (resources, class) in [
        ("", QosClass::BestEffort),
        ("resources: {requests: {cpu: 1m}}", QosClass::Burstable),
        ("resources: {limits: {cpu: 1, memory: 1Gi}}", QosClass::Guaranteed),
        (
            "resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1000m, memory: 1024Mi}}",
            QosClass::Guaranteed,
        ),
        ("resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}", QosClass::Burstable),
        ("resources: {limits: {memory: 1Gi}}", QosClass::Burstable),
    ] {
        assert_eq!(one(&pod("", resources)).pod.qos, class, "{resources}");
    }
}

#[test]
fn what_a_pod_names_for_itself_has_its_containers_as_defaults() {
    const ASKS: &str = "resources: {requests: {cpu: 200m}, limits: {memory: 1Mi}}";
    for (spec, container, expected, class) in [
        ("resources: {}", "", None, QosClass::BestEffort),
        ("resources: {}", ASKS, None, QosClass::BestEffort),
        ("resources: {limits: {cpu: 1, memory: 8}}", "", Some((Some(1000), Some(8))), QosClass::Guaranteed),
        ("resources: {limits: {cpu: 1}}", ASKS, Some((Some(200), Some(1 << 20))), QosClass::Burstable),
        ("resources: {limits: {memory: 2Mi}}", ASKS, Some((Some(200), Some(1 << 20))), QosClass::Burstable),
        ("resources: {requests: {memory: 2Mi}}", ASKS, Some((None, Some(2 << 20))), QosClass::Burstable),
        (
            "resources: {requests: {cpu: 300m}, limits: {cpu: 1, memory: 2Mi}}",
            ASKS,
            Some((Some(300), Some(1 << 20))),
            QosClass::Burstable,
        ),
    ] {
        let found = one(&pod(spec, container)).pod;
        let requests =
            found.resources.as_ref().map(|own| (own.requests.cpu_milli, own.requests.memory_bytes));
        assert_eq!((requests, found.qos), (expected, class), "{spec} {container}");
    }
    let spec = "resources: {limits: {cpu: 1, hugepages-2Mi: 8Mi}}";
    let pages =
        |container| one(&pod(spec, container)).pod.resources.clone().unwrap().requests.hugepages_bytes;
    assert_eq!(pages("resources: {limits: {memory: 1Mi, hugepages-2Mi: 2Mi}}"), [(2 << 20, 8 << 20)].into());
    assert_eq!(
        pages("resources: {limits: {memory: 1Mi, hugepages-1Gi: 1Gi}}"),
        [(2 << 20, 8 << 20), (1 << 30, 1 << 30)].into()
    );
}

#[test]
fn every_fault_names_file_line_and_field() {
    const API: &str = "needs an object of the API server, which a static pod may not use";
    for (spec, container, expected) in [
        ("restartPolicy: Sometimes", "", "web.yaml:9: spec.restartPolicy: `Sometimes` is not one of `Always`, `OnFailure`, `Never`".to_owned()),
        ("hostNetwork: 1", "", "web.yaml:9: spec.hostNetwork: expected `true` or `false`, found integer `1`".to_owned()),
        ("serviceAccountName: x", "", format!("web.yaml:9: spec.serviceAccountName: {API}")),
        ("volumes: [{name: v, secret: {secretName: s}}]", "", format!("web.yaml:9: spec.volumes[0].secret: {API}")),
        ("volumes: [{name: v, configMap: {name: s}}]", "", format!("web.yaml:9: spec.volumes[0].configMap: {API}")),
        ("volumes: [{name: v, persistentVolumeClaim: {claimName: s}}]", "", format!("web.yaml:9: spec.volumes[0].persistentVolumeClaim: {API}")),
        ("volumes: [{name: v, nfs: {server: s, path: /}}]", "", "web.yaml:9: spec.volumes[0].nfs: volumes of this kind are not supported by this version: use `emptyDir` or `hostPath`".to_owned()),
        ("volumes: [{name: v, emptyDir: {}, hostPath: {path: /}}]", "", "web.yaml:9: spec.volumes[0]: a volume is of one kind, this one of emptyDir and hostPath".to_owned()),
        ("volumes: [{name: v, hostPath: {path: /a/../b}}]", "", "web.yaml:9: spec.volumes[0].hostPath.path: `/a/../b` is not an absolute path without `..`".to_owned()),
        ("volumes: [{name: v}, {name: v}]", "", "web.yaml:9: spec.volumes[1].name: `v` is given twice".to_owned()),
        ("hostUsers: false\nhostPID: true", "", "web.yaml:10: spec.hostPID: cannot be true when `hostUsers` is false".to_owned()),
        ("hostUsers: false\nhostIPC: true", "", "web.yaml:10: spec.hostIPC: cannot be true when `hostUsers` is false".to_owned()),
        ("hostUsers: false\nhostNetwork: true", "", "web.yaml:10: spec.hostNetwork: cannot be true when `hostUsers` is false".to_owned()),
        ("securityContext: {seccompProfile: {type: Localhost}}", "", "web.yaml:9: spec.securityContext.seccompProfile.localhostProfile: must name a file below the seccomp directory: relative, without `..`".to_owned()),
        ("securityContext: {appArmorProfile: {type: Localhost}}", "", "web.yaml:9: spec.securityContext.appArmorProfile.localhostProfile: must be set when AppArmor type is Localhost".to_owned()),
        ("securityContext: {appArmorProfile: {type: Localhost, localhostProfile: ' a'}}", "", "web.yaml:9: spec.securityContext.appArmorProfile.localhostProfile: must not be padded with whitespace".to_owned()),
        ("securityContext: {appArmorProfile: {type: Unconfined, localhostProfile: a}}", "", "web.yaml:9: spec.securityContext.appArmorProfile.localhostProfile: can only be set when AppArmor type is Localhost".to_owned()),
        ("securityContext: {runAsUser: -1}", "", "web.yaml:9: spec.securityContext.runAsUser: -1 is not within 0 and 2147483647".to_owned()),
        ("securityContext: {runAsUser: 4294967296}", "", "web.yaml:9: spec.securityContext.runAsUser: 4294967296 is not within 0 and 2147483647".to_owned()),
        ("securityContext: {sysctls: [{name: 'a b', value: '1'}]}", "", "web.yaml:9: spec.securityContext.sysctls[0].name: `a b` is not the name of a sysctl".to_owned()),
        ("", "volumeMounts: [{name: v, mountPath: /x}]", "web.yaml:8: spec.containers[0].volumeMounts[0].name: the pod has no volume `v`".to_owned()),
        ("", "securityContext: {procMount: Unmasked}", "web.yaml:8: spec.containers[0].securityContext.procMount: `hostUsers` must be false to use `Unmasked`".to_owned()),
        ("volumes: [{name: v, downwardAPI: {items: [{path: ../x, fieldRef: {fieldPath: metadata.name}}]}}]", "", "web.yaml:9: spec.volumes[0].downwardAPI.items[0].path: `../x` is not a relative path without `..`, also not at its start".to_owned()),
        ("volumes: [{name: v, downwardAPI: {items: [{path: ..x, fieldRef: {fieldPath: metadata.name}}]}}]", "", "web.yaml:9: spec.volumes[0].downwardAPI.items[0].path: `..x` is not a relative path without `..`, also not at its start".to_owned()),
        ("volumes: [{name: v, downwardAPI: {items: [{path: x, fieldRef: {fieldPath: spec.nodeName}}]}}]", "", "web.yaml:9: spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: `spec.nodeName` is not a field that a file can show".to_owned()),
        ("volumes: [{name: v, downwardAPI: {items: [{path: x, fieldRef: {fieldPath: spec.host}}]}}]", "", "web.yaml:9: spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: `spec.host` is not a field that a file can show".to_owned()),
        ("volumes: [{name: v, downwardAPI: {defaultMode: 512, items: []}}]", "", "web.yaml:9: spec.volumes[0].downwardAPI.defaultMode: 512 is not within 0 and 511".to_owned()),
        ("volumes: [{name: v, downwardAPI: {items: [{path: x, resourceFieldRef: {resource: limits.cpu}}]}}]", "", "web.yaml:9: spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName: is missing".to_owned()),
        ("volumes: [{name: v, projected: {sources: [{downwardAPI: {items: [{path: a/b, fieldRef: {fieldPath: metadata.name}}]}}, {downwardAPI: {items: [{path: a//b, fieldRef: {fieldPath: metadata.uid}}]}}]}}]", "", "web.yaml:9: spec.volumes[0].projected: `a/b` is given to two files".to_owned()),
        ("volumes: [{name: v, projected: {sources: [{downwardAPI: {items: []}}, {serviceAccountToken: {path: t}}]}}]", "", format!("web.yaml:9: spec.volumes[0].projected: {API}")),
        ("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /x, subPath: a/../../b}]", "web.yaml:8: spec.containers[0].volumeMounts[0].subPath: `a/../../b` is not a relative path without `..`".to_owned()),
        ("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /x, recursiveReadOnly: Enabled}]", "web.yaml:8: spec.containers[0].volumeMounts[0].recursiveReadOnly: may only be specified when readOnly is true".to_owned()),
        ("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /x, readOnly: true, mountPropagation: HostToContainer, recursiveReadOnly: IfPossible}]", "web.yaml:8: spec.containers[0].volumeMounts[0].recursiveReadOnly: may only be specified when mountPropagation is None or not specified".to_owned()),
        ("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /x, mountPropagation: Bidirectional}]", "web.yaml:8: spec.containers[0].volumeMounts[0].mountPropagation: `Bidirectional` is for privileged containers only".to_owned()),
        ("", "ports: [{containerPort: 0}]", "web.yaml:8: spec.containers[0].ports[0].containerPort: 0 is not within 1 and 65535".to_owned()),
        ("", "ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]", "web.yaml:8: spec.containers[0].ports[1].hostPort: 80 is given twice".to_owned()),
        ("initContainers: [{name: s, image: x, restartPolicy: Always, ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]}]", "", "web.yaml:9: spec.initContainers[0].ports[1].hostPort: 80 is given twice".to_owned()),
        ("hostNetwork: true", "ports: [{containerPort: 80, hostPort: 81}]", "web.yaml:8: spec.containers[0].ports[0].hostPort: must equal containerPort in the node's network".to_owned()),
        ("", "resources: {limits: {example.com/gpu: 1}, requests: {example.com/gpu: 2}}", "web.yaml:8: spec.containers[0].resources.requests.example.com/gpu: cannot be overcommitted: request and limit must be equal".to_owned()),
        ("", "resources: {limits: {kubernetes.io/batch-cpu: 1}, requests: {kubernetes.io/batch-cpu: 2}}", "web.yaml:8: spec.containers[0].resources.requests.kubernetes.io/batch-cpu: more than the limit of kubernetes.io/batch-cpu".to_owned()),
        ("", "resources: {limits: {cpu: 1}, requests: {cpu: 2}}", "web.yaml:8: spec.containers[0].resources.requests.cpu: more than the limit of cpu".to_owned()),
        ("", "resources: {limits: {memory: -1}}", "web.yaml:8: spec.containers[0].resources.limits.memory: `-1` is negative".to_owned()),
        ("", "resources: {limits: {memory: 1GB}}", "web.yaml:8: spec.containers[0].resources.limits.memory: `1GB` is not a quantity: write a number with an optional suffix, such as `500m`, `2`, `128Mi` or `1G`".to_owned()),
        ("resources: {limits: {cpu: 1}}", "resources: {limits: {cpu: 2}, requests: {cpu: 1}}", "web.yaml:8: spec.containers[0].resources.limits.cpu: more than the pod's limit of cpu".to_owned()),
        ("resources: {requests: {memory: 1Mi}}", "resources: {requests: {memory: 2Mi}}", "web.yaml:9: spec.resources.requests.memory: less than its containers request together".to_owned()),
        ("resources: {limits: {cpu: 100m}}", "resources: {requests: {cpu: 200m}}", "web.yaml:9: spec.resources.requests.cpu: more than the limit of cpu".to_owned()),
        ("resources: {limits: {cpu: 1, hugepages-2Mi: 2Mi}}", "resources: {limits: {cpu: 1, hugepages-2Mi: 4Mi}}", "web.yaml:9: spec.resources.limits: fewer huge pages than its containers may use together".to_owned()),
        ("resources: {requests: {ephemeral-storage: 1Gi}}", "", "web.yaml:9: spec.resources.requests.ephemeral-storage: not a resource of a pod: `cpu`, `memory` or `hugepages-<size>`".to_owned()),
        ("resources: {limits: {cpu: 1, example.com/gpu: 1}}", "", "web.yaml:9: spec.resources.limits.example.com/gpu: not a resource of a pod: `cpu`, `memory` or `hugepages-<size>`".to_owned()),
        ("", "resources: {requests: {hugepages-2Mi: 2Mi}}", "web.yaml:8: spec.containers[0].resources.requests: huge pages cannot be overcommitted: request and limit must be equal".to_owned()),
        ("", "securityContext: {privileged: true, allowPrivilegeEscalation: false}", "web.yaml:8: spec.containers[0].securityContext.allowPrivilegeEscalation: cannot be false while `privileged` is true".to_owned()),
        ("", "securityContext: {capabilities: {drop: [CAP_NET_ADMIN]}}", "web.yaml:8: spec.containers[0].securityContext.capabilities.drop[0]: `CAP_NET_ADMIN` is not a capability: write it without CAP_, such as `NET_ADMIN`".to_owned()),
        ("", "env: [{name: A, value: 1}]", "web.yaml:8: spec.containers[0].env[0].value: expected a string, found integer `1`: put it in quotes".to_owned()),
        ("", "env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]", format!("web.yaml:8: spec.containers[0].env[0].valueFrom: {API}")),
        ("", "env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.hostname}}}]", "web.yaml:8: spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: `spec.hostname` is not a field that a variable can show".to_owned()),
        ("", "envFrom: [{configMapRef: {name: s}}]", format!("web.yaml:8: spec.containers[0].envFrom[0]: {API}")),
        ("initContainers: [{name: c, image: x}]", "", "web.yaml:6: spec.containers[0].name: `c` is given twice".to_owned()),
        ("dnsPolicy: None", "", "web.yaml:4: spec.dnsConfig: must name a nameserver while dnsPolicy is None".to_owned()),
    ] {
        let found = faults(&pod(spec, container));
        // The place of a field that is not there is that of what is around it.
        assert!(found == expected || expected.contains("spec.dnsConfig") && found.ends_with(&expected[11..]), "{found}\n{expected}");
    }
}

/// Source: `pkg/apis/core/validation/validation.go`, which knows nothing against these.
#[test]
fn what_validation_lets_in_is_let_in() {
    for (written, grace) in [("-1", 0), ("0", 0), ("9999999999", u64::from(i32::MAX.unsigned_abs()))] {
        let pod = one(&pod(&format!("terminationGracePeriodSeconds: {written}"), "")).pod;
        assert_eq!(pod.grace.as_secs(), grace, "{written}");
    }
    const FILE: &str = "{path: f, fieldRef: {fieldPath: metadata.name}}";
    for (spec, container) in [
        ("", "securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [SYS_ADMIN]}}"),
        (
            "volumes: [{name: v, emptyDir: {}}]",
            "volumeMounts: [{name: v, mountPath: '/sys/bus/pci/devices/0000:00:1e.0'}]",
        ),
        (
            "",
            "env: [{name: P, valueFrom: {resourceFieldRef: {resource: limits.hugepages-2Mi}}}, {name: Q, valueFrom: {resourceFieldRef: {resource: requests.hugepages-1Gi}}}]",
        ),
        (&format!("volumes: [{{name: v, downwardAPI: {{items: [{FILE}, {FILE}]}}}}]"), ""),
        ("volumes: [{name: v, projected: {sources: [{}]}}]", ""),
    ] {
        assert_eq!(one(&pod(spec, container)).unknown, Vec::<String>::new(), "{spec} {container}");
    }
    let no_pages = "env: [{name: P, valueFrom: {resourceFieldRef: {resource: limits.hugepages-0}}}]";
    assert!(faults(&pod("", no_pages)).contains("`limits.hugepages-0` is not one of"));
}

#[test]
fn main_containers_alone_take_host_ports_from_each_other() {
    const PORTS: &str = "ports: [{containerPort: 9100, hostPort: 9100}]";
    let once = pod("", PORTS);
    for role in ["", "restartPolicy: Always, "] {
        let init = |name: &str| format!("{{name: {name}, image: x, {role}{PORTS}}}");
        let list = format!("initContainers: [{}, {}]", init("a"), init("b"));
        one(&pod(&list, PORTS));
        one(&pod(&format!("hostNetwork: true\n{list}"), PORTS));
    }
    let other = format!("containers:\n  - {{name: d, image: x, {PORTS}}}\n");
    let faults = faults(&once.replace("containers:\n", &other));
    assert!(faults.contains("spec.containers[1].ports[0].hostPort: 9100 is given twice"), "{faults}");
}

#[test]
fn app_armor_profiles_are_asked_for_by_field_and_by_annotation() {
    let key = "container.apparmor.security.beta.kubernetes.io/";
    let with = |name: &str, profile: &str, container: &str| {
        let metadata = format!("metadata: {{name: web, annotations: {{{key}{name}: {profile}}}}}");
        pod("securityContext: {appArmorProfile: {type: RuntimeDefault}}", container)
            .replace("metadata: {name: web}", &metadata)
    };
    let Manifest { pod, .. } = one(&with("c", "localhost/strict", ""));
    let asked = app_armor::profile(&pod, &pod.containers[0]).map(Cow::into_owned);
    assert_eq!(asked, Some(AppArmorProfile::Localhost("strict".to_owned())));
    let by_field = "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: own}}";
    let Manifest { pod, .. } = one(&with("c", "unconfined", by_field));
    let asked = app_armor::profile(&pod, &pod.containers[0]).map(Cow::into_owned);
    assert_eq!(asked, Some(AppArmorProfile::Localhost("own".to_owned())));
    assert_eq!(pod.security.app_armor, Some(AppArmorProfile::RuntimeDefault));
    for (name, profile, expected) in [
        ("d", "unconfined", "d: container not found"),
        ("c", "strict", "c: invalid AppArmor profile name: \"strict\""),
    ] {
        let faults = faults(&with(name, profile, ""));
        assert!(faults.contains(&format!("metadata.annotations.{key}{expected}")), "{faults}");
    }
}

#[test]
fn selinux_options_are_taken_as_they_are_and_the_policy_of_changes_is_one_that_there_is() {
    let own = "securityContext: {seLinuxOptions: {user: u, role: r, type: t, level: 'none at all'}}";
    let of_pod = "securityContext: {seLinuxChangePolicy: Recursive, seLinuxOptions: {level: 's0:c1,c2'}}";
    let Manifest { pod: taken, unsupported, .. } = one(&pod(of_pod, own));
    assert_eq!(unsupported, Vec::<String>::new());
    let SeLinuxOptions { user, role, kind, level } = taken.containers[0].security.se_linux.clone();
    assert_eq!([user, role, kind, level], ["u", "r", "t", "none at all"]);
    let level = "s0:c1,c2".to_owned();
    assert_eq!(taken.security.se_linux, SeLinuxOptions { level, ..SeLinuxOptions::default() });
    one(&pod("securityContext: {seLinuxOptions: {}}", ""));
    let text = |policy: &str| pod(&format!("securityContext: {{seLinuxChangePolicy: {policy}}}"), "");
    let told = faults(&text("MountOption"));
    assert!(told.contains("seLinuxChangePolicy: `MountOption` is not one of `Recursive`"), "{told}");
    let of_api = Origin { source: Source::Api, ..origin() };
    read(&text("MountOption"), &of_api).unwrap();
    let told = read(&text("Never"), &of_api).unwrap_err().to_string();
    assert!(told.contains("seLinuxChangePolicy: `Never` is not one of `Recursive`, `MountOption`"), "{told}");
}

/// Source: `MakeAbsolutePath` in `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
#[test]
fn a_relative_path_of_the_termination_message_begins_at_the_root() {
    let Manifest { pod, .. } = one(&pod("", "terminationMessagePath: tmp/last"));
    assert_eq!(pod.containers[0].termination_message.path, "/tmp/last");
}

#[test]
fn cve_2024_10220_and_cve_2025_1767_git_repo_is_refused() {
    let faults = faults(&pod("volumes: [{name: v, gitRepo: {repository: 'file:///etc'}}]", ""));
    assert!(faults.contains("spec.volumes[0].gitRepo: volumes of this kind are not supported"), "{faults}");
}

#[test]
fn cve_2023_2431_a_local_profile_without_a_name_is_refused() {
    for profile in [
        "{type: Localhost}",
        "{type: Localhost, localhostProfile: ''}",
        "{type: Localhost, localhostProfile: ../x}",
    ] {
        let faults = faults(&pod("", &format!("securityContext: {{seccompProfile: {profile}}}")));
        assert!(faults.contains("localhostProfile: must name a file"), "{faults}");
    }
}

#[test]
fn names_cannot_leave_their_place() {
    for (from, to, field) in [
        ("name: web}", "name: ../../etc}", "metadata.name"),
        ("name: web}", "name: web, namespace: a/b}", "metadata.namespace"),
        ("name: web}", "name: web, uid: ../x}", "metadata.uid"),
        ("- name: c", "- name: ../c", "spec.containers[0].name"),
        ("image: busybox:1", "image: ''", "spec.containers[0].image"),
    ] {
        let faults = faults(&pod("", "").replace(from, to));
        assert!(faults.contains(&format!("{field}: ")), "{faults}");
    }
}

#[test]
fn lists_and_several_documents() {
    let item = "{metadata: {name: NAME}, spec: {containers: [{name: c, image: i}]}}";
    let text = format!(
        "apiVersion: v1\nkind: PodList\nitems: [{}, {}]\n---\n{}",
        item.replace("NAME", "a"),
        item.replace("NAME", "b"),
        pod("", "")
    );
    let names: Vec<_> = read(&text, &origin()).unwrap().iter().map(|one| one.pod.name.name.clone()).collect();
    assert_eq!(names, ["a-node-1", "b-node-1", "web-node-1"]);
    for (text, expected) in [
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "web.yaml:2: kind: Deployment of apps/v1 is not a pod: only Pod and PodList of v1 can be run from here",
        ),
        (
            "metadata: {}\n",
            "web.yaml:1: `apiVersion` or `kind` is missing: a pod begins with `apiVersion: v1` and `kind: Pod`",
        ),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", "web.yaml:1: spec: is missing"),
    ] {
        assert_eq!(faults(text), expected);
    }
}

/// A record is read back with the bounds of a manifest.
#[test]
fn a_pod_that_is_too_large_as_json_is_refused() {
    let pod = |tabs: usize| {
        let text = "\t".repeat(tabs);
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{big: \"x{text}x\"}}}}\nspec: {{containers: [{{name: c, image: busybox}}]}}\n"
        )
    };
    let fits = one(&pod(4 << 20)).pod;
    assert_eq!(*pod_from_json(&fits.manifest, Source::File).unwrap().manifest, *fits.manifest);
    let refused = faults(&pod(6 << 20));
    assert!(refused.contains("as JSON it is larger than"), "{refused}");
}

/// `kubectl debug` gives one to a pod that runs.
#[test]
fn an_ephemeral_container_comes_to_pods_of_the_api_alone() {
    let pod = |more: &str| {
        format!(
            r#"{{"metadata": {{"name": "web", "namespace": "shop", "uid": "u1"}}, "spec": {{
                "volumes": [{{"name": "v", "emptyDir": {{}}}}], "initContainers": [{{"name": "i", "image": "i"}}],
                "containers": [{{"name": "c", "image": "i", "resources": {{"limits": {{"cpu": "1", "memory": "1Gi"}}}}}}],
                "ephemeralContainers": [{{"name": "debugger", "image": "i" {more}}}]}}}}"#
        )
    };
    let whole = pod(
        r#", "targetContainerName": "c", "stdin": true, "tty": true, "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "terminationMessagePolicy": "FallbackToLogsOnError""#,
    );
    let read = pod_from_json(&whole, Source::Api).unwrap();
    let [debugger] = read.ephemeral_containers.as_slice() else { panic!("{read:?}") };
    assert_eq!((debugger.kind, debugger.target.as_ref().unwrap().as_str()), (ContainerKind::Ephemeral, "c"));
    assert_eq!((debugger.stdio.stdin, debugger.stdio.tty), (Stdin::Open, true));
    assert_eq!(debugger.mounts.len(), 1);
    assert_eq!(debugger.termination_message.policy, TerminationMessagePolicy::FallbackToLogsOnError);
    let back = pod_from_json(&read.manifest, Source::Api).unwrap();
    assert_eq!(back.ephemeral_containers, read.ephemeral_containers);
    for (more, expected) in [
        (r#", "targetContainerName": "i""#, ""),
        (r#", "targetContainerName": "" "#, ""),
        (r#", "targetContainerName": "x""#, "[0].targetContainerName: the pod has no container `x`"),
        (
            r#", "targetContainerName": "debugger""#,
            "[0].targetContainerName: the pod has no container `debugger`",
        ),
        (r#"}, {"name": "c", "image": "i""#, "[1].name: `c` is given twice"),
        (r#"}, {"name": "debugger", "image": "i""#, "[1].name: `debugger` is given twice"),
        (
            r#", "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}]"#,
            "[0].volumeMounts[0].subPath: cannot be set for an ephemeral container",
        ),
        (
            r#", "volumeMounts": [{"name": "v", "mountPath": "/v", "subPathExpr": "a"}]"#,
            "[0].volumeMounts[0].subPathExpr: cannot be set for an ephemeral container",
        ),
        (r#", "ports": [{"containerPort": 1}]"#, "[0].ports: cannot be set for an ephemeral container"),
    ] {
        let found = pod_from_json(&pod(more), Source::Api);
        let found = found.err().map_or_else(String::new, |faults| faults.to_string());
        let is_right = found.contains(expected) && found.is_empty() == expected.is_empty();
        assert!(is_right, "{more}: {found}");
    }
    let faults = pod_from_json(&pod(""), Source::File).unwrap_err().to_string();
    assert!(faults.contains("spec.ephemeralContainers: cannot be given when a pod is made"), "{faults}");
}

/// It has no resources, and takes no class from a pod whose others have all.
#[test]
fn an_ephemeral_container_changes_no_class() {
    let pod = |more: &str| {
        let limits = r#"{"limits": {"cpu": "1", "memory": "1Gi"}}"#;
        let text = format!(
            r#"{{"metadata": {{"name": "web", "namespace": "shop", "uid": "u1"}}, "spec": {{
                "containers": [{{"name": "c", "image": "i", "resources": {limits}}}] {more}}}}}"#
        );
        pod_from_json(&text, Source::Api).unwrap()
    };
    let with = pod(r#", "ephemeralContainers": [{"name": "debugger", "image": "i"}]"#);
    assert_eq!((with.qos, pod("").qos), (QosClass::Guaranteed, QosClass::Guaranteed));
    assert_eq!(with.containers[0].hash, pod("").containers[0].hash);
}

#[test]
fn the_grace_of_a_deletion_is_bounded_like_a_pods_own() {
    for (asked, expected) in
        [("5", 5), ("-1", 0), ("0", 0), ("null", 30), ("9223372036854775807", 2_147_483_647)]
    {
        let pod = format!(
            r#"{{"metadata": {{"name": "web", "namespace": "shop", "uid": "u1", "deletionTimestamp": "2026-11-21T07:00:00Z",
                "deletionGracePeriodSeconds": {asked}}}, "spec": {{"containers": [{{"name": "c", "image": "i"}}]}}}}"#
        );
        let pod = pod_from_json(&pod, Source::Api).unwrap();
        assert_eq!(pod.deletion, Some(Duration::from_secs(expected)), "{asked}");
    }
}
