//! `/metrics/resource`. Source: `pkg/kubelet/metrics/collectors/resource_metrics.go`.

use jiff::Timestamp;

use super::{
    exposition::{Exposition, Kind, Labels},
    summary::{ContainerStats, PodStats, Summary, SwapStats, Time},
};

/// A value, and the time it is of.
type Value = (f64, Option<Timestamp>);

/// A family of containers.
type OfContainer = (&'static str, &'static str, Kind, fn(&ContainerStats) -> Option<Value>);

/// A family of pods.
type OfPod = (&'static str, &'static str, Kind, fn(&PodStats) -> Option<Value>);

const CONTAINERS: [OfContainer; 5] = [
    (
        "container_cpu_usage_seconds_total",
        "Processor time of a container, in seconds.",
        Kind::Counter,
        |stats| stats.cpu.as_ref().and_then(|cpu| seconds(cpu.time, cpu.usage_core_nano_seconds)),
    ),
    (
        "container_memory_working_set_bytes",
        "Memory of a container without inactive pages of files, in bytes.",
        Kind::Gauge,
        |stats| stats.memory.as_ref().and_then(|memory| number(memory.time, memory.working_set_bytes)),
    ),
    (
        "container_start_time_seconds",
        "When a container began, in seconds since 1970.",
        Kind::Gauge,
        |stats| {
            let start = stats.start_time.0.filter(|start| start.as_second() > 0)?;
            let nanos = start.as_nanosecond() as f64;
            Some((nanos / 1e9, None))
        },
    ),
    ("container_swap_limit_bytes", "Swap that a container may use, in bytes.", Kind::Gauge, |stats| {
        stats.swap.as_ref().and_then(swap_limit)
    }),
    ("container_swap_usage_bytes", "Swap that a container uses, in bytes.", Kind::Gauge, |stats| {
        stats.swap.as_ref().and_then(|swap| number(swap.time, swap.swap_usage_bytes))
    }),
];

const PODS: [OfPod; 3] = [
    ("pod_cpu_usage_seconds_total", "Processor time of a pod, in seconds.", Kind::Counter, |stats| {
        stats.cpu.as_ref().and_then(|cpu| seconds(cpu.time, cpu.usage_core_nano_seconds))
    }),
    (
        "pod_memory_working_set_bytes",
        "Memory of a pod without inactive pages of files, in bytes.",
        Kind::Gauge,
        |stats| stats.memory.as_ref().and_then(|memory| number(memory.time, memory.working_set_bytes)),
    ),
    ("pod_swap_usage_bytes", "Swap that a pod uses, in bytes.", Kind::Gauge, |stats| {
        stats.swap.as_ref().and_then(|swap| number(swap.time, swap.swap_usage_bytes))
    }),
];

/// The text; without a summary it says that there is none.
#[must_use]
pub fn resource_metrics(summary: Option<&Summary>) -> String {
    let mut text = Exposition::default();
    if let Some(summary) = summary {
        containers(&mut text, summary);
        node(&mut text, summary);
        pods(&mut text, summary);
    }
    let name = "resource_scrape_error";
    let help = "Whether statistics could not be read.";
    text.family(name, help, Kind::Gauge);
    let failed = if summary.is_some() { 0.0 } else { 1.0 };
    text.line(name, &Labels::default(), &Labels::default(), failed, None);
    text.into_text()
}

fn containers(text: &mut Exposition, summary: &Summary) {
    for (name, help, kind, value) in CONTAINERS {
        let of_pod = |pod: &PodStats| -> Vec<(Labels, Value)> {
            let one =
                |container: &ContainerStats| Some((labels(pod, Some(&container.name)), value(container)?));
            pod.containers.iter().filter_map(one).collect()
        };
        family(text, (name, help, kind), summary.pods.iter().flat_map(of_pod));
    }
}

fn pods(text: &mut Exposition, summary: &Summary) {
    for (name, help, kind, value) in PODS {
        let all = summary.pods.iter().filter_map(|pod| Some((labels(pod, None), value(pod)?)));
        family(text, (name, help, kind), all);
    }
}

fn node(text: &mut Exposition, summary: &Summary) {
    let node = &summary.node;
    let one = |value: Option<Value>| value.map(|value| (Labels::default(), value)).into_iter();
    let cpu = node.cpu.as_ref().and_then(|cpu| seconds(cpu.time, cpu.usage_core_nano_seconds));
    let help = "Processor time of the node, in seconds.";
    family(text, ("node_cpu_usage_seconds_total", help, Kind::Counter), one(cpu));
    let memory = node.memory.as_ref().and_then(|memory| number(memory.time, memory.working_set_bytes));
    let help = "Memory of the node without inactive pages of files, in bytes.";
    family(text, ("node_memory_working_set_bytes", help, Kind::Gauge), one(memory));
    let swap = node.swap.as_ref().and_then(|swap| number(swap.time, swap.swap_usage_bytes));
    let help = "Swap that the node uses, in bytes.";
    family(text, ("node_swap_usage_bytes", help, Kind::Gauge), one(swap));
}

/// A family that has a line at least.
fn family(text: &mut Exposition, named: (&str, &str, Kind), lines: impl Iterator<Item = (Labels, Value)>) {
    let (name, help, kind) = named;
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        text.family(name, help, kind);
    }
    for (labels, (value, at)) in lines {
        text.line(name, &labels, &Labels::default(), value, at);
    }
}

fn labels(pod: &PodStats, container: Option<&str>) -> Labels {
    let of_pod = [("namespace", pod.pod_ref.namespace.as_str()), ("pod", pod.pod_ref.name.as_str())];
    Labels::new(container.map(|name| ("container", name)).into_iter().chain(of_pod))
}

fn seconds(time: Time, nanos: Option<u64>) -> Option<Value> {
    number(time, nanos).map(|(value, at)| (value / 1e9, at))
}
fn number(time: Time, value: Option<u64>) -> Option<Value> {
    Some((value? as f64, time.0))
}

fn swap_limit(swap: &SwapStats) -> Option<Value> {
    let limit = swap.swap_available_bytes?.saturating_add(swap.swap_usage_bytes.unwrap_or(0));
    number(swap.time, Some(limit))
}
