//! Connections, of which there are only so many.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use berth_core::{
    server::{Entry, Place, Places},
    time::Mono,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::AbortHandle,
};

use crate::clock;

/// All of a port.
#[derive(Debug)]
pub(super) struct Connections {
    places: Places,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    all: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    state: Arc<State>,
    task: Option<AbortHandle>,
}

/// What is known of one.
#[derive(Debug)]
pub(super) struct State {
    heard_ms: AtomicU64,
    has_asked: AtomicBool,
    is_admitted: AtomicBool,
    answers: AtomicUsize,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    state: Arc<State>,
    connections: Arc<Connections>,
}

/// An answer is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Busy(Option<Arc<State>>);

impl Connections {
    pub(super) fn new(places: Places) -> Arc<Self> {
        Arc::new(Self { places, table: Mutex::default() })
    }

    /// A place for a further connection, at the cost of another one where there is no other. `None` when there is none.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Seat> {
        let mut table = self.table();
        let places: Vec<Place> = table.all.iter().map(|(number, held)| held.state.place(*number)).collect();
        match self.places.enter(&places) {
            Entry::Free => {}
            Entry::InsteadOf(other) => {
                if let Some(Held { task: Some(task), .. }) = table.all.remove(&other) {
                    task.abort();
                }
            }
            Entry::Full => return None,
        }
        table.last += 1;
        let (number, state) = (table.last, Arc::new(State::new()));
        table.all.insert(number, Held { state: Arc::clone(&state), task: None });
        Some(Seat { number, state, connections: Arc::clone(self) })
    }

    /// Says which task works for a seat, and ends with its place.
    pub(super) fn works_for(&self, seat: u64, task: AbortHandle) {
        match self.table().all.get_mut(&seat) {
            Some(held) => held.task = Some(task),
            // Its place is another's already, or the task has ended.
            None => task.abort(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.table().all.remove(&self.number);
    }
}

impl State {
    fn new() -> Self {
        Self {
            heard_ms: AtomicU64::new(millis(clock::mono())),
            has_asked: AtomicBool::new(false),
            is_admitted: AtomicBool::new(false),
            answers: AtomicUsize::new(0),
        }
    }

    fn place(&self, number: u64) -> Place {
        Place {
            number,
            heard: self.heard(),
            is_admitted: self.is_admitted.load(Relaxed),
            is_busy: self.is_busy(),
        }
    }

    fn heard(&self) -> Mono {
        Mono(Duration::from_millis(self.heard_ms.load(Relaxed)))
    }

    fn is_busy(&self) -> bool {
        self.answers.load(Relaxed) > 0
    }

    /// Something that was asked is allowed.
    pub(super) fn admit(&self) {
        self.is_admitted.store(true, Relaxed);
    }

    /// Something is asked.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.heard_ms.store(millis(clock::mono()), Relaxed);
        self.has_asked.store(true, Relaxed);
        self.answers.fetch_add(1, Relaxed);
        Busy(Some(Arc::clone(self)))
    }

    /// Waits until nothing is under way and nothing was asked for so long; `first` counts before anything was.
    pub(super) async fn is_silent(&self, first: Duration, idle: Duration) {
        loop {
            let now = clock::mono();
            let time = if self.has_asked.load(Relaxed) { idle } else { first };
            let since = if self.is_busy() { now } else { self.heard() };
            let left = time.saturating_sub(now.since(since));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
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

fn millis(time: Mono) -> u64 {
    u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX)
}

/// A connection that has its seat until it is closed, whoever has it by then.
#[derive(Debug)]
pub(super) struct Seated<S> {
    stream: S,
    _seat: Seat,
}

impl<S> Seated<S> {
    pub(super) fn new(stream: S, seat: Seat) -> Self {
        Self { stream, _seat: seat }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Seated<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Seated<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { all: 2, not_admitted: 1 };

    #[tokio::test]
    async fn a_seat_is_free_again_when_the_connection_is_closed() {
        let connections = Connections::new(PLACES);
        let count = || connections.table().all.len();
        let first = Seated::new(tokio::io::empty(), connections.enter().unwrap());
        first._seat.state.admit();
        let second = connections.enter().unwrap();
        assert_eq!(count(), 2);
        drop(second);
        assert_eq!(count(), 1);
        drop(first);
        assert_eq!(count(), 0);
    }

    #[tokio::test]
    async fn the_task_of_who_makes_room_is_ended_and_a_stream_is_not() {
        let connections = Connections::new(PLACES);
        let seat = || {
            let seat = connections.enter().unwrap();
            let task = tokio::spawn(std::future::pending::<()>());
            connections.works_for(seat.number, task.abort_handle());
            (seat, task)
        };
        let ((first, first_task), (second, second_task)) = (seat(), seat());
        assert!(first_task.await.unwrap_err().is_cancelled(), "it was not let in");
        drop(first);
        second.state.admit();
        second.state.begin().stays();
        let (third, _) = seat();
        third.state.admit();
        let busy = third.state.begin();
        assert!(connections.enter().is_none(), "both have something under way");
        drop(busy);
        assert!(connections.enter().is_some());
        assert!(!second_task.is_finished());
    }
}
