//! Mounts that pods make for the node, as drivers of storage and networks do, and mounts of the node that a pod's end must leave.
//!
//! The mounts of a lab are its own; here they are shared within it, as systemd shares those of a machine.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR};
use berth_integration::node::{Node, POD_LIMIT, system};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, eventually, inside, pod, pod_dir_of, shell, task_pid};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("propagation::what_a_driver_mounts_is_the_nodes_and_stays", of_a_driver),
        test("propagation::a_pods_end_takes_no_mount_of_the_node_with_it", of_the_node),
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
    same("seen in a part of a volume", inside(&holds, "cat /dir/inner/file")?, "precious".to_owned())?;
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
