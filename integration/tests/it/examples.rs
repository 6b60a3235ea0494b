//! The example pods: up, visible to every tool of the field, and gone without a trace.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::components;
use berth_integration::containerd::ctr;
use berth_integration::files;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::vm::{self, Feature};

use crate::kit::{eventually, group, logged, page, task_pid};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("examples::all_run_and_leave_nothing", all_run),
        test("examples::containerd_shows_ids_and_labels", containerd_shows_them),
    ]
}

fn example(node: &Node, name: &str) -> Result<()> {
    let path = components::workspace().join("examples").join(format!("{name}.yaml"));
    node.apply(name, &files::read(path)?)
}

fn all_run() -> Result<()> {
    let node = Node::start_with(&Settings::with_registry())?;
    for name in ["web", "init-and-sidecar", "once", "shared-volume", "guaranteed"] {
        example(&node, name)?;
    }
    let web = node.ready("web")?;
    let host_port = (!vm::lacks(Feature::Nat)).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)));
    for at in [SocketAddr::from((web.ip()?, 80))].into_iter().chain(host_port) {
        same(&at.to_string(), page(at, "/")?.text(), format!("hello from {}\n", web.name()))?;
    }
    let sidecar = node.ready("init-and-sidecar")?;
    logged(&sidecar, "tail", "prepared\n")?;
    let shared = node.ready("shared-volume")?;
    let shared = SocketAddr::from((shared.ip()?, 80));
    // Both containers run before either has done anything.
    eventually("status of /now", &200, || Ok(page(shared, "/now")?.status))?;
    let guaranteed = node.ready("guaranteed")?;
    logged(&guaranteed, "main", "uid=1000(app) gid=1000(app) groups=1000(app)")?;
    let once = node.wait("once", "Succeeded", POD_LIMIT, |pod| pod.phase() == "Succeeded")?;
    let ended = &once.container("count")["state"]["terminated"];
    same("termination message", ended["message"].as_str(), Some("done\n"))?;
    same("reason", ended["reason"].as_str(), Some("Completed"))?;
    same("logs of a pod that ended", logged(&once, "count", "3\n")?, "1\n2\n3\n".to_owned())?;
    eventually("the cgroups of a pod that ended are gone", &Vec::new(), || {
        group(&node.world, &once)?.dirs()
    })?;
    node.end()
}

fn containerd_shows_them() -> Result<()> {
    let node = Node::start()?;
    example(&node, "web")?;
    let web = node.ready("web")?;
    let id = web.container_id("httpd")?;
    ensure!(task_pid(id)? > 1, "the task has no process");
    let shown = ctr(&["containers", "info", id])?;
    let info: serde_json::Value = serde_json::from_str(&shown)?;
    for (label, value) in [
        ("io.kubernetes.pod.name", web.name()),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", web.uid()),
        ("io.kubernetes.container.name", "httpd"),
    ] {
        same(label, info["Labels"][label].as_str(), Some(value))?;
    }
    same("runtime", info["Runtime"]["Name"].as_str(), Some("io.containerd.berth.v1"))?;
    same("image", info["Image"].as_str(), Some("localhost:5000/busybox:1"))?;
    let annotations = &info["Spec"]["annotations"];
    same("sandbox name", annotations["io.kubernetes.cri.sandbox-name"].as_str(), Some(web.name()))?;
    let sandbox = annotations["io.kubernetes.cri.sandbox-id"].as_str().context("no sandbox id")?;
    let of_sandbox: serde_json::Value = serde_json::from_str(&ctr(&["containers", "info", sandbox])?)?;
    same("pod of the sandbox", of_sandbox["Labels"]["io.kubernetes.pod.uid"].as_str(), Some(web.uid()))?;

    let link = format!("/var/log/containers/{}_default_httpd-{id}.log", web.name());
    let log = fs::read_link(&link).with_context(|| format!("follow {link}"))?;
    let wanted = format!("/var/log/pods/default_{}_{}/httpd/0.log", web.name(), web.uid());
    same("link to the log", log.display().to_string(), wanted)?;
    node.end()
}
