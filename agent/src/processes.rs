//! What other processes keep in their own memory: their environment and their arguments, as `/proc` shows them.
//!
//! The kernel holds a reader for as long as the process's map of its memory is being changed, and one that waits for a page
//! of a file server that is away changes it for as long. So nothing is concluded from silence, nobody waits long for it, and
//! a process that is silent is not asked a second time meanwhile. Links in `/proc` (`exe`, `cwd`, `ns`) always answer.

use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::causes::with_causes;

/// How long all processes together may take to tell. By how much the agent itself is late for its turn does not count: on a node that
/// is busy it is not the processes that are silent.
const WITHIN: Duration = Duration::from_secs(2);

/// After so long without an answer the next process is asked beside.
const PAUSE: Duration = Duration::from_millis(50);

/// Processes that are waited for at once in one look.
const THREADS_MAX: usize = 64;

/// Processes that are being read, and since when.
static BEING_READ: Mutex<BTreeMap<u32, Instant>> = Mutex::new(BTreeMap::new());

/// What processes told. Those that have ended told nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// What was read.
    pub(crate) read: BTreeMap<u32, Vec<u8>>,
    /// Processes that did not answer.
    pub(crate) silent: Vec<u32>,
}

/// The numbers of all processes.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Where a link of a process leads.
pub(crate) fn link(process: u32, name: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/{name}")).ok()
}

/// Reads a file of each process that is in its memory (`environ`, `cmdline`). Blocks for [`WITHIN`] at most, where the agent
/// has its turns.
pub(crate) fn read(processes: impl IntoIterator<Item = u32>, file: &'static str) -> Told {
    read_with(processes.into_iter().collect(), move |process| fs::read(format!("/proc/{process}/{file}")))
}

fn read_with(
    processes: Vec<u32>,
    look: impl Fn(u32) -> io::Result<Vec<u8>> + Clone + Send + 'static,
) -> Told {
    let mut until = Instant::now() + WITHIN;
    let (silent, asked) = processes.into_iter().partition(|process| is_silent(*process));
    let mut told = Told { read: BTreeMap::new(), silent };
    let mut open = asked.clone();
    // One answer of each at most, so no thread ever waits to tell.
    let (sender, answers) = sync_channel(asked.len());
    let queue = Arc::new(Mutex::new(VecDeque::from(asked)));
    let ask = |sender: SyncSender<_>| {
        let (queue, look) = (Arc::clone(&queue), look.clone());
        let thread = thread::Builder::new().name("processes".to_owned());
        thread.spawn(move || ask_each(&queue, &look, &sender)).map(drop)
    };
    if let Err(error) = ask(sender.clone()) {
        tracing::warn!(
            error = with_causes(&error),
            "no thread to ask processes: all of them count as silent"
        );
        told.silent.append(&mut open);
        return told;
    }
    let mut threads = 1;
    while !open.is_empty() {
        let now = Instant::now();
        let left = until.saturating_duration_since(now);
        let pause = left.min(PAUSE);
        let answer = answers.recv_timeout(pause);
        until += now.elapsed().saturating_sub(pause);
        match answer {
            Ok((process, answer)) => {
                open.retain(|asked| *asked != process);
                if let Ok(answer) = answer {
                    told.read.insert(process, answer);
                }
            }
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {
                // Without another thread those that are there go on.
                if threads < THREADS_MAX && !locked(&queue).is_empty() && ask(sender.clone()).is_ok() {
                    threads += 1;
                }
            }
            Err(_) => break,
        }
    }
    locked(&queue).clear();
    told.silent.append(&mut open);
    told
}

type Answer = (u32, io::Result<Vec<u8>>);

fn ask_each(
    queue: &Mutex<VecDeque<u32>>,
    look: &impl Fn(u32) -> io::Result<Vec<u8>>,
    sender: &SyncSender<Answer>,
) {
    loop {
        let Some(process) = locked(queue).pop_front() else { return };
        locked(&BEING_READ).entry(process).or_insert_with(Instant::now);
        let answer = look(process);
        locked(&BEING_READ).remove(&process);
        // Fails when nobody waits any more.
        drop(sender.send((process, answer)));
    }
}

/// Whether a thread has waited for it for so long already.
fn is_silent(process: u32) -> bool {
    locked(&BEING_READ).get(&process).is_some_and(|since| since.elapsed() >= WITHIN / 2)
}

/// Nothing that can panic is done under these locks.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_process_tells_of_itself_and_one_that_ended_does_not() {
        let own = std::process::id();
        let told = read([own, u32::MAX], "cmdline");
        assert_eq!(told.read.keys().copied().collect::<Vec<_>>(), [own]);
        assert_eq!(told.silent, [0_u32; 0]);
        assert!(all().any(|process| process == own));
        assert_eq!(link(own, "exe"), std::env::current_exe().ok());
    }

    #[test]
    fn silent_ones_hold_up_no_other_and_are_not_asked_twice() {
        let asked = Arc::new(AtomicUsize::new(0));
        let (let_go, held) = sync_channel::<()>(0);
        let held = Arc::new(Mutex::new(held));
        let look = {
            let asked = Arc::clone(&asked);
            move |process: u32| {
                if process >= u32::MAX - 1 {
                    asked.fetch_add(1, Ordering::Relaxed);
                    drop(held.lock().map(|held| held.recv()));
                }
                Ok(process.to_string().into_bytes())
            }
        };
        let processes = vec![u32::MAX - 1, 4_294_000_001, u32::MAX, 4_294_000_002];
        for _ in 0..2 {
            let mut told = read_with(processes.clone(), look.clone());
            told.silent.sort_unstable();
            assert_eq!(told.silent, [u32::MAX - 1, u32::MAX]);
            assert_eq!(told.read.len(), 2);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        drop(let_go);
    }
}
