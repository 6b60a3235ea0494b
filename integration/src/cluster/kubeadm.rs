//! A machine on which kubeadm makes a control plane, or a node of one: with a containerd whose CRI plugin is on, a `kubelet`,
//! and somebody who starts it.
//!
//! What kubeadm needs of the place: `kubelet` in `PATH`, which tells its version; containerd's socket; the images; `/etc/kubernetes`
//! and `/var/lib/kubelet` to write to; and a service manager that knows `kubelet`. It finds `systemctl` by its name, so a script of
//! that name stands in for systemd here, and starts the kubelet as the drop-in `10-kubeadm.conf` of its packages does.
//!
//! `/etc` is an overlay as long as the machine lives: what kubeadm writes there is the lab's own.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::programs::{AUDIT_POLICY as AUDIT_RULES, PODS, SERVICES};
use super::{ADDRESS, AUDIT, AuditEvent, Client, PORT, TOKEN, VERSION, audit, images, network};
use crate::containerd::{Containerd, SOCKET};
use crate::lab::World;
use crate::node::system;
use crate::process::{Process, tail};
use crate::wait::{self, Look};
use crate::{binaries, cni, components, links};

/// The name of the node.
pub const NODE: &str = "lab";
/// Where packages install the kubelet.
const PROGRAM: &str = "/usr/bin/kubelet";
/// The kubelet's directory, which kubeadm takes for granted.
const KUBELET_DIR: &str = "/var/lib/kubelet";
/// The one thing that kubeadm is not to mind: control groups of version 1.
const NOT_MINDED: &str = "--ignore-preflight-errors=SystemVerification";
/// Where the API server writes what it was asked, on the machine.
const AUDIT_DIR: &str = "/var/log/kubernetes";
const AUDIT_POLICY: &str = "/etc/kubernetes/audit.yaml";
/// What of a machine is in memory.
const IN_MEMORY: [&str; 3] = ["/run/berth", "/run/containerd", "/run/netns"];
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
    path: OsString,
    /// Its containerd.
    pub containerd: Containerd,
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
        let programs = dir.join("bin");
        fs::create_dir_all(&programs)?;
        let program = match kubelet {
            Kubelet::Upstream => components::binary("kubelet")?,
            Kubelet::Berth => binaries::path("berth")?,
        };
        let service_manager = programs.join("systemctl");
        fs::write(&service_manager, systemctl(&dir))?;
        fs::set_permissions(&service_manager, fs::Permissions::from_mode(0o755))?;
        let path = binaries::search_path(Some(&programs))?;
        let overlays =
            ["etc", "opt", "usr/bin"].map(|name| Overlay::mount(&Path::new("/").join(name), &dir.join(name)));
        let overlays = overlays.into_iter().collect::<Result<Vec<_>>>()?;
        _ = fs::remove_file(PROGRAM);
        symlink(program, PROGRAM).context("install the kubelet")?;
        // kubeadm looks the name up, and waits for who does not answer.
        let hosts = fs::read_to_string("/etc/hosts").context("read /etc/hosts")?;
        fs::write("/etc/hosts", format!("{hosts}{ADDRESS} {NODE}\n")).context("write /etc/hosts")?;
        let containerd = Containerd::start(&world.root().join("containerd"), binaries::search_path(None)?)?;
        images::import()?;
        Ok(Self { world, kubelet, dir, path, containerd, _overlays: overlays })
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
                fs::create_dir_all(plugins.parent().unwrap_or(plugins))?;
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
        fs::create_dir_all(AUDIT_DIR)?;
        fs::create_dir_all("/etc/kubernetes")?;
        fs::write(AUDIT_POLICY, AUDIT_RULES).context("write what is to be audited")?;
        let config = self.write("init.yaml", &init_documents(&self.world))?;
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

    /// `kubeadm join`: a node of the control plane at an address.
    ///
    /// # Errors
    /// As of [`Machine::init`].
    pub fn join(&self, address: Ipv4Addr, port: u16) -> Result<()> {
        let config = self.write("join.yaml", &[join_document(address, port)])?;
        self.kubeadm(&["join", NOT_MINDED, "--config", &config])
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

    /// SIGKILL for everything at once: the kubelet, containerd, shims, every process of every pod. Those of the test stay.
    ///
    /// # Errors
    /// Something does not end.
    pub fn kill_everything(&mut self, client: &Client) -> Result<()> {
        let stay = [1, std::process::id(), client.pid()];
        wait::until("everything to have ended", LIMIT, || {
            let mut left = self.world.processes()?;
            left.retain(|pid| !stay.contains(pid) && !has_ended(*pid));
            for pid in &left {
                let _may_have_ended = kill(Pid::from_raw(i32::try_from(*pid)?), Signal::SIGKILL);
            }
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
        })?;
        self.containerd.kill()
    }

    /// The machine is switched off: everything has ended, and what is in memory is gone.
    ///
    /// # Errors
    /// Something could not be removed.
    pub fn switch_off(&mut self, client: &Client) -> Result<()> {
        self.kill_everything(client)?;
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        let in_memory = |at: &&str| {
            at.starts_with("/var/lib/kubelet/")
                || IN_MEMORY.iter().any(|dir| at.starts_with(&format!("{dir}/")))
        };
        let mounts: Vec<&str> =
            table.lines().filter_map(|line| line.split(' ').nth(4)).filter(in_memory).collect();
        for at in mounts.iter().rev() {
            system("umount", &["--lazy", at])?;
        }
        for dir in IN_MEMORY.into_iter().filter(|dir| Path::new(dir).exists()) {
            fs::remove_dir_all(dir).with_context(|| format!("remove {dir}"))?;
        }
        for what in ["--flush", "--delete-chain"] {
            system("iptables", &["--table", "nat", what])?;
        }
        self.remove_bridge()?;
        for group in self.world.cgroups()? {
            // Those with processes of the lab stay.
            drop(fs::remove_dir(group));
        }
        Ok(())
    }

    /// Starts what a machine starts: containerd and the kubelet.
    ///
    /// # Errors
    /// One does not start.
    pub fn switch_on(&mut self) -> Result<()> {
        self.containerd.start_again()?;
        self.start_kubelet()
    }

    /// Starts again what has ended by itself, as a service manager does; tells what.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn keep(&mut self) -> Result<Option<&'static str>> {
        if self.containerd.ended()? {
            self.containerd.start_again()?;
            return Ok(Some("containerd"));
        }
        if has_ended(self.kubelet_pid()?) {
            self.start_kubelet()?;
            return Ok(Some("the kubelet"));
        }
        Ok(None)
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
        self.systemctl("start")
    }

    /// Ends the kubelet with SIGTERM and waits for its end.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop_kubelet(&self) -> Result<()> {
        self.systemctl("stop")
    }

    /// The kubelet's process.
    ///
    /// # Errors
    /// None was started.
    pub fn kubelet_pid(&self) -> Result<u32> {
        let file = self.dir.join("kubelet.pid");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        Ok(text.trim().parse()?)
    }

    /// The end of the kubelet's log.
    #[must_use]
    pub fn kubelet_log(&self) -> String {
        tail(&self.dir.join("kubelet.log"))
    }

    /// Ends what runs, after [`Machine::reset`].
    ///
    /// # Errors
    /// Something did not end.
    pub fn end(mut self) -> Result<()> {
        self.stop_kubelet()?;
        self.containerd.stop()?;
        self.remove_bridge()?;
        // kubeadm leaves the mount of a directory on itself that a kubelet makes of its own.
        while umount2(KUBELET_DIR, MntFlags::MNT_DETACH).is_ok() {}
        self.world.remove_cgroups()
    }

    fn kubeadm(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new(components::binary("kubeadm")?);
        command.args(args).env("PATH", &self.path);
        let log = self.dir.join("kubeadm.log");
        let mut kubeadm = Process::start("kubeadm", &mut command, &log)?;
        let what = format!("kubeadm {}", args.first().unwrap_or(&""));
        let status = wait::until(&what, LIMIT, || {
            Ok(kubeadm.status()?.map_or_else(|| Look::NotYet(kubeadm.log_tail()), Look::Ready))
        })?;
        ensure!(status.success(), "{what} ended with {status}: {}", kubeadm.log_tail());
        Ok(())
    }

    fn systemctl(&self, verb: &str) -> Result<()> {
        let program = self.dir.join("bin/systemctl").display().to_string();
        let done = Command::new(program).args([verb, "kubelet"]).env("PATH", &self.path).status()?;
        ensure!(done.success(), "systemctl {verb} kubelet ended with {done}");
        Ok(())
    }

    fn write(&self, name: &str, documents: &[Value]) -> Result<String> {
        let path = self.dir.join(name);
        let documents: Vec<String> = documents.iter().map(Value::to_string).collect();
        fs::write(&path, documents.join("\n---\n")).with_context(|| format!("write {}", path.display()))?;
        Ok(path.display().to_string())
    }
}

/// Whether there is no such process, or nobody has waited for it yet.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

/// What every kubelet of a lab has to be told, whoever it is.
pub(super) fn kubelet_configuration(world: &World) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": world.cgroup_root(),
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "evictionHard": { "memory.available": "1Mi" },
    })
}

/// The limit of connections is the machine's, which no network namespace but the first can set.
pub(super) fn kube_proxy_configuration() -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}

fn node_registration() -> Value {
    json!({ "name": NODE, "criSocket": format!("unix://{SOCKET}"), "imagePullPolicy": "Never", "taints": [] })
}

fn init_documents(world: &World) -> [Value; 4] {
    let init = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "localAPIEndpoint": { "advertiseAddress": ADDRESS, "bindPort": PORT },
        "nodeRegistration": node_registration(),
        "bootstrapTokens": [{ "token": TOKEN }],
    });
    let cluster = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": VERSION,
        "encryptionAlgorithm": "ECDSA-P256",
        "networking": { "serviceSubnet": SERVICES, "podSubnet": PODS },
        "apiServer": {
            "extraArgs": [
                { "name": "audit-policy-file", "value": AUDIT_POLICY },
                { "name": "audit-log-path", "value": format!("{AUDIT_DIR}/{AUDIT}") },
                { "name": "audit-log-mode", "value": "blocking" },
            ],
            "extraVolumes": [
                volume("audit-policy", AUDIT_POLICY, "File", true),
                volume("audit-log", AUDIT_DIR, "Directory", false),
            ],
        },
    });
    [init, cluster, kubelet_configuration(world), kube_proxy_configuration()]
}

/// What of the machine the API server sees, at the same place.
fn volume(name: &str, path: &str, kind: &str, is_read_only: bool) -> Value {
    json!({ "name": name, "hostPath": path, "mountPath": path, "pathType": kind, "readOnly": is_read_only })
}

fn join_document(address: Ipv4Addr, port: u16) -> Value {
    json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "JoinConfiguration",
        "nodeRegistration": node_registration(),
        "discovery": { "bootstrapToken": {
            "apiServerEndpoint": format!("{address}:{port}"),
            "token": TOKEN,
            "unsafeSkipCAVerification": true,
        } },
    })
}

/// Knows one service. What it starts is the lab's init's, as that of a service manager is.
fn systemctl(dir: &Path) -> String {
    let script = r#"#!/bin/sh
# systemctl VERB [--quiet] SERVICE: as far as kubeadm calls it.
for last; do :; done
pid="$(cat DIR/kubelet.pid 2>/dev/null || echo 0)"
runs() { [ "$pid" -gt 0 ] && kill -0 "$pid" 2>/dev/null; }
stop() {
    runs || return 0
    kill "$pid"
    for _ in $(seq 200); do runs || return 0; sleep 0.1; done
    return 1
}
start() {
    runs && return 0
    KUBELET_KUBEADM_ARGS=
    [ ! -f /var/lib/kubelet/kubeadm-flags.env ] || . /var/lib/kubelet/kubeadm-flags.env
    setsid sh -c 'echo $$ >DIR/kubelet.pid; exec /usr/bin/kubelet "$@"' sh \
        --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
        --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS >>DIR/kubelet.log 2>&1 </dev/null &
}
echo "$*" >>DIR/systemctl.log
case "$1" in
    daemon-reload) exit 0 ;;
esac
[ "${last%.service}" = kubelet ] || exit 4
case "$1" in
    start) start ;;
    stop) stop ;;
    restart) stop && pid=0 && start ;;
    is-active) runs ;;
    is-enabled) echo enabled ;;
    status) echo "Loaded: loaded" ;;
    *) exit 1 ;;
esac
"#;
    script.replace("DIR", &dir.display().to_string())
}

/// A directory over which what is written is in another one.
#[derive(Debug)]
struct Overlay(PathBuf);

impl Overlay {
    fn mount(over: &Path, kept: &Path) -> Result<Self> {
        let (upper, work) = (kept.join("upper"), kept.join("work"));
        fs::create_dir_all(&upper)?;
        fs::create_dir_all(&work)?;
        let options =
            format!("lowerdir={},upperdir={},workdir={}", over.display(), upper.display(), work.display());
        mount(Some("overlay"), over, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("mount an overlay over {}", over.display()))?;
        Ok(Self(over.to_owned()))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // The lab tells of a mount that stays.
        _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
