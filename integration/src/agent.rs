//! Berth itself: the agent's process and its command line.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::binaries;
use crate::containerd::{self, Release};
use crate::control::Control;
use crate::files;
use crate::process::{Process, printed};
use crate::wait::Look;

/// Name of the node.
pub const NODE_NAME: &str = "lab";
/// The agent's runtime state.
pub const STATE_DIR: &str = "/run/berth";
/// Pods' volumes and files.
pub const ROOT_DIR: &str = "/var/lib/kubelet";

const START_LIMIT: Duration = Duration::from_secs(30);
/// Names the point at which the agent is to kill itself.
const ABORT_AT: &str = "BERTH_ABORT_AT";

/// Names a directory in place of `/proc/sys`: what the agent sets of the kernel is the machine's, not the test's.
const SYSCTL_ROOT: &str = "BERTH_SYSCTL_ROOT";

/// The settings of the kernel that the agent looks at, as most machines have them.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "0\n"),
    ("vm/panic_on_oom", "0\n"),
    ("kernel/panic", "0\n"),
    ("kernel/panic_on_oops", "0\n"),
    ("kernel/keys/root_maxkeys", "1000000\n"),
    ("kernel/keys/root_maxbytes", "25000000\n"),
];

/// Where a node has the image of the examples from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Images {
    /// Its containerd has it: somebody has pulled it before.
    Stored,
    /// A registry, which a test about pulls or about other images needs.
    Registry,
}

/// What a test may want otherwise.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Fields of `KubeletConfiguration` over the lab's own.
    pub kubelet: Value,
    /// Fields of `BerthConfiguration` over the lab's own.
    pub berth: Value,
    /// Directory that comes first in the agent's and containerd's `PATH`.
    pub path_first: Option<PathBuf>,
    /// The containerd that the node begins with.
    pub containerd: Release,
    /// Where it has the image of the examples from.
    pub images: Images,
    /// Flags of the kubelet beside the lab's own.
    pub flags: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kubelet: json!({}),
            berth: json!({}),
            path_first: None,
            containerd: Release::Reference,
            images: Images::Stored,
            flags: Vec::new(),
        }
    }
}

impl Settings {
    /// The lab's usual ones, with a registry.
    #[must_use]
    pub fn with_registry() -> Self {
        Self { images: Images::Registry, ..Self::default() }
    }
}

/// Where the agent finds what is not its own.
#[derive(Debug)]
pub struct Places {
    /// Directory of the agent's configuration and log.
    pub dir: PathBuf,
    /// Directory of manifests.
    pub manifests: PathBuf,
    /// Directory of CNI configurations.
    pub cni_conf: PathBuf,
    /// `certs.d` directory.
    pub registries: PathBuf,
    /// Containerd's own configuration.
    pub containerd_config: PathBuf,
    /// Parent cgroup.
    pub cgroup: String,
}

/// An agent that can be stopped, killed and started again.
#[derive(Debug)]
pub struct Agent {
    config: PathBuf,
    /// As agents read it that know nothing of containerd's own configuration.
    earlier_config: PathBuf,
    flags: Vec<String>,
    log: PathBuf,
    /// Where in the log the words of the process begin that was started last.
    said_from: u64,
    path: OsString,
    sysctls: PathBuf,
    program: Option<PathBuf>,
    env: Vec<(&'static str, OsString)>,
    process: Option<Process>,
}

impl Agent {
    /// Writes the configuration; [`Agent::start`] starts it.
    ///
    /// # Errors
    /// The configuration cannot be written.
    pub fn new(places: &Places, settings: &Settings) -> Result<Self> {
        files::make_dir(&places.dir)?;
        let config = places.dir.join("config.yaml");
        let of_now = json!({ "containerdConfig": places.containerd_config });
        files::write(&config, documents(places, settings, &of_now))?;
        let earlier_config = places.dir.join("earlier.yaml");
        files::write(&earlier_config, documents(places, settings, &json!({})))?;
        let sysctls = places.dir.join("sysctls");
        for (name, value) in SYSCTLS {
            let file = sysctls.join(name);
            files::make_dir(file.parent().unwrap_or(&sysctls))?;
            files::write(file, value)?;
        }
        Ok(Self {
            config,
            earlier_config,
            flags: settings.flags.clone(),
            log: places.dir.join("agent.log"),
            said_from: 0,
            path: binaries::search_path(settings.path_first.as_deref())?,
            sysctls,
            program: None,
            env: Vec::new(),
            process: None,
        })
    }

    /// Names the program of an earlier agent that is started from now on; `None` is the one that was built with the tests.
    pub fn set_program(&mut self, program: Option<PathBuf>) {
        self.program = program;
    }

    /// The flags that it is started with from now on, in place of those of its settings.
    pub fn set_flags(&mut self, flags: &[String]) {
        self.flags = flags.to_vec();
    }

    /// Adds a variable to the environment in which it is started from now on.
    pub fn add_env(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.env.push((name, value.into()));
    }

    /// Starts it and waits until its socket answers.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start(&mut self) -> Result<()> {
        let mut process = self.begin(&mut self.command()?)?;
        let control = Control::new()?;
        process.ready(START_LIMIT, || {
            Ok(match control.overview() {
                Ok(_answering) => Look::Ready(()),
                Err(failure) => Look::NotYet(format!("{failure:#}")),
            })
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Starts it so that it kills itself at `label`, and does not wait.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start_doomed(&mut self, label: &str) -> Result<()> {
        let process = self.begin(self.command()?.env(ABORT_AT, label))?;
        self.process = Some(process);
        Ok(())
    }

    fn begin(&mut self, command: &mut Command) -> Result<Process> {
        self.said_from = fs::metadata(&self.log).map_or(0, |log| log.len());
        Process::start("berth", command, &self.log)
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn ended(&mut self) -> Result<bool> {
        self.process.as_mut().map_or(Ok(true), Process::ended)
    }

    /// Its process, while it was not ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// How it has ended by itself, if it has.
    ///
    /// # Errors
    /// It cannot be waited for, or was not started.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.process.as_mut().context("no agent was started")?.status()
    }

    /// The agent's command line: `berth run` with its configuration.
    ///
    /// # Errors
    /// The program was not built.
    pub fn command(&self) -> Result<Command> {
        let program = self.program.clone().map_or_else(|| binaries::path("berth"), Ok)?;
        let mut command = Command::new(program);
        command.args(["run", "--root-dir", ROOT_DIR, "--hostname-override", NODE_NAME, "--config"]);
        let config = if self.program.is_some() { &self.earlier_config } else { &self.config };
        command.arg(config).args(&self.flags).env("PATH", &self.path).env(SYSCTL_ROOT, &self.sysctls);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// Ends it with SIGTERM.
    ///
    /// # Errors
    /// It did not end in time, or not well.
    pub fn stop(&mut self) -> Result<()> {
        let Some(process) = self.process.take() else { return Ok(()) };
        let tail = process.log_tail();
        let status = process.stop_with(Signal::SIGTERM)?;
        ensure!(status.success(), "the agent ended with {status}; its log:\n{tail}");
        Ok(())
    }

    /// Ends it with SIGKILL.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().map_or(Ok(()), Process::kill)
    }

    /// What it set of the kernel, in the directory that it was given in place of `/proc/sys`.
    ///
    /// # Errors
    /// There is no such setting.
    pub fn sysctl(&self, name: &str) -> Result<String> {
        Ok(files::read(self.sysctls.join(name))?.trim().to_owned())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It is not running.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.as_ref().context("the agent is not running")?.signal(signal)
    }

    /// What the process has logged that was started last.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn said(&self) -> Result<String> {
        let log = fs::read(&self.log).with_context(|| format!("read {}", self.log.display()))?;
        let said = log.get(usize::try_from(self.said_from)?..).unwrap_or_default();
        Ok(String::from_utf8_lossy(said).into_owned())
    }

    /// The file it logs to.
    #[must_use]
    pub fn log(&self) -> &PathBuf {
        &self.log
    }
}

/// The command `berth …`.
///
/// # Errors
/// The program was not built.
pub fn berth_command(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(binaries::path("berth")?);
    command.args(args);
    Ok(command)
}

/// Runs `berth …`, whatever it ends with.
///
/// # Errors
/// It cannot be started.
pub fn berth_output(args: &[&str]) -> Result<Output> {
    berth_command(args)?.output().context("start berth")
}

/// What `berth …` printed.
///
/// # Errors
/// It failed.
pub fn berth(args: &[&str]) -> Result<String> {
    printed(&mut berth_command(args)?)
}

/// What `berth … --output json` printed, parsed.
///
/// # Errors
/// It failed, or printed no JSON.
pub fn berth_json(args: &[&str]) -> Result<Value> {
    let text = berth(&[args, &["--output", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| format!("berth {} printed no JSON: {text}", args.join(" ")))
}

/// Both documents; JSON is YAML.
fn documents(places: &Places, settings: &Settings, of_now: &Value) -> String {
    let mut kubelet = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": places.manifests,
        "containerRuntimeEndpoint": format!("unix://{}", containerd::SOCKET),
        "cgroupRoot": places.cgroup,
        "failCgroupV1": false,
        "failSwapOn": false,
    });
    let mut berth = json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "BerthConfiguration",
        "stateDir": STATE_DIR,
        "cni": {
            "confDir": places.cni_conf,
            "binDirs": [crate::components::bin_dir()],
        },
        "registryConfigDir": places.registries,
    });
    merge(&mut kubelet, &settings.kubelet);
    merge(&mut berth, of_now);
    merge(&mut berth, &settings.berth);
    format!("{kubelet}\n---\n{berth}\n")
}

/// Maps are merged by key, everything else is replaced.
pub(crate) fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key.as_str()).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_merged_by_key() {
        let mut base = json!({ "a": { "b": 1, "c": [1] }, "d": 1 });
        merge(&mut base, &json!({ "a": { "c": [2], "e": 3 }, "d": { "f": 4 } }));
        assert_eq!(base, json!({ "a": { "b": 1, "c": [2], "e": 3 }, "d": { "f": 4 } }));
    }
}
