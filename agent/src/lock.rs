//! Locks on files that only one agent may have.

use std::{
    fs::{self, File},
    os::linux::fs::MetadataExt,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::stat::{major, minor},
};

/// How long a lock may outlive its agent. Between fork and exec a child has its parent's descriptors, and with them the
/// lock, also when the parent is killed just then.
const OUTLIVES_WITHIN: Duration = Duration::from_secs(1);

/// The same where no process that is there has taken the lock: such a child may wait for a busy processor, or for the file system
/// that its program is on.
const ORPHANED_WITHIN: Duration = Duration::from_secs(30);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the lock on a file.
///
/// # Errors
/// `EWOULDBLOCK` when another agent has it, with the file; whatever else the kernel says.
pub fn exclusive(file: File) -> Result<Flock<File>, (File, Errno)> {
    exclusive_within(file, OUTLIVES_WITHIN)
}

/// Waits so long also for an owner that is there.
fn exclusive_within(mut file: File, outlives: Duration) -> Result<Flock<File>, (File, Errno)> {
    let began = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((taken, Errno::EWOULDBLOCK))
                if began.elapsed() < outlives
                    || (began.elapsed() < ORPHANED_WITHIN && !has_owner(&taken)) =>
            {
                file = taken;
            }
            result => return result,
        }
        thread::sleep(PAUSE);
    }
}

/// Whether a process that is there took the lock, by proc_locks(5). Nobody has it also where it was let go a moment ago, or where
/// the kernel leaves a lock out because others changed while it told of them.
fn has_owner(file: &File) -> bool {
    let Ok(found) = file.metadata() else { return false };
    let device = found.st_dev();
    let place = format!("{:02x}:{:02x}:{}", major(device), minor(device), found.st_ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1) == Some(&"FLOCK")
            && words.get(5) == Some(&place.as_str())
            && words.get(4).is_some_and(|pid| fs::exists(format!("/proc/{pid}")).unwrap_or(true))
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_lock_whose_agent_is_gone_is_waited_for_longer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        // A program has it that did not take it, and lives as long as the input is open.
        let script = "exec 8<&0 9>\"$1\"; flock -n 9 || exit; cat <&8 &";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut shell = shell.spawn().unwrap();
        let input = shell.stdin.take();
        assert!(shell.wait().unwrap().success());
        let open = || File::options().write(true).open(&path).unwrap();
        let (file, errno) = Flock::lock(open(), FlockArg::LockExclusiveNonblock).unwrap_err();
        assert!(errno == Errno::EWOULDBLOCK && !has_owner(&file), "nobody has it, or one that is there");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| exclusive(open()).map(drop));
            thread::sleep(2 * OUTLIVES_WITHIN);
            assert!(!waiting.is_finished(), "it was given up");
            drop(input);
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_lock_that_a_child_has_for_a_moment_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let open = || File::options().write(true).create(true).truncate(false).open(&path).unwrap();
        let held = exclusive(open()).unwrap();
        let began = Instant::now();
        let (_file, refused) = exclusive(open()).unwrap_err();
        assert_eq!(refused, Errno::EWOULDBLOCK, "somebody has it");
        assert!(began.elapsed() >= OUTLIVES_WITHIN, "it was not waited for");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| exclusive_within(open(), ORPHANED_WITHIN).map(drop));
            drop(held);
            waiting.join().unwrap().unwrap();
        });
    }
}
