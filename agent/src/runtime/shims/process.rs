//! Shims as processes: what is left to look at when nothing can be asked.

use std::{collections::BTreeMap, os::fd::OwnedFd, path::PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::processes;

/// Name of the shim's program. The kernel cuts names of processes, so it is looked for in the link to the program.
const PROGRAM: &str = "containerd-shim-berth-v1";

/// The processes of a sandbox's shim. Each is held before it is looked at, so that a successor with its number is never
/// meant. Blocks while processes tell of themselves.
fn of(sandbox: &str) -> Vec<OwnedFd> {
    let mut shims: BTreeMap<u32, OwnedFd> =
        processes::all().filter_map(|pid| Some((pid, hold(pid)?))).collect();
    let told = processes::read(shims.keys().copied(), "cmdline");
    let by_arguments = told.read.iter().filter(|(_, command)| is_shim(&arguments(command), sandbox));
    // One that does not show its arguments works in the directory of its sandbox.
    let by_directory = told.silent.iter().filter(|pid| is_bundle(processes::link(**pid, "cwd"), sandbox));
    let meant = by_arguments.map(|(pid, _)| pid).chain(by_directory);
    meant.filter_map(|pid| shims.remove(pid)).collect()
}

/// Kills every process of a sandbox's shim and tells how many there were.
pub(crate) fn kill(sandbox: &str) -> usize {
    of(sandbox).iter().filter(|process| pidfd_send_signal(process, Signal::KILL).is_ok()).count()
}

/// Whether a sandbox's shim has a process.
pub(super) fn lives(sandbox: &str) -> bool {
    !of(sandbox).is_empty()
}

fn hold(pid: u32) -> Option<OwnedFd> {
    if !is_program(pid) {
        return None;
    }
    let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    is_program(pid).then_some(process)
}

fn is_program(pid: u32) -> bool {
    processes::link(pid, "exe")
        .is_some_and(|exe| exe.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PROGRAM)))
}

fn arguments(command: &[u8]) -> Vec<&str> {
    command.split(|byte| *byte == 0).filter_map(|it| str::from_utf8(it).ok()).collect()
}

fn is_shim(arguments: &[&str], sandbox: &str) -> bool {
    arguments.windows(2).any(|pair| pair == ["-id", sandbox])
}

/// Whether a directory is the one that containerd starts the sandbox's shim in.
fn is_bundle(directory: Option<PathBuf>, sandbox: &str) -> bool {
    directory.is_some_and(|directory| directory.file_name().is_some_and(|name| name == sandbox))
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// Starts a shell under a name, with arguments as a shim's, that lives until it is killed.
    fn start(program: &Path, id: &str) -> Child {
        let arguments = ["-c", "read end", "shim", "-id", id];
        Command::new(program).args(arguments).stdin(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn nobody_is_killed_for_the_arguments_of_a_shim() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(PROGRAM);
        // By another process: a program that this one has open for writing cannot be run.
        assert!(Command::new("cp").args(["/bin/sh".as_ref(), program.as_path()]).status().unwrap().success());
        let id = format!("berth-test-{}", std::process::id());
        let (mut shim, mut other) = (start(&program, &id), start("/bin/sh".as_ref(), &id));
        let killed = kill(&id);
        let other_lives = other.try_wait().unwrap().is_none();
        other.kill().unwrap();
        shim.kill().unwrap();
        other.wait().unwrap();
        let status = shim.wait().unwrap();
        assert_eq!(killed, 1, "the shim ended with {status}");
        assert!(other_lives, "a process that is no shim was killed");
    }

    #[test]
    fn only_the_shim_of_that_sandbox_is_meant() {
        let shim = ["shim", "-namespace", "k8s.io", "-id", "abc", "serve"];
        assert!(is_shim(&shim, "abc"));
        assert!(!is_shim(&shim, "ab"));
        assert!(!is_shim(&["grep", "abc"], "abc"));
        assert!(!is_shim(&[], "abc"));
        assert!(is_shim(&arguments(b"shim\0-id\0abc\0serve\0"), "abc"));
        assert!(is_bundle(Some("/run/task/k8s.io/abc".into()), "abc"));
        assert!(!is_bundle(Some("/run/task/k8s.io/abcd".into()), "abc"));
        assert!(!is_bundle(None, "abc"));
    }
}
