//! What pods that are gone left on their node.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use super::cgroups::of_class;
use super::system;
use crate::agent::{ROOT_DIR, STATE_DIR};
use crate::cni;
use crate::containerd::{NAMESPACE, SOCKET};
use crate::files;
use crate::lab::World;
use crate::links;
use crate::records::Records;
use crate::vm::{self, Feature};

/// Where containerd keeps what shims read.
const BUNDLES: &str = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";

/// What was there before the node.
#[derive(Debug)]
pub(crate) struct Baseline {
    mounts: BTreeMap<String, usize>,
}

impl Baseline {
    pub(crate) fn take() -> Result<Self> {
        Ok(Self { mounts: mounts()? })
    }

    /// Everything that only a pod can have made.
    pub(crate) fn left(&self, world: &World, leases: &Path) -> Result<Vec<String>> {
        let mut left = in_containerd()?;
        left.extend(shims(world)?);
        let stacked = |at: &String| self.mounts.get(at).copied().unwrap_or_default();
        let mounts = mounts()?.into_iter().filter(|(at, count)| *count > stacked(at));
        left.extend(mounts.map(|(at, count)| format!("mount {at}, {count} of them")));
        left.extend(cgroups(world)?);
        let veths = links::names()?.into_iter().filter(|name| name.starts_with("veth"));
        left.extend(veths.map(|name| format!("link {name}")));
        left.extend(rules()?);
        for dir in [
            Path::new(ROOT_DIR).join("pods"),
            Path::new(ROOT_DIR).join("berth/attachments"),
            "/var/lib/cni/results".into(),
            "/var/lib/cni/attachments".into(),
            BUNDLES.into(),
            "/var/log/pods".into(),
            "/var/log/containers".into(),
            "/run/netns".into(),
            leases.join(cni::NETWORK),
        ] {
            left.extend(entries(&dir)?.into_iter().filter(|path| !is_bookkeeping(path)));
        }
        // Whatever directories the agent keeps, beside its socket and its lock.
        for dir in directories(Path::new(STATE_DIR))? {
            // The trial of a runtime that hung is the next agent's to remove.
            let is_trial = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("trial-"));
            if dir.ends_with("workers") {
                left.extend(busy_workers(&dir)?);
            } else if !is_trial {
                left.extend(entries(&dir)?);
            }
        }
        Ok(left)
    }
}

fn directories(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(files::list(dir)?.into_iter().filter(|path| path.is_dir()).collect())
}

/// Workers that are at something. One that waits for work is the agent's for a while, and no pod's.
fn busy_workers(dir: &Path) -> Result<Vec<String>> {
    let mut busy = Vec::new();
    for path in files::list(dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let process = name.rsplit('-').next().unwrap_or_default();
        // It tells on its standard output, and may end between the two looks.
        let told = fs::read(format!("/proc/{process}/fd/1")).unwrap_or_default();
        let told: Value = serde_json::from_slice(&told).unwrap_or_default();
        if !told.is_null() {
            busy.push(format!("worker {told}"));
        }
    }
    Ok(busy)
}

fn in_containerd() -> Result<Vec<String>> {
    let records = Records::open()?;
    let mut left: Vec<String> = records.tasks()?.iter().map(|task| format!("{task:?}")).collect();
    left.extend(records.containers()?.iter().map(|id| format!("container {id}")));
    left.extend(records.sandboxes()?.iter().map(|id| format!("sandbox {id}")));
    left.extend(records.snapshots_in_use()?.iter().map(|name| format!("snapshot {name}")));
    left.extend(records.leases()?.iter().map(|id| format!("lease {id}")));
    Ok(left)
}

/// Shims of containerd, which may have forgotten them.
fn shims(world: &World) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for process in world.processes()? {
        // It may end between the two looks.
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let words: Vec<&str> = line.split('\0').collect();
        let program = Path::new(words[0]).file_name().unwrap_or_default().to_string_lossy();
        if program.starts_with("containerd-shim-") && words.contains(&NAMESPACE) && words.contains(&SOCKET) {
            found.push(format!("shim {process}: {}", words.join(" ")));
        }
    }
    Ok(found)
}

/// How many mounts there are at each place: one that hides another is one too many.
fn mounts() -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for at in files::mount_points()? {
        *counts.entry(at).or_default() += 1;
    }
    Ok(counts)
}

/// The levels of all pods and of a class stay, those of pods do not.
fn cgroups(world: &World) -> Result<Vec<String>> {
    let mut stay = ["", "burstable", "besteffort"].map(|class| of_class(world, class)).to_vec();
    stay.extend([world.cgroup_root(), world.cgroup()].map(|path| path.trim_start_matches('/').to_owned()));
    let stays = |path: &Path| stay.iter().any(|name| path.ends_with(name));
    let groups = world.cgroups()?;
    Ok(groups.iter().filter(|path| !stays(path)).map(|path| format!("cgroup {}", path.display())).collect())
}

/// Chains and rules that plugins made for one pod; those that they make once for all stay.
fn rules() -> Result<Vec<String>> {
    if vm::lacks(Feature::Nat) {
        return Ok(Vec::new());
    }
    let table = system("iptables-save", &["-t", "nat"])?;
    let of_a_pod = |line: &&str| {
        let mut names = line.split(' ').map(|word| word.trim_start_matches(':'));
        names.any(|name| name.starts_with("CNI-") && !name.starts_with("CNI-HOSTPORT-"))
    };
    Ok(table.lines().filter(of_a_pod).map(|rule| format!("rule {rule}")).collect())
}

fn entries(dir: &Path) -> Result<Vec<String>> {
    Ok(files::list_if_there(dir)?.iter().map(|path| format!("file {}", path.display())).collect())
}

/// Files of host-local that are not leases, and bundles that containerd was removing when it was killed: it hides them first
/// (`atomicDelete` of `core/runtime/v2/bundle.go`).
fn is_bookkeeping(path: &str) -> bool {
    path.starts_with(&format!("file {BUNDLES}/."))
        || path.ends_with("/lock")
        || path.contains("/last_reserved_ip.")
}
