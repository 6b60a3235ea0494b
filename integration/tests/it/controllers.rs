//! The real controllers and the real scheduler with a node of Berth: workloads come, change and end as they ask for.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::{self, Cluster};
use berth_integration::lab::World;
use berth_integration::node::{GONE_LIMIT, Node};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, eventually, shell, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("controllers::roll_out_scale_and_replace", roll_out),
        test("controllers::run_jobs_to_their_end", jobs).long(),
        test("controllers::drain_evict_and_taint", drain),
    ]
}

const APPS: &str = "/apis/apps/v1/namespaces/default";
const BATCH: &str = "/apis/batch/v1/namespaces/default";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// A cron job begins with the minute.
const CRON_LIMIT: Duration = Duration::from_secs(150);

/// A whole control plane and a node that takes pods.
fn start() -> Result<(Cluster, Node)> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::whole())?;
    let flags = vec![format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display())];
    let node = Node::start_with(&Settings { flags, ..Settings::default() })?;
    Ok((cluster, node))
}

/// Everything was allowed, and everything ends.
fn end(cluster: Cluster, node: Node) -> Result<()> {
    let audit = cluster.audit()?;
    let refused = cluster::refused(&audit, NODE_NAME);
    ensure!(refused.is_empty(), "the node was refused: {refused:#?}");
    node.end()?;
    cluster.end()
}

/// The template of a pod that is ready as long as its file is there, and ends at once when it is asked to.
fn template(app: &str, version: &str) -> Value {
    let script = format!("trap 'exit 0' TERM; touch /tmp/ready; {FOR_EVER}");
    // However busy the machine is, it is answered in time.
    let exec = json!({ "command": ["test", "-e", "/tmp/ready"] });
    let probe = json!({ "exec": exec, "periodSeconds": 1, "timeoutSeconds": 30 });
    let env = json!([{ "name": "VERSION", "value": version }]);
    let main = shell("main", &script, json!({ "readinessProbe": probe, "env": env }));
    json!({ "metadata": { "labels": { "app": app } }, "spec": { "containers": [main] } })
}

fn workload(kind: &str, name: &str, version: &str, more: Value) -> Value {
    let spec = json!({ "selector": { "matchLabels": { "app": name } }, "template": template(name, version) });
    json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name }, "spec": with(spec, more) })
}

/// Changes the version of a workload, which replaces its pods.
fn change(cluster: &Cluster, path: &str, version: &str) -> Result<()> {
    let env = json!([{ "name": "VERSION", "value": version }]);
    let patch =
        json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "env": env }] } } } });
    cluster.request("PATCH", path, "application/strategic-merge-patch+json", &patch).map(drop)
}

fn scale(cluster: &Cluster, path: &str, replicas: u32) -> Result<()> {
    let patch = json!({ "spec": { "replicas": replicas } });
    cluster.request("PATCH", path, "application/merge-patch+json", &patch).map(drop)
}

/// Whether the controller has seen the last change, and every pod is of it and available.
fn is_rolled_out(object: &Value, replicas: u64) -> bool {
    let status = &object["status"];
    let count = |field: &str| status[field].as_u64().unwrap_or(0);
    status["observedGeneration"] == object["metadata"]["generation"]
        && ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|field| count(field) == replicas)
}

/// The pods of an app, by name, with their uid and version.
fn pods(cluster: &Cluster, app: &str) -> Result<Vec<[String; 3]>> {
    let list = cluster.get_json(&format!("{PODS}?labelSelector=app%3D{app}"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |pod: &Value| {
        let version = &pod["spec"]["containers"][0]["env"][0]["value"];
        [text(&pod["metadata"]["name"]), text(&pod["metadata"]["uid"]), text(version)]
    };
    Ok(list["items"].as_array().context("no list of pods")?.iter().map(of).collect())
}

fn no_pods(cluster: &Cluster, app: &str) -> Result<()> {
    wait::until(&format!("pods of {app} to be gone"), GONE_LIMIT, || {
        let left = pods(cluster, app)?;
        Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
    })
}

/// Waits until there are as many pods as before, all others, and of version 2. A controller counts a pod no more, and makes the
/// next, as soon as the pod's containers have ended: its object is there until the node has cleaned up.
fn replaced(cluster: &Cluster, app: &str, before: &[[String; 3]]) -> Result<()> {
    wait::until(&format!("the pods of before to be gone from {app}"), GONE_LIMIT, || {
        let now = pods(cluster, app)?;
        let is_new = |pod: &[String; 3]| pod[2] == "2" && before.iter().all(|old| old[1] != pod[1]);
        Ok(if now.len() == before.len() && now.iter().all(is_new) {
            Look::Ready(())
        } else {
            Look::NotYet(format!("{now:?}"))
        })
    })
}

fn roll_out() -> Result<()> {
    let (cluster, node) = start()?;
    cluster.create(
        &format!("{APPS}/deployments"),
        &workload("Deployment", "web", "1", json!({ "replicas": 2 })),
    )?;
    let set = json!({ "replicas": 2, "serviceName": "db" });
    cluster.create(&format!("{APPS}/statefulsets"), &workload("StatefulSet", "db", "1", set))?;
    cluster.create(&format!("{APPS}/daemonsets"), &workload("DaemonSet", "each", "1", json!({})))?;

    let web = format!("{APPS}/deployments/web");
    cluster.wait_for(&web, "rolled out", |web| is_rolled_out(web, 2))?;
    let first = pods(&cluster, "web")?;
    change(&cluster, &web, "2")?;
    cluster.wait_for(&web, "rolled out again", |web| is_rolled_out(web, 2))?;
    replaced(&cluster, "web", &first)?;

    let db = format!("{APPS}/statefulsets/db");
    cluster.wait_for(&db, "rolled out", |db| is_rolled_out(db, 2))?;
    let before = cluster.get_json(&format!("{PODS}/db-0"))?;
    cluster.request("DELETE", &format!("{PODS}/db-0"), "application/json", &json!({}))?;
    let uid = &before["metadata"]["uid"];
    let is_other = |pod: &Value| pod["metadata"]["uid"] != *uid && is_ready(pod);
    cluster.wait_for(&format!("{PODS}/db-0"), "another one, and ready", is_other)?;
    change(&cluster, &db, "2")?;
    cluster.wait_for(&db, "rolled out again", |db| is_rolled_out(db, 2))?;

    let each = format!("{APPS}/daemonsets/each");
    let is_each = |set: &Value| {
        set["status"]["observedGeneration"] == set["metadata"]["generation"]
            && set["status"]["updatedNumberScheduled"] == 1
            && set["status"]["numberAvailable"] == 1
    };
    cluster.wait_for(&each, "on its node", is_each)?;
    let first = pods(&cluster, "each")?;
    change(&cluster, &each, "2")?;
    cluster.wait_for(&each, "on its node again", is_each)?;
    replaced(&cluster, "each", &first)?;

    scale(&cluster, &web, 0)?;
    no_pods(&cluster, "web")?;
    cluster.request("DELETE", &each, "application/json", &json!({}))?;
    scale(&cluster, &db, 0)?;
    for app in ["each", "db"] {
        no_pods(&cluster, app)?;
    }
    end(cluster, node)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

fn has(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == condition && one["status"] == "True"))
}

/// A job of so many pods, of which a script runs; it gives up at the first that fails.
fn job(name: &str, script: &str, more: Value) -> Value {
    let pod = json!({ "restartPolicy": "Never", "containers": [shell("main", script, json!({}))] });
    let template = json!({ "metadata": { "labels": { "app": name } }, "spec": pod });
    let spec = with(json!({ "template": template, "backoffLimit": 0 }), more);
    json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name }, "spec": spec })
}

fn jobs() -> Result<()> {
    let (cluster, node) = start()?;
    let jobs = format!("{BATCH}/jobs");
    let cron = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": { "name": "cron" },
        "spec": { "schedule": "* * * * *", "jobTemplate": { "spec": job("tick", "exit 0", json!({}))["spec"] } } });
    cluster.create(&format!("{BATCH}/cronjobs"), &cron)?;

    let many = json!({ "completions": 3, "parallelism": 2, "completionMode": "Indexed" });
    cluster.create(&jobs, &job("many", "test -n \"$JOB_COMPLETION_INDEX\"", many))?;
    cluster.create(&jobs, &job("fails", "exit 7", json!({})))?;
    let stops = json!({ "activeDeadlineSeconds": 2 });
    cluster.create(&jobs, &job("stops", FOR_EVER, stops))?;
    let many = cluster.wait_for(&format!("{jobs}/many"), "complete", |job| has(job, "Complete"))?;
    same("pods that succeeded", &many["status"]["succeeded"], &json!(3))?;
    same("which", &many["status"]["completedIndexes"], &json!("0-2"))?;
    let fails = cluster.wait_for(&format!("{jobs}/fails"), "failed", |job| has(job, "Failed"))?;
    same("pods that failed", &fails["status"]["failed"], &json!(1))?;
    cluster.wait_for(&format!("{jobs}/stops"), "failed", |job| has(job, "Failed"))?;
    no_pods(&cluster, "stops")?;

    wait::until("a job of the cron job to be complete", CRON_LIMIT, || {
        let all = cluster.get_json(&jobs)?;
        let of_cron = |job: &&Value| job["metadata"]["ownerReferences"][0]["kind"] == "CronJob";
        let found = all["items"].as_array().into_iter().flatten().find(of_cron);
        Ok(if found.is_some_and(|job| has(job, "Complete")) {
            Look::Ready(())
        } else {
            Look::NotYet(format!("{found:?}"))
        })
    })
    .with_context(|| cluster.situation())?;
    cluster.request("DELETE", &format!("{BATCH}/cronjobs/cron"), "application/json", &json!({}))?;
    for name in ["many", "fails"] {
        let policy = json!({ "propagationPolicy": "Foreground" });
        cluster.request("DELETE", &format!("{jobs}/{name}"), "application/json", &policy)?;
        no_pods(&cluster, name)?;
    }
    no_pods(&cluster, "tick")?;
    end(cluster, node)
}

fn drain() -> Result<()> {
    let (cluster, node) = start()?;
    let web = format!("{APPS}/deployments/web");
    cluster.create(
        &format!("{APPS}/deployments"),
        &workload("Deployment", "web", "1", json!({ "replicas": 2 })),
    )?;
    cluster.wait_for(&web, "rolled out", |web| is_rolled_out(web, 2))?;

    // An eviction that a budget forbids is refused, and no pod ends.
    let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
        "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "web" } } } });
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    cluster.create(budgets, &budget)?;
    cluster
        .wait_for(&format!("{budgets}/web"), "counted", |budget| budget["status"]["currentHealthy"] == 2)?;
    let before = pods(&cluster, "web")?;
    let evict = |pod: &str| {
        let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod } });
        cluster.create(&format!("{PODS}/{pod}/eviction"), &eviction)
    };
    let refused = evict(&before[0][0]).err().context("an eviction against the budget")?;
    ensure!(refused.to_string().contains("429"), "{refused:#}");
    same("pods after it", pods(&cluster, "web")?, before.clone())?;

    cluster.request("DELETE", &format!("{budgets}/web"), "application/json", &json!({}))?;
    cluster.kubectl(&["cordon", NODE_NAME])?;
    evict(&before[0][0])?;
    wait::until("the evicted pod to be gone", GONE_LIMIT, || {
        let left = pods(&cluster, "web")?;
        let is_there = left.iter().any(|pod| pod[1] == before[0][1]);
        Ok(if is_there { Look::NotYet(format!("{left:?}")) } else { Look::Ready(()) })
    })?;
    cluster.kubectl(&["drain", NODE_NAME, "--timeout=60s"])?;
    let waits = pods(&cluster, "web")?;
    ensure!(waits.iter().all(|pod| before.iter().all(|old| old[1] != pod[1])), "{waits:?}");
    // The node shows a pod for a moment after its object has gone.
    eventually("pods of the node", &0, || Ok(node.pods()?.len()))?;
    cluster.kubectl(&["uncordon", NODE_NAME])?;
    cluster.wait_for(&web, "rolled out on the node again", |web| is_rolled_out(web, 2))?;

    let running = pods(&cluster, "web")?;
    cluster.kubectl(&["taint", "nodes", NODE_NAME, "away=yes:NoExecute"])?;
    wait::until("the pods to be driven away", GONE_LIMIT, || {
        let left = pods(&cluster, "web")?;
        let is_there = left.iter().any(|pod| running.iter().any(|old| old[1] == pod[1]));
        Ok(if is_there { Look::NotYet(format!("{left:?}")) } else { Look::Ready(()) })
    })?;
    cluster.kubectl(&["taint", "nodes", NODE_NAME, "away=yes:NoExecute-"])?;
    cluster.wait_for(&web, "rolled out once more", |web| is_rolled_out(web, 2))?;
    scale(&cluster, &web, 0)?;
    no_pods(&cluster, "web")?;
    end(cluster, node)
}
