//! Invariant 6: SIGKILL of the agent at each of its labelled points, then a restart, ends in the
//! same state as without: nothing left, nothing started twice, no container started again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use berth_integration::agent::{ROOT_DIR, Settings};
use berth_integration::node::{Node, POD_LIMIT, system};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::{eventually, pod, shell, sleeper, with};
use crate::suite::{Body, Test, of, same, test};

/// A pod's directory without record or manifest, as a lost `/run` leaves it.
const STRAY: &str = "3f3b0c52-0000-4000-8000-00000000dead";

/// Where containerd keeps what shims read.
const BUNDLES: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";

pub(crate) fn tests() -> Vec<Test> {
    let labelled =
        berth::failpoint::labels().map(|label| of(format!("crash::at_{label}"), Body::Of(dies_at, label)));
    let lost = test("crash::a_task_that_containerd_has_lost_is_made_anew", containerd_loses_a_task);
    labelled.chain([lost]).collect()
}

/// How far an agent that is to die came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    ToItsEnd,
    Through,
}

fn dies_at(label: &str) -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    let dir = node.world.root().join("shared");
    fs::create_dir(&dir)?;
    fs::create_dir_all(
        Path::new(ROOT_DIR).join("pods").join(STRAY).join("volumes/kubernetes.io~empty-dir/v"),
    )?;
    node.apply("victim", &victim(&dir))?;

    node.agent.start_doomed(label)?;
    let starting = come(&mut node, |node| Ok(node.pod("victim")?.is_some_and(|pod| pod.is_ready())))?;
    node.agent.kill()?;
    node.agent.start()?;
    let up = node.ready("victim")?;
    for container in ["init", "side", "main"] {
        same(&format!("restarts of {container}"), up.restarts(container), 0)?;
    }
    // A container runs a moment before its first command does.
    eventually("every container to say that it started", &3, || {
        Ok(fs::read_to_string(dir.join("starts")).unwrap_or_default().lines().count())
    })?;

    node.agent.kill()?;
    node.remove("victim")?;
    node.agent.start_doomed(label)?;
    let stopping = come(&mut node, |node| Ok(node.pods()?.is_empty()))?;
    node.agent.kill()?;
    node.agent.start()?;
    node.clear()?;
    started_once(&dir)?;
    ensure!([starting, stopping].contains(&Came::ToItsEnd), "nothing here reaches {label}");
    node.end()
}

/// The shim has a task that nobody has started, and containerd, which does not know of it, cannot start it.
fn containerd_loses_a_task() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    node.apply("victim", &sleeper("victim"))?;
    node.agent.start_doomed("container.task-created")?;
    same("end", come(&mut node, |_| Ok(false))?, Came::ToItsEnd)?;
    node.containerd.kill()?;
    let bundles = containers(Path::new(BUNDLES))?;
    let [bundle] = bundles.as_slice() else { bail!("one container, not {bundles:?}") };
    system("umount", &[&bundle.join("rootfs").display().to_string()])?;
    fs::remove_dir_all(bundle)?;
    node.containerd.start_again()?;
    same("tasks", Records::open()?.tasks()?, Vec::new())?;

    node.agent.start()?;
    let up = node.ready("victim")?;
    let bundle = Path::new(BUNDLES).join(up.container_id("main")?);
    same("bundles", containers(Path::new(BUNDLES))?, vec![bundle])?;
    node.end()
}

/// Bundles of containers, which have a root filesystem; that of a sandbox is empty.
fn containers(bundles: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(bundles)? {
        let bundle = entry?.path();
        if fs::read_dir(bundle.join("rootfs")).is_ok_and(|mut rootfs| rootfs.next().is_some()) {
            found.push(bundle);
        }
    }
    Ok(found)
}

/// Waits until the agent has died or brought the node where it was to go.
fn come(node: &mut Node, mut there: impl FnMut(&Node) -> Result<bool>) -> Result<Came> {
    wait::until("the agent to die or to be done", POD_LIMIT, || {
        if node.agent.ended()? {
            return Ok(Look::Ready(Came::ToItsEnd));
        }
        // It may die between the two looks.
        Ok(match there(node) {
            Ok(true) => Look::Ready(Came::Through),
            Ok(false) => Look::NotYet("not there yet".to_owned()),
            Err(failure) => Look::NotYet(format!("{failure:#}")),
        })
    })
}

fn started_once(dir: &Path) -> Result<()> {
    let starts = fs::read_to_string(dir.join("starts")).context("no container has started")?;
    let mut starts: Vec<&str> = starts.lines().collect();
    // Main is started as soon as the sidecar runs: either may write first.
    starts.sort_unstable();
    same("starts", starts, vec!["init", "main", "side"])
}

/// A pod that makes the agent do everything it can.
fn victim(dir: &Path) -> String {
    let container = |name: &str, then: &str, more: Value| {
        let mounts = json!({ "volumeMounts": [
            { "name": "shared", "mountPath": "/shared" },
            { "name": "empty", "mountPath": "/empty" },
            { "name": "empty", "mountPath": "/part", "subPath": "part" },
            { "name": "memory", "mountPath": "/memory" },
        ] });
        shell(name, &format!("echo {name} >> /shared/starts; {then}"), with(mounts, more))
    };
    pod(
        "victim",
        json!({
            "terminationGracePeriodSeconds": 1,
            "initContainers": [
                container("init", "echo bye > /dev/termination-log", json!({})),
                container("side", "exec sleep infinity", json!({ "restartPolicy": "Always" })),
            ],
            "containers": [container("main", "exec sleep infinity", json!({
                "ports": [{ "containerPort": 80, "hostPort": 8080 }],
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            }))],
            "volumes": [
                { "name": "shared", "hostPath": { "path": dir } },
                { "name": "empty", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory" } },
            ],
        }),
    )
}
