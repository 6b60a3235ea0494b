//! What is known of a connection: when it was heard, what it is owed, and when it is to end.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_core::time::Mono;

use super::{connection::Times, held::Taking};
use crate::clock;

/// What is known of one.
#[derive(Debug)]
pub(super) struct State {
    heard_ms: AtomicU64,
    asked: AtomicU64,
    is_admitted: AtomicBool,
    answers: AtomicUsize,
    /// Answers that are being taken.
    takings: Mutex<Vec<Weak<Taking>>>,
}

/// An answer is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Busy(Option<Arc<State>>);

/// Why a connection is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing is under way, and nothing was asked for long.
    Silent,
    /// An answer was not taken for long.
    NotTaken,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            heard_ms: AtomicU64::new(millis(clock::mono())),
            asked: AtomicU64::new(0),
            is_admitted: AtomicBool::new(false),
            answers: AtomicUsize::new(0),
            takings: Mutex::default(),
        }
    }

    /// When it has asked something, had an answer, or was made.
    pub(super) fn heard(&self) -> Mono {
        of_millis(self.heard_ms.load(Relaxed))
    }

    /// How many requests it has made.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.answers.load(Relaxed) > 0
    }

    /// Whether something is under way but answers that were made, of which nothing is taken for long.
    pub(super) fn is_at_work(&self, now: Mono) -> bool {
        let left = self.takings().iter().filter(|taking| taking.is_left(now)).count();
        self.answers.load(Relaxed) > left
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.is_admitted.load(Relaxed)
    }

    /// Something that was asked is allowed.
    pub(super) fn admit(&self) {
        self.is_admitted.store(true, Relaxed);
    }

    /// Something is asked.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.heard_ms.store(millis(clock::mono()), Relaxed);
        self.asked.fetch_add(1, Relaxed);
        self.answers.fetch_add(1, Relaxed);
        Busy(Some(Arc::clone(self)))
    }

    /// An answer is to be taken.
    pub(super) fn owes(&self, taking: &Arc<Taking>) {
        let mut takings = self.takings.lock().unwrap_or_else(PoisonError::into_inner);
        takings.retain(|taking| taking.strong_count() > 0);
        takings.push(Arc::downgrade(taking));
    }

    /// Waits until nothing is under way and nothing was asked for long, or an answer is not taken that no stream of HTTP/2 can be ended for.
    pub(super) async fn is_to_end(&self, times: Times) -> End {
        loop {
            let now = clock::mono();
            if !self.give_up_what_is_not_taken(now) {
                return End::NotTaken;
            }
            let until_not_taken = self.until_not_taken(now).unwrap_or(times.taken);
            let until_silent = self.until_silent(times, now);
            if until_silent.is_zero() {
                return End::Silent;
            }
            // An answer may begin meanwhile.
            tokio::time::sleep(until_silent.min(until_not_taken).min(times.taken)).await;
        }
    }

    fn until_silent(&self, times: Times, now: Mono) -> Duration {
        let time = if self.asked() > 0 { times.idle } else { times.first };
        let since = if self.is_busy() { now } else { self.heard() };
        time.saturating_sub(now.since(since))
    }

    /// `None` where nothing is to be taken.
    pub(super) fn until_not_taken(&self, now: Mono) -> Option<Duration> {
        self.takings().iter().filter_map(|taking| taking.left(now)).min()
    }

    /// Ends streams whose answers are not taken. `false` where that takes the whole connection.
    fn give_up_what_is_not_taken(&self, now: Mono) -> bool {
        let is_late = |taking: &Arc<Taking>| taking.left(now).is_some_and(|left| left.is_zero());
        self.takings().into_iter().filter(is_late).all(|taking| taking.give_up())
    }

    fn takings(&self) -> Vec<Arc<Taking>> {
        let takings = self.takings.lock().unwrap_or_else(PoisonError::into_inner);
        takings.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Busy {
    /// The answer is a stream, which has the connection to itself from now on, until its end.
    pub(super) fn stays(mut self) {
        self.0 = None;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(state) = &self.0 {
            state.heard_ms.store(millis(clock::mono()), Relaxed);
            state.answers.fetch_sub(1, Relaxed);
        }
    }
}

pub(super) fn millis(time: Mono) -> u64 {
    u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn of_millis(millis: u64) -> Mono {
    Mono(Duration::from_millis(millis))
}
