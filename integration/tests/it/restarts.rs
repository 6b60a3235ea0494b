//! Agent, containerd and shims that end and come back while pods run.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::wait::{self, Look};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kit::{eventually, inside, logged, pod, script, shell, sleeper, task_pid};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("restarts::agent_stop_and_kill_leave_pods_running", agent),
        test("restarts::manifest_removed_while_the_agent_is_down", removed_while_down),
        test("restarts::exit_while_the_agent_is_down", exit_while_down),
        test("restarts::containerd_with_twenty_pods", containerd),
        test("restarts::exit_while_containerd_is_down", exit_while_containerd_down),
        test("restarts::a_killed_shim", shim_killed),
        test("restarts::a_million_lines_arrive_once_and_in_order", million_lines),
    ]
}

/// What must not change while a pod lives on.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    uid: String,
    id: String,
    pid: u32,
    ip: IpAddr,
    ready_since: String,
    restarts: u64,
}

impl Identity {
    fn of(pod: &PodState) -> Result<Self> {
        let id = pod.container_id("main")?.to_owned();
        let conditions = pod.0["status"]["conditions"].as_array().context("no conditions")?;
        let ready = conditions.iter().find(|one| one["type"] == "Ready").context("no Ready condition")?;
        Ok(Self {
            uid: pod.uid().to_owned(),
            pid: task_pid(&id)?,
            id,
            ip: pod.ip()?,
            ready_since: ready["lastTransitionTime"].to_string(),
            restarts: pod.restarts("main"),
        })
    }
}

fn agent() -> Result<()> {
    let mut node = Node::start()?;
    for name in ["one", "two"] {
        node.apply(name, &script(name, "while :; do echo tick; sleep 0.2; done"))?;
    }
    let identities = |node: &Node| -> Result<Vec<Identity>> {
        ["one", "two"].iter().map(|name| Identity::of(&node.ready(name)?)).collect()
    };
    let before = identities(&node)?;
    node.agent.stop()?;
    node.agent.start()?;
    same("after SIGTERM", identities(&node)?, before)?;
    let before = identities(&node)?;
    node.agent.kill()?;
    node.agent.start()?;
    same("after SIGKILL", identities(&node)?, before)?;
    same("exec", inside(&node.ready("one")?, "echo still")?.as_str(), "still")?;
    node.end()
}

fn removed_while_down() -> Result<()> {
    let mut node = Node::start()?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    let what = "trap 'sleep 1; echo polite > /v/end; exit 0' TERM; touch /v/up; while :; do sleep 0.1; done";
    node.apply("gone", &pod("gone", json!({
        "terminationGracePeriodSeconds": 10,
        "containers": [shell("main", what, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
        "volumes": [{ "name": "v", "hostPath": { "path": dir } }],
    })))?;
    node.apply("stays", &sleeper("stays"))?;
    node.ready("gone")?;
    let stays = Identity::of(&node.ready("stays")?)?;
    eventually("the trap", &true, || Ok(dir.join("up").exists()))?;
    node.agent.kill()?;
    node.remove("gone")?;
    node.agent.start()?;
    node.gone("gone")?;
    same("its last words", fs::read_to_string(dir.join("end"))?.as_str(), "polite\n")?;
    same("the other pod", Identity::of(&node.ready("stays")?)?, stays)?;
    node.end()
}

fn exit_while_down() -> Result<()> {
    let mut node = Node::start()?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    node.apply("ends", &waits_for_a_file("ends", &dir))?;
    let ends = node.ready("ends")?;
    let pid = task_pid(ends.container_id("main")?)?;
    node.agent.kill()?;
    fs::write(dir.join("go"), "")?;
    process_gone(pid)?;
    node.agent.start()?;
    let ended = node.wait("ends", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    let ended = &ended.container("main")["state"]["terminated"];
    same(
        "how it ended",
        (ended["exitCode"].as_i64(), ended["message"].as_str()),
        (Some(6), Some("last words\n")),
    )?;
    node.end()
}

/// Ends with 6 when somebody makes the file `go`.
fn waits_for_a_file(name: &str, dir: &Path) -> String {
    let what = "while ! test -e /v/go; do sleep 0.1; done; echo last words > /dev/termination-log; exit 6";
    pod(
        name,
        json!({
            "restartPolicy": "Never",
            "containers": [shell("main", what, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
            "volumes": [{ "name": "v", "hostPath": { "path": dir } }],
        }),
    )
}

fn process_gone(pid: u32) -> Result<()> {
    eventually("the process to end", &false, || Ok(Path::new(&format!("/proc/{pid}")).exists()))
}

fn containerd() -> Result<()> {
    const COUNT: usize = 20;
    let mut node = Node::start()?;
    let names: Vec<String> = (0..COUNT).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        node.apply(name, &sleeper(name))?;
    }
    let identities = |node: &Node| -> Result<BTreeMap<String, Identity>> {
        names.iter().map(|name| Ok((name.clone(), Identity::of(&node.ready(name)?)?))).collect()
    };
    let before = identities(&node)?;
    node.containerd.stop()?;
    node.containerd.start_again()?;
    same("after SIGTERM", identities(&node)?, before)?;
    let before = identities(&node)?;
    node.containerd.kill()?;
    node.containerd.start_again()?;
    same("after SIGKILL", identities(&node)?, before)?;
    // Exits are still seen, and new pods start.
    let victim = node.ready("pod-0")?;
    end_process(task_pid(victim.container_id("main")?)?)?;
    node.wait("pod-0", "restarted or in back-off", POD_LIMIT, |pod| {
        pod.restarts("main") == 1 || pod.waits_for("main") == "CrashLoopBackOff"
    })?;
    node.apply("new", &sleeper("new"))?;
    node.ready("new")?;
    node.end()
}

fn end_process(pid: u32) -> Result<()> {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?)
}

fn exit_while_containerd_down() -> Result<()> {
    let mut node = Node::start()?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    node.apply("ends", &waits_for_a_file("ends", &dir))?;
    let pid = task_pid(node.ready("ends")?.container_id("main")?)?;
    node.containerd.kill()?;
    fs::write(dir.join("go"), "")?;
    process_gone(pid)?;
    node.containerd.start_again()?;
    let ended = node.wait("ends", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("code", ended.container("main")["state"]["terminated"]["exitCode"].as_i64(), Some(6))?;
    node.end()
}

fn shim_killed() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        ..Settings::default()
    })?;
    node.apply("hit", &sleeper("hit"))?;
    let sleeps = shell("main", "exec sleep infinity", json!({}));
    node.apply("never", &pod("never", json!({ "restartPolicy": "Never", "containers": [sleeps] })))?;
    node.apply("other", &sleeper("other"))?;
    let other = Identity::of(&node.ready("other")?)?;
    for name in ["hit", "never"] {
        let before = node.ready(name)?;
        let pid = task_pid(before.container_id("main")?)?;
        end_process(shim_of(&before)?)?;
        // The container cannot be left alone: nobody would see its end.
        process_gone(pid)?;
    }
    let hit = node.wait("hit", "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == 1)?;
    let last = &hit.container("main")["lastState"]["terminated"];
    same("code", last["exitCode"].as_i64(), Some(137))?;
    let never = node.wait("never", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("code", never.container("main")["state"]["terminated"]["exitCode"].as_i64(), Some(137))?;
    same("the other pod", Identity::of(&node.ready("other")?)?, other)?;
    node.end()
}

/// The process that is a pod's sandbox.
fn shim_of(pod: &PodState) -> Result<u32> {
    let info = berth_integration::containerd::ctr(&["containers", "info", pod.container_id("main")?])?;
    let info: Value = serde_json::from_str(&info)?;
    let sandbox =
        info["Spec"]["annotations"]["io.kubernetes.cri.sandbox-id"].as_str().context("no sandbox id")?;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        // It may end between the two looks.
        let line = fs::read_to_string(path.join("cmdline")).unwrap_or_default().replace('\0', " ");
        if line.contains("containerd-shim-berth-v1") && line.contains(sandbox) {
            return Ok(path.file_name().unwrap_or_default().to_string_lossy().parse()?);
        }
    }
    anyhow::bail!("no shim of {sandbox}")
}

/// Rotated by size, across the end of everybody but the shim.
fn million_lines() -> Result<()> {
    const LINES: usize = 1_000_000;
    let mut node = Node::start_with(&Settings {
        kubelet: json!({ "containerLogMaxSize": "20Mi", "containerLogMaxFiles": 20 }),
        ..Settings::default()
    })?;
    let what = format!("seq 1 {LINES}; exec sleep infinity");
    node.apply("lines", &script("lines", &what))?;
    node.wait("lines", "started", POD_LIMIT, |pod| pod.phase() == "Running")?;
    node.agent.kill()?;
    node.containerd.kill()?;
    node.containerd.start_again()?;
    node.agent.start()?;
    let pod = node.ready("lines")?;
    let dir = PathBuf::from(format!("/var/log/pods/default_{}_{}/main", pod.name(), pod.uid()));
    let last = wait::until("the last line", Duration::from_secs(90), || {
        let tail = berth_integration::process::tail(&dir.join("0.log"));
        let last = tail.lines().last().unwrap_or_default().to_owned();
        Ok(if last.ends_with(&format!(" F {LINES}")) { Look::Ready(last) } else { Look::NotYet(last) })
    })?;
    ensure!(last.contains(" stdout F "), "{last}");
    let read = read_lines(&dir)?;
    ensure!(read.len() == LINES, "{} lines of {LINES}", read.len());
    let wrong = read.iter().zip(1..).find(|(line, number)| **line != number.to_string());
    ensure!(wrong.is_none(), "first line out of place: {wrong:?}");
    let tail = crate::kit::logs(&pod, "main", &["--tail", "2"])?;
    same("tail", tail.as_str(), "999999\n1000000\n")?;
    logged(&pod, "main", "\n1000000\n")?;
    node.end()
}

/// The texts of all lines of all files of a log, oldest first.
fn read_lines(dir: &Path) -> Result<Vec<String>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    // Names of rotated files end with their time; the current one has the shortest name.
    files.sort_by_key(|path| (path.ends_with("0.log"), path.clone()));
    let mut lines = Vec::new();
    for file in files {
        let text = if file.extension().is_some_and(|extension| extension == "gz") {
            let done = Command::new("gzip").arg("-dc").arg(&file).output().context("start gzip")?;
            ensure!(done.status.success(), "gzip of {}", file.display());
            String::from_utf8(done.stdout)?
        } else {
            fs::read_to_string(&file)?
        };
        lines.extend(text.lines().map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned()));
    }
    Ok(lines)
}
