//! What a pod's status in the API says that this node did not write.

use anyhow::Result;
use berth_integration::agent::Settings;
use berth_integration::cluster::Cluster;
use berth_integration::node::Node;
use serde_json::{Value, json};

use crate::api_deletion::running;
use crate::api_pods::{PODS, bound, condition, gone, in_a_cluster, is_ready, is_well_behaved, path, start};
use crate::kit::{logged, shell};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_status::a_pod_began_when_the_api_server_has_it", began),
        test("api_status::a_pod_ends_when_another_says_that_it_has", ended),
    ]
}

/// Somebody else writes into the status of a pod.
fn write(cluster: &Cluster, name: &str, status: &Value) -> Result<()> {
    let path = format!("{}/status", path(name));
    let patch = json!({ "status": status });
    cluster.request("PATCH", &path, "application/strategic-merge-patch+json", &patch).map(drop)
}

/// Pods that an agent finds without records of its own, as after a reboot or on a node that a kubelet had.
fn began() -> Result<()> {
    const AT: &str = "2020-02-02T02:02:02Z";
    let (cluster, settings) = in_a_cluster(Settings::default())?;
    for (name, more) in [("goes-on", json!({})), ("over", json!({ "activeDeadlineSeconds": 3600 }))] {
        let mut spec = more;
        spec["containers"] = json!([shell("main", "exec sleep infinity", json!({}))]);
        cluster.create(PODS, &bound(name, spec)?)?;
        write(&cluster, name, &json!({ "startTime": AT }))?;
    }
    let node = Node::start_with(&settings)?;
    let over = cluster.wait_for(&path("over"), "over", |pod| pod["status"]["phase"] == "Failed")?;
    same("why it is over", &over["status"]["reason"], &json!("DeadlineExceeded"))?;
    let goes_on = cluster.wait_for(&path("goes-on"), "ready", is_ready)?;
    for pod in [&over, &goes_on] {
        same("when it began", &pod["status"]["startTime"], &json!(AT))?;
    }
    for name in ["over", "goes-on"] {
        let now = json!({ "gracePeriodSeconds": 1 });
        cluster.request("DELETE", &path(name), "application/json", &now)?;
        gone(&cluster, name)?;
    }
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// Somebody writes how a pod has ended while it runs: it is stopped, and that stays so.
fn ended() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let main = shell("main", "trap 'exit 7' TERM; echo hears; sleep infinity & wait", json!({}));
    let spec = json!({ "terminationGracePeriodSeconds": 600, "containers": [main] });
    cluster.create(PODS, &bound("web", spec)?)?;
    cluster.wait_for(&path("web"), "ready", is_ready)?;
    let web = node.ready("web")?;
    logged(&web, "main", "hears")?;
    let id = web.container_id("main")?.to_owned();
    let end = json!({ "phase": "Failed", "reason": "NodeLost", "message": "by an administrator" });
    write(&cluster, "web", &end)?;
    let over = cluster.wait_for(&path("web"), "stopped and taken down", |pod| {
        let is_down = condition(pod, "PodReadyToStartContainers").is_some_and(|one| one["status"] == "False");
        is_down && pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    })?;
    same("what runs", running(&[id])?, 0)?;
    node.agent.kill()?;
    node.agent.start()?;
    cluster.create(
        PODS,
        &bound("later", json!({ "containers": [shell("main", "exec sleep infinity", json!({}))] }))?,
    )?;
    cluster.wait_for(&path("later"), "ready", is_ready)?;
    let after = cluster.get_json(&path("web"))?;
    same("the status of before", &after["status"], &over["status"])?;
    for (field, value) in end.as_object().into_iter().flatten() {
        same(field, &after["status"][field], value)?;
    }
    for name in ["web", "later"] {
        cluster.request("DELETE", &path(name), "application/json", &json!({ "gracePeriodSeconds": 1 }))?;
        gone(&cluster, name)?;
    }
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}
