//! The control plane that tests have, before a node joins it.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use berth_integration::cluster::{AuditEvent, Cluster, Settings};
use berth_integration::lab::World;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::SOON;
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("cluster::a_node_may_write_itself_and_no_other", of_nodes),
        test("cluster::controllers_and_scheduler_bring_a_pod_to_a_node", whole),
        test("cluster::the_api_server_goes_and_comes_back", api_server_restarts),
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
    eprintln!("{what}: {:.2} s", began.elapsed().as_secs_f64());
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
