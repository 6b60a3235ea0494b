//! The pods that are measured.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use berth_integration::registry::EXAMPLE;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use super::pair::{Pair, Side};

/// By which a pod chooses its node.
pub(super) const LABEL: &str = "bench";
/// Where the first instruction of a pod leaves a file.
const BEGUN: &str = "/run/begun";
const PODS: &str = "/api/v1/namespaces/default/pods";
const PORT: u16 = 8080;
/// For one pod, on a machine that is busy with a hundred others.
const LIMIT: Duration = Duration::from_secs(300);

/// How a pod is probed for readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probe {
    None,
    Http,
    Exec,
}

/// When what became of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    created: SystemTime,
    bound: SystemTime,
    begun: SystemTime,
    ready: SystemTime,
}

impl Life {
    /// From the request that made it until it was seen Ready.
    pub(super) fn whole(&self) -> Duration {
        between(self.created, self.ready)
    }

    /// Until it was seen to have a node.
    pub(super) fn scheduled(&self) -> Duration {
        between(self.created, self.bound)
    }

    /// From then to the first instruction of its container.
    pub(super) fn begun(&self) -> Duration {
        between(self.bound, self.begun)
    }

    /// From there until it was seen Ready.
    pub(super) fn told(&self) -> Duration {
        between(self.begun, self.ready)
    }
}

/// Zero where the file's time, which the kernel keeps less exactly, is a little early.
fn between(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}

/// Makes a pod.
pub(super) fn create(pair: &Pair, side: Side, name: &str, probe: Probe) -> Result<SystemTime> {
    fs::create_dir_all(BEGUN)?;
    let created = SystemTime::now();
    pair.cluster.create(PODS, &manifest(side, name, probe))?;
    Ok(created)
}

/// Waits until all of these pods, by name with the time when they were made, were seen Ready.
pub(super) fn ready(pair: &Pair, mut created: BTreeMap<String, SystemTime>) -> Result<Vec<Life>> {
    let (mut bound, mut lives) = (BTreeMap::new(), Vec::new());
    let count = created.len();
    pair.watch
        .until("pods to be Ready", LIMIT, |seen| {
            if seen.object["spec"]["nodeName"].is_string() {
                bound.entry(seen.name().to_owned()).or_insert(seen.at);
            }
            if seen.is("Ready")
                && let Some(created) = created.remove(seen.name())
            {
                lives.push((seen.name().to_owned(), created, seen.at));
            }
            (lives.len() == count).then_some(())
        })
        .with_context(|| pair.cluster.situation())?;
    let life = |(name, created, ready): (String, SystemTime, SystemTime)| -> Result<Life> {
        // Without a probe a pod is Ready once its container was started, and its first instruction may come later.
        let begun = wait::until(&format!("{name} to begin"), LIMIT, || {
            let file = fs::metadata(format!("{BEGUN}/{name}")).and_then(|file| file.modified());
            Ok(file.map_or_else(|error| Look::NotYet(error.to_string()), Look::Ready))
        })?;
        let bound = *bound.get(&name).with_context(|| format!("{name} has no node"))?;
        Ok(Life { created, bound, begun, ready })
    };
    lives.into_iter().map(life).collect()
}

/// Makes a pod whose last instruction leaves the file, and gives the time from then until it was seen to have succeeded.
pub(super) fn ends(pair: &Pair, side: Side, name: &str) -> Result<Duration> {
    fs::create_dir_all(BEGUN)?;
    let mut pod = manifest(side, name, Probe::None);
    pod["spec"]["restartPolicy"] = json!("Never");
    pod["spec"]["containers"][0]["command"] = json!(["/bin/sh", "-c", format!("exec touch {BEGUN}/{name}")]);
    pair.cluster.create(PODS, &pod)?;
    let told = pair
        .watch
        .until("the pod to succeed", LIMIT, |seen| {
            let is_over = seen.name() == name && seen.object["status"]["phase"] == "Succeeded";
            is_over.then_some(seen.at)
        })
        .with_context(|| pair.cluster.situation())?;
    let ended = fs::metadata(format!("{BEGUN}/{name}")).and_then(|file| file.modified());
    Ok(between(ended.with_context(|| format!("{name} has not ended"))?, told))
}

/// Deletes pods and waits until all are gone.
pub(super) fn delete(pair: &Pair, names: &[String]) -> Result<Duration> {
    let begun = SystemTime::now();
    for name in names {
        pair.cluster.request("DELETE", &format!("{PODS}/{name}"), "application/json", &json!({}))?;
    }
    let mut left = names.len();
    let last = pair.watch.until("pods to be gone", LIMIT, |seen| {
        left -= usize::from(seen.gone && names.iter().any(|name| name == seen.name()));
        (left == 0).then_some(seen.at)
    });
    let taken = between(begun, last.with_context(|| pair.cluster.situation())?);
    for name in names {
        fs::remove_file(format!("{BEGUN}/{name}"))?;
    }
    Ok(taken)
}

/// Makes so many pods and waits until all are Ready.
pub(super) fn fill(pair: &Pair, side: Side, names: &[String], probe: Probe) -> Result<Vec<Life>> {
    let made = names.iter().map(|name| Ok((name.clone(), create(pair, side, name, probe)?)));
    let lives = ready(pair, made.collect::<Result<_>>()?)?;
    ensure!(lives.len() == names.len(), "{} of {} pods are Ready", lives.len(), names.len());
    Ok(lives)
}

/// A pod that serves a page and ends at once when it is asked to.
fn manifest(side: Side, name: &str, probe: Probe) -> Value {
    let script = format!("touch {BEGUN}/{name}; trap 'exit 0' TERM; httpd -f -p {PORT} -h /etc & wait",);
    let mut container = json!({
        "name": "main",
        "image": EXAMPLE,
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{ "name": "begun", "mountPath": BEGUN }],
        "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
    });
    let action = match probe {
        Probe::None => None,
        Probe::Http => Some(json!({ "httpGet": { "path": "/hostname", "port": PORT }, "periodSeconds": 1 })),
        Probe::Exec => Some(json!({ "exec": { "command": ["/bin/true"] }, "periodSeconds": 1 })),
    };
    if let Some(action) = action {
        container["readinessProbe"] = action;
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "nodeSelector": { LABEL: side.name() },
            "containers": [container],
            "volumes": [{ "name": "begun", "hostPath": { "path": BEGUN } }],
        },
    })
}
