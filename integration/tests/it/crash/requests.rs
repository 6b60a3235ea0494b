//! The agent dies before and after each kind of request to the API server, and before and after it writes what objects hold.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::cluster::Cluster;
use berth_integration::files;
use berth_integration::node::{GONE_LIMIT, Node, POD_LIMIT};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use super::dies;
use crate::api_pods::{MAPS, PODS, bound, in_a_cluster, is_ready, is_well_behaved, path, restarts};
use crate::kit::{eventually, pod, shell, with};
use crate::suite::same;

/// Labels that a pod of a node without a cluster does not come to.
pub(super) const OF_CONTENT: [&str; 2] = ["content.gathered", "content.written"];

/// Labels that only a pod comes to which the node refuses by what it knows of its own object.
pub(super) const OF_REFUSALS: [&str; 2] = ["read-node-object.before", "read-node-object.after"];

/// All points of a node in a cluster.
pub(super) fn points() -> impl Iterator<Item = String> {
    let others = OF_CONTENT.into_iter().chain(OF_REFUSALS).map(str::to_owned);
    berth::failpoint::edges(berth::cluster::REQUESTS).chain(others)
}

/// Whether a point is reached while pods start, and while they end.
fn phases(point: &str) -> (bool, bool) {
    let is_of_an_end = point.starts_with("delete-pod");
    let is_of_a_start =
        point.starts_with("create-mirror") || OF_CONTENT.contains(&point) || OF_REFUSALS.contains(&point);
    (!is_of_an_end, !is_of_a_start)
}

/// Points in one cluster, one after the other.
pub(super) fn dies_at(points: &str) -> Result<()> {
    let (cluster, settings) = in_a_cluster(Settings::default())?;
    let mut node = Node::prepare(&settings)?;
    let map =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" }, "data": { "a": "b" } });
    cluster.create(MAPS, &map)?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "web" } });
    cluster.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    for (number, point) in points.split(' ').enumerate() {
        lives_through(&cluster, &mut node, number, point).with_context(|| format!("killed at {point}"))?;
    }
    node.agent.start()?;
    node.end()?;
    cluster.end()
}

/// A pod of the API and one of a manifest start and end while the agent dies at a point of each, and the next one does.
fn lives_through(cluster: &Cluster, node: &mut Node, number: usize, point: &str) -> Result<()> {
    let dir = node.world.root().join(format!("shared-{number}"));
    files::make_dir(&dir)?;
    let given = bound("given", spec("given", &dir, &of_objects()))?;
    cluster.create(PODS, &given)?;
    let elsewhere = json!({ "spec": { "nodeSelector": { "zone": "elsewhere" } } });
    cluster.create(PODS, &bound("refused", spec("refused", &dir, &elsewhere))?)?;
    node.apply("shown", &pod("shown", spec("shown", &dir, &json!({}))))?;
    let names = ["given".to_owned(), format!("shown-{}", berth_integration::agent::NODE_NAME)];
    let are_ready = || {
        let objects: Result<Vec<_>> = names.iter().map(|name| cluster.find_json(&path(name))).collect();
        Ok(objects?.iter().all(|pod| pod.as_ref().is_some_and(is_ready)))
    };
    let are_gone = || {
        let objects: Result<Vec<_>> = names.iter().map(|name| cluster.find_json(&path(name))).collect();
        Ok(objects?.iter().all(Option::is_none))
    };
    let (starts, ends) = phases(point);

    dies(node, point, starts, |_| are_ready()).context("while pods start")?;
    node.agent.start()?;
    in_time("both to be ready in the API", POD_LIMIT, are_ready)?;
    for name in &names {
        same(&format!("restarts of {name}"), restarts(&cluster.get_json(&path(name))?, "main"), 0)?;
    }
    eventually("the other to be refused", &json!("NodeAffinity"), || {
        Ok(cluster.get_json(&path("refused"))?["status"]["reason"].clone())
    })?;
    let begun = || {
        let mut begun: Vec<String> =
            fs::read_to_string(dir.join("starts")).unwrap_or_default().lines().map(str::to_owned).collect();
        begun.sort();
        Ok(begun)
    };
    eventually("each to have begun once", &vec!["given".to_owned(), "shown".to_owned()], begun)?;

    node.agent.kill()?;
    node.remove("shown")?;
    for name in ["given", "refused"] {
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
    }
    dies(node, point, ends, |_| are_gone()).context("while pods end")?;
    node.agent.start()?;
    in_time("both to be gone from the API", GONE_LIMIT, are_gone)?;
    node.clear()?;
    same("what has begun", begun()?, vec!["given".to_owned(), "shown".to_owned()])?;
    is_well_behaved(cluster)?;
    is_told_once(cluster)?;
    node.agent.kill()
}

fn in_time(what: &str, limit: Duration, look: impl Fn() -> Result<bool>) -> Result<()> {
    wait::until(what, limit, || {
        Ok(if look()? { Look::Ready(()) } else { Look::NotYet("not yet".to_owned()) })
    })
}

/// That a container was made, and has started, is told at most once of each pod: an event is lost with an agent that dies before it
/// was sent, and not repeated by the next one.
fn is_told_once(cluster: &Cluster) -> Result<()> {
    let list = cluster.get_json("/api/v1/namespaces/default/events")?;
    let mut told: BTreeMap<[String; 3], u64> = BTreeMap::new();
    for event in list["items"].as_array().context("no list")? {
        let pod = &event["involvedObject"];
        let key = [&pod["name"], &pod["uid"], &event["reason"]];
        let key = key.map(|part| part.as_str().unwrap_or_default().to_owned());
        *told.entry(key).or_default() += event["count"].as_u64().unwrap_or(1);
    }
    told.retain(|[_, _, reason], times| ["Created", "Started"].contains(&reason.as_str()) && *times > 1);
    ensure!(told.is_empty(), "told more than once: {told:?}");
    Ok(())
}

fn spec(name: &str, dir: &Path, more: &Value) -> Value {
    let shared = json!({ "name": "shared", "mountPath": "/shared" });
    let mounts: Vec<Value> =
        more["mounts"].as_array().into_iter().flatten().cloned().chain([shared]).collect();
    let shared = json!({ "name": "shared", "hostPath": { "path": dir } });
    let volumes: Vec<Value> =
        more["volumes"].as_array().into_iter().flatten().cloned().chain([shared]).collect();
    let script = format!("echo {name} >> /shared/starts; exec sleep infinity");
    let main = shell("main", &script, json!({ "volumeMounts": mounts }));
    with(
        json!({ "terminationGracePeriodSeconds": 1, "containers": [main], "volumes": volumes }),
        more["spec"].clone(),
    )
}

/// What a pod has of a ConfigMap and of its service account.
fn of_objects() -> Value {
    let sources = json!([
        { "configMap": { "name": "m" } },
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } },
    ]);
    json!({
        "mounts": [{ "name": "objects", "mountPath": "/objects" }],
        "volumes": [{ "name": "objects", "projected": { "sources": sources } }],
        "spec": { "serviceAccountName": "web", "automountServiceAccountToken": false },
    })
}
