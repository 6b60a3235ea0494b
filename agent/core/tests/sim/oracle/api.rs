//! What is said to the API server, and what comes of it there: from "Termination of Pods" and "Static Pods" of the concepts of
//! Kubernetes, and from what a status is for.

use std::collections::{BTreeMap, BTreeSet};

use berth_core::{
    cluster::sync::{Answer, Call, Request},
    id::{OpId, PodName, PodUid, SandboxId},
    record::PodRecord,
    spec::{ContainerKind, Pod, Source},
    status::{ConditionKind, Note, Phase, PodStatus},
    time::Now,
};
use serde_json::Value;

use super::{Account, Oracle, Run, Trust, shown::left_its_end};
use crate::server::Object;

/// What the API server was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Requests that are not answered yet.
    open: BTreeMap<OpId, Request>,
    /// The last patch of each object, where nothing happened since that makes the same one right.
    last: BTreeMap<PodUid, Value>,
    /// Pods of manifests that the agent shows.
    shown: BTreeMap<PodUid, PodName>,
    /// What was last shown of each pod.
    statuses: BTreeMap<PodUid, Value>,
    /// Names of which something was shown since the last patch, or a request came to nothing.
    news: BTreeSet<PodName>,
    /// What happened in the API to objects of a name: the agent hears of each when it does.
    happened: BTreeMap<PodName, u64>,
    /// Pods of which the agent knew what nobody else did, each with the number of that forgetting: the next patch may take back
    /// what was told of them.
    forgotten: BTreeMap<PodUid, u64>,
    /// Patches that may, and which forgetting they follow.
    takes_back: BTreeMap<OpId, u64>,
    forgettings: u64,
    /// Objects of which the agent may not know what the API has.
    uncertain: BTreeSet<PodUid>,
    /// Pods that were told, since the agent began, that their name keeps them out.
    kept_out: BTreeSet<PodUid>,
    /// Objects whose deletion was asked for, and did not fail.
    deleted: BTreeSet<PodUid>,
    /// Requests since they were last taken.
    requests: u64,
}

/// A request that was carried out, or came to nothing.
#[derive(Debug)]
pub(crate) struct Carried<'a> {
    pub(crate) request: &'a Request,
    pub(crate) before: Option<Object>,
    pub(crate) after: Option<Object>,
    /// What the node has of a pod that is deleted.
    pub(crate) left: Vec<String>,
}

impl Told {
    /// What comes back under a UID begins anew, and so does its mirror.
    pub(super) fn forget(&mut self, uid: PodUid) {
        self.forgettings += 1;
        self.forgotten.insert(uid, self.forgettings);
    }

    /// Whether something happened in the API that no patch followed yet; one follows now.
    fn take_happened(&mut self, name: &PodName) -> bool {
        let left = self.happened.get_mut(name).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }
}

impl Oracle {
    /// Something of a pod is new: one patch may follow.
    pub(crate) fn published(&mut self, name: &PodName) {
        self.told.news.insert(name.clone());
    }

    /// The agent shows a status of a pod, which has a mirror then if the API did not give it.
    pub(crate) fn is_shown(&mut self, pod: &Pod, status: Value) {
        if self.told.statuses.get(&pod.uid) != Some(&status) {
            self.told.statuses.insert(pod.uid.clone(), status);
            self.published(&pod.name);
        }
        if pod.source != Source::Api {
            self.told.shown.insert(pod.uid.clone(), pod.name.clone());
        }
    }

    /// The agent shows nothing of a pod any more.
    pub(crate) fn withdrawn(&mut self, uid: &PodUid) {
        self.told.statuses.remove(uid);
        self.told.shown.remove(uid);
    }

    /// Something happened to an object that makes another patch right, the same one even.
    pub(crate) fn touched(&mut self, object: &Object) {
        self.told.last.remove(&object.uid);
        self.told.uncertain.insert(object.uid.clone());
        *self.told.happened.entry(object.name.clone()).or_default() += 1;
    }

    /// What was asked for before the agent was killed is carried out, or not, and nobody hears of it.
    pub(super) fn server_restarted(&mut self) {
        for request in std::mem::take(&mut self.told.open).into_values() {
            self.published(&request.name);
            self.may_be_asked_again(&request);
        }
        let unwritten = self.pods.values().filter(|account| account.is_unwritten || account.is_being_written);
        let unwritten: Vec<PodUid> = unwritten.map(|account| account.spec.uid.clone()).collect();
        unwritten.into_iter().for_each(|uid| self.told.forget(uid));
        self.told.statuses.clear();
        if self.is_in_a_cluster {
            self.awaits(Source::Api);
        }
        // What is not on disk has to be heard again.
        let pods = self.pods.values_mut().filter(|_| self.is_in_a_cluster);
        for account in pods {
            if account.stored.as_ref().is_none_or(|record| record.termination.is_none()) {
                (account.unwanted, account.ends_by) = (None, None);
            }
        }
        self.told.kept_out.clear();
        self.told.shown.clear();
        self.told.takes_back.clear();
    }

    /// How many requests there were since this was last asked.
    pub(crate) fn take_requests(&mut self) -> u64 {
        std::mem::take(&mut self.told.requests)
    }

    /// The agent asks the server for something; the object as the server has it.
    pub(crate) fn request_asked(&mut self, request: &Request, object: Option<&Object>) {
        self.told.requests += 1;
        self.check_mirroring(request, object);
        let name = &request.name;
        let is_doubled = self.told.open.values().any(|open| open.name == *name);
        let mut wrong = is_doubled.then(|| format!("{name}: another one is under way: {request:?}"));
        if let Call::PatchStatus { uid, patch } = &request.call {
            let before = self.told.last.insert(uid.clone(), patch.clone());
            if before.as_ref() == Some(patch) {
                wrong.get_or_insert_with(|| format!("{name}: patched twice with {patch}"));
            }
            let is_news = self.told.news.remove(name) || self.told.take_happened(name);
            let is_certain = !self.told.uncertain.contains(uid);
            let is_void = object.is_some_and(|object| object.uid == *uid && !object.is_changed_by(patch));
            let why = match (is_news, is_certain && is_void) {
                (false, _) => Some("nothing is new"),
                (true, true) => Some("it changes nothing"),
                (true, false) => None,
            };
            let broken = why.map(|why| format!("{name}: {why}: {patch}"));
            self.judge("a patch follows a change and makes one", broken);
            if let Some(which) = object.and_then(|object| self.told.forgotten.get(&object.shows())) {
                self.told.takes_back.insert(request.op, *which);
            }
        }
        if let Call::Delete { uid } = &request.call
            && !self.told.deleted.insert(uid.clone())
        {
            wrong.get_or_insert_with(|| format!("{name}: {uid} is deleted again"));
        }
        self.told.open.insert(request.op, request.clone());
        self.judge("requests about a pod wait for each other, and none is sent again", wrong);
    }

    pub(crate) fn request_answered(&mut self, op: OpId, answer: &Answer) {
        let Some(request) = self.told.open.remove(&op) else { return };
        match answer {
            Answer::Pod(object) => drop(self.told.uncertain.remove(&object.uid)),
            Answer::Done => {}
            Answer::Gone | Answer::Conflict | Answer::Refused | Answer::Failed { .. } => {
                self.published(&request.name);
                self.may_be_asked_again(&request);
            }
        }
    }

    fn may_be_asked_again(&mut self, request: &Request) {
        match &request.call {
            Call::PatchStatus { uid, .. } => {
                self.told.last.remove(uid);
                self.told.uncertain.insert(uid.clone());
            }
            Call::Delete { uid } => drop(self.told.deleted.remove(uid)),
            Call::CreateMirror(_) => {}
        }
    }

    pub(crate) fn carried_out(&mut self, carried: &Carried<'_>) {
        let Carried { request, before, after, left } = carried;
        match (&request.call, before, after) {
            (Call::PatchStatus { .. }, Some(before), Some(after)) if before.version != after.version => {
                let takes_back = self.told.takes_back.remove(&request.op);
                if takes_back == self.told.forgotten.get(&after.shows()).copied() {
                    self.told.forgotten.remove(&after.shows());
                }
                self.check_patched(before, after, takes_back.is_some());
            }
            (Call::Delete { uid }, Some(before), None) if before.mirrors.is_none() => {
                self.check_deleted(uid, before, left);
            }
            (Call::CreateMirror(_), None, Some(after)) => self.published(&after.name),
            _ => {}
        }
    }

    fn check_patched(&mut self, before: &Object, after: &Object, takes_back: bool) {
        let name = &after.name;
        let is_taken_back = before.has_ended() && before.status["phase"] != after.status["phase"];
        let text = || format!("{name}: {} became {}", before.status["phase"], after.status["phase"]);
        self.judge("what has ended stays so in the API", is_taken_back.then(text));
        let broken = went_back(&before.status, &after.status).filter(|_| !takes_back);
        let left = before.spec.as_ref().and_then(|spec| left_its_end(spec, &before.status, &after.status));
        let broken = began_anew(&before.status, &after.status).or(broken).or(left);
        let broken = broken.map(|what| format!("{name}: {what}"));
        self.judge("what the API has of a pod never goes back", broken);
    }

    /// "The kubelet triggers forcible removal of the Pod object, by setting grace period to 0", once its containers are gone.
    fn check_deleted(&mut self, uid: &PodUid, before: &Object, left: &[String]) {
        let kept = ["dirs", "end"];
        let left: Vec<_> = left.iter().filter(|what| !kept.contains(&what.as_str())).collect();
        let why = if before.uid != *uid {
            Some("another pod is meant".to_owned())
        } else if before.grace.is_none() {
            Some("nobody asked for it".to_owned())
        } else if !before.has_ended() {
            Some("it has not ended".to_owned())
        } else {
            (!left.is_empty()).then(|| format!("{left:?} is left"))
        };
        let broken = why.map(|why| format!("{}: {why}", before.name));
        self.judge("a pod is deleted when none of its processes is left", broken);
    }

    /// What is asked about mirrors is judged by what the node shows of pods of manifests when it is asked.
    fn check_mirroring(&mut self, request: &Request, object: Option<&Object>) {
        let name = &request.name;
        let broken = match (&request.call, object) {
            (Call::CreateMirror(_), _) => {
                let is_right = self.told.shown.values().any(|of| of == name);
                (!is_right).then(|| format!("{name} is made, which nobody has"))
            }
            (Call::Delete { uid }, Some(object)) if object.uid == *uid => {
                let Some(hash) = &object.mirrors else { return };
                let is_shown = self.told.shown.contains_key(&PodUid::new(hash.clone()));
                let is_wrong = is_shown && object.grace.is_none() && !object.has_ended();
                is_wrong.then(|| format!("{name} is deleted, whose pod is here"))
            }
            (Call::Delete { .. } | Call::PatchStatus { .. }, _) => return,
        };
        self.judge("mirrors are of pods that the API did not give", broken);
    }

    /// A pod begins.
    pub(super) fn begun(&mut self, record: &PodRecord) {
        let Some(spec) = self.wanted.get(&record.uid) else { return };
        let others = self.wanted.values().filter(|pod| pod.name == spec.name && pod.uid != spec.uid);
        let broken = others.map(|other| {
            let is_heard = !self.unheard.contains(&other.source);
            // What was to go by the word of a source that was not heard since goes.
            let here = self.pods.get(&other.uid);
            let is_here = here.is_some_and(|account| is_heard || account.unwanted.is_none());
            let is_first = is_heard && other.source < spec.source && other.deletion.is_none();
            let ends_at_once = spec.deletion.is_some();
            let is_wrong = !ends_at_once && (is_here || is_first);
            is_wrong.then(|| format!("{}: {} is begun beside {}", spec.name, spec.uid, other.uid))
        });
        for broken in broken.collect::<Vec<_>>() {
            self.judge("of one name one pod is here, the first that came", broken);
        }
    }

    /// Wanted pods that are here though another one began since that has their name: they were to go before that, which an agent that
    /// was killed did not write down. One that never came to begin anything does not count beside one that did.
    pub(super) fn passed_over(&self) -> BTreeSet<PodUid> {
        let is_here = |(uid, account): &(&PodUid, &Account)| {
            account.unwanted.is_none()
                && self.wanted.get(*uid).is_some_and(|wanted| wanted.deletion.is_none())
        };
        let here: Vec<(&PodUid, &Account)> = self.pods.iter().filter(is_here).collect();
        let place = |account: &Account| {
            let record = account.believed();
            (record.is_some_and(|record| !record.containers.is_empty()), account.began.mono)
        };
        let is_later =
            |one: &Account, other: &Account| other.spec.name == one.spec.name && place(other) > place(one);
        let passed_over = here.iter().filter(|(_, one)| here.iter().any(|(_, other)| is_later(one, other)));
        passed_over.map(|(uid, _)| (*uid).clone()).collect()
    }

    /// Whether a pod had ended when the agent heard of it, and never had a container here: nothing is told of it, and what others say
    /// stays.
    pub(crate) fn is_told_by_others(&self, pod: &Pod) -> bool {
        let record = self.pods.get(&pod.uid).and_then(|account| account.stored.as_ref());
        pod.ended.is_some() && record.is_none_or(|record| record.containers.is_empty())
    }

    /// Whether a wanted pod is not on the node since another one has its name.
    pub(crate) fn is_kept_out(&self, pod: &Pod) -> bool {
        let has_its_name = |(uid, account): (&PodUid, &Account)| {
            *uid != pod.uid && account.spec.name == pod.name && self.wanted.contains_key(uid)
        };
        !self.pods.contains_key(&pod.uid) && self.pods.iter().any(has_its_name)
    }

    /// Something is told to have happened to a pod.
    pub(crate) fn noted(&mut self, uid: &PodUid, note: &Note) {
        if note.event.reason == "FailedValidation" {
            self.told.kept_out.insert(uid.clone());
        }
        let Some(container) = &note.event.container else { return };
        let Some(account) = self.pods.get_mut(uid) else { return };
        let runs = account.runs_of(container);
        let most = match &*note.event.reason {
            "Started" => runs.iter().filter(|run| run.process.is_some() || run.trust != Trust::No).count(),
            "Created" => runs.len(),
            _ => return,
        };
        // What went by an old record is made again under its id.
        let most = most + account.begun_again.get(container).copied().unwrap_or_default();
        let key = (container.to_string(), note.event.reason.to_string());
        let told = account.events.entry(key).or_default();
        *told += 1;
        let text = || format!("{uid}/{container}: {} {told} times for {most}", note.event.reason);
        let broken = (*told > most).then(text);
        self.judge("an event is told once for what happened", broken);
    }

    /// At rest the API has what the node shows of a pod. `object` is the pod, or its mirror.
    pub(crate) fn check_told(&mut self, object: &Object, shown: &Value) {
        let broken = differs(&object.status, shown).map(|field| {
            format!(
                "{}: {field}: {} is there, {} is shown",
                object.name, object.status[&field], shown[&field]
            )
        });
        self.judge("at rest the API has what the node shows", broken);
    }

    /// At rest nothing is to be deleted, and there is a mirror for each pod of a manifest that is here, unless its name is taken.
    pub(crate) fn check_objects(&mut self, objects: &BTreeMap<PodName, Object>) {
        for object in objects.values().filter(|object| object.mirrors.is_none()) {
            let broken = object.grace.map(|_| format!("{} is still there", object.name));
            self.judge("at rest what was to be deleted is gone", broken);
        }
        let of_manifests = self.pods.values().map(|account| &account.spec);
        let of_manifests = of_manifests.filter(|pod| pod.source != Source::Api);
        let is_taken = |pod: &Pod| objects.get(&pod.name).is_some_and(|object| object.mirrors.is_none());
        let right: BTreeMap<PodName, String> = of_manifests
            .filter(|pod| !is_taken(pod))
            .map(|pod| (pod.name.clone(), pod.uid.as_str().to_owned()))
            .collect();
        let mirrors = objects.values().filter(|object| object.grace.is_none());
        let there: BTreeMap<PodName, String> =
            mirrors.filter_map(|object| Some((object.name.clone(), object.mirrors.clone()?))).collect();
        let broken = (there != right).then(|| format!("{there:?} are there, {right:?} are right"));
        self.judge("at rest each pod of a manifest has its mirror, and nothing else has", broken);
        let kept_out: Vec<_> = self.wanted.values().filter(|pod| self.is_kept_out(pod)).cloned().collect();
        for pod in kept_out {
            let broken = (!self.told.kept_out.contains(&pod.uid)).then(|| format!("{} is not", pod.uid));
            self.judge("who is kept out by a name is told", broken);
        }
    }
}

impl Account {
    /// Whether it ended in a way of which its containers tell nothing: it was not admitted, or had ended elsewhere.
    pub(super) fn is_ended_otherwise(&self) -> bool {
        self.is_unfit() || self.spec.ended.is_some()
    }

    /// Whether its source says that it is to be deleted, or has ended, which the node may not know.
    pub(super) fn is_over_by(&self, spec: &Pod) -> bool {
        let has_ended = self.stored.as_ref().is_some_and(|record| record.terminal.is_some());
        spec.deletion.is_some() || (spec.ended.is_some() && !has_ended)
    }

    fn is_unfit(&self) -> bool {
        !self.spec.scheduling.selector.is_empty()
    }

    /// The node has no labels: a pod that asks for one does not fit.
    pub(super) fn check_fit(&self, status: &PodStatus) -> Option<String> {
        let is_rejected = status.phase == Phase::Failed && status.reason == "NodeAffinity";
        let was_ended = self.unwanted.is_some() || self.spec.ended.is_some();
        let is_wrong = is_rejected != self.is_unfit() && !was_ended;
        is_wrong.then(|| format!("{}: {:?} {}", self.spec.uid, status.phase, status.reason))
    }

    /// A pod that was ready is so until it is to end, or something of it does not run as it should.
    pub(super) fn check_ready(
        &mut self,
        status: &PodStatus,
        is_silent: impl Fn(&SandboxId) -> bool,
        now: Now,
    ) -> Option<String> {
        let is_ready = |status: &PodStatus| {
            status.conditions.iter().any(|one| one.kind == ConditionKind::Ready && one.holds)
        };
        let is_ready = is_ready(status);
        let was_ready = std::mem::replace(&mut self.was_ready, is_ready);
        if is_ready || !was_ready || self.unwanted.is_some() || self.over(now).is_some() {
            return None;
        }
        let is_whole = |run: &Run| {
            run.is_running()
                && run.trust == Trust::No
                && !is_silent(&run.sandbox)
                && !run.is_unanswered()
                && run.changed.is_none()
                && run.given_up.is_none()
                && run.term.is_none()
                && run.health.failed.is_none()
                && run.health.has_started(&run.container)
                && (run.container.probes.readiness.is_none() || run.health.ready)
        };
        let mut running = self.spec.fixed_containers().filter(|one| one.kind != ContainerKind::Init);
        let is_whole = running.all(|one| self.last_run(&one.name).is_some_and(is_whole));
        (is_whole && !self.is_unwritten)
            .then(|| format!("{}: {:?} {:#?}", self.spec.uid, status.conditions, self.runs))
    }
}

/// When a pod began is told once, whoever told it.
fn began_anew(before: &Value, after: &Value) -> Option<String> {
    let [first, then] = [before, after].map(|status| said(&status["startTime"]));
    (!first.is_null() && first != then).then(|| format!("it began {first}, and then {then}"))
}

/// What less is told of than before.
fn went_back(before: &Value, after: &Value) -> Option<String> {
    ["initContainerStatuses", "containerStatuses"]
        .iter()
        .find_map(|field| container_went_back(&before[field], &after[field]))
}

/// A container of which less is told than before.
fn container_went_back(before: &Value, after: &Value) -> Option<String> {
    let list = |containers: &Value| containers.as_array().cloned().unwrap_or_default();
    let now = list(after);
    list(before).iter().find_map(|before| {
        let Some(after) = now.iter().find(|one| one["name"] == before["name"]) else {
            return Some(format!("{} is told of no more", before["name"]));
        };
        let count = |one: &Value| one["restartCount"].as_u64().unwrap_or(0);
        if count(after) < count(before) {
            return Some(format!("{} restarts became {}", count(before), count(after)));
        }
        let has_ended = before["state"]["terminated"].is_object();
        let runs_again = has_ended
            && after["state"]["running"].is_object()
            && after["containerID"] == before["containerID"];
        runs_again.then(|| format!("{} runs again", before["containerID"]))
    })
}

/// The field in which what the API has is not what is shown. Of what is empty neither says anything.
fn differs(there: &Value, shown: &Value) -> Option<String> {
    let fields = shown.as_object()?.keys().filter(|field| *field != "conditions");
    // How it ended is never written again, whoever wrote it.
    let has_ended = |status: &Value| matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
    let fields = fields.filter(|field| match field.as_str() {
        "reason" | "message" => !has_ended(there),
        "phase" => !(has_ended(there) && has_ended(shown)),
        _ => true,
    });
    // An agent that knew nothing of it may show another beginning, which is not written either.
    let began = !said(&there["startTime"]).is_null();
    let fields = fields.filter(|field| !(began && *field == "startTime"));
    let field = fields.into_iter().find(|field| said(&there[*field]) != said(&shown[*field]));
    if let Some(field) = field {
        return Some(field.clone());
    }
    let conditions = |status: &Value| -> BTreeMap<String, Value> {
        let list = status["conditions"].as_array().cloned().unwrap_or_default();
        let ours = list.into_iter().filter(|one| !one["type"].as_str().unwrap_or_default().contains('/'));
        let without_time = |mut one: Value| {
            one.as_object_mut().expect("a condition").remove("lastTransitionTime");
            said(&one)
        };
        ours.map(|one| (one["type"].to_string(), without_time(one))).collect()
    };
    (conditions(there) != conditions(shown)).then(|| "conditions".to_owned())
}

/// A value without what says nothing.
fn said(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let said = fields.iter().map(|(field, value)| (field.clone(), said(value)));
            let said: serde_json::Map<String, Value> = said.filter(|(_, value)| !value.is_null()).collect();
            if said.is_empty() { Value::Null } else { Value::Object(said) }
        }
        Value::Array(elements) if elements.is_empty() => Value::Null,
        Value::Array(elements) => Value::Array(elements.iter().map(said).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
