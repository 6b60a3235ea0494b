//! What pods of the API server ask for beyond what runs: changed resources, own rules of restarts, and fields that nobody acts on;
//! and how often a node asks.

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::{AuditEvent, Cluster};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::api_pods::{PODS, bound, gone, is_ready, is_well_behaved, path, restarts, start};
use crate::kit::{eventually, shell};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_changes::a_resize_is_told_as_it_is", resize),
        test("api_changes::containers_say_themselves_whether_they_run_again", own_rules),
        test("api_changes::a_node_asks_no_more_often_than_it_is_told_to", rates),
    ]
}

fn pending(pod: &Value) -> Option<&Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == "PodResizePending")
}

/// Events of a reason.
fn events(cluster: &Cluster, reason: &str) -> Result<Vec<Value>> {
    let all = cluster.get_json("/api/v1/namespaces/default/events")?;
    let all = all["items"].as_array().context("no events")?.clone();
    Ok(all.into_iter().filter(|event| event["reason"] == reason).collect())
}

fn deleted(cluster: &Cluster, pods: &[&str]) -> Result<()> {
    let now = json!({ "gracePeriodSeconds": 1 });
    pods.iter().try_for_each(|pod| {
        cluster.request("DELETE", &path(pod), "application/json", &now)?;
        gone(cluster, pod)
    })
}

/// The container goes on with what it has, which is what its status says, before and after a death of the agent.
fn resize() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let resources = json!({ "requests": { "cpu": "50m" }, "limits": { "cpu": "200m" } });
    let security = json!({ "seLinuxOptions": { "level": "s0" } });
    let main = json!({ "resources": resources, "securityContext": security });
    let main = shell("main", "exec sleep infinity", main);
    cluster
        .create(PODS, &bound("web", json!({ "terminationGracePeriodSeconds": 1, "containers": [main] }))?)?;
    let before = cluster.wait_for(&path("web"), "ready", is_ready)?;

    let asks = json!({ "requests": { "cpu": "60m" }, "limits": { "cpu": "300m" } });
    let patch = json!({ "spec": { "containers": [{ "name": "main", "resources": asks }] } });
    let patch_type = "application/strategic-merge-patch+json";
    cluster.request("PATCH", &format!("{}/resize", path("web")), patch_type, &patch)?;
    let waits = |pod: &Value| pending(pod).is_some_and(|waits| waits["reason"] == "Infeasible");
    let told = cluster.wait_for(&path("web"), "told that it waits", waits)?;
    let is_as_it_is = |pod: &Value| {
        let (was, is) = (&before["status"]["containerStatuses"][0], &pod["status"]["containerStatuses"][0]);
        for field in ["resources", "allocatedResources", "containerID"] {
            same(field, &is[field], &was[field])?;
        }
        same("restarts", restarts(pod, "main"), 0)
    };
    is_as_it_is(&told)?;
    same("of which generation", &pending(&told).context("gone")?["observedGeneration"], &json!(2))?;
    same("the limit", &told["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"], &json!("200m"))?;

    // An agent that dies before it has sent an event has not told it.
    for reason in ["ResizeInfeasible", "UnsupportedField"] {
        eventually(&format!("the event {reason}"), &1, || Ok(events(&cluster, reason)?.len()))?;
    }
    node.agent.kill()?;
    node.agent.start()?;
    let main = shell("main", "exec sleep infinity", json!({}));
    cluster.create(PODS, &bound("later", json!({ "containers": [main] }))?)?;
    cluster.wait_for(&path("later"), "ready", is_ready)?;
    let later = cluster.get_json(&path("web"))?;
    is_as_it_is(&later)?;
    same("the condition", pending(&later), pending(&told))?;
    let field = "spec.containers[0].securityContext.seLinuxOptions";
    for (reason, part) in [("ResizeInfeasible", "\"cpu\":\"300m\""), ("UnsupportedField", field)] {
        let told = events(&cluster, reason)?;
        let [event] = told.as_slice() else { anyhow::bail!("{} events {reason}", told.len()) };
        same("how often", event["count"].as_i64(), Some(1))?;
        ensure!(event["message"].as_str().is_some_and(|message| message.contains(part)), "{event}");
    }

    let patch = json!({ "spec": { "containers": [{ "name": "main", "resources": resources }] } });
    cluster.request("PATCH", &format!("{}/resize", path("web")), patch_type, &patch)?;
    let again = cluster.wait_for(&path("web"), "no more", |pod| pending(pod).is_none())?;
    is_as_it_is(&again)?;
    deleted(&cluster, &["web", "later"])?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// A rule has it run again in a pod that never restarts anything, once.
fn own_rules() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let script = "hostname > /dev/termination-log; [ -e /data/ran ] && exit 7; touch /data/ran; exit 42";
    let rule = json!({ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } });
    let more = json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [rule],
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
    });
    let spec = json!({
        "restartPolicy": "Never",
        "hostnameOverride": "db.example.test",
        "containers": [shell("main", script, more)],
        "volumes": [{ "name": "data", "emptyDir": {} }],
    });
    cluster.create(PODS, &bound("once", spec)?)?;
    let has_ended = |pod: &Value| pod["status"]["phase"] == "Failed";
    let ended = cluster.wait_for(&path("once"), "ended", has_ended)?;
    same("restarts", restarts(&ended, "main"), 1)?;
    let end = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    same("code", &end["exitCode"], &json!(7))?;
    same("name", end["message"].as_str().map(str::trim), Some("db.example.test"))?;
    same("told as not acted on", events(&cluster, "UnsupportedField")?.len(), 0)?;
    deleted(&cluster, &["once"])?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// The latest time that something tells of.
fn latest(told: &Value) -> Option<Timestamp> {
    match told {
        Value::String(text) => text.parse().ok(),
        Value::Array(all) => all.iter().filter_map(latest).max(),
        Value::Object(fields) => fields.values().filter_map(latest).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Requests of the node come at one in a second. Each has its turn after what it tells of in a field, and arrives after its turn, by however
/// much: of those that tell of something since a moment, each arrives a second after that for every one that came before it, or later. So many
/// at least tell of a time.
fn is_one_in_a_second(audit: &[AuditEvent], verb: &str, kind: &str, field: &str, least: usize) -> Result<()> {
    let mut requests = Vec::new();
    for event in audit.iter().filter(|event| event.is_by_node(NODE_NAME) && event.is(verb, kind)) {
        let sent =
            event.request_object.as_ref().with_context(|| format!("{verb} {kind} without an object"))?;
        let arrived: Timestamp = event.request_received_timestamp.parse()?;
        requests.extend(latest(&sent[field]).map(|tells_of| (arrived, tells_of)));
    }
    requests.sort();
    ensure!(requests.len() >= least, "{verb} {kind}: {requests:?}");
    for (_, since) in &requests {
        let later = requests.iter().filter(|(_, tells_of)| tells_of >= since);
        for (before_it, (arrived, _)) in (0..).zip(later) {
            let due = *since + SignedDuration::from_secs(before_it);
            ensure!(*arrived >= due, "{verb} {kind} at {arrived}, not before {due}: {requests:?}");
        }
    }
    Ok(())
}

/// Both rates, of events and of requests about pods, are as the configuration says.
fn rates() -> Result<()> {
    const PODS_AT_ONCE: [&str; 3] = ["one", "two", "three"];
    let kubelet = json!({ "eventRecordQPS": 1, "eventBurst": 1, "kubeAPIQPS": 1, "kubeAPIBurst": 1 });
    let (cluster, node) = start(Settings { kubelet, ..Settings::default() })?;
    for name in PODS_AT_ONCE {
        let main = shell("main", "exec sleep infinity", json!({}));
        cluster.create(PODS, &bound(name, json!({ "containers": [main] }))?)?;
    }
    for name in PODS_AT_ONCE {
        cluster.wait_for(&path(name), "ready", is_ready)?;
    }
    let count = PODS_AT_ONCE.len();
    eventually("events of all pods", &count, || Ok(events(&cluster, "Started")?.len()))?;
    deleted(&cluster, &PODS_AT_ONCE)?;
    let audit = is_well_behaved(&cluster)?;
    is_one_in_a_second(&audit, "create", "events", "firstTimestamp", 3 * count)?;
    is_one_in_a_second(&audit, "patch", "pods/status", "status", count)?;
    node.end()?;
    cluster.end()
}
