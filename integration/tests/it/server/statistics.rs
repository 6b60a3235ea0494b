//! Statistics beside the files of cgroups that they are made of, whatever version these have and whoever makes them.

use anyhow::{Context, Result, ensure};
use berth_integration::cgroup::{self, Group};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use super::alone::Alone;
use crate::kit::{FOR_EVER, SOON, container_group, group, pod, shell, with};
use crate::suite::same;

/// Memory that a container may have, MiB.
const LIMIT: u64 = 64;
/// What a container has: bytes of anonymous memory and in its log, MiB in a volume and in its own layer.
const ANONYMOUS: u64 = 8 << 20;
const SAID: u64 = 3 << 20;
const STORED: u64 = 7;
const WRITTEN: u64 = 5;
/// What a container at rest may take or give back between two looks.
const AT_REST: u64 = 1 << 20;

pub(super) fn all() -> Result<()> {
    let alone = Alone::start()?;
    let limits = json!({ "resources": { "limits": { "cpu": "100m" } } });
    let burns = shell("burns", "trap 'exit 0' TERM; while :; do :; done", limits);
    // Files that nobody uses are none of the working set, and memory that is shared is.
    let script = format!(
        "dd if=/dev/urandom of=/dev/shm/held bs=1M count=16; held=$(tr '\\0' x </dev/zero | head -c {ANONYMOUS}); \
         dd if=/dev/urandom of=/v/stored bs=1M count={STORED}; dd if=/dev/urandom of=/written bs=1M count={WRITTEN}; \
         tr '\\0' x </dev/zero | head -c {SAID}; touch /ready; {FOR_EVER}"
    );
    // It asks no more when it was answered: what it runs would be one of the pod's processes.
    let ready = json!({ "exec": { "command": ["test", "-e", "/ready"] }, "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1000 });
    let more = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }], "startupProbe": ready });
    // A limit of its processor time would make a slow machine's writing slower still.
    let limits = json!({ "resources": { "limits": { "memory": format!("{LIMIT}Mi") } } });
    let holds = shell("holds", &script, with(limits, more));
    let volumes = json!([{ "name": "v", "emptyDir": {} }]);
    alone.run("shown", &pod("shown", json!({ "containers": [burns, holds], "volumes": volumes })))?;
    let state = alone.node.ready("shown")?;
    let world = &alone.node.world;
    let pod_group = group(world, &state)?;
    let [burns, holds] = ["burns", "holds"].map(|name| container_group(world, &state, name));
    let (burns, holds) = (burns?, holds?);

    let before = burns.cpu_us()?;
    let shown = wait::until("statistics that are younger", SOON, || {
        let shown = shown(&alone)?;
        let usage = &container(&shown, "burns")?["cpu"];
        let (total, rate) = (amount(&usage["usageCoreNanoSeconds"])?, amount(&usage["usageNanoCores"])?);
        Ok(if total / 1000 >= before && rate > 0 {
            Look::Ready(shown)
        } else {
            Look::NotYet(format!("{total} ns of {before} us, {rate}"))
        })
    })?;
    let burnt = amount(&container(&shown, "burns")?["cpu"]["usageCoreNanoSeconds"])? / 1000;
    ensure!(burnt <= burns.cpu_us()?, "{burnt} us are more than the kernel says");
    let rate = amount(&container(&shown, "burns")?["cpu"]["usageNanoCores"])?;
    ensure!(rate <= 120_000_000, "{rate} of 100,000,000 that it may use");

    memory(&container(&shown, "holds")?["memory"], &holds)?;
    ensure!(amount(&container(&shown, "holds")?["memory"]["workingSetBytes"])? >= 16 << 20, "{shown}");
    ensure!(amount(&container(&shown, "holds")?["memory"]["rssBytes"])? >= ANONYMOUS, "{shown}");
    let pod_memory = amount(&shown["memory"]["workingSetBytes"])?;
    near("working set of the pod", pod_memory, working_set(&pod_group)?)?;
    same("processes", amount(&shown["process_stats"]["process_count"])?, pod_group.members()?.len() as u64)?;
    for (name, has_pressure) in [
        ("cpu", has(&burns, "cpu.pressure")),
        ("memory", has(&burns, "memory.pressure")),
        ("io", has(&burns, "io.pressure")),
    ] {
        let shown = &container(&shown, "burns")?[name]["psi"]["some"]["total"];
        same(&format!("pressure of {name} is told"), shown.is_u64(), has_pressure)?;
    }
    disks(&alone)?;
    for (path, wanted) in [
        ("/metrics/resource", "container_memory_working_set_bytes{container=\"holds\","),
        ("/metrics/cadvisor", "container_spec_memory_limit_bytes{container=\"holds\","),
        ("/metrics/cadvisor", "container_cpu_cfs_throttled_periods_total{container=\"burns\","),
    ] {
        let text = alone.client.get(path)?.text();
        let line = text.lines().find(|line| line.starts_with(wanted));
        let line = line.with_context(|| format!("no {wanted} in {path}:\n{text}"))?;
        ensure!(!line.contains(" 0 "), "{line}");
    }
    alone.remove("shown")?;
    alone.end()
}

/// A container may write the hosts file, which is the node's: it is storage of the pod like any other.
pub(super) fn hosts() -> Result<()> {
    let alone = Alone::start()?;
    let script = format!("dd if=/dev/urandom of=/etc/hosts bs=1M count={STORED}; {FOR_EVER}");
    alone.run("shown", &pod("shown", json!({ "containers": [shell("main", &script, json!({}))] })))?;
    alone.node.ready("shown")?;
    wait::until("what was written to count", SOON, || {
        let used = &shown(&alone)?["ephemeral-storage"]["usedBytes"];
        let counts = used.as_u64().is_some_and(|used| used >= STORED << 20);
        Ok(if counts { Look::Ready(()) } else { Look::NotYet(used.to_string()) })
    })?;
    alone.remove("shown")?;
    alone.end()
}

/// What the summary has of the pod.
fn shown(alone: &Alone) -> Result<Value> {
    let answer = alone.client.get("/stats/summary")?;
    ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
    let summary: Value = serde_json::from_slice(&answer.body).context("the summary is no JSON")?;
    let name = alone.pod("shown");
    let mut pods = summary["pods"].as_array().into_iter().flatten();
    Ok(pods.find(|pod| pod["podRef"]["name"] == name.as_str()).cloned().unwrap_or_default())
}

fn container<'a>(pod: &'a Value, name: &str) -> Result<&'a Value> {
    let mut all = pod["containers"].as_array().into_iter().flatten();
    all.find(|one| one["name"] == name).with_context(|| format!("no container {name} in {pod}"))
}

fn amount(value: &Value) -> Result<u64> {
    value.as_u64().with_context(|| format!("{value} is no number"))
}

fn memory(shown: &Value, group: &Group) -> Result<()> {
    let told = |field: &str| amount(&shown[field]).with_context(|| format!("{field} in {shown}"));
    let (usage, anonymous, faults) = if cgroup::is_unified() {
        (group.read("memory.current")?.parse()?, "anon", "pgfault")
    } else {
        (group.read("memory.usage_in_bytes")?.parse()?, "total_rss", "total_pgfault")
    };
    near("memory in use", told("usageBytes")?, usage)?;
    near("working set", told("workingSetBytes")?, working_set(group)?)?;
    near("anonymous memory", told("rssBytes")?, group.count("memory.stat", anonymous)?)?;
    same("what is left", told("availableBytes")?, (LIMIT << 20) - told("workingSetBytes")?)?;
    let (told, counted) = (told("pageFaults")?, group.count("memory.stat", faults)?);
    ensure!(0 < told && told <= counted, "{told} page faults of {counted}");
    Ok(())
}

/// What is on disks is measured once somebody has asked.
fn disks(alone: &Alone) -> Result<()> {
    let figures = wait::until("what is on disks to be measured", SOON, || {
        let shown = shown(alone)?;
        let holds = container(&shown, "holds")?;
        let figures = [
            &shown["volume"][0]["usedBytes"],
            &holds["rootfs"]["usedBytes"],
            &holds["logs"]["usedBytes"],
            &shown["ephemeral-storage"]["usedBytes"],
        ];
        let figures = figures.map(Value::as_u64);
        Ok(match figures {
            [Some(volume), Some(layer), Some(log), Some(all)] => Look::Ready([volume, layer, log, all]),
            _ => Look::NotYet(format!("{figures:?}")),
        })
    })?;
    let [volume, layer, log, all] = figures;
    near("the volume", volume, STORED << 20)?;
    near("the writable layer", layer, WRITTEN << 20)?;
    // Each part of a line has a head of its own.
    ensure!((SAID..SAID + (SAID >> 4)).contains(&log), "{log} bytes in the log, of which {SAID} were said");
    near("all of it", all, volume + layer + log)
}

/// Source: `setMemoryStats` of cAdvisor's `container/libcontainer/handler.go`.
fn working_set(group: &Group) -> Result<u64> {
    let (usage, inactive) = if cgroup::is_unified() {
        ("memory.current", "inactive_file")
    } else {
        ("memory.usage_in_bytes", "total_inactive_file")
    };
    let usage: u64 = group.read(usage)?.parse()?;
    Ok(usage.saturating_sub(group.count("memory.stat", inactive)?))
}

fn near(what: &str, told: u64, read: u64) -> Result<()> {
    ensure!(told.abs_diff(read) <= AT_REST, "{what}: {told} is told, and the kernel says {read}");
    Ok(())
}

fn has(group: &Group, file: &str) -> bool {
    group.dir("memory").join(file).exists()
}
