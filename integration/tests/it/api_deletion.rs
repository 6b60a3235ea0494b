//! Pods that are deleted while the node does not hear, by force, or with less time than was said before.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::proxy::{Network, Proxy};
use berth_integration::cluster::{self, Cluster};
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::api_pods::{PODS, bound, gone, is_ready, is_well_behaved, path};
use crate::kit::{SOON, logged, shell};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_deletion::what_was_deleted_while_the_node_heard_nothing_ends_when_it_does", unheard),
        test("api_deletion::a_deletion_with_less_time_counts", shortened),
        test("api_deletion::one_that_is_forced_out_has_a_second", forced),
    ]
}

/// It says when it can be asked to end and when it is, and goes on.
const DEAF: &str = "trap 'echo asked' TERM; echo hears; sleep infinity & while :; do wait; done";

/// A pod that does not end when it is asked to, and has so many seconds.
fn deaf(name: &str, grace: u64) -> Result<Value> {
    let main = shell("main", DEAF, json!({}));
    bound(name, json!({ "terminationGracePeriodSeconds": grace, "containers": [main] }))
}

fn delete(cluster: &Cluster, name: &str, grace: u64) -> Result<()> {
    let options = json!({ "gracePeriodSeconds": grace });
    cluster.request("DELETE", &path(name), "application/json", &options).map(drop)
}

/// Containers that have a task.
pub(crate) fn running(ids: &[String]) -> Result<usize> {
    let tasks = Records::open()?.tasks()?;
    Ok(ids.iter().filter(|id| tasks.iter().any(|task| task.id == **id)).count())
}

/// One pod goes from the API at once, one is to end, and the time of one that ends already is shortened; all while the node hears
/// nothing. What it hears then is that the first one is gone, and how the others are now.
fn unheard() -> Result<()> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let network = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), cluster.address())?;
    let kubeconfig = cluster.kubeconfig_through(&cluster.node_kubeconfig(NODE_NAME)?, network.at())?;
    let flags = vec![format!("--kubeconfig={}", kubeconfig.display())];
    let node = Node::start_with(&Settings { flags, ..Settings::default() })?;
    let mut ids = Vec::new();
    // One that is forced out has its own time, which is all that the node ever heard of.
    for (name, grace) in [("forced", 2), ("ends", 600), ("shortened", 600), ("stays", 600)] {
        cluster.create(PODS, &deaf(name, grace)?)?;
        cluster.wait_for(&path(name), "ready", is_ready)?;
        let pod = node.ready(name)?;
        logged(&pod, "main", "hears")?;
        ids.push(pod.container_id("main")?.to_owned());
    }
    delete(&cluster, "shortened", 600)?;
    logged(&node.pod("shortened")?.context("the pod is gone")?, "main", "asked")?;
    network.set(Network::GONE);
    delete(&cluster, "forced", 0)?;
    same("forced", cluster.find_json(&path("forced"))?, None)?;
    delete(&cluster, "ends", 1)?;
    delete(&cluster, "shortened", 1)?;
    same("containers that run while nothing is heard", running(&ids)?, 4)?;
    network.set(Network::default());
    // Of six hundred seconds, and nobody waits for so long.
    for name in ["ends", "shortened"] {
        gone(&cluster, name)?;
    }
    wait::until("the end of what was deleted", SOON, || {
        let left = running(&ids)?;
        Ok(if left == 1 { Look::Ready(()) } else { Look::NotYet(format!("{left} run")) })
    })?;
    let stays = cluster.get_json(&path("stays"))?;
    same("what stays is ready", is_ready(&stays), true)?;
    same("its container", node.ready("stays")?.container_id("main")?, ids[3].as_str())?;
    delete(&cluster, "stays", 1)?;
    gone(&cluster, "stays")?;
    is_well_behaved(&cluster)?;
    node.end()?;
    drop(network);
    cluster.end()
}

/// Of the six hundred that they have, and nobody waits for so long. One goes from the API at once, of the other somebody holds the object.
fn forced() -> Result<()> {
    let (cluster, node) = crate::api_pods::start(Settings::default())?;
    let mut ids = Vec::new();
    for (name, finalizers) in [("plain", json!([])), ("held", json!(["example.com/held"]))] {
        let mut pod = deaf(name, 600)?;
        pod["metadata"]["finalizers"] = finalizers;
        cluster.create(PODS, &pod)?;
        cluster.wait_for(&path(name), "ready", is_ready)?;
        let pod = node.ready(name)?;
        logged(&pod, "main", "hears")?;
        ids.push(pod.container_id("main")?.to_owned());
    }
    delete(&cluster, "plain", 0)?;
    delete(&cluster, "held", 0)?;
    same("the one that nobody holds", cluster.find_json(&path("plain"))?, None)?;
    wait::until("the end of both", SOON, || {
        let left = running(&ids)?;
        Ok(if left == 0 { Look::Ready(()) } else { Look::NotYet(format!("{left} run")) })
    })?;
    let let_go = json!({ "metadata": { "finalizers": null } });
    cluster.request("PATCH", &path("held"), "application/merge-patch+json", &let_go)?;
    gone(&cluster, "held")?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// A second deletion with less time takes effect within it.
fn shortened() -> Result<()> {
    let (cluster, node) = crate::api_pods::start(Settings::default())?;
    cluster.create(PODS, &deaf("web", 600)?)?;
    cluster.wait_for(&path("web"), "ready", is_ready)?;
    let pod = node.ready("web")?;
    logged(&pod, "main", "hears")?;
    let id = pod.container_id("main")?.to_owned();
    delete(&cluster, "web", 300)?;
    logged(&pod, "main", "asked")?;
    same("it goes on", running(std::slice::from_ref(&id))?, 1)?;
    let began = Instant::now();
    delete(&cluster, "web", 3)?;
    gone(&cluster, "web")?;
    let took = began.elapsed();
    // It is killed at the end of that time, not at once, and not at the end of the first one, for which nobody waits.
    ensure!(took >= Duration::from_secs(2), "it took {took:?}");
    same("what runs", running(&[id])?, 0)?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}
