//! A node in a cluster: the API server, and the agent's loop that speaks with it, which the shell has in `cluster/pods.rs`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use berth_core::{
    cluster::sync::{Answer, Mirror, NodePod, PodSync, Request},
    id::{OpId, PodUid},
    node::SourcesHaveSpoken,
    pod::port::status::Published,
    spec::{Ended, Pod, Source},
    status::{ContainerState, ContainerStatus, PodStatus, Terminated},
    time::Now,
};
use serde_json::{Value, json};

use crate::server::{News, Object, Server};

/// The server and the agent's end.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) sync: PodSync,
    /// Requests that were asked for and not carried out.
    pub(crate) requests: VecDeque<Request>,
    /// What came of those that were, and the agent does not know yet.
    pub(crate) answers: VecDeque<(OpId, Answer)>,
    /// The newest of each pod, which the loop has not taken yet.
    reports: BTreeMap<PodUid, Option<NodePod>>,
    heard: Option<SourcesHaveSpoken>,
    /// What the server wants, as the loop knows it.
    wanted: BTreeMap<PodUid, (Arc<Object>, Arc<Pod>)>,
    /// Whether the node does not know that yet.
    pub(crate) is_untold: bool,
    has_spoken: bool,
    /// Whether the node of this agent knows what the server wanted at some time.
    pub(crate) was_told: bool,
    made: u64,
}

impl Cluster {
    /// The agent was killed: what it knew is gone, and it lists anew.
    pub(crate) fn restarted(&mut self) {
        let (server, made) = (std::mem::take(&mut self.server), self.made);
        *self = Self { server, made, ..Self::default() };
        self.server.relist();
    }

    /// The node tells what a pod is.
    pub(crate) fn published(&mut self, published: &Published) {
        let Published { pod, status, remains, .. } = published;
        let mirror = (pod.source != Source::Api)
            .then(|| Mirror { hash: pod.uid.as_str().to_owned(), manifest: Arc::clone(&pod.manifest) });
        let status = Arc::new(shown(status));
        let shown = NodePod { name: pod.name.clone(), status, remains: *remains, mirror };
        self.reports.insert(pod.uid.clone(), Some(shown));
    }

    /// Nothing of a pod is left on the node.
    pub(crate) fn withdrawn(&mut self, uid: &PodUid) {
        self.reports.insert(uid.clone(), None);
    }

    pub(crate) fn sources_have_spoken(&mut self, heard: SourcesHaveSpoken) {
        self.heard = Some(heard);
    }

    /// The loop takes what the node told; whether there was something.
    pub(crate) fn take_reports(&mut self) -> bool {
        if let Some(heard) = self.heard {
            self.sync.sources_have_spoken(heard);
        }
        let reports = std::mem::take(&mut self.reports);
        let is_something = !reports.is_empty();
        for (uid, report) in reports {
            match report {
                Some(pod) => self.sync.published(uid, pod),
                None => self.sync.withdrawn(&uid),
            }
        }
        is_something
    }

    /// The loop hears the next of what the watch tells; the pods that came with it.
    pub(crate) fn hear(&mut self) -> Vec<Arc<Pod>> {
        let mut made = Vec::new();
        match self.server.news.pop_front() {
            None => {}
            Some(News::Whole(objects, version)) => {
                self.is_untold |= !self.has_spoken;
                self.has_spoken = true;
                let before = self.wanted.len();
                let is_there = |uid: &PodUid| {
                    objects.iter().any(|object| object.uid == *uid && object.mirrors.is_none())
                };
                self.wanted.retain(|uid, _| is_there(uid));
                self.is_untold |= self.wanted.len() != before;
                made.extend(objects.iter().filter_map(|object| self.want(object)));
                self.sync.listed(objects.iter().map(Object::known).collect(), version);
            }
            Some(News::Applied(object)) => {
                self.sync.applied(object.known());
                made.extend(self.want(&object));
            }
            Some(News::Gone(object)) => {
                self.is_untold |= self.wanted.remove(&object.uid).is_some();
                self.sync.gone(&object.name, &object.uid, object.version);
            }
        }
        made
    }

    /// Takes an object in, where the node acts on what has changed of it; the pod as a record of it would be read back.
    fn want(&mut self, object: &Object) -> Option<Arc<Pod>> {
        let spec = object.spec.as_ref()?;
        let before = self.wanted.get(&object.uid).map(|(before, _)| before);
        let is_own_end = self.sync.shows_end(&object.uid);
        let is_same = |before: &Arc<Object>| {
            before.grace == object.grace
                && (is_own_end || ended(before) == ended(object))
                && before.spec.as_ref().is_some_and(|before| Arc::ptr_eq(before, spec))
        };
        if before.is_some_and(is_same) {
            return None;
        }
        self.made += 1;
        let pod = Arc::new(Pod {
            deletion: object.grace,
            manifest: format!("{{\"api\":{}}}", self.made).into(),
            ..Pod::clone(spec)
        });
        let ended = ended(object).filter(|_| before.is_none() || !is_own_end);
        let began = object.status["startTime"].as_str();
        let started_at = began.and_then(|at| at.parse().ok());
        let wanted = Arc::new(Pod { ended, started_at, ..Pod::clone(&pod) });
        self.wanted.insert(object.uid.clone(), (Arc::new(object.clone()), wanted));
        self.is_untold = true;
        Some(pod)
    }

    /// What the node is told to be wanted.
    pub(crate) fn desired(&mut self) -> Vec<Arc<Pod>> {
        (self.is_untold, self.was_told) = (false, true);
        self.wanted.values().map(|(_, pod)| Arc::clone(pod)).collect()
    }

    /// The next requests.
    pub(crate) fn poll(&mut self, now: Now) -> Option<Request> {
        self.sync.poll_request(now.mono)
    }
}

/// How a pod has ended by what the API has.
fn ended(object: &Object) -> Option<Ended> {
    let text = |field: &str| object.status[field].as_str().unwrap_or_default().to_owned();
    object.has_ended().then(|| Ended {
        succeeded: object.status["phase"] == "Succeeded",
        reason: text("reason"),
        message: text("message"),
    })
}

/// A status in the API's form.
pub(crate) fn shown(status: &PodStatus) -> Value {
    let conditions = status.conditions.iter().map(|one| {
        json!({ "type": one.kind.as_str(), "status": if one.holds { "True" } else { "False" },
            "reason": text(&one.reason), "message": text(&one.message), "lastTransitionTime": one.since.to_string() })
    });
    json!({
        "phase": status.phase.as_str(),
        "reason": text(&status.reason),
        "message": text(&status.message),
        "hostIPs": status.host_ips.iter().map(|ip| json!({ "ip": ip.to_string() })).collect::<Vec<_>>(),
        "podIPs": status.pod_ips.iter().map(|ip| json!({ "ip": ip.to_string() })).collect::<Vec<_>>(),
        "startTime": status.start_time.map(|time| time.to_string()),
        "conditions": conditions.collect::<Vec<_>>(),
        "initContainerStatuses": status.init_containers.iter().map(container).collect::<Vec<_>>(),
        "containerStatuses": status.containers.iter().map(container).collect::<Vec<_>>(),
        "ephemeralContainerStatuses": status.ephemeral_containers.iter().map(container).collect::<Vec<_>>(),
    })
}

fn container(status: &ContainerStatus) -> Value {
    let state = match &status.state {
        ContainerState::Waiting { reason, message } => {
            json!({ "waiting": { "reason": text(reason), "message": text(message) } })
        }
        ContainerState::Running { started_at } => {
            json!({ "running": { "startedAt": started_at.to_string() } })
        }
        ContainerState::Terminated(end) => json!({ "terminated": terminated(end) }),
    };
    json!({
        "name": status.name.as_str(),
        "containerID": status.id.as_ref().map(ToString::to_string),
        "ready": status.ready,
        "started": status.started,
        "restartCount": status.restart_count,
        "state": state,
        "lastState": status.last_state.as_ref().map(|end| json!({ "terminated": terminated(end) })),
    })
}

fn terminated(end: &Terminated) -> Value {
    json!({
        "exitCode": end.exit_code,
        "reason": text(&end.reason),
        "message": text(&end.message),
        "finishedAt": end.finished_at.map(|time| time.to_string()),
        "containerID": end.id.as_ref().map(ToString::to_string),
    })
}

/// What is empty says nothing.
fn text(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { json!(text) }
}
