//! The wall clock of the agent is set an hour ahead and back, under a cluster whose clock is right.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::watch::{Seen, Watch};
use berth_integration::cluster::{self, Cluster};
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, SOON, eventually, inside, pod, shell, with};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test("clock_steps::of_an_hour_change_nothing", of_an_hour).long().within(LONG_LIMIT)]
}

/// Debian's `libfaketime`, which reads how far the clock is off from a file, each time that it is asked.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// How long a pod that ends after a step goes on.
const GRACE: u64 = 8;
/// How long a probe may take, in seconds: more than a busy machine needs to start a command, and less than a step.
const PATIENCE: u64 = 30;
/// How long a container waits that has ended twice, and how that is shown.
const BACK_OFF: Duration = Duration::from_secs(10);
const BACK_OFF_SHOWN: &str = "back-off 10s ";
/// Renewals of the lease after which what happens in every 10 s has happened.
const RENEWALS: usize = 6;

/// The wall clock of an agent.
struct Clock(PathBuf);

impl Clock {
    fn of(node: &mut Node) -> Result<Self> {
        ensure!(Path::new(LIBRARY).exists(), "{LIBRARY} is missing: scripts/setup tests installs it");
        let clock = Self(node.world.root().join("clock"));
        clock.set("+0")?;
        let variables = [
            ("LD_PRELOAD", LIBRARY),
            ("FAKETIME_TIMESTAMP_FILE", clock.0.to_str().context("no UTF-8")?),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("NO_FAKE_STAT", "1"),
        ];
        for (name, value) in variables {
            node.agent.add_env(name, value);
        }
        Ok(clock)
    }

    /// Sets how far it is off.
    fn set(&self, offset: &str) -> Result<()> {
        let part = self.0.with_extension("part");
        files::write(&part, offset)?;
        fs::rename(part, &self.0).context("set the clock")
    }
}

fn bound(name: &str, spec: Value) -> Result<Value> {
    Ok(serde_json::from_str(&pod(name, with(json!({ "nodeName": NODE_NAME }), spec)))?)
}

/// A pod that is probed each second, with a token; it says how often it was started.
fn web() -> Result<Value> {
    let script = format!("touch /tmp/ready; {FOR_EVER}");
    let command = json!({ "command": ["test", "-e", "/tmp/ready"] });
    let probe =
        json!({ "exec": command, "periodSeconds": 1, "timeoutSeconds": PATIENCE, "failureThreshold": 1 });
    let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
    let probes = json!({ "readinessProbe": probe, "livenessProbe": probe, "volumeMounts": mounts });
    let token = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } });
    let volumes = json!([{ "name": "v", "projected": { "sources": [token] } }]);
    bound(
        "web",
        json!({ "serviceAccountName": "web", "automountServiceAccountToken": false,
        "containers": [shell("main", &script, probes)], "volumes": volumes }),
    )
}

/// A pod that is ready as long as a file is there.
fn flips() -> Result<Value> {
    let command = json!({ "command": ["test", "-e", "/tmp/well"] });
    let probe =
        json!({ "exec": command, "periodSeconds": 1, "timeoutSeconds": PATIENCE, "failureThreshold": 1 });
    let script = format!("touch /tmp/well; {FOR_EVER}");
    bound("flips", json!({ "containers": [shell("main", &script, json!({ "readinessProbe": probe }))] }))
}

fn path(pod: &str) -> String {
    format!("{PODS}/{pod}")
}

fn start() -> Result<(Cluster, Node, Clock)> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "web" } });
    cluster.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    let kubelet = json!({ "nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "1s" });
    let mut node = Node::prepare(&Settings { kubelet, ..Settings::default() })?;
    let clock = Clock::of(&mut node)?;
    node.agent.set_flags(&[format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display())]);
    node.agent.start()?;
    Ok((cluster, node, clock))
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

fn of_an_hour() -> Result<()> {
    let (cluster, node, clock) = start()?;
    cluster.create(PODS, &web()?)?;
    cluster.create(PODS, &flips()?)?;
    for name in ["web", "flips"] {
        cluster.wait_for(&path(name), "ready", is_ready)?;
    }
    cluster.wait_for(&format!("/api/v1/nodes/{NODE_NAME}"), "ready", is_ready)?;
    let (watch, nodes) = (begun(&cluster, "pods", "web")?, begun(&cluster, "nodes", NODE_NAME)?);
    let before = cluster.get_json(&path("web"))?;

    for (number, offset) in ["+3600", "-3600", "+0"].into_iter().enumerate() {
        stepped(&cluster, &node, &clock, (number, offset))
            .with_context(|| format!("the clock was set {offset}"))?;
    }
    let web = node.ready("web")?;
    ensure!(inside(&web, "cat /v/token")?.split('.').count() == 3, "no token");
    let after = cluster.get_json(&path("web"))?;
    same("the status", &after["status"], &before["status"])?;
    never_unready(&cluster, &watch, PODS, "web")?;
    never_unready(&cluster, &nodes, "/api/v1/nodes", NODE_NAME)?;
    for name in ["web", "flips"] {
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        cluster.wait_gone(&path(name))?;
    }
    node.end()?;
    cluster.end()
}

/// A watch that has begun: it has shown what is there.
fn begun(cluster: &Cluster, kind: &str, name: &str) -> Result<Watch> {
    let watch = Watch::start(cluster, kind, "default")?;
    watch.until(&format!("{kind} with {name}"), SOON, |seen| (seen.name() == name).then_some(()))?;
    Ok(watch)
}

/// Sets the clock while a pod ends and another waits for its next run, and looks at what goes on by time.
fn stepped(cluster: &Cluster, node: &Node, clock: &Clock, (number, offset): (usize, &str)) -> Result<()> {
    let asked = tokens(cluster)?;
    let ends = format!("ends{number}");
    is_up_and_deaf(cluster, &ends)?;
    let back_off = BackOff::begin(cluster, &format!("crashes{number}"))?;
    // Before the node can know: its time is not over sooner than it takes from here.
    let begun = Instant::now();
    is_asked_to_end(cluster, node, &ends)?;
    clock.set(offset)?;
    cluster.wait_gone(&path(&ends))?;
    let took = begun.elapsed();
    let grace = Duration::from_secs(GRACE);
    // With the clock that was set it would be over at once, or in an hour, for which nobody waits.
    ensure!(took + Duration::from_secs(2) > grace, "a grace of {grace:?} took {took:?}");
    back_off.wait_for_its_end(cluster)?;
    let flips = node.ready("flips")?;
    for (act, ready) in [("rm", false), ("touch", true)] {
        inside(&flips, &format!("{act} /tmp/well"))?;
        cluster.wait_for(&path("flips"), &format!("ready: {ready}"), |pod| is_ready(pod) == ready)?;
    }
    let lease = renewed(cluster, RENEWALS).context("the lease")?;
    let renewed: Timestamp = lease["spec"]["renewTime"].as_str().context("no time")?.parse()?;
    let off = renewed.duration_since(Timestamp::now()).as_secs() - offset.parse::<i64>()?;
    ensure!(off.abs() < 60, "the lease was renewed at {renewed}");
    same("tokens that were asked for", tokens(cluster)?, asked)
}

/// Makes a pod that hears no signal, and waits until it runs.
fn is_up_and_deaf(cluster: &Cluster, name: &str) -> Result<()> {
    let deaf = shell("main", &format!("trap '' TERM; {FOR_EVER}"), json!({}));
    let spec = json!({ "terminationGracePeriodSeconds": GRACE, "containers": [deaf] });
    cluster.create(PODS, &bound(name, spec)?)?;
    cluster.wait_for(&path(name), "ready", is_ready).map(drop)
}

/// Deletes a pod, and waits until its node knows.
fn is_asked_to_end(cluster: &Cluster, node: &Node, name: &str) -> Result<()> {
    cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
    eventually("the end to have begun", &true, || {
        let pod = node.pod(name)?;
        Ok(pod.is_none_or(|pod| !pod.0["metadata"]["deletionTimestamp"].is_null()))
    })
}

/// A pod whose container has ended twice, and is not to run again before the first back-off is over.
struct BackOff {
    pod: String,
    /// When it was asked for: its container has ended later.
    made: SystemTime,
    restarts: u64,
    /// Which has shown it.
    watch: Watch,
}

impl BackOff {
    /// Makes it, and waits until its back-off is shown.
    fn begin(cluster: &Cluster, pod: &str) -> Result<Self> {
        // A back-off that is over before that is not seen.
        let watch = begun(cluster, "pods", "web")?;
        let made = SystemTime::now();
        cluster.create(PODS, &bound(pod, json!({ "containers": [shell("main", "exit 1", json!({}))] }))?)?;
        let restarts = watch.until(&format!("the back-off of {pod}"), POD_LIMIT, |seen| {
            let message = &seen.object["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
            let is_shown = message.as_str().is_some_and(|message| message.starts_with(BACK_OFF_SHOWN));
            (seen.name() == pod && is_shown).then(|| restarts(&seen.object))
        })?;
        Ok(Self { pod: pod.to_owned(), made, restarts, watch })
    }

    /// Waits until it has run again, which must not have been sooner than was shown.
    fn wait_for_its_end(self, cluster: &Cluster) -> Result<()> {
        let Self { pod, made, restarts: before, watch } = self;
        let is_again = |seen: &Seen| seen.name() == pod && restarts(&seen.object) > before;
        let what = format!("another run of {pod}");
        let again = watch.until(&what, POD_LIMIT, |seen| is_again(&seen).then_some(seen.at))?;
        let after = again.duration_since(made)?;
        ensure!(after >= BACK_OFF, "{pod} ran again {after:?} after it was made");
        cluster.request("DELETE", &path(&pod), "application/json", &json!({}))?;
        cluster.wait_gone(&path(&pod))
    }
}

/// How often the container of a pod was started again.
fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0)
}

/// How many tokens the node has asked for.
fn tokens(cluster: &Cluster) -> Result<usize> {
    let audit = cluster.audit()?;
    Ok(audit.iter().filter(|event| event.is("create", "serviceaccounts/token")).count())
}

/// The lease after so many renewals.
fn renewed(cluster: &Cluster, times: usize) -> Result<Value> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}");
    let time = |lease: &Value| lease["spec"]["renewTime"].clone();
    let mut last = cluster.get_json(&path)?;
    for _ in 0..times {
        last = cluster.wait_for(&path, "renewed", |lease| time(lease) != time(&last))?;
    }
    Ok(last)
}

/// Nothing that a watch has seen of an object until now was unready. A mark tells where that is.
pub(crate) fn never_unready(cluster: &Cluster, watch: &Watch, kind: &str, name: &str) -> Result<()> {
    let mark = json!({ "metadata": { "annotations": { "mark": "last" } } });
    cluster.request("PATCH", &format!("{kind}/{name}"), "application/merge-patch+json", &mark)?;
    let is_marked = |seen: &Seen| seen.object["metadata"]["annotations"]["mark"] == "last";
    let mut unready = Vec::new();
    watch.until("everything that was seen", SOON, |seen| {
        if seen.name() == name && !seen.is("Ready") {
            unready.push(seen.object["status"].clone());
        }
        (seen.name() == name && is_marked(&seen)).then_some(())
    })?;
    ensure!(unready.is_empty(), "{name} was unready: {unready:#?}");
    Ok(())
}
