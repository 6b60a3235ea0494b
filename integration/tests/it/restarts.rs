//! Agent, containerd and shims that end and come back while pods run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use berth_integration::agent::Settings;
use berth_integration::containerd::ctr_rows;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::process::tail;
use berth_integration::wait::{self, Look};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, eventually, inside, logged, pod, script, shell, sleeper, task_pid};
use crate::lives::{Identity, counted_to, log_dir, shim_of, waits_for_a_file};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("restarts::agent_stop_and_kill_leave_pods_running", agent),
        test("restarts::manifest_removed_while_the_agent_is_down", removed_while_down),
        test("restarts::exit_while_the_agent_is_down", exit_while_down),
        test("restarts::containerd_with_twenty_pods", containerd),
        test("restarts::exit_while_containerd_is_down", exit_while_containerd_down),
        test("restarts::a_killed_shim", shim_killed),
        test("restarts::exits_that_a_shim_recorded_before_it_was_lost", recorded),
        test("restarts::a_million_lines_arrive_once_and_in_order", million_lines),
    ]
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
    let what = format!("trap 'sleep 1; echo polite > /v/end; exit 0' TERM; touch /v/up; {FOR_EVER}");
    node.apply("gone", &pod("gone", json!({
        "terminationGracePeriodSeconds": 10,
        "containers": [shell("main", &what, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
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
    for (name, policy) in [("hit", "Always"), ("never", "Never")] {
        let speaks = shell("main", "echo last words > /dev/termination-log; exec sleep infinity", json!({}));
        node.apply(name, &pod(name, json!({ "restartPolicy": policy, "containers": [speaks] })))?;
    }
    node.apply("other", &sleeper("other"))?;
    let other = Identity::of(&node.ready("other")?)?;
    for name in ["hit", "never"] {
        let before = node.ready(name)?;
        let words = || inside(&before, "cat /dev/termination-log");
        eventually("the last words", &"last words".to_owned(), words)?;
        let pid = task_pid(before.container_id("main")?)?;
        end_process(shim_of(&before)?)?;
        // The container cannot be left alone: nobody would see its end.
        process_gone(pid)?;
    }
    let hit = node.wait("hit", "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == 1)?;
    let killed = |end: &Value| -> Result<()> {
        same("code", end["exitCode"].as_i64(), Some(137))?;
        same("message", end["message"].as_str(), Some("last words\n"))
    };
    killed(&hit.container("main")["lastState"]["terminated"])?;
    let never = node.wait("never", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    killed(&never.container("main")["state"]["terminated"])?;
    same("the other pod", Identity::of(&node.ready("other")?)?, other)?;
    node.end()
}

/// Agent away, containers end, their shims die before anybody has asked: the agent tells how they ended, and does not run
/// again what has ended well.
fn recorded() -> Result<()> {
    let mut node = Node::start()?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    let ends = |name: &str, policy: &str, code: u32| {
        let what = format!(
            "while ! test -e /v/go; do sleep 0.1; done; echo said {code} > /dev/termination-log; exit {code}"
        );
        let mounts = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
        let spec = json!({
            "restartPolicy": policy,
            "containers": [shell("main", &what, mounts)],
            "volumes": [{ "name": "v", "hostPath": { "path": dir } }],
        });
        pod(name, spec)
    };
    let cases = [("seven", "Never", 7), ("zero", "Never", 0), ("well", "OnFailure", 0)];
    for (name, policy, code) in cases {
        node.apply(name, &ends(name, policy, code))?;
    }
    node.apply("other", &sleeper("other"))?;
    let other = Identity::of(&node.ready("other")?)?;
    let mut shims = Vec::new();
    for (name, ..) in cases {
        let pod = node.ready(name)?;
        shims.push((shim_of(&pod)?, pod.container_id("main")?.to_owned()));
    }
    node.agent.kill()?;
    fs::write(dir.join("go"), "")?;
    for (shim, id) in shims {
        // The shim has seen the end and told containerd, and so has written it down.
        eventually("the end of the task", &true, || {
            let rows = ctr_rows(&["tasks", "ls"])?;
            Ok(rows.iter().any(|row| row.contains(&id) && row.contains(&"STOPPED".to_owned())))
        })?;
        end_process(shim)?;
        eventually("containerd to clean up", &false, || {
            let rows = ctr_rows(&["tasks", "ls"])?;
            Ok(rows.iter().any(|row| row.contains(&id)))
        })?;
    }
    node.agent.start()?;
    for (name, _, code) in cases {
        let (phase, reason) = if code == 0 { ("Succeeded", "Completed") } else { ("Failed", "Error") };
        let ended = node.wait(name, phase, POD_LIMIT, |pod| pod.phase() == phase)?;
        let end = &ended.container("main")["state"]["terminated"];
        let told = (end["exitCode"].as_u64(), end["reason"].as_str(), end["message"].as_str());
        same(name, told, (Some(code.into()), Some(reason), Some(format!("said {code}\n").as_str())))?;
        same(&format!("restarts of {name}"), ended.restarts("main"), 0)?;
    }
    same("the other pod", Identity::of(&node.ready("other")?)?, other)?;
    node.end()
}

/// Rotated by size, across the end of everybody but the shim.
fn million_lines() -> Result<()> {
    const LINES: usize = 1_000_000;
    let mut node = Node::start_with(&Settings {
        kubelet: json!({ "containerLogMaxSize": "20Mi", "containerLogMaxFiles": 20 }),
        ..Settings::default()
    })?;
    // The second half is written when everybody is away, and while they come back.
    let half = LINES / 2;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    let what = format!(
        "seq 1 {half}; until [ -e /v/go ]; do sleep 0.05; done; seq {} {LINES}; exec sleep infinity",
        half + 1
    );
    let main = shell("main", &what, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }));
    let volume = json!({ "name": "v", "hostPath": { "path": dir } });
    node.apply("lines", &pod("lines", json!({ "containers": [main], "volumes": [volume] })))?;
    let lines = node.wait("lines", "started", POD_LIMIT, |pod| pod.phase() == "Running")?;
    node.agent.kill()?;
    node.containerd.kill()?;
    fs::write(dir.join("go"), "")?;
    let log = log_dir(&lines).join("0.log");
    wait::until("lines of the second half", POD_LIMIT, || {
        let line = tail(&log).lines().last().unwrap_or_default().to_owned();
        let number = line.rsplit(' ').next().and_then(|number| number.parse::<usize>().ok());
        Ok(if number.is_some_and(|number| number > half) { Look::Ready(()) } else { Look::NotYet(line) })
    })?;
    node.containerd.start_again()?;
    node.agent.start()?;
    let pod = node.ready("lines")?;
    counted_to(&log_dir(&pod), LINES, Duration::from_secs(90))?;
    let tail = crate::kit::logs(&pod, "main", &["--tail", "2"])?;
    same("tail", tail.as_str(), "999999\n1000000\n")?;
    logged(&pod, "main", "\n1000000\n")?;
    node.end()
}
