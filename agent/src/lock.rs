//! Locks on files that only one agent may have.

use std::{
    fs::File,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};

/// How long a lock may outlive its agent. Between fork and exec a child has its parent's descriptors, and with them the
/// lock, also when the parent is killed just then.
const OUTLIVES_WITHIN: Duration = Duration::from_secs(1);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the lock on a file.
///
/// # Errors
/// `EWOULDBLOCK` when another agent has it, with the file; whatever else the kernel says.
pub fn exclusive(mut file: File) -> Result<Flock<File>, (File, Errno)> {
    let began = Instant::now();
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((taken, Errno::EWOULDBLOCK)) if began.elapsed() < OUTLIVES_WITHIN => file = taken,
            result => return result,
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_a_child_has_for_a_moment_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let open = || File::options().write(true).create(true).truncate(false).open(&path).unwrap();
        let held = exclusive(open()).unwrap();
        let (_file, refused) = exclusive(open()).unwrap_err();
        assert_eq!(refused, Errno::EWOULDBLOCK, "somebody has it");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| exclusive(open()).map(drop));
            drop(held);
            waiting.join().unwrap().unwrap();
        });
    }
}
