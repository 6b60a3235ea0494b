//! The pod's namespaces, which the shim itself enters and keeps (decision 0002).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use berth_proto::shim::{NamespaceMode, SandboxOptions};
use berth_shim_core::{Code, Failure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::sethostname;
use serde_json::{Value, json};
use thiserror::Error;

use crate::{mount as mounts, sys};

/// The kubelet's and containerd's size of a pod's /dev/shm.
const SHM_BYTES_DEFAULT: u64 = 64 << 20;
/// Longest name that sethostname(2) takes.
const HOST_NAME_BYTES_MAX: usize = 64;

/// Why the pod's namespaces could not be entered.
#[derive(Debug, Error)]
pub(crate) enum PodError {
    #[error("open the network namespace {path}", path = path.display())]
    OpenNetns { path: PathBuf, source: io::Error },
    #[error("enter the network namespace {path}", path = path.display())]
    EnterNetns { path: PathBuf, source: nix::Error },
    #[error("make the pod's IPC and UTS namespaces")]
    Unshare(#[source] nix::Error),
    #[error("set the host name {name:?}")]
    HostName { name: String, source: nix::Error },
    #[error("set sysctl {name:?}: {why}")]
    SysctlName { name: String, why: &'static str },
    #[error("set sysctl {name:?}")]
    Sysctl { name: String, source: io::Error },
    #[error("make the pod's /dev/shm")]
    ShmDirectory(#[source] io::Error),
    #[error("mount the pod's /dev/shm")]
    ShmMount(#[source] nix::Error),
    #[error("start the pod's PID 1")]
    Pid1(#[source] io::Error),
}

impl PodError {
    fn code(&self) -> Code {
        match self {
            Self::SysctlName { .. } => Code::InvalidArgument,
            Self::OpenNetns { .. }
            | Self::EnterNetns { .. }
            | Self::Unshare(_)
            | Self::HostName { .. }
            | Self::Sysctl { .. }
            | Self::ShmDirectory(_)
            | Self::ShmMount(_)
            | Self::Pid1(_) => Code::Internal,
        }
    }
}

impl From<PodError> for Failure {
    fn from(error: PodError) -> Self {
        Self::new(error.code(), format!("failed to {}", crate::chain(&error)))
    }
}

/// A sandbox, as it was created.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) id: String,
    pub(crate) netns_path: String,
    /// The agent's options; without them namespaces are the pod's wherever a member asks to share one.
    options: Option<SandboxOptions>,
    bundle: PathBuf,
    /// The PID 1 of the pod's pid namespace.
    pid1: Option<u32>,
    shm: bool,
}

impl Pod {
    pub(crate) fn new(
        id: String,
        bundle: PathBuf,
        netns_path: String,
        options: Option<SandboxOptions>,
    ) -> Self {
        Self { id, netns_path, options, bundle, pid1: None, shm: false }
    }

    pub(crate) fn options(&self) -> Option<&SandboxOptions> {
        self.options.as_ref()
    }

    /// Enters or makes the namespaces; returns the pid of the process that holds them.
    pub(crate) fn enter(&mut self) -> Result<u32, PodError> {
        let options = self.options.clone().unwrap_or_default();
        let sysctls = options
            .sysctls
            .iter()
            .map(|(name, value)| Ok((name, sysctl_path(name, self)?, value)))
            .collect::<Result<Vec<_>, PodError>>()?;
        if !self.netns_path.is_empty() {
            enter_netns(Path::new(&self.netns_path))?;
        }
        let mut flags = CloneFlags::empty();
        flags.set(CloneFlags::CLONE_NEWIPC, self.is_pods(Shared::Ipc));
        flags.set(CloneFlags::CLONE_NEWUTS, self.is_pods(Shared::Uts));
        unshare(flags).map_err(PodError::Unshare)?;
        if self.is_pods(Shared::Uts) && !options.hostname.is_empty() {
            let name = options.hostname.get(..HOST_NAME_BYTES_MAX).unwrap_or(&options.hostname);
            sethostname(name).map_err(|source| PodError::HostName { name: name.to_owned(), source })?;
        }
        for (name, path, value) in sysctls {
            fs::write(path, value).map_err(|source| PodError::Sysctl { name: name.clone(), source })?;
        }
        if self.is_pods(Shared::Ipc) && !self.shm {
            self.mount_shm(options.shm_size)?;
        }
        if options.pid() == NamespaceMode::Pod {
            return self.pid1();
        }
        Ok(std::process::id())
    }

    /// Stops the PID 1, which ends every process of its namespace, and unmounts what was mounted.
    pub(crate) fn release(&mut self) {
        if let Some(pid) = self.pid1.take() {
            crate::cgroup::signal_process(pid, nix::libc::SIGKILL);
        }
        if std::mem::take(&mut self.shm) {
            mounts::unmount_all(&shm_path(&self.bundle));
        }
    }

    /// Leads the namespaces that a member shares to the pod's own, and its /dev/shm with them.
    ///
    /// A namespace entry with a path is a wish to share, whatever the path (`docs/sandbox-api.md` of containerd); one
    /// without a path is the container's own.
    pub(crate) fn adopt(&mut self, config: &mut Value) -> Result<(), PodError> {
        let shim = std::process::id();
        let mut shares_ipc = false;
        let namespaces = config.pointer_mut("/linux/namespaces").and_then(Value::as_array_mut);
        for entry in namespaces.into_iter().flatten() {
            let kind = entry.get("type").and_then(Value::as_str).and_then(Shared::of);
            let path = entry.get("path").and_then(Value::as_str).unwrap_or_default();
            let Some(kind) = kind.filter(|kind| !path.is_empty() && self.is_pods(*kind)) else { continue };
            let pid = match kind {
                Shared::Network | Shared::Uts => shim,
                Shared::Ipc => {
                    shares_ipc = true;
                    shim
                }
                Shared::Pid => self.pid1()?,
            };
            entry["path"] = json!(format!("/proc/{pid}/ns/{}", kind.file()));
        }
        if shares_ipc && self.shm {
            let mounts = config.get_mut("mounts").and_then(Value::as_array_mut);
            for entry in mounts.into_iter().flatten() {
                if entry.get("destination").and_then(Value::as_str) == Some("/dev/shm") {
                    *entry = json!({
                        "destination": "/dev/shm",
                        "type": "bind",
                        "source": shm_path(&self.bundle),
                        "options": ["rbind", "rw", "nosuid", "nodev", "noexec"],
                    });
                }
            }
        }
        Ok(())
    }

    fn is_pods(&self, kind: Shared) -> bool {
        let options = self.options.as_ref();
        let asked = |mode: fn(&SandboxOptions) -> NamespaceMode| {
            options.is_none_or(|options| mode(options) == NamespaceMode::Pod)
        };
        match kind {
            Shared::Network => !self.netns_path.is_empty(),
            Shared::Ipc => asked(SandboxOptions::ipc),
            Shared::Uts => asked(SandboxOptions::uts),
            Shared::Pid => asked(SandboxOptions::pid),
        }
    }

    fn pid1(&mut self) -> Result<u32, PodError> {
        if let Some(pid) = self.pid1 {
            return Ok(pid);
        }
        let pid = sys::spawn_pid1().map_err(PodError::Pid1)?;
        self.pid1 = Some(pid);
        Ok(pid)
    }

    fn mount_shm(&mut self, bytes: u64) -> Result<(), PodError> {
        let path = shm_path(&self.bundle);
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(PodError::ShmDirectory(error));
            }
            Ok(()) | Err(_) => {}
        }
        let bytes = if bytes == 0 { SHM_BYTES_DEFAULT } else { bytes };
        let data = format!("mode=1777,size={bytes}");
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("shm"), &path, Some("tmpfs"), flags, Some(data.as_str())).map_err(PodError::ShmMount)?;
        self.shm = true;
        Ok(())
    }
}

/// Where the pod's /dev/shm is mounted on the node.
pub(crate) fn shm_path(bundle: &Path) -> PathBuf {
    bundle.join("shm")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    Network,
    Ipc,
    Uts,
    Pid,
}

impl Shared {
    /// The kind of a namespace entry of the OCI runtime specification.
    fn of(name: &str) -> Option<Self> {
        match name {
            "network" => Some(Self::Network),
            "ipc" => Some(Self::Ipc),
            "uts" => Some(Self::Uts),
            "pid" => Some(Self::Pid),
            _ => None,
        }
    }

    /// Its name in /proc/pid/ns.
    fn file(self) -> &'static str {
        match self {
            Self::Network => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
            Self::Pid => "pid",
        }
    }
}

fn enter_netns(path: &Path) -> Result<(), PodError> {
    let netns = File::open(path).map_err(|source| PodError::OpenNetns { path: path.to_owned(), source })?;
    setns(netns, CloneFlags::CLONE_NEWNET)
        .map_err(|source| PodError::EnterNetns { path: path.to_owned(), source })
}

/// The file of a sysctl that belongs to one of the pod's own namespaces. Any other would change the node.
///
/// Names are written as for `sysctl -w`: with dots, or with slashes where a component has a dot (`sysctl.d(5)`).
fn sysctl_path(name: &str, pod: &Pod) -> Result<PathBuf, PodError> {
    let refuse = |why| PodError::SysctlName { name: name.to_owned(), why };
    let separator = name.find(['.', '/']).and_then(|at| name.get(at..=at));
    let parts: Vec<String> = match separator {
        Some("/") => name.split('/').map(str::to_owned).collect(),
        _ => name.split('.').map(|part| part.replace('/', ".")).collect(),
    };
    let plain = |part: &String| {
        let allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'@' | b':');
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
    };
    if parts.len() < 2 || !parts.iter().all(plain) {
        return Err(refuse("it is not the name of a sysctl"));
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let kind = match parts.as_slice() {
        ["net", ..] => Shared::Network,
        ["kernel", "sem"] | ["fs", "mqueue", _] => Shared::Ipc,
        ["kernel", key] if key.starts_with("shm") || key.starts_with("msg") => Shared::Ipc,
        ["kernel", "domainname"] => Shared::Uts,
        _ => return Err(refuse("it is not one of a network, IPC or UTS namespace")),
    };
    if !pod.is_pods(kind) {
        return Err(refuse("the pod shares that namespace with the node"));
    }
    Ok(Path::new("/proc/sys").join(parts.join("/")))
}

#[cfg(test)]
mod tests;
