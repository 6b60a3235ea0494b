//! The processes in a control group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Cgroup;

/// Groups below a container's that are looked at. A container that may make its own can make many.
const GROUPS_MAX: usize = 1024;
/// Times that a tree is listed and killed on version 1, where processes may be born between the two.
const PASSES_MAX: usize = 16;

impl Cgroup {
    /// Processes of the container and of the groups it made below its own.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let Some(tree) = self.tree() else { return Vec::new() };
        let mut pids: Vec<u32> = groups(tree).iter().flat_map(|group| read_processes(group)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Sends a signal to every process of the container.
    pub(crate) fn signal_all(&self, signal: i32) {
        if signal == Signal::SIGKILL as i32 {
            if let Some(tree) = self.tree() {
                kill_group(tree);
            }
            return;
        }
        for pid in self.processes() {
            signal_process(pid, signal);
        }
    }

    /// Makes a group below, for the processes of one exec, in the one hierarchy that lists processes.
    pub(crate) fn make_child(&self, name: &str) -> Option<PathBuf> {
        let child = self.tree()?.join(name);
        match fs::create_dir(&child) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => None,
            Ok(()) | Err(_) => Some(child),
        }
    }
}

/// Kills everything in a group and below it.
pub(crate) fn kill_group(group: &Path) {
    if fs::write(group.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for _pass in 0..PASSES_MAX {
        let pids: Vec<u32> = groups(group).iter().flat_map(|group| read_processes(group)).collect();
        let mut alive = false;
        for pid in pids {
            alive |= signal_process(pid, Signal::SIGKILL as i32);
        }
        if !alive {
            return;
        }
    }
}

/// Moves a process, and what it has started by now, into a group.
pub(crate) fn move_tree(pid: u32, group: &Path) {
    let mut pending = vec![pid];
    for _moved in 0..GROUPS_MAX {
        let Some(pid) = pending.pop() else { return };
        if fs::write(group.join("cgroup.procs"), pid.to_string()).is_ok() {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            pending.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
}

/// Gives a group's processes back to the one above, and removes it.
pub(crate) fn dissolve(group: &Path) {
    if let Some(above) = group.parent() {
        for pid in read_processes(group) {
            // A process that has just died need not be moved.
            let _gone = fs::write(above.join("cgroup.procs"), pid.to_string()).is_err();
        }
    }
    // One that is still being emptied goes with the container's own.
    let _busy = fs::remove_dir(group).is_err();
}

/// Signals a process; whether it was still there.
pub(crate) fn signal_process(pid: u32, signal: i32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    let Ok(signal) = Signal::try_from(signal) else { return signal_realtime(pid, signal) };
    pid > 1 && kill(Pid::from_raw(pid), signal).is_ok()
}

/// Real-time signals, which nix has no names for.
fn signal_realtime(pid: i32, signal: i32) -> bool {
    pid > 1 && crate::sys::kill(pid, signal)
}

pub(super) fn groups(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while next < found.len() && found.len() < GROUPS_MAX {
        let Some(entries) = found.get(next).and_then(|group| fs::read_dir(group).ok()) else {
            next += 1;
            continue;
        };
        found.extend(
            entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path())
                .take(GROUPS_MAX - found.len()),
        );
        next += 1;
    }
    found
}

fn read_processes(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1).collect()
}
