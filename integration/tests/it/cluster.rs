//! The control plane that tests have, before a node joins it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use berth_integration::cluster::kubeadm::{Join, Kubelet, Machine, NODE};
use berth_integration::cluster::proxy::{Network, Proxy};
use berth_integration::cluster::{self, AuditEvent, Cluster, Settings};
use berth_integration::lab::World;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::{SOON, spent};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("cluster::a_node_may_write_itself_and_no_other", of_nodes),
        test("cluster::controllers_and_scheduler_bring_a_pod_to_a_node", whole),
        test("cluster::the_api_server_goes_and_comes_back", api_server_restarts),
        test("cluster::a_node_behind_a_network_that_fails", behind_a_network),
        test("cluster::kubeadm_makes_a_control_plane_of_a_kubelet", init_of_a_kubelet).within(LONG_LIMIT),
        test("cluster::a_kubelet_joins_by_kubeadm_and_runs_its_addons", a_kubelet_joins),
    ]
}

fn start(settings: &Settings) -> Result<Cluster> {
    let began = Instant::now();
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), settings)?;
    cost("start", began, &cluster)?;
    Ok(cluster)
}

/// Shown when a test fails, and with `--nocapture`.
#[expect(clippy::print_stderr, reason = "what a control plane costs")]
fn cost(what: &str, began: Instant, cluster: &Cluster) -> Result<()> {
    spent(what, began);
    for (name, pid) in cluster.pids() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let stat: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let memory = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
        eprintln!("  {name}: ticks {} {}, {memory}", stat[11], stat[12]);
    }
    Ok(())
}

fn node(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } })
}

/// What a node asked that was answered with a code.
fn asked<'a>(events: &'a [AuditEvent], by: &str, code: u16) -> Vec<&'a AuditEvent> {
    events.iter().filter(|event| event.is_by_node(by) && event.code() == code).collect()
}

fn create_as(cluster: &Cluster, kubeconfig: &Path, object: &Value) -> Result<String> {
    cluster.kubectl_as(kubeconfig, &["create", "--validate=false", "--filename", "-"], &object.to_string())
}

fn of_nodes() -> Result<()> {
    let cluster = start(&Settings::default())?;
    let one = cluster.node_kubeconfig("one")?;
    create_as(&cluster, &one, &node("one"))?;
    same("its name", &cluster.get_json("/api/v1/nodes/one")?["metadata"]["name"], &json!("one"))?;
    let refused = format!("{:#}", create_as(&cluster, &one, &node("two")).err().context("two was made")?);
    ensure!(refused.contains("(Forbidden)") && refused.contains("node \"one\""), "{refused}");
    same("the other", cluster.find_json("/api/v1/nodes/two")?, None)?;

    let events = cluster.audit()?;
    let made = asked(&events, "one", 201);
    same("made", made.iter().map(|event| event.name()).collect(), vec!["one"])?;
    same("what was sent", &made[0].request_object.as_ref().context("no object")?["kind"], &json!("Node"))?;
    let refused = asked(&events, "one", 403);
    ensure!(refused.len() == 1 && refused[0].is("create", "nodes"), "refused: {refused:?}");
    cluster.end()
}

/// A node that says of itself that it is ready.
fn join(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.create("/api/v1/nodes", &node(name))?;
    let room = json!({ "cpu": "4", "memory": "8Gi", "pods": "110" });
    let ready = json!({ "status": {
        "capacity": room,
        "allocatable": room,
        "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }],
    } });
    let path = format!("/api/v1/nodes/{name}/status");
    cluster.request("PATCH", &path, "application/strategic-merge-patch+json", &ready).map(drop)
}

const DEPLOYMENT: &str = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
    "replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "localhost:5000/busybox:1"}]}}}}"#;
const PODS: &str = "/api/v1/namespaces/default/pods";

fn whole() -> Result<()> {
    let began = Instant::now();
    let cluster = start(&Settings::whole())?;
    join(&cluster, "one")?;
    cluster.apply(DEPLOYMENT)?;
    cluster.wait_for(PODS, "one that is bound", |list| list["items"][0]["spec"]["nodeName"] == "one")?;
    cost("bound", began, &cluster)?;
    let pods = cluster.get_json(PODS)?;
    let pod = pods["items"][0]["metadata"]["name"].as_str().context("no name")?;
    // The log has an event a moment after its answer.
    wait::until("the binding in the audit log", SOON, || {
        let events = cluster.audit()?;
        let bound = events.iter().find(|event| event.is("create", "pods/binding") && event.name() == pod);
        Ok(match bound {
            Some(event) => Look::Ready(event.user.username.clone()),
            None => Look::NotYet(format!("{} events", events.len())),
        })
    })
    .and_then(|who| same("who bound it", who.as_str(), "system:kube-scheduler"))?;
    let cidr = cluster
        .wait_for("/api/v1/nodes/one", "given addresses", |node| node["spec"]["podCIDR"].is_string())?;
    same("its addresses", &cidr["spec"]["podCIDR"], &json!("10.244.0.0/24"))?;
    cluster.end()
}

fn api_server_restarts() -> Result<()> {
    let mut cluster = start(&Settings::default())?;
    cluster.create("/api/v1/nodes", &node("one"))?;
    let bootstrap = cluster.bootstrap_kubeconfig()?;
    cluster.kill_api_server()?;
    ensure!(cluster.get_json("/api/v1/nodes/one").is_err(), "somebody answers");
    cluster.start_api_server()?;
    cluster.get_json("/api/v1/nodes/one")?;
    let began = Instant::now();
    cluster.stop_api_server()?;
    cost("stop", began, &cluster)?;
    cluster.start_api_server()?;
    let said = cluster.kubectl_as(&bootstrap, &["auth", "whoami", "--output", "json"], "")?;
    let who: Value = serde_json::from_str(&said)?;
    same("who asks", &who["status"]["userInfo"]["username"], &json!("system:bootstrap:abcdef"))?;
    cluster.end()
}

fn behind_a_network() -> Result<()> {
    let cluster = start(&Settings::default())?;
    let proxy = Proxy::start((Ipv4Addr::LOCALHOST, 0).into(), cluster.address())?;
    let one = cluster.kubeconfig_through(&cluster.node_kubeconfig("one")?, proxy.at())?;
    create_as(&cluster, &one, &node("one"))?;
    let look = |limit: &str| {
        let args = ["get", "--raw", "/api/v1/nodes/one", "--request-timeout", limit];
        cluster.kubectl_as(&one, &args, "")
    };
    // What is answered may take as long as the machine wants.
    look("0")?;
    for network in [Network::SILENT, Network::GONE] {
        proxy.set(network);
        ensure!(look("3s").is_err(), "an answer through {network:?}");
        proxy.set(Network::default());
        look("0")?;
    }
    drop(proxy);
    cluster.end()
}

fn condition(node: &Value, kind: &str) -> String {
    let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|one| one["type"] == kind).cloned().unwrap_or_default();
    found["status"].as_str().unwrap_or_default().to_owned()
}

const PARTS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

fn init_of_a_kubelet() -> Result<()> {
    let began = Instant::now();
    let machine = Machine::prepare(Kubelet::Upstream)?;
    machine.add_network()?;
    spent("prepared", began);
    let client = machine.init()?;
    spent("kubeadm init", began);
    client.wait_for(&format!("/api/v1/nodes/{NODE}"), "Ready", |node| condition(node, "Ready") == "True")?;
    for part in PARTS {
        let path = format!("/api/v1/namespaces/kube-system/pods/{part}-{NODE}");
        client.wait_for(&path, "Ready", |pod| condition(pod, "Ready") == "True")?;
    }
    spent("everything ready", began);
    client.end()?;
    machine.reset()?;
    spent("kubeadm reset", began);
    machine.end()
}

/// A pod of a node that asks for a service by its name.
const ASKS: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks"}, "spec": {"restartPolicy": "OnFailure",
    "containers": [{"name": "main", "image": "localhost:5000/busybox:1",
        "command": ["/bin/sh", "-c", "nslookup kubernetes.default.svc.cluster.local && echo | nc -w 5 kubernetes.default.svc.cluster.local 443"]}]}}"#;

fn a_kubelet_joins() -> Result<()> {
    let began = Instant::now();
    let cluster = start(&Settings::whole())?;
    cluster.prepare_for_join()?;
    spent("prepared", began);
    let machine = Machine::prepare(Kubelet::Upstream)?;
    machine.add_network()?;
    machine.join(&Join::to(cluster.address()))?;
    spent("kubeadm join", began);
    let path = format!("/api/v1/nodes/{NODE}");
    cluster.wait_for(&path, "Ready", |node| condition(node, "Ready") == "True")?;
    spent("node ready", began);
    let dns = "/apis/apps/v1/namespaces/kube-system/deployments/coredns";
    cluster.wait_for(dns, "ready", |dns| dns["status"]["readyReplicas"] == 2)?;
    spent("names answered", began);
    cluster.apply(ASKS)?;
    cluster.wait_for(&format!("{PODS}/asks"), "at its end", |pod| pod["status"]["phase"] == "Succeeded")?;
    spent("a service answered by its name", began);
    let audit = cluster.audit()?;
    let refused = cluster::refused(&audit, NODE);
    ensure!(refused.is_empty(), "the kubelet had no right to: {refused:#?}");

    cluster.kubectl(&["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force"])?;
    machine.reset()?;
    cost("reset", began, &cluster)?;
    machine.end()?;
    cluster.end()
}
