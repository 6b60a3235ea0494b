//! What it costs a node to be asked for metrics: metrics-server and Prometheus ask both nodes every 15 s, as they do in most clusters.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::cluster::metrics::{API, MetricsServer};
use berth_integration::process::Process;
use berth_integration::wait::{self, Look};
use berth_integration::{agent, cluster, components, files, http, kubelet};
use serde_json::Value;

use super::idle;
use super::pair::{Both, Pair, Side};
use super::pods::{self, Probe};
use crate::figure::{Figure, Unit};

/// How often each asks.
const EVERY: Duration = Duration::from_secs(15);
/// Whole rounds of both.
const WINDOW: Duration = Duration::from_mins(5);
/// Until both have asked twice, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// The aim beside the kubelet.
const AIM: f64 = 0.1;
/// What Prometheus is told to ask of each node, as the usual configurations do.
const PATHS: [&str; 4] = ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"];
/// Where Prometheus listens.
const PORT: u16 = 9090;

/// Measures with so many pods on each node. They do nothing: what is measured is being asked, less what the nodes cost that nobody asks.
pub(super) fn measure(pair: &Pair, count: usize) -> Result<Vec<Figure>> {
    let mut names = Both::<Vec<String>>::default();
    for side in Side::BOTH {
        *names.of(side) = (0..count).map(|number| format!("scraped-{side}-{number}")).collect();
        pods::fill(pair, side, names.of(side), Probe::None)?;
    }
    let dir = pair.node.world.root();
    let metrics = MetricsServer::start(&pair.cluster, dir, EVERY)?;
    let prometheus = prometheus(pair)?;
    is_asked(pair, count).map_err(|failure| metrics.failed(failure))?;
    let used = idle::window(pair, WINDOW, &Side::BOTH)?;
    // Everything was answered, else it would have cost nothing.
    is_asked(pair, count).map_err(|failure| metrics.failed(failure))?;
    prometheus.kill()?;
    metrics.end()?;
    let section = format!(
        "{count} pods of a cluster, of which metrics-server and Prometheus ask every {} s",
        EVERY.as_secs()
    );
    let mut figures = Vec::new();
    for side in Side::BOTH {
        let mut used = Both { ..used };
        let name = format!("{side}: CPU of the daemons, {} s", WINDOW.as_secs());
        figures.push(Figure::new(&section, &name, *used.of(side), Unit::Millicores));
    }
    let ratio = Figure::new(&section, "berth / kubelet", used.berth / used.kubelet, Unit::Times);
    figures.push(ratio.at_most(AIM));
    for side in Side::BOTH {
        pods::delete(pair, names.of(side))?;
    }
    Ok(figures)
}

/// Starts Prometheus as the account of metrics-server, which may ask nodes for metrics.
fn prometheus(pair: &Pair) -> Result<Process> {
    let dir = pair.node.world.root().join("prometheus");
    files::make_dir(&dir)?;
    let token = dir.join("token");
    files::write(&token, pair.cluster.token_of(cluster::metrics::NAME)?)?;
    files::write(dir.join("prometheus.yml"), configuration(pair, &token.display().to_string()))?;
    let mut command = Command::new(components::install_prometheus(crate::report::say)?);
    command
        .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{PORT}"));
    Process::start("prometheus", &mut command, &dir.join("prometheus.log"))
}

fn configuration(pair: &Pair, token: &str) -> String {
    let nodes = [(agent::NODE_NAME, 10_250), (kubelet::NODE_NAME, kubelet::PORT)];
    let (ca, every) = (pair.cluster.ca().display().to_string(), EVERY.as_secs());
    let jobs = nodes.iter().flat_map(|node| PATHS.iter().map(move |path| (node, path)));
    let jobs: Vec<Value> = jobs
        .map(|((name, port), path)| {
            serde_json::json!({
                "job_name": format!("{name}{path}"),
                "scheme": "https",
                "metrics_path": path,
                "authorization": { "credentials_file": token },
                "tls_config": { "ca_file": ca },
                "static_configs": [{ "targets": [format!("{}:{port}", cluster::ADDRESS)] }],
            })
        })
        .collect();
    // JSON is YAML.
    let intervals = format!("{every}s");
    serde_json::json!({ "global": { "scrape_interval": intervals }, "scrape_configs": jobs }).to_string()
}

/// Both know of all pods on both nodes.
fn is_asked(pair: &Pair, count: usize) -> Result<()> {
    wait::until("metrics-server to know of every pod", LIMIT, || {
        let pods = pair.cluster.get_json(&format!("{API}/namespaces/default/pods"))?;
        let known = pods["items"].as_array().map_or(0, Vec::len);
        Ok(if known == 2 * count { Look::Ready(()) } else { Look::NotYet(format!("of {known}")) })
    })?;
    wait::until("Prometheus to be answered everywhere", LIMIT, || {
        let Ok(answer) =
            http::get((std::net::Ipv4Addr::LOCALHOST, PORT).into(), "/api/v1/targets?state=active")
        else {
            return Ok(Look::NotYet("it does not listen".to_owned()));
        };
        let targets: Value = serde_json::from_slice(&answer.body).context("targets are no JSON")?;
        let all = targets["data"]["activeTargets"].as_array().cloned().unwrap_or_default();
        ensure!(all.len() <= 2 * PATHS.len(), "{} targets", all.len());
        let down: Vec<_> =
            all.iter().filter(|one| one["health"] != "up").map(|one| &one["lastError"]).collect();
        let is_whole = all.len() == 2 * PATHS.len() && down.is_empty();
        Ok(if is_whole {
            Look::Ready(())
        } else {
            Look::NotYet(format!("{} targets, down: {down:?}", all.len()))
        })
    })
}
