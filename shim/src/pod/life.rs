//! A pod from its creation to its release.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_proto::shim::SandboxOptions;
use berth_shim_core::namespace::{NamespaceType, Namespaces, Sysctl};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::sethostname;

use super::asked::Asked;
use super::error::PodError;
use super::network::Netns;
use super::node::Node;
use super::shm;
use super::user::UserNamespace;
use crate::{mount as mounts, sys};

/// Longest name that sethostname(2) takes.
const HOST_NAME_BYTES_MAX: usize = 64;

/// A sandbox, as it was created, and what it holds.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) netns_path: String,
    options: Option<SandboxOptions>,
    asked: Asked,
    pub(super) bundle: PathBuf,
    /// Held open, by which members join it.
    pub(super) user: Option<UserNamespace>,
    /// Where the shim came from, and the OCI runtime goes back to.
    node: Option<Node>,
    /// The PID 1 of the pod's pid namespace.
    pid1: Option<u32>,
    pub(super) shm: bool,
}

impl Pod {
    pub(crate) fn new(
        id: String,
        bundle: PathBuf,
        netns_path: String,
        options: Option<SandboxOptions>,
    ) -> Result<Self, PodError> {
        let asked = Asked::of(options.as_ref(), &netns_path)?;
        Ok(Self { id, netns_path, options, asked, bundle, user: None, node: None, pid1: None, shm: false })
    }

    pub(crate) fn options(&self) -> Option<&SandboxOptions> {
        self.options.as_ref()
    }

    /// The user and group of the node that are root of the pod's user namespace, where it has one.
    pub(crate) fn root(&self) -> Option<(u32, u32)> {
        self.namespaces().user().map(|maps| (maps.uids.root(), maps.gids.root()))
    }

    pub(super) fn namespaces(&self) -> &Namespaces {
        &self.asked.namespaces
    }

    /// Enters or makes the namespaces; returns the pid of the process that holds them.
    pub(crate) fn enter(&mut self) -> Result<u32, PodError> {
        if self.node.is_none() {
            self.node = Some(Node::of_self(&self.asked.namespaces).map_err(PodError::Node)?);
        }
        let path = Path::new(&self.netns_path);
        let netns = if self.netns_path.is_empty() { None } else { Some(Netns::open(path)?) };
        self.user = match self.asked.namespaces.user() {
            Some(maps) => Some(UserNamespace::of_pod(maps, netns.as_ref())?),
            None => None,
        };
        if let Some(netns) = netns {
            netns.enter()?;
        }
        self.enter_made()?;
        self.set_hostname()?;
        for (sysctl, value) in &self.asked.sysctls {
            self.write_sysctl(sysctl, value)?;
        }
        if self.namespaces().is_pods(NamespaceType::Ipc) && !self.shm {
            let owner = self.asked.namespaces.user();
            shm::mount(&self.bundle, self.asked.shm_bytes, owner)?;
            self.shm = true;
        }
        if self.asked.pid1 { self.pid1() } else { Ok(std::process::id()) }
    }

    /// Stops the PID 1, which ends every process of its namespace, and unmounts what was mounted.
    pub(crate) fn release(&mut self) {
        if let Some(pid) = self.pid1.take() {
            crate::cgroup::signal_process(pid, nix::libc::SIGKILL);
        }
        if std::mem::take(&mut self.shm) {
            mounts::unmount_all(&shm::shm_path(&self.bundle));
        }
        self.user = None;
    }

    /// Has a command run where containers come from: in the node's namespaces, not in the pod's that the shim is in.
    ///
    /// What a container's spec leaves out is then the node's, hooks run on the node, and a runtime that asks whether a
    /// sysctl would change the node finds out.
    pub(crate) fn on_node(&self, command: &mut Command) {
        if let Some(node) = &self.node {
            node.before_exec(command);
        }
    }

    /// The way back to the node's namespaces, once the shim has left them.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    pub(super) fn pid1(&mut self) -> Result<u32, PodError> {
        if let Some(pid) = self.pid1 {
            return Ok(pid);
        }
        let user = self.user.as_ref();
        let enter = || user.map_or(Ok(()), UserNamespace::enter);
        let pid = sys::spawn_pid1(enter).map_err(PodError::Pid1)?;
        self.pid1 = Some(pid);
        Ok(pid)
    }

    /// Makes the IPC and UTS namespaces that are the pod's, owned by its user namespace if it has one, and enters them.
    fn enter_made(&self) -> Result<(), PodError> {
        let mut flags = CloneFlags::empty();
        flags.set(CloneFlags::CLONE_NEWIPC, self.namespaces().is_pods(NamespaceType::Ipc));
        flags.set(CloneFlags::CLONE_NEWUTS, self.namespaces().is_pods(NamespaceType::Uts));
        let Some(user) = &self.user else {
            return unshare(flags).map_err(|error| PodError::Unshare(error.into()));
        };
        let enter = |pid: u32| {
            for (kind, flag) in [
                (NamespaceType::Ipc, CloneFlags::CLONE_NEWIPC),
                (NamespaceType::Uts, CloneFlags::CLONE_NEWUTS),
            ] {
                if flags.contains(flag) {
                    setns(fs::File::open(format!("/proc/{pid}/ns/{}", kind.file()))?, flag)?;
                }
            }
            Ok(())
        };
        user.visit(flags, enter).map_err(PodError::Unshare)
    }

    fn set_hostname(&self) -> Result<(), PodError> {
        let asked = &self.asked.hostname;
        if asked.is_empty() || !self.namespaces().is_pods(NamespaceType::Uts) {
            return Ok(());
        }
        let name = asked.get(..HOST_NAME_BYTES_MAX).unwrap_or(asked);
        sethostname(name).map_err(|source| PodError::HostName { name: name.to_owned(), source })
    }

    /// Writes a sysctl as the one who may: the pod's root for what its user namespace owns, which also reads ids in
    /// values as the pod means them (`net.ipv4.ping_group_range`), else the node's.
    fn write_sysctl(&self, sysctl: &Sysctl, value: &str) -> Result<(), PodError> {
        let file = Path::new("/proc/sys").join(&sysctl.file);
        let write = || fs::write(file, value);
        let written: io::Result<()> = match (&self.user, sysctl.kind) {
            (Some(user), NamespaceType::Network | NamespaceType::Ipc) => user.as_root(write),
            (Some(_) | None, _) => write(),
        };
        written.map_err(|source| PodError::Sysctl { file: sysctl.file.clone(), source })
    }
}
