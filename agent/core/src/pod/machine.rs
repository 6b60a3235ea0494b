//! One pod over time: events change what is known of it, the plan says what follows.

use std::{collections::VecDeque, sync::Arc};

use super::{
    actual::{Life, Preparing, Run},
    grace,
    outcome::Slot,
    plan::{Network, World, plan},
    port::{
        image::ImageFor,
        look::Looking,
        probe::Probing,
        record::{Recording, Standing},
        status::Publishing,
    },
    pulls::{Asker, Pulls},
    resize::{self, Asked},
    restart::change_back_off,
    status,
    text::{about_pod, network_not_ready},
};
use crate::{
    config::NodeConfig,
    effect::{Act, Effect},
    failure::FailureKind,
    id::{ContainerName, OpId, PodUid},
    metrics::ResizeMeasure,
    ops::{Ops, Purpose},
    record::Goal,
    spec::{Container, ContainerKind, Pod},
    status::{PodEvent, PodStatus, Severity},
    time::{Mono, Now},
};

/// How often a plan may follow a plan within one event. Each round only takes steps that the one before made possible,
/// and the longest such sequence (end, stop, discard, remove) is short.
const ROUNDS_MAX: usize = 16;

/// One pod.
#[derive(Debug)]
pub struct PodMachine {
    pub(super) life: Life,
    pub(super) acts: Vec<(OpId, Act)>,
    pub(super) notes: Vec<PodEvent>,
    pub(super) recording: Recording,
    pub(super) looking: Looking,
    pub(super) probing: Probing,
    pub(super) publishing: Publishing,
    /// Hooks that are run and wanted no more.
    pub(super) given_up: Vec<OpId>,
    /// The version that its source told last.
    told: Option<Arc<Pod>>,
    /// The version whose resources are asked for, while it has others.
    pub(super) wanted: Option<Asked>,
    /// Since when what is allocated is being put into force, by the try that is under way.
    pub(super) trying_since: Option<Mono>,
    /// What was measured since somebody asked.
    pub(crate) measured: Vec<ResizeMeasure>,
    unwired: Option<String>,
    wake_at: Option<Mono>,
    pub(super) forgotten: bool,
    #[cfg(test)]
    asked: std::cell::Cell<usize>,
}

/// What the pods of a node share.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The node.
    pub config: &'a NodeConfig,
    /// Whether pods can be wired.
    pub network: &'a Network,
    /// Images.
    pub pulls: &'a mut Pulls,
    /// Numbers of effects.
    pub ops: &'a mut Ops,
    /// What is to be done.
    pub effects: &'a mut VecDeque<Effect>,
}

impl PodMachine {
    pub(super) fn with(life: Life, recording: Recording) -> Self {
        Self {
            life,
            acts: Vec::new(),
            notes: Vec::new(),
            recording,
            looking: Looking::default(),
            probing: Probing::default(),
            publishing: Publishing::nothing(),
            given_up: Vec::new(),
            told: None,
            wanted: None,
            trying_since: None,
            measured: Vec::new(),
            unwired: None,
            wake_at: None,
            forgotten: false,
            #[cfg(test)]
            asked: std::cell::Cell::default(),
        }
    }

    /// What is wanted of it.
    #[must_use]
    pub fn spec(&self) -> &Arc<Pod> {
        self.count();
        &self.life.spec
    }

    /// Whether its source has told nothing else of it than this: what it has of that may differ for good, as where it waits for resources.
    pub(crate) fn was_told(&self, spec: &Arc<Pod>) -> bool {
        let told = self.told.as_ref().unwrap_or(&self.life.spec);
        Arc::ptr_eq(told, spec) || told == spec
    }

    /// All that is known of it.
    #[must_use]
    pub fn life(&self) -> &Life {
        self.count();
        &self.life
    }

    /// The status that was published last.
    #[must_use]
    pub fn status(&self) -> Option<&Arc<PodStatus>> {
        self.publishing.status()
    }

    /// When time alone changes something.
    #[must_use]
    pub fn wake_at(&self) -> Option<Mono> {
        self.count();
        self.wake_at
    }

    /// Whether nothing of it is left.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Its source has a new version of it. What was made for it once (network, volumes, which containers, where its cgroup
    /// is) never changes under one UID, but that ephemeral containers come: the API refuses that, and other sources give another UID. What has ended by the word of its
    /// source ends here too: an earlier agent could not write it down, or somebody else wishes it.
    pub fn update(&mut self, spec: Arc<Pod>, now: Mono) {
        let deletion = spec.deletion;
        self.told = Some(Arc::clone(&spec));
        self.take(spec, now);
        if self.life.record.terminal.is_none() {
            self.begin_at_its_end(now);
        } else if deletion.is_some() {
            self.terminate(now);
        }
    }

    fn take(&mut self, spec: Arc<Pod>, now: Mono) {
        if !is_same_frame(&self.life.spec, &spec) {
            let text = "volumes, namespaces, class of service and which containers there are cannot be changed under one \
                        UID: the pod goes on as it was";
            self.notes.push(about_pod(Severity::Warning, "UpdateIgnored", text));
            self.wanted = None;
            let (deletion, generation, ended) = (spec.deletion, spec.generation, spec.ended.clone());
            let known = &self.life.spec;
            if (known.deletion, known.generation, &known.ended) != (deletion, generation, &ended) {
                self.life.spec = Arc::new(Pod { deletion, generation, ended, ..Pod::clone(known) });
            }
            return;
        }
        self.measure_request(&spec);
        let wanted = Arc::clone(&spec);
        let spec = resize::with_allocated(&self.life.spec, spec);
        self.ask_for(wanted, spec.resize.as_ref());
        self.replace(spec, now);
    }

    /// Goes on as another version of it.
    pub(super) fn replace(&mut self, spec: Arc<Pod>, now: Mono) {
        if spec == self.life.spec {
            return;
        }
        self.change_back_offs(&spec, now);
        self.life.record.manifest = Arc::clone(&spec.manifest);
        self.life.record.resize.clone_from(&spec.resize);
        let before = std::mem::replace(&mut self.life.spec, spec);
        if !shows_the_same(&before, &self.life.spec) {
            self.pod_changed(now);
        }
    }

    /// A container that was changed so that it may run better does not wait for what its earlier version did.
    fn change_back_offs(&mut self, spec: &Pod, now: Mono) {
        for (old, new) in self.life.spec.fixed_containers().zip(spec.fixed_containers()) {
            if let Some(record) = self.life.record.containers.get_mut(&new.name) {
                change_back_off(record, old, new, now);
            }
        }
    }

    /// Its source no longer has it.
    pub fn remove(&mut self, now: Mono) {
        self.life.record.goal = Goal::Removed;
        self.terminate(now);
        // What a pod is taken down by may be an old record.
        self.life.actual.end_waits(FailureKind::Unrecorded, now);
    }

    /// Begins to stop the pod, or brings the end of a stop that began forward.
    pub(super) fn terminate(&mut self, now: Mono) {
        let termination = grace::stop(self.life.record.termination, &self.life.spec, now);
        self.life.record.termination = Some(termination);
        self.look_at_once(now);
    }

    /// What may run of a pod that is to stop is looked at now, however long its next start was to wait.
    fn look_at_once(&mut self, now: Mono) {
        for run in self.life.actual.containers.values_mut() {
            if let Run::Preparing(Preparing { refused: Some(refusal), .. }) = run {
                refusal.retry.at = refusal.retry.at.min(now);
            }
        }
    }

    /// Plans until nothing more follows, then hands over what is to be done: the record, and once that is written, the
    /// acts, then what people are told.
    pub fn advance(&mut self, shared: &mut Shared<'_>, now: Now) {
        if self.forgotten {
            return;
        }
        for _ in 0..ROUNDS_MAX {
            self.follow_plan(shared, now);
            self.keep_probes(now);
            let status = self.status_now(shared.config, now);
            match self.save(shared, now.mono) {
                Standing::Saved => {
                    if !self.take_back_starts(shared, now) {
                        return self.hand_over(status, shared, now.mono);
                    }
                }
                Standing::Held => return,
                Standing::Failed(retry) => {
                    self.wake(retry.at);
                    if !self.refuse_unrecorded(shared, &retry.failure, now) {
                        return self.hand_over(status, shared, now.mono);
                    }
                }
            }
        }
    }

    fn follow_plan(&mut self, shared: &mut Shared<'_>, now: Now) {
        for _ in 0..ROUNDS_MAX {
            let world = World { config: shared.config, network: shared.network };
            let plan = plan(&self.life, world, now);
            self.wake_at = plan.wake_at;
            self.tell_unwired(plan.unwired);
            if plan.steps.is_empty() {
                break;
            }
            for step in plan.steps {
                self.apply(step, shared, now);
            }
        }
    }

    pub(super) fn wake(&mut self, at: Mono) {
        self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
    }

    fn tell_unwired(&mut self, unwired: Option<String>) {
        if self.unwired != unwired {
            if let Some(why) = &unwired {
                let text = format!("network is not ready: {}", network_not_ready(why));
                self.notes.push(about_pod(Severity::Warning, "NetworkNotReady", text));
            }
            self.unwired = unwired;
        }
    }

    /// The status to be shown; what of it must not change with a restart goes into the record.
    fn status_now(&mut self, config: &NodeConfig, now: Now) -> PodStatus {
        let before = self.publishing.status().map(|status| &**status);
        let mut status = status::of(&self.life, config, before, now);
        status::remember(&mut self.life.record, &status);
        self.tell_unrecorded(&mut status);
        status
    }

    fn hand_over(&mut self, status: PodStatus, shared: &mut Shared<'_>, now: Mono) {
        let uid = self.uid().clone();
        let for_pod = |(op, act)| Effect::Pod { op, pod: uid.clone(), act };
        let last: Vec<_> = self.acts.extract_if(.., |(_, act)| *act == Act::Forget).collect();
        self.give_up_hooks(shared);
        shared.effects.extend(self.acts.drain(..).map(for_pod));
        self.tell_notes(shared.ops, shared.effects);
        self.publish(status, shared, now);
        shared.effects.extend(last.into_iter().map(for_pod));
    }

    /// Where a container is in its pod's spec. Source: `fieldPath` of `pkg/kubelet/container/ref.go`.
    pub(super) fn field_path(&self, name: &ContainerName) -> String {
        let found = self.life.spec.all_containers().find(|container| container.name == *name);
        let list = match found.map(|container| container.kind) {
            Some(ContainerKind::Init | ContainerKind::Sidecar) => "initContainers",
            Some(ContainerKind::Ephemeral) => "ephemeralContainers",
            Some(ContainerKind::Main) | None => "containers",
        };
        format!("spec.{list}{{{name}}}")
    }

    /// Asks for an effect whose outcome comes back to `slot`.
    pub(super) fn ask(&mut self, shared: &mut Shared<'_>, slot: Slot, tries: u32, act: Act) -> OpId {
        self.ask_with(shared.ops, slot, tries, act)
    }

    /// The same for whoever has only the numbers.
    pub(super) fn ask_with(&mut self, ops: &mut Ops, slot: Slot, tries: u32, act: Act) -> OpId {
        let uid = self.life.record.uid.clone();
        let op = ops.open(Purpose::Pod { uid, slot, tries });
        self.acts.push((op, act));
        op
    }

    pub(super) fn asker(&self, of: ImageFor) -> Asker {
        Asker { pod: self.life.record.uid.clone(), of }
    }

    /// Which pod it is.
    #[must_use]
    pub fn uid(&self) -> &PodUid {
        self.count();
        &self.life.record.uid
    }

    /// For tests about what an event costs: the node has asked for something of this pod.
    fn count(&self) {
        #[cfg(test)]
        self.asked.set(self.asked.get() + 1);
    }

    /// How often the node has asked for something of it.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> usize {
        self.asked.get()
    }
}

/// Whether volumes show the same of the pod itself.
fn shows_the_same(old: &Pod, new: &Pod) -> bool {
    let of_containers =
        |pod: &Pod| -> Vec<_> { pod.fixed_containers().map(|one| one.resources.clone()).collect() };
    old.labels == new.labels
        && old.annotations == new.annotations
        && old.resources == new.resources
        && of_containers(old) == of_containers(new)
}

/// Ephemeral containers may come, in whatever place, and stay.
fn is_same_frame(old: &Pod, new: &Pod) -> bool {
    let containers =
        |pod: &Pod| -> Vec<_> { pod.fixed_containers().map(|one| (one.name.clone(), one.kind)).collect() };
    let is_kept = |one: &Arc<Container>| new.ephemeral_containers.iter().any(|kept| kept.name == one.name);
    containers(old) == containers(new)
        && old.ephemeral_containers.iter().all(is_kept)
        && old.name == new.name
        && old.network == new.network
        && old.users == new.users
        && old.pid == new.pid
        && old.ipc == new.ipc
        && old.volumes == new.volumes
        && old.qos == new.qos
}
