//! A containerd without an agent, and the two shims that are compared under it.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_integration::containerd::{Containerd, ctr, ctr_command};
use berth_integration::lab::World;
use berth_integration::registry::Registry;
use berth_integration::wait::{self, Look};
use berth_integration::{binaries, components};

use crate::processes;

/// The image of all containers.
pub(crate) const IMAGE: &str = "localhost:5000/busybox:1";
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// A shim, called as containerd calls it. Both use runc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shim {
    Ours,
    /// Containerd's own.
    Stock,
}

impl Shim {
    /// In the order of every pair of figures.
    pub(crate) const BOTH: [Self; 2] = [Self::Ours, Self::Stock];

    /// Both, in an order that changes with each round.
    pub(crate) fn in_turn(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) { Self::BOTH } else { [Self::Stock, Self::Ours] }
    }

    /// The program's name, as containerd derives it from the runtime's.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Ours => crate::programs::SHIM,
            Self::Stock => "containerd-shim-runc-v2",
        }
    }

    /// Where the program is.
    pub(crate) fn path(self) -> Result<PathBuf> {
        match self {
            Self::Ours => binaries::path(self.program()),
            Self::Stock => components::binary(self.program()),
        }
    }

    fn runtime(self) -> &'static str {
        match self {
            Self::Ours => "io.containerd.berth.v1",
            Self::Stock => "io.containerd.runc.v2",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Stock => "stock",
        }
    }
}

impl fmt::Display for Shim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.program())
    }
}

/// A registry and a containerd, without an agent.
pub(crate) struct Bare {
    pub(crate) world: World,
    containerd: Containerd,
    registry: Registry,
}

impl Bare {
    /// Starts both and pulls the image.
    pub(crate) fn start() -> Result<Self> {
        let world = World::here()?;
        world.make_cgroup()?;
        let registry = Registry::with_busybox(&world.root().join("registry"))?;
        let path = binaries::search_path(None)?;
        let containerd = Containerd::start(&world.root().join("containerd"), path)?;
        ctr(&["images", "pull", "--plain-http", IMAGE])?;
        Ok(Self { world, containerd, registry })
    }

    /// `ctr run` of a container in a cgroup of its own, without a network: its options, then its id and arguments.
    pub(crate) fn run(&self, shim: Shim, options: &[&str], id: &str, args: &[&str]) -> Result<Command> {
        let mut command = ctr_command()?;
        command.args(["run", "--runtime", shim.runtime(), "--cgroup"]);
        command.arg(format!("{}/{id}", self.world.cgroup())).args(options).args([IMAGE, id]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command)
    }

    /// A container that sleeps under this shim.
    pub(crate) fn sleeper(&self, shim: Shim, number: usize) -> Result<Container> {
        let id = format!("{}-{number}", shim.name());
        let mut run = self.run(shim, &["--detach"], &id, &["/bin/sleep", "infinity"])?;
        let taken = timed(&mut run)?;
        Ok(Container { id, taken })
    }

    /// Ends both, and before them these containers.
    pub(crate) fn end(mut self, containers: &[Container]) -> Result<()> {
        for Container { id, .. } in containers {
            ctr(&["tasks", "delete", "--force", id])?;
            ctr(&["containers", "delete", id])?;
        }
        wait::until("the shims to end", GONE_LIMIT, || {
            let mut left = Vec::new();
            for shim in Shim::BOTH {
                left.extend(processes::of_program(shim.program(), "-id")?);
            }
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{left:?}")) })
        })?;
        self.containerd.stop()?;
        self.registry.stop()?;
        self.world.remove_cgroups()
    }
}

/// A container that runs.
pub(crate) struct Container {
    pub(crate) id: String,
    /// How long its `ctr run --detach` took.
    pub(crate) taken: Duration,
}

impl Container {
    /// `ctr tasks exec`, its output going nowhere.
    pub(crate) fn exec(&self, exec: &str, args: &[&str]) -> Result<Command> {
        let mut command = ctr_command()?;
        command.args(["tasks", "exec", "--exec-id", exec, &self.id]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command)
    }

    /// The process of its shim.
    pub(crate) fn shim(&self, shim: Shim) -> Result<u32> {
        match processes::of_program(shim.program(), &self.id)?.as_slice() {
            [pid] => Ok(*pid),
            several => anyhow::bail!("processes {several:?} are the shim of {}, not one", self.id),
        }
    }
}

/// How long a command takes that must end well.
pub(crate) fn timed(command: &mut Command) -> Result<Duration> {
    let begun = Instant::now();
    let done = command.output()?;
    let taken = begun.elapsed();
    ensure!(
        done.status.success(),
        "{command:?} ended with {}: {}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(taken)
}
