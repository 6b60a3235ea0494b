//! CPU, memory and storage: classes of service, cgroups, OOM scores.

use serde_json::{Value, json};

use crate::differential::case::{Case, STAY, TELL, shell};

pub(super) fn cases() -> Vec<Case> {
    let tell = format!("{TELL}\n{STAY}");
    let of = |name: &str, resources: Value| Case::telling(name, json!({ "resources": resources }), json!({}));
    let of_pod =
        |name: &str, resources: Value| Case::telling(name, json!({}), json!({ "resources": resources }));
    let small = json!({ "cpu": "50m", "memory": "64Mi" });
    let two = |name: &str, first: Value, second: Value| {
        Case::of(
            name,
            json!({ "containers": [
                shell("main", &tell, json!({ "resources": first })), shell("other", &tell, json!({ "resources": second })),
            ] }),
        )
    };
    let init = shell("first", "true", json!({ "resources": { "requests": { "cpu": "200m" } } }));
    let sidecar =
        shell("beside", &tell, json!({ "restartPolicy": "Always", "resources": { "limits": small } }));
    vec![
        of("resources-guaranteed", json!({ "limits": small })).dies(),
        of(
            "resources-burstable",
            json!({ "requests": { "cpu": "20m", "memory": "32Mi" }, "limits": { "cpu": "100m", "memory": "64Mi" } }),
        ),
        of("resources-cpu-request", json!({ "requests": { "cpu": "100m" } })),
        of("resources-cpu-limit", json!({ "limits": { "cpu": "150m" } })),
        of("resources-cpu-tiny", json!({ "requests": { "cpu": "1m" }, "limits": { "cpu": "1m" } })),
        of("resources-cpu-zero", json!({ "requests": { "cpu": "0" } })),
        of("resources-memory-request", json!({ "requests": { "memory": "100Mi" } })),
        of("resources-memory-limit", json!({ "limits": { "memory": "100M" } })),
        of("resources-memory-limit-with-a-power-of-two", json!({ "limits": { "memory": "512M" } })),
        of(
            "resources-disk",
            json!({ "requests": { "ephemeral-storage": "10Mi" }, "limits": { "ephemeral-storage": "1Gi" } }),
        ),
        of(
            "resources-odd-units",
            json!({ "requests": { "cpu": "0.0555", "memory": "33333k" }, "limits": { "memory": "0.05Gi" } }),
        ),
        two("resources-two", json!({ "limits": small }), json!({ "requests": { "cpu": "10m" } })),
        two(
            "resources-two-guaranteed",
            json!({ "limits": small }),
            json!({ "limits": { "cpu": "70m", "memory": "32Mi" } }),
        ),
        two("resources-one-of-two", json!({ "limits": { "memory": "64Mi" } }), json!({})),
        Case::telling("resources-init", json!({}), json!({ "initContainers": [init, sidecar] })),
        Case::telling("resources-init-alone", json!({}), json!({ "initContainers": [init] })),
        of_pod(
            "resources-of-pod",
            json!({ "requests": { "cpu": "100m", "memory": "64Mi" }, "limits": { "cpu": "200m", "memory": "128Mi" } }),
        ),
        of_pod("resources-of-pod-guaranteed", json!({ "limits": { "cpu": "100m", "memory": "128Mi" } })),
        Case::telling(
            "resources-of-pod-and-container",
            json!({ "resources": { "requests": { "cpu": "20m" }, "limits": { "memory": "32Mi" } } }),
            json!({ "resources": { "requests": { "cpu": "100m" }, "limits": { "cpu": "200m", "memory": "128Mi" } } }),
        ),
        Case::telling(
            "resize-policy",
            json!({ "resources": { "limits": small }, "resizePolicy": [
                { "resourceName": "cpu", "restartPolicy": "NotRequired" }, { "resourceName": "memory", "restartPolicy": "RestartContainer" },
            ] }),
            json!({}),
        ),
        Case::telling(
            "overhead-none",
            json!({ "resources": { "limits": { "cpu": "2" }, "requests": { "cpu": "10m" } } }),
            json!({}),
        ),
    ]
}
