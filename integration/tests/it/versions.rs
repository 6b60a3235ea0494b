//! Agents of different versions, one after the other on a running node: records of version 1 and of version 2.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{STATE_DIR, Settings};
use berth_integration::binaries;
use berth_integration::node::{Node, POD_LIMIT, PodState, system};
use berth_integration::old::{self, Profiles, VERSION_1};
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, eventually, go_on, pod, shell, sleeper, task_pid, wait_at};
use crate::lives::{Identity, log_dir};
use crate::stock::{is_alive, shims};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    let tests = [
        test("versions::an_earlier_agents_pods_go_on_under_this_one", forward),
        test("versions::an_earlier_agent_over_this_ones_pods_leaves_nothing", back),
    ];
    let mut tests: Vec<Test> = tests.into_iter().map(|test| test.with_programs_of(VERSION_1)).collect();
    tests.push(test("versions::a_record_of_a_later_agent_is_left_alone", later));
    tests
}

const SHIM: &str = "containerd-shim-berth-v1";
const NAMES: [&str; 2] = ["runs", "again"];

fn program() -> Result<Option<PathBuf>> {
    Ok(Some(old::dir(VERSION_1, Profiles::Tests)?.join("berth")))
}

/// One pod runs, one ran before, one has ended, one is being stopped: each stays as it is.
fn forward() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    node.agent.set_program(program()?);
    node.agent.start()?;
    let before = begin(&node)?;
    let stubborn = format!("trap : TERM; touch /dev/shm/up; {FOR_EVER}");
    let spec =
        json!({ "terminationGracePeriodSeconds": 20, "containers": [shell("main", &stubborn, json!({}))] });
    node.apply("stops", &pod("stops", spec))?;
    let stops = node.ready("stops")?.uid().to_owned();
    node.remove("stops")?;
    let deadline = || -> Result<Value> { Ok(record(&stops, "json")?["termination"]["deadline"].clone()) };
    eventually("the deadline to be recorded", &true, || Ok(!deadline()?.is_null()))?;
    let deadline = deadline()?;
    node.agent.kill()?;

    node.agent.set_program(None);
    node.agent.start()?;
    same("the pods", &identities(&node)?, &before)?;
    same("the end of the grace period", &record(&stops, "state")?["termination"]["deadline"], &deadline)?;
    let done = node.wait("done", "known", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("its restarts", done.restarts("main"), 0)?;
    same("records of version 1", of_extension("json")?, Vec::new())?;
    node.gone("stops")?;
    node.agent.kill()?;
    node.agent.start()?;
    same("the pods, another time", identities(&node)?, before)?;
    node.end()
}

/// An earlier agent does not know these records: it finds what runs by its labels, and may begin it anew, since it reads
/// manifests otherwise. What it leaves of the records goes when this one is there again.
fn back() -> Result<()> {
    let mut node = Node::start()?;
    begin(&node)?;
    node.agent.kill()?;
    node.agent.set_program(program()?);
    node.agent.start()?;
    // Its hash of a container is another: it counts each as changed, on top of what it found by the labels.
    for (name, restarts) in [("runs", 1), ("again", 2)] {
        let is_up = |pod: &PodState| pod.is_ready() && pod.restarts("main") == restarts;
        node.wait(name, "up under the earlier agent", POD_LIMIT, is_up)?;
    }
    node.wait("done", "over", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    new_shim_under_an_earlier_agent(&node)?;
    let gone = node.ready("again")?.uid().to_owned();
    node.remove("again")?;
    node.gone("again")?;
    let under_it = task_pid(node.ready("runs")?.container_id("main")?)?;
    node.agent.kill()?;

    node.agent.set_program(None);
    node.agent.start()?;
    same("what runs", task_pid(node.ready("runs")?.container_id("main")?)?, under_it)?;
    eventually("the record of the pod that is gone", &false, || {
        Ok(Path::new(STATE_DIR).join("pods").join(format!("{gone}.state")).exists())
    })?;
    take_what_it_left()?;
    node.end()
}

/// A whole life: shims outlive agents, and the next one may be an earlier one, after a rollback.
fn new_shim_under_an_earlier_agent(node: &Node) -> Result<()> {
    let life = format!("echo up; {}; exit 7", wait_at("door"));
    node.apply("fresh", &pod("fresh", json!({ "containers": [shell("main", &life, json!({}))] })))?;
    let first = node.ready("fresh")?;
    for (pid, line) in shims()? {
        match fs::read_link(format!("/proc/{pid}/exe")) {
            // That of a pod that has ended may end between the two looks.
            Err(_) if !is_alive(u32::try_from(pid)?) => {}
            program => {
                same(&line, program.context("a shim's program")?, binaries::path(SHIM)?.canonicalize()?)?;
            }
        }
    }
    go_on(&first, "main", "door")?;
    let again = |pod: &PodState| pod.is_ready() && pod.restarts("main") == 1;
    let second = node.wait("fresh", "running again", POD_LIMIT, again)?;
    same(
        "the end of its first life",
        &second.container("main")["lastState"]["terminated"]["exitCode"],
        &json!(7),
    )?;
    let of_first = fs::read_to_string(log_dir(&second).join("0.log"))?;
    ensure!(of_first.ends_with(" stdout F up\n"), "the log of its first life: {of_first}");
    node.remove("fresh")?;
    node.gone("fresh")
}

/// The earlier agent does not know where attachments and ends are recorded now: what it took down leaves rules and a directory
/// (decision 0022).
fn take_what_it_left() -> Result<()> {
    for what in ["--flush", "--delete-chain"] {
        system("iptables", &["--table", "nat", what])?;
    }
    for entry in fs::read_dir(Path::new(STATE_DIR).join("shim"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == "exits") && !path.with_extension("").exists() {
            fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// What a later agent wrote is neither understood nor thrown away: this one does not start, and nothing is touched.
fn later() -> Result<()> {
    let mut node = Node::start()?;
    node.apply("runs", &sleeper("runs"))?;
    let before = Identity::of(&node.ready("runs")?)?;
    node.agent.kill()?;
    let path = Path::new(STATE_DIR).join("pods").join(format!("{}.state", before.uid));
    let text = fs::read_to_string(&path)?;
    fs::write(&path, text.replacen("\"version\":2", "\"version\":3", 1))?;
    let refused = node.agent.command()?.output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && said.contains("made by a later agent"), "{said}");
    ensure!(Path::new(&format!("/proc/{}", before.pid)).exists(), "the pod has ended");
    fs::write(&path, text)?;
    node.agent.start()?;
    same("the pod", Identity::of(&node.ready("runs")?)?, before)?;
    node.end()
}

/// Pods that run, the second of which has run before, and one that has ended.
fn begin(node: &Node) -> Result<BTreeMap<String, Identity>> {
    node.apply("runs", &sleeper("runs"))?;
    let dies = format!("{}; exit 3", wait_at("door"));
    node.apply("again", &pod("again", json!({ "containers": [shell("main", &dies, json!({}))] })))?;
    let ends = json!({ "restartPolicy": "Never", "containers": [shell("main", "exit 6", json!({}))] });
    node.apply("done", &pod("done", ends))?;
    go_on(&node.ready("again")?, "main", "door")?;
    node.wait("again", "running again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == 1)?;
    node.wait("done", "over", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    identities(node)
}

fn identities(node: &Node) -> Result<BTreeMap<String, Identity>> {
    NAMES.iter().map(|name| Ok(((*name).to_owned(), Identity::of(&node.ready(name)?)?))).collect()
}

fn record(uid: &str, extension: &str) -> Result<Value> {
    let path = Path::new(STATE_DIR).join("pods").join(format!("{uid}.{extension}"));
    let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

fn of_extension(extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(Path::new(STATE_DIR).join("pods"))?;
    let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|found| found == extension)).collect())
}
