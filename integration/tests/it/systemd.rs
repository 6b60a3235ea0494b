//! The systemd driver under a real systemd: names and values are the kubelet's, nothing is asked twice, nothing stays, and
//! systemd may be configured anew or executed anew meanwhile.

mod bus;

use std::fs;

use anyhow::{Context as _, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::cgroup;
use berth_integration::node::cgroups::{name_of_container, of_class, of_pod};
use berth_integration::node::{Node, POD_LIMIT, PodState, system};
use berth_integration::systemd::properties;
use berth_integration::vm::Feature;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kit::{container_group, eventually, group, pod, shell, sleeper, task_pid};
use crate::lives::Identity;
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    let on = |name: &str, body| test(&format!("systemd::{name}"), body).needs(Feature::Systemd);
    vec![
        on("slices_and_scopes_are_the_kubelets_with_crun", || classes("crun")),
        on("slices_and_scopes_are_the_kubelets_with_runc", || classes("runc")),
        on("a_restart_asks_systemd_for_its_scope_alone", restart).alone(),
        on("configured_and_executed_anew_under_pods", anew).alone(),
        on("no_unit_stays", nothing_stays),
        on("a_stopped_bus_with_crun", bus::stopped_with_crun).alone(),
        on("a_stopped_bus_with_runc", bus::stopped_with_runc).alone(),
        on("a_hanging_bus_with_a_choice_of_runtimes", bus::hanging_with_a_choice).alone(),
    ]
}

/// A node whose runtime is not the agent's choice.
fn node_with(runtime: &str) -> Result<Node> {
    Node::start_with(&Settings {
        kubelet: json!({ "podPidsLimit": 100 }),
        berth: json!({ "runtime": { "ociRuntime": runtime } }),
        ..Settings::default()
    })
}

fn sleeps(name: &str, resources: Value) -> String {
    let main = shell("main", "exec sleep infinity", json!({ "resources": resources }));
    pod(name, json!({ "containers": [main] }))
}

/// A pod of each class: its name, the class's part of names, and what is shown of its slice.
struct Class {
    name: &'static str,
    part: &'static str,
    resources: fn() -> Value,
    weight: &'static str,
    quota: &'static str,
    memory: &'static str,
}

const CLASSES: [Class; 3] = [
    Class {
        name: "guaranteed",
        part: "",
        resources: || json!({ "limits": { "cpu": "100m", "memory": "64Mi" } }),
        weight: "17",
        quota: "100ms",
        memory: "67108864",
    },
    Class {
        name: "burst",
        part: "burstable",
        resources: || json!({ "requests": { "cpu": "250m", "memory": "16Mi" }, "limits": { "cpu": "500m", "memory": "32Mi" } }),
        weight: "35",
        quota: "500ms",
        memory: "33554432",
    },
    Class {
        name: "best",
        part: "besteffort",
        resources: || json!({}),
        weight: "1",
        quota: "infinity",
        memory: "infinity",
    },
];

/// The slice that a path ends with.
fn unit_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn classes(runtime: &str) -> Result<()> {
    let node = node_with(runtime)?;
    for class in &CLASSES {
        node.apply(class.name, &sleeps(class.name, (class.resources)()))?;
    }
    for class in &CLASSES {
        class.is_shown(&node, &node.ready(class.name)?)?;
    }
    for (class, weight) in [("burstable", "35"), ("besteffort", "1")] {
        let slice = of_class(&node.world, class);
        same(class, properties(unit_of(&slice), ["CPUWeight"])?, [weight.to_owned()])?;
    }
    node.end()
}

impl Class {
    fn is_shown(&self, node: &Node, pod: &PodState) -> Result<()> {
        const SHOWN: [&str; 6] =
            ["ActiveState", "Slice", "CPUWeight", "CPUQuotaPerSecUSec", "MemoryMax", "TasksMax"];
        let root = node.world.cgroup_root();
        let root = root.trim_start_matches('/');
        let above = match self.part {
            "" => format!("{root}-kubepods"),
            part => format!("{root}-kubepods-{part}"),
        };
        let slice = format!("{above}-pod{}.slice", pod.uid().replace('-', "_"));
        let id = pod.container_id("main")?;
        let scope = format!("cri-containerd-{id}.scope");
        let wanted =
            |above: &str| ["active", above, self.weight, self.quota, self.memory].map(str::to_owned).to_vec();
        let [values @ .., pids] = properties(&slice, SHOWN)?;
        same(&slice, values.to_vec(), wanted(&format!("{above}.slice")))?;
        same("TasksMax", pids.as_str(), "100")?;
        let [values @ .., _pids] = properties(&scope, SHOWN)?;
        same(&scope, values.to_vec(), wanted(&slice))?;
        let mine = fs::read_to_string(format!("/proc/{}/cgroup", task_pid(id)?))?;
        // crun makes a level of its own in its scope.
        ensure!(mine.contains(&format!("/{slice}/{scope}")), "the process is in {mine}");
        // What systemd believes is what the kernel does.
        let level = group(&node.world, pod)?;
        for found in [&level, &container_group(&node.world, pod, "main")?] {
            let file = |file| found.read(file);
            same("cpu.weight", file("cpu.weight")?.as_str(), self.weight)?;
            same("memory.max", file("memory.max")?.replace("max", "infinity").as_str(), self.memory)?;
        }
        same("pids.max", level.read("pids.max")?.as_str(), "100")
    }
}

/// Every value of a pod and its container.
fn values(node: &Node, pod: &PodState) -> Result<Vec<String>> {
    const FILES: [&str; 6] =
        ["cpu.weight", "cpu.max", "memory.max", "pids.max", "cgroup.controllers", "cgroup.subtree_control"];
    let slice = cgroup::of_controller("cpu").join(of_pod(&node.world, "burstable", pod.uid()));
    let scope = slice.join(name_of_container(pod.container_id("main")?));
    let mut found = Vec::new();
    for dir in [slice, scope] {
        for file in FILES {
            found.push(format!("{file} {}", fs::read_to_string(dir.join(file))?.trim()));
        }
    }
    Ok(found)
}

fn anew() -> Result<()> {
    let mut node = node_with("crun")?;
    let burst = &CLASSES[1];
    node.apply(burst.name, &sleeps(burst.name, (burst.resources)()))?;
    let pod = node.ready(burst.name)?;
    let before = (Identity::of(&pod)?, values(&node, &pod)?);
    for (number, command) in ["daemon-reload", "daemon-reexec", "daemon-reload"].into_iter().enumerate() {
        system("systemctl", &[command])?;
        // A new pod makes systemd write the values of those beside it, too.
        let beside = format!("beside-{number}");
        node.apply(&beside, &sleeps(&beside, (burst.resources)()))?;
        let other = node.ready(&beside)?;
        let pod = node.ready(burst.name)?;
        same(command, &(Identity::of(&pod)?, values(&node, &pod)?), &before)?;
        same("the new pod's values", &values(&node, &other)?, &before.1)?;
        burst.is_shown(&node, &pod)?;
    }
    // Nor does the agent lose anything that it asked for before.
    node.agent.kill()?;
    system("systemctl", &["daemon-reexec"])?;
    node.agent.start()?;
    let pod = node.ready(burst.name)?;
    same("with another agent", (Identity::of(&pod)?, values(&node, &pod)?), before)?;
    node.end()
}

/// What journalctl says outside, where the journal is.
fn journal(args: &[&str]) -> Result<String> {
    system("nsenter", &[&["--target", "1", "--mount", "journalctl", "--boot"], args].concat())
}

/// The place that the journal has come to.
fn cursor() -> Result<String> {
    let shown = journal(&["--lines=1", "--show-cursor"])?;
    let cursor = shown.lines().find_map(|line| line.strip_prefix("-- cursor: "));
    Ok(cursor.context("the journal has no cursor")?.to_owned())
}

/// Calls that systemd has got on its own socket, from nobody but the agent while no test asks. Runtimes come by the bus,
/// which names them as senders.
fn calls_of_the_agent(since: &str) -> Result<Vec<String>> {
    system("nsenter", &["--target", "1", "--mount", "journalctl", "--sync"])?;
    let journal = journal(&["--output=cat", "_PID=1", &format!("--after-cursor={since}")])?;
    let calls = journal.lines().filter(|line| line.contains("Got message type=method_call"));
    Ok(calls.filter(|line| !line.contains("sender=:")).map(str::to_owned).collect())
}

fn restart() -> Result<()> {
    let node = node_with("crun")?;
    node.apply("one", &sleeper("one"))?;
    let one = node.ready("one")?;
    let log_level = system("systemctl", &["log-level"])?;
    system("systemctl", &["log-level", "debug"])?;
    let began = cursor()?;
    // What counts is counted: a new pod takes calls.
    node.apply("two", &sleeper("two"))?;
    node.ready("two")?;
    let of_a_pod = calls_of_the_agent(&began)?;
    let began = cursor()?;
    kill(Pid::from_raw(i32::try_from(task_pid(one.container_id("main")?)?)?), Signal::SIGKILL)?;
    node.wait("one", "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == 1)?;
    let of_a_restart = calls_of_the_agent(&began)?;
    system("systemctl", &["log-level", log_level.trim()])?;
    let starts = of_a_pod.iter().filter(|call| call.contains("member=StartTransientUnit"));
    same("slices asked for with a pod", starts.count(), 1)?;
    same("calls for a restart", of_a_restart, Vec::new())?;
    node.end()
}

/// Units of a pod that went by itself, was removed, ran out of memory, or never started.
fn nothing_stays() -> Result<()> {
    let node = Node::start()?;
    let once = |name: &str, script: &str| {
        let limits = json!({ "resources": { "limits": { "memory": "32Mi" } } });
        pod(name, json!({ "restartPolicy": "Never", "containers": [shell("main", script, limits)] }))
    };
    node.apply("fails", &once("fails", "exit 3"))?;
    node.apply("greedy", &once("greedy", "exec tail /dev/zero"))?;
    node.apply("stays", &sleeper("stays"))?;
    let missing = json!({ "command": ["/no/such/program"] });
    node.apply("never", &pod("never", json!({ "containers": [shell("main", "", missing)] })))?;
    for name in ["fails", "greedy"] {
        node.wait(name, "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    }
    node.wait("never", "waiting", POD_LIMIT, |pod| !pod.waits_for("main").is_empty())?;
    node.ready("stays")?;
    node.clear()?;
    let levels: Vec<String> = ["besteffort", "burstable", ""]
        .iter()
        .map(|class| unit_of(&of_class(&node.world, class)).to_owned())
        .collect();
    eventually("the units of pods to be gone", &levels, || {
        Ok(node.world.units()?.into_iter().map(|unit| unit.name).collect())
    })?;
    let root = node.world.cgroup_root().trim_start_matches('/').to_owned();
    node.end()?;
    // systemd says that a unit has stopped, and forgets it after that.
    eventually("the files of transient units to be gone", &Vec::<String>::new(), || {
        let names = fs::read_dir("/run/systemd/transient")?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<Vec<String>>>()?;
        Ok(names.into_iter().filter(|name| name.starts_with(&format!("{root}-"))).collect())
    })
}
