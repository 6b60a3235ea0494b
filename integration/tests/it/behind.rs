//! What is changed or removed behind the agent's back is made again, and containerd is asked nothing for that.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, Settings};
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::{cgroup, cni, files};
use nix::mount::{MntFlags, umount2};
use serde_json::json;

use crate::crash;
use crate::kit::{events, eventually, group, pod, shell, task_pid};
use crate::suite::{Test, same, test};

/// Labels of looks and repairs, at each of which an agent dies here.
pub(crate) const DEATHS: [&str; 4] = ["look.before", "look.after", "write-files.before", "write-files.after"];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("behind::what_is_changed_is_made_again_and_containerd_is_not_asked", changed),
        test("behind::a_pod_without_its_network_namespace_gets_another_sandbox", without_netns),
        test("behind::a_kill_in_a_look_or_a_repair_changes_nothing", killed),
    ]
}

fn node() -> Result<Node> {
    Node::start_with(&Settings { kubelet: json!({ "syncFrequency": "1s" }), ..Settings::default() })
}

fn changed() -> Result<()> {
    let node = node()?;
    let limits = json!({ "cpu": "500m", "memory": "64Mi" });
    let mounts =
        json!([{ "name": "data", "mountPath": "/data" }, { "name": "memory", "mountPath": "/memory" }]);
    let main = json!({ "resources": { "limits": limits }, "volumeMounts": mounts });
    let volumes = json!([
        { "name": "data", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory" } },
    ]);
    let spec = json!({ "containers": [shell("main", "exec sleep infinity", main)], "volumes": volumes });
    node.apply("web", &pod("web", spec))?;
    let web = node.ready("web")?;
    let process = task_pid(web.container_id("main")?)?;

    // Stopped, it accepts connections and answers nothing.
    node.containerd.freeze()?;
    cgroup_values(&node, &web)?;
    volumes_and_files(&web)?;
    node.containerd.thaw()?;

    let now = node.ready("web")?;
    same("process of the pod", task_pid(now.container_id("main")?)?, process)?;
    same("restarts", now.restarts("main"), 0)?;
    let told = events(&now)?;
    for what in ["cgroup", "volume data", "volume memory", "files"] {
        ensure!(told.contains(&format!("to be made again: {what}")), "nothing told of {what}: {told}");
    }
    ensure!(!told.contains("SandboxChanged"), "{told}");
    node.end()
}

fn cgroup_values(node: &Node, web: &PodState) -> Result<()> {
    let group = group(&node.world, web)?;
    let changes = if cgroup::is_unified() {
        [("memory.max", "memory", "50331648"), ("cpu.max", "cpu", "max 100000"), ("cpu.weight", "cpu", "77")]
    } else {
        [
            ("memory.limit_in_bytes", "memory", "50331648"),
            ("cpu.cfs_quota_us", "cpu", "-1"),
            ("cpu.shares", "cpu", "77"),
        ]
    };
    for (file, controller, value) in changes {
        let made = group.read(file)?;
        ensure!(made != value, "{file} is {made} already");
        files::write(group.dir(controller).join(file), value)?;
        eventually(&format!("{file} to be written again"), &made, || group.read(file))?;
    }
    Ok(())
}

fn volumes_and_files(web: &PodState) -> Result<()> {
    let dir = Path::new(ROOT_DIR).join("pods").join(web.uid());
    let volume = |name: &str| dir.join("volumes/kubernetes.io~empty-dir").join(name);

    ensure!(is_mounted(&volume("memory"))?, "no memory volume");
    umount2(&volume("memory"), MntFlags::MNT_DETACH).context("unmount the memory volume")?;
    eventually("the memory volume to be mounted again", &true, || is_mounted(&volume("memory")))?;

    files::remove_dir(volume("data"))?;
    let mode = || Ok(fs::metadata(volume("data")).ok().map(|found| found.permissions().mode() & 0o7777));
    eventually("the volume to be there again", &Some(0o777), mode)?;

    let read = || -> BTreeMap<&str, String> {
        let files = ["etc-hosts", "hostname", "resolv.conf"];
        files.into_iter().filter_map(|name| Some((name, fs::read_to_string(dir.join(name)).ok()?))).collect()
    };
    let made = read();
    same("files", made.len(), 3)?;
    for name in made.keys() {
        files::remove(dir.join(name))?;
        eventually(&format!("{name} to be written again"), &made, || Ok(read()))?;
    }
    Ok(())
}

fn is_mounted(path: &Path) -> Result<bool> {
    Ok(files::mount_points()?.contains(&path.display().to_string()))
}

/// The containers of the pod are asked to stop before, and those of others are left alone.
fn without_netns() -> Result<()> {
    let node = node()?;
    // The bridge plugin leaves its masquerading behind when the namespace is gone at DEL: it reads the addresses in there.
    let mut network = cni::network(&node.world.root().join("leases"));
    network["plugins"][0]["ipMasq"] = json!(false);
    cni::write(node.cni_conf(), &network)?;
    let script = "trap 'exit 7' TERM; sleep infinity & wait";
    node.apply("lost", &pod("lost", json!({ "containers": [shell("main", script, json!({}))] })))?;
    let lost = node.ready("lost")?;
    let own = namespaces()?;
    same("network namespaces", own.len(), 1)?;
    node.apply("web", &pod("web", json!({ "containers": [shell("main", script, json!({}))] })))?;
    let web = node.ready("web")?;

    take_away(&own[0])?;
    let again = node.wait("lost", "Ready in another sandbox", POD_LIMIT, |pod| {
        pod.is_ready() && pod.restarts("main") == 1
    })?;
    let last = &again.container("main")["lastState"]["terminated"];
    same("exit code of the first run", &last["exitCode"], &json!(7))?;
    ensure!(lost.container_id("main")? != again.container_id("main")?, "the same container");
    same("network namespaces", namespaces()?.len(), 2)?;
    ensure!(!own[0].exists(), "the earlier namespace is there again");
    ensure!(events(&again)?.contains("SandboxChanged"), "no event tells of the replacement");
    let now = node.ready("web")?;
    same("another pod", now.container_id("main")?, web.container_id("main")?)?;
    same("its restarts", now.restarts("main"), 0)?;
    node.end()
}

/// What was begun is gone on with: no container of the pod that stays starts again, and the one that is to run once does not
/// run twice.
fn killed() -> Result<()> {
    let mut node = node()?;
    // See `without_netns`.
    let mut network = cni::network(&node.world.root().join("leases"));
    network["plugins"][0]["ipMasq"] = json!(false);
    cni::write(node.cni_conf(), &network)?;
    node.apply("once", &once())?;
    let once = node.ready("once")?;
    let own = namespaces()?;
    node.apply("web", &pod("web", json!({ "containers": [shell("main", "sleep infinity", json!({}))] })))?;
    let web = node.ready("web")?;
    let hosts = Path::new(ROOT_DIR).join("pods").join(web.uid()).join("etc-hosts");
    let text = files::read(&hosts)?;

    for label in DEATHS {
        node.agent.kill()?;
        files::remove(&hosts)?;
        crash::dies_at_once(&mut node, label, POD_LIMIT)?;
        // What is repaired is not repaired again.
        let again = if label == "write-files.after" { crash::BEGUN } else { label };
        crash::dies_at_once(&mut node, again, POD_LIMIT).context("while it recovers")?;
        node.agent.start()?;
        let read = || Ok(fs::read_to_string(&hosts).unwrap_or_default());
        eventually(&format!("the file to be there after a kill at {label}"), &text, read)?;
    }

    node.agent.kill()?;
    take_away(&own[0])?;
    crash::dies_at_once(&mut node, "signal.after", POD_LIMIT)?;
    node.agent.start()?;
    let over = node.wait("once", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("exit code", &over.container("main")["state"]["terminated"]["exitCode"], &json!(7))?;
    same("its only run", over.container_id("main")?, once.container_id("main")?)?;
    let now = node.ready("web")?;
    same("the pod beside it", now.container_id("main")?, web.container_id("main")?)?;
    node.end()
}

fn once() -> String {
    let main = shell("main", "trap 'exit 7' TERM; sleep infinity & wait", json!({}));
    pod("once", json!({ "restartPolicy": "Never", "containers": [main] }))
}

/// Takes a network namespace away from its pod. An agent that sees between the two that it is gone may remove the file itself.
fn take_away(namespace: &Path) -> Result<()> {
    umount2(namespace, MntFlags::MNT_DETACH).with_context(|| format!("unmount {}", namespace.display()))?;
    files::remove_if_there(namespace)
}

/// The network namespaces of pods.
fn namespaces() -> Result<Vec<PathBuf>> {
    let mut found = files::list("/run/netns")?;
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("berth-")));
    Ok(found)
}
