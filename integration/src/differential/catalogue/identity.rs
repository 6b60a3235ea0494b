//! Users, groups, host names, and what the pod is to its node: priority, tolerations, classes.

use serde_json::{Value, json};

use crate::differential::case::Case;

pub(super) fn cases() -> Vec<Case> {
    [users(), groups(), classes()].concat()
}

/// A pod with this security context.
fn pod(name: &str, context: Value) -> Case {
    Case::telling(name, json!({}), json!({ "securityContext": context }))
}

fn container(name: &str, context: Value) -> Case {
    Case::telling(name, json!({ "securityContext": context }), json!({}))
}

fn users() -> Vec<Case> {
    vec![
        container("user", json!({ "runAsUser": 1000 })),
        container("user-unknown", json!({ "runAsUser": 4321 })),
        container("user-and-group", json!({ "runAsUser": 1000, "runAsGroup": 3000 })),
        container("group-of-root", json!({ "runAsUser": 0, "runAsGroup": 2000 })),
        pod("pod-user", json!({ "runAsUser": 1000, "runAsGroup": 2000 })),
        pod("pod-user-not-root", json!({ "runAsUser": 1000, "runAsNonRoot": true })),
        Case::telling(
            "user-over-pods",
            json!({ "securityContext": { "runAsUser": 0 } }),
            json!({ "securityContext": { "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 2000 } }),
        ),
    ]
}

fn groups() -> Vec<Case> {
    let volume = json!([{ "name": "v", "emptyDir": {} }, { "name": "m", "configMap": { "name": "map" } },
        { "name": "s", "secret": { "secretName": "secret" } }, { "name": "t", "emptyDir": { "medium": "Memory" } }]);
    let mounts = json!([{ "name": "v", "mountPath": "/v/v" }, { "name": "m", "mountPath": "/v/m" },
        { "name": "s", "mountPath": "/v/s" }, { "name": "t", "mountPath": "/v/t" }]);
    let with_volumes = |name: &str, context: Value| {
        Case::telling(
            name,
            json!({ "volumeMounts": mounts }),
            json!({ "securityContext": context, "volumes": volume }),
        )
    };
    vec![
        pod("groups-more", json!({ "supplementalGroups": [5000, 4000, 5000] })),
        pod("groups-more-of-user", json!({ "runAsUser": 1000, "supplementalGroups": [4000] })),
        pod(
            "groups-strict",
            json!({ "runAsUser": 1000, "supplementalGroups": [4000], "supplementalGroupsPolicy": "Strict" }),
        ),
        pod("groups-merge", json!({ "runAsUser": 1000, "supplementalGroupsPolicy": "Merge" })),
        pod("groups-strict-none", json!({ "runAsUser": 1000, "supplementalGroupsPolicy": "Strict" })),
        with_volumes("fs-group", json!({ "fsGroup": 7000 })),
        with_volumes("fs-group-of-user", json!({ "fsGroup": 7000, "runAsUser": 1000, "runAsGroup": 3000 })),
        with_volumes(
            "fs-group-on-mismatch",
            json!({ "fsGroup": 7000, "fsGroupChangePolicy": "OnRootMismatch" }),
        ),
        with_volumes("fs-group-always", json!({ "fsGroup": 0, "fsGroupChangePolicy": "Always" })),
    ]
}

fn classes() -> Vec<Case> {
    let telling = |name: &str, fields: Value| Case::telling(name, json!({}), fields);
    vec![
        telling("priority-none", json!({ "priority": 0 })),
        telling("priority-class", json!({ "priorityClassName": "system-node-critical" })),
        telling("tolerations", json!({ "tolerations": [{ "operator": "Exists" }] })),
        telling(
            "account-no-token",
            json!({ "automountServiceAccountToken": false, "serviceAccountName": "default" }),
        ),
        telling("node-selector", json!({ "nodeSelector": { "kubernetes.io/os": "linux" } })),
        telling("os-linux", json!({ "os": { "name": "linux" } })),
        telling("readiness-gate", json!({ "readinessGates": [{ "conditionType": "example.com/gate" }] })),
    ]
}
