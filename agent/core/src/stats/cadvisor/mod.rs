//! `/metrics/cadvisor`: what each level of the cgroup hierarchy uses. Source: cAdvisor `metrics/prometheus.go`,
//! `containerPrometheusLabelsFunc` of `pkg/kubelet/server/server.go`.

mod disks;
mod levels;
mod machine;

use super::{
    Collected, DiskUsage, Network, Sampled,
    exposition::{Exposition, Kind, Labels},
};

/// What a line is of.
struct Row<'a> {
    labels: Labels,
    sampled: &'a Sampled,
    network: Option<&'a Network>,
    read: &'a Collected,
    /// Of the root alone.
    disks: Option<&'a DiskUsage>,
}

/// Values of a family, each with labels of its own.
type Values = Vec<(Labels, f64)>;

/// A family.
struct Series {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    /// Whether a value is of the moment at which its level was read. What bounds a level has no time.
    is_timed: bool,
    values: fn(&Row<'_>) -> Values,
}

/// Values that are of a moment.
const fn timed(name: &'static str, help: &'static str, kind: Kind, values: fn(&Row<'_>) -> Values) -> Series {
    Series { name, help, kind, is_timed: true, values }
}

/// Values that have no time.
const fn timeless(name: &'static str, help: &'static str, values: fn(&Row<'_>) -> Values) -> Series {
    Series { name, help, kind: Kind::Gauge, is_timed: false, values }
}

/// One value without labels of its own.
fn one(value: f64) -> Values {
    vec![(Labels::default(), value)]
}

/// The format has floating point numbers alone.
fn float(number: u64) -> f64 {
    number as f64
}

/// Nanoseconds in seconds.
fn seconds(nanos: u64) -> f64 {
    float(nanos) / 1e9
}

/// The text. `None` says that levels could not be read.
#[must_use]
pub fn cgroup_metrics(read: Option<&Collected>, disks: &DiskUsage) -> String {
    let mut text = Exposition::default();
    let rows = read.map(|read| rows(read, disks)).unwrap_or_default();
    version(&mut text, read);
    let mut all: Vec<&Series> = levels::ALL.iter().chain(&disks::ALL).collect();
    all.sort_unstable_by_key(|series| series.name);
    let help = "Whether cgroups could not be read.";
    let (before, after) = all.split_at(all.partition_point(|series| series.name < "container_scrape_error"));
    before.iter().for_each(|series| family(&mut text, series, &rows));
    scrape_error(&mut text, "container_scrape_error", help, read);
    after.iter().for_each(|series| family(&mut text, series, &rows));
    machine::write(&mut text, read);
    text.into_text()
}

fn family(text: &mut Exposition, series: &Series, rows: &[Row<'_>]) {
    let mut is_begun = false;
    for row in rows {
        for (labels, value) in (series.values)(row) {
            if !is_begun {
                text.family(series.name, series.help, series.kind);
                is_begun = true;
            }
            let at = series.is_timed.then_some(row.sampled.at.wall);
            text.line(series.name, &row.labels, &labels, value, at);
        }
    }
}

fn scrape_error(text: &mut Exposition, name: &'static str, help: &str, read: Option<&Collected>) {
    text.family(name, help, Kind::Gauge);
    let failed = if read.is_some() { 0.0 } else { 1.0 };
    text.line(name, &Labels::default(), &Labels::default(), failed, None);
}

fn version(text: &mut Exposition, read: Option<&Collected>) {
    let Some(read) = read else { return };
    let name = "cadvisor_version_info";
    let help = "Versions of what the node runs on.";
    let machine = &read.node.machine;
    let labels = Labels::new([
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", machine.kernel.as_str()),
        ("osVersion", machine.os.as_str()),
    ]);
    text.family(name, help, Kind::Gauge);
    text.line(name, &labels, &Labels::default(), 1.0, None);
}

/// Levels in a stable order: the root, those above pods, those of the system, then pods with their containers.
fn rows<'a>(read: &'a Collected, disks: &'a DiskUsage) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    let mut add = |id: &str, [name, image, namespace, pod, container]: [&str; 5], network, disks| {
        let Some(sampled) = read.levels.get(id) else { return };
        let labels = Labels::new([
            ("container", container),
            ("id", id),
            ("image", image),
            ("name", name),
            ("namespace", namespace),
            ("pod", pod),
        ]);
        rows.push(Row { labels, sampled, network, read, disks });
    };
    add("/", [""; 5], Some(&read.node.network), Some(disks));
    let mut known = vec!["/"];
    let system = read.subjects.system.all().map(|(_, level)| level);
    for level in read.subjects.above.iter().map(String::as_str).chain(system) {
        if !known.contains(&level) {
            add(level, [""; 5], None, None);
            known.push(level);
        }
    }
    for pod in &read.subjects.pods {
        let (namespace, name) = (pod.name.namespace.as_str(), pod.name.name.as_str());
        add(&pod.cgroup, ["", "", namespace, name, ""], read.network(pod), None);
        for container in &pod.containers {
            let labels =
                [container.id.as_str(), container.image.as_str(), namespace, name, container.name.as_str()];
            add(&container.cgroup, labels, None, None);
        }
    }
    rows
}
