//! Command, arguments, working directory and environment.

use serde_json::{Value, json};

use super::{is_over, never};
use crate::differential::case::{Case, IMAGE, STAY, TELL, shell, with};

pub(super) fn cases() -> Vec<Case> {
    [commands(), forms(), from()].concat()
}

/// A pod with these variables.
fn env(name: &str, env: Value) -> Case {
    Case::telling(name, json!({ "env": env }), json!({}))
}

fn commands() -> Vec<Case> {
    let bare = |name: &str, container: Value| {
        let container = with(json!({ "name": "main", "image": IMAGE }), container);
        Case::of(name, with(json!({ "containers": [container] }), never())).until(is_over)
    };
    let vars = json!([{ "name": "A", "value": "one" }, { "name": "B", "value": "$(A) two" }]);
    vec![
        Case::telling("plain", json!({}), json!({})).dies(),
        Case::telling(
            "two-containers",
            json!({}),
            json!({ "containers": [
            shell("main", &format!("{TELL}\n{STAY}"), json!({})), shell("other", &format!("{TELL}\n{STAY}"), json!({})),
        ] }),
        ),
        bare("command-of-image", json!({})),
        bare("args-alone", json!({ "args": ["-c", "echo $0 of args", "x"] })),
        bare("command-and-args", json!({ "command": ["/bin/echo"], "args": ["a", "", "b c", "ü"] })),
        bare(
            "command-expands",
            json!({ "command": ["/bin/echo"], "env": vars,
                "args": ["$(A)", "$(B)", "$$(A)", "$(NONE)", "$(A", "$A", "$$$(A)", "$()", "x$(A)y$(A)"] }),
        ),
        Case::telling("working-dir", json!({ "workingDir": "/tmp" }), json!({})),
        Case::telling("working-dir-made", json!({ "workingDir": "/not/there/yet" }), json!({})),
        Case::telling("tty", json!({ "tty": true }), json!({})),
        Case::telling("stdin", json!({ "stdin": true }), json!({})),
        Case::scripted(
            "stdin-once",
            "cat; echo after",
            json!({ "stdin": true, "stdinOnce": true }),
            json!({}),
        ),
        Case::telling("tty-and-stdin", json!({ "tty": true, "stdin": true }), json!({})),
    ]
}

fn forms() -> Vec<Case> {
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let resource = |name: &str, resource: &str, divisor: &str| json!({ "name": name, "valueFrom": { "resourceFieldRef": { "resource": resource, "divisor": divisor } } });
    let key = |name: &str, kind: &str, of: &str, key: &str, optional: bool| json!({ "name": name, "valueFrom": { kind: { "name": of, "key": key, "optional": optional } } });
    let resources = json!([
        resource("CPU_LIMIT", "limits.cpu", "0"),
        resource("CPU_MILLI", "limits.cpu", "1m"),
        resource("CPU_REQUEST", "requests.cpu", "1m"),
        resource("MEMORY", "limits.memory", "1"),
        resource("MEMORY_MI", "limits.memory", "1Mi"),
        resource("MEMORY_K", "requests.memory", "1k"),
        resource("DISK", "requests.ephemeral-storage", "1Mi"),
        resource("DISK_LIMIT", "limits.ephemeral-storage", "1Ki"),
    ]);
    let bounds = json!({
        "limits": { "cpu": "300m", "memory": "100Mi", "ephemeral-storage": "1Gi" },
        "requests": { "cpu": "120m", "memory": "33M", "ephemeral-storage": "10Mi" },
    });
    vec![
        env(
            "env-values",
            json!([
                { "name": "A", "value": "plain" }, { "name": "EMPTY" }, { "name": "B", "value": "$(A)-$$(A)-$(C)" },
                { "name": "C", "value": "later" }, { "name": "A", "value": "again" }, { "name": "D", "value": "$(A)$(D)" },
                { "name": "with.dot", "value": "x" }, { "name": "with-dash", "value": "two\nlines" },
            ]),
        ),
        env(
            "env-path-and-home",
            json!([{ "name": "PATH", "value": "/bin:/sbin" }, { "name": "HOME", "value": "/x" }]),
        ),
        env("env-hostname", json!([{ "name": "HOSTNAME", "value": "mine" }])),
        env(
            "env-field-refs",
            json!([
                field("NAME", "metadata.name"), field("NAMESPACE", "metadata.namespace"), field("UID", "metadata.uid"),
                field("LABEL", "metadata.labels['tier']"), field("ANNOTATION", "metadata.annotations['note']"),
                field("NO_LABEL", "metadata.labels['none']"), field("NODE", "spec.nodeName"),
                field("ACCOUNT", "spec.serviceAccountName"), field("HOST", "status.hostIP"), field("HOSTS", "status.hostIPs"),
                field("IP", "status.podIP"), field("IPS", "status.podIPs"),
                { "name": "ALL", "value": "$(NAME)/$(LABEL)" },
            ]),
        ),
        Case::telling("env-resource-refs", json!({ "env": resources, "resources": bounds }), json!({})),
        Case::telling(
            "env-resource-refs-none",
            json!({ "env": [
            resource("CPU", "requests.cpu", "1m"), resource("MEMORY", "requests.memory", "1"),
        ] }),
            json!({}),
        ),
        env(
            "env-keys",
            json!([
                key("A", "configMapKeyRef", "map", "a", false), key("LINES", "configMapKeyRef", "map", "b", false),
                key("PASSWORD", "secretKeyRef", "secret", "password", false),
                key("NO_KEY", "configMapKeyRef", "map", "none", true), key("NO_MAP", "configMapKeyRef", "none", "a", true),
                key("NO_SECRET", "secretKeyRef", "none", "a", true), key("FIXED", "configMapKeyRef", "fixed", "x", false),
                { "name": "BOTH", "value": "$(A)$(PASSWORD)$(NO_KEY)" },
            ]),
        ),
    ]
}

fn from() -> Vec<Case> {
    let from = |name: &str, from: Value, env: Value| {
        Case::telling(name, json!({ "envFrom": from, "env": env }), json!({}))
    };
    let map = |prefix: &str, name: &str, optional: bool| json!({ "prefix": prefix, "configMapRef": { "name": name, "optional": optional } });
    let secret = |prefix: &str, name: &str| json!({ "prefix": prefix, "secretRef": { "name": name } });
    let write = shell(
        "first",
        "printf 'A=one\\nB=\"two words\"\\n# none\\nC=3\\n' >/f/env",
        json!({
            "volumeMounts": [{ "name": "f", "mountPath": "/f" }],
        }),
    );
    let file = |name: &str, key: &str, optional: bool| json!({ "name": name, "valueFrom": { "fileKeyRef": { "volumeName": "f", "path": "env", "key": key, "optional": optional } } });
    vec![
        from(
            "env-from",
            json!([map("", "map", false), secret("S_", "secret"), map("P_", "empty", false)]),
            json!([]),
        ),
        from(
            "env-from-order",
            json!([map("", "map", false), map("", "fixed", false)]),
            json!([{ "name": "a", "value": "own" }, { "name": "Z", "value": "$(UPPER_1)" }]),
        ),
        from("env-from-optional", json!([map("", "none", true), map("X", "map", true)]), json!([])),
        Case::telling(
            "env-file-keys",
            json!({ "env": [file("A", "A", false), file("B", "B", false), file("NONE", "NONE", true)] }),
            json!({ "initContainers": [write], "volumes": [{ "name": "f", "emptyDir": {} }] }),
        ),
        Case::telling("env-no-service-links", json!({}), json!({ "enableServiceLinks": false })),
        Case::telling("env-service-links", json!({}), json!({ "enableServiceLinks": true })),
    ]
}
