//! Whoever answers nothing: a shim, the agent itself, containerd. What is healthy goes on, and nobody is killed for being
//! slow.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::announced::{Announced, Side};
use berth_integration::components;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::wait::{self, Look};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::crash;
use crate::interrupted::HUNG_LIMIT;
use crate::kit::{events, eventually, pod, shell, sleeper, task_pid};
use crate::lives::{Identity, SHIM_KILLED, shim_of, waits_for_a_file};
use crate::suite::{Body, LONG_LIMIT, Test, of, same, test};

/// Labels at which an agent dies that kills the shim of a pod that goes.
pub(crate) const DEATHS: [&str; 2] = ["kill-shim.before", "kill-shim.after"];

pub(crate) fn tests() -> Vec<Test> {
    let deaths = DEATHS.map(|label| {
        of(format!("silent::killed_at_{label}"), Body::Of(dies, label.to_owned())).long().within(LONG_LIMIT)
    });
    let tests = [
        test("silent::an_agent_that_was_stopped_for_a_minute", stopped_agent).long().within(LONG_LIMIT),
        test("silent::a_stopped_shim_with_a_crash_loop_beside_a_healthy_container", stopped_shim).long(),
        test("silent::a_containerd_that_hangs", hung_containerd).long(),
    ];
    tests.into_iter().chain(deaths).collect()
}

/// How long a disk may stall.
const STALL: Duration = Duration::from_secs(30);

/// How long the agent is stopped: far longer than any answer of a shim may take.
const SUSPENDED: Duration = Duration::from_secs(60);

/// Looks again and again for a while whether something stays as it is.
fn stays(what: &str, length: Duration, mut look: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + length;
    wait::until(what, length + POD_LIMIT, || {
        ensure!(look()?, "{what}: not any more");
        Ok(if Instant::now() >= end { Look::Ready(()) } else { Look::NotYet("so far".to_owned()) })
    })
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).join("exe").exists()
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
}

/// The shim stops in the middle of the removal of a container that ended. The agent asks it, hears nothing, and waits.
fn stopped_shim() -> Result<()> {
    let runtime = Announced::install(Path::new("/run/announced"), "runc", &components::binary("runc")?)?;
    let node = Node::start_with(&Settings {
        kubelet: json!({
            "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" },
            "runtimeRequestTimeout": "5s",
        }),
        berth: json!({ "runtime": { "ociRuntime": "runc" } }),
        path_first: Some(runtime.dir().to_owned()),
        ..Settings::default()
    })?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    let crashes = "while ! test -e /v/go; do sleep 0.1; done; rm /v/go; exit 1";
    node.apply(
        "pair",
        &pod(
            "pair",
            json!({
                "containers": [
                    shell("main", "exec sleep infinity", json!({})),
                    shell("side", crashes, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] })),
                ],
                "volumes": [{ "name": "v", "hostPath": { "path": dir } }],
            }),
        ),
    )?;
    let pair = node.ready("pair")?;
    let (shim, main) = (shim_of(&pair)?, task_pid(pair.container_id("main")?)?);
    let held = runtime.hold(Side::Before, "delete")?;
    fs::write(dir.join("go"), "")?;
    held.reached()?;
    signal(shim, Signal::SIGSTOP)?;
    held.release()?;
    wait::until("a question without an answer", POD_LIMIT, || {
        let shown = events(&pair)?;
        Ok(if shown.contains("did not answer within") { Look::Ready(()) } else { Look::NotYet(shown) })
    })?;
    stays("the shim and the healthy container", STALL, || Ok(is_alive(shim) && is_alive(main)))?;
    signal(shim, Signal::SIGCONT)?;
    let again = node.wait("pair", "the crashed one again", POD_LIMIT, |pod| {
        pod.is_ready() && pod.restarts("side") == 1
    })?;
    same("restarts of the healthy one", again.restarts("main"), 0)?;
    same("its process", task_pid(again.container_id("main")?)?, main)?;
    same("the shim", shim_of(&again)?, shim)?;
    node.end()
}

/// A pod is being removed, which asks its shim, when the agent is stopped: that the agent heard nothing for a minute is
/// nobody's fault but its own.
fn stopped_agent() -> Result<()> {
    let node = Node::start()?;
    node.apply("stays", &sleeper("stays"))?;
    let stays_up = Identity::of(&node.ready("stays")?)?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    node.apply("leaves", &waits_for_a_file("leaves", &dir))?;
    let leaves = node.ready("leaves")?;
    let shim = shim_of(&leaves)?;
    // Its shim answers nothing when the agent is stopped, and answers again before the agent goes on.
    signal(shim, Signal::SIGSTOP)?;
    node.remove("leaves")?;
    wait::until("a question without an answer", POD_LIMIT, || {
        let shown = events(&leaves)?;
        Ok(if shown.contains("did not answer within") { Look::Ready(()) } else { Look::NotYet(shown) })
    })?;
    node.agent.signal(Signal::SIGSTOP)?;
    stays("the stopped shim", SUSPENDED, || Ok(is_alive(shim)))?;
    signal(shim, Signal::SIGCONT)?;
    node.agent.signal(Signal::SIGCONT)?;
    node.gone("leaves")?;
    let log = fs::read_to_string(node.agent.log())?;
    ensure!(!log.contains(SHIM_KILLED), "a shim was killed:\n{log}");
    same("the other pod", Identity::of(&node.ready("stays")?)?, stays_up)?;
    node.end()
}

/// The agent dies beside its kill of a stopped shim. Before it, nothing is killed, and the shim goes on and is asked to end;
/// after it, the next agent finds it gone.
fn dies(label: &str) -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    node.agent.start_doomed(label)?;
    eventually("the agent to answer", &true, || Ok(node.pods().is_ok()))?;
    node.apply("stays", &sleeper("stays"))?;
    let stays_up = Identity::of(&node.ready("stays")?)?;
    node.apply("leaves", &sleeper("leaves"))?;
    let shim = shim_of(&node.ready("leaves")?)?;
    signal(shim, Signal::SIGSTOP)?;
    node.remove("leaves")?;
    crash::died_at(&mut node, label, HUNG_LIMIT)?;
    if label == DEATHS[0] {
        ensure!(is_alive(shim), "the shim was killed before {label}");
        signal(shim, Signal::SIGCONT)?;
    } else {
        eventually("the end of the shim", &false, || Ok(is_alive(shim)))?;
    }
    // The shim answers or is gone: nobody kills it again.
    crash::dies_at_once(&mut node, crash::BEGUN, POD_LIMIT).context("while it recovers")?;
    node.agent.start()?;
    node.gone("leaves")?;
    same("the other pod", Identity::of(&node.ready("stays")?)?, stays_up)?;
    node.end()
}

/// It accepts and never answers. Pods run, end, are looked into; what needs it says so, and is made when it goes on.
fn hung_containerd() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "runtimeRequestTimeout": "5s" }),
        ..Settings::default()
    })?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    node.apply("ends", &waits_for_a_file("ends", &dir))?;
    node.apply("goes-on", &sleeper("goes-on"))?;
    let pid = task_pid(node.ready("ends")?.container_id("main")?)?;
    let goes_on = Identity::of(&node.ready("goes-on")?)?;
    node.containerd.freeze()?;
    fs::write(dir.join("go"), "")?;
    let ended = node.wait("ends", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("code", ended.container("main")["state"]["terminated"]["exitCode"].as_i64(), Some(6))?;
    ensure!(!is_alive(pid), "it has not ended");
    node.apply("new", &sleeper("new"))?;
    wait::until("the agent to say what it waits for", POD_LIMIT, || {
        let Some(new) = node.pod("new")? else { return Ok(Look::NotYet("no pod".to_owned())) };
        let shown = events(&new)?;
        Ok(if shown.contains("no answer within 5 s") { Look::Ready(()) } else { Look::NotYet(shown) })
    })?;
    stays("a ready pod while containerd hangs", STALL, || {
        Ok(node.pod("goes-on")?.is_some_and(|pod| pod.is_ready()))
    })?;
    node.containerd.thaw()?;
    node.ready("new")?;
    same("the pod that went on", Identity::of(&node.ready("goes-on")?)?, goes_on)?;
    node.end()
}
