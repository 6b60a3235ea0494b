//! The Node object: made where it is missing, and kept as the node is.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    cluster::{
        csi_node::CsiNode,
        follow,
        node::{
            self, Facts, Health, Image, Machine, NodeSettings, Reason, Report, Written, backoff, jittered,
        },
    },
    event::Event,
    node::NodeInfo,
    time::Mono,
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{Addresses, Notes, handlers, seen::info};
use crate::{
    clock,
    cluster::{ApiError, Clients, Seen, Watched, client::within},
    config::CurrentRuntime,
    metrics::InCluster,
    network::{ANSWERS_WITHIN, Readiness},
    runtime::RuntimeFeatures,
};

/// How long nothing is told of the node until it is known whether pods can be wired, and whether containerd answers: one that is new is
/// ready with its CSINode where it can be. What is told of it before they have answered is decided in the core.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// How soon a node that was deleted is made again, at the earliest: whoever removes a node may be about to stop its agent.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How soon a new node whose addresses the kernel has not told is looked at again: it is not made without them.
const UNTOLD_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The task and what it owns.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) settings: NodeSettings,
    pub(super) machine: Machine,
    pub(super) runtime: watch::Receiver<CurrentRuntime>,
    pub(super) features: RuntimeFeatures,
    pub(super) addresses: Addresses,
    pub(super) clients: Clients,
    pub(super) network: watch::Receiver<Readiness>,
    pub(super) health: watch::Receiver<Health>,
    pub(super) images: watch::Receiver<Option<Vec<Image>>>,
    pub(super) notes: Notes,
    pub(super) csi_node: watch::Receiver<CsiNode>,
    /// UID of the object, for the lease and the CSINode.
    pub(super) uid: watch::Sender<Option<String>>,
    /// The same of the one that this agent has made last.
    pub(super) made: watch::Sender<Option<String>>,
    /// Addresses of the object, for who has to be reached by them.
    pub(super) observed: watch::Sender<Vec<(String, String)>>,
    /// Ranges of addresses that the object has for pods, once it has some.
    pub(super) pod_cidrs: watch::Sender<Vec<String>>,
    /// Who is told what the object says to pods.
    pub(super) events: mpsc::Sender<Event>,
    /// Whether the API server has told of the object, or that there is none, and it was passed on.
    pub(super) is_told: watch::Sender<bool>,
    pub(super) measured: InCluster,
}

/// The object, as far as is known.
#[derive(Debug)]
enum Known {
    /// The API server has not told yet.
    Nothing,
    /// There is none.
    Absent,
    /// This one.
    Object(Value),
}

/// What goes on from one look to the next.
#[derive(Debug)]
struct State {
    known: Known,
    /// What of it counts for pods, and whether that is still to be told.
    info: NodeInfo,
    is_info_untold: bool,
    report: Report,
    /// UID of the object whose labels, devices and huge pages were looked at: that is done once in its life.
    taken_over: Option<String>,
    /// Since when containerd and the network are asked.
    asked_since: Mono,
    /// Until when nothing is told before they have answered.
    silent_until: Option<Instant>,
    is_closed: Option<bool>,
    failures: u32,
    /// What could not be said last, told once.
    faults: Vec<String>,
    /// What keeps containerd's configuration from being used, as an event told it last.
    runtime_fault: Option<String>,
    next: Instant,
}

impl Keeper {
    /// Keeps the object until the agent stops.
    pub(super) async fn run(mut self) {
        let resource = ApiResource::erase::<Node>(&());
        let api = move |client| Api::all_with(client, &resource);
        let fields = format!("metadata.name={}", self.settings.name);
        let mut watched: Watched<DynamicObject> = Watched::new(self.clients.clone(), api, fields);
        let mut state = State {
            known: Known::Nothing,
            info: NodeInfo::default(),
            is_info_untold: false,
            report: Report::default(),
            taken_over: None,
            asked_since: clock::mono(),
            silent_until: Some(Instant::now() + FIRST_WITHIN),
            is_closed: None,
            failures: 0,
            faults: Vec::new(),
            runtime_fault: None,
            next: Instant::now(),
        };
        loop {
            // All of them are cancel safe: the next one is seen, or is told by the value that there is.
            tokio::select! {
                seen = watched.next() => {
                    let is_due = self.take(&mut state, seen);
                    self.tell(&mut state).await;
                    if !is_due {
                        continue;
                    }
                }
                () = sleep_until(state.next) => {}
                Ok(()) = self.network.changed() => {}
                Ok(()) = self.health.changed() => {}
                Ok(()) = self.runtime.changed() => {}
                Ok(()) = self.csi_node.changed() => {}
            }
            if let Some(until) = self.silent_until(&mut state) {
                state.next = until;
                continue;
            }
            self.look(&mut state).await;
            self.tell(&mut state).await;
        }
    }

    /// Tells the node loop what of the object counts for pods. That there is no object says nothing: what was known last counts on.
    async fn tell(&self, state: &mut State) {
        if std::mem::take(&mut state.is_info_untold) {
            // Fails only when the loop has ended.
            drop(self.events.send(Event::NodeInfo(state.info.clone())).await);
        }
        if !matches!(state.known, Known::Nothing) {
            self.is_told.send_if_modified(|is_told| !std::mem::replace(is_told, true));
        }
    }

    /// Until when nothing is told, since containerd or the network have not answered. Pods and the lease do not wait for that.
    fn silent_until(&self, state: &mut State) -> Option<Instant> {
        let until = state.silent_until?;
        let has_heard = self.network.borrow().is_some() && self.health.borrow().version.is_some();
        if !has_heard && Instant::now() < until {
            return Some(until);
        }
        if !has_heard {
            tracing::warn!("the node is reported though containerd or the network have not answered");
        }
        state.silent_until = None;
        None
    }

    /// Takes what was seen of the object; whether it is to be looked at now.
    fn take(&self, state: &mut State, seen: Seen<DynamicObject>) -> bool {
        let Some(seen) = of_node(&self.settings.name, seen) else { return false };
        match seen {
            Seen::Whole { objects, .. } => {
                let was_known = matches!(state.known, Known::Object(_));
                match objects.first() {
                    // Whatever its version: the server's data may have been restored from an earlier copy.
                    Some(object) => {
                        state.known = Known::Nothing;
                        self.know(state, object);
                    }
                    None => self.miss(state),
                }
                !was_known || objects.is_empty()
            }
            Seen::Applied(object) => {
                let was_absent = matches!(state.known, Known::Absent);
                self.know(state, &object);
                was_absent
            }
            Seen::Gone(_) => {
                tracing::warn!("the node's object was deleted; it is made again");
                self.miss(state);
                state.next = state.next.min(Instant::now() + AGAIN_AFTER);
                false
            }
            Seen::Unread(_) => {
                tracing::error!("the node's object is too large to be read: take annotations away from it");
                false
            }
            Seen::Failed(error) => {
                tracing::warn!(%error, "watch the node's object");
                false
            }
        }
    }

    fn know(&self, state: &mut State, object: &DynamicObject) {
        if let Known::Object(known) = &state.known
            && is_older(object.resource_version().as_deref(), known)
        {
            return;
        }
        match value(object) {
            Ok(new) => {
                let uid = uid_of(&new).map(str::to_owned);
                self.uid.send_if_modified(|known| {
                    let is_new = *known != uid;
                    *known = uid;
                    is_new
                });
                self.pod_cidrs.send_if_modified(|known| {
                    let given = pod_cidrs(&new);
                    let is_new = !given.is_empty() && *known != given;
                    if is_new {
                        *known = given;
                    }
                    is_new
                });
                let (is_closed, note) = node::schedulable_note(&self.settings, state.is_closed, &new);
                state.is_closed = Some(is_closed);
                note.into_iter().for_each(|note| self.notes.tell(note));
                let seen = info(&self.settings.name, &new);
                state.is_info_untold |= seen != state.info;
                state.info = seen;
                state.known = Known::Object(new);
            }
            Err(error) => tracing::warn!(%error, "read the node's object"),
        }
    }

    fn miss(&self, state: &mut State) {
        state.known = Known::Absent;
        self.uid.send_replace(None);
    }

    /// Compares the object with what it is to be, and sends what differs.
    async fn look(&mut self, state: &mut State) {
        let now = clock::now();
        let facts = self.facts(state.asked_since).await;
        self.tell_runtime_fault(state);
        let sent = match &state.known {
            Known::Nothing => Ok(None),
            Known::Absent if !self.settings.registers => Ok(None),
            Known::Absent => {
                let made = node::made(&self.settings, &facts, now);
                if self.addresses.are_untold() {
                    self.tell_faults(state, &made);
                    state.next = Instant::now() + UNTOLD_AGAIN_AFTER;
                    return;
                }
                self.send_new(state, made).await.map(Some)
            }
            Known::Object(object) => {
                // Of an object that others make only what is the node's own is kept (`syncNodeStatus`).
                let was_taken_over =
                    uid_of(object).is_some_and(|uid| state.taken_over.as_deref() == Some(uid));
                let is_kept = was_taken_over || !self.settings.registers;
                let write = if is_kept { node::updated } else { node::taken_over };
                let wanted = write(&self.settings, &facts, object, now);
                let object = object.clone();
                self.send_changes(state, &object, wanted).await
            }
        };
        let every = jittered(self.settings.update_every, chance());
        let pause = match sent {
            Ok(reason) => {
                if let Some(reason) = reason {
                    state.report.sent(reason, self.settings.report_every, chance(), clock::mono());
                }
                state.failures = 0;
                self.observe(state);
                every
            }
            Err(error) => {
                state.failures = state.failures.saturating_add(1);
                self.failed(state, &error).await;
                backoff(state.failures, error.retry_after(), every)
            }
        };
        let until_change = node::next_change(&facts, clock::mono()).map(|at| at.since(clock::mono()));
        state.next = Instant::now() + until_change.map_or(pause, |until| pause.min(until));
    }

    /// Tells the addresses of an object that is as the node is (`setLastObservedNodeAddresses`).
    fn observe(&self, state: &State) {
        let Known::Object(object) = &state.known else { return };
        if node::is_ready(object) {
            self.measured.node_is_ready();
        }
        let all = object.pointer("/status/addresses").and_then(Value::as_array).into_iter().flatten();
        let text = |one: &Value, name| one.get(name).and_then(Value::as_str).map(str::to_owned);
        let now: Vec<_> = all.filter_map(|one| Some((text(one, "type")?, text(one, "address")?))).collect();
        self.observed.send_if_modified(|known| {
            let differs = *known != now;
            *known = now;
            differs
        });
    }

    async fn facts(&mut self, asked_since: Mono) -> Facts {
        let settings = Arc::clone(&self.runtime.borrow_and_update().settings);
        let handlers = handlers(&settings, &self.features).await;
        Facts {
            machine: self.machine.clone(),
            found: self.addresses.find().await,
            health: self.health.borrow_and_update().clone(),
            network: self.network.borrow_and_update().clone(),
            asked_since,
            network_within: ANSWERS_WITHIN,
            csi_node: self.csi_node.borrow_and_update().clone(),
            pressure: BTreeSet::new(),
            handlers,
            images: self.images.borrow_and_update().clone(),
            // Volumes that attach are refused: none is in use.
            volumes_in_use: Some(Vec::new()),
        }
    }

    async fn send_new(&self, state: &mut State, made: Written) -> Result<Reason, ApiError> {
        self.tell_faults(state, &made);
        let limit = self.settings.update_every;
        let object = object(made.object)?;
        self.measured.node_is_to_be_made();
        let sent = within(limit, self.api().create(&PostParams::default(), &object)).await?;
        let sent = self.about_this(sent)?;
        tracing::info!(node = self.settings.name, "the node is registered");
        self.measured.node_was_made();
        state.taken_over = sent.uid();
        self.made.send_replace(sent.uid());
        self.sent(state, &sent, made.notes);
        Ok(Reason::Changed)
    }

    async fn send_changes(
        &self,
        state: &mut State,
        object: &Value,
        wanted: Written,
    ) -> Result<Option<Reason>, ApiError> {
        self.tell_faults(state, &wanted);
        let differs = node::differs(object, &wanted.object);
        let Some(reason) = state.report.reason(differs, clock::mono()) else { return Ok(None) };
        let Some(patch) = node::patch(object, &wanted.object) else { return Ok(None) };
        let limit = self.settings.update_every;
        let (api, params, patch) = (self.api(), PatchParams::default(), Patch::Strategic(patch));
        let patched = api.patch_status(&self.settings.name, &params, &patch);
        let sent = self.about_this(within(limit, patched).await?)?;
        state.taken_over = uid_of(object).map(str::to_owned);
        self.sent(state, &sent, wanted.notes);
        Ok(Some(reason))
    }

    fn sent(&self, state: &mut State, answer: &DynamicObject, notes: Vec<node::Note>) {
        self.know(state, answer);
        notes.into_iter().for_each(|note| self.notes.tell(note));
    }

    async fn failed(&self, state: &mut State, error: &ApiError) {
        if state.failures == 1 {
            tracing::warn!(%error, "report the node; it is tried again");
        } else {
            tracing::debug!(%error, failures = state.failures, "report the node");
        }
        if error.is_not_found() || error.is_conflict() {
            self.read(state).await;
        }
    }

    /// Asks for the object itself, where an answer says that it is not as it is known. Somebody between may have given that answer: the
    /// lease and what others have put on the node do not hang on it.
    async fn read(&self, state: &mut State) {
        let found = within(self.settings.update_every, self.api().get_opt(&self.settings.name)).await;
        match found.and_then(|found| found.map(|object| self.about_this(object)).transpose()) {
            Ok(Some(object)) => self.know(state, &object),
            Ok(None) => self.miss(state),
            Err(error) => tracing::debug!(%error, "read the node's object"),
        }
    }

    /// What was answered, where it is about the node.
    fn about_this(&self, answer: DynamicObject) -> Result<DynamicObject, ApiError> {
        let is_this = answer.name_any() == self.settings.name && answer.uid().is_some();
        is_this.then_some(answer).ok_or_else(|| ApiError::Unusable("it is about another object".to_owned()))
    }

    /// Tells what could not be said of the node, once.
    fn tell_faults(&self, state: &mut State, written: &Written) {
        if state.faults != written.faults {
            for why in &written.faults {
                tracing::error!(why, "a part of the node's status stays as it was");
            }
            state.faults.clone_from(&written.faults);
        }
    }

    /// Tells once that containerd's configuration cannot be used, as an event: whoever wrote it looks at the node. Compared with
    /// what was told, since a look for another reason takes the change as well.
    fn tell_runtime_fault(&self, state: &mut State) {
        let fault = self.runtime.borrow().fault.clone();
        if let Some(fault) = fault.as_ref().filter(|fault| state.runtime_fault.as_ref() != Some(*fault)) {
            self.notes.tell(node::runtime_fault(fault));
        }
        state.runtime_fault = fault;
    }

    fn api(&self) -> Api<DynamicObject> {
        nodes(self.clients.get())
    }
}

fn uid_of(object: &Value) -> Option<&str> {
    object.pointer("/metadata/uid").and_then(Value::as_str)
}

/// `spec.podCIDRs`; where a controller of old knows one alone, that.
fn pod_cidrs(object: &Value) -> Vec<String> {
    let all = object.pointer("/spec/podCIDRs").and_then(Value::as_array).into_iter().flatten();
    let all: Vec<String> = all.filter_map(|one| one.as_str().map(str::to_owned)).collect();
    let one = object.pointer("/spec/podCIDR").and_then(Value::as_str).filter(|one| !one.is_empty());
    if all.is_empty() { one.map(str::to_owned).into_iter().collect() } else { all }
}

/// What of it is about the node of this name: a server, or somebody between, that does not know the selector tells of others too. A
/// node that is too large to be read is not one that is gone.
fn of_node(name: &str, seen: Seen<DynamicObject>) -> Option<Seen<DynamicObject>> {
    match seen {
        Seen::Whole { mut objects, unread, version } => {
            Some(match unread.into_iter().find(|one| one.name == name) {
                Some(node) => Seen::Unread(node),
                None => {
                    objects.retain(|object| object.name_any() == name);
                    Seen::Whole { objects, unread: Vec::new(), version }
                }
            })
        }
        Seen::Unread(other) if other.name != name => None,
        Seen::Applied(other) | Seen::Gone(other) if other.name_any() != name => None,
        seen => Some(seen),
    }
}

fn nodes(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<Node>(&()))
}

/// Whether a version lies before the one that is known: a watch tells a change after the answer to the patch that made it.
fn is_older(version: Option<&str>, known: &Value) -> bool {
    let known = known.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    follow::is_older(version.unwrap_or_default(), known.unwrap_or_default())
}

/// An object of the API as a value.
pub(super) fn value(object: &DynamicObject) -> Result<Value, ApiError> {
    serde_json::to_value(object)
        .map_err(|error| ApiError::Unanswered(format!("the answer is no object: {error}")))
}

/// A value as an object of the API.
pub(super) fn object(value: Value) -> Result<DynamicObject, ApiError> {
    serde_json::from_value(value)
        .map_err(|error| ApiError::Unanswered(format!("the object is none: {error}")))
}

/// A number between 0 and 1 that nobody knows before: for jitter, not for secrets.
pub(in crate::cluster) fn chance() -> f64 {
    let bits = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or(0);
    f64::from(bits) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::Unread;

    mod held;
    mod initialized;
    mod kept;
    mod missed;
    mod told;
    mod unaddressed;
    mod woken;

    #[test]
    fn chances_differ_and_stay_within_0_and_1() {
        let all: Vec<f64> = (0..64).map(|_| chance()).collect();
        assert!(all.iter().all(|chance| (0.0..=1.0).contains(chance)));
        assert!(all.iter().any(|chance| *chance < 0.5) && all.iter().any(|chance| *chance > 0.5), "{all:?}");
    }

    #[test]
    fn ranges_of_addresses_are_those_of_the_object() {
        for (spec, given) in [
            (
                json!({ "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "2001:db8::/64"] }),
                &["10.1.0.0/24", "2001:db8::/64"][..],
            ),
            (json!({ "podCIDR": "10.1.0.0/24" }), &["10.1.0.0/24"]),
            (json!({ "podCIDR": "" }), &[]),
            (json!({}), &[]),
        ] {
            assert_eq!(pod_cidrs(&json!({ "spec": spec })), given, "{spec}");
        }
    }

    #[test]
    fn what_is_told_of_other_nodes_is_not_the_node() {
        let node = |name: &str| -> DynamicObject {
            serde_json::from_value(
                json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } }),
            )
            .unwrap()
        };
        let unread = |name: &str| Unread {
            namespace: String::new(),
            name: name.to_owned(),
            uid: String::new(),
            bytes: 1,
            fault: None,
        };
        let whole = |names: &[&str], too_large: &[&str]| Seen::Whole {
            objects: names.iter().map(|name| node(name)).collect(),
            unread: too_large.iter().map(|name| unread(name)).collect(),
            version: 1,
        };
        for (seen, about) in [
            (whole(&["a", "n", "z"], &["x"]), "all n"),
            (whole(&["a"], &[]), "all "),
            (whole(&["a"], &["n"]), "unread n"),
            (Seen::Applied(node("n")), "is n"),
            (Seen::Applied(node("a")), "nothing"),
            (Seen::Gone(node("n")), "gone n"),
            (Seen::Gone(node("a")), "nothing"),
            (Seen::Unread(unread("n")), "unread n"),
            (Seen::Unread(unread("a")), "nothing"),
        ] {
            let told = match of_node("n", seen) {
                None => "nothing".to_owned(),
                Some(Seen::Whole { objects, unread, .. }) => {
                    assert_eq!(unread, []);
                    format!("all {}", objects.iter().map(ResourceExt::name_any).collect::<Vec<_>>().join(" "))
                }
                Some(Seen::Applied(node)) => format!("is {}", node.name_any()),
                Some(Seen::Gone(node)) => format!("gone {}", node.name_any()),
                Some(Seen::Unread(node)) => format!("unread {}", node.name),
                Some(Seen::Failed(error)) => panic!("{error}"),
            };
            assert_eq!(told, about);
        }
    }

    #[test]
    fn a_change_that_is_told_late_does_not_undo_what_is_known() {
        let known = json!({ "metadata": { "resourceVersion": "10" } });
        for (version, older) in
            [(Some("9"), true), (Some("10"), false), (Some("11"), false), (None, false), (Some("x"), false)]
        {
            assert_eq!(is_older(version, &known), older, "{version:?}");
        }
    }
}
