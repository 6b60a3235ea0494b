//! A kubelet with its own containerd, root directory and cgroups. Networks, network namespaces, rules and the directory of log
//! links are everybody's; directories of logs are not, since a kubelet removes those of pods that it does not know.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::kubelet::{self, Kubelet, LOGS};
use berth_integration::node::{Node, POD_LIMIT, system};
use berth_integration::vm::Feature;
use berth_integration::wait::{self, Look};
use berth_integration::{components, containerd, cri};
use serde_json::{Value, json};

use crate::kit::{sleeper, task_pid};
use crate::lives::Identity;
use crate::suite::{LONG_LIMIT, Test, same, test};

/// Where links to logs of both are.
const LINKS: &str = "/var/log/containers";
/// Network namespaces of both.
const NETNS: &str = "/run/netns";
/// Between two collections of a kubelet (`ContainerGCPeriod` of `pkg/kubelet/kubelet.go`).
const COLLECTED_EVERY: Duration = Duration::from_secs(60);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("neighbours::a_kubelet_with_its_own_containerd", beside_a_kubelet)
            .long()
            .within(LONG_LIMIT)
            .needs(Feature::Nat),
    ]
}

/// A kubelet that runs, without a control plane.
struct Theirs(Kubelet);

impl Theirs {
    fn start(node: &Node) -> Result<Self> {
        Kubelet::start(node, kubelet::Settings::default()).map(Self)
    }

    /// Its one container, once it runs.
    fn runs(&self) -> Result<Value> {
        wait::until("their container to run", POD_LIMIT, || {
            let running = kubelet::containers()?.into_iter().find(|one| one["state"] == "CONTAINER_RUNNING");
            Ok(running.map_or_else(|| Look::NotYet("none runs".to_owned()), Look::Ready))
        })
        .with_context(|| self.0.log_tail())
    }

    /// Waits until it has collected what it takes for left behind, once more than it has done until now: all logs of pods
    /// that it does not know, and links to logs that lead nowhere (decision 0026).
    fn collects(&self) -> Result<()> {
        let directory = Path::new(LOGS).join("default_bait_00000000-0000-0000-0000-000000000000");
        fs::create_dir(&directory)?;
        let link = Path::new("/var/log/containers/bait_default_main-abc.log");
        symlink("/nowhere/0.log", link)?;
        wait::until("their collection", COLLECTED_EVERY * 3, || {
            let left: Vec<&Path> =
                [&*directory, link].into_iter().filter(|bait| bait.symlink_metadata().is_ok()).collect();
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
        })
    }

    /// Ends its pod, then itself. Containerd tells a sandbox as not ready before it has released its network, and cuts that off in
    /// the middle when the kubelet that asked for it ends: the plugin's empty chain would stay.
    fn end(self, node: &Node) -> Result<()> {
        fs::remove_file(self.0.manifests().join("theirs.yaml"))?;
        wait::until("their pod to be gone", POD_LIMIT, || {
            let left = cri::call_at(kubelet::SOCKET, "RuntimeService/ListPodSandbox", &json!({}))?;
            let left = left["items"].as_array().cloned().unwrap_or_default();
            let left = left.iter().filter(|one| one["state"] != "SANDBOX_NOTREADY").map(Value::to_string);
            let left: Vec<_> = left.chain(their_netns()?).collect();
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
        })?;
        self.0.end(node)
    }
}

/// Network namespaces that their containerd has made and not removed yet, which it does last.
fn their_netns() -> Result<Vec<String>> {
    let names = fs::read_dir(NETNS)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    Ok(names.into_iter().filter(|name| name.starts_with("cni-")).collect())
}

/// Everything that is anybody's on the machine, a line each.
fn held(node: &Node) -> Result<BTreeSet<String>> {
    let mut held = BTreeSet::new();
    for dir in [NETNS, "/var/lib/cni", "/var/log/pods", LOGS, LINKS] {
        files(Path::new(dir), &mut held)?;
    }
    files(&node.world.root().join("leases"), &mut held)?;
    held.extend(node.world.cgroups()?.iter().map(|group| format!("cgroup {}", group.display())));
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    held.extend(mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|at| format!("mount {at}")));
    let rules = system("iptables-save", &["-t", "nat"])?;
    held.extend(rules.lines().filter(|line| line.starts_with("-A")).map(|rule| format!("rule {rule}")));
    let ctr = components::binary("ctr")?.display().to_string();
    for socket in [containerd::SOCKET, kubelet::SOCKET] {
        for list in ["containers", "sandboxes", "snapshots"] {
            let rows =
                system(&ctr, &["--address", socket, "--namespace", containerd::NAMESPACE, list, "ls"])?;
            // The space between columns depends on the other rows.
            let rows = rows.lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "));
            held.extend(rows.map(|row| format!("{list} at {socket}: {row}")));
        }
    }
    Ok(held)
}

/// Every file below a directory, but locks and the last addresses, which change with each pod.
fn files(dir: &Path, all: &mut BTreeSet<String>) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name == "lock" || name.starts_with("last_reserved_ip") {
            continue;
        }
        all.insert(format!("file {}", path.display()));
        if path.is_dir() && !path.is_symlink() {
            files(&path, all)?;
        }
    }
    Ok(())
}

/// What of a container a neighbour could harm.
fn of_theirs(kubelet: &Theirs) -> Result<Value> {
    let container = kubelet.runs()?;
    let request = json!({ "containerId": container["id"], "verbose": true });
    let answer = cri::call_at(kubelet::SOCKET, "RuntimeService/ContainerStatus", &request)?;
    let info: Value = serde_json::from_str(answer["info"]["info"].as_str().context("no info")?)?;
    let pid = info["pid"].as_u64().context("no pid")?;
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}"));
    Ok(json!([container["id"], answer["status"]["startedAt"], pid, read("cgroup")?, read("mountinfo")?]))
}

fn of_ours(node: &Node) -> Result<(Identity, String, String)> {
    let pod = node.ready("ours")?;
    let pid = task_pid(pod.container_id("main")?)?;
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}"));
    Ok((Identity::of(&pod)?, read("cgroup")?, read("mountinfo")?))
}

fn nothing_went(when: &str, node: &Node, before: &BTreeSet<String>) -> Result<()> {
    let now = held(node)?;
    let gone: Vec<&String> = before.difference(&now).collect();
    ensure!(gone.is_empty(), "{when} is gone:\n{gone:#?}");
    Ok(())
}

fn beside_a_kubelet() -> Result<()> {
    let mut node = Node::prepare(&Settings {
        berth: json!({ "cni": { "gcPeriod": "1s" } }),
        ..Settings::with_registry()
    })?;
    let mut kubelet = Theirs::start(&node)?;
    fs::write(kubelet.0.manifests().join("theirs.yaml"), sleeper("theirs"))?;
    let theirs = of_theirs(&kubelet)?;
    same("their network namespaces", their_netns()?.len(), 1)?;
    let before = held(&node)?;
    let unharmed = |kubelet: &Theirs, when: &str, node: &Node| -> Result<()> {
        same(when, &of_theirs(kubelet)?, &theirs)?;
        nothing_went(when, node, &before)
    };

    // Theirs, under whatever happens to ours.
    node.agent.start()?;
    node.apply("ours", &sleeper("ours"))?;
    node.apply("goes", &sleeper("goes"))?;
    node.ready("goes")?;
    let ours = of_ours(&node)?;
    unharmed(&kubelet, "after the start of ours", &node)?;
    node.agent.kill()?;
    node.agent.start()?;
    same("ours after a crash", &of_ours(&node)?, &ours)?;
    node.containerd.kill()?;
    node.containerd.start_again()?;
    node.remove("goes")?;
    node.gone("goes")?;
    unharmed(&kubelet, "after a crash and the removal of one of ours", &node)?;

    // Ours, under whatever happens to theirs.
    let both = held(&node)?;
    kubelet.0.stop_kubelet()?;
    kubelet.0.kill_containerd()?;
    kubelet.0.start_containerd()?;
    kubelet.0.start_kubelet()?;
    same("theirs after their restart", &of_theirs(&kubelet)?, &theirs)?;
    kubelet.collects()?;
    same("ours after their restart and collection", &of_ours(&node)?, &ours)?;
    nothing_went("after their restart and collection", &node, &both)?;

    node.remove("ours")?;
    node.gone("ours")?;
    node.agent.stop()?;
    unharmed(&kubelet, "after the stop of ours", &node)?;
    node.agent.start()?;
    node.apply("ours", &sleeper("ours"))?;
    let ours = of_ours(&node)?;
    kubelet.end(&node)?;
    same("ours after the end of theirs", &of_ours(&node)?, &ours)?;
    node.end()
}
