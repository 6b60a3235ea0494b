//! Lists a kind of object and follows what becomes of it, for as long as somebody asks.
//!
//! The list comes as a stream where the server has that (KEP-3157), else in pages; the watch goes on from the version that was
//! seen last, silently, when the server ends it. What is asked next, what is believed and how long to wait is decided in
//! `berth_core::cluster::follow`.

use std::{collections::BTreeMap, fmt, time::Duration};

use berth_core::cluster::{
    follow::{Ask, Follow, Unavailable},
    node::jittered,
};
use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use kube::{Api, Client, Resource, ResourceExt, api::WatchParams, core::WatchEvent};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    ApiError, Clients,
    answers::{BYTES_MAX, TooLarge},
    lines::Lines,
    list::{ANSWER_WITHIN, Collection},
    node::chance,
};
use crate::clock;

/// What the server is asked to end a watch after, by chance a little more: no server keeps all of them for ever, and those that began
/// together do not end together.
const WATCH_FOR: Duration = Duration::from_secs(270);
/// After so long a watch that the server has not ended has ended: somebody between does not pass its end on.
const WATCH_WITHIN: Duration = Duration::from_secs(310);
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
    /// Whether the next list comes in pages: the server did not stream the last one.
    is_in_pages: bool,
    not_before: Option<Instant>,
}

enum State<K> {
    /// Something is to be asked.
    Idle,
    /// It was asked.
    Asking(BoxFuture<'static, Result<Answer<K>, ApiError>>),
    /// A list comes as a stream.
    Listing(Listing<K>),
    /// What has changed comes.
    Watching(Watching),
}

enum Answer<K> {
    List(Vec<K>, String),
    StreamedList(Lines),
    Watch(Lines),
}

struct Listing<K> {
    watching: Watching,
    /// By namespace and name.
    objects: BTreeMap<(String, String), K>,
    /// When it is given up unless more of it has come.
    until: Instant,
}

struct Watching {
    lines: Lines,
    began: Instant,
    has_told: bool,
}

impl Watching {
    fn of(lines: Lines) -> Self {
        Self { lines, began: Instant::now(), has_told: false }
    }
}

/// What a stream brings.
enum Next {
    Line(Vec<u8>),
    /// It has ended.
    End,
    /// Nothing more came in time.
    Silence,
    /// There is another client.
    Replaced,
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
            is_in_pages: false,
            not_before: None,
        }
    }

    /// What is seen next. Nothing is lost when it is given up: what was asked goes on with the next call.
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
                    self.pause(error.retry_after());
                    return Seen::Failed(error);
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        match &mut self.state {
            State::Idle => {
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
        let api = (self.api)(self.clients.take());
        let (url, fields) = (api.resource_url().to_owned(), self.fields.clone());
        let collection = Collection { client: api.into_client(), url, fields };
        let seconds = u32::try_from(jittered(WATCH_FOR, chance()).as_secs()).unwrap_or(u32::MAX);
        let watch = WatchParams::default().timeout(seconds);
        self.state = State::Asking(match self.follow.next() {
            Ask::Watch(from) => collection.watch(watch, from).map_ok(Answer::Watch).boxed(),
            Ask::List(from) if self.is_in_pages => {
                let listed = collection.list(from);
                listed.map_ok(|(objects, version)| Answer::List(objects, version)).boxed()
            }
            Ask::List(from) => {
                collection.watch(watch.initial_events(), from).map_ok(Answer::StreamedList).boxed()
            }
        });
    }

    fn take(&mut self, answer: Result<Answer<K>, ApiError>) -> Result<Option<Seen<K>>, ApiError> {
        match answer {
            Ok(Answer::List(objects, version)) => {
                self.is_in_pages = false;
                self.listed(objects, &version).map(Some)
            }
            Ok(Answer::StreamedList(lines)) => {
                let until = Instant::now() + ANSWER_WITHIN;
                self.state = State::Listing(Listing {
                    watching: Watching::of(lines),
                    objects: BTreeMap::new(),
                    until,
                });
                Ok(None)
            }
            Ok(Answer::Watch(lines)) => {
                self.state = State::Watching(Watching::of(lines));
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
    fn listed(&mut self, objects: Vec<K>, version: &str) -> Result<Seen<K>, ApiError> {
        self.follow.listed(version).map_err(|older| ApiError::Unusable(older.to_string()))?;
        Ok(Seen::Whole(objects))
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
        self.pause(error.retry_after());
        Ok(())
    }

    /// Takes the next event of a list that comes as a stream.
    async fn read_list(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        let State::Listing(list) = &mut self.state else { return Ok(None) };
        let until = list.until.min(list.watching.began + WATCH_WITHIN);
        let event = match next(&mut list.watching.lines, until, &mut self.clients).await {
            Ok(Next::Line(line)) => read(&line),
            Ok(Next::Replaced) => return Ok(self.begin_anew()),
            Ok(Next::End) => Err(ApiError::Unanswered("the list ended half-way".to_owned())),
            Ok(Next::Silence) => {
                // So does a server that does not know the parameters and takes them.
                self.is_in_pages = true;
                Err(ApiError::Unanswered("the list came half-way".to_owned()))
            }
            Err(error) => Err(error),
        };
        if list.watching.lines.bytes_read() > BYTES_MAX {
            self.begin_anew();
            return Err(ApiError::Unusable(TooLarge.to_string()));
        }
        list.until = Instant::now() + ANSWER_WITHIN;
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                list.objects.insert(key(&object), object);
            }
            Ok(WatchEvent::Deleted(object)) => drop(list.objects.remove(&key(&object))),
            Ok(WatchEvent::Bookmark(mark)) => {
                if mark.metadata.annotations.contains_key(INITIAL_EVENTS_END) {
                    return self.end_list(&mark.metadata.resource_version);
                }
            }
            Ok(WatchEvent::Error(status)) => {
                self.begin_anew();
                self.refused(ApiError::from(*status))?;
            }
            Err(error) => {
                self.begin_anew();
                return Err(error);
            }
        }
        Ok(None)
    }

    /// The stream has told all that there is; the same stream goes on with what changes.
    fn end_list(&mut self, version: &str) -> Result<Option<Seen<K>>, ApiError> {
        let State::Listing(list) = std::mem::replace(&mut self.state, State::Idle) else { return Ok(None) };
        let seen = self.listed(list.objects.into_values().collect(), version)?;
        self.state = State::Watching(list.watching);
        Ok(Some(seen))
    }

    /// Takes the next event of a watch.
    async fn read_watch(&mut self) -> Result<Option<Seen<K>>, ApiError> {
        let State::Watching(watching) = &mut self.state else { return Ok(None) };
        let until = watching.began + WATCH_WITHIN;
        let line = match next(&mut watching.lines, until, &mut self.clients).await {
            Ok(Next::Line(line)) => line,
            Ok(Next::Replaced) => return Ok(self.begin_anew()),
            Ok(Next::End | Next::Silence) => {
                let (has_told, lasted) = (watching.has_told, watching.began.elapsed());
                self.begin_anew();
                if !self.follow.ended(has_told, lasted) {
                    tracing::debug!(fields = self.fields, "a watch ended at once");
                    self.pause(Duration::ZERO);
                }
                return Ok(None);
            }
            Err(error) => {
                self.begin_anew();
                return Err(error);
            }
        };
        watching.has_told = true;
        match read(&line) {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                Ok(self.is_told(&object).then_some(Seen::Applied(object)))
            }
            Ok(WatchEvent::Deleted(object)) => Ok(self.is_told(&object).then_some(Seen::Gone(object))),
            Ok(WatchEvent::Bookmark(mark)) => {
                self.follow.told(&mark.metadata.resource_version);
                Ok(None)
            }
            Ok(WatchEvent::Error(status)) => {
                self.begin_anew();
                self.refused(ApiError::from(*status)).map(|()| None)
            }
            Err(error) => {
                self.begin_anew();
                self.follow.is_broken();
                Err(error)
            }
        }
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

    fn pause(&mut self, asked: Duration) {
        self.not_before = Some(Instant::now() + self.follow.failed(asked, clock::mono(), chance()));
    }
}

async fn next(lines: &mut Lines, until: Instant, clients: &mut Clients) -> Result<Next, ApiError> {
    // Both are cancel safe.
    tokio::select! {
        line = timeout_at(until, lines.next()) => match line {
            Ok(Some(line)) => line.map(Next::Line),
            Ok(None) => Ok(Next::End),
            Err(_elapsed) => Ok(Next::Silence),
        },
        () = clients.replaced() => Ok(Next::Replaced),
    }
}

fn read<K: DeserializeOwned>(line: &[u8]) -> Result<WatchEvent<K>, ApiError> {
    serde_json::from_slice(line).map_err(|error| ApiError::of_json(&error))
}

fn key<K: Resource>(object: &K) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests;
