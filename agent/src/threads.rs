//! Threads for blocking calls, of which there is always one.
//!
//! Where the kernel lets no thread be made (a pod may use up all of the machine's), a call waits for one that lives: without any
//! the async runtime would panic, and the agent end. So one waits for as long as the agent runs, for nothing, and another is
//! kept from ending of idleness, so that calls go on.

use std::{
    io,
    sync::mpsc::{SyncSender, sync_channel},
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};

/// What those of the agent's own runtime are named.
pub(crate) const NAME: &str = "blocking";

/// So many of them at most: more than the lanes let in together, so that no call ever waits for a thread that is stuck in another
/// lane. Each is made when it is needed.
pub(crate) const MAX: usize = 512;

/// How long a thread is kept beyond its last call. Calls go to idle threads in turn: the longer it is, the fewer calls keep
/// all threads that the busiest moment has made.
const KEPT: Duration = Duration::from_secs(1);

/// Between two calls that do nothing, each of which wakes two threads: often enough to keep one, and a loop that is a moment
/// late loses none.
const NUDGE_EACH: Duration = Duration::from_millis(800);

/// An async runtime of the thread that runs it, with so many threads for blocking calls at most.
pub(crate) fn runtime(name: &str, blocking_max: usize) -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(blocking_max).thread_keep_alive(KEPT).thread_name(name).build()
}

/// While it is there, calls find a thread.
#[derive(Debug)]
pub(crate) struct Kept {
    _waits: SyncSender<()>,
}

/// Keeps threads from now on. To be called first of all, in the runtime.
pub(crate) fn keep() -> Kept {
    let (waits, ends) = sync_channel(0);
    // Ends with what is returned.
    tokio::task::spawn_blocking(move || ends.recv());
    tokio::spawn(async {
        let mut nudge = tokio::time::interval(NUDGE_EACH);
        nudge.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            nudge.tick().await;
            tokio::task::spawn_blocking(|| ());
        }
    });
    Kept { _waits: waits }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;

    #[test]
    fn a_thread_outlives_idleness() {
        let runtime = runtime(NAME, MAX).unwrap();
        let is_ours =
            |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim_end() == NAME);
        let tasks = || fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
        runtime.block_on(async {
            let kept = keep();
            tokio::time::sleep(KEPT * 2).await;
            assert!(tasks().any(|task| is_ours(&task)));
            drop(kept);
        });
        runtime.shutdown_background();
    }
}
