//! Resources that pods name for themselves, which change while they run (KEP-5419).

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::cluster::Cluster;
use berth_integration::node::Node;
use serde_json::{Value, json};

use crate::admission::cpu_milli;
use crate::api_changes::{bounds, deleted, events, is_resized, pending, pod_bounds, resources};
use crate::api_pods::{PODS, bound, condition, is_ready, is_well_behaved, path, restarts, start};
use crate::kit::{eventually, shell};
use crate::suite::{Test, same, test};

/// Where agents die amid a resize of a pod.
pub(crate) const DEATHS: [&str; 2] = ["check-memory.before", "check-memory.after"];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_resizes::what_a_pod_names_for_itself_changes_while_it_runs_with_crun", with_crun),
        test("api_resizes::what_a_pod_names_for_itself_changes_while_it_runs_with_runc", with_runc),
        test("api_resizes::a_resize_is_done_while_containerd_is_down", without_containerd),
    ]
}

const MIB: u64 = 1 << 20;

/// Asks for other resources of a whole pod.
fn ask(cluster: &Cluster, pod: &str, resources: &Value) -> Result<()> {
    let patch = json!({ "spec": { "resources": resources } });
    let patch_type = "application/strategic-merge-patch+json";
    cluster.request("PATCH", &format!("{}/resize", path(pod)), patch_type, &patch)?;
    Ok(())
}

/// The pod's cgroup, and that of a container which shares all of it, have these limits, and the status says so.
fn has(node: &Node, pod: &Value, own: &Value, (quota, memory): (u64, u64)) -> Result<()> {
    let limits = (Some(quota), Some(memory));
    same("of the pod", pod_bounds(node, pod)?, limits)?;
    let shares = bounds(node, pod, "shares")?;
    same("of the container that shares it", (shares.1, shares.2), limits)?;
    let limited = bounds(node, pod, "limited")?;
    same("of the container with a limit", (limited.1, limited.2), (Some(10_000), Some(memory)))?;
    same("shown", &pod["status"]["resources"], own)?;
    same("allocated", &pod["status"]["allocatedResources"], &own["requests"])?;
    same("shown of containers", &pod["status"]["containerStatuses"][1]["resources"], &json!({}))
}

fn with_crun() -> Result<()> {
    whole(Settings::default())
}

fn with_runc() -> Result<()> {
    whole(Settings { berth: json!({ "runtime": { "ociRuntime": "runc" } }), ..Settings::default() })
}

/// All that share the pod's resources get what changes, those with limits of their own the rest; nothing restarts, also when agents die amid it.
fn whole(settings: Settings) -> Result<()> {
    let (cluster, mut node) = start(settings)?;
    let first = resources(("100m", "64Mi"), ("400m", "128Mi"));
    let own = json!({ "resources": { "requests": { "cpu": "50m" }, "limits": { "cpu": "100m" } } });
    let containers =
        [shell("limited", "exec sleep infinity", own), shell("shares", "exec sleep infinity", json!({}))];
    let spec = json!({ "terminationGracePeriodSeconds": 1, "resources": first, "containers": containers });
    cluster.create(PODS, &bound("web", spec)?)?;
    let pod = cluster.wait_for(&path("web"), "ready", is_ready)?;
    has(&node, &pod, &first, (40_000, 128 * MIB))?;

    let more = resources(("200m", "96Mi"), ("600m", "192Mi"));
    ask(&cluster, "web", &more)?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(2))?;
    has(&node, &pod, &more, (60_000, 192 * MIB))?;

    too_little(&cluster, &node, &more)?;
    no_room(&cluster, &node, &more)?;

    node.agent.kill()?;
    let less = resources(("100m", "32Mi"), ("300m", "96Mi"));
    ask(&cluster, "web", &less)?;
    for point in DEATHS {
        node.agent.start_doomed(point)?;
        eventually(&format!("the agent to die at {point}"), &true, || node.agent.ended())?;
    }
    node.agent.start()?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(7))?;
    has(&node, &pod, &less, (30_000, 96 * MIB))?;
    same("restarts", (restarts(&pod, "limited"), restarts(&pod, "shares")), (0, 0))?;
    eventually("what completed is told", &5, || Ok(events(&cluster, "ResizeCompleted")?.len()))?;
    restarted(&cluster)?;
    deleted(&cluster, &["web"])?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// Nothing that runs can do with so little: nothing changes, and it is told why.
fn too_little(cluster: &Cluster, node: &Node, before: &Value) -> Result<()> {
    ask(cluster, "web", &resources(("200m", "4Ki"), ("600m", "4Ki")))?;
    let fails = |pod: &Value| condition(pod, "PodResizeInProgress").is_some_and(|it| it["reason"] == "Error");
    let pod = cluster.wait_for(&path("web"), "told that it fails", fails)?;
    let why = condition(&pod, "PodResizeInProgress").context("gone")?["message"].as_str().unwrap_or_default();
    ensure!(why.contains("attempting to set pod memory limit (4096) below current usage"), "{why}");
    same("as before", pod_bounds(node, &pod)?, (Some(60_000), Some(192 * MIB)))?;
    same("limits shown", &pod["status"]["resources"]["limits"], &before["limits"])?;
    same("allocated", &pod["status"]["allocatedResources"]["memory"], &json!("4Ki"))?;
    ask(cluster, "web", before)?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(4))?;
    has(node, &pod, before, (60_000, 192 * MIB))
}

/// It waits for another pod to go.
fn no_room(cluster: &Cluster, node: &Node, before: &Value) -> Result<()> {
    let large = json!({ "resources": { "requests": { "cpu": format!("{}m", cpu_milli(cluster, 75)?) } } });
    let large = shell("main", "exec sleep infinity", large);
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [large] });
    cluster.create(PODS, &bound("beside", spec)?)?;
    cluster.wait_for(&path("beside"), "ready", is_ready)?;
    let half = cpu_milli(cluster, 50)?;
    let much = format!("{half}m");
    let much = resources((&much, "96Mi"), (&much, "192Mi"));
    ask(cluster, "web", &much)?;
    let waits = |pod: &Value| pending(pod).is_some_and(|waits| waits["reason"] == "Deferred");
    let pod = cluster.wait_for(&path("web"), "told that it waits", waits)?;
    has(node, &pod, before, (60_000, 192 * MIB))?;
    deleted(cluster, &["beside"])?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(5))?;
    let much = if half % 1000 == 0 { (half / 1000).to_string() } else { format!("{half}m") };
    let much = resources((&much, "96Mi"), (&much, "192Mi"));
    has(node, &pod, &much, (100 * half, 192 * MIB))?;
    ask(cluster, "web", before)?;
    cluster.wait_for(&path("web"), "resized", is_resized(6)).map(drop)
}

/// A container whose policy says so begins anew for a limit of its pod, where that is its own.
fn restarted(cluster: &Cluster) -> Result<()> {
    let policy =
        json!({ "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }] });
    let main = shell("main", "exec sleep infinity", policy);
    let first = resources(("100m", "64Mi"), ("400m", "128Mi"));
    let spec = json!({ "terminationGracePeriodSeconds": 1, "resources": first, "containers": [main] });
    cluster.create(PODS, &bound("again", spec)?)?;
    cluster.wait_for(&path("again"), "ready", is_ready)?;
    for (generation, limits, expected) in [(2, ("300m", "128Mi"), 0), (3, ("300m", "160Mi"), 1)] {
        ask(cluster, "again", &resources(("100m", "64Mi"), limits))?;
        let pod = cluster.wait_for(&path("again"), "resized", is_resized(generation))?;
        same("restarts", restarts(&pod, "main"), expected)?;
        same(
            "shown",
            &pod["status"]["resources"]["limits"],
            &json!({ "cpu": limits.0, "memory": limits.1 }),
        )?;
    }
    deleted(cluster, &["again"])
}

/// Its shim is asked for what its container gets, and its cgroup is the agent's own.
fn without_containerd() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let before = resources(("50m", "32Mi"), ("200m", "64Mi"));
    let main = shell("main", "exec sleep infinity", json!({ "resources": before }));
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [main] });
    cluster.create(PODS, &bound("web", spec)?)?;
    let pod = cluster.wait_for(&path("web"), "ready", is_ready)?;
    same("of the pod", pod_bounds(&node, &pod)?, (Some(20_000), Some(64 * MIB)))?;
    node.containerd.kill()?;
    let more = resources(("100m", "32Mi"), ("400m", "96Mi"));
    let patch = json!({ "spec": { "containers": [{ "name": "main", "resources": more }] } });
    let patch_type = "application/strategic-merge-patch+json";
    cluster.request("PATCH", &format!("{}/resize", path("web")), patch_type, &patch)?;
    let pod = cluster.wait_for(&path("web"), "resized", is_resized(2))?;
    let limits = (Some(40_000), Some(96 * MIB));
    let main = bounds(&node, &pod, "main")?;
    same("of the container", (main.1, main.2), limits)?;
    same("of the pod", pod_bounds(&node, &pod)?, limits)?;
    same("shown", &pod["status"]["containerStatuses"][0]["resources"], &more)?;
    node.containerd.start_again()?;
    deleted(&cluster, &["web"])?;
    same("restarts", restarts(&pod, "main"), 0)?;
    node.end()?;
    cluster.end()
}
