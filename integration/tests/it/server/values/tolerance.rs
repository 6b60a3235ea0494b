//! By how much a value may be otherwise than the kubelet's, by what it is: everything that both nodes tell is compared.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::{BURNS, LONGEST_LOOK, MEMORY_TOLERANCE, RATE_TOLERANCE};

/// Two looks, each of which may be the longest one away from the answer.
const LOOKS: f64 = 2.0 * LONGEST_LOOK as f64;
const MEBIBYTE: f64 = (1 << 20) as f64;
/// Between the starts of the same pod on both nodes, seconds.
const STARTS: f64 = 30.0;
/// What an OCI runtime and a pause container take, beside the pod's own processes: processor seconds, page faults.
const AROUND: (f64, f64) = (0.5, 5_000.0);
/// Of a file system that the whole machine writes to: bytes, inodes.
const SHARED_DISK: (f64, f64) = (256.0 * MEBIBYTE, 20_000.0);
/// Of memory that the whole machine uses.
const SHARED_MEMORY: f64 = 1024.0 * MEBIBYTE;
/// What discovery of neighbours sends in the meantime.
const TRAFFIC: f64 = 64.0 * 1024.0;

/// What a difference is judged by.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Judge {
    /// They are equal.
    Equal,
    /// They differ by no more than this.
    Within(f64),
    /// The same, and neither is zero unless both are.
    Alike(f64),
    /// Moments that are no more seconds apart.
    Moments(f64),
    /// Each node has its own.
    Own,
}

/// What both summaries have, and otherwise than they may. Keys are paths.
pub(super) fn summaries(ours: &BTreeMap<String, Value>, theirs: &BTreeMap<String, Value>) -> Vec<String> {
    let both = ours.iter().filter_map(|(path, ours)| Some((path, ours, theirs.get(path)?)));
    both.filter_map(|(path, ours, theirs)| judged(path, ours, theirs)).collect()
}

/// What both have of `/metrics/resource`, and otherwise than they may.
pub(super) fn series(name: &str, ours: f64, theirs: f64) -> Option<String> {
    let metric = name.split('{').next().unwrap_or(name);
    let judge = match metric {
        "resource_scrape_error" | "scrape_error" => Judge::Equal,
        "container_start_time_seconds" => Judge::Alike(STARTS),
        "node_cpu_usage_seconds_total" => Judge::Alike(LOOKS * processors()),
        "node_memory_working_set_bytes" => Judge::Alike(SHARED_MEMORY),
        _ if metric.ends_with("_cpu_usage_seconds_total") => Judge::Alike(BURNS * LOOKS + AROUND.0),
        _ if metric.ends_with("_memory_working_set_bytes") => Judge::Alike(memory()),
        _ if metric.contains("_swap_") => Judge::Within(MEBIBYTE),
        _ => return Some(format!("nothing says how near {name} has to be")),
    };
    compared(name, &Value::from(ours), &Value::from(theirs), judge)
}

fn judged(path: &str, ours: &Value, theirs: &Value) -> Option<String> {
    let Some(judge) = judge(path) else { return Some(format!("nothing says how near {path} has to be")) };
    compared(path, ours, theirs, judge)
}

fn compared(path: &str, ours: &Value, theirs: &Value, judge: Judge) -> Option<String> {
    let differs = match judge {
        Judge::Own => false,
        Judge::Equal => ours != theirs,
        Judge::Moments(seconds) => apart(ours, theirs).is_none_or(|apart| apart > seconds),
        Judge::Within(most) | Judge::Alike(most) => {
            let (ours, theirs) = (ours.as_f64(), theirs.as_f64());
            let only_one_is_zero = (ours == Some(0.0)) != (theirs == Some(0.0));
            let is_near = ours.zip(theirs).is_some_and(|(ours, theirs)| (ours - theirs).abs() <= most);
            !is_near || (judge == Judge::Alike(most) && only_one_is_zero)
        }
    };
    differs.then(|| format!("{path}: ours is {ours}, theirs {theirs}, judged by {judge:?}"))
}

fn judge(path: &str) -> Option<Judge> {
    let parts: Vec<&str> = path.split('/').collect();
    let (&field, above) = parts.split_last()?;
    let group = above.last().copied().unwrap_or_default();
    let is_machine = above.first() == Some(&"node") && !above.contains(&"pods");
    Some(match field {
        "nodeName" | "uid" => Judge::Own,
        "name" | "namespace" | "capacityBytes" | "inodes" | "maxpid" | "process_count" | "rxErrors"
        | "txErrors" => Judge::Equal,
        "startTime" => Judge::Moments(STARTS),
        "time" => Judge::Moments(LOOKS),
        "swapAvailableBytes" | "swapUsageBytes" => Judge::Within(MEBIBYTE),
        "rxBytes" | "txBytes" => Judge::Alike(TRAFFIC),
        "majorPageFaults" if !is_machine => Judge::Within(50.0),
        "pageFaults" if !is_machine => Judge::Within(AROUND.1),
        "pageFaults" | "majorPageFaults" => Judge::Within(AROUND.1 * LOOKS),
        "curproc" => Judge::Alike(500.0),
        "usageNanoCores" if is_machine => Judge::Alike(processors() * 1e9),
        "usageNanoCores" => Judge::Within(BURNS * 1e9 * RATE_TOLERANCE),
        "usageCoreNanoSeconds" if is_machine => Judge::Alike(processors() * LOOKS * 1e9),
        "usageCoreNanoSeconds" => Judge::Alike((BURNS * LOOKS + AROUND.0) * 1e9),
        "workingSetBytes" | "usageBytes" | "rssBytes" if is_machine => Judge::Alike(SHARED_MEMORY),
        "workingSetBytes" | "usageBytes" | "rssBytes" => Judge::Alike(memory()),
        "availableBytes" if group == "memory" && is_machine => Judge::Alike(SHARED_MEMORY),
        "availableBytes" if group == "memory" => Judge::Alike(memory()),
        "availableBytes" => Judge::Alike(SHARED_DISK.0),
        "inodesFree" => Judge::Alike(SHARED_DISK.1),
        // Both have pulled the same images.
        "usedBytes" if above.contains(&"runtime") => Judge::Alike(memory()),
        "usedBytes" if is_machine => Judge::Alike(SHARED_DISK.0),
        "inodesUsed" if is_machine => Judge::Alike(SHARED_DISK.1),
        // A block for each file and directory at most, of which a pod has some.
        "usedBytes" => Judge::Alike(16.0 * 4096.0),
        "inodesUsed" => Judge::Alike(2.0),
        _ if above.contains(&"psi") => Judge::Own,
        _ => return None,
    })
}

fn memory() -> f64 {
    MEMORY_TOLERANCE as f64 * MEBIBYTE
}

fn processors() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

fn apart(ours: &Value, theirs: &Value) -> Option<f64> {
    let moment = |value: &Value| value.as_str()?.parse::<Timestamp>().ok();
    Some(moment(ours)?.duration_since(moment(theirs)?).as_secs_f64().abs())
}
