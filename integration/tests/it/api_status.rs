//! What a pod's status in the API says that this node did not write.

use anyhow::Result;
use berth_integration::agent::Settings;
use berth_integration::cluster::Cluster;
use berth_integration::node::Node;
use serde_json::{Value, json};

use crate::api_pods::{PODS, bound, gone, in_a_cluster, is_ready, is_well_behaved, path};
use crate::kit::shell;
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test("api_status::a_pod_began_when_the_api_server_has_it", began)]
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
