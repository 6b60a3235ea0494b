//! Pods of the API server: what it wants is told to the node loop, what becomes of it is told to the server.
//!
//! One loop, as the node's: what happens goes into the machine of `berth_core::cluster::sync`, requests come out. The node loop is told
//! what is wanted when it has room for it, with whatever has changed until then, so a flood of changes is one event.

use std::{collections::BTreeMap, sync::Arc};

use berth_core::{
    cluster::sync::{Answer, ApiPod as Known, Mirror, NodePod, PodSync, Request},
    cluster::throttle::Throttle,
    event::Event,
    id::{OpId, PodName, PodUid},
    pod::port::status::{Published, Remains},
    spec::{Pod, Source},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodSpec};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

use super::{
    Clients, Seen, Watched,
    reports::{Report, Reports},
    requests::{MIRROR, perform},
};
use crate::{
    clock, manifest, pod_status,
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
    reports: Reports,
    view: View,
    events: mpsc::Sender<Event>,
    wanted: BTreeMap<PodUid, Wanted>,
    /// Whether the API server has told what it wants.
    has_spoken: bool,
    /// Whether the node loop knows less than this one.
    is_untold: bool,
}

/// A pod that the API server wants on the node.
#[derive(Debug)]
struct Wanted {
    name: PodName,
    seen: Timestamp,
    given: Arc<ApiPod>,
    /// What the node makes of it.
    pod: Result<Arc<Pod>, String>,
    unsupported: Vec<String>,
}

impl PodLoop {
    /// The pods of the node of this name. They are told to `events`, what becomes of them comes from `reports`.
    #[must_use]
    pub fn new(
        node: &str,
        clients: Clients,
        throttle: Throttle,
        reports: Reports,
        view: View,
        events: mpsc::Sender<Event>,
    ) -> Self {
        let watched = Watched::new(clients.clone(), Api::all, format!("spec.nodeName={node}"));
        Self {
            node: node.to_owned(),
            clients,
            watched,
            sync: PodSync::default(),
            throttle,
            reports,
            view,
            events,
            wanted: BTreeMap::new(),
            has_spoken: false,
            is_untold: false,
        }
    }

    /// Runs for as long as the node loop does.
    pub async fn run(mut self) {
        let (outcomes, mut ended) = mpsc::channel(OUTCOMES_MAX);
        loop {
            self.begin_requests(&outcomes);
            let wake = self.sync.poll_timeout().map(|at| Instant::now() + at.since(clock::mono()));
            // Each is cancel safe: what is not taken stays where it is.
            tokio::select! {
                seen = self.watched.next() => self.see(seen),
                waiting = self.reports.take() => {
                    if waiting.sources_have_spoken {
                        self.sync.sources_have_spoken();
                    }
                    for (uid, report) in waiting.pods {
                        self.report(uid, report);
                    }
                }
                Some((op, answer)) = ended.recv() => self.sync.answered(op, answer, clock::mono()),
                place = self.events.clone().reserve_owned(), if self.is_untold => match place {
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
            let wait = self.throttle.take(clock::mono());
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                let answer = perform(client, &node, &request).await;
                let Request { op, .. } = request;
                // Fails only when the loop has ended.
                drop(outcomes.send((op, answer)).await);
            });
        }
    }

    /// What the API server wants, for the node loop.
    fn desired(&mut self) -> Event {
        self.is_untold = false;
        let problems = self.wanted.values().filter_map(|wanted| {
            let message = wanted.pod.as_ref().err()?.clone();
            Some(Problem { place: format!("pod {}", wanted.name), message })
        });
        self.view.set_problems(Source::Api, problems.collect());
        let unsupported = self.wanted.iter().map(|(uid, wanted)| (uid.clone(), wanted.unsupported.clone()));
        self.view.set_unsupported(Source::Api, unsupported.collect());
        let pods = self.wanted.values().filter_map(|wanted| wanted.pod.as_ref().ok().cloned()).collect();
        Event::Desired { source: Source::Api, pods, is_whole: true }
    }

    fn see(&mut self, seen: Seen<ApiPod>) {
        match seen {
            Seen::Whole(pods) => {
                tracing::info!(pods = pods.len(), "the API server has told which pods are wanted");
                self.is_untold |= !self.has_spoken;
                self.has_spoken = true;
                let known: Vec<Known> = pods.iter().map(known).collect();
                let before = self.wanted.len();
                self.wanted.retain(|uid, _| known.iter().any(|pod| pod.uid == *uid && pod.mirrors.is_none()));
                self.is_untold |= self.wanted.len() != before;
                for pod in pods {
                    self.want(pod);
                }
                self.sync.listed(known);
            }
            Seen::Applied(pod) => {
                self.sync.applied(known(&pod));
                self.want(pod);
            }
            Seen::Gone(pod) => {
                let Known { uid, name, .. } = known(&pod);
                self.is_untold |= self.wanted.remove(&uid).is_some();
                self.sync.gone(&name, &uid);
            }
            Seen::Failed(error) => {
                tracing::warn!(%error, "the API server does not tell which pods are wanted");
            }
        }
    }

    /// Takes a pod in. Mirrors are wanted by nobody.
    fn want(&mut self, given: ApiPod) {
        let Known { uid, name, mirrors, .. } = known(&given);
        if mirrors.is_some() {
            return;
        }
        let before = self.wanted.get(&uid);
        if before.is_some_and(|before| is_same_wish(&before.given, &given)) {
            return;
        }
        let seen = before.map_or_else(Timestamp::now, |before| before.seen);
        let made = match manifest::api_pod(&given, seen) {
            Ok(manifest) => (Ok(manifest.pod), manifest.unsupported),
            Err(faults) => {
                tracing::error!(pod = %name, "pod cannot be run here: {faults}");
                (Err(faults.to_string()), Vec::new())
            }
        };
        let (pod, unsupported) = made;
        // How a pod has ended counts only where the node did not see it end.
        let was_seen = before.is_some();
        let pod = pod.map(|pod| if was_seen { without_end(pod) } else { pod });
        self.wanted.insert(uid, Wanted { name, seen, given: Arc::new(given), pod, unsupported });
        self.is_untold = true;
    }

    fn report(&mut self, uid: PodUid, report: Report) {
        let Report::Is(published) = report else { return self.sync.withdrawn(&uid) };
        let pod = self.node_pod(&uid, &published);
        self.sync.published(uid, pod);
    }

    fn node_pod(&self, uid: &PodUid, published: &Published) -> NodePod {
        let Published { pod, status, remains, .. } = published;
        let given = self.wanted.get(uid).and_then(|wanted| wanted.given.spec.as_ref());
        let read: Option<PodSpec> = match given {
            Some(_) => None,
            None => serde_json::from_str::<ApiPod>(&pod.manifest).ok().and_then(|pod| pod.spec),
        };
        let shown = pod_status::of(status, pod, given.or(read.as_ref()));
        let mirror = (pod.source != Source::Api).then(|| Mirror {
            hash: pod.annotations.get("kubernetes.io/config.hash").cloned().unwrap_or_default(),
            manifest: Arc::clone(&pod.manifest),
        });
        NodePod {
            name: pod.name.clone(),
            status: (*remains != Remains::NothingToTell).then(|| Arc::new(json(&shown))),
            is_torn_down: *remains != Remains::Something,
            mirror,
        }
    }
}

/// What is kept of a pod of the API.
pub(super) fn known(pod: &ApiPod) -> Known {
    Known {
        uid: PodUid::new(pod.uid().unwrap_or_default()),
        name: PodName { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any() },
        version: pod.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0),
        status: Arc::new(pod.status.as_ref().map_or(Value::Null, json)),
        is_deleted: pod.metadata.deletion_timestamp.is_some(),
        mirrors: pod.annotations().get(MIRROR).cloned(),
    }
}

/// Whether two versions of a pod differ only in what the node does not act on.
fn is_same_wish(one: &ApiPod, other: &ApiPod) -> bool {
    let (a, b) = (&one.metadata, &other.metadata);
    one.spec == other.spec
        && a.labels == b.labels
        && a.annotations == b.annotations
        && a.generation == b.generation
        && a.deletion_timestamp == b.deletion_timestamp
        && a.deletion_grace_period_seconds == b.deletion_grace_period_seconds
}

fn without_end(pod: Arc<Pod>) -> Arc<Pod> {
    if pod.ended.is_none() { pod } else { Arc::new(Pod { ended: None, ..Pod::clone(&pod) }) }
}

/// Types of the API can always be written as JSON.
fn json<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
