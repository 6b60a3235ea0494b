//! What a node refuses, and what fails there.

use serde_json::{Value, json};

use super::{backs_off, never, waits};
use crate::differential::case::{Case, HOST_DIR, IMAGE, with};

pub(super) fn cases() -> Vec<Case> {
    [images(), image_volumes(), configs(), starts(), mounts(), admission()].concat()
}

fn of(name: &str, container: Value, pod: Value) -> Case {
    Case::scripted(name, "true", container, pod)
}

fn images() -> Vec<Case> {
    let image = |name: &str, image: &str, policy: &str| {
        let container = json!({ "name": "main", "image": image, "imagePullPolicy": policy });
        Case::of(name, json!({ "containers": [container] }))
    };
    vec![
        image("image-absent", "localhost:5000/absent:1", "IfNotPresent")
            .until(|pod| waits(pod, "ImagePullBackOff")),
        image("image-absent-tag", "localhost:5000/busybox:absent", "Always")
            .until(|pod| waits(pod, "ImagePullBackOff")),
        image("image-no-registry", "localhost:5999/busybox:1", "Always")
            .until(|pod| waits(pod, "ImagePullBackOff")),
        image("image-never", "localhost:5000/absent:2", "Never").until(|pod| waits(pod, "ErrImageNeverPull")),
        image("image-bad-name", "UPPER", "IfNotPresent").until(|pod| waits(pod, "InvalidImageName")),
        image("image-bad-tag", "localhost:5000/busybox:a:b", "Never")
            .until(|pod| waits(pod, "InvalidImageName")),
        image("image-always", IMAGE, "Always").until(backs_off),
        of(
            "image-absent-of-init",
            json!({}),
            json!({ "initContainers": [
            { "name": "first", "image": "localhost:5000/absent:3", "imagePullPolicy": "Never" }] }),
        ),
    ]
}

fn image_volumes() -> Vec<Case> {
    let mounting = |name: &str, image: Value, part: &str| {
        let mounts = json!([{ "name": "v", "mountPath": "/v", "subPath": part }]);
        let volumes = json!([{ "name": "v", "image": image }]);
        of(name, json!({ "volumeMounts": mounts }), json!({ "volumes": volumes }))
    };
    let absent = |policy: &str| json!({ "reference": "localhost:5000/absent:4", "pullPolicy": policy });
    vec![
        mounting("volume-image-absent", absent("IfNotPresent"), "")
            .until(|pod| waits(pod, "ImagePullBackOff")),
        mounting("volume-image-never", absent("Never"), "").until(|pod| waits(pod, "ErrImageNeverPull")),
        mounting("volume-image-no-part", json!({ "reference": IMAGE }), "none/deeper")
            .until(|pod| waits(pod, "CreateContainerError")),
    ]
}

fn configs() -> Vec<Case> {
    let env =
        |name: &str, from: Value| of(name, json!({ "env": [{ "name": "A", "valueFrom": from }] }), json!({}));
    let unconfigured = |pod: &Value| waits(pod, "CreateContainerConfigError");
    let bad = vec![
        env("no-config-map", json!({ "configMapKeyRef": { "name": "none", "key": "a" } })),
        env("no-key", json!({ "configMapKeyRef": { "name": "map", "key": "none" } })),
        env("no-secret", json!({ "secretKeyRef": { "name": "none", "key": "a" } })),
        env("no-secret-key", json!({ "secretKeyRef": { "name": "secret", "key": "none" } })),
        of("no-env-from", json!({ "envFrom": [{ "configMapRef": { "name": "none" } }] }), json!({})),
        of("no-env-from-secret", json!({ "envFrom": [{ "secretRef": { "name": "none" } }] }), json!({})),
        of("root-not-allowed", json!({ "securityContext": { "runAsNonRoot": true } }), json!({})),
        of(
            "root-by-number-not-allowed",
            json!({ "securityContext": { "runAsNonRoot": true, "runAsUser": 0 } }),
            json!({}),
        ),
    ];
    bad.into_iter().map(|case| case.until(unconfigured)).collect()
}

fn starts() -> Vec<Case> {
    let command = |name: &str, command: Value| of(name, json!({ "command": command }), never());
    vec![
        command("command-absent", json!(["/absent"])),
        command("command-absent-in-path", json!(["absent"])),
        command("command-no-program", json!(["/etc/passwd"])),
        command("command-directory", json!(["/etc"])),
        of("command-absent-always", json!({ "command": ["/absent"] }), json!({})).until(backs_off),
        of("working-dir-is-file", json!({ "workingDir": "/etc/passwd" }), never()),
        of("capability-none", json!({ "securityContext": { "capabilities": { "add": ["NONE"] } } }), never()),
        of(
            "seccomp-absent",
            json!({ "securityContext": { "seccompProfile": { "type": "Localhost", "localhostProfile": "none.json" } } }),
            json!({}),
        ),
        of("memory-too-small", json!({ "resources": { "limits": { "memory": "1Ki" } } }), never()),
        of(
            "app-armor-absent",
            json!({ "securityContext": { "appArmorProfile": { "type": "Localhost", "localhostProfile": "none" } } }),
            json!({}),
        ),
        of(
            "proc-mount-unmasked",
            json!({ "securityContext": { "procMount": "Unmasked" } }),
            json!({ "hostUsers": false }),
        )
        .until(backs_off),
    ]
}

fn mounts() -> Vec<Case> {
    let mounted = |name: &str, source: Value, mount: Value| {
        let volume = with(json!({ "name": "v" }), source);
        let mount = with(json!({ "name": "v", "mountPath": "/v" }), mount);
        of(name, json!({ "volumeMounts": [mount] }), json!({ "volumes": [volume] }))
    };
    let env = json!([{ "name": "UP", "value": ".." }, { "name": "ROOT", "value": "/x" }]);
    let expr = |name: &str, expr: &str| {
        of(
            name,
            json!({ "env": env, "volumeMounts": [{ "name": "v", "mountPath": "/v", "subPathExpr": expr }] }),
            json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }),
        )
    };
    vec![
        mounted("volume-no-map", json!({ "configMap": { "name": "none" } }), json!({})),
        mounted(
            "volume-no-map-key",
            json!({ "configMap": { "name": "map", "items": [{ "key": "none", "path": "x" }] } }),
            json!({}),
        ),
        mounted("volume-no-secret", json!({ "secret": { "secretName": "none" } }), json!({})),
        mounted("sub-path-of-file", json!({ "configMap": { "name": "map" } }), json!({ "subPath": "a/b" })),
        mounted("mount-over-file", json!({ "emptyDir": {} }), json!({ "mountPath": "/etc/passwd" }))
            .until(backs_off),
        mounted(
            "mount-file-over-directory",
            json!({ "hostPath": { "path": format!("{HOST_DIR}/file") } }),
            json!({ "mountPath": "/etc" }),
        )
        .until(backs_off),
        mounted("mount-relative", json!({ "emptyDir": {} }), json!({ "mountPath": "v" })).until(backs_off),
        expr("sub-path-expr-up", "$(UP)/x"),
        expr("sub-path-expr-absolute", "$(ROOT)"),
        expr("sub-path-expr-none", "$(NONE)"),
        of(
            "projected-no-account",
            json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }),
            json!({ "serviceAccountName": "default",
            "volumes": [{ "name": "v", "projected": { "sources": [{ "configMap": { "name": "none" } }] } }] }),
        ),
    ]
}

fn admission() -> Vec<Case> {
    let wants = |name: &str, resources: Value| of(name, json!({ "resources": resources }), json!({}));
    let selects = |name: &str, fields: Value| of(name, json!({}), fields);
    let on = |expression: Value| {
        json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [expression] }] } } } })
    };
    vec![
        wants("too-much-cpu", json!({ "requests": { "cpu": "5000" } })),
        wants("too-much-memory", json!({ "requests": { "memory": "5000Gi" } })),
        wants("too-much-disk", json!({ "requests": { "ephemeral-storage": "9000Ti" } })),
        wants(
            "no-huge-pages",
            json!({ "limits": { "hugepages-2Mi": "4Mi", "memory": "64Mi", "cpu": "10m" } }),
        ),
        wants("no-such-resource", json!({ "limits": { "example.com/thing": "1" } })).until(backs_off),
        selects("selector-of-others", json!({ "nodeSelector": { "example.com/none": "x" } })),
        selects("affinity-to-others", on(json!({ "key": "example.com/none", "operator": "Exists" }))),
        selects(
            "affinity-here",
            on(json!({ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] })),
        )
        .until(backs_off),
        selects("os-windows", json!({ "os": { "name": "windows" } })),
    ]
}
