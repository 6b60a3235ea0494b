//! What is written into the cgroups of pods, on either version of the hierarchy, beside what the kubelet would write.
//!
//! Source: kubernetes 1.36 `pkg/kubelet/cm/helpers_linux.go`, `pkg/kubelet/qos/policy.go`; every number is written out.

mod shapes;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::cgroup::{self, Bounds, Group};
use berth_integration::containerd::ctr;
use berth_integration::files;
use berth_integration::node::{Node, PodState};
use berth_integration::systemd;
use serde_json::{Value, json};

use self::shapes::{Cpu, LEAST, Level, M50, M90, M130, M476, Shape, UNBOUND, limited, sleeps};
use crate::kit::{class_group, container_group, eventually, group, pod, task_pid};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("cgroup_files::of_pods_of_every_shape", shapes),
        test("cgroup_files::of_a_class_follow_its_pods", class_follows),
        test("cgroup_files::of_memory_that_is_protected", protection),
        test("cgroup_files::cve_2024_3154_and_cve_2022_0532_annotations_set_nothing", annotations),
    ]
}

const PIDS_MAX: u64 = 77;
/// For eleven pods at once with little CPU time for their OCI runtimes.
const LONG: Duration = Duration::from_secs(120);

fn shapes() -> Result<()> {
    let node =
        Node::start_with(&Settings { kubelet: json!({ "podPidsLimit": PIDS_MAX }), ..Settings::default() })?;
    let shapes = shapes::all();
    for shape in &shapes {
        node.apply(shape.name, &pod(shape.name, shape.spec.clone()))?;
    }
    for shape in &shapes {
        let state = node.wait(shape.name, "Ready", LONG, PodState::is_ready)?;
        same(shape.name, state.0["status"]["qosClass"].as_str(), Some(shape.class))?;
        check_shape(&node, shape, &state).with_context(|| shape.name.to_owned())?;
    }
    // The levels above pods are written beside them.
    for (class, level) in [("burstable", (M476, None, None)), ("besteffort", UNBOUND)] {
        eventually(class, &wanted(level, None), || class_group(&node.world, class).bounds())?;
    }
    check_scores(&node)?;
    node.end()
}

fn check_shape(node: &Node, shape: &Shape, state: &PodState) -> Result<()> {
    let group = group(&node.world, state)?;
    check("the pod", group.bounds()?, shape.pod, Some(PIDS_MAX))?;
    no_huge_pages(&group)?;
    for (name, level) in shape.containers {
        let own = container_group(&node.world, state, name)?;
        check_container(name, own.bounds()?, *level)?;
        check_kills_and_swap(&own, level.2)?;
        no_huge_pages(&own)?;
        same("processes", own.members()?, vec![task_pid(state.container_id(name)?)?])?;
    }
    // Containers that ended have none, some time after their end.
    eventually("groups below the pod", &shape.containers.len(), || group.children())
}

/// systemd bounds CPU time in whole percents.
fn wanted(level: Level, tasks: Option<u64>) -> Bounds {
    let (cpu, quota_us, memory_mib) = level;
    let quota_us =
        if systemd::is_here() { quota_us.map(|time| time.next_multiple_of(1000)) } else { quota_us };
    Bounds {
        cpu: if cgroup::is_unified() { cpu.weight } else { cpu.shares },
        quota_us,
        memory_bytes: memory_mib.map(|mib| mib << 20),
        tasks,
    }
}

fn check(what: &str, found: Bounds, level: Level, tasks: Option<u64>) -> Result<()> {
    same(what, found, wanted(level, tasks))
}

/// The OCI runtime writes a container's, and each release has its own way from shares to a weight. systemd gives every scope
/// its `DefaultTasksMax`.
fn check_container(what: &str, found: Bounds, level: Level) -> Result<()> {
    let mut wanted = wanted(level, found.tasks.filter(|_| systemd::is_here()));
    if cgroup::is_unified() && found.cpu == level.0.old_weight {
        wanted.cpu = found.cpu;
    }
    same(what, found, wanted)
}

/// Processes of a container are killed together where the kernel can do that, and nothing is swapped out where it counts that.
fn check_kills_and_swap(group: &Group, memory_mib: Option<u64>) -> Result<()> {
    // In systemd's scope crun makes a level of its own, where it writes what systemd does not know.
    let [group, inner] = [group.clone(), group.below("container")];
    let group = if inner.dir("memory").is_dir() { inner } else { group };
    let has = |file: &str| group.dir("memory").join(file).exists();
    if cgroup::is_unified() {
        same("kills", group.read("memory.oom.group")?.as_str(), "1")?;
        if has("memory.swap.max") {
            same("swap", group.read("memory.swap.max")?.as_str(), "0")?;
        }
    } else if has("memory.memsw.limit_in_bytes") {
        // Memory and swap together.
        same("swap", group.amount("memory.memsw.limit_in_bytes")?, memory_mib.map(|mib| mib << 20))?;
    }
    Ok(())
}

/// Nobody asked for huge pages: where the kernel counts them, none may be had, of any size that the machine has.
fn no_huge_pages(group: &Group) -> Result<()> {
    let file = if cgroup::is_unified() { "max" } else { "limit_in_bytes" };
    for (size, name) in [("2048kB", "2MB"), ("1048576kB", "1GB")] {
        let has_size = fs::exists(format!("/sys/kernel/mm/hugepages/hugepages-{size}"))?;
        if has_size && group.dir("hugetlb").join(format!("hugetlb.{name}.{file}")).exists() {
            same(name, group.read(&format!("hugetlb.{name}.{file}"))?.as_str(), "0")?;
        }
    }
    Ok(())
}

/// Who asked for much of the node's memory is killed late, who asked for none first.
fn check_scores(node: &Node) -> Result<()> {
    let table = files::read("/proc/meminfo")?;
    let total = table.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let total: i64 = total.context("no MemTotal")?.parse()?;
    // Without the capability the agent, a child of this process, cannot give less than it was given itself.
    let floor = if may_lower_scores()? { -1000 } else { score("self")? };
    for (name, wanted) in
        [("two", floor.max(-997)), ("nothing", 1000), ("requests", 1000 - 1000 * (512 << 10) / total)]
    {
        let pod = node.ready(name)?;
        same(name, score(&task_pid(pod.container_id("a")?)?.to_string())?, wanted)?;
    }
    Ok(())
}

/// Whether CAP_SYS_RESOURCE is held.
pub(crate) fn may_lower_scores() -> Result<bool> {
    let status = files::read("/proc/self/status")?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).context("no CapEff")?;
    Ok(u64::from_str_radix(held.trim(), 16)? >> 24 & 1 == 1)
}

pub(crate) fn score(process: &str) -> Result<i64> {
    Ok(files::read(format!("/proc/{process}/oom_score_adj"))?.trim().parse()?)
}

/// The level of all Burstable pods has what they ask for together, now.
fn class_follows() -> Result<()> {
    let node = Node::start()?;
    let burstable = class_group(&node.world, "burstable");
    let together = |what: &str, cpu: Cpu| {
        let wanted = wanted((cpu, None, None), None);
        eventually(what, &wanted, || burstable.bounds())
    };
    for (name, milli) in [("small", "40m"), ("large", "90m")] {
        let main = sleeps("main", json!({ "requests": { "cpu": milli } }));
        node.apply(name, &pod(name, json!({ "containers": [main] })))?;
    }
    node.ready("small")?;
    node.ready("large")?;
    together("both", M130)?;
    node.remove("small")?;
    node.gone("small")?;
    together("one", M90)?;
    node.remove("large")?;
    node.gone("large")?;
    together("none", LEAST)?;
    node.end()
}

/// Only version 2 can protect memory, and slow down who comes near a limit.
fn protection() -> Result<()> {
    const MIB: u64 = 1 << 20;
    let node = Node::start_with(&Settings {
        kubelet: json!({
            "featureGates": { "MemoryQoS": true },
            "memoryReservationPolicy": "TieredReservation",
        }),
        ..Settings::default()
    })?;
    for (name, resources) in [
        ("sure", json!({ "limits": { "cpu": "50m", "memory": "24Mi" } })),
        ("burst", json!({ "requests": { "memory": "16Mi" }, "limits": { "memory": "32Mi" } })),
        ("best", json!({})),
    ] {
        node.apply(name, &pod(name, json!({ "containers": [sleeps("main", resources)] })))?;
    }
    // A tenth of the way from request to limit is left, less than a page of 4 KiB above.
    let high = Some(31_875_072);
    for (name, min, low, high) in
        [("sure", 24 * MIB, 0, None), ("burst", 0, 16 * MIB, high), ("best", 0, 0, None)]
    {
        let state = node.ready(name)?;
        let level = group(&node.world, &state)?;
        let own = container_group(&node.world, &state, "main")?;
        if cgroup::is_unified() {
            check_protection(name, &level, (min, low))?;
            check_protection(name, &own, (min, low))?;
            same(name, own.amount("memory.high")?, high)?;
            same(name, level.amount("memory.high")?, None)?;
        } else {
            same(name, own.amount("memory.soft_limit_in_bytes")?, None)?;
        }
    }
    if cgroup::is_unified() {
        // A level protects no more than the levels above it do.
        for (class, wanted) in
            [("", (40 * MIB, 16 * MIB)), ("burstable", (0, 16 * MIB)), ("besteffort", (0, 0))]
        {
            let what = format!("the sum of {class:?}");
            eventually(&what, &wanted, || protected(&class_group(&node.world, class)))?;
        }
    }
    node.end()
}

fn check_protection(what: &str, group: &Group, wanted: (u64, u64)) -> Result<()> {
    same(what, protected(group)?, wanted)
}

/// Whatever happens, and as long as there is other memory to take.
fn protected(group: &Group) -> Result<(u64, u64)> {
    Ok((group.read("memory.min")?.parse()?, group.read("memory.low")?.parse()?))
}

/// systemd and crun have annotations that set properties of scopes and more: a pod's reach neither.
fn annotations() -> Result<()> {
    let node = Node::start()?;
    let hostile = json!({
        "org.systemd.property.MemoryMax": "1073741824",
        "org.systemd.property.TasksMax": "'infinity'",
        "org.systemd.property.CollectMode": "'inactive-or-failed'\n",
        "run.oci.delegate-cgroup": "/",
        "run.oci.systemd.subgroup": "mine",
        "io.kubernetes.cri.sandbox-cpu-quota": "-1",
    });
    let main = limited("main", "50m", "16Mi");
    let mut manifest: Value = serde_json::from_str(&pod("hostile", json!({ "containers": [main] })))?;
    manifest["metadata"]["annotations"] = hostile.clone();
    node.apply("hostile", &manifest.to_string())?;
    let state = node.ready("hostile")?;
    let id = state.container_id("main")?;
    let shown: Value = serde_json::from_str(&ctr(&["containers", "info", id])?)?;
    let given = shown["Spec"]["annotations"].as_object().context("no annotations")?;
    for (key, value) in hostile.as_object().into_iter().flatten() {
        ensure!(given.get(key) != Some(value), "{key} reached the OCI runtime");
    }
    const LEVEL: Level = (M50, Some(5000), Some(16));
    check("the pod", group(&node.world, &state)?.bounds()?, LEVEL, None)?;
    let own = container_group(&node.world, &state, "main")?;
    check_container("main", own.bounds()?, LEVEL)?;
    ensure!(own.below("mine").dirs()?.is_empty(), "a group was made for an annotation");
    node.end()
}
