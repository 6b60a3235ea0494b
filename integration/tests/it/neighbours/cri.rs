//! CRI on the same containerd, as distributions ship it: its clients do not see our pods, its restarts leave them alone, and
//! nothing of ours touches its pods (decision 0018).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::cgroup::hierarchies;
use berth_integration::cni;
use berth_integration::containerd::{Release, ctr};
use berth_integration::cri::{self, CriPod};
use berth_integration::node::{Node, POD_LIMIT, system};
use serde_json::{Value, json};

use crate::kit::{IMAGE, eventually, inside, script, sleeper, task_pid};
use crate::lives::{Identity, waits_for_a_file};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("neighbours::cri_restarts_leave_our_pods_alone", restarts),
        test("neighbours::cri_upgrades_leave_our_pods_alone", upgrades),
        test("neighbours::cri_pods_are_left_alone", their_pods).long(),
        test("neighbours::cri_clients_do_not_see_our_pods", their_client),
        test("neighbours::a_record_that_is_gone_is_written_again", record_gone),
    ]
}

const PODS: usize = 10;
/// Where containerd has the bundles of sandboxes that run.
const SANDBOXES: &str = "/run/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io";

fn names() -> Vec<String> {
    (0..PODS).map(|number| format!("pod-{number}")).collect()
}

fn start(release: Release) -> Result<Node> {
    let node = Node::start_with(&Settings { containerd: release, ..Settings::with_registry() })?;
    for name in names() {
        node.apply(&name, &sleeper(&name))?;
    }
    Ok(node)
}

fn identities(node: &Node) -> Result<BTreeMap<String, Identity>> {
    names().into_iter().map(|name| Ok((name.clone(), Identity::of(&node.ready(&name)?)?))).collect()
}

/// The start of everything of ours is over when CRI answers again: its recovery comes before.
fn cri_answers() -> Result<()> {
    eventually("CRI to answer", &true, || Ok(cri::sandboxes().is_ok()))
}

/// Nothing that CRI said of something of ours, and no complaint at all.
fn says_nothing(node: &Node) -> Result<()> {
    let log = fs::read_to_string(node.containerd.log())?;
    let fine = [
        // 2.1 takes it for an error that CRI has no network, which in most labs it has not.
        "failed to load cni during init",
        // The test looked at all tasks while the shim of one was creating it.
        "the container is being created",
    ];
    let is_complaint =
        |line: &&str| line.contains("level=error") && !fine.iter().any(|part| line.contains(part));
    let complaints: Vec<&str> = log.lines().filter(is_complaint).collect();
    ensure!(complaints.is_empty(), "containerd complains:\n{}", complaints.join("\n"));
    Ok(())
}

/// Four restarts under running pods, one of which ends while there is no containerd.
fn restarts() -> Result<()> {
    let mut node = start(Release::Reference)?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    node.apply("ends", &waits_for_a_file("ends", &dir))?;
    let ends = task_pid(node.ready("ends")?.container_id("main")?)?;
    let before = identities(&node)?;
    for round in 0..4 {
        if round % 2 == 0 {
            node.containerd.kill()?;
        } else {
            node.containerd.stop()?;
        }
        if round == 1 {
            fs::write(dir.join("go"), "")?;
            eventually("the process to end", &false, || Ok(Path::new(&format!("/proc/{ends}")).exists()))?;
        }
        node.containerd.start_again()?;
        cri_answers()?;
        same("the pods", &identities(&node)?, &before)?;
        if round >= 1 {
            // Killed while it removes one, containerd finds a sandbox without its shim, and says so.
            eventually("the sandbox of what has ended to be gone", &PODS, || {
                Ok(fs::read_dir(SANDBOXES)?.count())
            })?;
        }
    }
    let ended = node.wait("ends", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("its code", ended.container("main")["state"]["terminated"]["exitCode"].as_i64(), Some(6))?;
    // A container that joins a sandbox which this containerd did not start, and a pod that it did.
    ctr(&["tasks", "kill", "--signal", "SIGKILL", &before["pod-0"].id])?;
    let again =
        node.wait("pod-0", "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == 1)?;
    same("exec", inside(&again, "echo still")?.as_str(), "still")?;
    node.apply("new", &sleeper("new"))?;
    node.ready("new")?;
    says_nothing(&node)?;
    node.end()
}

/// Up to the newest minor version and back.
fn upgrades() -> Result<()> {
    let mut node = start(Release::V2_1)?;
    let before = identities(&node)?;
    for release in [Release::Reference, Release::V2_4, Release::Reference, Release::V2_1] {
        node.containerd.stop()?;
        node.containerd.start_as(release)?;
        cri_answers()?;
        same("the pods", &identities(&node)?, &before)?;
        // Twice with each: what the first start removes, the second one misses.
        node.containerd.kill()?;
        node.containerd.start_again()?;
        cri_answers()?;
        same("the pods", &identities(&node)?, &before)?;
    }
    says_nothing(&node)?;
    node.end()
}

/// Everything of CRI's pods that we could harm.
fn theirs(pods: &[CriPod]) -> Result<Vec<Value>> {
    pods.iter()
        .map(|pod| {
            let (sandbox, container) = (pod.sandbox_status()?, pod.container_status()?);
            let pid = &container["pid"];
            let links =
                ["net", "ipc", "uts", "mnt"].map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok());
            let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?.lines().count();
            let said = pod.exec(&["cat", "/etc/hostname"])?;
            Ok(json!([sandbox, container, links, cgroup, mounts, said]))
        })
        .collect()
}

/// Start, crash, work, removal and stop of Berth beside running pods of CRI, which shares its network namespaces' directory and
/// the directories of logs.
fn their_pods() -> Result<()> {
    let mut node = Node::prepare(&Settings::with_registry())?;
    let leases = node.world.root().join("leases-of-cri");
    let mut network = cni::network(&leases);
    network["plugins"][0]["bridge"] = "cri0".into();
    network["plugins"][0]["ipam"]["ranges"] = json!([[{ "subnet": "10.89.0.0/16" }]]);
    network["name"] = "cri".into();
    cni::write(&node.containerd.cni_conf(), &network)?;
    let cgroup = format!("{}/neighbour", node.world.cgroup());
    eventually("CRI to have a network", &true, || {
        Ok(cri::run("probe", &cgroup, true, IMAGE, "exit 0").is_ok())
    })?;
    let pods = [("one", true), ("two", true), ("host", false)]
        .map(|(name, own)| cri::run(name, &cgroup, own, IMAGE, "sleep infinity & while :; do wait; done"));
    let pods = pods.into_iter().collect::<Result<Vec<_>>>()?;
    let before = theirs(&pods)?;
    let unharmed = |when: &str| same(when, &theirs(&pods)?, &before);

    node.agent.start()?;
    for name in names() {
        node.apply(&name, &sleeper(&name))?;
    }
    let ours = identities(&node)?;
    unharmed("after the start")?;
    node.agent.kill()?;
    node.agent.start()?;
    same("ours after a crash", &identities(&node)?, &ours)?;
    unharmed("after a crash")?;
    for stops in [false, true] {
        if stops {
            node.containerd.stop()?;
        } else {
            node.containerd.kill()?;
        }
        node.containerd.start_again()?;
        cri_answers()?;
        same("ours after a restart of containerd", &identities(&node)?, &ours)?;
        unharmed("after a restart of containerd")?;
    }
    for name in names() {
        node.remove(&name)?;
        node.gone(&name)?;
    }
    unharmed("after the removal of ours")?;
    node.apply("stays", &sleeper("stays"))?;
    let stays = Identity::of(&node.ready("stays")?)?;
    node.agent.stop()?;
    unharmed("after the stop of the agent")?;
    node.agent.start()?;

    for sandbox in cri::sandboxes()? {
        cri::remove_sandbox(&sandbox)?;
    }
    same("ours after the removal of theirs", &Identity::of(&node.ready("stays")?)?, &stays)?;
    system("ip", &["link", "delete", "cri0"])?;
    // As a kubelet does with the logs of its pods.
    for entry in fs::read_dir("/var/log/pods")? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("neighbours_")) {
            fs::remove_dir_all(path)?;
        }
    }
    for hierarchy in hierarchies()? {
        let group = hierarchy.join(cgroup.trim_start_matches('/'));
        if group.exists() {
            fs::remove_dir(&group).with_context(|| format!("remove cgroup {}", group.display()))?;
        }
    }
    node.end()
}

/// What a client of CRI does to all that it sees, it does not do to ours; to images it does.
fn their_client() -> Result<()> {
    let mut node = start(Release::Reference)?;
    let before = identities(&node)?;
    for _look in 0..2 {
        same("sandboxes that CRI lists", cri::sandboxes()?, Vec::new())?;
        same("containers that CRI lists", cri::containers()?, Vec::new())?;
        for identity in before.values() {
            let missing = cri::call("RuntimeService/ContainerStatus", &json!({ "containerId": identity.id }));
            ensure!(missing.is_err(), "CRI knows {}", identity.id);
            // It says yes to what it does not know.
            cri::call("RuntimeService/StopPodSandbox", &json!({ "podSandboxId": identity.id }))?;
            cri::call("RuntimeService/RemoveContainer", &json!({ "containerId": identity.id }))?;
        }
        same("the pods", &identities(&node)?, &before)?;
        node.containerd.kill()?;
        node.containerd.start_again()?;
        cri_answers()?;
    }
    // A kubelet's collection of images takes ours for unused.
    let image = cri::call("ImageService/ImageStatus", &json!({ "image": { "image": IMAGE } }))?;
    ensure!(image["image"]["id"].is_string(), "CRI does not see our image: {image}");
    cri::call("ImageService/RemoveImage", &json!({ "image": { "image": IMAGE } }))?;
    same("the pods without their image", &identities(&node)?, &before)?;
    ctr(&["tasks", "kill", "--signal", "SIGKILL", &before["pod-0"].id])?;
    node.wait("pod-0", "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == 1)?;
    node.end()
}

/// Somebody removes the record of a sandbox while its shim runs.
fn record_gone() -> Result<()> {
    let mut node = Node::start_with(&Settings::with_registry())?;
    node.apply("one", &script("one", "exec sleep infinity"))?;
    let pod = node.ready("one")?;
    let before = Identity::of(&pod)?;
    let info: Value = serde_json::from_str(&ctr(&["containers", "info", &before.id])?)?;
    let sandbox = info["Labels"]["berth.dev/sandbox"].as_str().unwrap_or_default().to_owned();
    let is_recorded = || Ok(ctr(&["containers", "info", &sandbox]).is_ok());
    for is_agent_new in [false, true] {
        same("there is a record", is_recorded()?, true)?;
        if is_agent_new {
            node.agent.kill()?;
        }
        ctr(&["containers", "rm", &sandbox])?;
        node.containerd.kill()?;
        node.containerd.start_again()?;
        if is_agent_new {
            node.agent.start()?;
        }
        eventually("the record to be there again", &true, is_recorded)?;
        same("the pod", &Identity::of(&node.ready("one")?)?, &before)?;
    }
    node.end()
}
