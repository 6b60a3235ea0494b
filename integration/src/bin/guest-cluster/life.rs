//! What runs on the node before it is booted again, and what is to be seen afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, berth};
use berth_integration::cluster::{self, Cluster};
use berth_integration::node::system;
use berth_integration::registry::EXAMPLE;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::machine::{BOOT_ID, DIR, LEASES, NODE};
use crate::{BOOTED, Told};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// For what takes a moment, in a guest.
const SOON: Duration = Duration::from_secs(60);
/// Of the pod that does not listen to its stop signal.
const GRACE: Duration = Duration::from_secs(3);
/// Answers a signal at once.
const FOR_EVER: &str = "trap 'exit 0' TERM; sleep infinity & while :; do wait; done";

fn pod(name: &str, spec: Value, script: &str, more: Value) -> Value {
    let mut main = json!({ "name": "main", "image": EXAMPLE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{ "name": "starts", "mountPath": "/starts" }] });
    merge(&mut main, more);
    let mut all = json!({ "containers": [main], "volumes": [{ "name": "starts", "hostPath": { "path": format!("{DIR}/starts"), "type": "DirectoryOrCreate" } }] });
    merge(&mut all, spec);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": all })
}

/// Adds to lists, and puts other fields in place.
fn merge(base: &mut Value, more: Value) {
    let (Value::Object(base), Value::Object(more)) = (base, more) else { return };
    for (name, value) in more {
        match (base.get_mut(&name), value) {
            (Some(Value::Array(list)), Value::Array(further)) => list.extend(further),
            (_, value) => drop(base.insert(name, value)),
        }
    }
}

/// Serves a word of a configMap, and is asked in two ways how it is.
fn whole() -> Value {
    let script = format!(
        "echo started >>/starts/whole; mkdir -p /www; cp /settings/word /www/index.html; httpd -p 80 -h /www; {FOR_EVER}"
    );
    let volumes = json!({ "volumes": [
        { "name": "settings", "configMap": { "name": "settings" } },
        { "name": "key", "secret": { "secretName": "key" } },
    ] });
    let more = json!({
        "volumeMounts": [{ "name": "settings", "mountPath": "/settings" }, { "name": "key", "mountPath": "/key" }],
        "resources": { "limits": { "memory": "64Mi" } },
        "readinessProbe": { "httpGet": { "path": "/index.html", "port": 80 }, "periodSeconds": 1, "failureThreshold": 1 },
        "livenessProbe": { "exec": { "command": ["test", "!", "-e", "/tmp/sick"] }, "periodSeconds": 1, "failureThreshold": 1 },
    });
    pod("whole", volumes, &script, more)
}

pub(crate) fn first(cluster: &Cluster, told: &Told) -> Result<()> {
    cluster.wait_for(&format!("/api/v1/nodes/{NODE}"), "Ready", |node| is(node, "Ready"))?;
    told.step("the node is ready");
    let object =
        |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name } });
    let mut settings = object("ConfigMap", "settings");
    settings["data"] = json!({ "word": "one" });
    cluster.create(MAPS, &settings)?;
    let mut key = object("Secret", "key");
    key["stringData"] = json!({ "word": "two" });
    cluster.create("/api/v1/namespaces/default/secrets", &key)?;
    let never = json!({ "restartPolicy": "Never" });
    let deaf = json!({ "terminationGracePeriodSeconds": GRACE.as_secs() });
    for pod in [
        whole(),
        pod("once", never, "echo started >>/starts/once", json!({})),
        pod("deaf", deaf, "trap '' TERM; sleep infinity & while :; do wait; done", json!({})),
        pod("lost", json!({}), FOR_EVER, json!({})),
    ] {
        cluster.create(PODS, &pod)?;
    }
    for name in ["whole", "deaf", "lost"] {
        ready(cluster, name)?;
    }
    cluster.wait_for(&format!("{PODS}/once"), "at its end", |pod| pod["status"]["phase"] == "Succeeded")?;
    told.step("pods are ready");
    volumes(cluster)?;
    told.step("volumes show objects, and their changes");
    probes(cluster)?;
    told.step("probes act");
    deletion(cluster)?;
    told.step("a pod ended with its grace");

    // Deleted while nobody hears of it.
    system("systemctl", &["stop", "kubelet"])?;
    cluster.kubectl(&["delete", "pod", "lost", "--grace-period=0", "--force"])?;
    ensure!(leases()?.len() == 2, "addresses in use: {:?}", leases()?);
    Ok(())
}

fn volumes(cluster: &Cluster) -> Result<()> {
    let said =
        inside("cat /settings/word /key/word /var/run/secrets/kubernetes.io/serviceaccount/namespace")?;
    ensure!(said == "onetwodefault", "{said}");
    let token = inside("cut -d. -f2 /var/run/secrets/kubernetes.io/serviceaccount/token | wc -c")?;
    ensure!(token.trim().parse::<u32>()? > 100, "no token: {token}");
    let memory = inside("cat /sys/fs/cgroup/memory.max")?;
    ensure!(memory.trim() == "67108864", "limit of memory: {memory}");
    let patch = json!({ "data": { "word": "three" } });
    cluster.request("PATCH", &format!("{MAPS}/settings"), "application/merge-patch+json", &patch)?;
    until("the change in the pod", || Ok(inside("cat /settings/word")? == "three"))
}

fn probes(cluster: &Cluster) -> Result<()> {
    let path = format!("{PODS}/whole");
    inside("mv /www/index.html /www/away")?;
    cluster.wait_for(&path, "not ready", |pod| !is(pod, "Ready"))?;
    inside("mv /www/away /www/index.html")?;
    ready(cluster, "whole")?;
    inside("touch /tmp/sick")?;
    cluster.wait_for(&path, "restarted", |pod| restarts(pod) == 1 && is(pod, "Ready")).map(drop)
}

fn deletion(cluster: &Cluster) -> Result<()> {
    let began = Instant::now();
    cluster.request("DELETE", &format!("{PODS}/deaf"), "application/json", &json!({}))?;
    until("the pod to be gone", || Ok(cluster.find_json(&format!("{PODS}/deaf"))?.is_none()))?;
    let took = began.elapsed();
    ensure!(took >= GRACE, "it was gone after {took:?}");
    Ok(())
}

pub(crate) fn second(cluster: &Cluster, told: &Told) -> Result<()> {
    let boot = fs::read_to_string(BOOT_ID)?;
    ensure!(fs::read_to_string(BOOTED)? != boot, "the machine was not booted");
    let is_up = |node: &Value| is(node, "Ready") && node["status"]["nodeInfo"]["bootID"] == boot.trim();
    cluster.wait_for(&format!("/api/v1/nodes/{NODE}"), "ready in this boot", is_up)?;
    told.step("the node is ready");
    let whole = cluster
        .wait_for(&format!("{PODS}/whole"), "up again", |pod| restarts(pod) == 2 && is(pod, "Ready"))?;
    let once = cluster.get_json(&format!("{PODS}/once"))?;
    ensure!(once["status"]["phase"] == "Succeeded" && restarts(&once) == 0, "{once}");
    for (name, count) in [("whole", 3), ("once", 1)] {
        let starts = fs::read_to_string(Path::new(DIR).join("starts").join(name))?;
        ensure!(starts.lines().count() == count, "starts of {name}: {starts}");
    }
    told.step("pods run again, and what was over stays so");

    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let (running, known) = (BTreeSet::from([uid(&whole)]), BTreeSet::from([uid(&whole), uid(&once)]));
    let ip = whole["status"]["podIP"].as_str().context("no address")?.to_owned();
    until("addresses of pods that run alone", || Ok(leases()? == BTreeSet::from([ip.clone()])))?;
    until("directories of known pods alone", || Ok(directories()?.is_subset(&known)))?;
    until("mounts of known pods alone", || Ok(mounts()?.is_subset(&known)))?;
    until("cgroups of pods that run alone", || Ok(cgroups()? == running))?;
    let events = cluster.get_json("/api/v1/namespaces/default/events")?;
    let mut events = events["items"].as_array().into_iter().flatten();
    ensure!(events.any(|event| event["reason"] == "Rebooted"), "nobody was told of the reboot");
    let audit = cluster.audit()?;
    let refused = cluster::refused(&audit, NODE);
    ensure!(refused.is_empty(), "the node had no right to: {refused:#?}");
    told.step("nothing of earlier is left");
    Ok(())
}

fn is(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0)
}

fn ready(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.wait_for(&format!("{PODS}/{name}"), "Ready", |pod| is(pod, "Ready")).map(drop)
}

/// Runs a script in the pod.
fn inside(script: &str) -> Result<String> {
    berth(&["exec", "whole", "--container", "main", "--", "/bin/sh", "-c", script])
}

fn until(what: &str, mut look: impl FnMut() -> Result<bool>) -> Result<()> {
    wait::until(what, SOON, || Ok(if look()? { Look::Ready(()) } else { Look::NotYet("not yet".to_owned()) }))
}

/// The addresses that are in use; the other files are host-local's own.
fn leases() -> Result<BTreeSet<String>> {
    names(&Path::new(LEASES).join("lab"))
        .map(|names| names.into_iter().filter(|name| name.starts_with("10.")).collect())
}

/// The names in a directory, in order.
fn names(dir: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The pods that have a directory.
fn directories() -> Result<BTreeSet<String>> {
    names(&Path::new(ROOT_DIR).join("pods"))
}

/// The pods below whose directory something is mounted.
fn mounts() -> Result<BTreeSet<String>> {
    let pods = format!("{ROOT_DIR}/pods/");
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let below = table.lines().filter_map(|line| line.split(' ').nth(4)?.strip_prefix(&pods));
    Ok(below.filter_map(|path| path.split('/').next()).map(str::to_owned).collect())
}

/// The pods that have a slice.
fn cgroups() -> Result<BTreeSet<String>> {
    let of = |slice: &str| Some(slice.rsplit_once("-pod")?.1.strip_suffix(".slice")?.replace('_', "-"));
    let mut found = BTreeSet::new();
    for class in ["", "kubepods-burstable.slice", "kubepods-besteffort.slice"] {
        let dir = Path::new("/sys/fs/cgroup/kubepods.slice").join(class);
        if dir.is_dir() {
            found.extend(names(&dir)?.iter().filter_map(|name| of(name)));
        }
    }
    Ok(found)
}
