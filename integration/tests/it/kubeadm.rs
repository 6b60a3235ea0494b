//! kubeadm unchanged, with Berth installed as the kubelet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_integration::cluster::kubeadm::{Join, Kubelet, Machine, NODE};
use berth_integration::cluster::{self, AuditEvent, Client, Cluster, Settings, network};
use berth_integration::lab::World;
use berth_integration::node::system;
use berth_integration::wait::{self, Look};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kit::{measured, saw_network_change, spent};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("kubeadm::makes_a_control_plane_of_berth_that_heals", init).within(LONG_LIMIT),
        test("kubeadm::joins_berth_to_a_control_plane", join).within(LONG_LIMIT),
        test("kubeadm::a_network_of_a_daemon_set_makes_the_node_ready", network_of_a_daemon_set)
            .within(LONG_LIMIT),
    ]
}

const PARTS: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
const SYSTEM: &str = "/api/v1/namespaces/kube-system/pods";
/// With it the node is told to be ready when it has become so: it is looked at for no other reason within the time of a test.
pub(crate) const TOLD_BY_CHANGES: &str = "--node-status-update-frequency=1h";
/// Back-offs after the kill, on a machine busy with other tests.
const HEAL_LIMIT: Duration = Duration::from_secs(180);
const DNS: &str = "/apis/apps/v1/namespaces/kube-system/deployments/coredns";
const PROXY: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy";

pub(crate) fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object["status"]["conditions"].as_array().into_iter().flatten()
}

pub(crate) fn is(object: &Value, kind: &str) -> bool {
    conditions(object).any(|one| one["type"] == kind && one["status"] == "True")
}

/// A pod of a node that asks for a service by its name.
const ASKS: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asks"}, "spec": {"restartPolicy": "OnFailure",
    "containers": [{"name": "main", "image": "localhost:5000/busybox:1",
        "command": ["/bin/sh", "-c", "nslookup kubernetes.default.svc.cluster.local && echo | nc -w 5 kubernetes.default.svc.cluster.local 443"]}]}}"#;

/// A node without a network becomes one with kube-proxy and CoreDNS, and a service is answered by its name.
fn runs_the_addons(client: &Client, machine: &Machine, began: Instant) -> Result<()> {
    client.wait_for(PROXY, "ready", |proxy| proxy["status"]["numberReady"] == 1)?;
    spent("kube-proxy ready", began);
    machine.add_network()?;
    let network = Instant::now();
    client.wait_for(&format!("/api/v1/nodes/{NODE}"), "Ready", |node| is(node, "Ready"))?;
    spent("node ready after its network", network);
    client.wait_for(DNS, "ready", |dns| dns["status"]["readyReplicas"] == 2)?;
    spent("names answered", began);
    asks(client)?;
    spent("a service answered by its name", began);
    Ok(())
}

fn asks(client: &Client) -> Result<()> {
    client.apply(ASKS)?;
    client.wait_for(&format!("{PODS}/asks"), "at its end", |pod| pod["status"]["phase"] == "Succeeded")?;
    Ok(())
}

/// Nothing that the node asked for was refused.
pub(crate) fn was_allowed_everything(audit: &[AuditEvent]) -> Result<()> {
    let refused = cluster::refused(audit, NODE);
    ensure!(refused.is_empty(), "the node had no right to: {refused:#?}");
    Ok(())
}

fn init() -> Result<()> {
    let began = Instant::now();
    let mut machine = Machine::prepare(Kubelet::Berth)?;
    spent("prepared", began);
    let client = machine.init()?;
    spent("kubeadm init", began);
    is_whole(&client, &PARTS)?;
    spent("the control plane's mirrors ready", began);
    runs_the_addons(&client, &machine, began)?;
    was_allowed_everything(&machine.audit()?)?;

    for (what, off) in [
        ("everything killed", Machine::kill_everything as fn(&mut Machine, &Client) -> Result<()>),
        ("switched off", Machine::switch_off),
    ] {
        let before = containers(&client)?;
        off(&mut machine, &client)?;
        let began = Instant::now();
        machine.switch_on()?;
        heals(&client, &before)?;
        spent(&format!("whole after {what}"), began);
        // An API server that has just begun does not know yet which node has which pod, and refuses what it knows later.
        let asked = machine.audit()?.len();
        client.kubectl(&["delete", "pod", "asks", "--ignore-not-found"])?;
        asks(&client)?;
        was_allowed_everything(&machine.audit()?[asked..])?;
    }
    client.end()?;
    machine.reset()?;
    machine.reset_berth()?;
    spent("kubeadm reset", began);
    machine.end()
}

/// Everything of a system that has pods of the control plane by these names is ready.
fn is_whole(client: &Client, parts: &[&str]) -> Result<()> {
    for part in parts {
        let path = format!("{SYSTEM}/{part}-{NODE}");
        client.wait_for(&path, "Ready", |pod| is(pod, "Ready"))?;
    }
    Ok(())
}

/// The containers that run, by pod.
fn containers(client: &Client) -> Result<BTreeMap<String, String>> {
    let pods = client.get_json(SYSTEM)?;
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].as_str().map(str::to_owned);
    let name = |pod: &Value| pod["metadata"]["name"].as_str().map(str::to_owned);
    Ok(pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| Some((name(pod)?, id(pod)?)))
        .collect())
}

/// Every pod runs again in another container, is ready, and the node is.
fn heals(client: &Client, before: &BTreeMap<String, String>) -> Result<()> {
    let look = || -> Result<bool> {
        let now = containers(client)?;
        let pods = client.get_json(SYSTEM)?;
        let all = pods["items"].as_array().cloned().unwrap_or_default();
        let is_new = |(name, id): (&String, &String)| now.get(name).is_some_and(|now| now != id);
        let node = client.get_json(&format!("/api/v1/nodes/{NODE}"))?;
        Ok(before.iter().all(is_new) && all.iter().all(|pod| is(pod, "Ready")) && is(&node, "Ready"))
    };
    let healed = wait::until("the cluster to heal", HEAL_LIMIT, || {
        Ok(match look() {
            Ok(true) => Look::Ready(()),
            Ok(false) => Look::NotYet("not every pod is ready in a new container".to_owned()),
            Err(failure) => Look::NotYet(format!("{failure:#}")),
        })
    });
    healed.with_context(|| client.situation())
}

/// `nodeRegistration.kubeletExtraArgs`. The address is nobody's: the administrator's own flag comes later.
const KUBELET_ARGS: [(&str, &str); 4] = [
    ("node-ip", "192.0.2.99"),
    ("node-labels", "lab.example/zone=one,node.kubernetes.io/instance-type=small"),
    ("provider-id", "lab://one/node"),
    ("register-with-taints", "lab.example/busy=yes:PreferNoSchedule"),
];
/// Another address of the machine, and flags of the administrator with it.
const NODE_IP: &str = "192.0.2.11";
const EXTRA_ARGS: &str = "--node-ip=192.0.2.11 --node-labels=lab.example/rack=two";

fn join() -> Result<()> {
    let began = Instant::now();
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &Settings::whole())?;
    cluster.prepare_for_join()?;
    let machine = Machine::prepare(Kubelet::Berth)?;
    system("ip", &["address", "add", &format!("{NODE_IP}/24"), "dev", "uplink"])?;
    machine.add_kubelet_args(EXTRA_ARGS)?;
    spent("prepared", began);
    machine.join(&Join::of_command(&cluster.join_command()?)?.with_kubelet_args(&KUBELET_ARGS))?;
    spent("kubeadm join", began);
    same("what kubeadm minded", machine.minded()?, BTreeSet::from(["SystemVerification".to_owned()]))?;
    let node = cluster
        .wait_for(&format!("/api/v1/nodes/{NODE}"), "there", |node| node["status"]["addresses"].is_array())?;
    is_as_its_flags_say(&node)?;
    was_let_in_by_its_token(&cluster)?;
    runs_the_addons(&cluster, &machine, began)?;
    upgrade(&cluster, &machine)?;
    // A kubelet that begins anew goes on with the certificate that it has, which is far from its end.
    same("requests for a certificate", certificate_requests(&cluster)?.len(), 1)?;
    spent("upgraded", began);
    was_allowed_everything(&cluster.audit()?)?;
    cluster.kubectl(&["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force"])?;
    machine.reset()?;
    machine.reset_berth()?;
    spent("reset", began);
    machine.end()?;
    cluster.end()
}

/// What the flags of kubeadm and those of the administrator say is on the Node.
fn is_as_its_flags_say(node: &Value) -> Result<()> {
    let addresses =
        json!([{ "type": "InternalIP", "address": NODE_IP }, { "type": "Hostname", "address": NODE }]);
    same("addresses", &node["status"]["addresses"], &addresses)?;
    for (label, value) in [
        ("lab.example/zone", "one"),
        ("node.kubernetes.io/instance-type", "small"),
        ("lab.example/rack", "two"),
    ] {
        same(label, &node["metadata"]["labels"][label], &json!(value))?;
    }
    same("provider", &node["spec"]["providerID"], &json!("lab://one/node"))?;
    let taint = json!({ "key": "lab.example/busy", "value": "yes", "effect": "PreferNoSchedule" });
    let taints = node["spec"]["taints"].as_array().context("no taints")?;
    ensure!(taints.contains(&taint), "{taints:?}");
    Ok(())
}

/// What certificates of kubelets as clients were asked for.
fn certificate_requests(cluster: &Cluster) -> Result<Vec<Value>> {
    let mut list = cluster.get_json("/apis/certificates.k8s.io/v1/certificatesigningrequests")?;
    let Value::Array(mut all) = list["items"].take() else { bail!("no list: {list}") };
    all.retain(|request| request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet");
    Ok(all)
}

/// The node has a certificate that it was given for a token, and nobody else can read its key.
fn was_let_in_by_its_token(cluster: &Cluster) -> Result<()> {
    let requests = certificate_requests(cluster)?;
    let [request] = requests.as_slice() else { bail!("not one request: {requests:?}") };
    let who = request["spec"]["username"].as_str().unwrap_or_default();
    ensure!(
        who.starts_with("system:bootstrap:") && request["status"]["certificate"].is_string(),
        "{request}"
    );
    let key = fs::metadata("/var/lib/kubelet/pki/kubelet-client-current.pem")?;
    same("mode of the key", key.permissions().mode() & 0o777, 0o600)?;
    let left = Path::new("/etc/kubernetes/bootstrap-kubelet.conf").exists();
    ensure!(!left, "kubeadm took the kubelet not to need its token any more");
    Ok(())
}

/// What kubeadm keeps of this node alone, and what the cluster has for all of them.
fn upgrade(cluster: &Cluster, machine: &Machine) -> Result<()> {
    const OF_ALL: &str = "/api/v1/namespaces/kube-system/configmaps/kubelet-config";
    let of_node = fs::read_to_string("/var/lib/kubelet/instance-config.yaml")?;
    ensure!(of_node.contains("containerRuntimeEndpoint"), "{of_node}");
    let flags = fs::read_to_string("/var/lib/kubelet/kubeadm-flags.env")?;
    ensure!(!flags.contains("container-runtime-endpoint"), "{flags}");
    let before = containers(cluster)?;
    let map = cluster.get_json(OF_ALL)?;
    let text = map["data"]["kubelet"].as_str().context("no configuration of kubelets")?;
    let patch = json!({ "data": { "kubelet": format!("{text}maxPods: 77\n") } });
    cluster.request("PATCH", OF_ALL, "application/merge-patch+json", &patch)?;
    machine.upgrade()?;
    let written = fs::read_to_string("/var/lib/kubelet/config.yaml")?;
    let of_node = of_node.trim().replace('"', "");
    ensure!(written.contains("maxPods: 77") && written.contains(&of_node), "{of_node} is not in {written}");
    machine.restart_kubelet()?;
    let path = format!("/api/v1/nodes/{NODE}");
    let node = cluster.wait_for(&path, "larger", |node| node["status"]["capacity"]["pods"] == "77")?;
    is_as_its_flags_say(&node)?;
    ensure!(is(&node, "Ready"), "{node}");
    same("containers", containers(cluster)?, before)
}

/// The agent has seen the network that is there now come; how late.
pub(crate) fn saw_the_network(machine: &Machine) -> Result<SignedDuration> {
    let there = Timestamp::try_from(fs::metadata(network::FILE)?.modified()?)?;
    let seen = saw_network_change(&machine.kubelet_log_file(), true, there)?;
    Ok(seen.duration_since(there))
}

/// A network that a DaemonSet brings makes the node ready.
fn network_of_a_daemon_set() -> Result<()> {
    let began = Instant::now();
    let machine = Machine::prepare(Kubelet::Berth)?;
    machine.add_kubelet_args(TOLD_BY_CHANGES)?;
    let client = machine.init()?;
    let path = format!("/api/v1/nodes/{NODE}");
    let node = client
        .wait_for(&path, "told not to be ready", |node| conditions(node).any(|one| one["type"] == "Ready"))?;
    ensure!(!is(&node, "Ready"), "the node is ready without a network: {node}");
    client.apply(&network::objects())?;
    client.wait_for(&path, "Ready", |node| is(node, "Ready"))?;
    spent("kubeadm init, and a node with a network", began);
    measured(&format!("the network was seen after {} ms", saw_the_network(&machine)?.as_millis()));
    client.wait_for(DNS, "ready", |dns| dns["status"]["readyReplicas"] == 2)?;
    asks(&client)?;
    was_allowed_everything(&machine.audit()?)?;
    client.end()?;
    machine.reset()?;
    machine.reset_berth()?;
    machine.end()
}
