//! One level of a hierarchy: its files, its processes, its removal.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::walk::walk;

/// Most bytes read of a level's list of processes: the kernel has no more numbers than four million.
const LIST_BYTES_MAX: u64 = 32 << 20;

/// Processes that are held at once while they are killed: each takes a descriptor.
const HELD_MAX: usize = 128;

/// Writes a file of the kernel: one that is not there is an error, and never made.
pub(super) fn write(file: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

/// Removes a level and those below it. `EBUSY` when a process is in one of them.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    // Most often nothing is below it.
    if fs::remove_dir(dir).is_ok() {
        return Ok(());
    }
    walk(dir, |_level| {}, |above, name| gone(unlinkat(above, name, AtFlags::REMOVEDIR)))?;
    gone(unlinkat(CWD, dir, AtFlags::REMOVEDIR))
}

fn gone(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

/// Kills every process in a level and below it. One call where the kernel can (5.14, version 2), else one by one, held
/// still meanwhile where version 2 can do that (5.2); who forks all the same is met by the next round.
pub(super) fn kill(dir: &Path) {
    if write(&dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let freezer = dir.join("cgroup.freeze");
    let is_held = write(&freezer, "1").is_ok();
    // What it could not walk, removal meets again.
    let _walked = walk(dir, |level| kill_listed(level, &processes(level)), |_above, _name| Ok(()));
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
pub(super) fn processes(level: impl AsFd) -> Vec<i32> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let list = openat(level, c"cgroup.procs", flags, Mode::empty()).map(File::from);
    let mut text = String::new();
    // A level that is gone has none.
    let _read = list.map(|list| list.take(LIST_BYTES_MAX).read_to_string(&mut text));
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Kills those of a list that are still in the level. Each is held before that is looked up: a number can be another
/// process's by then.
fn kill_listed(level: BorrowedFd<'_>, listed: &[i32]) {
    for some in listed.chunks(HELD_MAX) {
        let hold = |pid: &i32| {
            // 0 stands for a process of another pid namespace.
            let number = Pid::from_raw(*pid).filter(|_| *pid > 0)?;
            Some((*pid, pidfd_open(number, PidfdFlags::empty()).ok()?))
        };
        let held: Vec<_> = some.iter().filter_map(hold).collect();
        let members = processes(level);
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

    use rustix::fs::mkdirat;
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
        kill_listed(File::open(dir.path()).unwrap().as_fd(), &listed);
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

    /// Makes levels below one, and gives the last of them.
    fn nest(top: &Path, levels: usize, name: &str) -> File {
        let mut level = File::open(top).unwrap();
        for _ in 0..levels {
            mkdirat(&level, name, Mode::RWXU).unwrap();
            level = openat(&level, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap().into();
        }
        level
    }

    #[test]
    fn levels_of_any_depth_are_walked() {
        let dir = TempDir::new().unwrap();
        let (short, long) = (dir.path().join("short"), dir.path().join("long"));
        // More than are held open, and a path that is longer than one call takes.
        for (top, levels, name) in [(&short, 500, "l".to_owned()), (&long, 100, "l".repeat(200))] {
            fs::create_dir_all(top.join("beside")).unwrap();
            let last = nest(top, levels, &name);
            let mut deep = sleeper();
            let flags = OFlags::WRONLY | OFlags::CREATE;
            let list = openat(&last, "cgroup.procs", flags, Mode::RWXU).unwrap();
            File::from(list).write_all(format!("{}\n", deep.id()).as_bytes()).unwrap();
            kill(top);
            assert_eq!(deep.wait().unwrap().signal(), Some(9), "{levels} levels");

            unlinkat(&last, "cgroup.procs", AtFlags::empty()).unwrap();
            remove(top).unwrap();
            assert!(!top.exists(), "{levels} levels");
        }
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
