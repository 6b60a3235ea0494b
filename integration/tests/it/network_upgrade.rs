//! A network that a DaemonSet brings is upgraded while pods are being attached to it: plugins are replaced, and its configuration is
//! taken back and written again.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use berth_integration::cluster::kubeadm::{Join, Kubelet, Machine, NODE};
use berth_integration::cluster::{Cluster, Settings, network};
use berth_integration::lab::World;
use berth_integration::node::system;
use berth_integration::wait::{self, Look};
use nix::libc::O_NONBLOCK;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, SOON, eventually, shell, spent};
use crate::kubeadm::{PODS, TOLD_BY_CHANGES, conditions, is, saw_the_network, was_allowed_everything};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test("network_upgrade::in_the_middle_of_an_add", in_an_add).within(LONG_LIMIT)]
}

const NODE_PATH: &str = "/api/v1/nodes/lab";
const DNS: &str = "/apis/apps/v1/namespaces/kube-system/deployments/coredns";
/// Where host-local keeps the addresses that are in use.
const LEASES: &str = "/var/lib/cni/networks/lab";

fn start(cluster: &Cluster, name: &str) -> Result<()> {
    let main =
        shell("main", &format!("trap 'exit 0' TERM; {FOR_EVER}"), json!({ "imagePullPolicy": "Never" }));
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": { "containers": [main] } });
    cluster.create(PODS, &pod).map(drop)
}

fn ready(cluster: &Cluster, name: &str) -> Result<Value> {
    cluster.wait_for(&format!("{PODS}/{name}"), "Ready", |pod| is(pod, "Ready"))
}

fn remove(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.request("DELETE", &format!("{PODS}/{name}"), "application/json", &json!({})).map(drop)
}

fn gone(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.wait_gone(&format!("{PODS}/{name}"))
}

/// Whether a version of the plugin was called for a pod.
fn was_called(version: u8, verb: &str, pod: &str) -> bool {
    let start = format!("{version} {verb} ");
    let name = format!("K8S_POD_NAME={pod};");
    let calls = fs::read_to_string(network::CALLS).unwrap_or_default();
    calls.lines().any(|line| line.starts_with(&start) && format!("{line};").contains(&name))
}

fn called(version: u8, verb: &str, pod: &str) -> Result<()> {
    eventually(&format!("{verb} of version {version} for {pod}"), &true, || {
        Ok(was_called(version, verb, pod))
    })
}

/// The addresses that are in use; the other files are host-local's own.
fn leases() -> Result<Vec<String>> {
    let names = fs::read_dir(LEASES)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<String>>>()?;
    names.retain(|name| name.starts_with("10."));
    names.sort();
    Ok(names)
}

/// Ends the plugin that adds a pod, as a plugin that lost what it calls would.
fn cut(pod: &str) -> Result<()> {
    let is_it = |pid: &u32| {
        let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let is_plugin = String::from_utf8_lossy(&file("cmdline")).contains(network::GATED);
        is_plugin && String::from_utf8_lossy(&file("environ")).contains(&format!("K8S_POD_NAME={pod};"))
    };
    let plugin = World::here()?
        .processes()?
        .into_iter()
        .find(is_it)
        .with_context(|| format!("no plugin adds {pod}"))?;
    kill(Pid::from_raw(i32::try_from(plugin)?), Signal::SIGKILL).context("end a plugin")
}

/// Lets all that wait at the gate go on, and makes nobody wait any more.
fn open_gate() -> Result<()> {
    let mut gate = OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(network::GATE)?;
    fs::remove_file(network::GATE)?;
    Ok(gate.write_all(b"\n")?)
}

fn in_an_add() -> Result<()> {
    let began = Instant::now();
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &Settings::whole())?;
    cluster.prepare_for_join()?;
    let machine = Machine::prepare(Kubelet::Berth)?;
    machine.add_kubelet_args(TOLD_BY_CHANGES)?;
    machine.join(&Join::to(cluster.address()))?;
    cluster.apply(&network::gated(false))?;
    cluster.wait_for(NODE_PATH, "Ready", |node| is(node, "Ready"))?;
    cluster.wait_for(DNS, "ready", |dns| dns["status"]["readyReplicas"] == 2)?;
    for name in ["stays", "goes", "blocked"] {
        start(&cluster, name)?;
    }
    for name in ["goes", "blocked"] {
        ready(&cluster, name)?;
    }
    let stays = ready(&cluster, "stays")?;
    spent("a network and its pods", began);

    system("mkfifo", &[network::GATE])?;
    for name in ["waits", "cut"] {
        start(&cluster, name)?;
    }
    for name in ["waits", "cut"] {
        called(1, "ADD", name)?;
    }
    upgrade(&cluster)?;
    while_away(&cluster, &machine)?;
    cut("cut")?;

    fs::remove_file(network::HOLD)?;
    cluster.wait_for(NODE_PATH, "Ready again", |node| is(node, "Ready"))?;
    let late = saw_the_network(&machine)?;
    spent(&format!("upgraded; the network was seen after {} ms", late.as_millis()), began);
    open_gate()?;
    let addresses =
        ["stays", "waits", "cut"].map(|name| ready(&cluster, name).map(|pod| pod["status"]["podIP"].clone()));
    let mut addresses = addresses.into_iter().collect::<Result<Vec<_>>>()?;
    for verb in ["DEL", "ADD"] {
        ensure!(was_called(2, verb, "cut"), "no {verb} for the one that was cut");
    }
    ensure!(!was_called(2, "ADD", "waits"), "the one that waited was added twice");
    addresses.sort_by_key(Value::to_string);
    addresses.dedup();
    // And those of two that answer for names.
    same("addresses", addresses.len() + 2, leases()?.len())?;

    let now = ready(&cluster, "stays")?;
    for field in ["conditions", "containerStatuses", "podIP"] {
        same(field, &now["status"][field], &stays["status"][field])?;
    }
    was_allowed_everything(&cluster.audit()?)?;
    spent("pods ready", began);
    cluster.kubectl(&["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force"])?;
    machine.reset()?;
    machine.reset_berth()?;
    same("addresses in use", leases()?, Vec::new())?;
    machine.end()?;
    cluster.end()
}

/// Rolls the network to its next version, whose configuration is held back.
fn upgrade(cluster: &Cluster) -> Result<()> {
    File::create(network::HOLD)?;
    cluster.apply(&network::gated(true))?;
    let plugin = || -> Result<bool> { Ok(fs::read_to_string(network::GATED)?.contains("echo \"2 ")) };
    eventually("the next version of the plugin", &true, plugin)?;
    ensure!(!Path::new(network::FILE).exists(), "the configuration was not taken back");
    let node = cluster.wait_for(NODE_PATH, "not ready", |node| !is(node, "Ready"))?;
    let ready = conditions(&node).find(|one| one["type"] == "Ready").context("no condition")?;
    ensure!(
        ready["message"].as_str().is_some_and(|why| why.contains("cni plugin not initialized")),
        "{ready}"
    );
    Ok(())
}

/// Without a configuration pods end by the one that they were added with; a plugin that is being written is waited for.
fn while_away(cluster: &Cluster, machine: &Machine) -> Result<()> {
    let before = leases()?.len();
    remove(cluster, "goes")?;
    gone(cluster, "goes")?;
    ensure!(was_called(2, "DEL", "goes"), "the plugin was not asked to take its network back");
    same("addresses in use", leases()?.len(), before - 1)?;

    let writes = OpenOptions::new().append(true).open(network::GATED)?;
    remove(cluster, "blocked")?;
    wait::until("the agent to find the plugin busy", SOON, || {
        let said = machine.kubelet_log();
        Ok(if said.contains("Text file busy") { Look::Ready(()) } else { Look::NotYet(said) })
    })?;
    ensure!(!was_called(2, "DEL", "blocked"), "a program ran while it was written");
    drop(writes);
    gone(cluster, "blocked")?;
    same("addresses in use", leases()?.len(), before - 2)
}
