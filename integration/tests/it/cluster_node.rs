//! The node as its cluster sees it: its object, its CSINode and its lease.

mod csi_node;
mod network;
mod objects;
mod unheard;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::{self, AuditEvent, Cluster};
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::process::Process;
use berth_integration::wait::{self, Look};
use berth_integration::{binaries, components, containerd::ctr};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::network::{connect, disconnect};
use self::objects::{differences, lasting};
use crate::kit::{SOON, eventually, page, sleeper};
use crate::suite::{LONG_LIMIT, Test, same, test};

/// How often the lease is renewed at most, which is once in a second where the machine has time, before the node is told to be ready since
/// containerd answers again: less often than an agent that asks containerd from time to time would need.
const RENEWALS_UNTIL_READY: usize = 5;
/// What the agent logs, at this level or the next one, when the API server does not take what it says of the node.
const REPORT_FAILED: &str = "report the node";
/// Why a node without a configuration of a network is not ready.
const UNWIRED: &str = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin \
    returns error: cni plugin not initialized";
/// How long containerd may say nothing.
const DOWN_AFTER: Duration = Duration::from_secs(30);
/// Within this time from its kill nobody can have missed it for so long. And how often it is killed until it is back in that time.
const MISSED_AFTER: Duration = Duration::from_secs(25);
const RESTARTS: usize = 3;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("cluster_node::registers_and_becomes_ready_with_the_network", registers),
        test("cluster_node::what_others_put_on_it_stays", others),
        test("cluster_node::an_api_server_that_was_gone_finds_it_as_it_is", api_server_gone),
        test("cluster_node::gets_a_certificate_by_its_token_and_replaces_it", bootstrap).long(),
        test("cluster_node::its_object_is_the_kubelets", as_kubelet).long(),
        test("cluster_node::a_network_that_is_slow_to_answer_flips_nothing", unheard::flips_nothing).long(),
        test("cluster_node::a_silent_containerd_makes_it_unready", silent).long().within(LONG_LIMIT),
    ]
}

/// A cluster and a node that is about to join it, without a network configuration.
fn pair(kubelet: Value, flags: &[&str]) -> Result<(Cluster, Node)> {
    pair_of(&Settings { kubelet, ..Settings::default() }, flags)
}

/// The same with these settings.
fn pair_of(settings: &Settings, flags: &[&str]) -> Result<(Cluster, Node)> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let mut node = Node::prepare(settings)?;
    let kubeconfig = cluster.node_kubeconfig(NODE_NAME)?;
    let mut all = vec![format!("--kubeconfig={}", kubeconfig.display())];
    all.extend(flags.iter().map(|&flag| flag.to_owned()));
    node.agent.set_flags(&all);
    disconnect(&node)?;
    Ok((cluster, node))
}

fn path() -> String {
    format!("/api/v1/nodes/{NODE_NAME}")
}

fn lease() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}")
}

fn condition<'a>(node: &'a Value, kind: &str) -> &'a Value {
    let all = node["status"]["conditions"].as_array();
    all.and_then(|all| all.iter().find(|one| one["type"] == kind)).unwrap_or(&Value::Null)
}

fn is_ready(node: &Value) -> bool {
    condition(node, "Ready")["status"] == "True"
}

fn is_unready(node: &Value) -> bool {
    condition(node, "Ready")["status"] == "False"
}

/// What the node itself asked.
fn by_node(cluster: &Cluster) -> Result<Vec<AuditEvent>> {
    Ok(cluster.audit()?.into_iter().filter(|event| event.is_by_node(NODE_NAME)).collect())
}

/// What the node patched of its object so far.
fn patches(cluster: &Cluster) -> Result<Vec<Value>> {
    let events = by_node(cluster)?.into_iter().filter(|event| event.is("patch", "nodes/status"));
    Ok(events.filter_map(|event| event.request_object).collect())
}

/// Whether a patch tells no more than that the node still lives.
fn is_mere_heartbeat(patch: &Value) -> bool {
    let is_time = |field: &String| field == "type" || field == "lastHeartbeatTime";
    let conditions = patch["status"]["conditions"].as_array().into_iter().flatten();
    let mut fields = conditions.filter_map(Value::as_object).flat_map(serde_json::Map::keys);
    let others = patch["status"].as_object().into_iter().flat_map(serde_json::Map::keys);
    patch.get("metadata").is_none() && others.eq(["conditions"]) && fields.all(is_time)
}

fn heartbeats(cluster: &Cluster) -> Result<usize> {
    Ok(patches(cluster)?.iter().filter(|patch| is_mere_heartbeat(patch)).count())
}

/// Each patch tells of more than that the node still lives, which is for its report alone.
fn none_is_a_mere_heartbeat(patches: &[Value]) -> Result<()> {
    let found: Vec<_> = patches.iter().filter(|patch| is_mere_heartbeat(patch)).collect();
    ensure!(found.is_empty(), "reports before it is time for one: {found:?}");
    Ok(())
}

/// Nothing that the node asked was refused for want of a right.
fn none_refused(cluster: &Cluster) -> Result<()> {
    ensure!(!by_node(cluster)?.is_empty(), "the node asked nothing");
    let events = cluster.audit()?;
    let refused = cluster::refused(&events, NODE_NAME);
    ensure!(refused.is_empty(), "refused: {refused:#?}");
    Ok(())
}

/// The lease as it is after this many renewals.
fn renewed(cluster: &Cluster, times: usize) -> Result<Value> {
    let time = |lease: &Value| lease["spec"]["renewTime"].clone();
    let mut lease_now = cluster.wait_for(&lease(), "there", |_| true)?;
    for _ in 0..times {
        lease_now = cluster.wait_for(&lease(), "renewed", |lease| time(lease) != time(&lease_now))?;
    }
    Ok(lease_now)
}

fn registers() -> Result<()> {
    let kubelet = json!({
        "nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "5m",
        "providerID": "kind://x", "maxPods": 50,
    });
    let flags = ["--node-labels=a=b,node.kubernetes.io/x=y", "--register-with-taints=k=v:NoSchedule"];
    let (cluster, mut node) = pair(kubelet, &flags)?;
    node.agent.start()?;
    // On a busy machine nobody knows at first.
    let is_unwired = |node: &Value| is_unready(node) && condition(node, "Ready")["message"] == UNWIRED;
    let object = cluster.wait_for(&path(), "not ready without a network", is_unwired)?;
    same("the label", &object["metadata"]["labels"]["a"], &json!("b"))?;
    same("Kubernetes' label", &object["metadata"]["labels"]["node.kubernetes.io/x"], &json!("y"))?;
    same("the cloud's id", &object["spec"]["providerID"], &json!("kind://x"))?;
    let taints = object["spec"]["taints"].as_array().context("no taints")?;
    ensure!(taints.contains(&json!({ "key": "k", "value": "v", "effect": "NoSchedule" })), "{taints:?}");
    same("pods", &object["status"]["capacity"]["pods"], &json!("50"))?;

    network::is_followed(&node)?;
    cluster.wait_for(&path(), "ready", is_ready)?;
    csi_node::is_made(&cluster, &object)?;

    let lease = renewed(&cluster, 2)?;
    same("who holds it", &lease["spec"]["holderIdentity"], &json!(NODE_NAME))?;
    same("whose it is", &lease["metadata"]["ownerReferences"][0]["uid"], &object["metadata"]["uid"])?;

    says_nothing_without_changes(&cluster)?;
    csi_node::came_first(&cluster)?;
    wait::until("the events of the node", SOON, || {
        let events = cluster.get_json("/api/v1/namespaces/default/events")?;
        let reasons: Vec<String> = events["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|event| event["involvedObject"]["kind"] == "Node")
            .filter_map(|event| Some(event["reason"].as_str()?.to_owned()))
            .collect();
        let wanted = [
            "Starting",
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
            "NodeReady",
        ];
        Ok(if wanted.iter().all(|reason| reasons.iter().any(|one| one == reason)) {
            Look::Ready(())
        } else {
            Look::NotYet(reasons.join(" "))
        })
    })?;
    none_refused(&cluster)?;
    node.end()?;
    cluster.end()
}

/// The node is looked at each second, and nothing is said where nothing has changed.
fn says_nothing_without_changes(cluster: &Cluster) -> Result<()> {
    // What it is takes a few looks until nothing changes any more.
    wait::until("reports to end", SOON, || {
        let before = patches(cluster)?.len();
        renewed(cluster, 2)?;
        let more = patches(cluster)?.len() - before;
        Ok(if more == 0 { Look::Ready(()) } else { Look::NotYet(format!("{more} more")) })
    })?;
    let before = patches(cluster)?.len();
    renewed(cluster, 5)?;
    let more = patches(cluster)?.split_off(before);
    ensure!(more.len() <= 1, "patches in 5 s in which nothing changed: {more:?}");
    none_is_a_mere_heartbeat(&more)
}

/// Puts what is theirs on the node, as controllers do.
fn put(cluster: &Cluster) -> Result<()> {
    let patch = "application/strategic-merge-patch+json";
    let theirs = json!({
        "metadata": { "labels": { "theirs": "x" }, "annotations": { "theirs": "x" } },
        "spec": { "taints": [{ "key": "theirs", "effect": "NoSchedule" }] },
    });
    cluster.request("PATCH", &path(), patch, &theirs)?;
    let theirs = json!({ "status": {
        "conditions": [{ "type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated" }],
        "capacity": { "example.com/gpu": "3" },
    } });
    cluster.request("PATCH", &format!("{}/status", path()), patch, &theirs).map(drop)
}

fn others() -> Result<()> {
    let kubelet = json!({
        "nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "2s",
    });
    let (cluster, mut node) = pair(kubelet, &[])?;
    connect(&node)?;
    node.agent.start()?;
    let first = cluster.wait_for(&path(), "ready", is_ready)?;
    csi_node::is_made(&cluster, &first)?;
    csi_node::add_driver(&cluster)?;
    put(&cluster)?;
    // Everything that changes now is said on top of that; an agent that begins anew looks at all of it.
    node.agent.kill()?;
    node.agent.start()?;
    disconnect(&node)?;
    let object = cluster.wait_for(&path(), "not ready", is_unready)?;
    same("their label", &object["metadata"]["labels"]["theirs"], &json!("x"))?;
    same("their annotation", &object["metadata"]["annotations"]["theirs"], &json!("x"))?;
    same("their condition", &condition(&object, "NetworkUnavailable")["reason"], &json!("RouteCreated"))?;
    let taints = object["spec"]["taints"].as_array().context("no taints")?;
    ensure!(taints.iter().any(|taint| taint["key"] == "theirs"), "{taints:?}");
    // Nobody knows whose they were, so there are none until somebody counts them again.
    let gpus = |count: &'static str| {
        move |object: &Value| object["status"]["allocatable"]["example.com/gpu"] == count
    };
    cluster.wait_for(&path(), "no device of before", gpus("0"))?;
    put(&cluster)?;
    cluster.wait_for(&path(), "allocatable as others say", gpus("3"))?;
    csi_node::keeps_its_driver(&cluster)?;

    connect(&node)?;
    cluster.wait_for(&path(), "ready", is_ready)?;
    cluster.request("DELETE", &path(), "application/json", &json!({}))?;
    let uid = |object: &Value| object["metadata"]["uid"].clone();
    let again = |object: &Value| uid(object) != uid(&first) && is_ready(object);
    let object = cluster.wait_for(&path(), "made again", again)?;
    same("their label", object["metadata"]["labels"].get("theirs"), None)?;
    let owned = |lease: &Value| lease["metadata"]["ownerReferences"][0]["uid"] == uid(&object);
    cluster.wait_for(&lease(), "the new node's", owned)?;
    csi_node::is_made(&cluster, &object)?;
    // It is reported again and again though nothing changes. The first report of an object is no sign of that.
    let before = heartbeats(&cluster)?;
    eventually("reports of a node that is as it was", &true, || Ok(heartbeats(&cluster)? >= before + 2))?;
    none_refused(&cluster)?;
    node.end()?;
    cluster.end()
}

fn api_server_gone() -> Result<()> {
    let kubelet = json!({ "nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "1s" });
    let (mut cluster, mut node) = pair(kubelet, &["--v=4"])?;
    connect(&node)?;
    node.agent.start()?;
    let before = cluster.wait_for(&path(), "ready", is_ready)?;
    renewed(&cluster, 1)?;
    cluster.kill_api_server()?;
    // The node goes on by itself.
    node.apply("alone", &sleeper("alone"))?;
    node.ready("alone")?;
    cluster.start_api_server()?;
    renewed(&cluster, 2)?;
    let after = cluster.get_json(&path())?;
    let since = |object: &Value| condition(object, "Ready")["lastTransitionTime"].clone();
    same("ready since", since(&after), since(&before))?;
    same("the object", &after["metadata"]["uid"], &before["metadata"]["uid"])?;
    // A server that takes what is said and answers nothing is left for another connection.
    let failed = || Ok::<_, anyhow::Error>(files::read(node.agent.log())?.matches(REPORT_FAILED).count());
    let failures = failed()?;
    cluster.freeze_api_server()?;
    disconnect(&node)?;
    eventually("a report that was not answered", &true, || Ok(failed()? > failures))?;
    cluster.thaw_api_server()?;
    cluster.wait_for(&path(), "not ready", is_unready)?;
    none_refused(&cluster)?;
    node.end()?;
    cluster.end()
}

/// Where in the audit log the node is told to be ready.
fn told_ready(audit: &[AuditEvent]) -> Vec<usize> {
    let tells = |event: &AuditEvent| {
        let is_by_node = event.is_by_node(NODE_NAME) && event.is("patch", "nodes/status");
        is_by_node && event.request_object.as_ref().is_some_and(is_ready)
    };
    audit.iter().enumerate().filter(|(_, event)| tells(event)).map(|(at, _)| at).collect()
}

/// How often the lease is renewed from a place in the audit log on, until the node is told once more to be ready.
fn renewals_until_ready(cluster: &Cluster, from: usize, told_before: usize) -> Result<usize> {
    let (audit, told) = wait::until("the node to be told to be ready", SOON, || {
        let audit = cluster.audit()?;
        Ok(match told_ready(&audit).get(told_before) {
            Some(&told) => Look::Ready((audit, told)),
            None => Look::NotYet(format!("{} events", audit.len())),
        })
    })?;
    // It may have been quicker than who asked containerd.
    let meanwhile = audit.get(from..told).unwrap_or_default();
    let renews = |event: &&AuditEvent| event.is_by_node(NODE_NAME) && event.is("update", "leases");
    Ok(meanwhile.iter().filter(renews).count())
}

fn containerd_answers() -> Result<()> {
    wait::until("containerd to answer", SOON, || {
        Ok(match ctr(&["version"]) {
            Ok(_) => Look::Ready(()),
            Err(failure) => Look::NotYet(format!("{failure:#}")),
        })
    })
}

/// Containerd is killed and started again. Where that takes a busy machine so long that the node may well be told not to be ready, it is
/// done once more.
fn a_restart_flips_nothing(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let since = |object: &Value| condition(object, "Ready")["lastTransitionTime"].clone();
    let mut late = Vec::new();
    while late.len() < RESTARTS {
        let before = cluster.wait_for(&path(), "ready", is_ready)?;
        let killed = Instant::now();
        node.containerd.kill()?;
        renewed(cluster, 3)?;
        node.containerd.start_again()?;
        containerd_answers()?;
        renewed(cluster, 2)?;
        let after = cluster.get_json(&path())?;
        let took = killed.elapsed();
        if took < MISSED_AFTER {
            return same("ready since", since(&after), since(&before));
        }
        late.push(took);
    }
    bail!("restarts of containerd took {late:?}: none was short enough to show that it flips nothing")
}

fn silent() -> Result<()> {
    // It looks at itself often while nothing changes for most of a minute, and reports itself seldom.
    let kubelet = json!({
        "nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "1s", "nodeStatusReportFrequency": "5m",
    });
    let (cluster, mut node) = pair(kubelet, &[])?;
    connect(&node)?;
    node.agent.start()?;
    a_restart_flips_nothing(&cluster, &mut node)?;

    let began = Instant::now();
    node.containerd.freeze()?;
    let down = cluster.wait_for(&path(), "not ready", is_unready)?;
    ensure!(began.elapsed() >= DOWN_AFTER, "not ready after {:?}", began.elapsed());
    same("why", &condition(&down, "Ready")["message"], &json!("container runtime is down"))?;
    none_is_a_mere_heartbeat(&patches(&cluster)?)?;
    let told_before = told_ready(&cluster.audit()?).len();
    node.containerd.thaw()?;
    containerd_answers()?;
    let answered = cluster.audit()?.len();
    let renewals = renewals_until_ready(&cluster, answered, told_before)?;
    ensure!(renewals <= RENEWALS_UNTIL_READY, "the lease was renewed {renewals} times before it was ready");
    cluster.wait_for(&path(), "ready", is_ready)?;
    none_refused(&cluster)?;
    node.end()?;
    cluster.end()
}

/// Waits until the node has renewed its lease by so many certificates.
fn renewed_by(cluster: &Cluster, certificates: usize) -> Result<()> {
    wait::until(&format!("leases by {certificates} certificates"), SOON, || {
        let events = by_node(cluster)?;
        let renewals = events.iter().filter(|event| event.is("update", "leases") && event.code() == 200);
        let ids: BTreeSet<&str> = renewals.filter_map(AuditEvent::credential).collect();
        Ok(if ids.len() >= certificates { Look::Ready(()) } else { Look::NotYet(format!("{ids:?}")) })
    })
}

/// Where a link leads.
fn target(link: &Path) -> Result<String> {
    Ok(fs::read_link(link).with_context(|| format!("follow {}", link.display()))?.display().to_string())
}

fn bootstrap() -> Result<()> {
    let settings = cluster::Settings::with_brief_certificates();
    let root = World::here()?.root().to_owned();
    let cluster = Cluster::start(&root.join("cluster"), &settings)?;
    let kubelet = json!({ "rotateCertificates": true, "nodeLeaseDurationSeconds": 4 });
    let mut node = Node::prepare(&Settings { kubelet, ..Settings::default() })?;
    let (kubeconfig, pki) = (root.join("kubelet.conf"), root.join("pki"));
    node.agent.set_flags(&[
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--bootstrap-kubeconfig={}", cluster.bootstrap_kubeconfig()?.display()),
        format!("--cert-dir={}", pki.display()),
    ]);
    // It begins at once, and nothing is asked for it with the token.
    node.apply("static", &sleeper("static"))?;
    node.agent.start()?;
    // It is alive before anybody has signed anything.
    let alive = page(([127, 0, 0, 1], 10248).into(), "/healthz")?;
    same("alive", alive.text().as_str(), "ok")?;
    let before = cluster.wait_for(&path(), "ready", is_ready)?;
    let current = pki.join("kubelet-client-current.pem");
    let first = target(&current)?;
    for file in [Path::new(&first), &kubeconfig] {
        let mode = fs::metadata(file)?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "{} has mode {mode:o}", file.display());
    }
    let who = cluster.kubectl_as(&kubeconfig, &["auth", "whoami", "--output", "json"], "")?;
    let who: Value = serde_json::from_str(&who)?;
    same("who it is", &who["status"]["userInfo"]["username"], &json!(format!("system:node:{NODE_NAME}")))?;

    renewed_by(&cluster, 1)?;
    let mut last = first;
    for rotations in 1..=2 {
        last = wait::until("another certificate", SOON * 2, || {
            let now = target(&current)?;
            Ok(if now == last { Look::NotYet(now) } else { Look::Ready(now) })
        })?;
        renewed_by(&cluster, rotations + 1)?;
        renewed(&cluster, 2)?;
    }
    // An agent that begins anew has the last one.
    node.agent.kill()?;
    node.agent.start()?;
    renewed(&cluster, 2)?;
    let after = cluster.get_json(&path())?;
    let since = |object: &Value| condition(object, "Ready")["lastTransitionTime"].clone();
    same("ready since", since(&after), since(&before))?;
    node.ready("static")?;
    let events = cluster.audit()?;
    let by_token = events.iter().filter(|event| event.user.username.starts_with("system:bootstrap:"));
    let refused: Vec<&AuditEvent> = by_token.filter(|event| event.is_refused()).collect();
    ensure!(refused.is_empty(), "refused to the token: {refused:#?}");
    none_refused(&cluster)?;
    node.end()?;
    cluster.end()
}

/// What differs on purpose, and where the machine of the test does.
const ON_PURPOSE: [&str; 1] = [
    // By what the OCI runtime says of itself: that of a handler which names none is another one here than under containerd's CRI.
    ".status.runtimeHandlers",
];

fn as_kubelet() -> Result<()> {
    let (cluster, mut node) = pair(json!({}), &["--node-labels=a=b"])?;
    connect(&node)?;
    node.agent.start()?;
    let has_images = |node: &Value| node["status"]["images"].is_array();
    let ours = |node: &Value| has_images(node) && is_ready(node);
    let ours = lasting(&cluster.wait_for(&path(), "ready, with images", ours)?);
    node.agent.stop()?;
    cluster.request("DELETE", &path(), "application/json", &json!({}))?;

    let dir = node.world.root().join("theirs");
    files::make_dir(&dir)?;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupRoot": node.world.cgroup_root(),
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "authentication": { "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
    });
    files::write(dir.join("kubelet.yaml"), config.to_string())?;
    let mut command = Command::new(components::binary("kubelet")?);
    command.args([
        "--root-dir",
        "/var/lib/kubelet",
        "--hostname-override",
        NODE_NAME,
        "--node-labels=a=b",
        "--config",
    ]);
    command.arg(dir.join("kubelet.yaml")).env("PATH", binaries::search_path(None)?);
    command.arg("--kubeconfig").arg(cluster.node_kubeconfig(NODE_NAME)?);
    command.arg("--cert-dir").arg(dir.join("pki"));
    let kubelet = Process::start("kubelet", &mut command, &dir.join("kubelet.log"))?;
    let theirs = lasting(&cluster.wait_for(&path(), "the kubelet's, with images", has_images)?);
    kubelet.stop_with(Signal::SIGTERM)?;
    // It has made its root directory a mount of its own.
    umount2("/var/lib/kubelet", MntFlags::MNT_DETACH)?;
    let mut found = Vec::new();
    differences("", &ours, &theirs, &mut found);
    found.retain(|difference| !ON_PURPOSE.iter().any(|known| difference.starts_with(&format!("{known}:"))));
    ensure!(found.is_empty(), "differences:\n{}", found.join("\n"));
    node.close()?;
    cluster.end()
}
