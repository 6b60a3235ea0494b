//! Lists a kind of object and follows what becomes of it, for as long as somebody asks.
//!
//! The list comes as a stream where the server has that (KEP-3157), else in pages; the watch goes on from the version that was
//! seen last, silently, when the server ends it. What is asked next, what is believed and how long to wait is decided in
//! `berth_core::cluster::follow`. However large all of it is, it is listed; an object that is too large by itself is told by its name.

mod events;

use std::{collections::BTreeMap, fmt, time::Duration};

use berth_core::cluster::{
    follow::{Ask, Failure, Follow, Unavailable},
    node::jittered,
};
use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use kube::{Api, Client, Resource, ResourceExt, api::WatchParams, core::WatchEvent};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

pub(super) use self::events::stopping;
use self::events::{Events, Next};
use super::{
    ApiError, Clients, Unread,
    head::Head,
    lenient::Read,
    lines::{LINE_BYTES_MAX, Lines},
    list::{ANSWER_WITHIN, Collection, Listed, OBJECTS_MAX},
    node::chance,
};
use crate::clock;

/// What the server is asked to end a watch after, by chance a little more: no server keeps all of them for ever, and those that began
/// together do not end together.
const WATCH_FOR: Duration = Duration::from_secs(270);
/// After so long a watch that the server has not ended has ended: somebody between does not pass its end on.
const WATCH_WITHIN: Duration = Duration::from_secs(310);
/// What a list that comes as a stream may tell again of objects that it has told, bytes: they change while it comes, but whoever tells
/// nothing else does not end.
const AGAIN_BYTES_MAX: usize = 64 << 20;
/// Annotation of the bookmark that ends a list that comes as a stream.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// What was seen.
#[derive(Debug, Clone)]
pub enum Seen<K> {
    /// All objects that there are: what is not among them is gone.
    Whole {
        /// Those that could be read.
        objects: Vec<K>,
        /// Those that are too large: they are there, and what was known of them stays.
        unread: Vec<Unread>,
        /// As of which version; 0 where it is no number.
        version: u64,
    },
    /// One was made or changed.
    Applied(K),
    /// So was one that is too large to be read: what was known of it stays.
    Unread(Unread),
    /// One is gone; how it was at last.
    Gone(K),
    /// The server does not answer, refuses, or what it answers is not used. Told once per failure; what is known stays as it is.
    Failed(ApiError),
}

/// Which objects of which client.
pub struct Watched<K> {
    clients: Clients,
    api: Box<dyn Fn(Client) -> Api<K> + Send>,
    fields: String,
    follow: Follow,
    state: State<K>,
    carried: Carried,
    /// Whether the next list comes in pages: the server did not stream the last one.
    is_in_pages: bool,
    not_before: Option<Instant>,
}

/// Whose connections it is on.
#[derive(Clone, Copy)]
enum Carried {
    /// Those of what must not wait.
    First,
    /// Those of many watches.
    Many,
}

enum State<K> {
    /// Something is to be asked.
    Idle,
    /// It was asked.
    Asking(BoxFuture<'static, Result<Answer<K>, ApiError>>),
    /// A list comes as a stream.
    Listing(Listing<K>),
    /// What has changed comes.
    Watching(Events<K>),
}

enum Answer<K> {
    List(Listed<K>),
    StreamedList(Lines),
    Watch(Lines),
}

struct Listing<K> {
    events: Events<K>,
    /// By namespace and name.
    objects: BTreeMap<(String, String), K>,
    unread: BTreeMap<(String, String), Unread>,
    /// Bytes of what was told again.
    again: usize,
    /// When it is given up unless more of it has come.
    until: Instant,
}

impl<K> Listing<K> {
    fn of(events: Events<K>) -> Self {
        let (objects, unread, until) = (BTreeMap::new(), BTreeMap::new(), Instant::now() + ANSWER_WITHIN);
        Self { events, objects, unread, again: 0, until }
    }

    /// Forgets what was told of an object, since it is told anew with so many bytes.
    fn forget(&mut self, key: &(String, String), bytes: usize) {
        let was_known = self.objects.remove(key).is_some() | self.unread.remove(key).is_some();
        self.again += if was_known { bytes } else { 0 };
    }

    /// Whether it does not come to an end.
    fn is_endless(&self) -> bool {
        self.again > AGAIN_BYTES_MAX || self.objects.len() + self.unread.len() > OBJECTS_MAX
    }
}

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
            follow: Follow::default(),
            state: State::Idle,
            carried: Carried::First,
            is_in_pages: false,
            not_before: None,
        }
    }

    /// The same, as one of many: on connections that carry nothing else.
    #[must_use]
    pub fn of_many(self) -> Self {
        Self { carried: Carried::Many, ..self }
    }

    /// What is seen next. Nothing is lost when it is given up: what was asked goes on with the next call.
    pub async fn next(&mut self) -> Seen<K> {
        loop {
            if let Some(at) = self.not_before {
                // Both are cancel safe. Other clients have not failed yet.
                tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.clients.replaced() => {}
                }
                self.not_before = None;
            }
            match self.step().await {
                Ok(Some(seen)) => return seen,
                Ok(None) => {}
                Err(error) => {
                    self.pause(if error.is_unanswered() {
                        Failure::Unanswered
                    } else {
                        Failure::Answered(error.retry_after())
                    });
                    return Seen::Failed(error);
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        match &mut self.state {
            State::Idle => {
                self.clients.there_are_some().await;
                self.ask();
                Ok(None)
            }
            State::Asking(asked) => {
                let answer = asked.await;
                self.state = State::Idle;
                self.take(answer)
            }
            State::Listing(_) => self.read_list().await,
            State::Watching(_) => self.read_watch().await,
        }
    }

    fn ask(&mut self) {
        let client = match self.carried {
            Carried::First => self.clients.take(),
            Carried::Many => self.clients.take_many(),
        };
        let api = (self.api)(client);
        let (url, fields) = (api.resource_url().to_owned(), self.fields.clone());
        let collection = Collection { client: api.into_client(), url, fields };
        let seconds = u32::try_from(jittered(WATCH_FOR, chance()).as_secs()).unwrap_or(u32::MAX);
        let watch = WatchParams::default().timeout(seconds);
        self.state = State::Asking(match self.follow.next() {
            Ask::Watch(from) => collection.watch(watch, from).map_ok(Answer::Watch).boxed(),
            Ask::List(from) if self.is_in_pages => collection.list(from).map_ok(Answer::List).boxed(),
            Ask::List(from) => {
                collection.watch(watch.initial_events(), from).map_ok(Answer::StreamedList).boxed()
            }
        });
    }

    fn take(&mut self, answer: Result<Answer<K>, ApiError>) -> Result<Option<Seen<K>>, ApiError> {
        match answer {
            Ok(Answer::List(listed)) => {
                self.is_in_pages = false;
                self.listed(listed).map(Some)
            }
            Ok(Answer::StreamedList(lines)) => {
                self.state = State::Listing(Listing::of(Events::of(lines)));
                Ok(None)
            }
            Ok(Answer::Watch(lines)) => {
                self.state = State::Watching(Events::of(lines));
                Ok(None)
            }
            Err(error) => {
                let is_list = matches!(self.follow.next(), Ask::List(_));
                let was_streamed = is_list && !std::mem::replace(&mut self.is_in_pages, false);
                if was_streamed && error.is_invalid() {
                    // A server without streamed lists refuses their parameters.
                    self.is_in_pages = true;
                    return Ok(None);
                }
                self.refused(error).map(|()| None)
            }
        }
    }

    /// All that there is has come. What is older than what is known is not used.
    fn listed(&mut self, listed: Listed<K>) -> Result<Seen<K>, ApiError> {
        let Listed { objects, unread, version } = listed;
        self.follow.listed(&version).map_err(|older| ApiError::Unusable(older.to_string()))?;
        let version = version.parse().unwrap_or(0);
        Ok(Seen::Whole { objects, unread, version })
    }

    /// The server refuses. That it does not begin at what was seen is nobody's trouble, unless it was not asked to.
    fn refused(&mut self, error: ApiError) -> Result<(), ApiError> {
        let why = if error.is_expired() { Unavailable::TooOld } else { Unavailable::TooNew };
        if !(error.is_expired() || error.is_too_new()) || self.follow.next() == Ask::List(String::new()) {
            return Err(error);
        }
        if why == Unavailable::TooNew {
            tracing::warn!(fields = self.fields, %error, "the API server is behind what was seen of it");
        }
        self.follow.is_unavailable(why);
        self.pause(Failure::Answered(error.retry_after()));
        Ok(())
    }

    /// Takes the next event of a list that comes as a stream.
    async fn read_list(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        let State::Listing(list) = &mut self.state else { return Ok(None) };
        let until = list.until.min(list.events.began + WATCH_WITHIN);
        let next = list.events.next(until, &mut self.clients).await;
        list.until = Instant::now() + ANSWER_WITHIN;
        let failed = match next {
            Ok(Next::Line(Read::Event(event), bytes)) => match self.take_listed(event, bytes) {
                Ok(None) => return Ok(None),
                Ok(Some(version)) => return self.end_list(version),
                Err(error) => error,
            },
            Ok(Next::Line(Read::Head(head), bytes)) => match take_unread(list, head, bytes) {
                Ok(()) => return Ok(None),
                Err(error) => error,
            },
            Ok(Next::Replaced) => return Ok(self.begin_anew()),
            Ok(Next::End) => ApiError::Unanswered("the list ended half-way".to_owned()),
            Ok(Next::Silence) => {
                // So does a server that does not know the parameters and takes them.
                self.is_in_pages = true;
                ApiError::Unanswered("the list came half-way".to_owned())
            }
            Ok(Next::Line(Read::Broken(error), _)) | Err(error) => error,
        };
        self.begin_anew();
        Err(failed)
    }

    /// Takes an event of a list; its version, where it is the last one.
    fn take_listed(&mut self, event: WatchEvent<K>, bytes: usize) -> Result<Option<String>, ApiError> {
        let State::Listing(list) = &mut self.state else { return Ok(None) };
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let key = key(&object);
                list.forget(&key, bytes);
                list.objects.insert(key, object);
            }
            WatchEvent::Deleted(object) => list.forget(&key(&object), bytes),
            WatchEvent::Bookmark(mark) => {
                let metadata = mark.metadata;
                let ends = metadata.annotations.contains_key(INITIAL_EVENTS_END);
                return Ok(ends.then_some(metadata.resource_version));
            }
            WatchEvent::Error(status) => {
                self.begin_anew();
                return self.refused(ApiError::from(*status)).map(|()| None);
            }
        }
        if list.is_endless() { Err(ApiError::Unusable("the list has no end".to_owned())) } else { Ok(None) }
    }

    /// The stream has told all that there is; the same stream goes on with what changes.
    fn end_list(&mut self, version: String) -> Result<Option<Seen<K>>, ApiError> {
        let State::Listing(list) = std::mem::replace(&mut self.state, State::Idle) else { return Ok(None) };
        let (objects, unread) = (list.objects.into_values().collect(), list.unread.into_values().collect());
        let seen = self.listed(Listed { objects, unread, version })?;
        self.state = State::Watching(list.events);
        Ok(Some(seen))
    }

    /// Takes the next event of a watch.
    async fn read_watch(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        let State::Watching(events) = &mut self.state else { return Ok(None) };
        let until = events.began + WATCH_WITHIN;
        match events.next(until, &mut self.clients).await {
            Ok(Next::Line(Read::Event(event), _)) => self.take_watched(event),
            Ok(Next::Line(Read::Head(head), bytes)) => self.unread(head, bytes),
            Ok(Next::Replaced) => Ok(self.begin_anew()),
            Ok(Next::End | Next::Silence) => {
                let (has_told, lasted) = (events.has_told, events.began.elapsed());
                self.begin_anew();
                if !self.follow.ended(has_told, lasted) {
                    tracing::debug!(fields = self.fields, "a watch ended at once");
                    self.pause(Failure::Answered(Duration::ZERO));
                }
                Ok(None)
            }
            Ok(Next::Line(Read::Broken(error), _)) => {
                self.begin_anew();
                self.follow.is_broken();
                Err(error)
            }
            Err(error) => {
                self.begin_anew();
                Err(error)
            }
        }
    }

    fn take_watched(&mut self, event: WatchEvent<K>) -> Result<Option<Seen<K>>, ApiError> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                Ok(self.is_told(&object).then_some(Seen::Applied(object)))
            }
            WatchEvent::Deleted(object) => Ok(self.is_told(&object).then_some(Seen::Gone(object))),
            WatchEvent::Bookmark(mark) => {
                self.follow.told(&mark.metadata.resource_version);
                Ok(None)
            }
            WatchEvent::Error(status) => {
                self.begin_anew();
                self.refused(ApiError::from(*status)).map(|()| None)
            }
        }
    }

    /// An event is too large to be read. Where it may have been the end of something, all is listed.
    fn unread(&mut self, head: Head, bytes: usize) -> Result<Option<Seen<K>>, ApiError> {
        if !matches!(head.event.as_str(), "ADDED" | "MODIFIED") {
            self.begin_anew();
            self.follow.is_broken();
            return Ok(None);
        }
        let is_told = self.follow.told(&head.version);
        let Some(unread) = head.object(bytes) else {
            self.begin_anew();
            self.follow.is_broken();
            return Err(nameless());
        };
        Ok(is_told.then_some(Seen::Unread(unread)))
    }

    fn is_told(&mut self, object: &K) -> bool {
        let version = object.resource_version().unwrap_or_default();
        let is_told = self.follow.told(&version);
        if !is_told {
            tracing::debug!(
                object = object.name_any(),
                version,
                "a watch tells what is older than what was seen"
            );
        }
        is_told
    }

    /// Leaves the stream; what it told stays known.
    fn begin_anew(&mut self) -> Option<Seen<K>> {
        self.state = State::Idle;
        None
    }

    fn pause(&mut self, failure: Failure) {
        self.not_before = Some(Instant::now() + self.follow.failed(failure, clock::mono(), chance()));
    }
}

/// An event of a list is too large to be read.
fn take_unread<K>(list: &mut Listing<K>, head: Head, bytes: usize) -> Result<(), ApiError> {
    let is_gone = head.event == "DELETED";
    let unread = head.object(bytes).ok_or_else(nameless)?;
    let key = (unread.namespace.clone(), unread.name.clone());
    list.forget(&key, bytes);
    if !is_gone {
        list.unread.insert(key, unread);
    }
    if list.is_endless() { Err(ApiError::Unusable("the list has no end".to_owned())) } else { Ok(()) }
}

fn nameless() -> ApiError {
    let most = LINE_BYTES_MAX >> 20;
    ApiError::Unusable(format!("something in it is larger than {most} MiB, and does not say what it is"))
}

fn key<K: Resource>(object: &K) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests;
