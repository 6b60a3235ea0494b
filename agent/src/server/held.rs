//! An answer, from its head until the last of it was taken.
//!
//! Whatever it holds, as a place among those that are kept in memory, it holds until then: that it was given to the connection does not
//! say that anybody reads it. One that waits for whoever makes it, as a log that is followed, is owed nothing.

use std::{
    fmt::Debug,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use berth_core::time::Mono;
use futures::future::AbortHandle;
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

/// How an answer is taken, and what is held until it was.
#[derive(Debug)]
pub(super) struct Taking {
    /// When something was last given or taken, in milliseconds.
    changed: AtomicU64,
    /// Pieces that were given, and are not written yet.
    pieces: AtomicUsize,
    /// Whether it waits for whoever makes it.
    waits: AtomicBool,
    /// How long nothing may be taken, and how long once it was given up.
    limit: Duration,
    limit_then: Duration,
    /// The stream of HTTP/2 that it is given on, where there is one.
    stream: Option<AbortHandle>,
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
        let limit = if self.is_given_up() { self.limit_then } else { self.limit };
        is_owed.then(|| limit.saturating_sub(since))
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
        self.taking.pieces.fetch_sub(1, Relaxed);
        self.taking.change();
    }
}

/// A body that is under way until the last of it was taken, or nobody wants it any more.
struct Held {
    body: Body,
    rest: Bytes,
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
    // What has a size is all there, and in memory.
    let limit = if response.body().size_hint().exact().is_some() { times.taken } else { times.streamed };
    let (busy, under_way) = under_way;
    let taking = Arc::new(Taking {
        changed: AtomicU64::new(millis(clock::mono())),
        pieces: AtomicUsize::new(0),
        waits: AtomicBool::new(false),
        limit,
        limit_then: limit.min(times.taken),
        stream: h2_streams::of_task(),
        _held: (busy, under_way, kept),
    });
    peer.state.owes(&taking);
    response.map(|body| Held { body, rest: Bytes::new(), taking }.boxed_unsync())
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
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            self.taking.waits.store(polled.is_pending(), Relaxed);
            match ready!(polled).transpose()?.map(Frame::into_data) {
                None => return Poll::Ready(None),
                Some(Err(other)) => return Poll::Ready(Some(Ok(other))),
                Some(Ok(bytes)) => self.rest = bytes,
            }
        }
        Poll::Ready(Some(Ok(self.piece())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
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
        assert!(state.is_busy());
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
        drop(response);
        pieces.truncate(1);
        assert!(state.is_busy() && lane.available_permits() == 0, "one is still to be written");
        pieces.clear();
        assert!(!state.is_busy() && lane.available_permits() == 2);
        assert_eq!(state.until_not_taken(clock::mono()), None);
    }
}
