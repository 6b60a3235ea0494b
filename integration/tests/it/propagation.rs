//! Mounts that pods make for the node, as drivers of storage and networks do, and mounts of the node that a pod's end must leave.
//!
//! The mounts of a lab are its own; here they are shared within it, as systemd shares those of a machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR, Settings};
use berth_integration::components;
use berth_integration::files;
use berth_integration::node::{Node, POD_LIMIT, PodState, system};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, eventually, inside, pod, pod_dir_of, shell, task_pid};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("propagation::what_a_driver_mounts_is_the_nodes_and_stays", of_a_driver),
        test("propagation::a_pods_end_takes_no_mount_of_the_node_with_it", of_the_node),
        test("propagation::a_mount_is_read_only_with_all_below_where_that_can_be", recursive),
        test(
            "propagation::a_mount_is_read_only_with_all_below_or_its_container_does_not_start",
            not_recursive,
        ),
    ]
}

/// The mounts of a driver, by what `mount` is told that they are of.
const SOURCE: &str = "lab-driver";
/// A pod that no agent knows.
const ORPHAN: &str = "00000000-0000-4000-8000-0000000000ee";

fn share_mounts() -> Result<()> {
    system("mount", &["--make-rshared", "/"]).map(drop)
}

/// A pod with a directory of the node at `/dir` in all of its containers.
fn with_dir(name: &str, dir: &Path, init: &[Value], main: Value) -> String {
    let path = dir.display().to_string();
    let volume = json!({ "name": "dir", "hostPath": { "path": path, "type": "DirectoryOrCreate" } });
    pod(name, json!({ "initContainers": init, "containers": [main], "volumes": [volume] }))
}

fn sees(name: &str, script: &str, propagation: &str) -> Value {
    let mount = json!({ "name": "dir", "mountPath": "/dir", "mountPropagation": propagation });
    let privileged = json!({ "privileged": propagation == "Bidirectional" });
    shell(name, script, json!({ "volumeMounts": [mount], "securityContext": privileged }))
}

/// What is mounted from a driver, as the node sees it.
fn mounted() -> Result<Vec<String>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let lines = table.lines().filter(|line| line.contains(&format!(" tmpfs {SOURCE} ")));
    let mut points: Vec<String> =
        lines.filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect();
    points.sort();
    Ok(points)
}

/// Kills a pod's container and waits for the next.
fn restart(node: &Node, name: &str) -> Result<()> {
    let before = node.ready(name)?;
    let pid = task_pid(before.container_id("main")?)?;
    kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
    let next = before.restarts("main") + 1;
    node.wait(name, "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == next).map(drop)
}

/// Like Cilium an init container mounts what is to last, like a CSI driver the main one mounts volumes.
fn driver(dir: &Path) -> String {
    let mount = |name: &str| {
        format!(
            "mkdir -p /dir/{name}; grep -q ' /dir/{name} ' /proc/mounts || mount -t tmpfs {SOURCE} /dir/{name}; "
        )
    };
    let init = format!("set -e; {} echo kept >/dir/maps/pinned", mount("maps"));
    let main = format!("set -e; {} echo data >/dir/volume/file; {FOR_EVER}", mount("volume"));
    with_dir("driver", dir, &[sees("init", &init, "Bidirectional")], sees("main", &main, "Bidirectional"))
}

fn of_a_driver() -> Result<()> {
    share_mounts()?;
    let mut node = Node::start()?;
    let dir = Path::new(ROOT_DIR).join("plugins/lab.example");
    let points = ["maps", "volume"].map(|name| dir.join(name).display().to_string());
    node.apply("user", &with_dir("user", &dir, &[], sees("main", FOR_EVER, "HostToContainer")))?;
    node.apply("other", &with_dir("other", &dir, &[], sees("main", FOR_EVER, "None")))?;
    let (user, other) = (node.ready("user")?, node.ready("other")?);
    node.apply("driver", &driver(&dir))?;
    node.ready("driver")?;

    let volume = dir.join("volume/file");
    eventually("the volume on the node", &true, || {
        Ok(fs::read_to_string(&volume).is_ok_and(|text| text == "data\n"))
    })?;
    let read = "cat /dir/volume/file /dir/maps/pinned 2>/dev/null | tr '\\n' ' '";
    same("seen by a pod that wants to", inside(&user, read)?.trim(), "data kept")?;
    same("seen by another", inside(&other, read)?.trim(), "")?;
    same("mounts", mounted()?, points.to_vec())?;

    restart(&node, "driver")?;
    node.agent.kill()?;
    node.agent.start()?;
    restart(&node, "driver")?;
    let driver = node.ready("driver")?;
    same("seen by the driver", inside(&driver, read)?.trim(), "data kept")?;
    same("mounts after restarts", mounted()?, points.to_vec())?;

    node.remove("driver")?;
    node.gone("driver")?;
    same("mounts after the driver", mounted()?, points.to_vec())?;
    same("seen without it", inside(&user, read)?.trim(), "data kept")?;
    for point in &points {
        system("umount", &[point])?;
    }
    same("seen without mounts", inside(&user, read)?.trim(), "")?;
    node.end()
}

/// Something mounted in a pod's directory, as a CSI driver does: a tree of the node with a mount in it.
fn mount_in(uid: &str, data: &Path) -> Result<PathBuf> {
    let at = Path::new(ROOT_DIR).join("pods").join(uid).join("volumes/kubernetes.io~csi/x/mount");
    fs::create_dir_all(&at)?;
    system("mount", &["--rbind", &data.display().to_string(), &at.display().to_string()])?;
    Ok(at)
}

fn of_the_node() -> Result<()> {
    share_mounts()?;
    let mut node = Node::start()?;
    let disk = node.world.root().join("disk");
    let (data, inner) = (disk.join("data"), disk.join("data/inner"));
    fs::create_dir_all(&inner)?;
    system("mount", &["-t", "tmpfs", SOURCE, &inner.display().to_string()])?;
    let files = [data.join("file"), inner.join("file")];
    files.iter().try_for_each(|file| fs::write(file, "precious"))?;
    let is_whole = |when: &str| -> Result<()> {
        for file in &files {
            ensure!(
                fs::read_to_string(file).is_ok_and(|text| text == "precious"),
                "{when}: {} is gone",
                file.display()
            );
        }
        Ok(())
    };

    let part = json!({ "name": "dir", "mountPath": "/dir", "subPath": "data" });
    let main = shell("main", FOR_EVER, json!({ "volumeMounts": [part] }));
    node.apply("holds", &with_dir("holds", &disk, &[], main))?;
    let holds = node.ready("holds")?;
    let seen = inside(&holds, "cat /dir/file; ls /dir/inner")?;
    same("seen in a part of a volume", seen, "precious".to_owned())?;
    let foreign = mount_in(holds.uid(), &data)?;
    restart(&node, "holds")?;
    is_whole("with another run of its container")?;
    node.remove("holds")?;
    node.gone("holds")?;
    ensure!(!foreign.exists(), "the pod's directory is there");
    is_whole("after a pod")?;

    node.agent.kill()?;
    let dir = pod_dir_of(ORPHAN, STATE_DIR)?;
    mount_in(ORPHAN, &data)?;
    node.agent.start()?;
    eventually("the directory of an unknown pod to be gone", &false, || Ok(dir.exists()))?;
    is_whole("after a pod that nobody knows")?;
    same("mounts", mounted()?, vec![inner.display().to_string()])?;
    system("umount", &[&inner.display().to_string()])?;
    node.end()
}

/// A pod with a directory of the node, and another one mounted below it.
fn read_only_pod(name: &str, mode: &str) -> String {
    let mount = json!({ "name": "dir", "mountPath": "/dir", "readOnly": true, "recursiveReadOnly": mode });
    let main = shell("main", FOR_EVER, json!({ "volumeMounts": [mount] }));
    let volume = json!({ "name": "dir", "hostPath": { "path": TOP } });
    pod(name, json!({ "containers": [main], "volumes": [volume] }))
}

const TOP: &str = "/run/own/top";

fn mount_below() -> Result<()> {
    fs::create_dir_all(format!("{TOP}/below"))?;
    system("mount", &["-t", "tmpfs", SOURCE, &format!("{TOP}/below")]).map(drop)
}

/// Ends the node, once its pods have gone, without the mount that the test made.
fn end(node: Node) -> Result<()> {
    node.clear()?;
    system("umount", &[&format!("{TOP}/below")])?;
    node.end()
}

/// What comes of writing into the directory and below it, and what the status says of the mount.
fn written(pod: &PodState) -> Result<(String, String, String)> {
    let write = |dir: &str| inside(pod, &format!("touch {dir}/{} 2>&1 && echo written; true", pod.name()));
    let word = |said: String| {
        let refused = said.ends_with("Read-only file system");
        if refused { "refused".to_owned() } else { said }
    };
    let shown = pod.container("main")["volumeMounts"][0]["recursiveReadOnly"].as_str().unwrap_or_default();
    Ok((word(write("/dir")?), word(write("/dir/below")?), shown.to_owned()))
}

fn as_told(node: &Node, mode: &str, below: &str, shown: &str) -> Result<()> {
    let name = mode.to_lowercase();
    node.apply(&name, &read_only_pod(&name, mode))?;
    let expected = ("refused".to_owned(), below.to_owned(), shown.to_owned());
    same(mode, written(&node.ready(&name)?)?, expected)
}

/// runc says that it can.
fn recursive() -> Result<()> {
    mount_below()?;
    let berth = json!({ "runtime": { "ociRuntime": "runc" } });
    let mut node = Node::start_with(&Settings { berth, ..Settings::default() })?;
    as_told(&node, "Disabled", "written", "Disabled")?;
    as_told(&node, "IfPossible", "refused", "Enabled")?;
    as_told(&node, "Enabled", "refused", "Enabled")?;
    node.agent.kill()?;
    node.agent.start()?;
    restart(&node, "enabled")?;
    as_told(&node, "Enabled", "refused", "Enabled")?;
    end(node)
}

/// A runtime that does not say so is not asked for it.
fn not_recursive() -> Result<()> {
    mount_below()?;
    let runtime = Path::new("/run/own/runtime");
    let runc = components::binary("runc")?;
    let script = format!("#!/bin/sh\n[ \"$1\" = features ] && exit 1\nexec {} \"$@\"\n", runc.display());
    files::write_program(runtime, &script)?;
    let berth = json!({ "runtime": { "ociRuntime": runtime } });
    let node = Node::start_with(&Settings { berth, ..Settings::default() })?;
    as_told(&node, "IfPossible", "written", "Disabled")?;
    node.apply("enabled", &read_only_pod("enabled", "Enabled"))?;
    let is_refused = |pod: &PodState| pod.waits_for("main") == "CreateContainerConfigError";
    let refused = node.wait("enabled", "refused", POD_LIMIT, is_refused)?;
    let message = &refused.container("main")["state"]["waiting"]["message"];
    same(
        "message",
        message.as_str().unwrap_or_default(),
        "failed to resolve recursive read-only mode: volume \"dir\" requested recursive read-only mode, but it is not \
         supported by the runtime",
    )?;
    end(node)
}
