//! Every OCI runtime and every containerd runtime that a node may name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{Settings, berth_output};
use berth_integration::components;
use berth_integration::containerd::ctr;
use berth_integration::files;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::bad_input::events_say;
use crate::kit::{eventually, inside, logged, page, pod, shell, task_pid, with};
use crate::lives::log_dir;
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("runtimes::runc", runc),
        test("runtimes::crun", crun),
        test("runtimes::a_path", path),
        test("runtimes::a_create_that_fails_once", fails_once),
        test("runtimes::a_start_that_fails_in_words_of_its_own", own_words),
        test("runtimes::runc_shim_of_containerd_by_handler", handler),
        test("runtimes::logs_under_a_shim_of_others_are_rotated_and_whole", grouped_logs),
        test("runtimes::a_pod_under_a_grouping_shim_ends_and_starts_like_any", grouped_life),
        test("runtimes::an_unknown_handler_is_refused", unknown),
        test("runtimes::a_program_that_is_not_there", no_program),
    ]
}

fn runc() -> Result<()> {
    basic("runc", &components::binary("runc")?, "runc")
}

fn crun() -> Result<()> {
    basic("crun", Path::new("/usr/bin/crun"), "crun")
}

fn path() -> Result<()> {
    basic("my-runc", &components::binary("runc")?, "/run/own/my-runc")
}

/// What the runtime had mounted and written before must not be in the way of the next attempt.
fn fails_once() -> Result<()> {
    const FAILED: &str = "/run/own/failed";
    let first = format!("case \"$*\" in *k8s.io*\" create \"*) mkdir {FAILED} 2>/dev/null && exit 1 ;; esac");
    let node = Node::start_with(&Settings {
        berth: json!({ "runtime": { "ociRuntime": "/run/own/my-runc" } }),
        path_first: Some(program("my-runc", &first, &components::binary("runc")?)?),
        ..Settings::default()
    })?;
    node.apply(
        "again",
        &pod("again", json!({ "containers": [shell("main", "exec sleep infinity", json!({}))] })),
    )?;
    node.ready("again")?;
    ensure!(fs::exists(FAILED)?, "no call failed");
    node.end()
}

/// Whatever a runtime says, a start that it refused is a run that failed: a pod that never runs again has failed, one that
/// does waits longer each time.
fn own_words() -> Result<()> {
    let words = "echo words that nobody knows >&2; exit 1";
    let first = format!("case \"$*\" in *k8s.io*\" create \"*) {words} ;; esac");
    let node = Node::start_with(&Settings {
        berth: json!({ "runtime": { "ociRuntime": "/run/own/my-runc" } }),
        path_first: Some(program("my-runc", &first, &components::binary("runc")?)?),
        ..Settings::default()
    })?;
    for (name, policy) in [("once", "Never"), ("again", "Always")] {
        let containers = json!([shell("main", "exec sleep infinity", json!({}))]);
        node.apply(name, &pod(name, json!({ "restartPolicy": policy, "containers": containers })))?;
    }
    let once = node.wait("once", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    let ended = &once.container("main")["state"]["terminated"];
    same("reason", ended["reason"].as_str(), Some("StartError"))?;
    same("code", ended["exitCode"].as_i64(), Some(128))?;
    let message = ended["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("failed to create containerd task: "), "{message}");
    let again =
        node.wait("again", "backing off", POD_LIMIT, |pod| pod.waits_for("main") == "CrashLoopBackOff")?;
    same("last", again.container("main")["lastState"]["terminated"]["reason"].as_str(), Some("StartError"))?;
    ensure!(crate::kit::events(&again)?.contains("Container created"), "{again}");
    node.end()
}

/// Puts a program named `name` into `/run/own`, which notes that it was called and becomes `real`.
fn noted(name: &str, real: &Path) -> Result<PathBuf> {
    program(name, &format!("echo \"$*\" >> {CALLS}"), real)
}

/// The same, which does something else `first`.
fn program(name: &str, first: &str, real: &Path) -> Result<PathBuf> {
    let dir = PathBuf::from("/run/own");
    fs::create_dir_all(&dir)?;
    let script = format!("#!/bin/sh\n{first}\nexec {} \"$@\"\n", real.display());
    files::write_program(dir.join(name), &script)?;
    Ok(dir)
}

const CALLS: &str = "/run/own-calls";

/// The life of a pod with everything that an OCI runtime is asked for.
fn basic(name: &str, real: &Path, setting: &str) -> Result<()> {
    let node = Node::start_with(&Settings {
        berth: json!({ "runtime": { "ociRuntime": setting } }),
        path_first: Some(noted(name, real)?),
        ..Settings::default()
    })?;
    let what = "mkdir -p /www; echo hello > /www/index.html; echo up; exec httpd -f -p 80 -h /www";
    node.apply(
        "basic",
        &pod(
            "basic",
            json!({ "containers": [shell("main", what, json!({
        "resources": { "limits": { "memory": "64Mi", "cpu": "500m" } },
        "securityContext": { "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE", "DAC_OVERRIDE"] },
            "seccompProfile": { "type": "RuntimeDefault" } },
    }))] }),
        ),
    )?;
    let basic = node.ready("basic")?;
    logged(&basic, "main", "up\n")?;
    same("answer", page((basic.ip()?, 80).into(), "/")?.text().as_str(), "hello\n")?;
    same("seccomp", inside(&basic, "grep Seccomp: /proc/self/status | tr -dc 0-9")?.as_str(), "2")?;
    let done = berth_output(&["exec", basic.name(), "--", "sh", "-c", "exit 9"])?;
    same("exit code", done.status.code(), Some(9))?;
    let calls = fs::read_to_string(CALLS)?;
    let id = basic.container_id("main")?;
    ensure!(calls.lines().any(|call| call.contains(" create ") && call.contains(id)), "not used: {calls}");
    node.apply(
        "code",
        &pod("code", json!({ "restartPolicy": "Never", "containers": [shell("main", "exit 7", json!({}))] })),
    )?;
    let code = node.wait("code", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("exit code", code.container("main")["state"]["terminated"]["exitCode"].as_i64(), Some(7))?;
    node.end()
}

/// Settings by which `runc` is the handler of containerd's own shim.
fn of_others() -> Value {
    json!({ "runtime": { "handlers": { "runc": "io.containerd.runc.v2" } } })
}

/// A pod of that handler.
fn under_runc(name: &str, spec: Value) -> String {
    pod(name, with(json!({ "runtimeClassName": "runc" }), spec))
}

fn handler() -> Result<()> {
    let node = Node::start_with(&Settings { berth: of_others(), ..Settings::default() })?;
    let what = "mkdir -p /www; echo hello > /www/index.html; hostname; \
                cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start; \
                touch /dev/shm/mine; echo up; exec httpd -f -p 80 -h /www";
    let beside = "until test -e /dev/shm/mine; do sleep 0.1; done; echo met; exec sleep infinity";
    node.apply(
        "stock",
        &under_runc(
            "stock",
            json!({
                "hostname": "given",
                "securityContext": { "sysctls": [{ "name": "kernel.shm_rmid_forced", "value": "1" }] },
                "containers": [shell("main", what, json!({})), shell("other", beside, json!({}))],
            }),
        ),
    )?;
    let stock = node.ready("stock")?;
    same("answer", page((stock.ip()?, 80).into(), "/")?.text().as_str(), "hello\n")?;
    let info: Value = serde_json::from_str(&ctr(&["containers", "info", stock.container_id("main")?])?)?;
    same("runtime", info["Runtime"]["Name"].as_str(), Some("io.containerd.runc.v2"))?;
    let namespace = |pid: &str, kind: &str| -> Result<String> {
        Ok(fs::read_link(format!("/proc/{pid}/ns/{kind}"))?.display().to_string())
    };
    let of = |container: &str| Ok::<_, anyhow::Error>(task_pid(stock.container_id(container)?)?.to_string());
    for kind in ["net", "ipc", "uts"] {
        let has = namespace(&of("main")?, kind)?;
        same(kind, &has, &namespace(&of("other")?, kind)?)?;
        ensure!(has != namespace("self", kind)?, "{kind} is the node's");
    }
    same("log", logged(&stock, "main", "up\n")?.as_str(), "given\n1\n0\nup\n")?;
    logged(&stock, "other", "met\n")?;
    // There is none that holds the processes of a pod.
    let shares = json!({
        "shareProcessNamespace": true,
        "containers": [shell("main", "exec sleep infinity", json!({}))],
    });
    node.apply("shares", &under_runc("shares", shares))?;
    let refused = node.wait("shares", "refused", POD_LIMIT, |pod| {
        events_say(pod, "share one process namespace: runtime io.containerd.runc.v2 has no sandbox")
    })?;
    ensure!(refused.container_id("main").is_err(), "it runs: {:?}", refused.0);
    node.end()
}

/// A line without an end is the last.
fn grouped_logs() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "containerLogMaxSize": "10Ki", "containerLogMaxFiles": 3 }),
        berth: of_others(),
        ..Settings::default()
    })?;
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [shell("main", "seq 1 100000; printf last", json!({}))],
    });
    node.apply("talks", &under_runc("talks", spec))?;
    let ended = node.wait("talks", "ended", POD_LIMIT, |pod| pod.phase() == "Succeeded")?;
    let dir = log_dir(&ended);
    // As a whole line, or as a part of one that has waited for the rest.
    let is_there = || Ok(files::read(dir.join("0.log"))?.ends_with(" last\n"));
    eventually("the last line", &true, is_there)?;
    // The newest that was rotated is never packed.
    let ends = || {
        let mut files: Vec<String> =
            files::list(&dir)?.iter().map(|path| path.display().to_string()).collect();
        files.sort();
        Ok(files.iter().map(|path| path.ends_with(".gz")).collect())
    };
    eventually("the log and two that were rotated", &vec![false, true, false], ends)?;
    node.end()
}

/// Under a shim that groups: a kill, an exit with a code, exits while the agent is away, its restart, and removal in grace.
fn grouped_life() -> Result<()> {
    let mut node = Node::start_with(&Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        berth: of_others(),
        ..Settings::default()
    })?;
    let dir = node.world.root().join("dir");
    fs::create_dir(&dir)?;
    let what = "trap 'echo polite > /v/end; exit 0' TERM; echo up; \
                while ! test -e /v/code; do sleep 0.1; done; code=$(cat /v/code); rm /v/code; exit $code";
    let mounts = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
    node.apply(
        "stock",
        &under_runc(
            "stock",
            json!({
                "terminationGracePeriodSeconds": 20,
                "containers": [shell("main", what, mounts), shell("other", "exec sleep infinity", json!({}))],
                "volumes": [{ "name": "v", "hostPath": { "path": dir } }],
            }),
        ),
    )?;
    let other = |pod: &PodState| task_pid(pod.container_id("other")?);
    let end_with = |code: &str| -> Result<()> {
        fs::write(dir.join("new"), code)?;
        Ok(fs::rename(dir.join("new"), dir.join("code"))?)
    };
    let again = |node: &Node, restarts: u64, code: u64| -> Result<PodState> {
        let pod = node
            .wait("stock", "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == restarts)?;
        let last = &pod.container("main")["lastState"]["terminated"];
        same("code", last["exitCode"].as_u64(), Some(code))?;
        Ok(pod)
    };
    let first = node.ready("stock")?;
    let beside = other(&first)?;
    kill(Pid::from_raw(i32::try_from(task_pid(first.container_id("main")?)?)?), Signal::SIGKILL)?;
    again(&node, 1, 137)?;
    end_with("3")?;
    let before = again(&node, 2, 3)?;
    let pid = task_pid(before.container_id("main")?)?;
    node.agent.kill()?;
    node.agent.start()?;
    let after = node.ready("stock")?;
    same("restarts", after.restarts("main"), 2)?;
    same("its process after a restart of the agent", task_pid(after.container_id("main")?)?, pid)?;
    node.agent.kill()?;
    end_with("4")?;
    eventually("the process to end", &false, || Ok(Path::new(&format!("/proc/{pid}")).exists()))?;
    node.agent.start()?;
    let last = again(&node, 3, 4)?;
    same("the container beside", other(&last)?, beside)?;
    // As its first process it is not ended by a signal that it does not wait for yet.
    logged(&last, "main", "up")?;
    loses_its_shim(&mut node, &last)?;
    node.ready("stock")?;
    node.remove("stock")?;
    node.gone("stock")?;
    same("its last words", fs::read_to_string(dir.join("end"))?.as_str(), "polite\n")?;
    node.end()
}

/// The shim dies, and with it all that could tell of its containers; at last while the agent is away.
fn loses_its_shim(node: &mut Node, pod: &PodState) -> Result<()> {
    let shim = |pod: &PodState| -> Result<Pid> {
        let status = files::read(format!("/proc/{}/status", task_pid(pod.container_id("main")?)?))?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).context("no parent")?;
        Ok(Pid::from_raw(parent.trim().parse()?))
    };
    let before = pod.restarts("main");
    kill(shim(pod)?, Signal::SIGKILL)?;
    let pod = node.wait("stock", "up again after its shim died", POD_LIMIT, |pod| {
        pod.is_ready() && pod.restarts("main") == before + 1 && pod.restarts("other") == 1
    })?;
    same("code", pod.container("main")["lastState"]["terminated"]["exitCode"].as_u64(), Some(137))?;
    logged(&pod, "main", "up")?;
    let shim = shim(&pod)?;
    node.agent.kill()?;
    kill(shim, Signal::SIGKILL)?;
    eventually("the shim to end", &false, || Ok(Path::new(&format!("/proc/{shim}")).exists()))?;
    node.agent.start()?;
    let pod = node.wait("stock", "up again after its shim died unseen", POD_LIMIT, |pod| {
        pod.is_ready() && pod.restarts("main") == before + 2 && pod.restarts("other") == 2
    })?;
    logged(&pod, "main", "up").map(drop)
}

fn unknown() -> Result<()> {
    let node = Node::start()?;
    node.apply(
        "odd",
        &pod(
            "odd",
            json!({
                "runtimeClassName": "no-such-handler",
                "containers": [shell("main", "exec sleep infinity", json!({}))],
            }),
        ),
    )?;
    let odd = node.wait("odd", "refused", POD_LIMIT, |pod| {
        crate::kit::events(pod).is_ok_and(|shown| shown.contains("no-such-handler"))
    })?;
    ensure!(!odd.is_ready(), "{odd}");
    node.end()
}

fn no_program() -> Result<()> {
    let node = Node::start()?;
    let container = json!({ "name": "main", "image": crate::kit::IMAGE, "command": ["/no/such/program"] });
    node.apply("none", &pod("none", json!({ "restartPolicy": "Never", "containers": [container] })))?;
    let none = node.wait("none", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    let ended = &none.container("main")["state"]["terminated"];
    same("reason", ended["reason"].as_str(), Some("StartError"))?;
    same("code", ended["exitCode"].as_i64(), Some(128))?;
    ensure!(ended["message"].as_str().unwrap_or_default().contains("/no/such/program"), "{ended}");
    node.end()
}
