//! Lists a kind of object and follows what becomes of it, for as long as somebody asks.
//!
//! The list comes as a stream where the server has that (KEP-3157), else in pages; the watch goes on from the version that was
//! seen last, silently, when the server ends it. What fails is tried again with a growing delay (`NewReflector` of
//! `k8s.io/client-go/tools/cache/reflector.go`).

use std::{fmt, time::Duration};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, WatchParams},
    core::WatchEvent,
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

use super::{ApiError, Clients, client::within};

/// What the server is asked to end a watch after, in seconds, so that no server keeps all of them for ever: the longest that the
/// client allows.
const WATCH_SECONDS: u32 = 290;
/// Objects in one page of a list.
const PAGE: u32 = 500;
/// How long one page may take, and the first bytes of a watch.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Pauses after failures: the first one, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(800);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Annotation of the bookmark that ends a list that comes as a stream.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// What was seen.
#[derive(Debug, Clone)]
pub enum Seen<K> {
    /// All objects that there are: what is not among them is gone.
    Whole(Vec<K>),
    /// One was made or changed.
    Applied(K),
    /// One is gone; how it was at last.
    Gone(K),
    /// The server does not answer, or refuses. Told once per failure; what is known stays as it is.
    Failed(ApiError),
}

/// Which objects of which client.
pub struct Watched<K> {
    clients: Clients,
    api: Box<dyn Fn(Client) -> Api<K> + Send>,
    fields: String,
    state: State<K>,
    /// Whether the server streams lists, as far as is known.
    streams_lists: bool,
    failures: u32,
    not_before: Option<Instant>,
}

enum State<K> {
    /// Nothing is known.
    Unlisted,
    /// A list comes as a stream.
    Listing(Stream<K>, Vec<K>),
    /// What was seen last has this version.
    Known(String),
    /// What has changed since comes.
    Watching(Stream<K>, String),
}

type Stream<K> = BoxStream<'static, Result<WatchEvent<K>, kube::Error>>;

impl<K> fmt::Debug for Watched<K> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Watched").field("fields", &self.fields).finish_non_exhaustive()
    }
}

impl<K> Watched<K>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    /// The objects that `api` serves, those that fit the field selector among them. Nothing is asked yet.
    pub fn new(
        clients: Clients,
        api: impl Fn(Client) -> Api<K> + Send + 'static,
        fields: impl Into<String>,
    ) -> Self {
        Self {
            clients,
            api: Box::new(api),
            fields: fields.into(),
            state: State::Unlisted,
            streams_lists: true,
            failures: 0,
            not_before: None,
        }
    }

    /// What is seen next. Nothing is lost when it is given up.
    pub async fn next(&mut self) -> Seen<K> {
        loop {
            if let Some(at) = self.not_before {
                sleep_until(at).await;
                self.not_before = None;
            }
            match self.step().await {
                Ok(Some(seen)) => return seen,
                Ok(None) => {}
                Err(error) => {
                    self.pause();
                    return Seen::Failed(error);
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        match &mut self.state {
            State::Unlisted => self.list().await,
            State::Known(version) => {
                let version = version.clone();
                let stream = self.begin(WatchParams::default(), &version).await;
                match stream {
                    Ok(stream) => self.state = State::Watching(stream, version),
                    Err(error) => self.forget_if_expired(error)?,
                }
                Ok(None)
            }
            State::Listing(..) | State::Watching(..) => self.follow().await,
        }
    }

    /// Takes the next event of the stream, or another client.
    async fn follow(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        let (State::Listing(stream, _) | State::Watching(stream, _)) = &mut self.state else {
            return Ok(None);
        };
        let event = tokio::select! {
            event = stream.next() => event,
            () = self.clients.replaced() => None,
        };
        match event {
            Some(Ok(WatchEvent::Error(status))) => {
                self.forget_if_expired(ApiError::from(*status)).map(|()| None)
            }
            Some(Ok(event)) => {
                self.failures = 0;
                Ok(self.take(event))
            }
            Some(Err(kube::Error::Api(status))) => {
                self.forget_if_expired(ApiError::from(*status)).map(|()| None)
            }
            Some(Err(error)) => {
                self.break_off();
                Err(ApiError::from(error))
            }
            None => {
                self.break_off();
                Ok(None)
            }
        }
    }

    fn take(&mut self, event: WatchEvent<K>) -> Option<Seen<K>> {
        match &mut self.state {
            State::Listing(_, objects) => match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => objects.push(object),
                WatchEvent::Bookmark(mark) if mark.metadata.annotations.contains_key(INITIAL_EVENTS_END) => {
                    return self.listed(mark.metadata.resource_version);
                }
                WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {}
            },
            State::Watching(_, version) => match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    *version = object.resource_version().unwrap_or_else(|| std::mem::take(version));
                    return Some(Seen::Applied(object));
                }
                WatchEvent::Deleted(object) => {
                    *version = object.resource_version().unwrap_or_else(|| std::mem::take(version));
                    return Some(Seen::Gone(object));
                }
                WatchEvent::Bookmark(mark) => *version = mark.metadata.resource_version,
                WatchEvent::Error(_) => {}
            },
            State::Unlisted | State::Known(_) => {}
        }
        None
    }

    /// The stream has told all that there is; the same stream goes on with what changes.
    fn listed(&mut self, version: String) -> Option<Seen<K>> {
        match std::mem::replace(&mut self.state, State::Unlisted) {
            State::Listing(stream, objects) => {
                self.state = State::Watching(stream, version);
                Some(Seen::Whole(objects))
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    async fn list(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        if self.streams_lists {
            match self.begin(WatchParams::default().initial_events(), "").await {
                Ok(stream) => {
                    self.state = State::Listing(stream, Vec::new());
                    return Ok(None);
                }
                // A server without them refuses their parameters.
                Err(error) if error.is_invalid() => self.streams_lists = false,
                Err(error) => return Err(error),
            }
        }
        self.list_in_pages().await.map(Some)
    }

    async fn list_in_pages(&mut self) -> Result<Seen<K>, ApiError> {
        let api = (self.api)(self.clients.take());
        let mut objects = Vec::new();
        let mut params = ListParams::default().fields(&self.fields).limit(PAGE);
        loop {
            let page = within(ANSWER_WITHIN, api.list(&params)).await?;
            objects.extend(page.items);
            match page.metadata.continue_.filter(|next| !next.is_empty()) {
                Some(next) => params = params.continue_token(&next),
                None => {
                    self.failures = 0;
                    self.state = State::Known(page.metadata.resource_version.unwrap_or_default());
                    return Ok(Seen::Whole(objects));
                }
            }
        }
    }

    async fn begin(&mut self, params: WatchParams, version: &str) -> Result<Stream<K>, ApiError> {
        let api = (self.api)(self.clients.take());
        let params = params.fields(&self.fields).timeout(WATCH_SECONDS);
        let stream = within(ANSWER_WITHIN, api.watch(&params, version)).await?;
        Ok(stream.into_stream().boxed())
    }

    /// What was seen last is kept no more: all is listed anew. Any other refusal is told.
    fn forget_if_expired(&mut self, error: ApiError) -> Result<(), ApiError> {
        if error.is_expired() {
            self.state = State::Unlisted;
            return Ok(());
        }
        self.break_off();
        Err(error)
    }

    /// The stream has ended; what it told stays known.
    fn break_off(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Unlisted) {
            State::Unlisted | State::Listing(..) => State::Unlisted,
            State::Known(version) | State::Watching(_, version) => State::Known(version),
        };
    }

    fn pause(&mut self) {
        let pause = PAUSE_MIN.saturating_mul(1 << self.failures.min(6)).min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + pause);
    }
}
