//! Pods of the API server: what it wants is told to the node loop, what becomes of it is told to the server.
//!
//! One loop, as the node's: what happens goes into the machine of `berth_core::cluster::sync`, requests come out. The node loop is told
//! what is wanted when that is due (`berth_core::cluster::telling`), with whatever has changed until then: of a pod that has changed
//! many times, the last version alone is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_core::{
    cluster::sync::{Answer, ApiPod as Known, Mirror, NodePod, PodSync, Request},
    cluster::telling::Telling,
    cluster::throttle::Throttle,
    event::Event,
    id::{OpId, PodName, PodUid},
    pod::port::status::Published,
    spec::{Pod, Source},
    status::Note,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodSpec};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use super::{
    Clients, Seen, Sinks, Unread, Watched,
    client::turn,
    node::chance,
    refused,
    reports::Report,
    requests::{MIRROR, perform},
};
use crate::{
    clock,
    config::RequestRate,
    failpoint::Failpoint,
    manifest,
    metrics::InCluster,
    pod_status,
    view::{Problem, View},
};

/// Outcomes of requests that may wait: the machine bounds how many are under way.
const OUTCOMES_MAX: usize = 64;

/// The loop and what it owns.
#[derive(Debug)]
pub struct PodLoop {
    node: String,
    clients: Clients,
    watched: Watched<ApiPod>,
    sync: PodSync,
    throttle: Throttle,
    sinks: Sinks,
    view: View,
    events: mpsc::Sender<Event>,
    failpoint: Failpoint,
    wanted: BTreeMap<PodUid, Wanted>,
    /// What an earlier agent ran, until the API server has told of it.
    recorded: BTreeMap<PodUid, Arc<Pod>>,
    /// Newest versions of pods that the node loop has not been told of yet.
    unread: BTreeMap<PodUid, ApiPod>,
    /// Pods that are gone in the API server, of which the node loop is still to be told that they are deleted, and with which grace.
    leaving: BTreeSet<PodUid>,
    /// Pods that were told to be too large, or not understood.
    not_read: BTreeSet<PodUid>,
    /// Whether the API server has told what it wants.
    has_spoken: bool,
    telling: Telling,
    measured: Option<InCluster>,
}

/// A pod that the API server wants on the node.
#[derive(Debug)]
struct Wanted {
    name: PodName,
    seen: Timestamp,
    given: Arc<ApiPod>,
    /// What the node makes of it.
    pod: Result<Arc<Pod>, String>,
    /// Why `given` cannot be read, while the pod goes on as the version before.
    unread: Option<String>,
    unsupported: Vec<String>,
}

impl Wanted {
    /// What is wrong with the version that is wanted now.
    fn fault(&self) -> Option<&String> {
        self.unread.as_ref().or(self.pod.as_ref().err())
    }
}

impl PodLoop {
    /// The pods of the node of this name. They are told to `events`, what becomes of them comes from `sinks`.
    #[must_use]
    pub fn new(
        node: &str,
        clients: Clients,
        RequestRate(rate): RequestRate,
        sinks: Sinks,
        view: View,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let watched = Watched::new(clients.clone(), Api::all, format!("spec.nodeName={node}"));
        Self {
            node: node.to_owned(),
            clients,
            watched,
            sync: PodSync::default(),
            throttle: Throttle::new(rate),
            sinks,
            view,
            events,
            failpoint: Failpoint::default(),
            wanted: BTreeMap::new(),
            recorded: BTreeMap::new(),
            unread: BTreeMap::new(),
            leaving: BTreeSet::new(),
            not_read: BTreeSet::new(),
            has_spoken: false,
            telling: Telling::default(),
            measured: None,
        }
    }

    /// The same, after an agent that had these pods.
    #[must_use]
    pub fn going_on_with(self, recorded: BTreeMap<PodUid, Arc<Pod>>) -> Self {
        Self { recorded, ..self }
    }

    /// The same, which dies at a request.
    #[must_use]
    pub fn dying_at(self, failpoint: Failpoint) -> Self {
        Self { failpoint, ..self }
    }

    /// The same, measured.
    #[must_use]
    pub fn measured_by(self, measured: InCluster) -> Self {
        Self { measured: Some(measured), ..self }
    }

    /// Runs for as long as the node loop does.
    pub async fn run(mut self) {
        let (outcomes, mut ended) = mpsc::channel(OUTCOMES_MAX);
        loop {
            self.begin_requests(&outcomes);
            // Others have their turn between any two events, and what came for them is read: nobody waits for a flood of them.
            tokio::task::yield_now().await;
            let now = clock::mono();
            let is_due = self.telling.is_due(now);
            let told_at = self.telling.poll_timeout().filter(|_| !is_due);
            let wake = self.sync.poll_timeout().into_iter().chain(told_at).min();
            let wake = wake.map(|at| Instant::now() + at.since(now));
            // Each is cancel safe: what is not taken stays where it is.
            tokio::select! {
                seen = self.watched.next() => {
                    self.see(seen);
                    self.count_mirrors();
                }
                waiting = self.sinks.reports.take() => {
                    if let Some(heard) = waiting.sources_have_spoken {
                        self.sync.sources_have_spoken(heard);
                    }
                    for (uid, report) in waiting.pods {
                        self.report(uid, report);
                    }
                }
                Some((op, answer)) = ended.recv() => self.answered(op, answer),
                place = self.events.clone().reserve_owned(), if is_due => match place {
                    Ok(place) => drop(place.send(self.desired())),
                    Err(_closed) => return,
                },
                () = until(wake) => {}
            }
        }
    }

    fn begin_requests(&mut self, outcomes: &mpsc::Sender<(OpId, Answer)>) {
        while let Some(request) = self.sync.poll_request(clock::mono()) {
            let (client, node, outcomes) = (self.clients.get(), self.node.clone(), outcomes.clone());
            let failpoint = self.failpoint.clone();
            let wait = self.throttle.take(clock::mono());
            tokio::spawn(async move {
                turn(wait).await;
                let answer = perform(client, &node, &request, &failpoint).await;
                let Request { op, .. } = request;
                // Fails only when the loop has ended.
                drop(outcomes.send((op, answer)).await);
            });
        }
    }

    fn answered(&mut self, op: OpId, answer: Answer) {
        let took = self.sync.answered(op, answer, clock::mono(), chance());
        if let Some((took, measured)) = took.zip(self.measured.as_ref()) {
            measured.told(took);
        }
    }

    fn count_mirrors(&self) {
        if let Some(measured) = &self.measured {
            measured.mirrors(self.sync.mirrors());
        }
    }

    /// What the API server wants, for the node loop.
    fn desired(&mut self) -> Event {
        for (uid, given) in std::mem::take(&mut self.unread) {
            self.read(uid, given);
        }
        self.telling.told(clock::mono());
        let problems = self.wanted.values().filter_map(|wanted| {
            let message = wanted.fault()?.clone();
            Some(Problem { place: format!("pod {}", wanted.name), message })
        });
        self.view.set_problems(Source::Api, problems.collect());
        let unsupported = self.wanted.iter().map(|(uid, wanted)| (uid.clone(), wanted.unsupported.clone()));
        self.view.set_unsupported(Source::Api, unsupported.collect());
        let pods = self.wanted.values().filter_map(|wanted| wanted.pod.as_ref().ok().cloned()).collect();
        for uid in std::mem::take(&mut self.leaving) {
            self.forget(&uid);
        }
        Event::Desired { source: Source::Api, pods, is_whole: true }
    }

    /// A server, or somebody between, that does not know the selector is not to give us the pods of other nodes.
    fn is_ours(&self, pod: &ApiPod) -> bool {
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(self.node.as_str())
    }

    fn see(&mut self, seen: Seen<ApiPod>) {
        match seen {
            Seen::Whole { objects: mut pods, unread, version } => {
                pods.retain(|pod| self.is_ours(pod));
                tracing::info!(pods = pods.len(), "the API server has told which pods are wanted");
                let unread: BTreeSet<PodUid> = unread.into_iter().map(|one| self.leave(one)).collect();
                if !std::mem::replace(&mut self.has_spoken, true) {
                    self.telling.hurries(clock::mono());
                }
                let known: Vec<Known> = pods.iter().map(known).collect();
                self.view.keep_given(|uid| unread.contains(uid) || known.iter().any(|pod| pod.uid == *uid));
                known.iter().for_each(|pod| self.view.give(&pod.uid, Arc::clone(&pod.status)));
                let is_known = |uid: &PodUid| {
                    unread.contains(uid) || known.iter().any(|pod| pod.uid == *uid && pod.mirrors.is_none())
                };
                let all = self.wanted.keys().chain(self.unread.keys());
                let gone: BTreeSet<PodUid> = all.filter(|uid| !is_known(uid)).cloned().collect();
                gone.iter().for_each(|uid| self.forget(uid));
                for pod in pods {
                    self.want(pod);
                }
                self.sync.listed_beside(known, version, &unread);
            }
            Seen::Unread(pod) => drop(self.leave(pod)),
            Seen::Applied(pod) if !self.is_ours(&pod) => {}
            Seen::Applied(pod) => {
                let known = known(&pod);
                self.view.give(&known.uid, Arc::clone(&known.status));
                self.sync.applied(known);
                self.want(pod);
            }
            Seen::Gone(pod) => {
                let Known { uid, name, version, .. } = known(&pod);
                self.leave_with(&uid, &pod);
                self.view.keep_given(|kept| *kept != uid);
                self.sync.gone(&name, &uid, version);
            }
            Seen::Failed(error) => {
                tracing::warn!(%error, "the API server does not tell which pods are wanted");
            }
        }
    }

    /// A pod is too large to be read, or not understood: what is known of it stays, and users are told once. Whether it is a pod of this
    /// node nobody can see.
    fn leave(&mut self, pod: Unread) -> PodUid {
        let Unread { namespace, name, uid, bytes, fault } = pod;
        let (uid, name) = (PodUid::new(uid), PodName { namespace, name });
        if self.not_read.insert(uid.clone()) {
            let why = refused::unread(bytes, fault.as_deref());
            tracing::error!(pod = %name, "pod cannot be run here: {why}");
            self.sinks.note(&uid, &refused::note(&uid, &name, &why));
        }
        uid
    }

    /// A pod is gone. That it was deleted, and with which grace, may have been said in the same moment, as by one who forces it: what the node
    /// loop was not told of that it is told first.
    fn leave_with(&mut self, uid: &PodUid, last: &ApiPod) {
        self.unread.remove(uid);
        let deletion = manifest::deletion(last);
        let known = self.wanted.get_mut(uid).and_then(|wanted| wanted.pod.as_mut().ok());
        match known {
            Some(pod) if deletion.is_some() && pod.deletion != deletion => {
                *pod = Arc::new(Pod { deletion, ..Pod::clone(pod) });
                self.leaving.insert(uid.clone());
                self.telling.hurries(clock::mono());
            }
            Some(_) | None => self.forget(uid),
        }
    }

    /// The API server wants a pod no more. Of one that could not be run, the node has nothing to tell any more.
    fn forget(&mut self, uid: &PodUid) {
        self.unread.remove(uid);
        self.leaving.remove(uid);
        self.not_read.remove(uid);
        let Some(wanted) = self.wanted.remove(uid) else { return };
        self.telling.hurries(clock::mono());
        if wanted.pod.is_err() {
            self.sync.withdrawn(uid);
        }
    }

    /// Takes a version of a pod in. Mirrors are wanted by nobody.
    fn want(&mut self, mut given: ApiPod) {
        if given.annotations().contains_key(MIRROR) {
            return;
        }
        let uid = uid_of(&given);
        self.not_read.remove(&uid);
        let before = self.unread.get(&uid).or_else(|| self.wanted.get(&uid).map(|wanted| &*wanted.given));
        if let Some(before) = before {
            // Events refer to the version that was seen first (`checkAndUpdatePod` of `pkg/kubelet/config/config.go`).
            given.metadata.resource_version.clone_from(&before.metadata.resource_version);
        }
        match before.map_or(Change::Wish, |before| self.change(&uid, before, &given)) {
            Change::Nothing => return,
            Change::Shown => self.telling.can_wait(clock::mono()),
            Change::Wish => self.telling.hurries(clock::mono()),
        }
        self.unread.insert(uid, given);
    }

    /// What the node sees of the difference between two versions of a pod. An end that is not its own word is a wish. Source: `UpdatePod`
    /// of `pkg/kubelet/pod_workers.go`.
    fn change(&self, uid: &PodUid, one: &ApiPod, other: &ApiPod) -> Change {
        let [before, after] = [one, other].map(|pod| manifest::ended(pod.status.as_ref()));
        if before != after && !self.sync.shows_end(uid) { Change::Wish } else { Change::of(one, other) }
    }

    /// Makes of a version of a pod what the node is told.
    fn read(&mut self, uid: PodUid, given: ApiPod) {
        let before = self.wanted.get(&uid);
        if before.is_some_and(|before| self.change(&uid, &before.given, &given) == Change::Nothing) {
            return;
        }
        let name = name_of(&given);
        let seen = before.map_or_else(Timestamp::now, |before| before.seen);
        let recorded = self.recorded.remove(&uid);
        let known = before.and_then(|before| before.pod.as_ref().ok()).or(recorded.as_ref());
        let (pod, unread, unsupported) = match (manifest::api_pod(&given, seen), known) {
            (Ok(manifest), _) => (Ok(manifest.pod), None, manifest.unsupported),
            (Err(faults), Some(known)) => {
                let unsupported = before.map(|before| before.unsupported.clone()).unwrap_or_default();
                (Ok(refused::as_before(known, &given)), Some(refused::text(faults)), unsupported)
            }
            (Err(faults), None) => (Err(refused::text(faults)), None, Vec::new()),
        };
        let is_own_end = before.is_some() && self.sync.shows_end(&uid);
        let pod = pod.map(|pod| if is_own_end { without_end(pod) } else { pod });
        let told = before.and_then(|before| before.fault().cloned());
        // An earlier agent that had this version has told it.
        let is_told = before.is_some_and(|before| before.unsupported == unsupported)
            || recorded.is_some_and(|recorded| recorded.generation == given.metadata.generation);
        if !unsupported.is_empty() && !is_told {
            self.note(&uid, &given, refused::not_acted_on(&name, &unsupported));
        }
        let wanted = Wanted { name, seen, given: Arc::new(given), pod, unread, unsupported };
        self.tell_fault(&uid, &wanted, told.as_ref());
        self.wanted.insert(uid, wanted);
    }

    /// Tells once what is wrong with a version of a pod, beside `told`, which was of the one before.
    fn tell_fault(&mut self, uid: &PodUid, wanted: &Wanted, told: Option<&String>) {
        let Wanted { name, given, pod, .. } = wanted;
        let Some(why) = wanted.fault() else { return };
        if told != Some(why) && !refused::was_told(given, why) {
            match pod {
                Ok(_) => {
                    tracing::error!(pod = %name, "pod goes on as its last version that can be run: {why}");
                }
                Err(_) => tracing::error!(pod = %name, "pod cannot be run here: {why}"),
            }
            self.note(uid, given, refused::note(uid, name, why));
        }
        if pod.is_err() {
            self.sync.published(uid.clone(), refused::node_pod(given, name, why));
        }
    }

    fn note(&self, uid: &PodUid, given: &ApiPod, note: Note) {
        let version = given.metadata.resource_version.clone();
        self.sinks.note(uid, &Note { version, ..note });
    }

    fn report(&mut self, uid: PodUid, report: Report) {
        let Report::Is(published) = report else { return self.withdrawn(&uid) };
        let pod = self.node_pod(&uid, &published);
        self.sync.published(uid, pod);
    }

    /// Nothing of a pod is left on the node. What an earlier agent ran of one that this one cannot run is told of no more.
    fn withdrawn(&mut self, uid: &PodUid) {
        self.sync.withdrawn(uid);
        if let Some(Wanted { name, given, pod: Err(why), .. }) = self.wanted.get(uid) {
            self.sync.published(uid.clone(), refused::node_pod(given, name, why));
        }
    }

    fn node_pod(&self, uid: &PodUid, published: &Published) -> NodePod {
        let Published { pod, status, remains, .. } = published;
        // What is told is of the version that the node has, which may not be the one that was given last.
        let is_same = |wanted: &&Wanted| {
            wanted.pod.as_ref().is_ok_and(|told| Arc::ptr_eq(&told.manifest, &pod.manifest))
        };
        let given = self.wanted.get(uid).filter(is_same).and_then(|wanted| wanted.given.spec.as_ref());
        let read: Option<PodSpec> = if given.is_some() { None } else { pod_status::spec_of(&pod.manifest) };
        let shown = pod_status::of(status, pod, given.or(read.as_ref()));
        let mirror = (pod.source != Source::Api).then(|| Mirror {
            hash: pod.annotations.get("kubernetes.io/config.hash").cloned().unwrap_or_default(),
            manifest: Arc::clone(&pod.manifest),
        });
        NodePod { name: pod.name.clone(), status: Arc::new(json(&shown)), remains: *remains, mirror }
    }
}

/// What is kept of a pod of the API.
pub(super) fn known(pod: &ApiPod) -> Known {
    Known {
        uid: uid_of(pod),
        name: name_of(pod),
        version: pod.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0),
        status: Arc::new(pod.status.as_ref().map_or(Value::Null, json)),
        is_deleted: pod.metadata.deletion_timestamp.is_some(),
        mirrors: pod.annotations().get(MIRROR).cloned(),
    }
}

fn uid_of(pod: &ApiPod) -> PodUid {
    PodUid::new(pod.uid().unwrap_or_default())
}

fn name_of(pod: &ApiPod) -> PodName {
    PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() }
}

/// What the node sees of the difference between two versions of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Nothing: the node does not act on what has changed.
    Nothing,
    /// What volumes show of the pod itself.
    Shown,
    /// What it is to do.
    Wish,
}

impl Change {
    fn of(one: &ApiPod, other: &ApiPod) -> Self {
        let (a, b) = (&one.metadata, &other.metadata);
        let is_same_wish = a.generation == b.generation
            && a.deletion_timestamp == b.deletion_timestamp
            && a.deletion_grace_period_seconds == b.deletion_grace_period_seconds
            && one.spec == other.spec
            && manifest::readiness_gates(one) == manifest::readiness_gates(other);
        if !is_same_wish {
            Self::Wish
        } else if a.labels == b.labels && a.annotations == b.annotations {
            Self::Nothing
        } else {
            Self::Shown
        }
    }
}

fn without_end(pod: Arc<Pod>) -> Arc<Pod> {
    if pod.ended.is_none() { pod } else { Arc::new(Pod { ended: None, ..Pod::clone(&pod) }) }
}

/// Types of the API can always be written as JSON.
pub(super) fn json<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
