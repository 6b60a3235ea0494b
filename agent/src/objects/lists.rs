//! Kinds that are followed as a whole: services and RuntimeClasses. They are small, nobody's secret, and every node may list them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::{id::PodUid, spec::Source};
use futures::FutureExt;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::AbortHandle};

use crate::{
    causes::with_causes,
    cluster::{Clients, Seen, Unread, Watched},
};

/// Changes that are taken in before the whole is shown and others have their turn.
const AT_ONCE: usize = 256;

/// How long somebody waits for the first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// What is kept of every object, by namespace (empty where there is none) and name.
pub(super) type All<V> = Arc<Contents<V>>;

type Contents<V> = BTreeMap<(String, String), Arc<V>>;

/// A list that is followed while some pod uses it.
pub(super) struct Followed<K, V> {
    clients: Clients,
    /// Which objects: a collection and a field selector.
    of: (fn(Client) -> Api<K>, &'static str),
    /// What is kept of one.
    keep: fn(K) -> V,
    inner: Mutex<Inner<V>>,
}

struct Inner<V> {
    users: BTreeSet<PodUid>,
    /// Pods of each source that are to use it.
    expected: BTreeMap<Source, BTreeSet<PodUid>>,
    list: Option<(watch::Receiver<Option<All<V>>>, AbortHandle)>,
}

impl<V> Inner<V> {
    /// Ends it when nobody uses it or is to use it.
    fn end_unused(&mut self) {
        if self.users.is_empty()
            && self.expected.values().all(BTreeSet::is_empty)
            && let Some((_, task)) = self.list.take()
        {
            task.abort();
        }
    }
}

impl<K, V> fmt::Debug for Followed<K, V> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Followed")
    }
}

impl<K, V> Followed<K, V>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    V: Send + Sync + 'static,
{
    pub(super) fn new(clients: Clients, of: (fn(Client) -> Api<K>, &'static str), keep: fn(K) -> V) -> Self {
        let inner = Inner { users: BTreeSet::new(), expected: BTreeMap::new(), list: None };
        Self { clients, of, keep, inner: Mutex::new(inner) }
    }

    /// All of them, from now on followed until the pod is released; `None` when nothing was heard in time.
    pub(super) async fn get(&self, pod: &PodUid) -> Option<All<V>> {
        let mut list = self.begin(pod);
        let heard = tokio::time::timeout(FIRST_ANSWER, list.wait_for(Option::is_some)).await;
        heard.ok()?.ok()?.clone()
    }

    /// All of them as far as anything was heard, without waiting; only what somebody has followed is known.
    pub(super) fn known(&self) -> Option<All<V>> {
        let inner = self.inner();
        inner.list.as_ref()?.0.borrow().clone()
    }

    /// These are all the pods of a source that are to use it: it is followed for them from now on.
    pub(super) fn expect(&self, source: Source, pods: BTreeSet<PodUid>) {
        let mut inner = self.inner();
        let is_wanted = !pods.is_empty();
        inner.expected.insert(source, pods);
        if is_wanted { drop(self.list(&mut inner)) } else { inner.end_unused() }
    }

    fn begin(&self, pod: &PodUid) -> watch::Receiver<Option<All<V>>> {
        let mut inner = self.inner();
        inner.users.insert(pod.clone());
        self.list(&mut inner)
    }

    /// Has it followed, unless it is.
    fn list(&self, inner: &mut Inner<V>) -> watch::Receiver<Option<All<V>>> {
        let list = inner.list.get_or_insert_with(|| {
            let (sender, list) = watch::channel(None);
            let watched = Watched::new(self.clients.clone(), self.of.0, self.of.1).of_many();
            (list, tokio::spawn(follow(watched, self.keep, sender)).abort_handle())
        });
        list.0.clone()
    }

    /// The pod uses it no more. One of the API server is not to use it again either; one of a manifest may begin anew.
    pub(super) fn release(&self, pod: &PodUid) {
        let mut inner = self.inner();
        inner.users.remove(pod);
        if let Some(expected) = inner.expected.get_mut(&Source::Api) {
            expected.remove(pod);
        }
        inner.end_unused();
    }

    fn inner(&self) -> MutexGuard<'_, Inner<V>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of it stays.
fn not_read(one: &Unread) {
    let Unread { namespace, name, bytes, fault, .. } = one;
    let why = fault.as_deref().unwrap_or("it is too large: make it smaller");
    tracing::error!(namespace, name, bytes, why, "an object of a list is not read");
}

async fn follow<K, V>(mut watched: Watched<K>, keep: fn(K) -> V, list: watch::Sender<Option<All<V>>>)
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    V: Send + Sync + 'static,
{
    let mut all = None;
    loop {
        let mut is_new = take(&mut all, watched.next().await, keep);
        // The whole is copied once for all that has come meanwhile, and others have their turn in between.
        for _more in 1..AT_ONCE {
            let Some(seen) = watched.next().now_or_never() else { break };
            is_new |= take(&mut all, seen, keep);
        }
        if let Some(all) = all.as_ref().filter(|_| is_new) {
            list.send_replace(Some(Arc::new(all.clone())));
        }
        tokio::task::yield_now().await;
    }
}

/// Takes in what was seen, and tells whether it was anything. There is nothing before the first whole.
fn take<K: Resource, V>(all: &mut Option<Contents<V>>, seen: Seen<K>, keep: fn(K) -> V) -> bool {
    let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
    match (seen, &mut *all) {
        (Seen::Whole { objects, unread, .. }, _) => {
            let before = all.take().unwrap_or_default();
            let mut now: Contents<V> =
                objects.into_iter().map(|one| (key(&one), Arc::new(keep(one)))).collect();
            for one in unread {
                not_read(&one);
                let key = (one.namespace, one.name);
                now.extend(before.get(&key).map(|known| (key, Arc::clone(known))));
            }
            *all = Some(now);
        }
        (Seen::Unread(one), _) => not_read(&one),
        (Seen::Applied(object), Some(all)) => drop(all.insert(key(&object), Arc::new(keep(object)))),
        (Seen::Gone(object), Some(all)) => drop(all.remove(&key(&object))),
        (Seen::Applied(_) | Seen::Gone(_), None) => {}
        (Seen::Failed(error), _) => {
            tracing::warn!(error = with_causes(&error), "a list of objects is not followed");
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;

    fn service(name: &str) -> Service {
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "a" } })).unwrap()
    }

    fn too_large(name: &str) -> Unread {
        let (namespace, name) = ("a".to_owned(), name.to_owned());
        Unread { namespace, name, uid: String::new(), bytes: 1, fault: None }
    }

    #[test]
    fn what_is_gone_is_kept_no_more_whether_a_watch_or_a_list_tells() {
        let whole = |names: &[&str], unread: &[&str]| Seen::Whole {
            objects: names.iter().map(|name| service(name)).collect(),
            unread: unread.iter().map(|name| too_large(name)).collect(),
            version: 1,
        };
        let mut all: Option<Contents<String>> = None;
        for (seen, expected) in [
            (Seen::Gone(service("x")), None),
            (whole(&["x", "y"], &[]), Some(vec!["x", "y"])),
            (Seen::Applied(service("z")), Some(vec!["x", "y", "z"])),
            (Seen::Gone(service("y")), Some(vec!["x", "z"])),
            (Seen::Unread(too_large("z")), Some(vec!["x", "z"])),
            (whole(&[], &["x", "new"]), Some(vec!["x"])),
            (whole(&["y"], &[]), Some(vec!["y"])),
        ] {
            take(&mut all, seen, |service: Service| service.name_any());
            let kept = all.as_ref().map(|all| all.values().map(|name| name.as_str()).collect::<Vec<_>>());
            assert_eq!(kept, expected);
        }
    }
}
