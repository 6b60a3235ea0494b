//! The processes in a control group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Cgroup;
use crate::sys::{hold, signal_held};

/// Groups below a container's that are looked at. A container that may make its own can make many.
const GROUPS_MAX: usize = 1024;
/// Times that a tree is listed and killed on version 1, where processes may be born between the two.
const PASSES_MAX: usize = 16;
/// Processes that are held at once while they are signalled: each takes a descriptor.
const HELD_MAX: usize = 128;

impl Cgroup {
    /// Processes of the container and of the groups it made below its own.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.tree().map(processes).unwrap_or_default()
    }

    /// Sends a signal to every process of the container.
    pub(crate) fn signal_all(&self, signal: i32) {
        if signal == Signal::SIGKILL as i32 {
            if let Some(tree) = self.tree() {
                kill_group(tree);
            }
            return;
        }
        if let Some(tree) = self.tree() {
            signal_listed(tree, &processes(tree), signal);
        }
    }

    /// Makes a group below, for the processes of one exec, in the one hierarchy that lists processes.
    pub(crate) fn make_child(&self, name: &str) -> Option<PathBuf> {
        let child = self.tree()?.join(name);
        match fs::create_dir(&child) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
            Ok(()) | Err(_) => {}
        }
        let_in(&child);
        Some(child)
    }
}

/// Has a new group take processes also where the container has put threads into groups of their own: beside those
/// there are only groups of threads (cgroup-v2, "Threads").
fn let_in(child: &Path) {
    let kind = child.join("cgroup.type");
    if fs::read_to_string(&kind).is_ok_and(|text| text.trim() == "domain invalid") {
        // The runtime will say that nothing gets in.
        let _refused = fs::write(&kind, "threaded").is_err();
    }
}

/// Kills everything in a group and below it. One of threads alone is not killed as one (`EOPNOTSUPP`), nor is any before
/// Linux 5.14.
pub(crate) fn kill_group(group: &Path) {
    if fs::write(group.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    for _pass in 0..PASSES_MAX {
        if !signal_listed(group, &processes(group), Signal::SIGKILL as i32) {
            return;
        }
    }
}

/// Processes of a group and of those below it.
fn processes(tree: &Path) -> Vec<u32> {
    let mut pids: Vec<u32> = groups(tree).iter().flat_map(|group| read_processes(group)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Signals those of a list that are still in a group or below it; whether there was any.
fn signal_listed(tree: &Path, listed: &[u32], signal: i32) -> bool {
    signal_members(listed, signal, || processes(tree))
}

/// Signals those of a list that are `members` still. Each is held before that is looked up: a number can be another
/// process's by then, and one that was held is not.
fn signal_members(listed: &[u32], signal: i32, mut members: impl FnMut() -> Vec<u32>) -> bool {
    let mut any = false;
    for some in listed.chunks(HELD_MAX) {
        let held: Vec<_> = some.iter().filter_map(|pid| Some((*pid, hold(*pid).ok()?))).collect();
        let members = members();
        for (_, process) in held.iter().filter(|(pid, _)| members.binary_search(pid).is_ok()) {
            any |= signal_held(process, signal);
        }
    }
    any
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
    while let Some(group) = found.get(next).filter(|_| found.len() < GROUPS_MAX) {
        let below: Vec<PathBuf> = groups_in(group).take(GROUPS_MAX - found.len()).collect();
        found.extend(below);
        next += 1;
    }
    found
}

/// The groups directly below.
pub(super) fn groups_in(group: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// A group of threads lists no processes: those are named by its threads.
fn read_processes(group: &Path) -> Vec<u32> {
    match fs::read_to_string(group.join("cgroup.procs")) {
        Ok(text) => numbers(&text),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            let threads = fs::read_to_string(group.join("cgroup.threads")).unwrap_or_default();
            let mut pids: Vec<u32> = numbers(&threads).into_iter().filter_map(process_of).collect();
            pids.dedup();
            pids
        }
        Err(_) => Vec::new(),
    }
}

/// The numbers of a list, without those of another pid namespace (0) and of the node's first process.
fn numbers(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 1).collect()
}

/// The process that a thread is of.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_is_of_its_process() {
        let of_own = || process_of(u32::try_from(nix::unistd::gettid().as_raw()).unwrap());
        let this = Some(std::process::id());
        assert_eq!((of_own(), std::thread::spawn(of_own).join().unwrap()), (this, this));
        assert_eq!(process_of(u32::MAX), None);
    }

    #[test]
    fn who_has_got_the_number_of_a_process_that_was_listed_is_not_signalled() {
        let top = tempfile::tempdir().unwrap();
        let below = top.path().join("exec");
        fs::create_dir(&below).unwrap();
        let sleeper = || Command::new("sleep").arg("1000").spawn().unwrap();
        let (mut member, mut other) = (sleeper(), sleeper());
        fs::write(top.path().join("cgroup.procs"), "").unwrap();
        fs::write(below.join("cgroup.procs"), format!("{}\n", member.id())).unwrap();
        let term = Signal::SIGTERM as i32;
        assert!(signal_listed(top.path(), &[other.id(), member.id()], term));
        assert_eq!(member.wait().unwrap().signal(), Some(term));
        assert_eq!(other.try_wait().unwrap(), None);
        assert!(!signal_listed(top.path(), &[other.id()], term));
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// Says that this process is alone in a pid namespace, in which numbers can be given away.
    const ALONE: &str = "BERTH_TEST_ALONE";

    /// A number that was another's when it was listed, and is a member's when it is signalled.
    #[test]
    fn who_has_got_the_number_of_a_process_that_was_held_is_not_signalled() {
        let name =
            "cgroup::members::tests::who_has_got_the_number_of_a_process_that_was_held_is_not_signalled";
        if std::env::var_os(ALONE).is_none() {
            let mut alone = Command::new("unshare");
            alone.args(["--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]);
            alone.arg(std::env::current_exe().unwrap()).args(["--exact", name]).env(ALONE, "1");
            let output = alone.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}{output:?}");
            return;
        }
        let sleeper = || Command::new("sleep").arg("1000").spawn().unwrap();
        let mut first = sleeper();
        let number = first.id();
        let mut second = None;
        let signalled = signal_members(&[number], Signal::SIGTERM as i32, || {
            first.kill().unwrap();
            first.wait().unwrap();
            fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
            second = Some(sleeper());
            vec![number]
        });
        let mut second = second.unwrap();
        assert_eq!(second.id(), number, "it has got the number");
        assert!(!signalled, "who was listed is gone");
        second.kill().unwrap();
        assert_eq!(
            second.wait().unwrap().signal(),
            Some(Signal::SIGKILL as i32),
            "and not of the other signal"
        );
    }

    #[test]
    fn who_is_not_the_containers_is_not_listed() {
        assert_eq!(numbers("0\n1\n17\n4194304\n"), [17, 4_194_304]);
        assert_eq!(numbers(""), Vec::<u32>::new());
    }

    #[test]
    fn a_new_group_beside_those_of_threads_is_one_itself() {
        let top = tempfile::tempdir().unwrap();
        let unified = Cgroup::Unified(top.path().to_owned());
        for (found, made) in [("domain invalid\n", "threaded"), ("domain\n", "domain\n")] {
            fs::create_dir_all(top.path().join("e")).unwrap();
            fs::write(top.path().join("e/cgroup.type"), found).unwrap();
            let child = unified.make_child("e").unwrap();
            assert_eq!(fs::read_to_string(child.join("cgroup.type")).unwrap(), made);
        }
    }
}
