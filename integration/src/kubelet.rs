//! The real kubelet with a containerd of its own, beside a node: its root directory, cgroups and logs are its own; the network and
//! the directory of log links are the node's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::agent::merge;
use crate::node::Node;
use crate::process::Process;
use crate::registry::PAUSE;
use crate::wait::Look;
use crate::{binaries, cgroup, components, cri, files};

/// The name of its node.
pub const NODE_NAME: &str = "theirs";
/// The port of its server.
pub const PORT: u16 = 10_260;
/// The socket of its containerd.
pub const SOCKET: &str = "/run/theirs/containerd.sock";
/// Its pods' logs. A kubelet removes those of pods that it does not know, so the directory is nobody else's.
pub const LOGS: &str = "/var/log/theirs";
/// Everything of it in `/run`.
const RUN: &str = "/run/theirs";
/// Its root directory.
pub const ROOT_DIR: &str = "/var/lib/theirs";
/// Where links to logs of everybody are.
const LINKS: &str = "/var/log/containers";
const START_LIMIT: Duration = Duration::from_secs(60);

/// What a test may want otherwise.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Of a node of a cluster; without one it runs manifests alone.
    pub kubeconfig: Option<PathBuf>,
    /// Fields of `KubeletConfiguration` over those that a lab asks for.
    pub kubelet: Value,
    /// Further flags.
    pub flags: Vec<String>,
    /// The OCI runtime of its containers.
    pub oci_runtime: &'static str,
}

impl Default for Settings {
    fn default() -> Self {
        Self { kubeconfig: None, kubelet: json!({}), flags: Vec::new(), oci_runtime: "runc" }
    }
}

/// A kubelet and its containerd, both of which can be ended and started again.
#[derive(Debug)]
pub struct Kubelet {
    dir: PathBuf,
    settings: Settings,
    containerd: Option<Process>,
    kubelet: Option<Process>,
}

impl Kubelet {
    /// Starts both.
    ///
    /// # Errors
    /// A component is missing, or containerd does not become ready.
    pub fn start(node: &Node, settings: Settings) -> Result<Self> {
        let dir = node.world.root().join("theirs");
        files::make_dir(dir.join("manifests"))?;
        files::make_dir(RUN)?;
        let cgroup_root = format!("{}/theirs", node.world.cgroup_root());
        for hierarchy in cgroup::hierarchies()? {
            files::make_dir(hierarchy.join(cgroup_root.trim_start_matches('/')))?;
        }
        let mut config = kubelet_config(&dir, &cgroup_root, settings.kubeconfig.is_some());
        merge(&mut config, &settings.kubelet);
        files::write(dir.join("kubelet.yaml"), config.to_string())?;
        files::write(dir.join("containerd.toml"), containerd_config(node, &dir, settings.oci_runtime)?)?;
        let mut theirs = Self { dir, settings, containerd: None, kubelet: None };
        theirs.start_containerd()?;
        theirs.start_kubelet()?;
        Ok(theirs)
    }

    /// Starts its containerd and waits until its CRI answers.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start_containerd(&mut self) -> Result<()> {
        let mut command = Command::new(components::binary("containerd")?);
        command.arg("--config").arg(self.dir.join("containerd.toml"));
        command.env("PATH", binaries::search_path(None)?);
        let mut process = Process::start("their containerd", &mut command, &self.dir.join("containerd.log"))?;
        process.ready(START_LIMIT, || {
            Ok(match containers() {
                Ok(_answering) => Look::Ready(()),
                Err(failure) => Look::NotYet(format!("{failure:#}")),
            })
        })?;
        self.containerd = Some(process);
        Ok(())
    }

    /// Starts the kubelet.
    ///
    /// # Errors
    /// The program is missing.
    pub fn start_kubelet(&mut self) -> Result<()> {
        let mut command = Command::new(components::binary("kubelet")?);
        command.args(["--root-dir", ROOT_DIR, "--hostname-override", NODE_NAME, "--config"]);
        command.arg(self.dir.join("kubelet.yaml")).args(&self.settings.flags);
        command.arg("--cert-dir").arg(self.dir.join("pki")).env("PATH", binaries::search_path(None)?);
        // Its cAdvisor finds containers as it does where containerd has its usual socket.
        command.args(["--containerd", SOCKET]);
        if let Some(kubeconfig) = &self.settings.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
        }
        self.kubelet = Some(Process::start("kubelet", &mut command, &self.dir.join("kubelet.log"))?);
        Ok(())
    }

    /// Ends the kubelet with SIGTERM; its containers go on.
    ///
    /// # Errors
    /// It does not run, or did not end in time.
    pub fn stop_kubelet(&mut self) -> Result<()> {
        let kubelet = self.kubelet.take().context("no kubelet")?;
        kubelet.stop_with(Signal::SIGTERM).map(drop)
    }

    /// Ends its containerd with SIGKILL; containers go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill_containerd(&mut self) -> Result<()> {
        self.containerd.take().context("no containerd")?.kill()
    }

    /// The processes of both, while they run: the kubelet, then containerd.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        [&self.kubelet, &self.containerd].into_iter().flatten().map(Process::pid).collect()
    }

    /// The directory of its manifests.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// The end of the kubelet's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.kubelet.as_ref().map(Process::log_tail).unwrap_or_default()
    }

    /// Ends both, when it has no pods any more, and removes what they leave.
    ///
    /// # Errors
    /// One did not end, or something cannot be removed.
    pub fn end(mut self, node: &Node) -> Result<()> {
        self.stop_kubelet()?;
        let listed = cri::call_at(SOCKET, "RuntimeService/ListPodSandbox", &json!({}))?;
        for sandbox in listed["items"].as_array().into_iter().flatten() {
            let request = json!({ "podSandboxId": sandbox["id"] });
            cri::call_at(SOCKET, "RuntimeService/RemovePodSandbox", &request)?;
        }
        self.containerd.take().context("no containerd")?.stop()?;
        clear(node)
    }
}

/// The containers of its CRI.
///
/// # Errors
/// It does not answer.
pub fn containers() -> Result<Vec<Value>> {
    let listed = cri::call_at(SOCKET, "RuntimeService/ListContainers", &json!({}))?;
    Ok(listed["containers"].as_array().cloned().unwrap_or_default())
}

/// What a kubelet and a containerd leave when they end: a kubelet binds its root directory to itself.
fn clear(node: &Node) -> Result<()> {
    umount2(ROOT_DIR, MntFlags::MNT_DETACH).context("unmount their root directory")?;
    for dir in [ROOT_DIR, LOGS, RUN] {
        if Path::new(dir).exists() {
            files::remove_dir(dir)?;
        }
    }
    // Links that lead nowhere: a kubelet removes them every minute.
    for link in files::list(LINKS)? {
        if fs::read_link(&link).is_ok_and(|to| to.starts_with(LOGS)) {
            files::remove(link)?;
        }
    }
    for group in node.world.cgroups()? {
        if group.components().any(|part| part.as_os_str() == "theirs") {
            fs::remove_dir(&group).with_context(|| format!("remove cgroup {}", group.display()))?;
        }
    }
    Ok(())
}

fn kubelet_config(dir: &Path, cgroup_root: &str, in_cluster: bool) -> Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": dir.join("manifests"),
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "cgroupRoot": cgroup_root,
        "cgroupDriver": "cgroupfs",
        "enforceNodeAllocatable": [],
        "podLogsDir": LOGS,
        "failCgroupV1": false,
        "failSwapOn": false,
        "authentication": { "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "fileCheckFrequency": "1s",
        "evictionHard": { "memory.available": "1Mi" },
        // The usual ports are the node's.
        "port": PORT,
        "healthzPort": 0,
    });
    if !in_cluster {
        config["enableServer"] = json!(false);
    }
    config
}

fn containerd_config(node: &Node, dir: &Path, oci_runtime: &str) -> Result<String> {
    let program = oci_program(dir, oci_runtime)?;
    Ok(format!(
        r#"version = 3
root = "{root}"
state = "{RUN}/containerd"
oom_score = 0

[debug]
level = "warn"

[grpc]
address = "{SOCKET}"

[ttrpc]
address = "{SOCKET}.ttrpc"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "{registries}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{program}"

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{networks}"
"#,
        root = dir.join("containerd").display(),
        program = program.display(),
        registries = node.containerd.registries().display(),
        plugins = components::bin_dir().display(),
        networks = node.cni_conf().display(),
    ))
}

/// The same program that the agent would take. crun of Debian 12 refuses specifications of a version above 1.0, which containerd's CRI
/// writes for sandboxes whatever its configuration says: it is given another number first.
fn oci_program(dir: &Path, oci_runtime: &str) -> Result<PathBuf> {
    let program = binaries::find(oci_runtime)?;
    if oci_runtime != "crun" {
        return Ok(program);
    }
    let (wrapper, program) = (dir.join("crun"), program.display());
    let script = format!(
        r#"#!/bin/sh
case " $* " in *" create --bundle "*)
    bundle="${{*#* create --bundle }}"
    sed -i 's/"ociVersion":"1[0-9.]*"/"ociVersion":"1.0.2"/' "${{bundle%% *}}/config.json" ;;
esac
exec {program} "$@"
"#
    );
    files::write_program(&wrapper, &script)?;
    Ok(wrapper)
}
