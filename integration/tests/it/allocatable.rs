//! What is kept for the system: all pods together stay within the rest.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::cgroup::{self, Bounds};
use berth_integration::files;
use berth_integration::node::{Node, POD_LIMIT};
use serde_json::json;

use crate::kit::{class_group, eventually, pod, shell, task_pid};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("allocatable::bounds_of_all_pods", bounds),
        test("allocatable::without_enforcement_all_of_the_machine_is_for_pods", not_enforced),
        test("allocatable::pods_that_take_too_much_are_killed_and_nothing_else", enforced),
    ]
}

/// Left to pods by [`reserving_the_rest`].
const LEFT: Amounts = Amounts { cpu_milli: 500, memory_bytes: 192 << 20, tasks: 4000 };

/// What a machine has, or pods may use of it.
struct Amounts {
    cpu_milli: u64,
    memory_bytes: u64,
    tasks: u64,
}

/// Leaves the same to pods on any machine, in two reservations.
fn reserving_the_rest(enforce: &[&str]) -> Result<Settings> {
    let all = machine()?;
    let (cpu, memory) =
        (all.cpu_milli - LEFT.cpu_milli - 100, all.memory_bytes - LEFT.memory_bytes - (64 << 20));
    let kubelet = json!({
        "kubeReserved": {
            "cpu": format!("{cpu}m"),
            "memory": memory.to_string(),
            "pid": (all.tasks - LEFT.tasks - 1000).to_string(),
        },
        "systemReserved": { "cpu": "100m", "memory": "64Mi", "pid": "1000" },
        "evictionHard": { "memory.available": "32Mi" },
        "enforceNodeAllocatable": enforce,
    });
    Ok(Settings { kubelet, ..Settings::default() })
}

fn machine() -> Result<Amounts> {
    let table = files::read("/proc/meminfo")?;
    let total = table.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let processors = files::read("/proc/cpuinfo")?.matches("processor\t").count();
    let number = |file: &str| -> Result<u64> { Ok(files::read(file)?.trim().parse()?) };
    Ok(Amounts {
        cpu_milli: u64::try_from(processors)? * 1000,
        memory_bytes: total.context("no MemTotal")?.parse::<u64>()? << 10,
        tasks: number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?),
    })
}

/// Shares of version 1, or the weight of version 2.
fn version(shares: u64, weight: u64) -> u64 {
    if cgroup::is_unified() { weight } else { shares }
}

fn bounds() -> Result<()> {
    let node = Node::start_with(&reserving_the_rest(&["pods"])?)?;
    let level = class_group(&node.world, "");
    // The threshold of evictions is kept free by evictions, not by the kernel.
    let wanted = Bounds {
        cpu: version(512, 59),
        quota_us: None,
        memory_bytes: Some(LEFT.memory_bytes),
        tasks: Some(LEFT.tasks),
    };
    // The level itself may not be there yet.
    eventually("the bounds", &Some(wanted), || Ok(level.bounds().ok()))?;
    node.end()
}

fn not_enforced() -> Result<()> {
    let node = Node::start_with(&reserving_the_rest(&[])?)?;
    let level = class_group(&node.world, "");
    let all = machine()?;
    eventually("the bounds", &Some((Some(all.memory_bytes), Some(all.tasks))), || {
        Ok(level.bounds().ok().map(|bounds| (bounds.memory_bytes, bounds.tasks)))
    })?;
    node.end()
}

/// A pod without bounds, one that asked for its memory, and a process of the system.
fn enforced() -> Result<()> {
    let node = Node::start_with(&reserving_the_rest(&["pods"])?)?;
    let level = class_group(&node.world, "");
    eventually("the bound", &Some(LEFT.memory_bytes), || {
        Ok(level.bounds().ok().and_then(|bounds| bounds.memory_bytes))
    })?;
    let keeps = json!({ "resources": { "limits": { "cpu": "100m", "memory": "64Mi" } } });
    // Holds some of what it asked for.
    let holds = "dd if=/dev/zero of=/dev/shm/held bs=1M count=24 2>/dev/null; exec sleep infinity";
    node.apply("keeps", &pod("keeps", json!({ "containers": [shell("main", holds, keeps)] })))?;
    let keeps = node.ready("keeps")?;
    let pid = task_pid(keeps.container_id("main")?)?;
    let mut system = Command::new("sleep").arg("infinity").stdin(Stdio::null()).spawn()?;
    let hog = shell("main", "exec tail /dev/zero", json!({}));
    node.apply("hog", &pod("hog", json!({ "restartPolicy": "Never", "containers": [hog] })))?;
    let hog = node.wait("hog", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    let ended = &hog.container("main")["state"]["terminated"];
    same(
        "how it ended",
        (ended["reason"].as_str(), ended["exitCode"].as_i64()),
        (Some("OOMKilled"), Some(137)),
    )?;
    ensure!(level.memory_refusals()? > 0, "the bound of all pods was not met");
    let now = node.ready("keeps")?;
    same("restarts", now.restarts("main"), 0)?;
    same("process of the pod that asked for its memory", task_pid(now.container_id("main")?)?, pid)?;
    ensure!(system.try_wait()?.is_none(), "a process of the system ended");
    system.kill()?;
    system.wait()?;
    node.end()
}
