//! What pods of the API server ask for beyond what runs: changed resources, own rules of restarts, and fields that nobody acts on;
//! and how often a node asks.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::{AuditEvent, Cluster};
use berth_integration::components;
use berth_integration::files;
use berth_integration::node::{Node, cgroups::name_of_container};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::admission::cpu_milli;
use crate::api_pods::{
    PODS, all_taken, bound, condition, gone, is_ready, is_well_behaved, path, restarts, start,
};
use crate::kit::{FOR_EVER, eventually, pod_group, shell};
use crate::suite::{Test, same, test};

/// Where agents die amid a resize.
pub(crate) const DEATHS: [&str; 2] = ["resize-container.before", "resize-container.after"];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_changes::a_resize_is_done_while_containers_run", resize),
        test("api_changes::a_resize_that_the_oci_runtime_refuses_is_no_change", refused),
        test("api_changes::containers_say_themselves_whether_they_run_again", own_rules),
        test("api_changes::one_that_is_stopped_alone_runs_again_against_its_policy", unhealthy),
        test("api_changes::whose_bandwidth_cannot_be_given_goes_as_any_other", bandwidth),
        test("api_changes::a_node_asks_no_more_often_than_it_is_told_to", rates),
    ]
}

pub(crate) fn pending(pod: &Value) -> Option<&Value> {
    condition(pod, "PodResizePending")
}

/// Events of a reason.
pub(crate) fn events(cluster: &Cluster, reason: &str) -> Result<Vec<Value>> {
    let all = cluster.get_json("/api/v1/namespaces/default/events")?;
    let all = all["items"].as_array().context("no events")?.clone();
    Ok(all.into_iter().filter(|event| event["reason"] == reason).collect())
}

pub(crate) fn deleted(cluster: &Cluster, pods: &[&str]) -> Result<()> {
    let now = json!({ "gracePeriodSeconds": 1 });
    pods.iter().try_for_each(|pod| {
        cluster.request("DELETE", &path(pod), "application/json", &now)?;
        gone(cluster, pod)
    })
}

/// Shares or weight, µs in a period, and bytes.
pub(crate) type Limits = (u64, Option<u64>, Option<u64>);

/// What a container's cgroup has, without the number of tasks, which is not its pod's to say.
pub(crate) fn bounds(node: &Node, pod: &Value, container: &str) -> Result<Limits> {
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
    let statuses = pod["status"]["containerStatuses"].as_array().context("no statuses")?;
    let status = statuses.iter().find(|status| status["name"] == container).context("no such container")?;
    let id =
        status["containerID"].as_str().and_then(|id| id.strip_prefix("containerd://")).context("no id")?;
    let own = pod_group(&node.world, "burstable", uid).below(&name_of_container(id)).bounds()?;
    Ok((own.cpu, own.quota_us, own.memory_bytes))
}

pub(crate) fn pod_bounds(node: &Node, pod: &Value) -> Result<(Option<u64>, Option<u64>)> {
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
    let own = pod_group(&node.world, "burstable", uid).bounds()?;
    Ok((own.quota_us, own.memory_bytes))
}

/// Asks for other resources of containers of the pod `web`.
pub(crate) fn ask(cluster: &Cluster, containers: &Value) -> Result<()> {
    let patch = json!({ "spec": { "containers": containers } });
    let patch_type = "application/strategic-merge-patch+json";
    cluster.request("PATCH", &format!("{}/resize", path("web")), patch_type, &patch)?;
    Ok(())
}

pub(crate) fn resources(requests: (&str, &str), limits: (&str, &str)) -> Value {
    let amounts = |(cpu, memory): (&str, &str)| json!({ "cpu": cpu, "memory": memory });
    json!({ "requests": amounts(requests), "limits": amounts(limits) })
}

/// All that was asked for by a generation is in force, and the status says so.
pub(crate) fn is_resized(generation: i64) -> impl Fn(&Value) -> bool {
    move |pod| {
        pod["status"]["observedGeneration"] == generation
            && pending(pod).is_none()
            && condition(pod, "PodResizeInProgress").is_none()
            && is_ready(pod)
    }
}

/// One container is given other resources while it runs, the other restarts for them, and neither has any before they are allocated; agents
/// that die amid it are followed by one that goes on with it.
fn resize() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
    let before = resources(("50m", "32Mi"), ("200m", "64Mi"));
    let security = json!({ "capabilities": { "add": ["CAP_CHOWN"] } });
    let main = json!({ "resources": before, "securityContext": security });
    let main = shell("main", "exec sleep infinity", main);
    let other = json!({ "resources": before, "resizePolicy": policy });
    let other = shell("other", "exec sleep infinity", other);
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [main, other] });
    cluster.create(PODS, &bound("web", spec)?)?;
    let was = cluster.wait_for(&path("web"), "ready", is_ready)?;
    let first = bounds(&node, &was, "main")?;
    same("quota and memory", (first.1, first.2), (Some(20_000), Some(64 << 20)))?;
    same("of the pod", pod_bounds(&node, &was)?, (Some(40_000), Some(128 << 20)))?;

    let more = resources(("100m", "32Mi"), ("400m", "96Mi"));
    ask(&cluster, &json!([{ "name": "main", "resources": more }]))?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(2))?;
    let second = bounds(&node, &pod, "main")?;
    same("quota and memory", (second.1, second.2), (Some(40_000), Some(96 << 20)))?;
    ensure!(second.0 > first.0, "shares {} were {}", second.0, first.0);
    same("of the pod", pod_bounds(&node, &pod)?, (Some(60_000), Some(160 << 20)))?;
    same("shown", &pod["status"]["containerStatuses"][0]["resources"], &more)?;
    same("allocated", &pod["status"]["containerStatuses"][0]["allocatedResources"], &more["requests"])?;
    same("restarts", (restarts(&pod, "main"), restarts(&pod, "other")), (0, 0))?;

    ask(&cluster, &json!([{ "name": "main", "resources": before }]))?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(3))?;
    same("as before", bounds(&node, &pod, "main")?, first)?;
    same("of the pod", pod_bounds(&node, &pod)?, (Some(40_000), Some(128 << 20)))?;

    too_little(&cluster, &node, &before, first)?;

    // More than the other pod leaves of the node's cores; what is more than those the API server refuses itself.
    let large = json!({ "resources": { "requests": { "cpu": format!("{}m", cpu_milli(&cluster, 75)?) } } });
    let large = shell("main", "exec sleep infinity", large);
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [large] });
    cluster.create(PODS, &bound("beside", spec)?)?;
    cluster.wait_for(&path("beside"), "ready", is_ready)?;
    let much = format!("{}m", cpu_milli(&cluster, 50)?);
    let much = resources((&much, "32Mi"), (&much, "64Mi"));
    ask(&cluster, &json!([{ "name": "main", "resources": much }]))?;
    let waits = |pod: &Value| pending(pod).is_some_and(|waits| waits["reason"] == "Deferred");
    let told = cluster.wait_for(&path("web"), "told that it waits", waits)?;
    same("of which generation", &pending(&told).context("gone")?["observedGeneration"], &json!(6))?;
    same("as before", bounds(&node, &told, "main")?, first)?;
    eventually("the event", &1, || Ok(events(&cluster, "ResizeDeferred")?.len()))?;
    node.agent.kill()?;
    ask(&cluster, &json!([{ "name": "main", "resources": more }, { "name": "other", "resources": more }]))?;
    for point in DEATHS {
        node.agent.start_doomed(point)?;
        eventually(&format!("the agent to die at {point}"), &true, || node.agent.ended())?;
    }
    node.agent.start()?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(7))?;
    same("main", bounds(&node, &pod, "main")?, second)?;
    same("other", bounds(&node, &pod, "other")?, second)?;
    same("of the pod", pod_bounds(&node, &pod)?, (Some(80_000), Some(192 << 20)))?;
    same("restarts", (restarts(&pod, "main"), restarts(&pod, "other")), (0, 1))?;
    eventually("what completed is told", &4, || Ok(events(&cluster, "ResizeCompleted")?.len()))?;
    // Agents that died may have told it, each for itself.
    let field = "spec.containers[0].securityContext.capabilities.add[0]";
    let names = |event: &Value| event["message"].as_str().is_some_and(|message| message.contains(field));
    ensure!(events(&cluster, "UnsupportedField")?.iter().any(names), "nobody told of {field}");
    deleted(&cluster, &["web", "beside"])?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// Nothing that runs can do with so little: nothing changes, and it is told why.
fn too_little(cluster: &Cluster, node: &Node, before: &Value, first: Limits) -> Result<()> {
    let little = resources(("50m", "4Ki"), ("200m", "4Ki"));
    ask(cluster, &json!([{ "name": "main", "resources": little }]))?;
    let fails = |pod: &Value| condition(pod, "PodResizeInProgress").is_some_and(|it| it["reason"] == "Error");
    let pod = cluster.wait_for(&path("web"), "told that it fails", fails)?;
    let why = condition(&pod, "PodResizeInProgress").context("gone")?["message"].as_str().unwrap_or_default();
    ensure!(why.contains("cannot decrease memory limits: "), "{why}");
    same("as before", bounds(node, &pod, "main")?, first)?;
    same("shown", &pod["status"]["containerStatuses"][0]["resources"], before)?;
    ask(cluster, &json!([{ "name": "main", "resources": before }]))?;
    cluster.wait_for(&path("web"), "resized", is_resized(5))?;
    Ok(())
}

/// Nothing is told to be in force that is not, and it is tried again.
fn refused() -> Result<()> {
    let (runtime, door) = (Path::new("/run/own/runtime"), Path::new("/run/own/refuses"));
    let runc = components::binary("runc")?;
    let (door_text, runc) = (door.display(), runc.display());
    let script = format!(
        "#!/bin/sh\nfor word; do [ \"$word\" = update ] && [ -e {door_text} ] && exit 1; done\nexec {runc} \"$@\"\n"
    );
    files::make_dir("/run/own")?;
    files::write_program(runtime, &script)?;
    let berth = json!({ "runtime": { "ociRuntime": runtime } });
    let (cluster, node) = start(Settings { berth, ..Settings::default() })?;
    let before = resources(("50m", "32Mi"), ("200m", "64Mi"));
    let main = shell("main", "exec sleep infinity", json!({ "resources": before }));
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [main] });
    cluster.create(PODS, &bound("web", spec)?)?;
    let first = bounds(&node, &cluster.wait_for(&path("web"), "ready", is_ready)?, "main")?;
    files::write(door, "")?;
    ask(&cluster, &json!([{ "name": "main", "resources": resources(("50m", "32Mi"), ("400m", "64Mi")) }]))?;
    let fails = |pod: &Value| condition(pod, "PodResizeInProgress").is_some_and(|it| it["reason"] == "Error");
    let pod = cluster.wait_for(&path("web"), "told that it fails", fails)?;
    same("as before", bounds(&node, &pod, "main")?, first)?;
    same("shown", &pod["status"]["containerStatuses"][0]["resources"], &before)?;
    eventually("the event", &1, || Ok(events(&cluster, "ResizeError")?.len()))?;
    same("what completed", events(&cluster, "ResizeCompleted")?.len(), 0)?;
    files::remove(door)?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(2))?;
    same("its quota", bounds(&node, &pod, "main")?, (first.0, Some(40_000), first.2))?;
    eventually("that it completed", &1, || Ok(events(&cluster, "ResizeCompleted")?.len()))?;
    deleted(&cluster, &["web"])?;
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

/// Its first run is unhealthy, and ends well when it is stopped.
fn unhealthy() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let script = "trap 'exit 0' TERM; [ -e /data/ran ] || touch /data/ran /tmp/bad; sleep infinity & wait";
    let probe = json!({
        "exec": { "command": ["test", "!", "-e", "/tmp/bad"] }, "periodSeconds": 1, "failureThreshold": 1,
    });
    let more = json!({
        "livenessProbe": probe,
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
    });
    let spec = json!({
        "restartPolicy": "OnFailure",
        "containers": [shell("main", script, more)],
        "volumes": [{ "name": "data", "emptyDir": {} }],
    });
    cluster.create(PODS, &bound("web", spec)?)?;
    let is_back = |pod: &Value| is_ready(pod) && restarts(pod, "main") == 1;
    let web = cluster.wait_for(&path("web"), "ready again", is_back)?;
    let status = &web["status"]["containerStatuses"][0];
    ensure!(status["state"]["running"].is_object(), "{status}");
    same("code", &status["lastState"]["terminated"]["exitCode"], &json!(0))?;
    all_taken(&cluster)?;
    deleted(&cluster, &["web"])?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// One that runs may ask for what nobody can give. What it was wired with is what is undone.
fn bandwidth() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let pod = |name: &str| bound(name, json!({ "containers": [shell("main", FOR_EVER, json!({}))] }));
    let asks = json!({ "metadata": { "annotations": { "kubernetes.io/ingress-bandwidth": "fast" } } });
    cluster.create(PODS, &pod("web")?)?;
    cluster.wait_for(&path("web"), "ready", is_ready)?;
    cluster.request("PATCH", &path("web"), "application/merge-patch+json", &asks)?;
    let mut never = pod("never")?;
    never["metadata"]["annotations"].clone_from(&asks["metadata"]["annotations"]);
    cluster.create(PODS, &never)?;
    let is_told = || Ok(!events(&cluster, "FailedCreatePodSandBox")?.is_empty());
    eventually("a sandbox that cannot be made to be told", &true, is_told)?;
    // The change of the other one was heard before it.
    deleted(&cluster, &["web", "never"])?;
    same("told of the end", events(&cluster, "FailedKillPod")?.len(), 0)?;
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
