//! The real metrics-server asks the node, and a HorizontalPodAutoscaler acts on what it says.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::cluster::metrics::{API, MetricsServer};
use berth_integration::cluster::{self, Part};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use super::{DOORS, Door, Served, at_doors, doors};
use crate::kit::{FOR_EVER, shell};
use crate::suite::same;

/// How often the node is asked: as often as metrics-server can.
const EVERY: Duration = Duration::from_secs(10);
/// For two rounds of metrics-server, those of the autoscaler, and a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// What its pods are allowed, and what they ask for, millicores.
const LIMITED: u64 = 100;
const REQUESTED: u64 = 50;
/// Memory that one holds, MiB.
const HELD: u64 = 32;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";

pub(super) fn all() -> Result<()> {
    let quick = ["sync-period=1s", "initial-readiness-delay=1s", "cpu-initialization-period=1s"];
    let settings = cluster::Settings {
        parts: vec![Part::Controllers, Part::Scheduler],
        controllers: quick.iter().map(|flag| format!("--horizontal-pod-autoscaler-{flag}")).collect(),
        ..cluster::Settings::asking_nodes()
    };
    let served = Served::start(&settings, &json!({}))?;
    let metrics = MetricsServer::start(&served.cluster, served.node.world.root(), EVERY)?;
    Door::make("burn")?;
    served.cluster.create(DEPLOYMENTS, &deployment(served.name()))?;
    served.cluster.create(SCALERS, &scaler())?;
    shown_and_scaled(&served).map_err(|failure| metrics.failed(failure))?;
    served.cluster.request("DELETE", &format!("{SCALERS}/burns"), "application/json", &json!({}))?;
    let path = format!("{DEPLOYMENTS}/burns");
    served.cluster.request(
        "DELETE",
        &path,
        "application/json",
        &json!({ "propagationPolicy": "Foreground" }),
    )?;
    served.cluster.wait_gone(&path)?;
    metrics.end()?;
    served.end()
}

/// A pod that holds memory, and burns what it is allowed to when the door has been opened for it.
fn deployment(node: &str) -> Value {
    let script = format!(
        "dd if=/dev/zero of=/dev/shm/held bs=1M count={HELD}; read _ <{DOORS}/burn; trap 'exit 0' TERM; while :; do :; done"
    );
    let resources = json!({ "requests": { "cpu": format!("{REQUESTED}m"), "memory": "64Mi" },
        "limits": { "cpu": format!("{LIMITED}m"), "memory": "64Mi" } });
    let main = shell("main", &script, json!({ "resources": resources, "volumeMounts": at_doors() }));
    let beside = shell("beside", FOR_EVER, json!({ "resources": { "requests": { "cpu": "10m" } } }));
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "burns" },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "burns" } }, "template": {
            "metadata": { "labels": { "app": "burns" } },
            "spec": { "nodeSelector": { "name": node }, "terminationGracePeriodSeconds": 1,
                "containers": [main, beside], "volumes": doors() } } } })
}

fn scaler() -> Value {
    let target = json!({ "type": "ContainerResource", "containerResource": { "name": "cpu",
        "container": "main", "target": { "type": "Utilization", "averageUtilization": 100 } } });
    json!({ "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": { "name": "burns" },
        "spec": { "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "burns" },
            "minReplicas": 1, "maxReplicas": 2, "metrics": [target] } })
}

fn shown_and_scaled(served: &Served) -> Result<()> {
    let cluster = &served.cluster;
    // Before the door is opened there is nothing to scale for.
    let idle = seen(served, "its usage while it is idle", |usage| usage.cpu < LIMITED / 4)?;
    ensure!(idle.memory >= HELD << 20 && idle.memory < (HELD + 16) << 20, "it holds {} bytes", idle.memory);
    let utilization = |scaler: &Value| {
        scaler["status"]["currentMetrics"][0]["containerResource"]["current"]["averageUtilization"].as_u64()
    };
    let known = wait::until("the autoscaler to know of it", LIMIT, || {
        let scaler = cluster.get_json(&format!("{SCALERS}/burns"))?;
        Ok(match utilization(&scaler) {
            Some(_) => Look::Ready(scaler),
            None => Look::NotYet(scaler["status"].to_string()),
        })
    })?;
    same("replicas while it is idle", &known["status"]["currentReplicas"], &json!(1))?;

    Door::at("burn")?.open()?;
    wait::until("a second pod because of the load", LIMIT, || {
        let scaler = cluster.get_json(&format!("{SCALERS}/burns"))?;
        let is_scaled = scaler["status"]["desiredReplicas"] == 2;
        Ok(if is_scaled { Look::Ready(()) } else { Look::NotYet(scaler["status"].to_string()) })
    })
    .with_context(|| cluster.situation())?;
    cluster
        .wait_for(&format!("{DEPLOYMENTS}/burns"), "of two pods", |it| it["status"]["readyReplicas"] == 2)?;
    // What it may use at most, over a whole round of metrics-server.
    seen(served, "its usage under load", |usage| usage.cpu.abs_diff(LIMITED) <= LIMITED / 10)?;

    let nodes = cluster.kubectl(&["top", "nodes", "--no-headers"])?;
    let line = nodes.lines().find(|line| line.starts_with(served.name())).context("not the node")?;
    ensure!(line.split_whitespace().count() == 5 && !line.contains("<unknown>"), "{line}");
    let pods = cluster.kubectl(&["top", "pods", "--no-headers", "--containers"])?;
    ensure!(["main", "beside"].iter().all(|name| pods.contains(name)), "{pods}");
    Ok(())
}

/// What a container uses.
#[derive(Debug)]
struct Usage {
    /// Millicores.
    cpu: u64,
    /// Bytes.
    memory: u64,
}

/// Waits until a pod uses as much as is wanted, of whichever the autoscaler has made.
fn seen(served: &Served, what: &str, wanted: impl Fn(&Usage) -> bool) -> Result<Usage> {
    wait::until(what, LIMIT, || {
        let all = served.cluster.get_json(&format!("{API}/namespaces/default/pods"))?;
        let mut shown = Vec::new();
        for pod in all["items"].as_array().context("no list of pods")? {
            let containers = pod["containers"].as_array().context("no containers")?;
            let Some(main) = containers.iter().find(|one| one["name"] == "main") else { continue };
            let text = |name: &str| main["usage"][name].as_str().unwrap_or_default().to_owned();
            let usage =
                Usage { cpu: quantity(&text("cpu"))? / 1_000_000, memory: quantity(&text("memory"))? };
            if wanted(&usage) {
                return Ok(Look::Ready(usage));
            }
            shown.push(usage);
        }
        Ok(Look::NotYet(format!("{shown:?}")))
    })
}

/// Nanocores of processor time, or bytes of memory, as metrics-server writes them.
fn quantity(text: &str) -> Result<u64> {
    let digits = text.trim_end_matches(|one: char| one.is_ascii_alphabetic());
    let number: u64 = digits.parse().with_context(|| format!("{text:?} is no quantity"))?;
    Ok(match &text[digits.len()..] {
        "" if number == 0 => 0,
        "n" | "" => number,
        "u" => number * 1_000,
        "m" => number * 1_000_000,
        "Ki" => number << 10,
        "Mi" => number << 20,
        other => anyhow::bail!("{text:?} has the unit {other:?}"),
    })
}
