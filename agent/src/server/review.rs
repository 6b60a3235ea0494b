//! What the API server is asked about those who ask. Sources: `plugin/pkg/authenticator/token/webhook`, `plugin/pkg/authorizer/webhook`,
//! `pkg/authentication/token/cache` of `k8s.io/apiserver`.
//!
//! It is asked by the agent's own thread, which has the connections.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_core::{
    cluster::throttle::{Rate, Throttle},
    server::{Attributes, Origin, Reviewed, User, Verdict},
};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Resource, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
};

use super::{connection::Asker, shares::Shares};
use crate::{
    clock,
    cluster::{ApiError, Clients, within},
};

/// How long one request may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long a question may take, all tries together (`sharedLookupTimeout`).
pub(super) const ALL_WITHIN: Duration = Duration::from_secs(30);
/// So often it is asked (`DefaultAuthWebhookRetryBackoff`).
const TRIES: u32 = 5;
/// The pause after the first try, and how many halves of it the next one has.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const GROWS_BY_HALVES: u32 = 3;
/// Questions that there may be, of a kind: a flood of made-up tokens is as slow as the API server, and takes no more of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) at_once: usize,
    /// Those that wait beside them. Whoever comes then is not let in.
    pub(super) waiting: usize,
    /// Of both, those of one origin.
    pub(super) each: usize,
}
/// Of origins that are known, which whoever makes up tokens elsewhere keeps nothing from.
pub(super) const OF_KNOWN: Bounds = Bounds { at_once: 8, waiting: 120, each: 64 };
/// Of all others.
pub(super) const OF_STRANGERS: Bounds = Bounds { at_once: 8, waiting: 248, each: 16 };
/// How fast they follow each other, as much as all requests of a kubelet (`kubeAPIQPS`, `kubeAPIBurst`).
pub(super) const RATE: Rate = Rate { per_second: 50, burst: 100 };

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReviewError {
    /// The API server.
    #[error("ask the API server about {what}")]
    Api {
        what: &'static str,
        #[source]
        source: ApiError,
    },
    /// All tries together.
    #[error("the API server was asked about {0} for {seconds} s in vain", seconds = ALL_WITHIN.as_secs())]
    Late(&'static str),
    /// What it says makes no sense.
    #[error("what the API server says about {what} makes no sense: {why}")]
    Senseless { what: &'static str, why: String },
    /// It is overloaded, by those who ask.
    #[error("too many questions about {0} wait already")]
    TooMany(&'static str),
    /// There is no API server.
    #[error("the node has no API server to ask")]
    Nobody,
    /// The agent ends.
    #[error("the agent is stopping")]
    Stopping,
}

/// Asks about one kind of thing.
#[derive(Debug, Clone)]
pub(super) struct Reviewer {
    clients: Clients,
    main: Handle,
    places: Arc<Places>,
    again_after: Duration,
}

#[derive(Debug)]
struct Places {
    of_known: Group,
    of_strangers: Group,
    throttle: Mutex<Throttle>,
}

#[derive(Debug)]
struct Group {
    all: Shares<Origin>,
    at_once: Semaphore,
}

impl Group {
    fn new(bounds: Bounds) -> Self {
        let Bounds { at_once, waiting, each } = bounds;
        Self { all: Shares::new(at_once + waiting, each), at_once: Semaphore::new(at_once) }
    }
}

impl Reviewer {
    /// Asks in this runtime, which has the connections of `clients`.
    pub(super) fn new(clients: Clients, main: Handle) -> Self {
        let places = Places {
            of_known: Group::new(OF_KNOWN),
            of_strangers: Group::new(OF_STRANGERS),
            throttle: Mutex::new(Throttle::new(RATE)),
        };
        Self { clients, main, places: Arc::new(places), again_after: AGAIN_AFTER }
    }

    #[cfg(test)]
    pub(super) fn without_pauses(mut self) -> Self {
        self.again_after = Duration::ZERO;
        self
    }

    /// Where it asks.
    pub(super) fn main(&self) -> &Handle {
        &self.main
    }

    /// Whose token this is; `None` when it is nobody's and the API server had no trouble to say so.
    pub(super) async fn token(&self, token: &str, asker: Asker) -> Result<Option<User>, ReviewError> {
        const WHAT: &str = "a token";
        // No audiences: those of the API server count.
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: None };
        let status = self.ask(WHAT, &TokenReview { spec, ..TokenReview::default() }, asker).await?.status;
        let senseless = |why: &str| ReviewError::Senseless { what: WHAT, why: why.to_owned() };
        let status = status.ok_or_else(|| senseless("it has no status"))?;
        if status.authenticated != Some(true) {
            return match status.error.filter(|error| !error.is_empty()) {
                None => Ok(None),
                Some(why) => Err(senseless(&why)),
            };
        }
        let user = status.user.unwrap_or_default();
        let name =
            user.username.filter(|name| !name.is_empty()).ok_or_else(|| senseless("it is nobody's"))?;
        Ok(Some(User {
            name,
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    /// Whether somebody may do something to this node.
    pub(super) async fn access(
        &self,
        node: &str,
        asked: &Attributes,
        asker: Asker,
    ) -> Result<Verdict, ReviewError> {
        const WHAT: &str = "access to the node";
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let Attributes { user, verb, subresource } = asked;
        let attributes = ResourceAttributes {
            name: some(node),
            resource: some("nodes"),
            subresource: some(subresource),
            verb: some(verb),
            version: some("v1"),
            ..ResourceAttributes::default()
        };
        let spec = SubjectAccessReviewSpec {
            user: some(&user.name),
            uid: some(&user.uid),
            groups: Some(user.groups.clone()).filter(|groups| !groups.is_empty()),
            extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
            resource_attributes: Some(attributes),
            non_resource_attributes: None,
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let status = self.ask(WHAT, &review, asker).await?.status;
        let senseless = |why: &str| ReviewError::Senseless { what: WHAT, why: why.to_owned() };
        let status = status.ok_or_else(|| senseless("it has no status"))?;
        let reviewed = Reviewed { allowed: status.allowed, denied: status.denied == Some(true) };
        Verdict::of(reviewed).ok_or_else(|| senseless("it both allows and forbids it"))
    }

    async fn ask<R>(&self, what: &'static str, review: &R, asker: Asker) -> Result<R, ReviewError>
    where
        R: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>
            + Clone
            + fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let asking = async {
            let Places { of_known, of_strangers, .. } = &*self.places;
            let group = if asker.is_known { of_known } else { of_strangers };
            let Ok(_place) = group.all.take(&asker.from) else { return Err(ReviewError::TooMany(what)) };
            let Ok(_turn) = group.at_once.acquire().await else { return Err(ReviewError::Stopping) };
            let mut pause = self.again_after;
            let mut tries = 1;
            loop {
                let wait = self.places.wait();
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
                let api: Api<R> = Api::all(self.clients.get());
                match within(WITHIN, api.create(&PostParams::default(), review)).await {
                    Ok(reviewed) => return Ok(reviewed),
                    Err(error) if error.is_transient() && tries < TRIES => {
                        tokio::time::sleep(pause.max(error.retry_after())).await;
                        pause = pause * GROWS_BY_HALVES / 2;
                        tries += 1;
                    }
                    Err(source) => return Err(ReviewError::Api { what, source }),
                }
            }
        };
        tokio::time::timeout(ALL_WITHIN, asking).await.unwrap_or(Err(ReviewError::Late(what)))
    }
}

impl Places {
    fn wait(&self) -> Duration {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner).take(clock::mono())
    }
}

/// Questions that are being asked: who asks the same meanwhile waits for the same answer.
#[derive(Debug)]
pub(super) struct Flights<K, V>(Mutex<BTreeMap<K, watch::Receiver<Option<V>>>>);

impl<K, V> Default for Flights<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K, V> Flights<K, V>
where
    K: Ord + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The answer to a question. It is asked to its end, also when nobody waits for it any more.
    pub(super) async fn join<F>(self: &Arc<Self>, key: K, main: &Handle, question: F) -> Option<V>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut answer = self.begin(key, main, question);
        // It ends without an answer only with the agent.
        answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone())
    }

    fn begin<F>(self: &Arc<Self>, key: K, main: &Handle, question: F) -> watch::Receiver<Option<V>>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let (sender, receiver) = watch::channel(None);
        {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(answer) = all.get(&key) {
                return answer.clone();
            }
            all.insert(key.clone(), receiver.clone());
        }
        // Landed whatever becomes of the question, also where it is dropped at once, and before anybody sees that.
        let asked = Asked { flight: Flight { flights: Arc::clone(self), key }, sender };
        main.spawn(async move {
            let answer = question.await;
            let Asked { flight, sender } = asked;
            drop(flight);
            sender.send_replace(Some(answer));
        });
        receiver
    }
}

/// A question and who waits for its answer. Fields are dropped in this order.
struct Asked<K: Ord, V> {
    flight: Flight<K, V>,
    sender: watch::Sender<Option<V>>,
}

/// A question that is being asked, until this is dropped.
struct Flight<K: Ord, V> {
    flights: Arc<Flights<K, V>>,
    key: K,
}

impl<K: Ord, V> Drop for Flight<K, V> {
    fn drop(&mut self) {
        self.flights.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn who_asks_the_same_waits_for_the_same_answer() {
        let (flights, main) = (Arc::new(Flights::default()), Handle::current());
        let (answer, answered) = oneshot::channel();
        let mut first = Box::pin(flights.join(1, &main, async { answered.await.unwrap() }));
        assert_eq!(first.as_mut().now_or_never(), None);
        let other = |key, answer: &'static str| flights.join(key, &main, std::future::ready(answer));
        let mut second = Box::pin(other(1, "asked twice"));
        assert_eq!(second.as_mut().now_or_never(), None);
        assert_eq!(other(2, "another").await, Some("another"));
        // Who asked first may have gone.
        drop(first);
        answer.send("once").unwrap();
        assert_eq!(second.await, Some("once"));
        assert_eq!(other(1, "anew").await, Some("anew"));
        assert!(flights.0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_question_that_ends_without_an_answer_is_asked_anew() {
        let (flights, main) = (Arc::new(Flights::default()), Handle::current());
        let failed: Option<&str> = flights.join(1, &main, async { panic!("it is wanted") }).await;
        assert_eq!(failed, None);
        assert_eq!(flights.join(1, &main, std::future::ready("anew")).await, Some("anew"));
        let gone = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let handle = gone.handle().clone();
        let mut waits = Box::pin(flights.join(2, &handle, std::future::pending()));
        assert_eq!(waits.as_mut().now_or_never(), None);
        gone.shutdown_background();
        assert_eq!(waits.await, None);
        // Where nothing runs any more it is dropped as it is asked.
        assert_eq!(flights.join(3, &handle, std::future::pending()).await, None);
        assert!(flights.0.lock().unwrap().is_empty());
    }
}
