//! Every endpoint of the server that is no stream, by `kubectl get --raw` and through the API server's proxy.

use anyhow::{Context, Result, ensure};
use berth_integration::http::Answer;
use serde_json::Value;

use super::forward::ECHOES;
use super::kubectl::TARGET;
use super::{PORT, Served};
use crate::kit::eventually;
use crate::suite::same;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "text/plain; version=0.0.4";

/// A path, the type of its answer, and what the answer says: of metrics the beginnings of series that are not zero.
const ENDPOINTS: [(&str, &str, &[&str]); 15] = [
    ("healthz", TEXT, &["ok"]),
    ("healthz/ping", TEXT, &["ok"]),
    ("healthz/log", TEXT, &["ok"]),
    ("healthz/syncloop", TEXT, &["ok"]),
    ("pods", JSON, &["\"kind\":\"PodList\""]),
    ("pods/", JSON, &["\"name\":\"target\""]),
    ("runningpods/", JSON, &["\"name\":\"target\""]),
    ("configz", JSON, &["\"kubeletconfig\":"]),
    ("stats/summary", JSON, &["\"nodeName\":"]),
    (
        "metrics",
        METRICS,
        &[
            "kubelet_running_pods ",
            "kubelet_http_requests_total{",
            "kubelet_started_containers_total{container_type=\"container\"} ",
            "rest_client_requests_total{",
        ],
    ),
    ("metrics/cadvisor", METRICS, &["container_cpu_usage_seconds_total{"]),
    ("metrics/resource", METRICS, &["pod_memory_working_set_bytes{"]),
    ("metrics/probes", METRICS, &["prober_probe_total{"]),
    ("metrics/slis", METRICS, &["kubernetes_healthcheck{"]),
    ("logs/", "text/html; charset=utf-8", &["<a href=\"containers/\">"]),
];

pub(super) fn all(served: &Served) -> Result<()> {
    let mut failed = Vec::new();
    // It is probed.
    served.ready(ECHOES)?;
    // A kubelet looks at what runs once in a while.
    eventually("the target among what runs", &true, || {
        Ok(served.asked("runningpods/")?.text().contains("\"target\""))
    })?;
    for (path, kind, says) in ENDPOINTS {
        if let Err(failure) = served.asked(path).and_then(|answer| is_as_wanted(&answer, kind, says)) {
            failed.push(format!("{path}: {failure:#}"));
        }
    }
    for path in ["absent", "healthz/absent", "pods/absent", "containerLogs/default/absent/main"] {
        match served.asked(path) {
            Ok(answer) if answer.status == 404 => {}
            Ok(answer) => failed.push(format!("{path}: {} {}", answer.status, answer.text())),
            Err(failure) => failed.push(format!("{path}: {failure:#}")),
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    let raw = format!("/api/v1/nodes/{}/proxy/healthz", served.name());
    same("kubectl get --raw", served.cluster.kubectl(&["get", "--raw", &raw])?.as_str(), "ok")?;
    let configuration = json_of(&served.asked("configz")?)?;
    let is_there = configuration["kubeletconfig"]["containerLogMaxSize"] == "32Ki";
    ensure!(is_there, "configz: {configuration}");
    let node = served.cluster.get_json(&format!("/api/v1/nodes/{}", served.name()))?;
    let told = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    same("the port that is told", told.as_u64(), Some(served.address().port().into()))?;
    ensure!(served.kubelet.is_some() || served.address().port() == PORT, "not the usual port");
    // A pod is one of the node's, with the status that the API server has of it.
    let pods = json_of(&served.asked("pods")?)?;
    let all = pods["items"].as_array().context("no list of pods")?;
    let target = all.iter().find(|pod| pod["metadata"]["name"] == TARGET).context("no target")?;
    let uid = &target["metadata"]["uid"];
    same("its uid", uid, &served.cluster.get_json(&crate::api_pods::path(TARGET))?["metadata"]["uid"])?;
    same("its phase", &target["status"]["phase"], &Value::from("Running"))
}

fn json_of(answer: &Answer) -> Result<Value> {
    serde_json::from_slice(&answer.body).with_context(|| format!("no JSON: {}", answer.text()))
}

fn is_as_wanted(answer: &Answer, kind: &str, says: &[&str]) -> Result<()> {
    let text = answer.text();
    let start = &text[..text.floor_char_boundary(500)];
    same("status", answer.status, 200).with_context(|| start.to_owned())?;
    let found = answer.header("Content-Type").unwrap_or_default();
    ensure!(found.starts_with(kind), "Content-Type {found:?}, wanted {kind:?}");
    // Go's encoder writes no spaces; others may.
    let text = text.replace("\": ", "\":");
    for says in says {
        let is_there = if kind == METRICS { counts(&text, says) } else { text.contains(says) };
        ensure!(is_there, "no {says:?} in {start}");
    }
    Ok(())
}

/// Whether a series that begins like this is above zero.
fn counts(text: &str, series: &str) -> bool {
    let value = |line: &str| {
        let numbers = line.rsplit_once('}').or_else(|| line.split_once(' '))?.1;
        numbers.split_whitespace().next()?.parse::<f64>().ok()
    };
    let mut lines = text.lines().filter(|line| line.starts_with(series));
    lines.any(|line| value(line).is_some_and(|value| value > 0.0))
}
