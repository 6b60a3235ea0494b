//! The agent's runtime directory has no room left: what runs goes on, what cannot be recorded waits and says so, an agent
//! starts all the same, and all heals by itself.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Result, ensure};
use berth_integration::agent::{STATE_DIR, Settings, berth};
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, system};
use serde_json::{Value, json};

use crate::kit::{events, eventually, go_on, pod, shell, wait_at, with};
use crate::stock::is_alive;
use crate::suite::{Test, same, test};

/// Room for a few pods.
const SIZE: &str = "size=1m";
/// What a pod says that waits for its record.
const REASON: &str = "RecordNotWritten";

pub(crate) fn tests() -> Vec<Test> {
    vec![test("full_disk::pods_say_so_go_on_and_heal", says_so_and_heals)]
}

fn says_so_and_heals() -> Result<()> {
    fs::create_dir_all(STATE_DIR)?;
    system("mount", &["-t", "tmpfs", "-o", SIZE, "tmpfs", STATE_DIR])?;
    let mut node = Node::start_with(&Settings::default())?;
    let starts = node.world.root().join("starts");
    fs::create_dir(&starts)?;
    node.apply("runs", &pods("runs", &starts))?;
    node.apply("goes", &pods("goes", &starts))?;
    let (runs, goes) = (node.ready("runs")?, node.ready("goes")?);

    // What is removed later needs workers that have no room either.
    let workers = Path::new(STATE_DIR).join("workers");
    eventually("workers at rest to end", &0, || Ok(fs::read_dir(&workers)?.count()))?;
    let filler = fill()?;
    node.apply("new", &pods("new", &starts))?;
    let held = node.wait("new", "held up", POD_LIMIT, |pod| pod.0["status"]["reason"] == REASON)?;
    let message = held.0["status"]["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("No space left on device")
            && message.contains(&format!("free space in {STATE_DIR}")),
        "{message}"
    );
    ensure!(berth(&["pods"])?.contains(REASON), "{}", berth(&["pods"])?);
    ensure!(events(&held)?.contains(REASON), "{}", events(&held)?);

    // An end is taken in and shown, though not recorded; what runs goes on.
    go_on(&runs, "ends", "door")?;
    let is_over = |pod: &Value| pod["state"]["terminated"]["exitCode"] == 7;
    let told = node.wait("runs", "told of the end", POD_LIMIT, |pod| is_over(pod.container("ends")))?;
    same("what goes on", told.container_id("main")?, runs.container_id("main")?)?;
    same("its restarts", told.restarts("ends"), 0)?;

    starts_again(&mut node, is_over)?;
    node.wait("new", "held up again", POD_LIMIT, |pod| pod.0["status"]["reason"] == REASON)?;

    // Signals go on: the pod goes by the record that is there, which makes room.
    eventually("workers at rest to end", &0, || Ok(fs::read_dir(&workers)?.count()))?;
    node.remove("goes")?;
    node.gone("goes")?;
    let state = Path::new(STATE_DIR).join("pods");
    eventually("the record of the pod that went to go", &false, || {
        Ok(fs::read_dir(&state)?
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().contains(goes.uid())))
    })?;

    fs::remove_file(filler)?;
    let new = node.ready("new")?;
    same("restarts of what waited", new.restarts("main"), 0)?;
    ensure!(new.0["status"]["reason"].as_str().unwrap_or_default().is_empty(), "{new}");
    ensure!(events(&new)?.contains("RecordWritten"), "{}", events(&new)?);
    let healed = node.wait("runs", "whole again", POD_LIMIT, |pod| {
        pod.is_ready() && pod.restarts("ends") == 1 && pod.restarts("main") == 0
    })?;
    same("what went on", healed.container_id("main")?, runs.container_id("main")?)?;
    let all = ["goes-ends", "goes-main", "new-ends", "new-main", "runs-ends", "runs-ends", "runs-main"];
    // A container is ready before it has written anything.
    eventually("starts", &all.map(str::to_owned).to_vec(), || {
        let mut started: Vec<String> = Vec::new();
        for entry in fs::read_dir(&starts)? {
            started.extend(fs::read_to_string(entry?.path())?.lines().map(str::to_owned));
        }
        started.sort();
        Ok(started)
    })?;
    let world = node.world.clone();
    node.end()?;
    all_have_ended(&world)?;
    system("umount", &[STATE_DIR])?;
    Ok(())
}

/// Workers end a moment after their agent, and have files open in its runtime directory until then.
fn all_have_ended(world: &World) -> Result<()> {
    eventually("all processes to have ended", &Vec::new(), || {
        let mut left = world.processes()?;
        left.retain(|pid| ![1, process::id()].contains(pid) && is_alive(*pid));
        Ok(left)
    })
}

/// An agent that is killed is followed by one that finds no room for a trial of the OCI runtime, which is left to its choice, nor
/// for its own number in the lock.
fn starts_again(node: &mut Node, is_over: impl Fn(&Value) -> bool) -> Result<()> {
    node.agent.kill()?;
    OpenOptions::new().write(true).truncate(true).open(Path::new(STATE_DIR).join("agent.lock"))?;
    fill()?;
    node.agent.start()?;
    node.ready("goes")?;
    let shown = node.wait("runs", "shown as before", POD_LIMIT, |pod| is_over(pod.container("ends")))?;
    same("restarts of what goes on", shown.restarts("main"), 0)?;
    for part in ["it is used untried", "the owner of the lock is not written down"] {
        eventually(part, &true, || Ok(fs::read_to_string(node.agent.log())?.contains(part)))?;
    }
    Ok(())
}

/// A pod of two containers, each of which writes down that it started; `ends` fails when it is let go.
fn pods(name: &str, starts: &Path) -> String {
    let mounts = json!({ "volumeMounts": [{ "name": "starts", "mountPath": "/starts" }] });
    let said = |container: &str| format!("echo {name}-{container} >> /starts/{name}-{container}");
    let main = shell("main", &format!("{}; exec sleep infinity", said("main")), mounts.clone());
    let ends = format!("{}; {}; exit 7", said("ends"), wait_at("door"));
    let volume = json!({ "name": "starts", "hostPath": { "path": starts.display().to_string() } });
    let spec = json!({ "containers": [main, shell("ends", &ends, mounts)], "volumes": [volume] });
    pod(name, with(spec, json!({ "restartPolicy": "OnFailure" })))
}

/// Takes all the room there is left.
fn fill() -> Result<PathBuf> {
    let path = Path::new(STATE_DIR).join("filler");
    let mut file = OpenOptions::new().append(true).create(true).open(&path)?;
    let block = [0; 512];
    while file.write_all(&block).is_ok() {}
    Ok(path)
}
