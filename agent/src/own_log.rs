//! The agent's own log, on standard error. A thread of its own writes it, so that one that nobody takes, as a journal whose disk is
//! frozen, holds up nothing else: lines that find no room are lost, and counted.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, Write},
    mem,
    panic::{self, PanicHookInfo},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Bytes that wait at most, some thousands of lines. As many more may be in the hands of the thread.
const WAITING_MAX: usize = 1 << 20;

/// How long what is said last may take to be written. Who ends does so all the same.
const END_WITHIN: Duration = Duration::from_millis(500);

/// As there is one standard error.
static LOG: Queue = Queue::new(WAITING_MAX);

/// Starts the thread. From now on [`end`] and panics are bounded by what they wait for it.
///
/// # Errors
/// The kernel lets no thread be made.
pub(crate) fn start() -> io::Result<()> {
    thread::Builder::new().name("log".to_owned()).spawn(|| LOG.write_to(io::stderr(), tell_lost))?;
    LOG.lock().thread = Thread::Waits;
    panic::set_hook(Box::new(|info| {
        LOG.end_with(told(info).as_bytes(), END_WITHIN);
    }));
    Ok(())
}

/// Where lines are written to, each at once. Never waits for whoever takes them.
pub(crate) fn lines() -> impl Write {
    &LOG
}

/// Says the last words before a death that does not wait: after the lines of before, unless these take long, and whatever the thread is at.
pub(crate) fn say_now(words: &str) {
    LOG.all_written(END_WITHIN);
    // Nobody can be told who cannot be told so.
    drop(io::stderr().write_all(words.as_bytes()));
}

/// Says the last words of this program, after all lines, and waits for them, but not for long. Without the thread they are written at
/// once.
pub(crate) fn end(words: &str) {
    let thread = LOG.lock().thread;
    if thread == Thread::Missing {
        // When nobody can be told, the exit code still says it.
        drop(io::stderr().write_all(words.as_bytes()));
    } else {
        LOG.end_with(words.as_bytes(), END_WITHIN);
    }
}

fn tell_lost(lines: u64) {
    tracing::warn!(lines, "this log was not taken: lines of it are lost");
}

/// What is told of a panic, as the standard library tells it.
fn told(info: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let backtrace = Backtrace::capture();
    let is_wanted = backtrace.status() == BacktraceStatus::Captured;
    let backtrace = if is_wanted { format!("{backtrace}\n") } else { String::new() };
    format!("thread '{}' {info}\n{backtrace}", thread.name().unwrap_or("<unnamed>"))
}

/// What waits to be written.
#[derive(Debug)]
struct Queue {
    bytes_max: usize,
    state: Mutex<State>,
    /// Told whenever the state has changed.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: Vec<u8>,
    /// Lines since those that wait.
    lost: u64,
    thread: Thread,
}

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thread {
    Missing,
    Waits,
    Writes,
}

impl Queue {
    const fn new(bytes_max: usize) -> Self {
        let state = State { waiting: Vec::new(), lost: 0, thread: Thread::Missing };
        Self { bytes_max, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or counts it as lost. After a lost one nothing is added until that can be told.
    fn add(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.lost > 0 || state.waiting.len() + line.len() > self.bytes_max {
            state.lost += 1;
        } else {
            state.waiting.extend_from_slice(line);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Adds what is said last, whatever waits already. Whether all was written in time.
    fn end_with(&self, words: &[u8], within: Duration) -> bool {
        self.lock().waiting.extend_from_slice(words);
        self.changed.notify_all();
        self.all_written(within)
    }

    /// Waits until nothing waits, but no longer than a time. Whether it is so.
    fn all_written(&self, within: Duration) -> bool {
        let is_left = |state: &mut State| !state.waiting.is_empty() || state.thread == Thread::Writes;
        let waited = self.changed.wait_timeout_while(self.lock(), within, is_left);
        let (_state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        !result.timed_out()
    }

    /// Waits for lines, and takes them, and how many were lost after them.
    fn take(&self) -> (Vec<u8>, u64) {
        let mut state = self.lock();
        state.thread = Thread::Waits;
        self.changed.notify_all();
        let is_empty = |state: &mut State| state.waiting.is_empty() && state.lost == 0;
        let mut state = self.changed.wait_while(state, is_empty).unwrap_or_else(PoisonError::into_inner);
        state.thread = Thread::Writes;
        (mem::take(&mut state.waiting), mem::take(&mut state.lost))
    }

    /// Writes for ever, and has told how many lines were lost, as soon as one can be written.
    fn write_to(&self, mut out: impl Write, tell_lost: impl Fn(u64)) {
        let mut lost = 0;
        let mut moves = true;
        loop {
            let (lines, lost_after) = self.take();
            lost += lost_after;
            // It comes next, since nothing waits now. While no line can be written it would be lost as well, for ever.
            if lost > 0 && moves {
                tell_lost(mem::take(&mut lost));
            }
            for line in lines.split_inclusive(|byte| *byte == b'\n') {
                moves = out.write_all(line).is_ok();
                lost += u64::from(!moves);
            }
        }
    }
}

impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        process::{Command, Stdio},
        sync::{
            Arc,
            mpsc::{Receiver, SyncSender, sync_channel},
        },
        time::Instant,
    };

    use nix::fcntl::{FcntlArg, fcntl};

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    /// Takes a line whenever it is let, and shows it.
    struct Taker {
        may: Receiver<io::Result<()>>,
        shown: SyncSender<String>,
    }

    impl Write for Taker {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.may.recv().map_err(io::Error::other)??;
            self.shown.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A queue of ten bytes, and who takes what is in it.
    struct Scene {
        queue: Arc<Queue>,
        may: SyncSender<io::Result<()>>,
        shown: Receiver<String>,
    }

    impl Scene {
        fn set() -> Self {
            let queue = Arc::new(Queue::new(10));
            let (may, allowed) = sync_channel(16);
            let (show, shown) = sync_channel(16);
            let (written, told) = (Arc::clone(&queue), Arc::clone(&queue));
            thread::spawn(move || {
                let taker = Taker { may: allowed, shown: show };
                written.write_to(taker, |lines| told.add(format!("{lines} lost\n").as_bytes()));
            });
            Self { queue, may, shown }
        }

        fn add(&self, lines: &[&str]) {
            lines.iter().for_each(|line| self.queue.add(line.as_bytes()));
        }

        fn shows(&self, lines: &[&str]) {
            for line in lines {
                self.may.send(Ok(())).unwrap();
                assert_eq!(self.shown.recv_timeout(LONG).unwrap(), *line);
            }
            assert!(self.queue.all_written(LONG));
        }
    }

    #[test]
    fn a_log_that_nobody_takes_holds_nobody_up_and_tells_what_was_lost() {
        let scene = Scene::set();
        scene.add(&["1\n"]);
        while !scene.queue.lock().waiting.is_empty() {
            thread::yield_now();
        }
        // The last one would fit.
        scene.add(&["twotw\n", "3\n", "45\n", "6\n"]);
        assert_eq!(scene.queue.lock().waiting, b"twotw\n3\n");
        assert!(!scene.queue.all_written(SHORT));
        assert!(!scene.queue.end_with(b"the last words\n", SHORT));
        scene.shows(&["1\n", "twotw\n", "3\n", "the last words\n", "2 lost\n"]);
        scene.add(&["7\n", "8\n"]);
        scene.shows(&["7\n", "8\n"]);
    }

    #[test]
    fn a_line_that_is_too_long_or_cannot_be_written_is_lost() {
        let scene = Scene::set();
        scene.add(&["longer than ten\n"]);
        scene.shows(&["1 lost\n"]);
        for line in ["a\n", "b\n"] {
            scene.may.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
            scene.add(&[line]);
            assert!(scene.queue.all_written(LONG));
        }
        scene.add(&["c\n"]);
        scene.shows(&["c\n"]);
        scene.add(&["d\n"]);
        scene.shows(&["d\n", "2 lost\n"]);
    }

    /// Has this program panic.
    const PANICS: &str = "BERTH_TEST_PANICS";

    #[test]
    fn a_panic_is_told_and_waits_for_nobody() {
        if env::var_os(PANICS).is_some() {
            start().unwrap();
            panic!("as it was told to");
        }
        let name = "own_log::tests::a_panic_is_told_and_waits_for_nobody";
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", name]).env(PANICS, "1").stdout(Stdio::null());
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("panicked at"), "{said}");
        assert!(said.contains("own_log.rs:") && said.contains("as it was told to"), "{said}");

        let (_unread, mut full) = io::pipe().unwrap();
        let capacity = fcntl(&full, FcntlArg::F_GETPIPE_SZ).unwrap();
        full.write_all(&vec![b'\n'; usize::try_from(capacity).unwrap()]).unwrap();
        let mut child = command.stderr(full).spawn().unwrap();
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() && began.elapsed() < LONG {
            thread::sleep(SHORT);
        }
        let ended = child.try_wait().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ended.is_some(), "it hangs");
    }
}
