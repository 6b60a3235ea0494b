//! One level of a hierarchy: its files, its processes, its removal.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Levels below a pod that are walked: containers, and what runs inside them under cgroup namespaces.
const DEPTH_MAX: usize = 32;

/// Processes that are held at once while they are killed: each takes a descriptor.
const HELD_MAX: usize = 128;

/// Writes a file of the kernel: one that is not there is an error, and never made.
pub(super) fn write(file: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

/// Removes a level and those below it. `EBUSY` when a process is in one of them.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    remove_below(dir, DEPTH_MAX)
}

/// Kills every process in a level and below it. One call where the kernel can (5.14, version 2), else one by one, held
/// still meanwhile where version 2 can do that (5.2); who forks all the same is met by the next round.
pub(super) fn kill(dir: &Path) {
    if write(&dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let freezer = dir.join("cgroup.freeze");
    let is_held = write(&freezer, "1").is_ok();
    kill_below(dir, DEPTH_MAX);
    if is_held {
        // A level that is gone needs none.
        let _gone = write(&freezer, "0");
    }
}

/// The levels directly below one.
pub(super) fn below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Processes in a level itself.
pub(super) fn processes(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn remove_below(dir: &Path, depth: usize) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) if depth > 0 => {}
        result => return result,
    }
    for child in below(dir) {
        remove_below(&child, depth - 1)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn kill_below(dir: &Path, depth: usize) {
    kill_listed(dir, &processes(dir));
    if depth > 0 {
        for child in below(dir) {
            kill_below(&child, depth - 1);
        }
    }
}

/// Kills those of a list that are still in the level. Each is held before that is looked up: a number can be another
/// process's by then.
fn kill_listed(dir: &Path, listed: &[i32]) {
    for some in listed.chunks(HELD_MAX) {
        let hold = |pid: &i32| {
            // 0 stands for a process of another pid namespace.
            let number = Pid::from_raw(*pid).filter(|_| *pid > 0)?;
            Some((*pid, pidfd_open(number, PidfdFlags::empty()).ok()?))
        };
        let held: Vec<_> = some.iter().filter_map(hold).collect();
        let members = processes(dir);
        for (_, process) in held.iter().filter(|(pid, _)| members.contains(pid)) {
            // It may have ended by itself.
            let _gone = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::ExitStatusExt,
        process::{Child, Command},
    };

    use tempfile::TempDir;

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    #[test]
    fn a_file_that_is_not_there_is_not_made() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("cpu.weight");
        assert_eq!(write(&file, "1").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!file.exists());
    }

    #[test]
    fn processes_are_killed_one_by_one_where_the_kernel_has_no_call_for_it() {
        let dir = TempDir::new().unwrap();
        let inner = dir.path().join("container/inner");
        fs::create_dir_all(&inner).unwrap();
        let (mut outer, mut deep) = (sleeper(), sleeper());
        fs::write(dir.path().join("cgroup.procs"), format!("0\n{}\n", outer.id())).unwrap();
        fs::write(inner.join("cgroup.procs"), format!("{}\n", deep.id())).unwrap();
        fs::write(dir.path().join("cgroup.freeze"), "").unwrap();
        kill(dir.path());
        for child in [&mut outer, &mut deep] {
            assert_eq!(child.wait().unwrap().signal(), Some(9));
        }
        // Nobody is left held still.
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.freeze")).unwrap(), "0");
    }

    #[test]
    fn who_has_got_the_number_of_a_process_that_was_listed_is_not_killed() {
        let dir = TempDir::new().unwrap();
        let (mut member, mut other) = (sleeper(), sleeper());
        fs::write(dir.path().join("cgroup.procs"), format!("{}\n", member.id())).unwrap();
        let listed = [&other, &member].map(|child| i32::try_from(child.id()).unwrap());
        kill_listed(dir.path(), &listed);
        assert_eq!(member.wait().unwrap().signal(), Some(9));
        assert_eq!(other.try_wait().unwrap(), None);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn one_call_kills_all_where_the_kernel_has_it() {
        let dir = TempDir::new().unwrap();
        let mut child = sleeper();
        fs::write(dir.path().join("cgroup.procs"), child.id().to_string()).unwrap();
        fs::write(dir.path().join("cgroup.kill"), "").unwrap();
        kill(dir.path());
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.kill")).unwrap(), "1");
        assert_eq!(child.try_wait().unwrap(), None, "nobody was signalled beside it");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_level_goes_with_those_below_it_and_may_be_gone() {
        let dir = TempDir::new().unwrap();
        let level = dir.path().join("pod");
        fs::create_dir_all(level.join("a/b")).unwrap();
        fs::create_dir_all(level.join("c")).unwrap();
        for _ in 0..2 {
            remove(&level).unwrap();
            assert!(!level.exists());
        }
        assert_eq!(below(dir.path()), Vec::<PathBuf>::new());
    }
}
