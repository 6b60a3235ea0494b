//! Pods of every shape, and what their cgroups must hold.

use serde_json::{Value, json};

use crate::kit::{shell, with};

/// CPU for one amount: shares of version 1; the weight of version 2, and what runc before 1.3.2 and crun before 1.23 made
/// of the shares.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpu {
    pub(super) shares: u64,
    pub(super) weight: u64,
    pub(super) old_weight: u64,
}

const fn cpu(shares: u64, weight: u64, old_weight: u64) -> Cpu {
    Cpu { shares, weight, old_weight }
}

/// No amount, and anything below 3m.
pub(super) const LEAST: Cpu = cpu(2, 1, 1);
const M5: Cpu = cpu(5, 2, 1);
const M6: Cpu = cpu(6, 3, 1);
const M30: Cpu = cpu(30, 7, 2);
const M40: Cpu = cpu(40, 9, 2);
pub(super) const M50: Cpu = cpu(51, 11, 2);
const M60: Cpu = cpu(61, 12, 3);
const M75: Cpu = cpu(76, 14, 3);
const M80: Cpu = cpu(81, 15, 4);
pub(super) const M90: Cpu = cpu(92, 16, 4);
const M100: Cpu = cpu(102, 17, 4);
const M110: Cpu = cpu(112, 19, 5);
const M125: Cpu = cpu(128, 21, 5);
pub(super) const M130: Cpu = cpu(133, 21, 5);
const M200: Cpu = cpu(204, 29, 8);
const M220: Cpu = cpu(225, 31, 9);
pub(super) const M476: Cpu = cpu(487, 56, 19);

/// CPU, CPU time in µs per 100 ms, memory in MiB.
pub(super) type Level = (Cpu, Option<u64>, Option<u64>);

/// A pod and what its cgroups must hold.
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    pub(super) spec: Value,
    pub(super) pod: Level,
    /// Those that go on running, by name.
    pub(super) containers: &'static [(&'static str, Level)],
}

pub(super) const UNBOUND: Level = (LEAST, None, None);

/// All of them. Together they ask for less than one processor, which is all that a small machine has.
pub(super) fn all() -> Vec<Shape> {
    limited_pods().into_iter().chain(unlimited_pods()).chain(pods_with_their_own()).collect()
}

/// Every container has limits.
fn limited_pods() -> [Shape; 4] {
    [
        Shape {
            name: "two",
            class: "Guaranteed",
            spec: json!({ "containers": [limited("a", "50m", "16Mi"), limited("b", "0.075", "24Mi")] }),
            pod: (M125, Some(12_500), Some(40)),
            containers: &[("a", (M50, Some(5000), Some(16))), ("b", (M75, Some(7500), Some(24)))],
        },
        // An init container runs alone: the larger of the two counts.
        Shape {
            name: "init",
            class: "Guaranteed",
            spec: json!({
                "initContainers": [with(limited("first", "200m", "32Mi"), json!({ "command": ["true"] }))],
                "containers": [limited("a", "40m", "16Mi")],
            }),
            pod: (M200, Some(20_000), Some(32)),
            containers: &[("a", (M40, Some(4000), Some(16)))],
        },
        // An init container runs beside the sidecars before it.
        Shape {
            name: "sidecar",
            class: "Burstable",
            spec: json!({
                "initContainers": [
                    with(asking("side", "30m", "60m", "16Mi"), json!({ "restartPolicy": "Always" })),
                    with(limited("first", "100m", "32Mi"), json!({ "command": ["true"] })),
                ],
                "containers": [asking("a", "50m", "100m", "16Mi")],
            }),
            pod: (M130, Some(16_000), Some(48)),
            containers: &[("side", (M30, Some(6000), Some(16))), ("a", (M50, Some(10_000), Some(16)))],
        },
        // Fractions of a processor: more than one of them, and less than a hundredth.
        Shape {
            name: "fractions",
            class: "Burstable",
            spec: json!({ "containers": [asking("a", "1m", "1.5", "16Mi"), limited("b", "5m", "16Mi")] }),
            pod: (M6, Some(150_500), Some(32)),
            containers: &[("a", (LEAST, Some(150_000), Some(16))), ("b", (M5, Some(1000), Some(16)))],
        },
    ]
}

/// Some amounts have no limit.
fn unlimited_pods() -> [Shape; 5] {
    [
        Shape {
            name: "requests",
            class: "Burstable",
            spec: json!({ "containers": [sleeps("a", json!({ "requests": { "cpu": "80m", "memory": "512Mi" } }))] }),
            pod: (M80, None, None),
            containers: &[("a", (M80, None, None))],
        },
        // One without limits leaves the pod without.
        Shape {
            name: "partly",
            class: "Burstable",
            spec: json!({ "containers": [asking("a", "60m", "100m", "32Mi"), sleeps("b", json!({}))] }),
            pod: (M60, None, None),
            containers: &[("a", (M60, Some(10_000), Some(32))), ("b", UNBOUND)],
        },
        // A limit without a request is the request.
        Shape {
            name: "cpu-limit",
            class: "Burstable",
            spec: json!({ "containers": [sleeps("a", json!({ "limits": { "cpu": "90m" } }))] }),
            pod: (M90, Some(9000), None),
            containers: &[("a", (M90, Some(9000), None))],
        },
        Shape {
            name: "memory-limit",
            class: "Burstable",
            spec: json!({ "containers": [sleeps("a", json!({ "limits": { "memory": "16Mi" } }))] }),
            pod: (LEAST, None, Some(16)),
            containers: &[("a", (LEAST, None, Some(16)))],
        },
        Shape {
            name: "nothing",
            class: "BestEffort",
            spec: json!({ "containers": [sleeps("a", json!({})), sleeps("b", json!({}))] }),
            pod: UNBOUND,
            containers: &[("a", UNBOUND), ("b", UNBOUND)],
        },
    ]
}

/// Pods that name resources for themselves.
fn pods_with_their_own() -> [Shape; 2] {
    [
        // What the pod names for itself bounds a container that names nothing.
        Shape {
            name: "whole",
            class: "Burstable",
            spec: json!({
                "resources": {
                    "requests": { "cpu": "110m", "memory": "32Mi" },
                    "limits": { "cpu": "220m", "memory": "64Mi" },
                },
                "containers": [sleeps("a", json!({})), asking("b", "40m", "80m", "24Mi")],
            }),
            pod: (M110, Some(22_000), Some(64)),
            containers: &[("a", (M220, Some(22_000), Some(64))), ("b", (M40, Some(8000), Some(24)))],
        },
        Shape {
            name: "whole-guaranteed",
            class: "Guaranteed",
            spec: json!({
                "resources": { "limits": { "cpu": "100m", "memory": "48Mi" } },
                "containers": [sleeps("a", json!({})), sleeps("b", json!({}))],
            }),
            pod: (M100, Some(10_000), Some(48)),
            containers: &[("a", (M100, Some(10_000), Some(48))), ("b", (M100, Some(10_000), Some(48)))],
        },
    ]
}

pub(super) fn sleeps(name: &str, resources: Value) -> Value {
    shell(name, "exec sleep infinity", json!({ "resources": resources }))
}

/// Requests and limits are the same.
pub(super) fn limited(name: &str, cpu: &str, memory: &str) -> Value {
    sleeps(name, json!({ "limits": { "cpu": cpu, "memory": memory } }))
}

/// Asks for less CPU than it may use, and half the memory.
fn asking(name: &str, request: &str, limit: &str, memory: &str) -> Value {
    let requests = json!({ "cpu": request, "memory": "8Mi" });
    sleeps(name, json!({ "requests": requests, "limits": { "cpu": limit, "memory": memory } }))
}
