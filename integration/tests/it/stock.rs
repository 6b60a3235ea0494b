//! A stock containerd with the shim and no agent: what is asked for is asked for with `ctr`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use berth_integration::containerd::{Containerd, NAMESPACE, Release, ctr, ctr_command, ctr_rows};
use berth_integration::lab::World;
use berth_integration::process::printed;
use berth_integration::registry::Registry;
use berth_integration::wait::{self, Look};
use berth_integration::{binaries, stored};
use serde_json::Value;

use crate::kit::SOON;

pub(crate) use crate::kit::IMAGE;

/// What containerd calls the shim.
pub(crate) const RUNTIME: &str = "io.containerd.berth.v1";
/// Bundles of tasks and of sandboxes.
const BUNDLES: [&str; 2] = [
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
    "/run/containerd/io.containerd.sandbox.controller.v1.shim/k8s.io",
];
/// What the shims of plain clients keep.
const OF_SHIMS: [&str; 2] = ["/run/berth-shim", "/run/containerd/s"];

/// A containerd that has the image.
pub(crate) struct Stock {
    pub(crate) world: World,
    pub(crate) containerd: Containerd,
    registry: Option<Registry>,
}

/// How containerd or the shim sees a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) pid: u32,
    pub(crate) status: String,
}

impl Stock {
    pub(crate) fn start() -> Result<Self> {
        Self::start_release(Release::Reference, None)
    }

    /// `path_first` comes first in containerd's `PATH`, and so in the shims'.
    pub(crate) fn start_release(release: Release, path_first: Option<&Path>) -> Result<Self> {
        let world = World::here()?;
        world.make_cgroup()?;
        let dir = world.root().join("containerd");
        let is_stored = release == Release::Reference;
        if is_stored {
            stored::unpack(&dir)?;
        }
        let containerd = Containerd::start_release(release, &dir, binaries::search_path(path_first)?)?;
        // What a version has stored is for that version.
        let registry =
            if is_stored { None } else { Some(Registry::with_busybox(&world.root().join("registry"))?) };
        if registry.is_some() {
            ctr(&["images", "pull", "--plain-http", IMAGE])?;
        }
        Ok(Self { world, containerd, registry })
    }

    /// `ctr run` with the shim: `flags`, then the container `id`, then its command.
    pub(crate) fn run(&self, flags: &[&str], id: &str, command: &[&str]) -> Result<Command> {
        run(&self.world, flags, id, command)
    }

    /// Starts a container that goes on without `ctr`; its output goes to [`Stock::log`].
    pub(crate) fn run_detached(&self, flags: &[&str], id: &str, script: &str) -> Result<()> {
        printed(&mut self.detached(flags, id, script)?).map(drop)
    }

    /// The command that does so.
    pub(crate) fn detached(&self, flags: &[&str], id: &str, script: &str) -> Result<Command> {
        detached(&self.world, flags, id, script)
    }

    /// Where a detached container's output goes.
    pub(crate) fn log(&self, id: &str) -> PathBuf {
        log(&self.world, id)
    }

    /// Ends everything; nothing of any container may be left.
    pub(crate) fn end(mut self) -> Result<()> {
        wait::until("nothing to be left of any container", SOON, || {
            let left = left()?;
            Ok(if left.is_empty() { Look::Ready(()) } else { Look::NotYet(left.join("\n  ")) })
        })?;
        self.containerd.stop()?;
        if let Some(registry) = self.registry {
            registry.stop()?;
        }
        self.world.remove_cgroups()
    }
}

fn run(world: &World, flags: &[&str], id: &str, command: &[&str]) -> Result<Command> {
    let mut run = ctr_command()?;
    run.args(["run", "--runtime", RUNTIME, "--cgroup", &format!("{}/{id}", world.cgroup())]);
    run.args(flags).args([IMAGE, id]).args(command);
    Ok(run)
}

/// As [`Stock::detached`], for whoever has no more than the world.
pub(crate) fn detached(world: &World, flags: &[&str], id: &str, script: &str) -> Result<Command> {
    let log = format!("file://{}", log(world, id).display());
    run(world, &[&["--detach", "--log-uri", &log], flags].concat(), id, &["sh", "-c", script])
}

fn log(world: &World, id: &str) -> PathBuf {
    world.root().join(format!("{id}.out"))
}

/// Starts a command that fails or not, as it happens.
pub(crate) fn begin(command: &mut Command) -> Result<Child> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().with_context(|| format!("start {command:?}"))
}

/// What `ctr tasks ls` says of a task.
pub(crate) fn seen(id: &str) -> Result<Option<View>> {
    let rows = ctr_rows(&["tasks", "ls"])?;
    let of_it = rows.into_iter().find(|row| row[0] == id);
    of_it.map(|row| Ok(View { pid: row[1].parse()?, status: row[2].clone() })).transpose()
}

/// What the shim says of its task, asked without containerd; `None` when there is no shim or no such task.
pub(crate) fn told(id: &str) -> Result<Option<View>> {
    let Some(address) = shim_address(id)? else { return Ok(None) };
    let asked = ctr_command()?.args(["shim", "--shim-address", &address, "--id", id, "state"]).output()?;
    if !asked.status.success() {
        return Ok(None);
    }
    let state: Value = serde_json::from_slice(&asked.stdout)
        .with_context(|| format!("state of {id}: {}", String::from_utf8_lossy(&asked.stdout)))?;
    let status = match state["status"].as_u64() {
        Some(1) => "CREATED",
        Some(2) => "RUNNING",
        Some(3) => "STOPPED",
        Some(4) => "PAUSED",
        _ => "UNKNOWN",
    };
    let pid = u32::try_from(state["pid"].as_u64().unwrap_or_default())?;
    Ok(Some(View { pid, status: status.to_owned() }))
}

/// The socket of a task's shim, as containerd keeps it.
pub(crate) fn shim_address(id: &str) -> Result<Option<String>> {
    let file = Path::new(BUNDLES[0]).join(id).join("bootstrap.json");
    let Ok(text) = fs::read(&file) else { return Ok(None) };
    let bootstrap: Value = serde_json::from_slice(&text)?;
    Ok(Some(bootstrap["address"].as_str().context("no address")?.to_owned()))
}

/// Waits until containerd, the shim and the process table say the same of a task, and gives it.
pub(crate) fn agreed(id: &str) -> Result<Option<View>> {
    wait::until(&format!("one opinion of {id}"), SOON, || opinion(id))
}

fn opinion(id: &str) -> Result<Look<Option<View>>> {
    let (seen, told) = (seen(id)?, told(id)?);
    let alive = told.as_ref().is_some_and(|view| is_alive(view.pid));
    let wanted = told.as_ref().is_some_and(|view| view.status != "STOPPED");
    let same = seen == told && alive == wanted;
    let opinions = format!("containerd {seen:?}, shim {told:?}, process alive: {alive}");
    Ok(if same { Look::Ready(told) } else { Look::NotYet(opinions) })
}

/// Waits until everybody agrees that a task has this status, and gives its process.
pub(crate) fn agreed_on(id: &str, status: &str) -> Result<u32> {
    // A signal that was sent is not yet an end.
    wait::until(&format!("one opinion of {id}, that it is {status}"), SOON, || {
        Ok(match opinion(id)? {
            Look::Ready(Some(view)) if view.status == status => Look::Ready(view.pid),
            Look::Ready(view) => Look::NotYet(format!("{view:?}")),
            Look::NotYet(opinions) => Look::NotYet(opinions),
        })
    })
}

/// Whether a process is there and no corpse.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

/// Ends a task with SIGKILL, unless it has ended, and removes it and its container.
pub(crate) fn remove(id: &str) -> Result<()> {
    // Removed already by whoever was to remove it.
    if seen(id)?.is_some() {
        delete(id, &["--force"])?;
    }
    ctr(&["containers", "rm", id]).map(drop)
}

/// Deletes a task, or an exec of it, and gives the exit code that containerd knew.
pub(crate) fn delete(id: &str, flags: &[&str]) -> Result<i32> {
    let done = ctr_command()?.args(["tasks", "rm"]).args(flags).arg(id).output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    // The code of a task other than 0 is told in a warning, that of an exec is its own, without a word.
    let code = said.split_once("non-zero exit code ").map(|(_, rest)| rest.trim_end().trim_end_matches('"'));
    match (done.status.code(), code) {
        (Some(0), Some(code)) => Ok(code.parse()?),
        (Some(code), None) if said.trim().is_empty() => Ok(code),
        _ => bail!("ctr tasks rm {id} ended with {}: {said}", done.status),
    }
}

/// Everything that only a container or its shim can have made.
fn left() -> Result<Vec<String>> {
    let mut left = Vec::new();
    for kind in ["containers", "tasks", "sandboxes"] {
        left.extend(ctr_rows(&[kind, "ls"])?.iter().map(|row| format!("{kind} {}", row.join(" "))));
    }
    for dir in BUNDLES.into_iter().chain(OF_SHIMS).map(PathBuf::from) {
        left.extend(files(&dir)?);
    }
    left.extend(shims()?.iter().map(|(pid, line)| format!("process {pid} {line}")));
    let mounts = berth_integration::files::mount_points()?.into_iter();
    left.extend(mounts.filter(|at| at.contains(NAMESPACE)).map(|at| format!("mount {at}")));
    Ok(left)
}

/// The processes of shims and their command lines.
pub(crate) fn shims() -> Result<Vec<(i32, String)>> {
    let mut found = Vec::new();
    for pid in World::here()?.processes()? {
        // It may end between the two looks.
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.contains("containerd-shim-") && line.split('\0').any(|word| word == "serve") {
            found.push((i32::try_from(pid)?, line.replace('\0', " ")));
        }
    }
    Ok(found)
}

/// The files in a directory and below; directories alone are nobody's loss.
fn files(dir: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let Ok(list) = fs::read_dir(dir) else { return Ok(found) };
    for entry in list {
        let path = entry?.path();
        let is_bundle = BUNDLES.iter().any(|bundles| path.parent() == Some(Path::new(bundles)));
        if path.is_dir() && !path.is_symlink() && !is_bundle {
            found.extend(files(&path)?);
        } else {
            found.push(format!("file {}", path.display()));
        }
    }
    Ok(found)
}
