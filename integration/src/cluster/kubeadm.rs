//! A machine on which kubeadm makes a control plane, or a node of one: with a containerd whose CRI plugin is on, a `kubelet`,
//! and somebody who starts it.
//!
//! What kubeadm needs of the place: `kubelet` in `PATH`, which tells its version; containerd's socket; the images; `/etc/kubernetes`
//! and `/var/lib/kubelet` to write to; and a service manager that knows `kubelet`. It finds `systemctl` by its name, so a script of
//! that name stands in for systemd here, and starts the kubelet as the drop-in `10-kubeadm.conf` of its packages does.
//!
//! `/etc` is an overlay as long as the machine lives: what kubeadm writes there is the lab's own.

mod documents;
mod join;
mod overlay;
mod power;
mod service;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, umount2};
use serde_json::Value;

pub(super) use self::documents::{kube_proxy_configuration, kubelet_configuration};
pub use self::join::Join;
use self::overlay::Overlay;
use self::service::{PROGRAM, Service};
use super::programs::AUDIT_POLICY as AUDIT_RULES;
use super::{ADDRESS, AUDIT, AuditEvent, Client, audit, images, network};
use crate::containerd::{Containerd, SOCKET};
use crate::lab::World;
use crate::node::leftovers::Baseline;
use crate::node::{GONE_LIMIT, system};
use crate::process::{Process, tail};
use crate::wait::{self, Look};
use crate::{binaries, cni, components, files, links};

/// The name of the node.
pub const NODE: &str = "lab";
/// The kubelet's directory, which kubeadm takes for granted.
const KUBELET_DIR: &str = "/var/lib/kubelet";
/// The one thing that kubeadm is not to mind: control groups of version 1.
const NOT_MINDED: &str = "--ignore-preflight-errors=SystemVerification";
/// Where the API server writes what it was asked, on the machine.
const AUDIT_DIR: &str = "/var/log/kubernetes";
const AUDIT_POLICY: &str = "/etc/kubernetes/audit.yaml";
/// On a machine busy with other tests.
const LIMIT: Duration = Duration::from_secs(180);

/// What is called `kubelet`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubelet {
    /// The kubelet.
    Upstream,
    /// Berth, by that name.
    Berth,
}

/// A machine with containerd and the images, before or after kubeadm.
#[derive(Debug)]
pub struct Machine {
    world: World,
    kubelet: Kubelet,
    dir: PathBuf,
    service: Service,
    /// Its containerd.
    pub containerd: Containerd,
    before: Baseline,
    _overlays: Vec<Overlay>,
}

impl Machine {
    /// Makes one of the lab.
    ///
    /// # Errors
    /// A part did not become ready.
    pub fn prepare(kubelet: Kubelet) -> Result<Self> {
        let world = World::here()?;
        world.make_cgroup()?;
        let dir = world.root().join("machine");
        let program = match kubelet {
            Kubelet::Upstream => components::binary("kubelet")?,
            Kubelet::Berth => binaries::path("berth")?,
        };
        let service = Service::install(&dir)?;
        let overlays =
            ["etc", "opt", "usr/bin"].map(|name| Overlay::mount(&Path::new("/").join(name), &dir.join(name)));
        let overlays = overlays.into_iter().collect::<Result<Vec<_>>>()?;
        _ = fs::remove_file(PROGRAM);
        symlink(program, PROGRAM).context("install the kubelet")?;
        // kubeadm looks the name up, and waits for who does not answer.
        let hosts = files::read("/etc/hosts")?;
        files::write("/etc/hosts", format!("{hosts}{ADDRESS} {NODE}\n"))?;
        let containerd = Containerd::start(&world.root().join("containerd"), binaries::search_path(None)?)?;
        images::import()?;
        let before = Baseline::take()?;
        Ok(Self { world, kubelet, dir, service, containerd, before, _overlays: overlays })
    }

    /// Gives pods a network: containerd's CRI plugin is told of it, or Berth in the usual places.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add_network(&self) -> Result<()> {
        let network = cni::network(&self.world.root().join("leases"));
        match self.kubelet {
            Kubelet::Upstream => cni::write(&self.containerd.cni_conf(), &network),
            Kubelet::Berth => {
                let plugins = Path::new(network::PLUGINS);
                files::make_dir(plugins.parent().unwrap_or(plugins))?;
                symlink(components::bin_dir(), plugins).context("link the plugins")?;
                cni::write(Path::new(network::NETWORKS), &network)
            }
        }
    }

    /// `kubeadm init`: a control plane of static pods. Gives who asks it.
    ///
    /// # Errors
    /// kubeadm failed, or not in time; the failure has what it and the kubelet said.
    pub fn init(&self) -> Result<Client> {
        files::make_dir(AUDIT_DIR)?;
        files::make_dir("/etc/kubernetes")?;
        fs::write(AUDIT_POLICY, AUDIT_RULES).context("write what is to be audited")?;
        let config = self.write("init.yaml", &documents::init(&self.world))?;
        self.kubeadm(&["init", NOT_MINDED, "--config", &config])?;
        Client::new(&self.dir, "/etc/kubernetes/admin.conf".into())
    }

    /// Everything that the API server of [`Machine::init`] was asked so far.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn audit(&self) -> Result<Vec<AuditEvent>> {
        audit::read(&Path::new(AUDIT_DIR).join(AUDIT))
    }

    /// `kubeadm join`: a node of a control plane.
    ///
    /// # Errors
    /// As of [`Machine::init`].
    pub fn join(&self, join: &Join) -> Result<()> {
        let config = self.write("join.yaml", &[join.document(NODE)])?;
        self.kubeadm(&["join", NOT_MINDED, "--config", &config])
    }

    /// `kubeadm upgrade node`: the configuration that the cluster has for kubelets takes the place of the node's, for the next
    /// start of its kubelet.
    ///
    /// # Errors
    /// As of [`Machine::init`].
    pub fn upgrade(&self) -> Result<()> {
        self.kubeadm(&["upgrade", "node", NOT_MINDED])
    }

    /// What kubeadm minded so far and went on with, by the names of its checks.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub fn minded(&self) -> Result<BTreeSet<String>> {
        let log = files::read(self.dir.join("kubeadm.log"))?;
        let names = log.lines().filter_map(|line| line.trim().strip_prefix("[WARNING ")?.split_once(']'));
        Ok(names.map(|(name, _)| name.to_owned()).collect())
    }

    /// `kubeadm reset`: no node and no control plane.
    ///
    /// # Errors
    /// As of [`Machine::init`].
    pub fn reset(&self) -> Result<()> {
        self.kubeadm(&["reset", "--force", "--cri-socket", &format!("unix://{SOCKET}")])
    }

    /// Berth's own word after `kubeadm reset`, which asks CRI alone what runs and finds no pods of Berth's: all of them end.
    ///
    /// # Errors
    /// Something of a pod could not be removed.
    pub fn reset_berth(&self) -> Result<()> {
        let root = self.world.cgroup_root();
        let berth = binaries::path("berth")?.display().to_string();
        let group = format!("--cgroup-root={root}");
        system(&berth, &["reset", "--fail-cgroupv1=false", "--cgroup-driver=cgroupfs", &group]).map(drop)
    }

    fn remove_bridge(&self) -> Result<()> {
        if links::names()?.contains(cni::BRIDGE) {
            system("ip", &["link", "delete", cni::BRIDGE])?;
        }
        Ok(())
    }

    /// Starts the kubelet, as `systemctl start kubelet`; nothing when it runs.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_kubelet(&self) -> Result<()> {
        self.service.systemctl("start")
    }

    /// Starts the kubelet anew.
    ///
    /// # Errors
    /// It did not end in time, or cannot be started.
    pub fn restart_kubelet(&self) -> Result<()> {
        self.service.systemctl("restart")
    }

    /// Flags of the kubelet beside those of kubeadm, which come first.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add_kubelet_args(&self, args: &str) -> Result<()> {
        let file = Path::new("/etc/default/kubelet");
        fs::write(file, format!("KUBELET_EXTRA_ARGS=\"{args}\"\n"))
            .context("write what packages leave to the administrator")
    }

    /// Ends the kubelet with SIGTERM and waits for its end.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop_kubelet(&self) -> Result<()> {
        self.service.systemctl("stop")
    }

    /// The kubelet's process.
    ///
    /// # Errors
    /// None was started.
    pub fn kubelet_pid(&self) -> Result<u32> {
        self.service.pid()
    }

    /// The end of the kubelet's log.
    #[must_use]
    pub fn kubelet_log(&self) -> String {
        tail(&self.service.log())
    }

    /// The file that the kubelet logs to.
    #[must_use]
    pub fn kubelet_log_file(&self) -> PathBuf {
        self.service.log()
    }

    /// Ends what runs, after [`Machine::reset`] and, where the node was Berth's, [`Machine::reset_berth`].
    ///
    /// # Errors
    /// Something did not end, or was left of a pod of Berth's.
    pub fn end(mut self) -> Result<()> {
        self.stop_kubelet()?;
        if self.kubelet == Kubelet::Berth {
            // The kernel takes the links of a network namespace away when it comes to it.
            wait::until("nothing to be left of pods", GONE_LIMIT, || {
                let left = self.before.left(&self.world, &self.world.root().join("leases"))?;
                Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(left.join("\n  ")) })
            })?;
        }
        self.containerd.stop()?;
        self.remove_bridge()?;
        // kubeadm leaves the mount of a directory on itself that a kubelet makes of its own.
        while umount2(KUBELET_DIR, MntFlags::MNT_DETACH).is_ok() {}
        self.world.remove_cgroups()
    }

    fn kubeadm(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new(components::binary("kubeadm")?);
        command.args(args).env("PATH", &self.service.path);
        let log = self.dir.join("kubeadm.log");
        let mut kubeadm = Process::start("kubeadm", &mut command, &log)?;
        let what = format!("kubeadm {}", args.first().unwrap_or(&""));
        let status = wait::until(&what, LIMIT, || {
            Ok(kubeadm.status()?.map_or_else(|| Look::NotYet(kubeadm.log_tail()), Look::Ready))
        })?;
        ensure!(status.success(), "{what} ended with {status}: {}", kubeadm.log_tail());
        Ok(())
    }

    fn write(&self, name: &str, documents: &[Value]) -> Result<String> {
        let path = self.dir.join(name);
        let documents: Vec<String> = documents.iter().map(Value::to_string).collect();
        files::write(&path, documents.join("\n---\n"))?;
        Ok(path.display().to_string())
    }
}
