//! What outside and inside of the demo tell each other, by files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use berth_integration::lab;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// In the lab: made once everything runs.
pub(crate) const READY: &str = "/run/demo.ready";
/// In the lab: made by who wants the demo to end.
pub(crate) const STOP: &str = "/run/demo.stop";
/// Outside: knows the demo.
const STATE: &str = "/run/berth-demo";

/// Where the demo says what it does.
pub(crate) fn output_file() -> PathBuf {
    Path::new(STATE).join("output")
}

fn pid_file() -> PathBuf {
    Path::new(STATE).join("pid")
}

/// Holds whether the lab ended well, once it has ended.
fn end_file() -> PathBuf {
    Path::new(STATE).join("end")
}

/// Begins anew: a file for what the demo says.
pub(crate) fn begin() -> Result<File> {
    fs::create_dir_all(STATE).with_context(|| format!("make {STATE}"))?;
    File::create(output_file()).context("open the demo's output")
}

/// Remembers the process that everything of the demo ends with.
pub(crate) fn set_supervisor(pid: u32) -> Result<()> {
    fs::write(pid_file(), pid.to_string()).context("write down the demo's process")
}

/// By the supervisor, at its end. Nobody may ask: `down` looks for what is left as well.
pub(crate) fn tell_end(well: bool) {
    drop(fs::write(end_file(), if well { "well" } else { "failed" }));
}

/// Whether the demo has told that it ended well.
pub(crate) fn ended_well() -> bool {
    fs::read_to_string(end_file()).is_ok_and(|end| end == "well")
}

/// Clears up after a demo whose supervisor has ended, in whatever way. Tells whether there was one.
pub(crate) fn forget() -> Result<bool> {
    if !Path::new(STATE).exists() {
        return Ok(false);
    }
    if let Ok(owner) = fs::read_to_string(pid_file()) {
        lab::clear_after(&owner)?;
    }
    fs::remove_dir_all(STATE).with_context(|| format!("remove {STATE}"))?;
    Ok(true)
}

/// A demo that is there.
pub(crate) struct Running {
    pub(crate) supervisor: String,
    init: String,
}

impl Running {
    pub(crate) fn find() -> Option<Self> {
        let supervisor = fs::read_to_string(pid_file()).ok()?;
        // A pid of an earlier boot may be another process by now.
        let program = fs::read_link(Path::new("/proc").join(&supervisor).join("exe")).ok()?;
        program.file_name().filter(|name| name.to_string_lossy().starts_with("demo"))?;
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
        let init = children.split_whitespace().next().unwrap_or_default().to_owned();
        Some(Self { supervisor, init })
    }

    /// Whether everything runs in it.
    pub(crate) fn is_ready(&self) -> bool {
        self.in_lab(READY).exists()
    }

    /// Whether it is a cluster, which has kubeadm's files.
    pub(crate) fn is_cluster(&self) -> bool {
        fs::read_to_string(self.in_lab(READY)).is_ok_and(|what| what == crate::CLUSTER)
    }

    /// Tells the body to clear up; one that is not ready yet, or cannot be told, is ended with its lab.
    pub(crate) fn ask_to_end(&self) -> Result<()> {
        if self.is_ready() && fs::write(self.in_lab(STOP), "").is_ok() { Ok(()) } else { self.end() }
    }

    /// Ends the lab with everything in it; its supervisor clears up.
    pub(crate) fn end(&self) -> Result<()> {
        match kill(Pid::from_raw(self.supervisor.parse()?), Signal::SIGTERM) {
            Ok(()) | Err(nix::Error::ESRCH) => Ok(()),
            Err(errno) => Err(errno).context("end the demo"),
        }
    }

    /// Whether its supervisor is still there.
    pub(crate) fn is_alive(&self) -> bool {
        // Who started it may not have waited for it.
        let stat = fs::read_to_string(Path::new("/proc").join(&self.supervisor).join("stat"));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
    }

    /// A command inside.
    pub(crate) fn inside(&self, command: &[String]) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--target", &self.init, "--mount", "--net", "--ipc", "--pid", "--"]).args(command);
        nsenter.current_dir("/");
        nsenter
    }

    /// A path of the lab, seen from outside.
    fn in_lab(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }
}
