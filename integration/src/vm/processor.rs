//! One processor of this machine for one guest.
//!
//! User-Mode Linux and the processes of its guest are processes here that take turns: on one processor a turn is a switch,
//! on two it wakes one that sleeps, which takes four times as long on a virtual machine.

use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// A processor, as long as no other guest has it.
#[derive(Debug)]
pub(super) struct Processor {
    _lock: Option<Flock<File>>,
}

impl Processor {
    /// Keeps this thread, and all that it starts, on a processor that no other guest has; where each has one, on any of them.
    pub(super) fn take(locks: &Path) -> Result<Self> {
        fs::create_dir_all(locks).with_context(|| format!("make {}", locks.display()))?;
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).context("ask for the processors")?;
        let allowed: Vec<usize> =
            (0..CpuSet::count()).filter(|number| allowed.is_set(*number).unwrap_or_default()).collect();
        let mut taken = None;
        for number in &allowed {
            if let Some(lock) = lock(&locks.join(format!("processor-{number}")))? {
                taken = Some((*number, lock));
                break;
            }
        }
        let any = allowed.get(std::process::id() as usize % allowed.len().max(1));
        let (number, lock) = match (taken, any) {
            (Some((number, lock)), _) => (number, Some(lock)),
            (None, Some(number)) => (*number, None),
            (None, None) => bail!("find a processor: none is allowed"),
        };
        let mut one = CpuSet::new();
        one.set(number)?;
        sched_setaffinity(this, &one).with_context(|| format!("stay on processor {number}"))?;
        Ok(Self { _lock: lock })
    }
}

/// The lock of a file, unless another process has it.
fn lock(path: &Path) -> Result<Option<Flock<File>>> {
    let failed = || format!("lock {}", path.display());
    let file = File::create(path).with_context(failed)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno).with_context(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_free_again_when_its_guest_has_ended() {
        let path = std::env::temp_dir().join(format!("processor-of-{}", std::process::id()));
        let first = lock(&path).unwrap();
        assert!(first.is_some());
        assert!(lock(&path).unwrap().is_none(), "it is taken");
        drop(first);
        assert!(lock(&path).unwrap().is_some());
        fs::remove_file(path).unwrap();
    }
}
