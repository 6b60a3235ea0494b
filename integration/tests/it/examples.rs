//! The example pods: up, visible to every tool of the field, and gone without a trace.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use berth_integration::containerd::{ctr, ctr_rows};
use berth_integration::node::cgroups::{of_class, of_pod};
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::vm::{self, Feature};
use berth_integration::{cgroup, components, http};

use crate::kit::{cgroup_value, eventually, logged, pod, shell, task_pid};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("examples::all_run_and_leave_nothing", all_run),
        test("examples::containerd_shows_ids_and_labels", containerd_shows_them),
        test("examples::cgroups_of_the_three_classes", cgroups),
    ]
}

fn example(node: &Node, name: &str) -> Result<()> {
    let path = components::workspace().join("examples").join(format!("{name}.yaml"));
    node.apply(name, &fs::read_to_string(path)?)
}

fn all_run() -> Result<()> {
    let node = Node::start()?;
    for name in ["web", "init-and-sidecar", "once", "shared-volume", "guaranteed"] {
        example(&node, name)?;
    }
    let web = node.ready("web")?;
    let host_port = (!vm::lacks(Feature::Nat)).then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)));
    for at in [SocketAddr::from((web.ip()?, 80))].into_iter().chain(host_port) {
        same(&at.to_string(), http::get(at, "/")?.text(), format!("hello from {}\n", web.name()))?;
    }
    let sidecar = node.ready("init-and-sidecar")?;
    logged(&sidecar, "tail", "prepared\n")?;
    let shared = node.ready("shared-volume")?;
    let now = http::get(SocketAddr::from((shared.ip()?, 80)), "/now")?;
    same("status of /now", now.status, 200)?;
    let guaranteed = node.ready("guaranteed")?;
    logged(&guaranteed, "main", "uid=1000(app) gid=1000(app) groups=1000(app)")?;
    let once = node.wait("once", "Succeeded", POD_LIMIT, |pod| pod.phase() == "Succeeded")?;
    let ended = &once.container("count")["state"]["terminated"];
    same("termination message", ended["message"].as_str(), Some("done\n"))?;
    same("reason", ended["reason"].as_str(), Some("Completed"))?;
    same("logs of a pod that ended", logged(&once, "count", "3\n")?, "1\n2\n3\n".to_owned())?;
    eventually("the cgroups of a pod that ended are gone", &Vec::new(), || cgroups_of(&node, &once))?;
    node.end()
}

/// Cgroups of a BestEffort pod.
fn cgroups_of(node: &Node, pod: &PodState) -> Result<Vec<PathBuf>> {
    let below = of_pod(&node.world, "besteffort", pod.uid());
    let groups = cgroup::hierarchies()?.into_iter().map(|hierarchy| hierarchy.join(&below));
    Ok(groups.filter(|path| path.exists()).collect())
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
        ("io.cri-containerd.kind", "container"),
    ] {
        same(label, info["Labels"][label].as_str(), Some(value))?;
    }
    same("runtime", info["Runtime"]["Name"].as_str(), Some("io.containerd.berth.v1"))?;
    same("image", info["Image"].as_str(), Some("localhost:5000/busybox:1"))?;
    let annotations = &info["Spec"]["annotations"];
    same("sandbox name", annotations["io.kubernetes.cri.sandbox-name"].as_str(), Some(web.name()))?;
    let sandbox = annotations["io.kubernetes.cri.sandbox-id"].as_str().context("no sandbox id")?;
    let sandboxes = ctr_rows(&["sandboxes", "ls"])?;
    ensure!(sandboxes.iter().any(|row| row[0] == sandbox), "{sandbox} is not in {sandboxes:?}");

    let log = fs::read_link(format!("/var/log/containers/{}_default_httpd-{id}.log", web.name()))?;
    let wanted = format!("/var/log/pods/default_{}_{}/httpd/0.log", web.name(), web.uid());
    same("link to the log", log.display().to_string(), wanted)?;
    node.end()
}

/// The names of the files that hold a pod's values.
struct CgroupFiles {
    /// 0 for version 1 of the hierarchy, 1 for version 2.
    version: usize,
    shares: &'static str,
    quota: &'static str,
    memory: &'static str,
}

const CGROUP_FILES: [CgroupFiles; 2] = [
    CgroupFiles {
        version: 0,
        shares: "cpu.shares",
        quota: "cpu.cfs_quota_us",
        memory: "memory.limit_in_bytes",
    },
    CgroupFiles { version: 1, shares: "cpu.weight", quota: "cpu.max", memory: "memory.max" },
];

fn cgroups() -> Result<()> {
    let files = &CGROUP_FILES[usize::from(cgroup::is_unified())];
    let node = Node::start()?;
    example(&node, "guaranteed")?;
    let limits = serde_json::json!({ "resources": {
        "requests": { "cpu": "250m", "memory": "16Mi" }, "limits": { "cpu": "500m", "memory": "32Mi" } } });
    let burst = shell("main", "exec sleep infinity", limits);
    node.apply("burst", &pod("burst", serde_json::json!({ "containers": [burst] })))?;
    node.apply("best", &crate::kit::sleeper("best"))?;
    const MIB: u64 = 1 << 20;
    // On version 2 the shares 102, 256 and 2 of version 1 are weights, and a bound has its period beside it.
    for (name, class, shares, quota, memory, oom) in [
        ("guaranteed", "", ["102", "17"], ["10000", "10000 100000"], Some(32 * MIB), None),
        ("burst", "burstable", ["256", "35"], ["50000", "50000 100000"], Some(32 * MIB), None),
        ("best", "besteffort", ["2", "1"], ["-1", "max 100000"], None, Some("1000")),
    ] {
        let pod = node.ready(name)?;
        same(
            "class",
            pod.0["status"]["qosClass"].as_str().map(str::to_lowercase),
            Some(match class {
                "" => "guaranteed".to_owned(),
                class => class.to_owned(),
            }),
        )?;
        let id = pod.container_id("main")?;
        for below in ["", id] {
            let value = |file| cgroup_value(&node, class, &pod, below, file);
            let at = |file| format!("{file} of {name} {below}");
            same(&at(files.shares), value(files.shares)?.as_str(), shares[files.version])?;
            same(&at(files.quota), value(files.quota)?.as_str(), quota[files.version])?;
            let limit = value(files.memory)?;
            let unbounded = limit == "max" || limit.parse::<u64>().is_ok_and(|bytes| bytes > 1 << 60);
            ensure!(
                memory.map_or(unbounded, |wanted| limit == wanted.to_string()),
                "memory of {name} {below}: {limit}"
            );
        }
        let adj = fs::read_to_string(format!("/proc/{}/oom_score_adj", task_pid(id)?))?;
        if let Some(oom) = oom {
            same("oom_score_adj", adj.trim(), oom)?;
        }
    }
    // The class as a whole: the sum of its pods' requests.
    let top = cgroup::of_controller("cpu");
    let class = |class: &str| fs::read_to_string(top.join(of_class(&node.world, class)).join(files.shares));
    same("shares of Burstable", class("burstable")?.trim(), ["256", "35"][files.version])?;
    same("shares of BestEffort", class("besteffort")?.trim(), ["2", "1"][files.version])?;
    node.end()
}
