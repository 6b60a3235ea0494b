//! One pod over time: events change what is known of it, the plan says what follows.

use std::{collections::VecDeque, sync::Arc};

use super::{
    actual::{Goal, Life},
    plan::{Network, World, plan},
    status,
    step::Step,
    words::about_pod,
};
use crate::{
    config::NodeConfig,
    effect::{Act, Effect},
    id::{OpId, PodUid},
    ops::{Ops, Purpose, Slot},
    pulls::{Asker, Pulls},
    record::{PodRecord, TerminationRecord},
    spec::Pod,
    status::{PodEvent, PodStatus, Severity},
    time::{Mono, Now},
};

/// How often a plan may follow a plan within one event. Each round only takes steps that the one before made possible,
/// and the longest such chain (end, stop, discard, remove) is short.
const ROUNDS_MAX: usize = 16;

/// The shortest grace period of a pod that is removed. Source: `calculateEffectiveGracePeriod` of
/// `pkg/kubelet/pod_workers.go`.
const GRACE_MIN: std::time::Duration = std::time::Duration::from_secs(1);

/// One pod.
#[derive(Debug)]
pub struct PodMachine {
    pub(super) life: Life,
    pub(super) acts: Vec<(OpId, Act)>,
    pub(super) notes: Vec<PodEvent>,
    /// The record as it is on disk.
    persisted: Option<PodRecord>,
    published: Option<Arc<PodStatus>>,
    unwired: Option<String>,
    wake_at: Option<Mono>,
    forgotten: bool,
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
    pub(super) fn with(life: Life, persisted: Option<PodRecord>) -> Self {
        Self {
            life,
            acts: Vec::new(),
            notes: Vec::new(),
            persisted,
            published: None,
            unwired: None,
            wake_at: None,
            forgotten: false,
        }
    }

    /// What is wanted of it.
    #[must_use]
    pub fn spec(&self) -> &Arc<Pod> {
        &self.life.spec
    }

    /// All that is known of it.
    #[must_use]
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// The status that was published last.
    #[must_use]
    pub fn status(&self) -> Option<&Arc<PodStatus>> {
        self.published.as_ref()
    }

    /// When time alone changes something.
    #[must_use]
    pub fn wake_at(&self) -> Option<Mono> {
        self.wake_at
    }

    /// Whether nothing of it is left.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Its source has a new version of it. What was made for it once (network, volumes, which containers, where its cgroup
    /// is) never changes under one UID: the API refuses that, and other sources give another UID.
    pub fn update(&mut self, spec: Arc<Pod>) {
        if !is_same_frame(&self.life.spec, &spec) {
            tracing::warn!(pod = %spec.uid, "update of what cannot be changed ignored");
            return;
        }
        self.life.record.manifest = Arc::clone(&spec.manifest);
        self.life.spec = spec;
    }

    /// Its source no longer has it.
    pub fn remove(&mut self, now: Mono) {
        self.life.goal = Goal::Removed;
        self.terminate(now);
    }

    /// Begins to stop the pod with its own grace period, or brings the end of one that began forward.
    pub(super) fn terminate(&mut self, now: Mono) {
        let deadline = now + self.life.spec.grace.max(GRACE_MIN);
        let termination = match self.life.record.termination {
            Some(known) => TerminationRecord { deadline: known.deadline.min(deadline), ..known },
            None => TerminationRecord { began: now, deadline },
        };
        self.life.record.termination = Some(termination);
    }

    /// Plans until nothing more follows, then hands over what is to be done: the record first, then the acts, then what
    /// people are told.
    pub fn advance(&mut self, shared: &mut Shared<'_>, now: Now) {
        let mut forget = false;
        for _ in 0..ROUNDS_MAX {
            let world = World { config: shared.config, network: shared.network };
            let plan = plan(&self.life, world, now);
            self.wake_at = plan.wake_at;
            self.tell_unwired(plan.unwired);
            if plan.steps.is_empty() {
                break;
            }
            for step in plan.steps {
                forget |= step == Step::Forget;
                self.apply(step, shared, now);
            }
            if forget {
                break;
            }
        }
        self.hand_over(shared, now, forget);
    }

    fn tell_unwired(&mut self, unwired: Option<String>) {
        if self.unwired != unwired {
            if let Some(why) = &unwired {
                let text = format!("network is not ready: {why}");
                self.notes.push(about_pod(Severity::Warning, "NetworkNotReady", text));
            }
            self.unwired = unwired;
        }
    }

    fn hand_over(&mut self, shared: &mut Shared<'_>, now: Now, forget: bool) {
        let status = status::of(&self.life, shared.config, self.published.as_deref(), now);
        status::remember(&mut self.life.record, &status);
        let uid = self.life.record.uid.clone();
        let mut push = |op: OpId, act: Act| {
            shared.effects.push_back(Effect::Pod { op, pod: uid.clone(), act });
        };
        if !forget && self.persisted.as_ref() != Some(&self.life.record) {
            push(shared.ops.number(), Act::Persist(Box::new(self.life.record.clone())));
            self.persisted = Some(self.life.record.clone());
        }
        for (op, act) in self.acts.drain(..) {
            push(op, act);
        }
        for note in self.notes.drain(..) {
            push(shared.ops.number(), Act::Note(note));
        }
        if self.published.as_deref() != Some(&status) {
            let status = Arc::new(status);
            self.published = Some(Arc::clone(&status));
            push(shared.ops.number(), Act::Publish(status));
        }
        if forget {
            push(shared.ops.number(), Act::Forget);
            self.forgotten = true;
        }
    }

    /// Asks for an effect whose outcome comes back to `slot`.
    pub(super) fn ask(&mut self, shared: &mut Shared<'_>, slot: Slot, tries: u32, act: Act) -> OpId {
        let uid = self.life.record.uid.clone();
        let op = shared.ops.open(Purpose::Pod { uid, slot, tries });
        self.acts.push((op, act));
        op
    }

    pub(super) fn asker(&self, container: &crate::id::ContainerName) -> Asker {
        Asker { pod: self.life.record.uid.clone(), container: container.clone() }
    }

    /// Which pod it is.
    #[must_use]
    pub fn uid(&self) -> &PodUid {
        &self.life.record.uid
    }
}

fn is_same_frame(old: &Pod, new: &Pod) -> bool {
    let containers =
        |pod: &Pod| -> Vec<_> { pod.all_containers().map(|one| (one.name.clone(), one.kind)).collect() };
    containers(old) == containers(new)
        && old.name == new.name
        && old.network == new.network
        && old.volumes == new.volumes
        && old.qos == new.qos
}
