//! Requests over as many connections as the server's bound on streams needs: none waits behind a watch.
//!
//! What goes where is decided in `berth_core::cluster::spread`. A request has its place until its answer was read or dropped.

use std::{
    collections::BTreeMap,
    fmt,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
};

use berth_core::cluster::spread::{Choice, Spread};
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use kube::client::Body;
use tokio::sync::Notify;
use tower::{BoxError, Service, ServiceExt as _, util::BoxCloneSyncService};

/// Sends requests over one connection, made with the first of them and again when it broke.
pub(super) type Single = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// Sends requests over connections with room.
#[derive(Clone)]
pub(super) struct Spreading {
    shared: Arc<Shared>,
}

struct Shared {
    make: Box<dyn Fn(Told) -> Single + Send + Sync>,
    state: Mutex<State>,
    /// Something has ended, or was told.
    changed: Notify,
}

#[derive(Default)]
struct State {
    spread: Spread,
    connections: BTreeMap<usize, Single>,
}

impl Spreading {
    /// Over connections that `make` makes.
    pub(super) fn of(make: impl Fn(Told) -> Single + Send + Sync + 'static) -> Self {
        let (state, changed) = (Mutex::default(), Notify::new());
        Self { shared: Arc::new(Shared { make: Box::new(make), state, changed }) }
    }
}

impl Service<Request<Body>> for Spreading {
    type Response = Response<Carried>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Carried>, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (connection, place) = Shared::begin(&shared).await;
            let answer = connection.oneshot(request).await?;
            Ok(answer.map(|body| Carried { body, _place: place }))
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn begin(shared: &Arc<Self>) -> (Single, Place) {
        loop {
            let mut changed = pin!(shared.changed.notified());
            // What changes from here on is not missed.
            changed.as_mut().enable();
            if let Some(begun) = Self::try_begin(shared) {
                return begun;
            }
            changed.await;
        }
    }

    fn try_begin(shared: &Arc<Self>) -> Option<(Single, Place)> {
        let mut state = shared.lock();
        let number = match state.spread.begin() {
            Choice::On(number) | Choice::First(number) => number,
            Choice::Later => return None,
        };
        let make = || (shared.make)(Told { shared: Arc::downgrade(shared), number });
        let connection = state.connections.entry(number).or_insert_with(make).clone();
        drop(state);
        Some((connection, Place { shared: Arc::clone(shared), number }))
    }
}

/// Who tells how many streams a connection takes.
#[derive(Clone)]
pub(super) struct Told {
    shared: Weak<Shared>,
    number: usize,
}

impl Told {
    pub(super) fn streams(&self, streams: usize) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().spread.told(self.number, streams);
            shared.changed.notify_waiters();
        }
    }
}

impl fmt::Debug for Told {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Told").field(&self.number).finish()
    }
}

/// The place of a request on a connection. It is free again when this is dropped.
struct Place {
    shared: Arc<Shared>,
    number: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let is_dropped = state.spread.end(self.number);
        let connection = if is_dropped { state.connections.remove(&self.number) } else { None };
        drop(state);
        drop(connection);
        self.shared.changed.notify_waiters();
    }
}

/// The body of an answer, with its place.
pub(super) struct Carried {
    body: Incoming,
    _place: Place,
}

impl HttpBody for Carried {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
