//! Orphans: resources of ours on the node whose pod no source wants and no record knows.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    effect::{Act, Effect},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{ContainerId, PodUid, SandboxId},
    observation::Observation,
    ops::{Ops, Purpose},
    pod::{
        port::removal::RemoveContainerRequest,
        resource::Retry,
        silence::{is_given_up, unanswered},
    },
    time::Mono,
};

/// One such resource. In the order of removal: the netns goes after its sandbox, the rest after both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Orphan {
    /// A container.
    Container(ContainerId),
    /// A sandbox.
    Sandbox(SandboxId),
    /// The network namespace of a sandbox.
    Netns(SandboxId),
    /// Whatever else is there under the UID.
    Rest,
}

/// All of them, until they are gone.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    resources: BTreeMap<PodUid, BTreeMap<Orphan, State>>,
}

#[derive(Debug)]
enum State {
    Due,
    Removing {
        /// How often its shim did not answer before, in a row.
        unanswered: u32,
    },
    Stuck {
        retry: Retry,
        unanswered: u32,
    },
}

impl Orphans {
    /// Whether something is left under a UID: a pod with that UID waits.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.resources.contains_key(uid)
    }

    /// Takes in what the runtime has of pods that are not `known`, and UIDs of which something else is left.
    pub(super) fn collect(
        &mut self,
        observation: &Observation,
        left: &BTreeSet<PodUid>,
        is_known: impl Fn(&PodUid) -> bool,
    ) {
        let mut add = |uid: &PodUid, orphan: Orphan| {
            if !is_known(uid) {
                self.resources.entry(uid.clone()).or_default().entry(orphan).or_insert(State::Due);
            }
        };
        for seen in &observation.containers {
            add(&seen.pod, Orphan::Container(seen.id.clone()));
            // Its shim may live though containerd has no record of it.
            if let Some(sandbox) = &seen.sandbox {
                add(&seen.pod, Orphan::Sandbox(sandbox.clone()));
                add(&seen.pod, Orphan::Netns(sandbox.clone()));
            }
            add(&seen.pod, Orphan::Rest);
        }
        for seen in &observation.sandboxes {
            add(&seen.pod, Orphan::Sandbox(seen.id.clone()));
            add(&seen.pod, Orphan::Netns(seen.id.clone()));
            add(&seen.pod, Orphan::Rest);
        }
        for uid in left {
            add(uid, Orphan::Rest);
        }
    }

    /// The next removal that is due.
    pub(super) fn poll_effect(&mut self, ops: &mut Ops, now: Mono) -> Option<Effect> {
        for (uid, resources) in &mut self.resources {
            let due =
                resources.iter().find(|(orphan, state)| state.is_due(now) && !is_in_use(orphan, resources));
            let Some((orphan, state)) = due else { continue };
            let (orphan, tries, unanswered) = (orphan.clone(), state.tries(), state.unanswered());
            let removal = Purpose::Orphan { uid: uid.clone(), orphan: orphan.clone(), tries };
            let (purpose, act) = match &orphan {
                Orphan::Container(id) => {
                    (removal, Act::RemoveContainer(RemoveContainerRequest { id: id.clone() }))
                }
                Orphan::Sandbox(id) if is_given_up(unanswered) => (
                    Purpose::OrphanShim { uid: uid.clone(), sandbox: id.clone(), tries },
                    Act::KillShim(id.clone()),
                ),
                Orphan::Sandbox(id) => (removal, Act::RemoveSandbox(id.clone())),
                Orphan::Netns(id) => (removal, Act::RemoveNetns(id.clone())),
                Orphan::Rest => (removal, Act::Sweep),
            };
            let op = ops.open(purpose);
            resources.insert(orphan, State::Removing { unanswered });
            return Some(Effect::Pod { op, pod: uid.clone(), act });
        }
        None
    }

    /// Takes the outcome of a removal.
    pub(super) fn settle(
        &mut self,
        uid: &PodUid,
        orphan: &Orphan,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Mono,
    ) {
        let Some(resources) = self.resources.get_mut(uid) else { return };
        let before = resources.get(orphan).map_or(0, State::unanswered);
        let unanswered = unanswered(before, &result);
        match result {
            Ok(_) => {
                resources.remove(orphan);
                if resources.is_empty() {
                    self.resources.remove(uid);
                }
            }
            Err(failure) => {
                tracing::warn!(pod = %uid, ?orphan, why = failure.message, "orphan not removed");
                resources.insert(
                    orphan.clone(),
                    State::Stuck { retry: Retry::after(failure, tries, now), unanswered },
                );
            }
        }
    }

    /// A shim was killed, or could not be: the removal of its sandbox goes on.
    pub(super) fn shim_killed(
        &mut self,
        uid: &PodUid,
        sandbox: SandboxId,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Mono,
    ) {
        let Some(resources) = self.resources.get_mut(uid) else { return };
        let state = match result {
            Ok(_) => State::Due,
            Err(failure) => {
                let unanswered =
                    resources.get(&Orphan::Sandbox(sandbox.clone())).map_or(0, State::unanswered);
                State::Stuck { retry: Retry::after(failure, tries, now), unanswered }
            }
        };
        resources.insert(Orphan::Sandbox(sandbox), state);
    }

    /// Containerd is back.
    pub(super) fn runtime_is_up(&mut self, now: Mono) {
        for state in self.resources.values_mut().flat_map(BTreeMap::values_mut) {
            if let State::Stuck { retry, .. } = state {
                retry.end_wait(FailureKind::RuntimeDown, now);
            }
        }
    }

    /// When something is tried again. What waits for another that goes first waits for no time.
    pub(super) fn poll_timeout(&self) -> Option<Mono> {
        let free = self
            .resources
            .values()
            .flat_map(|resources| resources.iter().filter(move |(orphan, _)| !is_in_use(orphan, resources)));
        free.filter_map(|(_, state)| match state {
            State::Stuck { retry, .. } => Some(retry.at),
            State::Due | State::Removing { .. } => None,
        })
        .min()
    }
}

impl State {
    fn is_due(&self, now: Mono) -> bool {
        match self {
            Self::Due => true,
            Self::Removing { .. } => false,
            Self::Stuck { retry, .. } => retry.at <= now,
        }
    }

    fn tries(&self) -> u32 {
        match self {
            Self::Due | Self::Removing { .. } => 0,
            Self::Stuck { retry, .. } => retry.tries,
        }
    }

    fn unanswered(&self) -> u32 {
        match self {
            Self::Due => 0,
            Self::Removing { unanswered } | Self::Stuck { unanswered, .. } => *unanswered,
        }
    }
}

fn is_in_use(orphan: &Orphan, resources: &BTreeMap<Orphan, State>) -> bool {
    match orphan {
        Orphan::Container(_) | Orphan::Sandbox(_) => false,
        Orphan::Netns(id) => resources.contains_key(&Orphan::Sandbox(id.clone())),
        Orphan::Rest => resources.len() > 1,
    }
}
