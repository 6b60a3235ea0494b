//! What the API server is told about pods: their statuses, their end, and mirrors of those it did not give.
//!
//! Level-triggered, pod by pod: what the API has is compared with what is wanted, and the smallest request that brings them together is
//! sent, one at a time. A backlog is one request per pod, however long the server was away. Source:
//! `pkg/kubelet/status/status_manager.go`, `pkg/kubelet/pod/mirror_client.go`, `pkg/kubelet/kubelet_pods.go` `HandlePodCleanups`.

mod asked;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

pub use self::asked::{Answer, ApiPod, Call, Mirror, NodePod, Request};
use super::{
    ended,
    mirror::{self, Mirroring},
    patch,
    urgency::{self, Urgency},
};
use crate::{
    id::{OpId, PodName, PodUid},
    node::SourcesHaveSpoken,
    time::{Mono, doubled},
};

/// Requests that are under way at most: more would only wait in the server.
const AT_ONCE: usize = 16;
/// Pauses after a request that failed: the first one, and the longest. By chance each is as short as half of it.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest pause after one that the server refused, and will refuse again, unless it has just begun or knows the node no more for a
/// moment.
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The machine.
#[derive(Debug, Default)]
pub struct PodSync {
    /// What the API has, by name: what it had under this name before is gone.
    api: BTreeMap<PodName, ApiPod>,
    /// Highest version that lists and watches have told: of an answer that is not newer they have told what became of it.
    told: u64,
    /// Whether all that the API has was seen since the start.
    is_listed: bool,
    /// Whether every source of pods has spoken since the start.
    is_settled: bool,
    /// What the node has.
    node: BTreeMap<PodUid, NodePod>,
    /// The node's pods by name. While one is taken down, another of its name may wait.
    names: BTreeMap<PodName, BTreeSet<PodUid>>,
    states: BTreeMap<PodName, State>,
    open: BTreeMap<OpId, (PodName, Sent)>,
    /// Names to be looked at.
    due: VecDeque<PodName>,
    next_op: u64,
}

/// What is known of the requests about one name.
#[derive(Debug, Default)]
struct State {
    is_queued: bool,
    is_open: bool,
    tries: u32,
    not_before: Option<Mono>,
    /// When a change that may wait is told, unless one comes before that may not. Until then nothing is compared again.
    told_by: Option<Mono>,
    /// Since when there may be something to tell that is in no request yet, and since when there was that is in the open one.
    changed_at: Option<Mono>,
    telling_since: Option<Mono>,
    /// The status that was wanted last, and what the API made of it: what it writes in another form is not sent again.
    settled: Option<(Arc<Value>, Arc<Value>)>,
    /// The status that the API refused last: another one is tried at once.
    refused: Option<Arc<Value>>,
    gone: Option<Gone>,
}

/// An object that is gone, of which is still told how it was before.
#[derive(Debug, PartialEq)]
enum Gone {
    /// The watch has told; the answer to a request has not come.
    Unanswered(PodUid),
    /// A request has deleted it; the watch has not told.
    Unheard(PodUid),
}

/// What of a request has to be remembered.
#[derive(Debug)]
enum Sent {
    Status(Arc<Value>, Value),
    Deletion(PodUid),
    Creation,
}

impl PodSync {
    /// All pods that the API has for this node, as of this version; 0 where that cannot be told.
    pub fn listed(&mut self, pods: Vec<ApiPod>, version: u64) {
        // Versions begin anew when the API server's data were restored from an earlier copy. What was deleted last is in no list: that
        // all of a list is older tells nothing.
        let is_older = version < self.told;
        if is_older {
            self.told = version;
        }
        // What was known before the list counts no more. Only what an answer has told since is newer than it.
        let counts_no_more = |known: &&mut ApiPod| is_older || known.version <= version;
        self.api.values_mut().filter(counts_no_more).for_each(|known| known.version = 0);
        let mut new: BTreeMap<PodName, ApiPod> = BTreeMap::new();
        for pod in pods {
            new.insert(pod.name.clone(), pod);
        }
        let unheard = self.states.iter().filter_map(|(name, state)| match &state.gone {
            Some(Gone::Unheard(uid)) => Some((name, uid)),
            Some(Gone::Unanswered(_)) | None => None,
        });
        let known = self.api.iter().map(|(name, pod)| (name, &pod.uid)).chain(unheard);
        let gone = known.filter(|(name, _)| !new.contains_key(*name));
        let gone: Vec<_> = gone.map(|(name, uid)| (name.clone(), uid.clone())).collect();
        for (name, uid) in gone {
            self.gone(&name, &uid, 0);
        }
        let was_listed = std::mem::replace(&mut self.is_listed, true);
        for pod in new.into_values() {
            self.applied(pod);
        }
        if !was_listed {
            let names: Vec<PodName> = self.names.keys().cloned().collect();
            names.iter().for_each(|name| self.look_at(name));
        }
    }

    /// The same, but of pods with these UIDs, of which nobody knows more than that they are there: what was known of them stays.
    pub fn listed_beside(&mut self, mut pods: Vec<ApiPod>, version: u64, unread: &BTreeSet<PodUid>) {
        pods.extend(self.api.values().filter(|pod| unread.contains(&pod.uid)).cloned());
        self.listed(pods, version);
    }

    /// A pod was made or changed.
    pub fn applied(&mut self, pod: ApiPod) {
        self.told = self.told.max(pod.version);
        self.take(pod);
    }

    fn take(&mut self, pod: ApiPod) {
        let name = pod.name.clone();
        let known = self.api.get(&name);
        if known.is_some_and(|known| pod.version != 0 && known.version > pod.version) {
            return;
        }
        let is_known = known.is_some_and(|known| known.uid == pod.uid);
        let state = self.states.entry(name.clone()).or_default();
        match &state.gone {
            Some(Gone::Unanswered(uid) | Gone::Unheard(uid)) if *uid == pod.uid => return,
            // What failed was about another one.
            _ if !is_known => {
                (state.tries, state.not_before, state.settled, state.gone) = (0, None, None, None);
                (state.changed_at, state.telling_since) = (None, None);
            }
            _ => {}
        }
        self.api.insert(name.clone(), pod);
        self.look_at(&name);
    }

    /// Every source of pods has spoken: a mirror of no pod of the node is nobody's.
    pub fn sources_have_spoken(&mut self, _heard: SourcesHaveSpoken) {
        if !std::mem::replace(&mut self.is_settled, true) {
            let names: Vec<PodName> = self.api.keys().cloned().collect();
            names.iter().for_each(|name| self.look_at(name));
        }
    }

    /// A pod is gone, as of this version.
    pub fn gone(&mut self, name: &PodName, uid: &PodUid, version: u64) {
        self.told = self.told.max(version);
        if let Some(state) = self.states.get_mut(name) {
            state.gone = state.is_open.then(|| Gone::Unanswered(uid.clone()));
        }
        if self.api.get(name).is_some_and(|known| known.uid == *uid) {
            self.api.remove(name);
        }
        self.look_at(name);
    }

    /// The node tells what a pod is.
    pub fn published(&mut self, uid: PodUid, pod: NodePod) {
        let name = pod.name.clone();
        self.names.entry(name.clone()).or_default().insert(uid.clone());
        self.node.insert(uid, pod);
        self.tell_another(&name);
        self.look_at(&name);
    }

    /// Whether what the node shows of a pod is its end: the one that the API has may be the node's own word then, and nobody's wish.
    #[must_use]
    pub fn shows_end(&self, uid: &PodUid) -> bool {
        let status = self.node.get(uid).and_then(NodePod::own_status);
        status.is_some_and(|status| patch::is_terminal(status))
    }

    /// How many mirrors the API has.
    #[must_use]
    pub fn mirrors(&self) -> usize {
        self.api.values().filter(|pod| pod.mirrors.is_some()).count()
    }

    /// Nothing of a pod is left on the node.
    pub fn withdrawn(&mut self, uid: &PodUid) {
        let Some(pod) = self.node.remove(uid) else { return };
        if let Some(uids) = self.names.get_mut(&pod.name) {
            uids.remove(uid);
            if uids.is_empty() {
                self.names.remove(&pod.name);
            }
        }
        self.look_at(&pod.name);
    }

    /// What came of a request. `chance` is within 0 and 1. Of a status that the API has taken: how long that took since the first change
    /// that is in it.
    pub fn answered(&mut self, op: OpId, answer: Answer, now: Mono, chance: f64) -> Option<Duration> {
        let (name, sent) = self.open.remove(&op)?;
        let state = self.states.entry(name.clone()).or_default();
        state.is_open = false;
        let since = state.telling_since.take();
        let is_told = matches!((&answer, &sent), (Answer::Pod(_), Sent::Status(..)));
        if !is_told {
            state.changed_at = since.or(state.changed_at);
        }
        state.refused = match (&answer, &sent) {
            (Answer::Refused, Sent::Status(wanted, _)) => Some(Arc::clone(wanted)),
            _ => None,
        };
        let pause = match answer {
            Answer::Pod(pod) => {
                if let Sent::Status(wanted, sent) = sent {
                    let is_of_form = is_of_form(&pod.status, &wanted, &sent);
                    state.settled = is_of_form.then(|| (wanted, Arc::clone(&pod.status)));
                    // It may be gone since, or another one is there: an answer may come late.
                    if pod.version == 0 || pod.version > self.told {
                        self.take(*pod);
                    }
                    None
                } else {
                    // What was made is there when the watch tells: it may be gone by now.
                    (!self.api.contains_key(&name)).then_some(PAUSE_MAX)
                }
            }
            Answer::Done => {
                if let Sent::Deletion(uid) = sent {
                    self.deleted(&name, uid);
                }
                None
            }
            // The watch tells what is there now; whatever comes of it, this pod was meant.
            Answer::Gone => Some(PAUSE_MAX),
            // At once with what is there now; later where that is not enough.
            Answer::Conflict => Some(match state.tries.checked_sub(1) {
                None => Duration::ZERO,
                Some(before) => pause(before, chance, PAUSE_MAX),
            }),
            Answer::Refused => Some(pause(state.tries, chance, REFUSED_PAUSE_MAX)),
            Answer::Failed { retry_after } => Some(pause(state.tries, chance, PAUSE_MAX).max(retry_after)),
        };
        let state = self.states.entry(name.clone()).or_default();
        state.gone.take_if(|gone| matches!(gone, Gone::Unanswered(_)));
        state.tries = if pause.is_some() { state.tries.saturating_add(1) } else { 0 };
        state.not_before = pause.map(|pause| now + pause);
        self.tell_another(&name);
        self.look_at(&name);
        since.filter(|_| is_told).map(|since| now.since(since))
    }

    /// A request has deleted an object.
    fn deleted(&mut self, name: &PodName, uid: PodUid) {
        let state = self.states.entry(name.clone()).or_default();
        if state.gone != Some(Gone::Unanswered(uid.clone()))
            && self.api.get(name).is_some_and(|known| known.uid == uid)
        {
            self.api.remove(name);
            state.gone = Some(Gone::Unheard(uid));
        }
    }

    /// The next request.
    pub fn poll_request(&mut self, now: Mono) -> Option<Request> {
        for name in &self.due {
            self.states.entry(name.clone()).or_default().changed_at.get_or_insert(now);
        }
        if self.open.len() >= AT_ONCE {
            return None;
        }
        let have_waited = self.states.iter().filter(|(_, state)| state.told_by.is_some_and(|at| at <= now));
        let have_waited: Vec<PodName> = have_waited.map(|(name, _)| name.clone()).collect();
        have_waited.iter().for_each(|name| self.look_at(name));
        // Each name is looked at once: those that wait come back by their time.
        for _ in 0..self.due.len() {
            let name = self.due.pop_front()?;
            if self.states.get(&name).is_some_and(|state| state.not_before > Some(now)) {
                self.due.push_back(name);
                continue;
            }
            let state = self.states.entry(name.clone()).or_default();
            state.is_queued = false;
            if state.is_open {
                continue;
            }
            let next = self.next_call(&name);
            if self.may_wait(&name, next.as_ref(), now) {
                continue;
            }
            if let Some(Next { call, sent, .. }) = next {
                self.next_op += 1;
                let op = OpId(self.next_op);
                self.open.insert(op, (name.clone(), sent));
                if let Some(state) = self.states.get_mut(&name) {
                    state.is_open = true;
                    state.telling_since = state.changed_at.take();
                }
                return Some(Request { op, name, call });
            }
            if let Some(state) = self.states.get_mut(&name) {
                state.changed_at = None;
            }
            self.forget(&name);
        }
        None
    }

    /// Another status than the one that was refused does not wait for that one's time.
    fn tell_another(&mut self, name: &PodName) {
        let uids = self.names.get(name).into_iter().flatten();
        let mut shown = uids.filter_map(|uid| self.node.get(uid)?.own_status()).peekable();
        let Some(state) = self.states.get_mut(name) else { return };
        let Some(refused) = state.refused.as_ref().filter(|_| shown.peek().is_some()) else { return };
        if shown.all(|status| status != refused) {
            state.not_before = None;
        }
    }

    /// Whether what is to be told may wait for more.
    fn may_wait(&mut self, name: &PodName, next: Option<&Next>, now: Mono) -> bool {
        let Some(state) = self.states.get_mut(name) else { return false };
        let Some(Next { urgency: Urgency::Within(time), .. }) = next else {
            state.told_by = None;
            return false;
        };
        let told_by = *state.told_by.get_or_insert(now + *time);
        if now >= told_by {
            state.told_by = None;
        }
        now < told_by
    }

    /// When a request that failed is to be tried again, or a change that may wait has waited long enough.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        if self.open.len() >= AT_ONCE {
            return None;
        }
        let again = self.due.iter().filter_map(|name| self.states.get(name)?.not_before);
        again.chain(self.states.values().filter_map(|state| state.told_by)).min()
    }

    fn look_at(&mut self, name: &PodName) {
        let state = self.states.entry(name.clone()).or_default();
        if !state.is_queued {
            state.is_queued = true;
            self.due.push_back(name.clone());
        }
    }

    /// A name of which neither side knows anything.
    fn forget(&mut self, name: &PodName) {
        let is_told = self.states.get(name).is_none_or(|state| state.gone.is_none());
        if is_told && !self.api.contains_key(name) && !self.names.contains_key(name) {
            self.states.remove(name);
        }
    }

    fn next_call(&self, name: &PodName) -> Option<Next> {
        let api = self.api.get(name);
        let state = self.states.get(name);
        if let Some(pod) = api.filter(|pod| pod.mirrors.is_none()) {
            return self.call_for(pod, self.node.get(&pod.uid)?, state);
        }
        let uids = self.names.get(name);
        let shown = uids.and_then(|uids| uids.iter().find_map(|uid| self.node.get(uid)?.mirror.as_ref()));
        let is_here = uids.is_some() || !self.is_settled;
        // Before all was listed it may be there.
        let shown = shown.filter(|_| self.is_listed);
        match mirror::next(api, shown, is_here) {
            Mirroring::Nothing => None,
            Mirroring::Create(mirror) => Some(Next::now(Call::CreateMirror(mirror), Sent::Creation)),
            Mirroring::Delete(uid) => Some(Next::deletion(uid)),
            Mirroring::Show => {
                let api = api?;
                let node =
                    uids?.iter().filter_map(|uid| self.node.get(uid)).find(|pod| pod.mirror.is_some())?;
                // A pod that begins anew under its UID cannot be shown by one that has ended.
                let is_over = |status: &Value| patch::is_terminal(status);
                if is_over(&api.status) && node.own_status().is_some_and(|status| !is_over(status)) {
                    return Some(Next::deletion(api.uid.clone()));
                }
                status_call(api, node, state)
            }
        }
    }

    /// A pod of the API server: its status, and at last its end.
    fn call_for(&self, api: &ApiPod, node: &NodePod, state: Option<&State>) -> Option<Next> {
        if let Some(next) = status_call(api, node, state) {
            return Some(next);
        }
        let has_ended = patch::is_terminal(&api.status);
        let is_to_go = api.is_deleted && !node.remains.is_more_than_directories() && has_ended;
        is_to_go.then(|| Next::deletion(api.uid.clone()))
    }
}

/// What is to be asked next about a pod.
struct Next {
    call: Call,
    sent: Sent,
    urgency: Urgency,
}

impl Next {
    fn now(call: Call, sent: Sent) -> Self {
        Self { call, sent, urgency: Urgency::Now }
    }

    fn deletion(uid: PodUid) -> Self {
        Self::now(Call::Delete { uid: uid.clone() }, Sent::Deletion(uid))
    }
}

/// Many nodes that fail together do not go on asking together.
fn pause(tries: u32, chance: f64, longest: Duration) -> Duration {
    let most = doubled(PAUSE_MIN, tries, longest);
    most.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0))
}

fn status_call(api: &ApiPod, node: &NodePod, state: Option<&State>) -> Option<Next> {
    let wanted = &wanted(api, node)?;
    let settled = state.and_then(|state| state.settled.as_ref());
    if settled.is_some_and(|(sent, made)| sent == wanted && *made == api.status) {
        return None;
    }
    let patch = patch::status(&api.status, wanted)?;
    let urgency = urgency::of(&api.status, wanted, &patch, api.is_deleted);
    if urgency == Urgency::WithTheNext {
        return None;
    }
    let sent = Sent::Status(Arc::clone(wanted), patch.clone());
    Some(Next { call: Call::PatchStatus { uid: api.uid.clone(), patch }, sent, urgency })
}

/// The status that the API is to have, where the node has something to say.
fn wanted(api: &ApiPod, node: &NodePod) -> Option<Arc<Value>> {
    let of_others = || {
        let has_ended = patch::is_terminal(&api.status);
        has_ended.then(|| Arc::new(ended::by_others(&api.status, &node.status)))
    };
    node.own_status().cloned().or_else(of_others)
}

/// Whether what the API made of a patch says otherwise than what is wanted only where it was sent, and so in the API's form. Anything
/// else was written by another meanwhile.
fn is_of_form(made: &Value, wanted: &Value, sent: &Value) -> bool {
    let left = patch::status(made, wanted);
    left.as_ref()
        .and_then(Value::as_object)
        .is_none_or(|left| left.keys().all(|field| sent.get(field).is_some()))
}

#[cfg(test)]
mod tests;
