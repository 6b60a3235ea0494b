//! Ephemeral containers, as `kubectl debug` gives them to pods of a real API server.

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{Settings, berth};
use berth_integration::cluster::Cluster;
use serde_json::{Value, json};

use crate::api_pods::{PODS, bound, gone, is_ready, is_well_behaved, path, start};
use crate::kit::{IMAGE, eventually, exec, go_on, logged, shell, wait_at, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_debug::a_container_comes_sees_its_target_and_runs_once", once),
        test("api_debug::a_pod_is_over_whatever_debugs_it", over),
    ]
}

/// Gives a pod an ephemeral container.
fn debug(cluster: &Cluster, pod: &str, container: &Value) -> Result<()> {
    let patch = json!({ "spec": { "ephemeralContainers": [container] } });
    let at = format!("{}/ephemeralcontainers", path(pod));
    cluster.request("PATCH", &at, "application/strategic-merge-patch+json", &patch)?;
    Ok(())
}

fn status<'a>(pod: &'a Value, container: &str) -> &'a Value {
    const NONE: &Value = &Value::Null;
    let mut all = pod["status"]["ephemeralContainerStatuses"].as_array().into_iter().flatten();
    all.find(|one| one["name"] == container).unwrap_or(NONE)
}

fn runs(pod: &Value, container: &str) -> bool {
    status(pod, container)["state"]["running"].is_object()
}

fn once() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let main = shell("main", "exec sleep 98765", json!({}));
    cluster.create(PODS, &bound("web", json!({ "containers": [main] }))?)?;
    let before = cluster.wait_for(&path("web"), "ready", is_ready)?;

    let script = format!("tr '\\0' ' ' < /proc/1/cmdline; echo; {}; exit 7", wait_at("end"));
    debug(&cluster, "web", &shell("debugger", &script, json!({ "targetContainerName": "main" })))?;
    let pod = cluster.wait_for(&path("web"), "debugged", |pod| runs(pod, "debugger"))?;
    let web = node.ready("web")?;
    logged(&web, "debugger", "sleep 98765")?;
    same(
        "a command in it",
        exec(&web, "debugger", &["echo", "here"])?.trim_end().to_owned(),
        "here".to_owned(),
    )?;
    let shown = status(&pod, "debugger");
    same("ready", &shown["ready"], &json!(false))?;
    ensure!(shown.get("started").is_none(), "nobody asks whether it has started: {shown}");
    same("restarts", &shown["restartCount"], &json!(0))?;
    for unchanged in ["phase", "containerStatuses", "podIP", "qosClass"] {
        same(unchanged, &pod["status"][unchanged], &before["status"][unchanged])?;
    }
    ensure!(is_ready(&pod), "{pod}");
    eventually("its start to be told", &true, || {
        let events = cluster.get_json("/api/v1/namespaces/default/events")?;
        let mut all = events["items"].as_array().into_iter().flatten();
        let of_it =
            |event: &&Value| event["involvedObject"]["fieldPath"] == "spec.ephemeralContainers{debugger}";
        Ok(all.any(|event| of_it(&event) && event["reason"] == "Started"))
    })?;
    ensure!(berth(&["inspect", "web"])?.contains("Ephemeral containers:"), "it is not inspected");

    // The next agent finds it, and hears how it ends.
    node.agent.kill()?;
    node.agent.start()?;
    let web = node.ready("web")?;
    same(
        "a command in it",
        exec(&web, "debugger", &["echo", "here"])?.trim_end().to_owned(),
        "here".to_owned(),
    )?;
    same("what it shows", status(&cluster.get_json(&path("web"))?, "debugger"), shown)?;
    go_on(&web, "main", "end")?;
    let end = |pod: &Value| status(pod, "debugger")["state"]["terminated"]["exitCode"].as_i64();
    let ended = cluster.wait_for(&path("web"), "no longer debugged", |pod| end(pod) == Some(7))?;
    same("whose end it is", &status(&ended, "debugger")["containerID"], &shown["containerID"])?;

    // Nor does the one after that start it again, also while another comes.
    node.agent.kill()?;
    node.agent.start()?;
    let target = ["--target=main", "--container=another", "--image", IMAGE];
    let command = ["--", "sh", "-c", "exec sleep 45678"];
    cluster.kubectl(&[&["debug", "web"], &target[..], &command[..]].concat())?;
    let pod = cluster.wait_for(&path("web"), "debugged again", |pod| runs(pod, "another"))?;
    same("the first", status(&pod, "debugger"), status(&ended, "debugger"))?;
    let web = node.ready("web")?;
    let seen = exec(&web, "another", &["cat", "/proc/1/cmdline"])?;
    same("its target", seen.replace('\0', " ").trim_end().to_owned(), "sleep 98765".to_owned())?;
    same("the pod", &pod["status"]["containerStatuses"], &before["status"]["containerStatuses"])?;

    cluster.request("DELETE", &path("web"), "application/json", &json!({}))?;
    gone(&cluster, "web")?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// One that comes before its target has begun waits and says so; none keeps its pod.
fn over() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let waits_at = |door: &str| shell(door, &format!("{}; exit 0", wait_at(door)), json!({}));
    let (init, main) = (waits_at("first"), waits_at("main"));
    let spec = json!({ "restartPolicy": "Never", "initContainers": [init], "containers": [main] });
    cluster.create(PODS, &bound("job", spec)?)?;
    let runs_first = |pod: &Value| pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object();
    cluster.wait_for(&path("job"), "being initialized", runs_first)?;
    let sleeper = |name: &str, more: Value| with(shell(name, "exec sleep infinity", json!({})), more);
    debug(&cluster, "job", &sleeper("early", json!({})))?;
    debug(&cluster, "job", &sleeper("late", json!({ "targetContainerName": "main" })))?;
    let waits = |pod: &Value| {
        let waiting = status(pod, "late")["state"]["waiting"].clone();
        waiting
            == json!({ "reason": "CreateContainerConfigError", "message": "unable to find target container main" })
    };
    let pod = cluster.wait_for(&path("job"), "debugged by one", |pod| runs(pod, "early") && waits(pod))?;
    same("phase", &pod["status"]["phase"], &json!("Pending"))?;
    let of_node = || node.pod("job")?.context("the node has no such pod");
    go_on(&of_node()?, "first", "first")?;
    cluster.wait_for(&path("job"), "debugged by both", |pod| runs(pod, "early") && runs(pod, "late"))?;
    go_on(&of_node()?, "main", "main")?;
    let is_over = |pod: &Value| pod["status"]["phase"] == "Succeeded";
    let pod = cluster.wait_for(&path("job"), "over", is_over)?;
    for name in ["early", "late"] {
        let end = &status(&pod, name)["state"]["terminated"];
        ensure!(end["exitCode"] == 137 || end["exitCode"] == 143, "{name}: {end}");
    }
    cluster.request("DELETE", &path("job"), "application/json", &json!({}))?;
    gone(&cluster, "job")?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}
