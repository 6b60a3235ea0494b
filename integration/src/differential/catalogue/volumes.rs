//! Volumes of each kind that needs no cloud, and how they are mounted.

use serde_json::{Value, json};

use crate::differential::case::{Case, HOST_DIR, IMAGE, STAY, TELL, shell};

pub(super) fn cases() -> Vec<Case> {
    [kinds(), of_host(), projected(), mounts(), mounts_over()].concat()
}

/// A pod with one volume below `/v`.
fn volume(name: &str, source: Value) -> Case {
    mounted(name, source, json!({}))
}

fn mounted(name: &str, source: Value, mount: Value) -> Case {
    let (mut volume, mut mounts) = (json!({ "name": "v" }), json!({ "name": "v", "mountPath": "/v/v" }));
    for (of, more) in [(&mut volume, source), (&mut mounts, mount)] {
        *of = crate::differential::case::with(of.take(), more);
    }
    Case::telling(name, json!({ "volumeMounts": [mounts] }), json!({ "volumes": [volume] }))
}

fn kinds() -> Vec<Case> {
    let items = json!([{ "key": "a", "path": "deep/er/a" }, { "key": "b", "path": "b", "mode": 0o400 }]);
    vec![
        volume("volume-empty-dir", json!({ "emptyDir": {} })),
        volume("volume-empty-dir-sized", json!({ "emptyDir": { "sizeLimit": "10Mi" } })),
        volume("volume-memory", json!({ "emptyDir": { "medium": "Memory" } })),
        volume("volume-memory-sized", json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "10Mi" } })),
        Case::telling(
            "volume-memory-of-limit",
            json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v/v" }], "resources": { "limits": { "memory": "64Mi" } } }),
            json!({ "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory" } }] }),
        ),
        volume("volume-config-map", json!({ "configMap": { "name": "map" } })),
        volume(
            "volume-config-map-items",
            json!({ "configMap": { "name": "map", "items": items, "defaultMode": 0o640 } }),
        ),
        volume("volume-config-map-optional", json!({ "configMap": { "name": "none", "optional": true } })),
        volume("volume-config-map-fixed", json!({ "configMap": { "name": "fixed", "defaultMode": 0o444 } })),
        volume("volume-config-map-empty", json!({ "configMap": { "name": "empty" } })),
        volume(
            "volume-config-map-item-optional",
            json!({ "configMap": { "name": "map", "optional": true,
            "items": [{ "key": "a", "path": "a" }, { "key": "none", "path": "none" }] } }),
        ),
        volume("volume-secret", json!({ "secret": { "secretName": "secret" } })),
        volume(
            "volume-secret-mode",
            json!({ "secret": { "secretName": "secret", "defaultMode": 0o400,
            "items": [{ "key": "password", "path": "p" }, { "key": "key", "path": "k", "mode": 0o777 }] } }),
        ),
        volume("volume-secret-optional", json!({ "secret": { "secretName": "none", "optional": true } })),
        volume("volume-image", json!({ "image": { "reference": IMAGE } })),
        mounted("volume-image-part", json!({ "image": { "reference": IMAGE } }), json!({ "subPath": "bin" })),
        volume("volume-downward-api", json!({ "downwardAPI": downward() })),
        volume(
            "volume-downward-api-mode",
            json!({ "downwardAPI": { "defaultMode": 0o600, "items": [
            { "path": "name", "fieldRef": { "fieldPath": "metadata.name" }, "mode": 0o444 },
            { "path": "d/uid", "fieldRef": { "fieldPath": "metadata.uid" } }] } }),
        ),
    ]
}

fn downward() -> Value {
    let field = |path: &str, of: &str| json!({ "path": path, "fieldRef": { "fieldPath": of } });
    let resource = |path: &str, of: &str, divisor: &str| json!({ "path": path, "resourceFieldRef": { "containerName": "main", "resource": of, "divisor": divisor } });
    json!({ "items": [
        field("labels", "metadata.labels"), field("annotations", "metadata.annotations"), field("name", "metadata.name"),
        field("label", "metadata.labels['tier']"), field("note", "metadata.annotations['note']"), field("uid", "metadata.uid"),
        resource("requests", "requests.cpu", "1m"), resource("requests-memory", "requests.memory", "1Mi"),
    ] })
}

fn of_host() -> Vec<Case> {
    let host = |name: &str, path: &str, kind: &str| {
        volume(name, json!({ "hostPath": { "path": format!("{HOST_DIR}/{path}"), "type": kind } }))
    };
    vec![
        host("host-path", "dir", ""),
        host("host-path-directory", "dir", "Directory"),
        host("host-path-made", "made/deep", "DirectoryOrCreate"),
        host("host-path-file", "file", "File"),
        host("host-path-file-made", "made-file", "FileOrCreate"),
        host("host-path-absent", "absent/deep", ""),
        host("host-path-is-file", "file", "Directory"),
        host("host-path-is-directory", "dir", "File"),
        host("host-path-no-socket", "file", "Socket"),
        host("host-path-no-directory", "none", "Directory"),
        volume("host-path-device", json!({ "hostPath": { "path": "/dev/null", "type": "CharDevice" } })),
        volume(
            "host-path-no-block-device",
            json!({ "hostPath": { "path": "/dev/null", "type": "BlockDevice" } }),
        ),
    ]
}

/// A projected volume in a pod that names its account, which tokens need.
fn of_default(name: &str, projected: Value, container: Value, pod: Value) -> Case {
    let (mut main, mut spec) = (
        json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v/v" }] }),
        json!({ "serviceAccountName": "default", "volumes": [{ "name": "v", "projected": projected }] }),
    );
    for (of, more) in [(&mut main, container), (&mut spec, pod)] {
        *of = crate::differential::case::with(of.take(), more);
    }
    Case::telling(name, main, spec)
}

fn projected() -> Vec<Case> {
    let map = json!({ "configMap": { "name": "map", "items": [{ "key": "a", "path": "map/a" }] } });
    let secret = json!({ "secret": { "name": "secret", "items": [{ "key": "password", "path": "secret/p", "mode": 0o400 }] } });
    let token =
        json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 600, "audience": "x" } });
    let all = json!([map, secret, { "downwardAPI": downward() }, token]);
    vec![
        of_default("projected", json!({ "sources": all }), json!({}), json!({})),
        volume("projected-mode", json!({ "projected": { "sources": [map, secret], "defaultMode": 0o440 } })),
        of_default("projected-token", json!({ "sources": [token] }), json!({}), json!({})),
        of_default(
            "projected-token-of-user",
            json!({ "sources": [token], "defaultMode": 0o644 }),
            json!({ "securityContext": { "runAsUser": 1000 } }),
            json!({}),
        ),
        of_default(
            "projected-token-of-group",
            json!({ "sources": [token] }),
            json!({}),
            json!({ "securityContext": { "fsGroup": 7000 } }),
        ),
        volume(
            "projected-optional",
            json!({ "projected": { "sources": [
            { "configMap": { "name": "none", "optional": true } }, { "secret": { "name": "none", "optional": true } }] } }),
        ),
    ]
}

fn mounts() -> Vec<Case> {
    let empty = json!({ "emptyDir": {} });
    let map = json!({ "configMap": { "name": "map" } });
    let dir = json!({ "hostPath": { "path": format!("{HOST_DIR}/dir") } });
    let var = json!([{ "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }]);
    let sub = |name: &str, expr: &str| {
        Case::telling(
            name,
            json!({ "env": var, "volumeMounts": [{ "name": "v", "mountPath": "/v/v", "subPathExpr": expr }] }),
            json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }),
        )
    };
    let write = shell(
        "first",
        "echo shared >/w/f; mkdir /w/d",
        json!({ "volumeMounts": [{ "name": "v", "mountPath": "/w" }] }),
    );
    vec![
        mounted("mount-read-only", empty.clone(), json!({ "readOnly": true })),
        mounted("mount-sub-path", empty, json!({ "subPath": "a/b" })),
        mounted("mount-sub-path-of-map", map.clone(), json!({ "subPath": "a", "mountPath": "/v/a" })),
        mounted("mount-sub-path-read-only", map.clone(), json!({ "subPath": "b", "readOnly": true })),
        mounted("mount-map-read-only", map, json!({ "readOnly": true })),
        sub("mount-sub-path-expr", "$(NAME)/x"),
        sub("mount-sub-path-expr-plain", "plain"),
        mounted("mount-from-host", dir.clone(), json!({ "mountPropagation": "HostToContainer" })),
        mounted("mount-none", dir.clone(), json!({ "mountPropagation": "None" })),
        Case::telling(
            "mount-both-ways",
            json!({ "securityContext": { "privileged": true },
                "volumeMounts": [{ "name": "v", "mountPath": "/v/v", "mountPropagation": "Bidirectional" }] }),
            json!({ "volumes": [{ "name": "v", "hostPath": { "path": format!("{HOST_DIR}/dir") } }] }),
        ),
        mounted(
            "mount-recursive-read-only",
            dir.clone(),
            json!({ "readOnly": true, "recursiveReadOnly": "Enabled" }),
        ),
        mounted(
            "mount-recursive-if-possible",
            dir.clone(),
            json!({ "readOnly": true, "recursiveReadOnly": "IfPossible" }),
        ),
        mounted("mount-recursive-not", dir, json!({ "readOnly": true, "recursiveReadOnly": "Disabled" })),
        Case::telling(
            "mount-shared",
            json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v/one" }, { "name": "v", "mountPath": "/v/two", "subPath": "d" }] }),
            json!({ "initContainers": [write], "volumes": [{ "name": "v", "emptyDir": {} }] }),
        ),
    ]
}

/// Over what a container has anyhow.
fn mounts_over() -> Vec<Case> {
    vec![
        mounted("mount-over-etc", json!({ "emptyDir": {} }), json!({ "mountPath": "/etc/hosts.d" })),
        Case::scripted(
            "mount-own-hosts",
            &format!("{TELL}\n{STAY}"),
            json!({ "volumeMounts": [{ "name": "v", "mountPath": "/etc/hosts", "subPath": "a" }] }),
            json!({ "volumes": [{ "name": "v", "configMap": { "name": "map" } }] }),
        ),
        Case::scripted(
            "mount-dev-shm",
            &format!("{TELL}\n{STAY}"),
            json!({ "volumeMounts": [{ "name": "v", "mountPath": "/dev/shm" }] }),
            json!({ "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory" } }] }),
        ),
        Case::telling(
            "mount-dev-host",
            json!({ "volumeMounts": [{ "name": "v", "mountPath": "/dev/null2" }] }),
            json!({ "volumes": [{ "name": "v", "hostPath": { "path": "/dev/zero" } }] }),
        ),
        Case::telling(
            "mount-termination-path",
            json!({ "terminationMessagePath": "/tmp/ended", "volumeMounts": [{ "name": "v", "mountPath": "/v/v" }] }),
            json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }),
        ),
    ]
}
