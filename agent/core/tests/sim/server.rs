//! A model of the API server, as far as pods of one node go: what it has, how it merges patches, and what a watch tells of it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    cluster::sync::{Answer, ApiPod, Call, Request},
    id::{PodName, PodUid},
    spec::Pod,
};
use serde_json::{Map, Value, json};

/// The server.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) objects: BTreeMap<PodName, Object>,
    /// What a watch has to tell, in order.
    pub(crate) news: VecDeque<News>,
    pub(crate) is_away: bool,
    version: u64,
    uids: u64,
}

/// A pod as the server has it.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) uid: PodUid,
    pub(crate) name: PodName,
    pub(crate) version: u64,
    /// Of a mirror nothing is wanted.
    pub(crate) spec: Option<Arc<Pod>>,
    /// Set when it is to be deleted.
    pub(crate) grace: Option<Duration>,
    pub(crate) status: Value,
    pub(crate) mirrors: Option<String>,
}

/// What a watch tells.
#[derive(Debug, Clone)]
pub(crate) enum News {
    /// All that there is, as of this version.
    Whole(Vec<Object>, u64),
    Applied(Box<Object>),
    Gone(Box<Object>),
}

impl Object {
    /// As the agent's loop hands it to the core.
    pub(crate) fn known(&self) -> ApiPod {
        ApiPod {
            uid: self.uid.clone(),
            name: self.name.clone(),
            version: self.version,
            status: Arc::new(self.status.clone()),
            is_deleted: self.grace.is_some(),
            mirrors: self.mirrors.clone(),
        }
    }

    /// The pod of the node that it shows.
    pub(crate) fn shows(&self) -> PodUid {
        self.mirrors.as_ref().map_or_else(|| self.uid.clone(), |hash| PodUid::new(hash.clone()))
    }

    /// Whether a patch of its status says anything that the status does not.
    pub(crate) fn is_changed_by(&self, patch: &Value) -> bool {
        let mut status = self.status.clone();
        merge(&mut status, patch);
        status != self.status
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.status["phase"].as_str(), Some("Succeeded" | "Failed"))
    }
}

impl Server {
    /// A pod is bound to the node.
    pub(crate) fn bind(&mut self, pod: Pod) {
        let (uid, name) = (pod.uid.clone(), pod.name.clone());
        let status = json!({ "phase": "Pending", "qosClass": "BestEffort",
            "conditions": [{ "type": "PodScheduled", "status": "True", "lastTransitionTime": "1" }] });
        let spec = Some(Arc::new(pod));
        self.put(Object { uid, name, version: 0, spec, grace: None, status, mirrors: None });
    }

    /// Something of a pod changes; whether it is there.
    pub(crate) fn change(&mut self, name: &PodName, change: impl FnOnce(&mut Object)) -> bool {
        let Some(mut object) = self.objects.get(name).cloned() else { return false };
        change(&mut object);
        self.put(object);
        true
    }

    /// Somebody asks for the deletion of a pod. Source: `CheckGracefulDelete` of `pkg/registry/core/pod/strategy.go`: what has ended
    /// goes at once, and a grace period is only ever shortened.
    pub(crate) fn delete(&mut self, name: &PodName, grace: Duration) {
        let Some(object) = self.objects.get(name) else { return };
        if grace.is_zero() || object.has_ended() {
            return self.remove(name);
        }
        let grace = object.grace.map_or(grace, |known| known.min(grace));
        if object.grace != Some(grace) {
            self.change(name, |object| object.grace = Some(grace));
        }
    }

    /// The watch breaks off: all is listed anew, and what it had not told is in the list.
    pub(crate) fn relist(&mut self) {
        self.news.clear();
        self.news.push_back(News::Whole(self.objects.values().cloned().collect(), self.version));
    }

    /// Carries a request out.
    pub(crate) fn perform(&mut self, request: &Request) -> Answer {
        if self.is_away {
            return Answer::Failed { retry_after: Duration::ZERO };
        }
        let there = self.objects.get(&request.name);
        match &request.call {
            Call::PatchStatus { uid, patch } => {
                let Some(mut object) = there.cloned() else { return Answer::Gone };
                if object.uid != *uid {
                    return Answer::Conflict;
                }
                merge(&mut object.status, patch);
                self.put(object);
            }
            Call::Delete { uid } => {
                match there {
                    None => return Answer::Gone,
                    Some(other) if other.uid != *uid => return Answer::Conflict,
                    Some(_) => {}
                }
                self.remove(&request.name);
                return Answer::Done;
            }
            Call::CreateMirror(mirror) => {
                if there.is_some() {
                    return Answer::Gone;
                }
                self.uids += 1;
                self.put(Object {
                    uid: PodUid::new(format!("mirror-{}", self.uids)),
                    name: request.name.clone(),
                    version: 0,
                    spec: None,
                    grace: None,
                    status: json!({ "phase": "Pending" }),
                    mirrors: Some(mirror.hash.clone()),
                });
            }
        }
        Answer::Pod(Box::new(self.objects[&request.name].known()))
    }

    fn put(&mut self, mut object: Object) {
        self.version += 1;
        object.version = self.version;
        self.news.push_back(News::Applied(Box::new(object.clone())));
        self.objects.insert(object.name.clone(), object);
    }

    fn remove(&mut self, name: &PodName) {
        if let Some(mut object) = self.objects.remove(name) {
            self.version += 1;
            object.version = self.version;
            self.news.push_back(News::Gone(Box::new(object)));
        }
    }
}

/// Says in which order conditions are to be.
const ORDER: &str = "$setElementOrder/conditions";

/// A strategic merge patch, as far as statuses of pods go. Lists of containers are replaced, and written in the server's form.
fn merge(status: &mut Value, patch: &Value) {
    let fields = status.as_object_mut().expect("a status");
    for (field, value) in patch.as_object().expect("a patch") {
        match (field.as_str(), value) {
            (ORDER, _) => {}
            (_, Value::Null) => drop(fields.remove(field)),
            ("conditions", Value::Array(changes)) => {
                let list = fields.entry(field).or_insert_with(|| json!([])).as_array_mut().expect("a list");
                changes.iter().for_each(|change| merge_condition(list, change));
            }
            ("hostIPs" | "podIPs", Value::Array(changes)) => {
                let kept = changes.iter().filter(|one| one.get("$patch").is_none());
                fields.insert(field.clone(), kept.cloned().collect());
            }
            ("initContainerStatuses" | "containerStatuses", Value::Array(containers)) => {
                let mut containers = containers.clone();
                for one in &mut containers {
                    one.as_object_mut().expect("a container").entry("lastState").or_insert(json!({}));
                }
                fields.insert(field.clone(), Value::Array(containers));
            }
            _ => drop(fields.insert(field.clone(), value.clone())),
        }
    }
    let list = fields.get_mut("conditions").and_then(Value::as_array_mut);
    if let (Some(order), Some(list)) = (patch[ORDER].as_array(), list) {
        let place = |one: &Value| order.iter().position(|of| of["type"] == one["type"]);
        list.sort_by_key(|one| place(one).unwrap_or(order.len()));
    }
}

fn merge_condition(list: &mut Vec<Value>, change: &Value) {
    let at = list.iter().position(|one| one["type"] == change["type"]);
    if change.get("$patch").is_some_and(|patch| patch == "delete") {
        at.map(|at| list.remove(at));
        return;
    }
    let mut merged: Map<String, Value> = at.map_or_else(Map::new, |at| list[at].as_object().unwrap().clone());
    for (field, value) in change.as_object().expect("a condition") {
        merged.insert(field.clone(), value.clone());
    }
    merged.retain(|_, value| !value.is_null());
    match at {
        Some(at) => list[at] = Value::Object(merged),
        None => list.push(Value::Object(merged)),
    }
}
