//! Files that output goes to, each written by a thread of its own: a disk that does not answer keeps that thread waiting and
//! not the loop.
//!
//! What is to be written waits in a queue with a bound, above which the loop does not read from the process: its pipe
//! fills, and it waits as it would if it wrote to that disk itself. Nothing is lost by that.
//!
//! The kernel lets nobody end a thread that waits for a disk. So it has descriptors of its own: the shim's sockets and pipes
//! close with the shim, also while one of its threads hangs on.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use berth_shim_core::Now;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, SigmaskHow};

use super::{LogFile, RawFile};
use crate::pod::Node;
use crate::sys;

/// Bytes that wait for a file before its process is not read from: enough for writes that are worth their call.
const QUEUE_BYTES_MAX: usize = 128 << 10;
/// Bytes of buffers that a thread keeps while it has nothing to do.
const KEPT_BYTES_MAX: usize = 4 << 10;
/// Time without anything to do after which it keeps no more than that.
const REST: Duration = Duration::from_millis(200);
/// Time that one look at the disk may take before it is shown as stalled, milliseconds.
const STALLED_AFTER_MS: u64 = 1_000;
/// Most of it is never touched, and costs nothing.
const STACK_BYTES: usize = 128 << 10;
/// Results of such requests that are kept for the loop to read.
const RESULTS_MAX: usize = 4;
/// Requests to open a file anew that wait.
const REOPENINGS_MAX: u64 = 16;

/// The clock of a shim.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Now {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            unix_ns: i64::try_from(unix.as_nanos()).unwrap_or(i64::MAX),
            mono_ms: u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// What all writers of a shim have in common.
#[derive(Debug, Clone)]
pub(crate) struct Writing {
    clock: Clock,
    /// Readable when a writer has something to tell.
    word: Arc<EventFd>,
    /// Where they do their work.
    node: Option<Node>,
}

impl Writing {
    pub(crate) fn new(clock: Clock) -> nix::Result<Self> {
        let word = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { clock, word: Arc::new(word), node: None })
    }

    pub(crate) fn word(&self) -> &EventFd {
        &self.word
    }

    /// The same for a shim that has left the node's namespaces.
    pub(crate) fn on_node(&self, node: Option<Node>) -> Self {
        Self { node, ..self.clone() }
    }
}

/// A file that is written by whoever has it.
#[derive(Debug)]
pub(crate) enum Target {
    Log(LogFile),
    Raw(RawFile),
}

impl Target {
    fn open(&mut self, now: Now) {
        match self {
            Self::Log(log) => log.open(now),
            Self::Raw(file) => file.open(now),
        }
    }

    fn write(&mut self, now: Now, bytes: &[u8]) {
        match self {
            Self::Log(log) => log.write(now, bytes),
            Self::Raw(file) => file.write(now, bytes),
        }
    }

    fn reopen(&mut self, now: Now) -> io::Result<()> {
        match self {
            Self::Log(log) => log.reopen(now),
            Self::Raw(file) => file.reopen(now),
        }
    }

    fn dropped_bytes(&self) -> u64 {
        match self {
            Self::Log(log) => log.dropped_bytes(),
            Self::Raw(file) => file.dropped_bytes(),
        }
    }

    fn take_rotated(&mut self) -> bool {
        match self {
            Self::Log(log) => log.take_rotated(),
            Self::Raw(_) => false,
        }
    }
}

/// The loop's end of a file.
#[derive(Debug)]
pub(crate) struct Writer(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    clock: Clock,
    word: Arc<EventFd>,
}

#[derive(Debug, Default)]
struct State {
    queue: Vec<u8>,
    /// Requests to open the file anew that are not taken up, and those that are answered.
    reopen: u64,
    reopened: VecDeque<(u64, Result<(), String>)>,
    /// The last request's number.
    last_reopen: u64,
    /// Since when the thread is at the disk.
    busy_since: Option<Now>,
    thread: Thread,
    /// Nothing follows.
    closing: bool,
    wants: Wants,
    dropped_bytes: u64,
    /// The file was rotated, and the loop does not know yet.
    rotated: bool,
}

/// What the thread does.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Thread {
    #[default]
    Awake,
    Asleep,
    Ended,
}

/// What the loop wants to be told.
#[derive(Debug, Default)]
struct Wants {
    /// There is room in the queue.
    room: bool,
    /// Everything is written.
    rest: bool,
}

impl State {
    /// Whether the thread has to be woken; it counts as awake from then on.
    fn must_wake(&mut self) -> bool {
        let asleep = self.thread == Thread::Asleep;
        if asleep {
            self.thread = Thread::Awake;
        }
        asleep
    }

    fn has_work(&self) -> bool {
        !self.queue.is_empty() || self.reopen > 0
    }

    fn is_at_rest(&self) -> bool {
        self.thread == Thread::Ended || (!self.has_work() && self.busy_since.is_none())
    }
}

impl Writer {
    /// Begins to write a file, which is opened first.
    pub(crate) fn start(writing: &Writing, target: Target) -> io::Result<Self> {
        let Writing { clock, word, node } = writing.clone();
        let state = State { busy_since: Some(clock.now()), ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), work: Condvar::new(), clock, word });
        let thread = Arc::clone(&shared);
        // Signals are the loop's. The mask is inherited.
        let signals = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let spawned =
            thread::Builder::new().name("log".to_owned()).stack_size(STACK_BYTES).spawn(move || {
                if let Some(node) = node {
                    let _in_the_pod = node.enter().is_err();
                }
                // On a kernel without the call (before 5.9) they are the shim's.
                let _shared = sys::own_descriptors(thread.word.as_ref()).is_err();
                thread.serve(target);
            });
        signals.thread_set_mask()?;
        spawned.map(|_thread| Self(shared))
    }

    /// Adds to what is to be written, once [`kick`](Self::kick) has said that no more follows at once.
    pub(crate) fn push(&self, add: impl FnOnce(&mut Vec<u8>)) {
        add(&mut self.0.lock().queue);
    }

    /// Has the thread begin, if it sleeps: one wake and one write for all that came at once.
    pub(crate) fn kick(&self) {
        let mut state = self.0.lock();
        if state.has_work() && state.must_wake() {
            self.0.work.notify_one();
        }
    }

    /// Whether the process should not be read from; the loop is told when it should.
    pub(crate) fn is_full(&self) -> bool {
        let mut state = self.0.lock();
        let is_full = state.queue.len() >= QUEUE_BYTES_MAX;
        state.wants.room |= is_full;
        is_full
    }

    /// Whether everything is where it belongs; the loop is told when it is.
    pub(crate) fn is_at_rest(&self) -> bool {
        let mut state = self.0.lock();
        let is_at_rest = state.is_at_rest();
        state.wants.rest |= !is_at_rest;
        is_at_rest
    }

    /// Opens the file anew, because someone moved it; returns the number of the request, or `None` when too many are under
    /// way.
    pub(crate) fn reopen(&self) -> Option<u64> {
        let mut state = self.0.lock();
        if state.reopen >= REOPENINGS_MAX {
            return None;
        }
        state.last_reopen += 1;
        state.reopen += 1;
        state.wants.rest = true;
        if state.must_wake() {
            self.0.work.notify_one();
        }
        Some(state.last_reopen)
    }

    /// What has become of a request, once it is known.
    pub(crate) fn reopened(&self, number: u64) -> Option<Result<(), String>> {
        let state = self.0.lock();
        state.reopened.iter().find(|(known, _)| *known >= number).map(|(_, result)| result.clone())
    }

    /// When the disk was asked that has not answered for a while, nanoseconds since the Unix epoch.
    pub(crate) fn stalled_since(&self) -> Option<i64> {
        let since = self.0.lock().busy_since?;
        let stalled = self.0.clock.now().mono_ms.saturating_sub(since.mono_ms) >= STALLED_AFTER_MS;
        stalled.then_some(since.unix_ns)
    }

    /// Bytes that could not be written.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.0.lock().dropped_bytes
    }

    /// Bytes that are not written yet.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.0.lock().queue.len()
    }

    /// Whether the file was rotated since the last time; the loop is told when it is.
    pub(crate) fn take_rotated(&self) -> bool {
        std::mem::take(&mut self.0.lock().rotated)
    }

    /// Lets the thread end once everything is written; the loop is told.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.closing = true;
        state.wants.rest = true;
        self.0.work.notify_one();
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.0.lock().thread == Thread::Ended
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        // Full only after as many words as there are numbers, all of which say the same.
        let _told = self.word.write(1).is_err();
    }

    /// The thread: opens the file, and writes until there is nothing to write any more.
    fn serve(&self, mut target: Target) {
        target.open(self.clock.now());
        let mut batch = Vec::new();
        loop {
            self.note(&mut target);
            let Some(reopen) = self.next(&mut batch) else { return };
            if !batch.is_empty() {
                target.write(self.clock.now(), &batch);
                batch.clear();
            }
            if reopen > 0 {
                let result = target.reopen(self.clock.now()).map_err(|error| error.to_string());
                self.answer(&result);
            }
        }
    }

    /// Notes what the loop asks for, as the disk has answered.
    fn note(&self, target: &mut Target) {
        let mut state = self.lock();
        state.busy_since = None;
        state.dropped_bytes = target.dropped_bytes();
        if target.take_rotated() {
            state.rotated = true;
            self.tell();
        }
    }

    /// Waits for something to do: bytes to write, which become `batch`, and requests to open the file anew.
    fn next(&self, batch: &mut Vec<u8>) -> Option<u64> {
        let mut state = self.lock();
        while !state.has_work() {
            if std::mem::take(&mut state.wants.rest) {
                self.tell();
            }
            if state.closing {
                state.thread = Thread::Ended;
                self.tell();
                return None;
            }
            state.thread = Thread::Asleep;
            let keeps = batch.capacity().max(state.queue.capacity()) > KEPT_BYTES_MAX;
            let (woken, rested) = self.sleep(state, keeps);
            state = woken;
            state.thread = Thread::Awake;
            if rested && !state.has_work() {
                *batch = Vec::new();
                state.queue = Vec::new();
            }
        }
        std::mem::swap(&mut state.queue, batch);
        state.busy_since = Some(self.clock.now());
        if std::mem::take(&mut state.wants.room) {
            self.tell();
        }
        Some(std::mem::take(&mut state.reopen))
    }

    /// Sleeps until there may be work, or for a while when there are buffers to give back; whether that is over.
    fn sleep<'s>(&self, state: MutexGuard<'s, State>, keeps: bool) -> (MutexGuard<'s, State>, bool) {
        if keeps {
            let (state, result) = self.work.wait_timeout(state, REST).unwrap_or_else(PoisonError::into_inner);
            (state, result.timed_out())
        } else {
            (self.work.wait(state).unwrap_or_else(PoisonError::into_inner), false)
        }
    }

    /// Notes what has become of all requests that were taken up.
    fn answer(&self, result: &Result<(), String>) {
        let mut state = self.lock();
        let number = state.last_reopen - state.reopen;
        state.reopened.push_back((number, result.clone()));
        if state.reopened.len() > RESULTS_MAX {
            state.reopened.pop_front();
        }
        drop(state);
        self.tell();
    }
}
