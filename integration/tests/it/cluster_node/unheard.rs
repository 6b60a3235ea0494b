//! An agent that begins and does not hear of its network for a while, since a plugin is slow to answer STATUS. Pods do not wait for it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::watch::Watch;
use berth_integration::cluster::{AuditEvent, Cluster};
use berth_integration::cni;
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{by_node, condition, is_ready, is_unready, none_refused, pair_of, path, renewed};
use crate::api_pods::{self, PODS, bound, gone};
use crate::clock_steps::never_unready;
use crate::kit::{SOON, eventually, shell, spent};
use crate::suite::same;

/// How long the plugin does not answer at least.
const SLOW: Duration = Duration::from_secs(8);
/// What the agent says when it tells of its node meanwhile, and when the network has answered.
const UNHEARD: &str = "the node is reported though containerd or the network have not answered";
const HEARD: &str = "network is ready";

/// A cluster and a node that is about to join it. Its network is a plugin that answers STATUS when there is no file `slow` in the root, and
/// fails it where there is `sick`.
fn pair(root: &Path) -> Result<(Cluster, Node)> {
    let plugins = root.join("plugins");
    files::make_dir(&plugins)?;
    let script = format!(
        "#!/bin/sh
cat > /dev/null
[ \"$CNI_COMMAND\" = STATUS ] || exit 0
while [ -e {root}/slow ]; do sleep 0.1; done
[ -e {root}/sick ] || exit 0
echo '{{\"cniVersion\": \"1.1.0\", \"code\": 50, \"msg\": \"sick\"}}'
exit 1
",
        root = root.display(),
    );
    files::write_program(plugins.join("lazy"), &script)?;
    let kubelet = json!({ "nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "1s" });
    let berth = json!({ "cni": { "binDirs": [plugins] } });
    let (cluster, node) = pair_of(&Settings { kubelet, berth, ..Settings::default() }, &[])?;
    let network = json!({ "cniVersion": "1.1.0", "name": cni::NETWORK, "plugins": [{ "type": "lazy" }] });
    cni::write(node.cni_conf(), &network)?;
    Ok((cluster, node))
}

pub(super) fn flips_nothing() -> Result<()> {
    let root = World::here()?.root().to_owned();
    let (slow, sick) = (root.join("slow"), root.join("sick"));
    let (cluster, mut node) = pair(&root)?;
    node.agent.start()?;
    cluster.wait_for(&path(), "ready", is_ready)?;
    let watch = Watch::start(&cluster, "nodes", "default")?;
    watch.until("the node", SOON, |seen| (seen.name() == NODE_NAME).then_some(()))?;
    let goes = api_pods::path("goes");
    let main = shell("main", "exec sleep infinity", json!({}));
    let of_the_host =
        json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [main] });
    cluster.create(PODS, &bound("goes", of_the_host)?)?;
    cluster.wait_for(&goes, "ready", api_pods::is_ready)?;

    node.agent.kill()?;
    cluster.request("DELETE", &goes, "application/json", &json!({ "gracePeriodSeconds": 1 }))?;
    let before = cluster.get_json(&path())?;
    files::create(&slow)?;
    let started_at = Timestamp::now();
    node.agent.start()?;
    let began = Instant::now();
    gone(&cluster, "goes")?;
    spent("a pod that was deleted meanwhile is gone after", began);
    is_told_unheard(&cluster, &node, &before)?;
    asked_for_pods_first(&cluster, &node, started_at)?;
    while began.elapsed() < SLOW {
        renewed(&cluster, 1)?;
    }
    ensure!(!node.agent.said()?.contains(HEARD), "the network has answered");
    files::remove(&slow)?;
    eventually("the network to answer", &true, || Ok(node.agent.said()?.contains(HEARD)))?;
    renewed(&cluster, 2)?;
    never_unready(&cluster, &watch, "/api/v1/nodes", NODE_NAME)?;
    let since = |node: &Value| condition(node, "Ready")["lastTransitionTime"].clone();
    same("ready since", since(&cluster.get_json(&path())?), since(&before))?;

    // One that was not ready is not taken for ready.
    files::create(&sick)?;
    node.agent.kill()?;
    node.agent.start()?;
    cluster.wait_for(&path(), "not ready", is_unready)?;
    node.agent.kill()?;
    files::create(&slow)?;
    node.agent.start()?;
    let is_unknown = |node: &Value| condition(node, "Ready")["message"] == "network state unknown";
    let unknown = cluster.wait_for(&path(), "told that nobody knows", is_unknown)?;
    ensure!(is_unready(&unknown), "{unknown}");
    files::remove(&sick)?;
    files::remove(&slow)?;
    cluster.wait_for(&path(), "ready", is_ready)?;
    none_refused(&cluster)?;
    node.end()?;
    cluster.end()
}

/// Waits until an agent that was not answered has told that its node lives.
fn is_told_unheard(cluster: &Cluster, node: &Node, before: &Value) -> Result<()> {
    eventually("an agent that tells though it was not answered", &true, || {
        Ok(node.agent.said()?.contains(UNHEARD))
    })?;
    let beat = |node: &Value| condition(node, "Ready")["lastHeartbeatTime"].clone();
    cluster.wait_for(&path(), "told to live", |node| beat(node) != beat(before)).map(drop)
}

/// An agent that was started at this time has asked for its pods before it gave up waiting and told of its node.
fn asked_for_pods_first(cluster: &Cluster, node: &Node, started_at: Timestamp) -> Result<()> {
    let first = |events: &[AuditEvent], verbs: &[&str], kind: &str| {
        let fits = |event: &&AuditEvent| verbs.iter().any(|verb| event.is(verb, kind));
        let time = |event: &AuditEvent| event.request_received_timestamp.parse::<Timestamp>().ok();
        // Watches of the agent before are told of when they end.
        events.iter().filter(fits).filter_map(time).filter(|time| *time >= started_at).min()
    };
    let (pods, told) = wait::until("pods to be asked for and the node to be told", SOON, || {
        let events = by_node(cluster)?;
        let pods = first(&events, &["list", "watch"], "pods");
        Ok(match (pods, first(&events, &["patch"], "nodes/status")) {
            (Some(pods), Some(told)) => Look::Ready((pods, told)),
            seen => Look::NotYet(format!("{seen:?}")),
        })
    })?;
    let said = node.agent.said()?;
    let line = said.lines().find(|line| line.contains(UNHEARD)).context("it has not given up")?;
    let time = line.split_whitespace().next().unwrap_or_default();
    let gave_up = time.parse::<Timestamp>().with_context(|| line.to_owned())?;
    ensure!(pods < gave_up && pods < told, "pods at {pods}, gave up at {gave_up}, told at {told}");
    Ok(())
}
