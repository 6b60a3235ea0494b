//! Pods that an API server has bound to a node on which they may not begin.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::faults::{Fault, Faults, Of, Rule, Verb};
use berth_integration::cluster::{self, Cluster};
use berth_integration::kubelet::{self, Kubelet};
use berth_integration::lab::World;
use berth_integration::node::{GONE_LIMIT, Node};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::{SOON, eventually, shell, sleeper, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("admission::refuses_and_preempts_as_the_kubelet", as_kubelet).long(),
        test("admission::pods_that_ran_go_on_with_less_room_and_without_the_api_server", less_room),
        test("admission::what_is_not_taken_is_told_and_can_be_deleted", not_taken),
        test("admission::labels_are_those_of_the_node_object_of_that_moment", labels),
    ]
}

const PODS: &str = "/api/v1/namespaces/default/pods";
/// Beside it, pods of the API have to tolerate it.
const TAINT: &str = "--register-with-taints=dedicated=yes:NoExecute";
/// How long the API server does not answer about the node, which is far longer than it takes to ask for pods.
const HELD: Duration = Duration::from_secs(2);

fn path(pod: &str) -> String {
    format!("{PODS}/{pod}")
}

fn node_path(node: &str) -> String {
    format!("/api/v1/nodes/{node}")
}

/// A control plane without controllers, and a node of it.
fn start(kubelet: Value, flags: &[&str]) -> Result<(Cluster, Node)> {
    let (cluster, mut node) = prepare(kubelet, flags)?;
    node.agent.start()?;
    Ok((cluster, node))
}

/// The same without the agent, which is configured and not started.
fn prepare(kubelet: Value, flags: &[&str]) -> Result<(Cluster, Node)> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let flags = all_flags(&cluster, flags)?;
    let node = Node::prepare(&Settings { kubelet, flags, ..Settings::default() })?;
    Ok((cluster, node))
}

fn all_flags(cluster: &Cluster, flags: &[&str]) -> Result<Vec<String>> {
    let kubeconfig = format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display());
    Ok(flags.iter().map(|&flag| flag.to_owned()).chain([kubeconfig]).collect())
}

/// A pod on a node, which tolerates everything; `more` is put over its spec.
fn bound(node: &str, name: &str, more: Value) -> Value {
    let spec = json!({
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{ "operator": "Exists" }],
        "containers": [asking(json!({}))],
    });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": with(spec, more) })
}

/// A part of the processors that this node has for pods, in hundredths of them: thousandths of a processor.
pub(crate) fn cpu_milli(cluster: &Cluster, hundredths: u64) -> Result<u64> {
    let is_told = |node: &Value| node["status"]["allocatable"]["cpu"].is_string();
    let node = cluster.wait_for(&node_path(NODE_NAME), "with its processors", is_told)?;
    let told = node["status"]["allocatable"]["cpu"].as_str().unwrap_or_default();
    let all: u64 = match told.strip_suffix('m') {
        Some(milli) => milli.parse()?,
        None => told.parse::<u64>()? * 1000,
    };
    Ok(all * hundredths / 100)
}

/// A container that asks for so much of a processor.
fn asking_cpu(milli: u64) -> Value {
    asking(json!({ "cpu": format!("{milli}m") }))
}

/// A container that sleeps and asks for something.
fn asking(requests: Value) -> Value {
    shell("main", "exec sleep infinity", json!({ "resources": { "requests": requests } }))
}

/// The same of what is given whole: its limit is what it asks for.
fn whole(limits: Value) -> Value {
    shell("main", "exec sleep infinity", json!({ "resources": { "limits": limits } }))
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

fn has_failed(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed"
}

/// Whether the node has taken it, whatever becomes of its image.
fn is_admitted(pod: &Value) -> bool {
    !has_failed(pod) && pod["status"]["containerStatuses"].is_array()
}

/// What users see of a pod that was refused: its status, and the event of the same reason.
fn refusal(cluster: &Cluster, pod: &str) -> Result<Value> {
    let seen = cluster.wait_for(&path(pod), "refused", has_failed)?;
    let mut status = seen["status"].clone();
    let fields = status.as_object_mut().context("no status")?;
    fields.retain(|name, _| {
        ["phase", "reason", "message", "conditions", "containerStatuses"].contains(&name.as_str())
    });
    let event = event(cluster, pod, status["reason"].as_str().unwrap_or_default())?;
    let event = json!({
        "type": event["type"], "reason": event["reason"], "message": event["message"],
        "component": event["source"]["component"], "fieldPath": event["involvedObject"]["fieldPath"],
    });
    let text = |value: &Value| value.to_string().replace(pod, "<pod>");
    Ok(json!({ "status": text(&without_times(&status)), "event": text(&event) }))
}

fn without_times(status: &Value) -> Value {
    let mut status = status.clone();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        for name in ["lastTransitionTime", "lastProbeTime"] {
            condition.as_object_mut().map(|fields| fields.remove(name));
        }
    }
    status
}

/// An event of a pod.
fn event(cluster: &Cluster, pod: &str, reason: &str) -> Result<Value> {
    let events = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={pod}");
    wait::until(&format!("the event {reason} of {pod}"), SOON, || {
        let events = cluster.get_json(&events)?;
        let found = events["items"].as_array().into_iter().flatten().find(|event| event["reason"] == reason);
        Ok(match found {
            Some(event) => Look::Ready(event.clone()),
            None => Look::NotYet(events["items"].to_string()),
        })
    })
}

/// Names, what is asked for, the reason, and a part of the message, of pods that nothing else has to be on the node for.
fn refused() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let asks = |requests: Value| json!({ "containers": [asking(requests)] });
    let critical = with(
        asks(json!({ "cpu": "999" })),
        json!({ "priorityClassName": "system-node-critical", "priority": 2_000_001_000 }),
    );
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["c"] }] }],
    } } });
    let sysctl = json!({ "securityContext": { "sysctls": [{ "name": "kernel.msgmax", "value": "65536" }] } });
    vec![
        ("cpu", asks(json!({ "cpu": "999" })), "OutOfcpu", "resource: cpu, requested: 999000, used: 0"),
        ("memory", asks(json!({ "memory": "64Ti" })), "OutOfmemory", "requested: 70368744177664, used: 0"),
        (
            "vendor",
            json!({ "containers": [whole(json!({ "example.com/theirs": "5" }))] }),
            "OutOfexample.com/theirs",
            "capacity: 3",
        ),
        ("affinity", json!({ "affinity": affinity }), "NodeAffinity", "Predicate NodeAffinity failed"),
        ("selector", json!({ "nodeSelector": { "none": "x" } }), "NodeAffinity", "node affinity/selector"),
        ("sysctl", sysctl, "SysctlForbidden", "forbidden sysctl"),
        ("windows", json!({ "os": { "name": "windows" } }), "PodOSNotSupported", "OS field"),
        ("taint", json!({ "tolerations": [] }), "TaintToleration", "taints that the pod didn't tolerate"),
        (
            "critical",
            critical,
            "UnexpectedAdmissionError",
            "no set of running pods found to reclaim resources",
        ),
    ]
}

/// Both nodes, in this order: what the first shows is what the other shows.
const NODES: [&str; 2] = [NODE_NAME, kubelet::NODE_NAME];

fn as_kubelet() -> Result<()> {
    let room = json!({ "maxPods": 2, "evictionHard": { "memory.available": "1Mi" } });
    let flags = ["--node-labels=a=b", TAINT];
    let (cluster, node) = start(room.clone(), &flags)?;
    let theirs = kubelet::Settings {
        kubeconfig: Some(cluster.node_kubeconfig(kubelet::NODE_NAME)?),
        // Where it does not know the file system of its images, its collection of them ends it.
        kubelet: with(room, json!({ "imageGCHighThresholdPercent": 100 })),
        flags: flags.map(str::to_owned).into(),
        ..kubelet::Settings::default()
    };
    let kubelet = Kubelet::start(&node, theirs)?;
    for name in NODES {
        let there = |node: &Value| node["status"]["allocatable"]["cpu"].is_string();
        cluster.wait_for(&node_path(name), "there", there).with_context(|| kubelet.log_tail())?;
        let put = json!({ "status": { "capacity": { "example.com/theirs": "3" } } });
        let patch = "application/strategic-merge-patch+json";
        cluster.request("PATCH", &format!("{}/status", node_path(name)), patch, &put)?;
        let has = |node: &Value| node["status"]["allocatable"]["example.com/theirs"] == "3";
        cluster.wait_for(&node_path(name), "with the resource of others", has)?;
    }
    alone(&cluster)?;
    profiles(&cluster)?;
    // There is room for one of these.
    let most = cpu_milli(&cluster, 60)?;
    crowded(&cluster, most)?;
    preempted(&cluster, most)?;
    all_gone(&cluster)?;
    kubelet.end(&node)?;
    node.end()?;
    cluster.end()
}

fn all_gone(cluster: &Cluster) -> Result<()> {
    cluster.request("DELETE", PODS, "application/json", &json!({}))?;
    wait::until("all pods to be gone", GONE_LIMIT, || {
        let left = cluster.get_json(PODS)?["items"].as_array().map_or(0, Vec::len);
        Ok(if left == 0 { Look::Ready(()) } else { Look::NotYet(format!("{left} are left")) })
    })
}

/// Makes the same pod on both nodes; their names.
fn on_both(cluster: &Cluster, name: &str, more: &Value, labels: &Value) -> Result<[String; 2]> {
    let pods = NODES.map(|node| format!("{name}-{node}"));
    for (node, pod) in NODES.iter().zip(&pods) {
        let mut object = bound(node, pod, more.clone());
        object["metadata"]["labels"] = labels.clone();
        cluster.create(PODS, &object).with_context(|| format!("make {pod}"))?;
    }
    Ok(pods)
}

fn both_refuse(cluster: &Cluster, name: &str, more: &Value, reason: &str, message: &str) -> Result<()> {
    both_refuse_labelled(cluster, name, (more, &json!({})), reason, message)
}

fn both_refuse_labelled(
    cluster: &Cluster,
    name: &str,
    (more, labels): (&Value, &Value),
    reason: &str,
    message: &str,
) -> Result<()> {
    let [ours, theirs] = on_both(cluster, name, more, labels)?;
    let (ours, theirs) = (refusal(cluster, &ours)?, refusal(cluster, &theirs)?);
    same(&format!("{name} as the kubelet shows it"), &ours, &theirs)?;
    let shown = ours.to_string();
    ensure!(shown.contains(reason) && shown.contains(message), "{name}: {shown}");
    ensure!(shown.contains("Pod was rejected: "), "{name}: {shown}");
    Ok(())
}

fn alone(cluster: &Cluster) -> Result<()> {
    for (name, more, reason, message) in refused() {
        both_refuse(cluster, name, &more, reason, message)?;
    }
    let os = json!({ "kubernetes.io/os": "windows" });
    let reason = "PodOSSelectorNodeLabelDoesNotMatch";
    both_refuse_labelled(cluster, "os", (&json!({}), &os), reason, "doesn't match node label")
}

/// Where the kernel has AppArmor, neither refuses a profile, and where it has none both do.
fn profiles(cluster: &Cluster) -> Result<()> {
    let profile = json!({ "securityContext": { "appArmorProfile": { "type": "RuntimeDefault" } } });
    let has_it = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    if !has_it.is_ok_and(|text| text.starts_with('Y')) {
        let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        return both_refuse(cluster, "profile", &profile, "AppArmor", message);
    }
    for pod in on_both(cluster, "profile", &profile, &json!({}))? {
        cluster.wait_for(&path(&pod), "admitted", is_admitted)?;
    }
    all_gone(cluster)
}

/// What is missing because others have it.
fn crowded(cluster: &Cluster, most: u64) -> Result<()> {
    let port = |more: Value| with(json!({ "ports": [{ "containerPort": 7000, "hostPort": 7000 }] }), more);
    let holder = with(asking_cpu(most), port(json!({})));
    let spec = json!({ "hostNetwork": true, "containers": [holder], "priority": 0 });
    for pod in on_both(cluster, "holder", &spec, &json!({}))? {
        cluster.wait_for(&path(&pod), "admitted", is_admitted)?;
    }
    let other = json!({ "hostNetwork": true, "containers": [with(asking(json!({})), port(json!({})))] });
    both_refuse(cluster, "port", &other, "NodePorts", "didn't have free ports")?;
    let more = json!({ "containers": [asking_cpu(most)] });
    both_refuse(cluster, "more", &more, "OutOfcpu", &format!("requested: {most}, used: {most}"))?;
    for pod in on_both(cluster, "beside", &json!({}), &json!({}))? {
        cluster.wait_for(&path(&pod), "admitted", is_admitted)?;
    }
    both_refuse(
        cluster,
        "third",
        &json!({}),
        "OutOfpods",
        "resource: pods, requested: 1, used: 2, capacity: 2",
    )
}

/// A critical pod takes the place of one that others need less.
fn preempted(cluster: &Cluster, most: u64) -> Result<()> {
    let critical = json!({
        "priorityClassName": "system-node-critical",
        "containers": [asking_cpu(most)],
    });
    let mut seen = Vec::new();
    for (pod, node) in on_both(cluster, "first", &critical, &json!({}))?.iter().zip(NODES) {
        let holder = format!("holder-{node}");
        let ended = cluster.wait_for(&path(&holder), "preempted", has_failed)?;
        let status = &ended["status"];
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let disrupted = conditions.find(|one| one["type"] == "DisruptionTarget").cloned().unwrap_or_default();
        let event = event(cluster, &holder, "Preempting")?;
        seen.push(json!({
            "reason": status["reason"], "message": status["message"],
            "disrupted": [disrupted["status"], disrupted["reason"], disrupted["message"]],
            "event": [event["type"], event["message"]],
        }));
        cluster.wait_for(&path(pod), "admitted", is_admitted)?;
        ensure!(
            !has_failed(&cluster.get_json(&path(&format!("beside-{node}")))?),
            "beside it was preempted too"
        );
    }
    same("as the kubelet preempts", &seen[0], &seen[1])?;
    same("why", &seen[0]["reason"], &json!("Preempting"))?;
    same("its message", &seen[0]["message"], &json!("Preempted in order to admit critical pod"))?;
    cluster.wait_for(&path(&format!("first-{NODE_NAME}")), "ready", is_ready).map(drop)
}

fn gone(cluster: &Cluster, pod: &str) -> Result<()> {
    cluster.wait_gone(&path(pod))
}

fn less_room() -> Result<()> {
    let (mut cluster, mut node) = start(json!({}), &[TAINT])?;
    let pods = ["one", "two"];
    let of_each = cpu_milli(&cluster, 35)?;
    let (reserved, little) = (cpu_milli(&cluster, 60)?, cpu_milli(&cluster, 5)?);
    for name in pods {
        let spec = json!({ "containers": [asking_cpu(of_each)] });
        cluster.create(PODS, &bound(NODE_NAME, name, spec))?;
    }
    let mut before = Vec::new();
    for name in pods {
        before.push(cluster.wait_for(&path(name), "ready", is_ready)?["status"].clone());
    }
    cluster.kill_api_server()?;
    node.agent.kill()?;
    // What is left is less than both ask for.
    let reserved = format!("--system-reserved=cpu={reserved}m");
    node.agent.set_flags(&all_flags(&cluster, &[TAINT, &reserved])?);
    node.agent.start()?;
    // Pods of manifests wait for no API server, and tolerate the taint.
    node.apply("static", &sleeper("static"))?;
    node.ready("static")?;
    for (name, before) in pods.iter().zip(&before) {
        same(name, node.ready(name)?.container_id("main")?, container_id(before)?)?;
    }
    cluster.start_api_server()?;
    let spec = json!({ "containers": [asking_cpu(little)] });
    cluster.create(PODS, &bound(NODE_NAME, "late", spec))?;
    let late = cluster.wait_for(&path("late"), "refused", has_failed)?;
    same("why", &late["status"]["reason"], &json!("OutOfcpu"))?;
    for (name, before) in pods.iter().zip(&before) {
        same(&format!("the status of {name}"), &cluster.get_json(&path(name))?["status"], before)?;
    }
    for name in pods.iter().chain(&["late"]) {
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        gone(&cluster, name)?;
    }
    node.end()?;
    cluster.end()
}

fn container_id(status: &Value) -> Result<&str> {
    let id = status["containerStatuses"][0]["containerID"].as_str().context("no container")?;
    id.strip_prefix("containerd://").context("not of containerd")
}

/// Before there is an object, what the configuration says counts; then what others wrote on it, and at once.
fn labels() -> Result<()> {
    let (cluster, node) = start(json!({}), &["--register-node=false", "--node-labels=own=x"])?;
    let selecting = |label: &str| json!({ "nodeSelector": { label: "x" } });
    cluster.create(PODS, &bound(NODE_NAME, "own", selecting("own")))?;
    cluster.wait_for(&path("own"), "ready", is_ready)?;
    cluster.create(PODS, &bound(NODE_NAME, "early", selecting("theirs")))?;
    let early = cluster.wait_for(&path("early"), "refused", has_failed)?;
    same("why", &early["status"]["reason"], &json!("NodeAffinity"))?;

    let labels = json!({ "theirs": "x" });
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE_NAME, "labels": labels },
    });
    cluster.create("/api/v1/nodes", &object)?;
    // The watch of the node may tell of the label after that of pods tells of the pod.
    for number in 0..3 {
        let (name, label) = (format!("late-{number}"), format!("label-{number}"));
        let patch = json!({ "metadata": { "labels": { &label: "x" } } });
        cluster.request("PATCH", &node_path(NODE_NAME), "application/merge-patch+json", &patch)?;
        cluster.create(PODS, &bound(NODE_NAME, &name, selecting(&label)))?;
        cluster.wait_for(&path(&name), "ready", is_ready)?;
        let gone = json!({ "metadata": { "labels": { &label: null } } });
        cluster.request("PATCH", &node_path(NODE_NAME), "application/merge-patch+json", &gone)?;
    }
    // Those that were admitted stay when the label goes.
    for name in ["own", "late-0", "late-1", "late-2"] {
        ensure!(is_ready(&cluster.get_json(&path(name))?), "{name} is not ready any more");
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        gone(&cluster, name)?;
    }
    cluster.request("DELETE", &path("early"), "application/json", &json!({}))?;
    gone(&cluster, "early")?;
    node.end()?;
    cluster.end()
}

/// A node's object and a pod that its taint keeps out are there before the agent, which asks for its pods when it has heard of the node.
fn kept_out(cluster: &Cluster, faults: &Faults, node: &mut Node) -> Result<()> {
    let of = |path| Of::new(&Verb::LISTS, path);
    let (nodes, pods) = (of("/api/v1/nodes"), of("/api/v1/pods"));
    let taint = json!({ "key": "theirs", "value": "x", "effect": "NoExecute" });
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE_NAME }, "spec": { "taints": [taint] },
    });
    cluster.create("/api/v1/nodes", &object)?;
    cluster.create(PODS, &bound(NODE_NAME, "tainted", json!({ "tolerations": [] })))?;
    faults.set(&[Rule::always(&nodes, Fault::Held)]);
    node.agent.start()?;
    eventually("the node to be asked for", &true, || Ok(!faults.asked(&nodes).is_empty()))?;
    thread::sleep(HELD);
    let early = faults.asked(&pods);
    ensure!(early.is_empty(), "nobody has told of the node: {early:?}");
    faults.set(&[]);
    let tainted = cluster.wait_for(&path("tainted"), "refused", has_failed)?;
    same("why", &tainted["status"]["reason"], &json!("TaintToleration"))?;
    let records = Records::open()?;
    same("what was made for it", [records.sandboxes()?, records.containers()?].concat(), Vec::new())?;
    cluster.request("DELETE", &path("tainted"), "application/json", &json!({}))?;
    gone(cluster, "tainted")
}

/// A pod that the node keeps out, one that asks for what this version does not do, and one whose name another has.
fn not_taken() -> Result<()> {
    let (cluster, mut node) = prepare(json!({}), &[])?;
    let kubeconfig = cluster.node_kubeconfig(NODE_NAME)?;
    let faults = Faults::start(&cluster, &kubeconfig)?;
    let through = cluster.kubeconfig_through(&kubeconfig, faults.at())?;
    node.agent.set_flags(&[format!("--kubeconfig={}", through.display())]);
    kept_out(&cluster, &faults, &mut node)?;
    let volume = json!({ "name": "v", "nfs": { "server": "192.0.2.99", "path": "/" } });
    cluster.create(PODS, &bound(NODE_NAME, "remote", json!({ "volumes": [volume] })))?;
    let waits = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["waiting"].is_object();
    let remote = cluster.wait_for(&path("remote"), "waiting", waits)?;
    let waiting = &remote["status"]["containerStatuses"][0]["state"]["waiting"];
    same("phase", &remote["status"]["phase"], &json!("Pending"))?;
    same("why", &waiting["reason"], &json!("CreateContainerConfigError"))?;
    let why = waiting["message"].as_str().unwrap_or_default();
    ensure!(why.starts_with("spec.volumes[0]"), "{why}");
    let validation = event(&cluster, "remote", "FailedValidation")?;
    let message = validation["message"].as_str().unwrap_or_default();
    ensure!(message.contains("from api, ignoring: spec.volumes[0]"), "{message}");

    // The other source begins when the name is free.
    let name = format!("web-{NODE_NAME}");
    cluster.create(PODS, &bound(NODE_NAME, &name, json!({})))?;
    cluster.wait_for(&path(&name), "ready", is_ready)?;
    node.apply("web", &sleeper("web"))?;
    let loser = event(&cluster, &name, "FailedValidation")?;
    let message = loser["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains(&format!("from file due to duplicate pod name \"{name}\", ignoring")),
        "{message}"
    );
    ensure!(is_ready(&cluster.get_json(&path(&name))?), "the first one does not go on");
    cluster.request("DELETE", &path(&name), "application/json", &json!({}))?;
    let mirrors = |pod: &Value| {
        is_ready(pod) && pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string()
    };
    cluster.wait_for(&path(&name), "the other's", mirrors)?;

    // What was told is not told again, and what is nothing here can go.
    node.agent.kill()?;
    node.agent.start()?;
    cluster.create(PODS, &bound(NODE_NAME, "late", json!({})))?;
    cluster.wait_for(&path("late"), "ready", is_ready)?;
    let after = event(&cluster, "remote", "FailedValidation")?;
    same("the event", &after["metadata"]["resourceVersion"], &validation["metadata"]["resourceVersion"])?;
    for pod in ["remote", "late"] {
        cluster.request("DELETE", &path(pod), "application/json", &json!({}))?;
        gone(&cluster, pod)?;
    }
    node.remove("web")?;
    gone(&cluster, &name)?;
    node.end()?;
    drop(faults);
    cluster.end()
}
