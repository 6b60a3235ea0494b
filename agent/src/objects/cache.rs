//! The cache: one watch for each object, however many pods name it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use berth_core::{
    derived::references,
    event::Event,
    id::PodUid,
    spec::{ObjectKey, ObjectKind, Pod, Source},
};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{ConfigMap, Secret, Service},
        node::v1::RuntimeClass,
    },
};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};

use super::{
    ObjectError,
    content::{Content, HasContent},
    lists::Followed,
    services::{Link, link},
    tokens::Tokens,
};
use crate::{
    causes::with_causes,
    cluster::{ApiError, Clients, Seen, Watched},
};

/// How long somebody who needs an object waits until it is read for the first time. Whoever gave up is told when it is.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// Pauses before an object that this node may not read is asked for again, at first, in milliseconds: the API server learns by a watch of
/// its own which pods the node has, and may hear of one a moment later (`plugin/pkg/auth/authorizer/node/graph_populator.go`).
const EARLY_MS: [u64; 5] = [20, 50, 100, 200, 400];

/// Objects of the API server. Clones share them.
#[derive(Debug, Clone)]
pub struct Objects(Option<Arc<Shared>>);

struct Shared {
    clients: Clients,
    /// Who is told of changes: the loop, whose queue is bounded, so that a flood of changes waits in the watches.
    events: mpsc::Sender<Event>,
    entries: Mutex<BTreeMap<ObjectKey, Entry>>,
    tokens: Tokens,
    lists: Lists,
}

/// Kinds that are followed as a whole.
#[derive(Debug)]
pub(super) struct Lists {
    /// All services.
    pub(super) services: Followed<Service, Option<Link>>,
    /// The API server's alone.
    pub(super) master: Followed<Service, Option<Link>>,
    /// Handlers of RuntimeClasses.
    pub(super) classes: Followed<RuntimeClass, String>,
}

impl Lists {
    fn new(clients: &Clients) -> Self {
        Self {
            services: Followed::new(clients.clone(), (Api::all, ""), link),
            master: Followed::new(
                clients.clone(),
                (|client| Api::namespaced(client, "default"), "metadata.name=kubernetes"),
                link,
            ),
            classes: Followed::new(clients.clone(), (Api::all, ""), |class| class.handler),
        }
    }

    fn release(&self, pod: &PodUid) {
        self.services.release(pod);
        self.master.release(pod);
        self.classes.release(pod);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Shared")
    }
}

/// One object.
struct Entry {
    /// The pods that name it, and what each has of it.
    users: BTreeMap<PodUid, Given>,
    /// What is known of it.
    known: watch::Sender<Known>,
    /// The watch.
    task: AbortHandle,
}

/// What of an object was given to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    /// Nothing: it may ask for it, and is told of what comes before.
    Expected,
    /// Nothing yet: it is waited for, and what comes is taken.
    Awaited,
    /// What there was, or nothing in time: to be told when that changes.
    Answered,
}

/// What is known of an object.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Whether anything was heard.
    is_heard: bool,
    /// What is in it; none where there is none.
    content: Option<Arc<Content>>,
}

impl Objects {
    /// Of a node without API server: there are none.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Of the cluster that these clients reach, where there is one.
    #[must_use]
    pub fn of(clients: Option<&Clients>, events: &mpsc::Sender<Event>) -> Self {
        clients.map_or_else(Self::none, |clients| Self::new(clients.clone(), events.clone()))
    }

    /// Of the cluster that these clients reach; changes are told as events.
    #[must_use]
    pub fn new(clients: Clients, events: mpsc::Sender<Event>) -> Self {
        let (tokens, lists) = (Tokens::new(clients.clone()), Lists::new(&clients));
        Self(Some(Arc::new(Shared { clients, events, entries: Mutex::default(), tokens, lists })))
    }

    /// What is in an object; `None` when there is none. From now on the pod is told of its changes, until it is released.
    ///
    /// # Errors
    /// Nothing was heard of it in time, or there is no API server.
    pub async fn get(&self, pod: &PodUid, key: &ObjectKey) -> Result<Option<Arc<Content>>, ObjectError> {
        let Some(shared) = &self.0 else {
            return Err(ObjectError::NoCluster { kind: key.kind.as_str(), name: key.name.clone() });
        };
        let mut known = shared.begin(pod, key);
        let _waits = Waits { shared, pod, key };
        drop(tokio::time::timeout(FIRST_ANSWER, known.wait_for(|known| known.is_heard)).await);
        let known = shared.answer(pod, key);
        if known.is_heard { Ok(known.content) } else { Err(ObjectError::NotRead { kind: key.kind.as_str() }) }
    }

    /// What is in an object now, for somebody who is no pod.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn read(&self, key: &ObjectKey) -> Result<Option<Arc<Content>>, ObjectError> {
        static READERS: AtomicU64 = AtomicU64::new(0);
        // No UID of a pod has a blank.
        let reader = PodUid::new(format!("reader {}", READERS.fetch_add(1, Ordering::Relaxed)));
        let _released = Released { objects: self, reader: &reader };
        self.get(&reader, key).await
    }

    /// Tells the node loop what was found out about objects of pods.
    pub async fn tell(&self, event: Event) {
        if let Some(shared) = &self.0 {
            // Fails only when the loop has ended.
            drop(shared.events.send(event).await);
        }
    }

    /// The tokens of service accounts.
    pub(super) fn tokens(&self) -> Option<&Tokens> {
        self.0.as_ref().map(|shared| &shared.tokens)
    }

    /// Kinds that are followed as a whole.
    pub(super) fn lists(&self) -> Option<&Lists> {
        self.0.as_ref().map(|shared| &shared.lists)
    }

    /// The handler of a pod's RuntimeClass (`LookupRuntimeHandler` of `pkg/kubelet/runtimeclass/runtimeclass_manager.go`).
    ///
    /// # Errors
    /// There is no such class.
    pub async fn handler(&self, pod: &PodUid, class: &str) -> Result<String, ObjectError> {
        let missing = || ObjectError::NoRuntimeClass { name: class.to_owned() };
        let all = self.lists().ok_or_else(missing)?.classes.get(pod).await.ok_or_else(missing)?;
        let handler = all.get(&(String::new(), class.to_owned())).ok_or_else(missing)?;
        Ok(handler.as_ref().clone())
    }

    /// These are all the pods of a source whose containers may be started from now on: what they are started with is followed for them
    /// from now on. Those of the API server find it heard then, also when they start again while the server is away (`RegisterPod` of
    /// `pkg/kubelet/util/manager/manager.go`), and those of manifests do not wait for it.
    pub fn expect<'a>(&self, source: Source, pods: impl Iterator<Item = &'a Pod>) {
        let Some(shared) = &self.0 else { return };
        let (mut services, mut master, mut classes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut objects: BTreeMap<ObjectKey, BTreeSet<PodUid>> = BTreeMap::new();
        for pod in pods {
            let list = if pod.service_links { &mut services } else { &mut master };
            list.insert(pod.uid.clone());
            // A manifest names the handler itself, and no objects.
            if source == Source::Api {
                if pod.runtime.is_some() {
                    classes.insert(pod.uid.clone());
                }
                for key in references::started_with(pod) {
                    objects.entry(key).or_default().insert(pod.uid.clone());
                }
            }
        }
        shared.lists.services.expect(source, services);
        shared.lists.master.expect(source, master);
        shared.lists.classes.expect(source, classes);
        if source == Source::Api {
            shared.expect(&objects);
        }
    }

    /// The pod names nothing any more: what no other names is no longer watched, and forgotten.
    pub fn release(&self, pod: &PodUid) {
        let Some(shared) = &self.0 else { return };
        let mut entries = shared.entries();
        for entry in entries.values_mut() {
            entry.users.remove(pod);
        }
        end_unused(&mut entries);
        drop(entries);
        shared.tokens.forget(pod);
        shared.lists.release(pod);
    }

    /// How many objects are known, and how many of them are watched.
    #[must_use]
    pub fn count(&self) -> (usize, usize) {
        let Some(shared) = &self.0 else { return (0, 0) };
        let entries = shared.entries();
        (entries.len(), entries.values().filter(|entry| !entry.task.is_finished()).count())
    }
}

/// Releases a reader, also one that is given up.
struct Released<'a> {
    objects: &'a Objects,
    reader: &'a PodUid,
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.objects.release(self.reader);
    }
}

/// Who waits for an object. One that gives up is told of whatever comes.
struct Waits<'a> {
    shared: &'a Shared,
    pod: &'a PodUid,
    key: &'a ObjectKey,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut entries = self.shared.entries();
        if let Some(given) = entries.get_mut(self.key).and_then(|entry| entry.users.get_mut(self.pod))
            && *given == Given::Awaited
        {
            *given = Given::Answered;
        }
    }
}

impl Shared {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Entry>> {
        // Nothing that can panic is done under it.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has an object watched, unless it is.
    fn entry<'a>(
        self: &Arc<Self>,
        entries: &'a mut BTreeMap<ObjectKey, Entry>,
        key: &ObjectKey,
    ) -> &'a mut Entry {
        entries.entry(key.clone()).or_insert_with(|| {
            let known = watch::Sender::default();
            let (shared, followed) = (Arc::downgrade(self), key.clone());
            let clients = self.clients.clone();
            let task = match key.kind {
                ObjectKind::ConfigMap => tokio::spawn(follow::<ConfigMap>(shared, clients, followed)),
                ObjectKind::Secret => tokio::spawn(follow::<Secret>(shared, clients, followed)),
            };
            Entry { users: BTreeMap::new(), known, task: task.abort_handle() }
        })
    }

    /// Takes the pod in as a user that waits.
    fn begin(self: &Arc<Self>, pod: &PodUid, key: &ObjectKey) -> watch::Receiver<Known> {
        let mut entries = self.entries();
        let entry = self.entry(&mut entries, key);
        let given = entry.users.entry(pod.clone()).or_insert(Given::Awaited);
        if *given == Given::Expected {
            *given = Given::Awaited;
        }
        entry.known.subscribe()
    }

    /// These are all the pods that may ask for objects, by the object. One that has asked is a user until it is released.
    fn expect(self: &Arc<Self>, wanted: &BTreeMap<ObjectKey, BTreeSet<PodUid>>) {
        let mut entries = self.entries();
        for (key, pods) in wanted {
            let entry = self.entry(&mut entries, key);
            for pod in pods {
                entry.users.entry(pod.clone()).or_insert(Given::Expected);
            }
        }
        for (key, entry) in entries.iter_mut() {
            let pods = wanted.get(key);
            let is_wanted = |pod: &PodUid| pods.is_some_and(|pods| pods.contains(pod));
            entry.users.retain(|pod, given| *given != Given::Expected || is_wanted(pod));
        }
        end_unused(&mut entries);
    }

    /// What is known of it at this moment: the pod is told of whatever comes after.
    fn answer(&self, pod: &PodUid, key: &ObjectKey) -> Known {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(key) else { return Known::default() };
        if let Some(given) = entry.users.get_mut(pod) {
            *given = Given::Answered;
        }
        entry.known.borrow().clone()
    }

    /// Takes what was seen of an object, and says who is to be told.
    fn take(&self, key: &ObjectKey, seen: Option<Content>) -> Vec<PodUid> {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(key) else { return Vec::new() };
        let is_new = entry.known.send_if_modified(|known| {
            let is_same = known.is_heard && known.content.as_deref() == seen.as_ref();
            if !is_same {
                *known = Known { is_heard: true, content: seen.map(Arc::new) };
            }
            !is_same
        });
        let told = entry.users.iter().filter(|(_, given)| is_new && **given != Given::Awaited);
        told.map(|(pod, _)| pod.clone()).collect()
    }
}

/// Ends the watches of objects that no pod names any more, and forgets those.
fn end_unused(entries: &mut BTreeMap<ObjectKey, Entry>) {
    entries.retain(|_, entry| {
        let is_used = !entry.users.is_empty();
        if !is_used {
            entry.task.abort();
        }
        is_used
    });
}

/// Follows one object until nobody names it, or it cannot change any more.
async fn follow<K>(shared: std::sync::Weak<Shared>, clients: Clients, key: ObjectKey)
where
    K: HasContent
        + Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + fmt::Debug
        + Send
        + 'static,
{
    let begin = || {
        let namespace = key.namespace.clone();
        let api = move |client| Api::<K>::namespaced(client, &namespace);
        Watched::new(clients.clone(), api, format!("metadata.name={}", key.name)).of_many()
    };
    let (mut watched, mut early, mut is_heard) = (begin(), EARLY_MS.into_iter(), false);
    loop {
        let seen = match watched.next().await {
            // A server that does not know the selector is not to give us another's content.
            Seen::Whole { objects, unread, .. } => {
                if let Some(one) = unread.iter().find(|one| one.name == key.name) {
                    not_read(&key, one.fault.as_deref());
                    continue;
                }
                objects.into_iter().find(|object| object.name_any() == key.name)
            }
            Seen::Applied(object) if object.name_any() == key.name => Some(object),
            Seen::Gone(object) if object.name_any() == key.name => None,
            Seen::Unread(unread) if unread.name == key.name => {
                not_read(&key, unread.fault.as_deref());
                continue;
            }
            Seen::Applied(_) | Seen::Gone(_) | Seen::Unread(_) => continue,
            Seen::Failed(error) => {
                let is_early = !is_heard && matches!(error, ApiError::Refused { code: 403, .. });
                if is_early && let Some(pause) = early.next() {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                    watched = begin();
                } else {
                    not_followed(&key, &error);
                }
                continue;
            }
        };
        is_heard = true;
        let content = seen.map(HasContent::content);
        let is_final = content.as_ref().is_some_and(|content| content.is_immutable);
        let Some(shared) = shared.upgrade() else { return };
        let pods = shared.take(&key, content);
        if !pods.is_empty() {
            let told = Event::ObjectChanged { object: key.clone(), pods };
            if shared.events.send(told).await.is_err() {
                return;
            }
        }
        if is_final {
            return;
        }
    }
}

fn not_followed(key: &ObjectKey, error: &ApiError) {
    let (kind, ObjectKey { namespace, name, .. }) = (key.kind.as_str(), key);
    tracing::warn!(kind, namespace, name, error = with_causes(error), "an object is not followed");
}

/// What is known of it stays.
fn not_read(key: &ObjectKey, fault: Option<&str>) {
    let (kind, ObjectKey { namespace, name, .. }) = (key.kind.as_str(), key);
    let why = fault.unwrap_or("it is too large: make it smaller");
    tracing::error!(kind, namespace, name, why, "an object is not read");
}

#[cfg(test)]
mod tests;
