//! What Berth measures beside what the kubelet measures: the same pods on a node of each, in one cluster. Every series of
//! `/metrics/resource` and every field of `/stats/summary` of the kubelet is there, with its values.

mod tolerance;

use std::collections::BTreeMap;
use std::thread;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::NODE_NAME;
use berth_integration::wait::{self, Look};
use berth_integration::{cgroup, cluster, components, files, kubelet};
use serde_json::{Value, json};

use super::Served;
use crate::kit::{FOR_EVER, SOON, measured, shell, with};

const NODES: [&str; 2] = [NODE_NAME, kubelet::NODE_NAME];

/// Fields of `/stats/summary` that are not there where cgroups have no pressure, by a part of their path. docs/differences.md has them.
const NOT_OURS: [&str; 2] = ["psi", "io"];

/// The kubelet looks at a container every 10 s (`housekeepingInterval` of cAdvisor), at one that changes little every 15 s, and
/// gives a rate over the time between two looks: after two of the longest, everything that it tells is of the load.
const LONGEST_LOOK: u64 = 15;
/// What a burning container may use, of a processor.
const BURNS: f64 = 0.1;
/// Of a period of 100 ms in which it may run for 10 ms, a look may meet the beginning or the end: at most one period more or less in
/// the shortest time between two looks, 10 s, is a hundredth; and the time of a look is that at which it was begun, up to half a
/// second early of ten on a busy machine. Together less than a tenth.
const RATE_TOLERANCE: f64 = 0.1;
/// Of a container that holds memory, MiB.
const HELD: u64 = 32;
/// What the page cache has of a container's image beside that depends on who has read it first, MiB.
const MEMORY_TOLERANCE: u64 = 4;
/// What is measured once somebody has asked, and what is the difference of two looks.
const MEASURED_LATE: [&str; 5] = [
    "pods/burns/containers/main/cpu/usageNanoCores",
    "pods/burns/network/interfaces/eth0/rxBytes",
    "pods/holds/volume/v/usedBytes",
    "pods/holds/containers/main/rootfs/usedBytes",
    "pods/holds/containers/main/logs/usedBytes",
];
/// Memory of no file, 8 MiB of it.
const ANONYMOUS: &str = "held=$(tr '\\0' x </dev/zero | head -c 8388608)";
/// In a volume, MiB.
const STORED: u64 = 8;

/// A series without the name of its node.
type Series = BTreeMap<String, Sample>;

/// Its value, and when that was measured, in milliseconds.
#[derive(Debug, Clone, Copy)]
struct Sample {
    value: f64,
    at: Option<f64>,
}

pub(super) fn all() -> Result<()> {
    let configuration = json!({ "volumeStatsAggPeriod": "5s" });
    let served = Served::start_beside(&cluster::Settings::asking_nodes(), &configuration, true)?;
    for node in NODES {
        served.cluster.wait_for(&format!("/api/v1/nodes/{node}"), "ready", crate::api_pods::is_ready)?;
        for (name, spec) in pods() {
            served.create_on(node, &format!("{name}-{node}"), spec)?;
        }
    }
    for (name, _) in pods() {
        for node in NODES {
            served.ready(&format!("{name}-{node}"))?;
        }
    }
    let first = two(|node| series(&served, node))?;
    // Who asks first has what is on disks measured from then on.
    two(|node| summary(&served, node))?;
    // Both have looked twice since everything runs; nothing is to be seen sooner.
    thread::sleep(std::time::Duration::from_secs(2 * LONGEST_LOOK));
    let measured_all = |node: &str| {
        let summary = summary(&served, node)?;
        let missing = MEASURED_LATE.into_iter().find(|path| number(&summary, path).is_none());
        Ok(missing.map_or(Look::Ready(summary), |path| Look::NotYet(format!("no {path}"))))
    };
    let summaries = two(|node| wait::until("the summary to be whole", SOON, || measured_all(node)))?;
    let second = two(|node| series(&served, node))?;
    let mut differences = all_series(&second);
    differences.extend(fields(&summaries));
    differences.extend(values_of_series(&first, &second));
    differences.extend(values_of_summaries(&summaries));
    differences.extend(untold()?);
    ensure!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    served.end()
}

/// One that burns what it may, one that holds memory and files, one on the network of its node.
fn pods() -> Vec<(&'static str, Value)> {
    let limits =
        json!({ "resources": { "limits": { "cpu": format!("{}m", BURNS * 1e3), "memory": "64Mi" } } });
    let burns = shell("main", "trap 'exit 0' TERM; while :; do :; done", limits);
    let first = json!({ "initContainers": [shell("first", "true", json!({}))] });
    let holds = format!(
        "dd if=/dev/urandom of=/dev/shm/held bs=1M count={HELD} && dd if=/dev/urandom of=/v/stored bs=1M count={STORED} && \
         dd if=/dev/urandom of=/written bs=1M count={STORED}; {ANONYMOUS}; {FOR_EVER}"
    );
    let holds = shell("main", &holds, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }));
    let beside = shell("beside", FOR_EVER, json!({}));
    let volumes = json!([{ "name": "v", "emptyDir": {} }]);
    vec![
        ("burns", with(json!({ "containers": [burns] }), first)),
        ("holds", json!({ "containers": [holds, beside], "volumes": volumes })),
        ("host", json!({ "hostNetwork": true, "containers": [shell("main", FOR_EVER, json!({}))] })),
    ]
}

/// Of both nodes at once.
fn two<T: Send>(of: impl Fn(&str) -> Result<T> + Sync) -> Result<[T; 2]> {
    thread::scope(|scope| {
        let [ours, theirs] = NODES.map(|node| {
            scope.spawn({
                let of = &of;
                move || of(node)
            })
        });
        let joined = |one: thread::ScopedJoinHandle<'_, Result<T>>| one.join().ok().context("it panicked")?;
        Ok([joined(ours).context("of Berth")?, joined(theirs).context("of the kubelet")?])
    })
}

fn series(served: &Served, node: &str) -> Result<Series> {
    let answer = served.asked_of(node, "metrics/resource")?;
    ensure!(answer.status == 200, "metrics/resource of {node}: {} {}", answer.status, answer.text());
    let text = answer.text().replace(&format!("-{node}\""), "\"");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| sample(line).with_context(|| format!("no sample: {line:?}"))).collect()
}

/// `name{labels} value [milliseconds]`, with the labels in order.
fn sample(line: &str) -> Option<(String, Sample)> {
    let (name, numbers) = match line.split_once('}') {
        Some((name, numbers)) => {
            let (name, labels) = name.split_once('{')?;
            let mut labels: Vec<&str> = labels.split(',').collect();
            labels.sort_unstable();
            (format!("{name}{{{}}}", labels.join(",")), numbers)
        }
        None => {
            let (name, numbers) = line.split_once(' ')?;
            (name.to_owned(), numbers)
        }
    };
    let mut numbers = numbers.split_whitespace();
    let value = numbers.next()?.parse().ok()?;
    Some((name, Sample { value, at: numbers.next().and_then(|at| at.parse().ok()) }))
}

/// Those that are missing, and those that have other values.
fn all_series([ours, theirs]: &[Series; 2]) -> Vec<String> {
    let missing = theirs.keys().filter(|name| !ours.contains_key(*name));
    let missing = missing.map(|name| format!("no series {name}"));
    let both = ours.iter().filter_map(|(name, ours)| Some((name, ours.value, theirs.get(name)?.value)));
    missing.chain(both.filter_map(|(name, ours, theirs)| tolerance::series(name, ours, theirs))).collect()
}

/// The summary with pods, containers, volumes and the like by their names, and without the name of the node.
fn summary(served: &Served, node: &str) -> Result<Value> {
    let answer = served.asked_of(node, "stats/summary")?;
    ensure!(answer.status == 200, "stats/summary of {node}: {} {}", answer.status, answer.text());
    let text = answer.text().replace(&format!("-{node}\""), "\"");
    Ok(by_name(&serde_json::from_str(&text).context("the summary is no JSON")?))
}

/// Lists of things that have names as maps.
fn by_name(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), by_name(value))).collect())
        }
        Value::Array(all) => {
            let named = |one: &Value| {
                let name = one["name"].as_str().or(one["podRef"]["name"].as_str());
                name.unwrap_or_default().to_owned()
            };
            Value::Object(all.iter().map(|one| (named(one), by_name(one))).collect())
        }
        other => other.clone(),
    }
}

/// Everything that is no map, by its path.
fn leaves(value: &Value, at: &str, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| leaves(value, &format!("{at}/{key}"), all)),
        _ => {
            all.insert(at.trim_start_matches('/').to_owned(), value.clone());
        }
    }
}

/// Those that are missing, and those that have other values.
fn fields(summaries: &[Value; 2]) -> Vec<String> {
    let [ours, theirs] = summaries.each_ref().map(|summary| {
        let mut all = BTreeMap::new();
        leaves(summary, "", &mut all);
        all
    });
    let has_pressure = cgroup::is_unified();
    let is_known = |path: &String| path.split('/').any(|part| NOT_OURS.contains(&part)) && !has_pressure;
    // Links of pods and containers have other names on each node, and those of the other's are there too.
    let missing = theirs.keys().filter(|path| !ours.contains_key(*path) && !path.contains("/interfaces/"));
    let missing =
        missing.filter(|path| !is_known(path)).map(|path| format!("no field {path} of the summary"));
    missing.chain(tolerance::summaries(&ours, &theirs)).collect()
}

fn number(value: &Value, path: &str) -> Option<f64> {
    value.pointer(&format!("/{path}"))?.as_f64()
}

/// Both differ by no more than so much.
fn near(what: &str, values: [Option<f64>; 2], tolerance: f64) -> Option<String> {
    let [Some(ours), Some(theirs)] = values else { return Some(format!("{what}: {values:?}")) };
    measured(&format!("{what}: {ours} of ours, {theirs} of the kubelet's"));
    let is_near = (ours - theirs).abs() <= tolerance;
    (!is_near)
        .then(|| format!("{what}: ours is {ours}, theirs {theirs}, which differ by more than {tolerance}"))
}

fn values_of_series(first: &[Series; 2], second: &[Series; 2]) -> Vec<String> {
    let of_main =
        |name: &str, pod: &str| format!("{name}{{container=\"main\",namespace=\"default\",pod=\"{pod}\"}}");
    let at = |all: &[Series; 2], name: &str| all.each_ref().map(|series| series.get(name).copied());
    let values = |name: &str| at(second, name).map(|sample| Some(sample?.value));
    let mut found = Vec::new();
    // Over the times that the samples themselves have.
    let burns = of_main("container_cpu_usage_seconds_total", "burns");
    let (before, after) = (at(first, &burns), at(second, &burns));
    let rate = |side: usize| {
        let (before, after) = (before[side]?, after[side]?);
        (after.at? > before.at?).then_some((after.value - before.value) / (after.at? - before.at?) * 1e3)
    };
    found.extend(near("processor time of `burns`", [rate(0), rate(1)], BURNS * RATE_TOLERANCE));
    let mebibytes = |count: u64| (count << 20) as f64;
    let held = values(&of_main("container_memory_working_set_bytes", "holds"));
    found.extend(near("memory of `holds`", held, mebibytes(MEMORY_TOLERANCE)));
    if held[0].is_none_or(|held| held < mebibytes(HELD)) {
        found.push(format!("`holds` has {HELD} MiB, and is said to have {:?}", held[0]));
    }
    // Both measure the same machine. It can use no more between the two looks than it has processors.
    let processors = thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    let node = at(second, "node_cpu_usage_seconds_total");
    let apart = node.map(|sample| sample.and_then(|sample| sample.at));
    let apart = apart[0].zip(apart[1]).map_or(0.0, |(ours, theirs)| (ours - theirs).abs() / 1e3);
    found.extend(near(
        "processor time of the node",
        values("node_cpu_usage_seconds_total"),
        (apart + 0.1) * processors,
    ));
    found
}

fn values_of_summaries(summaries: &[Value; 2]) -> Vec<String> {
    let values = |path: &str| summaries.each_ref().map(|summary| number(summary, path));
    let mebibytes = |count: u64| (count << 20) as f64;
    let rate = values("pods/burns/containers/main/cpu/usageNanoCores");
    let all = [
        near("rate of `burns`", rate, BURNS * 1e9 * RATE_TOLERANCE),
        near(
            "memory of `holds`",
            values("pods/holds/containers/main/memory/workingSetBytes"),
            mebibytes(MEMORY_TOLERANCE),
        ),
        // A block of the file system for each directory and file at most.
        near("the volume of `holds`", values("pods/holds/volume/v/usedBytes"), 4.0 * 4096.0),
        near(
            "what `holds` has written",
            values("pods/holds/containers/main/rootfs/usedBytes"),
            16.0 * 4096.0,
        ),
        near("memory of the machine", summed(summaries), mebibytes(64)),
    ];
    all.into_iter().flatten().collect()
}

/// What is available and what is used of the node's memory.
fn summed(summaries: &[Value; 2]) -> [Option<f64>; 2] {
    summaries.each_ref().map(|summary| {
        let of = |field: &str| number(summary, &format!("node/memory/{field}"));
        Some(of("availableBytes")? + of("workingSetBytes")?)
    })
}

/// What is not here, and of which docs/differences.md says nothing.
fn untold() -> Result<Vec<String>> {
    let page = files::read(components::workspace().join("docs/differences.md"))?;
    let untold = NOT_OURS.into_iter().filter(|what| !page.contains(&format!("`{what}`")));
    Ok(untold.map(|what| format!("docs/differences.md does not say that there is no {what}")).collect())
}
