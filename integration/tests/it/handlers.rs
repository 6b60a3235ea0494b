//! Runtime handlers that tools write into containerd's configuration, while the agent runs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings, berth};
use berth_integration::cluster::{self, Cluster};
use berth_integration::components;
use berth_integration::containerd::ctr;
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::kit::{IMAGE, eventually, pod, shell, task_pid};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("handlers::added_while_the_agent_runs", added),
        test("handlers::a_class_of_the_cluster", of_a_class),
    ]
}

/// Where the OCI runtimes of handlers are, and what they were called with.
const OWN: &str = "/run/own";

/// An OCI runtime of a name, as NVIDIA's is one: it notes that it was called, and becomes runc.
fn oci_runtime(name: &str) -> Result<PathBuf> {
    let path = Path::new(OWN).join(name);
    let calls = calls_of(name);
    let runc = components::binary("runc")?;
    fs::create_dir_all(OWN)?;
    let script = format!("#!/bin/sh\necho \"$*\" >> {}\nexec {} \"$@\"\n", calls.display(), runc.display());
    files::write_program(&path, &script)?;
    Ok(path)
}

fn calls_of(name: &str) -> PathBuf {
    Path::new(OWN).join(format!("{name}.calls"))
}

/// Whether the OCI runtime made a container.
fn made(name: &str, container: &str) -> bool {
    let calls = fs::read_to_string(calls_of(name)).unwrap_or_default();
    calls.lines().any(|call| call.contains(" create ") && call.contains(container))
}

/// Puts a file where containerd's configuration imports it, whole or not at all.
fn import(node: &Node, file: &str, text: &str) -> Result<()> {
    let dir = node.containerd.imports();
    fs::create_dir_all(&dir)?;
    fs::write(dir.join("new"), text)?;
    Ok(fs::rename(dir.join("new"), dir.join(file))?)
}

/// A handler as NVIDIA's toolkit writes it.
fn handler(name: &str, binary: &Path) -> String {
    format!(
        "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.{name}]\n\
         privileged_without_host_devices = false\nruntime_type = \"io.containerd.runc.v2\"\n\
         [plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.{name}.options]\nBinaryName = {binary:?}\n"
    )
}

fn of_class(name: &str, class: &str) -> String {
    let main = shell("main", "exec sleep infinity", json!({}));
    pod(name, json!({ "runtimeClassName": class, "containers": [main] }))
}

fn added() -> Result<()> {
    let [first, second, never] = ["first", "second", "never"].map(oci_runtime);
    let (first, second, never) = (first?, second?, never?);
    let node = Node::start_with(&Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        berth: json!({ "runtime": { "handlers": { "mine": "io.containerd.runc.v2" } } }),
        ..Settings::default()
    })?;
    import(&node, "99-nvidia.toml", &(handler("nvidia", &first)))?;
    node.apply("one", &of_class("one", "nvidia"))?;
    let one = node.ready("one")?;
    ensure!(made("first", one.container_id("main")?), "not by the handler's OCI runtime");
    same("shim", runtime_of(&one)?.as_str(), Some("io.containerd.berth.v1"))?;

    // What is there stays as it was made; what comes is as it is written now.
    import(&node, "99-nvidia.toml", &handler("nvidia", &second))?;
    import(&node, "mine.toml", &handler("mine", &never))?;
    settled(&node, "second")?;
    kill(Pid::from_raw(i32::try_from(task_pid(one.container_id("main")?)?)?), Signal::SIGKILL)?;
    let again = node.wait("one", "up again", POD_LIMIT, |pod| pod.is_ready() && pod.restarts("main") == 1)?;
    ensure!(made("first", again.container_id("main")?), "another OCI runtime in a running pod");
    node.apply("two", &of_class("two", "nvidia"))?;
    let two = node.ready("two")?;
    ensure!(made("second", two.container_id("main")?), "not by the OCI runtime of now");

    // The document of the agent is before containerd's.
    node.apply("mine", &of_class("mine", "mine"))?;
    let mine = node.ready("mine")?;
    same("shim", runtime_of(&mine)?.as_str(), Some("io.containerd.runc.v2"))?;
    ensure!(!made("never", mine.container_id("main")?), "containerd's word was taken");

    broken(&node)?;
    node.end()
}

/// A file that is wrong changes nothing, and is told until it is mended.
fn broken(node: &Node) -> Result<()> {
    // The table: JSON is a list of pods, and says nothing else.
    let told = || -> Result<bool> { Ok(berth(&["pods"])?.contains("98-slip.toml:2")) };
    import(node, "98-slip.toml", "version = 3\n[plugins\n")?;
    eventually("the fault to be told", &true, told)?;
    node.apply("three", &of_class("three", "nvidia"))?;
    let three = node.ready("three")?;
    ensure!(made("second", three.container_id("main")?), "what held does not hold");
    fs::remove_file(node.containerd.imports().join("98-slip.toml"))?;
    eventually("the fault to be gone", &false, told)
}

/// Waits until the agent has taken what was written last: its log tells when.
fn settled(node: &Node, what: &str) -> Result<()> {
    let changes = || -> Result<usize> {
        Ok(fs::read_to_string(node.agent.log())?.matches("settings of the runtime have changed").count())
    };
    // Of the first handler, and of the second; a file that only says what the document says otherwise changes nothing.
    eventually(&format!("{what} to be taken"), &true, || Ok(changes()? >= 2))
}

/// What containerd says runs the first container.
fn runtime_of(pod: &PodState) -> Result<Value> {
    let info: Value = serde_json::from_str(&ctr(&["containers", "info", pod.container_id("main")?])?)?;
    Ok(info["Runtime"]["Name"].clone())
}

const WEB: &str = "/api/v1/namespaces/default/pods/web";

/// A class whose handler has another name than it, in a cluster, and what the Node object says of handlers.
fn of_a_class() -> Result<()> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let mut node = Node::prepare(&Settings::default())?;
    let kubeconfig = cluster.node_kubeconfig(NODE_NAME)?;
    node.agent.set_flags(&[format!("--kubeconfig={}", kubeconfig.display())]);
    node.agent.start()?;
    let path = format!("/api/v1/nodes/{NODE_NAME}");
    let handlers = |node: &Value| -> Vec<String> {
        let all = node["status"]["runtimeHandlers"].as_array().cloned().unwrap_or_default();
        all.iter().map(|one| one["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    cluster
        .wait_for(&path, "with containerd's own handler", |node| handlers(node) == ["", "berth", "runc"])?;
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "gpu" }, "handler": "nvidia",
    });
    cluster.create("/apis/node.k8s.io/v1/runtimeclasses", &class)?;
    import(&node, "99-nvidia.toml", &handler("nvidia", &oci_runtime("first")?))?;
    let node_now = cluster
        .wait_for(&path, "with the handler", |node| handlers(node) == ["", "berth", "nvidia", "runc"])?;
    // It is runc. An older crun says nothing of itself, and shims of others are not asked.
    let all = node_now["status"]["runtimeHandlers"].as_array().context("no handlers")?;
    let nvidia = all.iter().find(|handler| handler["name"] == "nvidia").context("no such handler")?;
    let expected = json!({ "recursiveReadOnlyMounts": true, "userNamespaces": true });
    same("features", &nvidia["features"], &expected)?;
    let main = json!({ "name": "main", "image": IMAGE, "command": ["sleep", "infinity"] });
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "default" },
        "spec": { "nodeName": NODE_NAME, "runtimeClassName": "gpu", "terminationGracePeriodSeconds": 1, "containers": [main] },
    });
    cluster.create("/api/v1/namespaces/default/pods", &object)?;
    let web = cluster.wait_for(WEB, "running", |pod| pod["status"]["phase"] == "Running")?;
    let id = web["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
    ensure!(made("first", id.trim_start_matches("containerd://")), "not by the handler's OCI runtime: {web}");
    import(&node, "98-slip.toml", "version = 3\n[plugins\n")?;
    let told = |list: &Value| {
        let all = list["items"].as_array().cloned().unwrap_or_default();
        all.iter().any(|event| event["reason"] == "InvalidRuntimeConfiguration")
    };
    cluster.wait_for("/api/v1/namespaces/default/events", "with the fault", told)?;
    cluster.request("DELETE", WEB, "application/json", &json!({}))?;
    cluster.wait_gone(WEB)?;
    node.end()?;
    cluster.end()
}
