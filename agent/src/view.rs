//! What readers see: the pods of this node as they were last published.
//!
//! The node loop writes, the control socket reads. Everything in it is a copy: nobody decides anything from it.
//! Bounded: [`EVENTS_MAX`] events per pod, and repeats of an event are counted instead of kept.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_core::{
    id::{PodName, PodUid, SandboxId},
    pod::port::status::{Published, Remains},
    spec::{Pod, Source},
    status::{PodEvent, PodStatus},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

/// Events kept per pod; older ones go first.
pub const EVENTS_MAX: usize = 64;

/// The table. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct View(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    pods: BTreeMap<PodUid, Entry>,
    problems: BTreeMap<Source, Vec<Problem>>,
    runtime_problem: Option<Problem>,
    unsupported: BTreeMap<Source, BTreeMap<PodUid, Vec<String>>>,
    given: BTreeMap<PodUid, Arc<Value>>,
}

#[derive(Debug, Default)]
struct Entry {
    pod: Option<Arc<Pod>>,
    status: Option<Arc<PodStatus>>,
    sandbox: Option<SandboxId>,
    remains: Option<Remains>,
    terminating_since: Option<Timestamp>,
    events: VecDeque<SeenEvent>,
    /// Told of each change of what it is.
    changes: watch::Sender<()>,
}

/// One pod as it was last published.
#[derive(Debug, Clone, PartialEq)]
pub struct PodView {
    /// What it is to be.
    pub pod: Arc<Pod>,
    /// What it is.
    pub status: Arc<PodStatus>,
    /// The sandbox it runs in, once there is one.
    pub sandbox: Option<SandboxId>,
    /// How much of it is left.
    pub remains: Remains,
    /// When it was first seen being stopped.
    pub terminating_since: Option<Timestamp>,
    /// What happened to it, oldest first.
    pub events: Vec<SeenEvent>,
    /// The status that the API server has of it, where it has told one.
    pub given: Option<Arc<Value>>,
    /// Fields of its manifest that this version does not act on, each with a word about it.
    pub unsupported: Vec<String>,
}

/// An event and when it was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenEvent {
    /// What happened.
    pub event: PodEvent,
    /// How often.
    pub count: u32,
    /// First time.
    pub first: Timestamp,
    /// Last time.
    pub last: Timestamp,
}

/// A manifest, or another file, that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Which file, or which address.
    pub place: String,
    /// Why: line, field and reason.
    pub message: String,
}

impl View {
    /// Shows what a pod is. Called on `Act::Publish`.
    pub fn publish(&self, published: Published) {
        let Published { pod, status, sandbox, remains } = published;
        let mut table = self.table();
        let entry = table.pods.entry(status.uid.clone()).or_default();
        entry.pod = Some(pod);
        entry.sandbox = sandbox;
        entry.remains = Some(remains);
        if status.terminating {
            entry.terminating_since.get_or_insert_with(Timestamp::now);
        }
        entry.status = Some(status);
        entry.changes.send_replace(());
    }

    /// Shows something that happened to a pod. Called on `Act::Note`.
    pub fn note(&self, uid: &PodUid, event: PodEvent) {
        self.note_at(uid, event, Timestamp::now());
    }

    /// Shows a pod no longer. Called on `Act::Withdraw`.
    pub fn remove(&self, uid: &PodUid) {
        self.table().pods.remove(uid);
    }

    /// Tells of each change of what one pod is, from now on, until it is shown no longer; `None` when it is not shown.
    #[must_use]
    pub fn changes(&self, uid: &PodUid) -> Option<watch::Receiver<()>> {
        Some(self.table().pods.get(uid)?.changes.subscribe())
    }

    /// The status of one pod, whatever others have its name; `None` when it is shown no longer.
    #[must_use]
    pub fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.table().pods.get(uid)?.status.clone()
    }

    /// Replaces what a source has to say about manifests that it cannot use.
    pub fn set_problems(&self, source: Source, problems: Vec<Problem>) {
        self.table().problems.insert(source, problems);
    }

    /// The API server has this status of a pod.
    pub fn give(&self, uid: &PodUid, status: Arc<Value>) {
        self.table().given.insert(uid.clone(), status);
    }

    /// The API server has no pod any more but these.
    pub fn keep_given(&self, is_kept: impl Fn(&PodUid) -> bool) {
        self.table().given.retain(|uid, _| is_kept(uid));
    }

    /// Replaces what there is to say about containerd's configuration.
    pub fn set_runtime_problem(&self, problem: Option<Problem>) {
        self.table().runtime_problem = problem;
    }

    /// Replaces what is known about fields that this version does not act on, for all pods of a source.
    pub fn set_unsupported(&self, source: Source, fields: BTreeMap<PodUid, Vec<String>>) {
        self.table().unsupported.insert(source, fields);
    }

    /// All pods that have a status, by namespace and name.
    #[must_use]
    pub fn pods(&self) -> Vec<PodView> {
        let table = self.table();
        let mut pods: Vec<_> =
            table.pods.iter().filter_map(|(uid, entry)| table.pod_view(uid, entry)).collect();
        pods.sort_by(|one, other| one.pod.name.cmp(&other.pod.name));
        pods
    }

    /// One pod. When a pod and its successor have the same name, the one that is not being stopped.
    #[must_use]
    pub fn pod(&self, name: &PodName) -> Option<PodView> {
        let table = self.table();
        let named =
            table.pods.iter().filter(|(_, entry)| entry.pod.as_ref().is_some_and(|pod| pod.name == *name));
        let views = named.filter_map(|(uid, entry)| table.pod_view(uid, entry));
        views.min_by_key(|view| view.status.terminating)
    }

    /// Manifests that could not be used.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let table = self.table();
        table.problems.values().flatten().chain(&table.runtime_problem).cloned().collect()
    }

    fn note_at(&self, uid: &PodUid, event: PodEvent, now: Timestamp) {
        let mut table = self.table();
        let events = &mut table.pods.entry(uid.clone()).or_default().events;
        if let Some(seen) = events.iter_mut().find(|seen| seen.event == event) {
            seen.count = seen.count.saturating_add(1);
            seen.last = now;
        } else {
            if events.len() >= EVENTS_MAX {
                events.pop_front();
            }
            events.push_back(SeenEvent { event, count: 1, first: now, last: now });
        }
        events.make_contiguous().sort_by_key(|seen| seen.last);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No writer can leave a half-made entry behind, so the table of a panicked one is good.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn pod_view(&self, uid: &PodUid, entry: &Entry) -> Option<PodView> {
        Some(PodView {
            pod: Arc::clone(entry.pod.as_ref()?),
            status: Arc::clone(entry.status.as_ref()?),
            sandbox: entry.sandbox.clone(),
            remains: entry.remains?,
            terminating_since: entry.terminating_since,
            events: entry.events.iter().cloned().collect(),
            given: self.given.get(uid).cloned(),
            unsupported: self.unsupported.values().find_map(|of| of.get(uid)).cloned().unwrap_or_default(),
        })
    }
}
