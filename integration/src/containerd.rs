//! A real containerd, and `ctr`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::components;
use crate::files;
use crate::process::{Process, printed};
use crate::records::Records;
use crate::registry::PAUSE;
use crate::vm;
use crate::wait::Look;

/// Where its socket is unless a test says otherwise: `/run` is the lab's own.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// The namespace of pods.
pub const NAMESPACE: &str = "k8s.io";

const LOG: &str = "containerd.log";
const START_LIMIT: Duration = Duration::from_secs(30);
/// Where its CRI plugin looks for networks, below its directory. None there: its pods have the node's, or a test writes one.
const CNI_DIR: &str = "cni";
/// Where tools put what is laid over its configuration, below its directory.
const IMPORTS: &str = "conf.d";
/// CRI's service, on which no other plugin depends.
pub const CRI_SERVICE: &str = "io.containerd.grpc.v1.cri";
/// CRI, as containerd 2.0 and later have it.
pub const CRI_PLUGINS: [&str; 3] =
    [CRI_SERVICE, "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"];

/// A minor version of containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// 2.1: runtime options on a shim's stdin.
    V2_1,
    /// The one of reference, 2.3: bootstrap parameters on a shim's stdin.
    Reference,
    /// 2.4: asks a shim to end after every task.
    V2_4,
}

impl Release {
    fn binary(self) -> Result<PathBuf> {
        match self {
            Self::V2_1 => components::binary_in("containerd-2.1", "containerd"),
            Self::Reference => components::binary("containerd"),
            Self::V2_4 => components::binary_in("containerd-2.4", "containerd"),
        }
    }

    /// What of CRI it goes without on this machine. A guest starts slowly; the neighbours are tested outside.
    fn without(self) -> &'static [&'static str] {
        if !vm::is_guest() {
            return &[];
        }
        match self {
            // Up to 2.1 the sandbox service fails when the controller of CRI's own sandboxes does, and that needs the other two: it
            // asks both, and images has the transfer plugin begun before it, which it uses too and does not require itself.
            Self::V2_1 => &[CRI_SERVICE],
            Self::Reference | Self::V2_4 => &CRI_PLUGINS,
        }
    }
}

/// A containerd of its own directory; it can be stopped, killed and started again.
#[derive(Debug)]
pub struct Containerd {
    release: Release,
    disabled: Vec<&'static str>,
    more: String,
    dir: PathBuf,
    registries: PathBuf,
    path: OsString,
    process: Option<Process>,
}

impl Containerd {
    /// Starts one with its content below `dir`; `path` is its `PATH`, where it finds shims.
    ///
    /// # Errors
    /// The component is missing, or it does not become ready.
    pub fn start(dir: &Path, path: OsString) -> Result<Self> {
        Self::start_release(Release::Reference, dir, path)
    }

    /// As [`Containerd::start`], with another version of it.
    ///
    /// # Errors
    /// As of [`Containerd::start`].
    pub fn start_release(release: Release, dir: &Path, path: OsString) -> Result<Self> {
        let registries = dir.join("certs.d");
        files::make_dir(&registries)?;
        let mut containerd = Self {
            release,
            disabled: Vec::new(),
            more: String::new(),
            dir: dir.to_owned(),
            registries,
            path,
            process: None,
        };
        containerd.start_again()?;
        Ok(containerd)
    }

    /// Where one of this directory keeps images and records.
    pub(crate) fn root(dir: &Path) -> PathBuf {
        dir.join("root")
    }

    /// Starts it after [`Containerd::stop`] or [`Containerd::kill`].
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start_again(&mut self) -> Result<()> {
        let config = self.config();
        let disabled = [self.release.without(), self.disabled.as_slice()].concat();
        files::write(&config, settings(&disabled, &self.dir, &self.registries) + &self.more)?;
        let mut process = Process::start(
            "containerd",
            Command::new(self.release.binary()?).arg("--config").arg(config).env("PATH", &self.path),
            &self.log(),
        )?;
        process.ready(START_LIMIT, || {
            Ok(match Records::open() {
                Ok(_answering) => Look::Ready(()),
                Err(failure) => Look::NotYet(format!("{failure:#}")),
            })
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Starts another version on the same directories after [`Containerd::stop`] or [`Containerd::kill`].
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start_as(&mut self, release: Release) -> Result<()> {
        self.release = release;
        self.start_again()
    }

    /// Its process, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Goes without more plugins from its next start on.
    pub fn disable(&mut self, plugins: &[&'static str]) {
        self.disabled.extend(plugins);
    }

    /// Has further settings, in TOML, from its next start on.
    pub fn configure(&mut self, settings: &str) {
        self.more.push_str(settings);
    }

    /// Stops its process with SIGSTOP: calls under way stay so until it is killed.
    ///
    /// # Errors
    /// It is not running.
    pub fn freeze(&self) -> Result<()> {
        self.process.as_ref().context("containerd is not running")?.signal(Signal::SIGSTOP)
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn ended(&mut self) -> Result<bool> {
        self.process.as_mut().map_or(Ok(true), Process::ended)
    }

    /// Lets a process that was stopped go on.
    ///
    /// # Errors
    /// It is not running.
    pub fn thaw(&self) -> Result<()> {
        self.process.as_ref().context("containerd is not running")?.signal(Signal::SIGCONT)
    }

    /// Ends it with SIGTERM.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::stop)
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::kill)
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.join("config.toml")
    }

    /// The directory from which its configuration imports files.
    #[must_use]
    pub fn imports(&self) -> PathBuf {
        self.dir.join(IMPORTS)
    }

    /// The directory of networks that its CRI plugin reads.
    #[must_use]
    pub fn cni_conf(&self) -> PathBuf {
        self.dir.join(CNI_DIR)
    }

    /// The file it logs to.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join(LOG)
    }

    /// The `certs.d` directory that both containerd and the agent read.
    #[must_use]
    pub fn registries(&self) -> &Path {
        &self.registries
    }

    /// Writes `hosts.toml` so that images named `host/…` come from `url`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add_registry(&self, host: &str, url: &str) -> Result<()> {
        self.add_registry_with(host, url, "")
    }

    /// The same with further lines about it, in TOML.
    ///
    /// # Errors
    /// As of [`Containerd::add_registry`].
    pub fn add_registry_with(&self, host: &str, url: &str, more: &str) -> Result<()> {
        let dir = self.registries.join(host);
        files::make_dir(&dir)?;
        let hosts =
            format!("server = \"{url}\"\n[host.\"{url}\"]\ncapabilities = [\"pull\", \"resolve\"]\n{more}");
        files::write(dir.join("hosts.toml"), hosts)
    }
}

/// Writes the configuration of one that somebody else starts, with CRI on and its content below a directory; gives the file.
///
/// # Errors
/// A file cannot be written.
pub fn write_config(dir: &Path) -> Result<PathBuf> {
    let (config, registries) = (dir.join("config.toml"), dir.join("certs.d"));
    files::make_dir(&registries)?;
    files::write(&config, settings(&[], dir, &registries))?;
    Ok(config)
}

/// `ctr`, directed at the lab's containerd and the pods' namespace.
///
/// # Errors
/// The component is missing.
pub fn ctr_command() -> Result<Command> {
    let mut command = Command::new(components::binary("ctr")?);
    command.args(["--address", SOCKET, "--namespace", NAMESPACE]);
    // That a machine has cgroup v1 is no news to a test.
    command.env("CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS", "true");
    Ok(command)
}

/// What `ctr` printed.
///
/// # Errors
/// It failed.
pub fn ctr(args: &[&str]) -> Result<String> {
    printed(ctr_command()?.args(args))
}

/// The rows of a table that `ctr` printed, by columns, without the head.
///
/// # Errors
/// `ctr` failed.
pub fn ctr_rows(args: &[&str]) -> Result<Vec<Vec<String>>> {
    let rows =
        ctr(args)?.lines().skip(1).map(|row| row.split_whitespace().map(str::to_owned).collect()).collect();
    Ok(rows)
}

/// As distributions ship it, CRI on, but for places; what differs beside them is named.
fn settings(disabled: &[&str], dir: &Path, registries: &Path) -> String {
    let unpacked_by = |snapshotter: &str| {
        format!(
            "[[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\nplatform = \"linux\"\nsnapshotter = {snapshotter:?}\n"
        )
    };
    let is_there = |snapshotter: &&str| !disabled.iter().any(|plugin| plugin.ends_with(snapshotter));
    let unpacked: String = ["overlayfs", "native"].into_iter().filter(is_there).map(unpacked_by).collect();
    format!(
        r#"version = 3
imports = ["{imports}/*.toml"]
root = "{root}"
state = "/run/containerd"
oom_score = 0
disabled_plugins = {disabled:?}

[debug]
level = "warn"

[grpc]
address = "{SOCKET}"

[ttrpc]
address = "{SOCKET}.ttrpc"

[plugins."io.containerd.transfer.v1.local"]
config_path = "{registries}"
max_concurrent_unpacks = 2

{unpacked}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "{registries}"

# Tests may lack the right to lower a score.
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "{networks}"
"#,
        imports = dir.join(IMPORTS).display(),
        root = Containerd::root(dir).display(),
        registries = registries.display(),
        plugins = components::bin_dir().display(),
        networks = dir.join(CNI_DIR).display(),
    )
}
