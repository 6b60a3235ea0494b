//! An answer, from its head until the last of it was taken.
//!
//! Whatever it holds, as a place among those that are kept in memory, it holds until then: that it was given to the connection does not
//! say that anybody reads it. One that waits for whoever makes it, as a log that is followed, is owed nothing.

use std::{
    fmt::Debug,
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use berth_core::time::Mono;
use futures::{future::AbortHandle, task::AtomicWaker};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Bytes, Frame, SizeHint};
use tower::BoxError;

use super::{
    Body, Response,
    connection::{Peer, Times},
    h2_streams,
    requests::UnderWay,
    state::{Busy, millis, of_millis},
};
use crate::clock;

/// How fast an answer that is in memory is to be taken at least, beyond the time for a piece: who takes a little now and then would hold all
/// of it for as long as they like.
pub(super) const BYTES_PER_SECOND: u64 = 64 << 10;

/// An answer of which nothing was taken for so long keeps nobody else out, where there is no other place for a connection.
pub(super) const LEFT_AFTER: Duration = Duration::from_secs(5);

/// Largest piece that is given at once. Whoever takes one has shown that they read.
const PIECE: usize = 64 << 10;

/// Places that an answer has until it was taken.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    _places: Arc<dyn Debug + Send + Sync>,
}

impl Kept {
    /// Has an answer keep a place, beside those that it keeps already.
    pub(super) fn put(response: &mut Response, place: impl Debug + Send + Sync + 'static) {
        let before = response.extensions_mut().remove::<Self>();
        response.extensions_mut().insert(Self { _places: Arc::new((place, before)) });
    }
}

/// Times of an answer.
#[derive(Debug, Clone, Copy)]
struct Due {
    /// How long nothing may be taken, and how long once it was given up.
    limit: Duration,
    limit_then: Duration,
    /// When all of it is to be taken.
    until: Option<Mono>,
}

impl Due {
    /// Those of one that is given from now on. What has a size is all there, and in memory.
    fn of(size: Option<u64>, times: Times, now: Mono) -> Self {
        let all = |bytes: u64| times.taken.saturating_add(Duration::from_secs(bytes / BYTES_PER_SECOND));
        let limit = if size.is_some() { times.taken } else { times.streamed };
        Self { limit, limit_then: limit.min(times.taken), until: size.map(|bytes| now + all(bytes)) }
    }

    /// How much is left when nothing was taken for so long.
    fn left(self, since: Duration, now: Mono, is_given_up: bool) -> Duration {
        if is_given_up {
            return self.limit_then.saturating_sub(since);
        }
        let all = self.until.map_or(Duration::MAX, |until| until.since(now));
        self.limit.saturating_sub(since).min(all)
    }
}

/// How an answer is taken, and what is held until it was.
#[derive(Debug)]
pub(super) struct Taking {
    /// When something was last given or taken, in milliseconds.
    changed: AtomicU64,
    /// Pieces that were given, and are not written yet.
    pieces: AtomicUsize,
    /// Whether it waits for whoever makes it.
    waits: AtomicBool,
    due: Due,
    /// The stream of HTTP/2 that it is given on, where there is one.
    stream: Option<AbortHandle>,
    /// Whoever waits for the last piece to be written.
    written: AtomicWaker,
    _held: (Busy, UnderWay, Option<Kept>),
}

impl Taking {
    fn change(&self) {
        self.changed.store(millis(clock::mono()), Relaxed);
    }

    /// How long nothing may be taken yet; `None` where nothing is to be taken.
    pub(super) fn left(&self, now: Mono) -> Option<Duration> {
        let is_owed = self.pieces.load(Relaxed) > 0 || !self.waits.load(Relaxed);
        let since = now.since(of_millis(self.changed.load(Relaxed)));
        is_owed.then(|| self.due.left(since, now, self.is_given_up()))
    }

    /// Waits until all that was given is written, where that can be ended by itself: with the end of an answer its stream would have nobody who
    /// could be told to end it.
    fn is_written(&self, context: &Context<'_>) -> Poll<()> {
        if self.stream.is_none() {
            return Poll::Ready(());
        }
        self.written.register(context.waker());
        if self.pieces.load(Acquire) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether it is made and in memory, and nothing of it is taken for long.
    pub(super) fn is_left(&self, now: Mono) -> bool {
        self.due.until.is_some() && now.since(of_millis(self.changed.load(Relaxed))) >= LEFT_AFTER
    }

    fn is_given_up(&self) -> bool {
        self.stream.as_ref().is_some_and(AbortHandle::is_aborted)
    }

    /// Ends the stream that it is given on, and nothing else of its connection. `false` where there is none, or it was ended already: what is
    /// left then is the connection's.
    pub(super) fn give_up(&self) -> bool {
        let Some(stream) = self.stream.as_ref().filter(|stream| !stream.is_aborted()) else { return false };
        stream.abort();
        self.change();
        true
    }
}

/// Bytes that were given, until they are written.
struct Piece {
    bytes: Bytes,
    taking: Arc<Taking>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.taking.pieces.fetch_sub(1, AcqRel);
        self.taking.change();
        self.taking.written.wake();
    }
}

/// A body that is under way until the last of it was taken, or nobody wants it any more.
struct Held {
    body: Body,
    rest: Bytes,
    is_over: bool,
    taking: Arc<Taking>,
}

/// Holds what an answer holds until it was taken.
pub(super) fn hold(
    mut response: Response,
    peer: &Peer,
    times: Times,
    under_way: (Busy, UnderWay),
) -> Response {
    let kept = response.extensions_mut().remove::<Kept>();
    let (size, now) = (response.body().size_hint().exact(), clock::mono());
    let (busy, under_way) = under_way;
    let taking = Arc::new(Taking {
        changed: AtomicU64::new(millis(now)),
        pieces: AtomicUsize::new(0),
        waits: AtomicBool::new(false),
        due: Due::of(size, times, now),
        written: AtomicWaker::new(),
        stream: h2_streams::of_task(),
        _held: (busy, under_way, kept),
    });
    peer.state.owes(&taking);
    response.map(|body| Held { body, rest: Bytes::new(), is_over: false, taking }.boxed_unsync())
}

impl Held {
    fn piece(&mut self) -> Frame<Bytes> {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE));
        self.taking.pieces.fetch_add(1, Relaxed);
        Frame::data(Bytes::from_owner(Piece { bytes, taking: Arc::clone(&self.taking) }))
    }
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.taking.waits.store(false, Relaxed);
        self.taking.change();
        if self.rest.is_empty() && !self.is_over {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            self.taking.waits.store(polled.is_pending(), Relaxed);
            match ready!(polled).transpose()?.map(Frame::into_data) {
                None => self.is_over = true,
                Some(Err(other)) => return Poll::Ready(Some(Ok(other))),
                Some(Ok(bytes)) => self.rest = bytes,
            }
        }
        if self.is_over {
            return self.taking.is_written(context).map(|()| None);
        }
        Poll::Ready(Some(Ok(self.piece())))
    }

    fn is_end_stream(&self) -> bool {
        let is_open = self.taking.stream.is_some() && self.taking.pieces.load(Relaxed) > 0;
        !is_open && self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, mut hint) = (self.rest.len() as u64, self.body.size_hint());
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + rest),
            None => {
                hint.set_lower(hint.lower() + rest);
                hint
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_core::server::{RequestKind, ServerType};
    use futures::{StreamExt as _, poll, stream};

    use super::{
        super::{
            Requests,
            answer::{of, streamed},
            certificates::Certificates,
            connection::TIMES,
            heads::{Heads, Waiting},
            state::State,
        },
        *,
    };

    fn held(response: Response) -> (Response, Arc<State>) {
        let state = Arc::new(State::new());
        let heads = Heads::new(0);
        let (address, certificates) = (([127, 0, 0, 1], 1).into(), Certificates::default());
        let peer =
            Peer { address, certificates, waiting: Waiting::new(&heads, &heads), state: Arc::clone(&state) };
        let kind = RequestKind::of("GET", "/pods", ServerType::ReadWrite);
        let under_way = Requests::new().unwrap().begin(kind);
        (hold(response, &peer, TIMES, (state.begin(), under_way)), state)
    }

    #[tokio::test]
    async fn an_answer_that_waits_for_its_maker_is_owed_nothing() {
        let pieces = stream::once(async { Ok(Bytes::from_static(b"first")) });
        let (mut response, state) = held(streamed("text/plain", pieces.chain(stream::pending())));
        let limit = |state: &State| state.until_not_taken(clock::mono());
        assert!(limit(&state).is_some_and(|left| left > TIMES.taken), "nobody has asked for it");
        let piece = response.body_mut().frame().await.unwrap().unwrap();
        assert!(limit(&state).is_some());
        assert!(poll!(response.body_mut().frame()).is_pending());
        assert!(limit(&state).is_some(), "a piece is still to be written");
        drop(piece);
        assert_eq!(limit(&state), None);
        assert!(state.is_busy() && state.is_at_work(clock::mono() + TIMES.idle));
        drop(response);
        assert!(!state.is_busy());
    }

    #[tokio::test]
    async fn what_an_answer_holds_is_held_until_it_was_taken() {
        let lane = Arc::new(tokio::sync::Semaphore::new(2));
        let mut response = of(http::StatusCode::OK, "text/plain", vec![b'x'; 2 * PIECE + 1]);
        for _ in 0..2 {
            Kept::put(&mut response, Arc::clone(&lane).try_acquire_owned().unwrap());
        }
        let (mut response, state) = held(response);
        let mut pieces = Vec::new();
        while let Some(piece) = response.body_mut().frame().await {
            pieces.push(piece.unwrap().into_data().unwrap());
        }
        assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [PIECE, PIECE, 1]);
        assert!(state.until_not_taken(clock::mono()).is_some_and(|left| left <= TIMES.taken));
        let at_work = [4, 6].map(|later| state.is_at_work(clock::mono() + Duration::from_secs(later)));
        assert_eq!(at_work, [true, false], "it is left lying");
        drop(response);
        pieces.truncate(1);
        assert!(state.is_busy() && lane.available_permits() == 0, "one is still to be written");
        pieces.clear();
        assert!(!state.is_busy() && lane.available_permits() == 2);
        assert_eq!(state.until_not_taken(clock::mono()), None);
    }

    #[test]
    fn who_takes_a_little_now_and_then_has_a_time_for_all_of_it() {
        let at = |seconds| Mono(Duration::from_secs(seconds));
        let (small, large) = (Some(10 * BYTES_PER_SECOND), Some(100 * BYTES_PER_SECOND));
        for (size, since, now, is_given_up, left) in [
            (small, 0, 100, false, 60),
            (small, 59, 159, false, 1),
            (small, 1, 165, false, 5),
            (small, 1, 171, false, 0),
            (large, 1, 171, false, 59),
            (large, 1, 255, false, 5),
            (small, 1, 171, true, 59),
            (None, 3600, 10_000, false, 3 * 3600),
            (None, 10, 10_000, true, 50),
        ] {
            let due = Due::of(size, TIMES, at(100));
            let is = due.left(Duration::from_secs(since), at(now), is_given_up);
            assert_eq!(is.as_secs(), left, "{size:?} {since} {now}");
        }
    }
}
