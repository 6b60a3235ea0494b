//! A second Berth: its own state, root directory and cgroups, and mostly its own containerd; network, namespaces and rules are
//! everybody's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use berth::control::EventObject;
use berth_integration::control::Control;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::process::Process;
use berth_integration::wait::{self, Look};
use berth_integration::{binaries, cgroup, components, containerd};
use nix::sys::signal::Signal;
use serde_json::json;

/// Everything of it in `/run`.
const RUN: &str = "/run/second";
/// Its root directory.
pub(super) const ROOT_DIR: &str = "/var/lib/second";
const START_LIMIT: Duration = Duration::from_secs(30);

/// A second Berth that runs.
pub(super) struct Second {
    dir: PathBuf,
    control: Control,
    containerd: Option<Process>,
    agent: Option<Process>,
}

impl Second {
    /// Starts one beside a node, on the same network.
    pub(super) fn start(node: &Node, plugins: &Path) -> Result<Self> {
        let dir = node.world.root().join("second");
        fs::create_dir_all(&dir)?;
        let mut containerd = Process::start(
            "second containerd",
            Command::new(components::binary("containerd")?)
                .arg("--config")
                .arg(containerd_config(&dir)?)
                .env("PATH", binaries::search_path(None)?),
            &dir.join("containerd.log"),
        )?;
        containerd.ready(START_LIMIT, || {
            let asked = Command::new(components::binary("ctr")?)
                .args(["--address", &format!("{RUN}/containerd.sock"), "version"])
                .output()?;
            let said = String::from_utf8_lossy(&asked.stderr).into_owned();
            Ok(if asked.status.success() { Look::Ready(()) } else { Look::NotYet(said) })
        })?;
        let endpoint = format!("{RUN}/containerd.sock");
        Self::start_at(node, plugins, dir, &endpoint, Some(containerd))
    }

    /// Starts one at the containerd of the node.
    pub(super) fn start_beside(node: &Node, plugins: &Path) -> Result<Self> {
        let dir = node.world.root().join("second");
        Self::start_at(node, plugins, dir, containerd::SOCKET, None)
    }

    fn start_at(
        node: &Node,
        plugins: &Path,
        dir: PathBuf,
        endpoint: &str,
        containerd: Option<Process>,
    ) -> Result<Self> {
        fs::create_dir_all(dir.join("manifests"))?;
        let cgroup_root = format!("{}/second", node.world.cgroup_root());
        for hierarchy in cgroup::hierarchies()? {
            fs::create_dir_all(hierarchy.join(cgroup_root.trim_start_matches('/')))?;
        }
        let kubelet = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": dir.join("manifests"),
            "containerRuntimeEndpoint": format!("unix://{endpoint}"),
            "cgroupRoot": cgroup_root,
            "failCgroupV1": false,
            "failSwapOn": false,
        });
        let berth = json!({
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "BerthConfiguration",
            "stateDir": format!("{RUN}/berth"),
            "cni": { "confDir": node.cni_conf(), "binDirs": [plugins], "gcPeriod": "1s" },
            "registryConfigDir": node.containerd.registries(),
        });
        fs::write(dir.join("config.yaml"), format!("{kubelet}\n---\n{berth}\n"))?;
        let control = Control::at(Path::new(RUN).join("berth/berth.sock"))?;
        let mut second = Self { dir, control, containerd, agent: None };
        second.start_agent()?;
        Ok(second)
    }

    /// Starts its agent.
    pub(super) fn start_agent(&mut self) -> Result<()> {
        let mut agent = Process::start(
            "second berth",
            Command::new(binaries::path("berth")?)
                .args(["run", "--root-dir", ROOT_DIR, "--hostname-override", "second", "--config"])
                .arg(self.dir.join("config.yaml"))
                .env("PATH", binaries::search_path(None)?),
            &self.dir.join("agent.log"),
        )?;
        agent.ready(START_LIMIT, || {
            Ok(match self.control.overview() {
                Ok(_answering) => Look::Ready(()),
                Err(failure) => Look::NotYet(format!("{failure:#}")),
            })
        })?;
        self.agent = Some(agent);
        Ok(())
    }

    /// Ends its agent with SIGKILL.
    pub(super) fn kill_agent(&mut self) -> Result<()> {
        self.agent.take().map_or(Ok(()), Process::kill)
    }

    /// Puts a manifest there.
    pub(super) fn apply(&self, manifest: &str) -> Result<()> {
        let part = self.dir.join("part");
        fs::write(&part, manifest)?;
        Ok(fs::rename(part, self.manifest())?)
    }

    /// Its one pod, once it is Ready.
    pub(super) fn ready(&self) -> Result<PodState> {
        wait::until("the second Berth's pod to be Ready", POD_LIMIT, || {
            let shown = self.pods()?;
            Ok(match shown.into_iter().find(PodState::is_ready) {
                Some(pod) => Look::Ready(pod),
                None => Look::NotYet("no pod is".to_owned()),
            })
        })
    }

    /// Ends it, its pod first, and removes its cgroups.
    pub(super) fn end(mut self) -> Result<()> {
        fs::remove_file(self.manifest())?;
        wait::until("the second Berth's pod to be gone", POD_LIMIT, || {
            let left = self.pods()?;
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
        })?;
        let agent = self.agent.take().context("its agent does not run")?;
        agent.stop_with(Signal::SIGTERM)?;
        self.containerd.take().map_or(Ok(()), Process::stop)?;
        let groups = World::here()?.cgroups()?;
        for group in groups.iter().filter(|path| path.components().any(|one| one.as_os_str() == "second")) {
            fs::remove_dir(group).with_context(|| format!("remove {}", group.display()))?;
        }
        Ok(())
    }

    /// All that it shows.
    pub(super) fn pods(&self) -> Result<Vec<PodState>> {
        let shown = self.control.overview()?.pods;
        shown.iter().map(|object| Ok(PodState(serde_json::to_value(&object.pod)?))).collect()
    }

    /// What happened to a pod of it.
    pub(super) fn events(&self, uid: &str) -> Result<Vec<EventObject>> {
        let shown = self.control.overview()?.pods;
        let of_pod = shown.into_iter().filter(|object| object.pod.metadata.uid.as_deref() == Some(uid));
        Ok(of_pod.flat_map(|object| object.events).collect())
    }

    fn manifest(&self) -> PathBuf {
        self.dir.join("manifests/theirs.yaml")
    }
}

fn containerd_config(dir: &Path) -> Result<PathBuf> {
    let config = format!(
        r#"version = 3
root = "{root}"
state = "{RUN}/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"]

[debug]
level = "warn"

[grpc]
address = "{RUN}/containerd.sock"

[ttrpc]
address = "{RUN}/containerd.sock.ttrpc"

[[plugins."io.containerd.transfer.v1.local".unpack_config]]
platform = "linux"
snapshotter = "overlayfs"
"#,
        root = dir.join("containerd").display(),
    );
    let path = dir.join("containerd.toml");
    fs::write(&path, config)?;
    Ok(path)
}
