//! Connections, of which there are only so many.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use berth_core::{
    server::{Entry, Origin, Place, Places},
    time::Mono,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::AbortHandle,
};

use super::{
    heads::{self, Heads, Own, Waiting},
    state::State,
};
use crate::clock;

/// All of a port.
#[derive(Debug)]
pub(super) struct Connections {
    places: Places,
    table: Mutex<Table>,
    /// Heads of those who were not let in.
    heads: Heads,
    /// Heads of the others, whose requests wait.
    heads_of_admitted: Heads,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    all: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    from: Origin,
    state: Arc<State>,
    task: Option<AbortHandle>,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    state: Arc<State>,
    connections: Arc<Connections>,
    head: Head,
}

/// What was read of a request's head.
#[derive(Debug)]
struct Head {
    /// Requests before it.
    asked: u64,
    bytes: Own,
}

impl Connections {
    pub(super) fn new(places: Places) -> Arc<Self> {
        Self::with_heads(places, heads::ALL_BYTES, heads::ALL_BYTES)
    }

    /// With room for so many bytes of heads of those who were not let in, and for so many of others.
    pub(super) fn with_heads(places: Places, of_strangers: usize, of_admitted: usize) -> Arc<Self> {
        let (heads, heads_of_admitted) = (Heads::new(of_strangers), Heads::new(of_admitted));
        Arc::new(Self { places, table: Mutex::default(), heads, heads_of_admitted })
    }

    /// A place for a further connection, at the cost of another one where there is no other. `None` when there is none.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Seat> {
        let from = Origin::of(from);
        let mut table = self.table();
        let now = clock::mono();
        let places: Vec<Place> = table.all.iter().map(|(number, held)| held.place(*number, now)).collect();
        match self.places.enter(from, &places) {
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
        table.all.insert(number, Held { from, state: Arc::clone(&state), task: None });
        let head = Head { asked: 0, bytes: Own::new(&self.heads) };
        Some(Seat { number, state, connections: Arc::clone(self), head })
    }

    /// Says which task works for a seat, and ends with its place.
    pub(super) fn works_for(&self, seat: u64, task: AbortHandle) {
        match self.table().all.get_mut(&seat) {
            Some(held) => held.task = Some(task),
            // Its place is another's already, or the task has ended.
            None => task.abort(),
        }
    }

    /// Whether an origin is the node itself, or has a connection that was let in.
    pub(super) fn knows(&self, origin: Origin) -> bool {
        let is_admitted = |held: &Held| held.from == origin && held.state.is_admitted();
        origin.is_loopback() || self.table().all.values().any(is_admitted)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn place(&self, number: u64, now: Mono) -> Place {
        Place {
            number,
            from: self.from,
            heard: self.state.heard(),
            is_admitted: self.state.is_admitted(),
            is_busy: self.state.is_at_work(now),
        }
    }
}

impl Seat {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }

    /// Where its requests wait.
    pub(super) fn waiting(&self) -> Waiting {
        Waiting::new(&self.connections.heads, &self.connections.heads_of_admitted)
    }

    /// Counts bytes of a head. Whether they may be kept.
    fn reads(&mut self, bytes: usize) -> bool {
        let asked = self.state.asked();
        if self.state.is_admitted() || self.head.asked != asked {
            self.head.bytes.clear();
            self.head.asked = asked;
        }
        self.state.is_admitted() || self.head.bytes.add(bytes)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.connections.table().all.remove(&self.number);
    }
}

/// A connection that has its seat until it is closed, whoever has it by then.
#[derive(Debug)]
pub(super) struct Seated<S> {
    stream: S,
    seat: Seat,
}

impl<S> Seated<S> {
    pub(super) fn new(stream: S, seat: Seat) -> Self {
        Self { stream, seat }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Seated<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if !self.seat.reads(buffer.filled().len() - before) {
            return Poll::Ready(Err(std::io::Error::other(
                "too many long requests of those who were not let in",
            )));
        }
        Poll::Ready(Ok(()))
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
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Bytes that there is always room for.
    const SHORT: usize = 16 << 10;

    const PLACES: Places = Places { all: 2, not_admitted: 1, known: 0 };

    #[tokio::test]
    async fn a_seat_is_free_again_when_the_connection_is_closed() {
        let connections = Connections::new(PLACES);
        let count = || connections.table().all.len();
        let first = Seated::new(tokio::io::empty(), connections.enter(HERE).unwrap());
        first.seat.state.admit();
        let second = connections.enter(HERE).unwrap();
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
            let seat = connections.enter(HERE).unwrap();
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
        assert!(connections.enter(HERE).is_none(), "both have something under way");
        drop(busy);
        assert!(connections.enter(HERE).is_some());
        assert!(!second_task.is_finished());
    }

    #[test]
    fn long_heads_of_strangers_fill_no_memory_and_short_ones_are_always_read() {
        let connections = Connections::new(Places { all: 100, not_admitted: 100, known: 0 });
        let mut long: Vec<Seat> = (0..64).map(|_| connections.enter(HERE).unwrap()).collect();
        assert!(long.iter_mut().all(|seat| seat.reads(SHORT) && seat.reads(1 << 20)));
        assert!(!long[0].reads(1));
        let mut short = connections.enter(HERE).unwrap();
        assert!(short.reads(SHORT));
        long.truncate(63);
        assert!(short.reads(1 << 10));
        // What was asked is kept no longer.
        drop(long[0].state.begin());
        assert!(long[0].reads(1));
        let before = connections.heads.bytes();
        long[1].state.admit();
        assert!(long[1].reads(100 << 20));
        assert_eq!(connections.heads.bytes(), before - (1 << 20));
        drop((long, short));
        assert_eq!(connections.heads.bytes(), 0);
    }
}
