//! Minor versions of containerd: one after the other under running pods and tasks, and each alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{Settings, berth_output};
use berth_integration::containerd::{CRI_PLUGINS, CRI_SERVICE, Release, ctr};
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::old::{self, Profiles, VERSION_1};
use berth_integration::process::printed;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::kit::{eventually, inside, logged, pod, script, shell, sleeper, task_pid};
use crate::lives::{Identity, counted_to, log_dir, waits_for_a_file};
use crate::stock::{Stock, agreed_on, delete, is_alive, remove};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("upgrade::twice_under_twenty_pods", twenty_pods),
        test("upgrade::twice_under_plain_tasks", plain_tasks),
        test("upgrade::pods_of_the_first_shim", pods_of_the_first_shim).with_programs_of(VERSION_1),
        test("upgrade::pods_on_2_1_alone", || pods_alone(Release::V2_1)),
        test("upgrade::pods_on_2_4_alone", || pods_alone(Release::V2_4)),
        test("upgrade::a_2_1_without_sandboxes_is_refused_with_advice", without_sandboxes),
        test("upgrade::tasks_on_2_1_alone", || tasks_alone(Release::V2_1)),
        test("upgrade::tasks_on_2_4_alone", || tasks_alone(Release::V2_4)),
    ]
}

const PODS: usize = 20;
/// Enough to be written through an upgrade, with several rotations.
const LINES: usize = 400_000;

/// From 2.1, stopped, to 2.3, killed, to 2.4. One pod writes its log all the while, one ends while no containerd is there.
fn twenty_pods() -> Result<()> {
    let mut node = Node::start_with(&Settings {
        kubelet: json!({ "containerLogMaxSize": "5Mi", "containerLogMaxFiles": 30 }),
        containerd: Release::V2_1,
        ..Settings::default()
    })?;
    let dir = node.world.root().join("dir");
    let sleepers: Vec<String> = (0..PODS - 2).map(|number| format!("pod-{number}")).collect();
    for name in &sleepers {
        node.apply(name, &sleeper(name))?;
    }
    for step in ["first", "second"] {
        fs::create_dir_all(dir.join(step))?;
        node.apply(step, &waits_for_a_file(step, &dir.join(step)))?;
    }
    let before = identities(&node, &sleepers)?;
    let init = |name: &str| -> Result<u32> { task_pid(node.ready(name)?.container_id("main")?) };
    let (first, second) = (init("first")?, init("second")?);

    let counter = counting(&node, "counts-1")?;
    node.containerd.stop()?;
    ends_meanwhile(&dir.join("first"), first)?;
    node.containerd.start_as(Release::Reference)?;
    goes_on(&node, &sleepers, &before, "first")?;
    counted_to(&counter, LINES, Duration::from_secs(60))?;

    // Pods that a containerd made which is neither the first nor the last.
    node.remove("pod-0")?;
    node.gone("pod-0")?;
    node.apply("pod-0", &sleeper("pod-0"))?;
    let before = identities(&node, &sleepers)?;
    let counter = counting(&node, "counts-2")?;
    node.containerd.kill()?;
    ends_meanwhile(&dir.join("second"), second)?;
    node.containerd.start_as(Release::V2_4)?;
    goes_on(&node, &sleepers, &before, "second")?;
    counted_to(&counter, LINES, Duration::from_secs(60))?;
    node.end()
}

/// Shims outlive agents: pods whose shims are of the first version live, are seen by an agent that comes later, and end.
fn pods_of_the_first_shim() -> Result<()> {
    let first = old::dir(VERSION_1, Profiles::Tests)?;
    let mut node = Node::start_with(&Settings { path_first: Some(first.clone()), ..Settings::default() })?;
    node.apply("lives", &script("lives", "echo up; exec sleep infinity"))?;
    let dir = node.world.root().join("dir");
    fs::create_dir_all(&dir)?;
    node.apply("ends", &waits_for_a_file("ends", &dir))?;
    let (up, ends) = (node.ready("lives")?, node.ready("ends")?);
    let pid = task_pid(up.container_id("main")?)?;
    let runs = fs::read_link(format!("/proc/{}/exe", parent_of(pid)?))?;
    same("whose child it is", runs.parent(), Some(first.as_path()))?;
    let before = Identity::of(&up)?;
    let init = task_pid(ends.container_id("main")?)?;
    node.agent.kill()?;
    ends_meanwhile(&dir, init)?;
    node.agent.start()?;
    let ended = node.wait("ends", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    let state = &ended.container("main")["state"]["terminated"];
    same("the code of what ended meanwhile", state["exitCode"].as_i64(), Some(6))?;
    let up = node.ready("lives")?;
    same("the pod that lives", Identity::of(&up)?, before)?;
    same("exec", inside(&up, "echo still")?.as_str(), "still")?;
    logged(&up, "main", "up\n")?;
    node.end()
}

fn parent_of(pid: u32) -> Result<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.nth(1).context("the parent in stat")?.parse().context("the parent's pid")
}

fn identities(node: &Node, names: &[String]) -> Result<BTreeMap<String, Identity>> {
    names.iter().map(|name| Ok((name.clone(), Identity::of(&node.ready(name)?)?))).collect()
}

/// A pod that has begun to write; where its log is.
fn counting(node: &Node, name: &str) -> Result<PathBuf> {
    node.apply(name, &script(name, &format!("seq 1 {LINES}; exec sleep infinity")))?;
    Ok(log_dir(&node.ready(name)?))
}

fn ends_meanwhile(dir: &Path, pid: u32) -> Result<()> {
    fs::write(dir.join("go"), "")?;
    eventually("the process to end", &false, || Ok(Path::new(&format!("/proc/{pid}")).exists()))
}

/// After an upgrade everything is as it was and works; the pod `ended` has ended, with its code.
fn goes_on(node: &Node, names: &[String], before: &BTreeMap<String, Identity>, ended: &str) -> Result<()> {
    let ended = node.wait(ended, "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    let state = &ended.container("main")["state"]["terminated"];
    same("its code", state["exitCode"].as_i64(), Some(6))?;
    same("the pods", &identities(node, names)?, before)?;
    let one = node.ready("pod-1")?;
    same("exec", inside(&one, "echo still")?.as_str(), "still")?;
    let id = one.container_id("main")?;
    let said = ctr(&["tasks", "exec", "--exec-id", "upgraded", id, "echo", "through containerd"])?;
    same("exec by containerd", said.as_str(), "through containerd\n")
}

/// Everything a pod does, with the containerd that it was made by.
fn pods_alone(release: Release) -> Result<()> {
    let node = Node::start_with(&Settings { containerd: release, ..Settings::default() })?;
    let init = shell("init", "echo prepared", json!({}));
    let main = shell("main", "echo up; exec sleep infinity", json!({}));
    let other = shell("other", "exec sleep infinity", json!({}));
    node.apply("pod", &pod("pod", json!({ "initContainers": [init], "containers": [main, other] })))?;
    node.apply(
        "ends",
        &pod(
            "ends",
            json!({
                "restartPolicy": "Never", "containers": [shell("main", "exit 6", json!({}))],
            }),
        ),
    )?;
    let up = node.ready("pod")?;
    logged(&up, "main", "up\n")?;
    let done = berth_output(&["exec", up.name(), "--", "sh", "-c", "exit 9"])?;
    same("exit code of an exec", done.status.code(), Some(9))?;
    let ended = node.wait("ends", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    let state = &ended.container("main")["state"]["terminated"];
    same("exit code", state["exitCode"].as_i64(), Some(6))?;
    // One container of the pod ends and comes back; 2.4 asks the shim to end then.
    let other = task_pid(up.container_id("other")?)?;
    ctr(&["tasks", "kill", "--signal", "SIGKILL", up.container_id("main")?])?;
    let again = node.wait("pod", "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == 1)?;
    same("the other container", task_pid(again.container_id("other")?)?, other)?;
    node.end()
}

/// The plugins that are switched off on later versions carry the sandboxes of this one, all but the one that the advice names.
fn without_sandboxes() -> Result<()> {
    let mut node = Node::prepare(&Settings { containerd: Release::V2_1, ..Settings::default() })?;
    node.containerd.stop()?;
    node.containerd.disable(&[CRI_SERVICE]);
    node.containerd.start_again()?;
    node.agent.start()?;
    node.agent.stop()?;
    node.containerd.stop()?;
    node.containerd.disable(&CRI_PLUGINS);
    node.containerd.start_again()?;
    let refused = node.agent.command()?.output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    let advice = format!("disable {CRI_SERVICE} alone");
    ensure!(!refused.status.success() && said.contains(&advice), "{said}");
    node.close()
}

/// Everything a plain task does.
fn tasks_alone(release: Release) -> Result<()> {
    let stock = Stock::start_release(release, None)?;
    let said = printed(&mut stock.run(&["--rm"], "one", &["echo", "hello"])?)?;
    same("echo", said.as_str(), "hello\n")?;
    let failed = stock.run(&["--rm"], "two", &["sh", "-c", "exit 7"])?.output()?;
    same("exit code", failed.status.code(), Some(7))?;
    stock.run_detached(&[], "three", "echo up; exec sleep 1000")?;
    agreed_on("three", "RUNNING")?;
    // Its shell becomes the other program a moment later.
    let look = "until grep -x sleep /proc/1/comm; do :; done";
    let said = ctr(&["tasks", "exec", "--exec-id", "e", "three", "sh", "-c", look])?;
    same("exec", said.as_str(), "sleep\n")?;
    ctr(&["tasks", "kill", "--signal", "SIGKILL", "three"])?;
    agreed_on("three", "STOPPED")?;
    same("code of a killed one", delete("three", &[])?, 137)?;
    ctr(&["containers", "rm", "three"])?;
    stock.end()
}

/// Made by 2.1, seen by 2.3 and ended by 2.4.
fn plain_tasks() -> Result<()> {
    let mut stock = Stock::start_release(Release::V2_1, None)?;
    for id in ["lives", "ends"] {
        stock.run_detached(&[], id, "trap 'exit 7' TERM; echo up; sleep 1000 & wait")?;
    }
    let pids = [agreed_on("lives", "RUNNING")?, agreed_on("ends", "RUNNING")?];
    stock.containerd.stop()?;
    stock.containerd.start_as(Release::Reference)?;
    same("on 2.3", [agreed_on("lives", "RUNNING")?, agreed_on("ends", "RUNNING")?], pids)?;
    eventually("its first words", &true, || Ok(!fs::read(stock.log("ends"))?.is_empty()))?;
    stock.containerd.kill()?;
    kill(Pid::from_raw(i32::try_from(pids[1])?), Signal::SIGTERM)?;
    eventually("its end", &false, || Ok(is_alive(pids[1])))?;
    stock.containerd.start_as(Release::V2_4)?;
    same("on 2.4", agreed_on("lives", "RUNNING")?, pids[0])?;
    agreed_on("ends", "STOPPED")?;
    same("exit code", delete("ends", &[])?, 7)?;
    ctr(&["containers", "rm", "ends"])?;
    remove("lives")?;
    stock.end()
}
