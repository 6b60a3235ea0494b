//! What a node must never do, looked at in whatever it does.

use std::{collections::BTreeMap, sync::Arc};

use berth_core::{
    effect::{Act, Effect},
    id::{ContainerName, PodUid},
    pod::port::start::StartRequest,
    record::PodRecord,
    spec::{Container, ContainerKind, NetworkMode, Pod, Volume},
    status::{ContainerState, PodStatus, Terminated},
};

use super::World;

/// What of a record must be on disk.
enum Needs {
    /// The last one.
    Current,
    /// The last one, unless that could not be written.
    Any,
}

/// By a list of its own: the core has another one, by which it decides.
fn needs(act: &Act) -> Option<Needs> {
    match act {
        Act::EnsureCgroup(_)
        | Act::EnsureDirs(_)
        | Act::EnsureNetns(_)
        | Act::EnsureNetwork(_)
        | Act::EnsureSandbox(_)
        | Act::EnsureVolume(_)
        | Act::EnsureRootfs(_)
        | Act::StartContainer(_)
        | Act::ResizeContainer(_)
        | Act::WriteFiles(_)
        | Act::KeepEnd(_) => Some(Needs::Current),
        Act::Publish(_)
        | Act::LookAtTask(_)
        | Act::Signal(_)
        | Act::RunHook(_)
        | Act::ReadTerminationMessage(_)
        | Act::Look(_)
        | Act::CheckMemory(_)
        | Act::RemoveNetwork(_)
        | Act::RemoveVolumes { .. }
        | Act::RemoveCgroup(_)
        | Act::RemoveDirs(_) => Some(Needs::Any),
        // Of what another record than the pod's tells, or no record.
        Act::Persist(_)
        | Act::Forget
        | Act::Withdraw
        | Act::Note(_)
        | Act::Probe(_)
        | Act::GiveUpHook(_)
        | Act::RemoveContainer(_)
        | Act::RemoveSandbox(_)
        | Act::KillShim(_)
        | Act::RemoveNetns(_)
        | Act::DropEnd
        | Act::Sweep => None,
    }
}

impl World {
    /// Nothing is begun before the record that tells of it, and nothing that it counts on is taken away; while it cannot be
    /// written, people are told and what runs is signalled all the same.
    pub(crate) fn check_recorded(&mut self, effect: &Effect) {
        let Effect::Pod { pod, act, .. } = effect else { return };
        let Some(needs) = needs(act) else { return };
        let is_unwritten = self.unwritten.contains(pod);
        let is_there = match needs {
            Needs::Current => !is_unwritten && self.records.contains_key(pod),
            Needs::Any => is_unwritten || self.records.contains_key(pod),
        };
        if !is_there {
            self.violations.push(format!("{pod}: no record before {}", act.name()));
        }
    }

    /// A deadline that was promised is never put off; an attempt never goes back.
    pub(super) fn check_record(&mut self, new: &PodRecord) {
        let Some(old) = self.records.get(&new.uid) else { return };
        let mut violations = Vec::new();
        if let Some(before) = old.termination {
            match new.termination {
                Some(after) if after.began == before.began && after.deadline <= before.deadline => {}
                after => violations.push(format!("{}: grace {before:?} became {after:?}", new.uid)),
            }
        }
        if new.sandbox < old.sandbox {
            violations.push(format!("{}: sandbox attempt went back", new.uid));
        }
        for (name, before) in &old.containers {
            let Some(after) = new.containers.get(name) else { continue };
            if after.attempt < before.attempt {
                violations.push(format!("{}/{name}: attempt went back", new.uid));
            }
            if after.attempt == before.attempt && before.exit.is_some() && after.exit != before.exit {
                violations.push(format!("{}/{name}: the end of attempt {} changed", new.uid, after.attempt));
            }
        }
        self.violations.append(&mut violations);
    }

    /// An end that was shown is not shown otherwise: it was complete, with its termination message.
    pub(super) fn check_ends(&mut self, new: &PodStatus) {
        let Some(old) = self.statuses.get(&new.uid) else { return };
        let before: BTreeMap<_, _> = ends(old).filter_map(|end| Some((end.id.as_ref()?, end))).collect();
        let known = ends(new).filter_map(|end| Some((*before.get(end.id.as_ref()?)?, end)));
        let changed = known.filter(|(before, end)| before != end);
        let violations: Vec<String> =
            changed.map(|(before, end)| format!("{before:?} became {end:?}")).collect();
        self.violations.extend(violations);
    }

    /// What is swept is nobody's, and nothing is left that may use it.
    pub(super) fn check_sweep(&mut self, pod: &PodUid) {
        self.sweeps += 1;
        if self.records.contains_key(pod) {
            self.violate(format!("{pod}: swept though it has a record"));
        }
        if self.oracle.was_always_wanted(pod) {
            self.violate(format!("{pod}: swept though it is wanted"));
        }
        let swept = ["dirs", "cgroup", "volume", "layer of a volume"];
        let mut left = self.left_of(pod);
        left.retain(|what| !swept.contains(&what.as_str()));
        if !left.is_empty() {
            self.violate(format!("{pod}: swept before {left:?}"));
        }
    }

    pub(super) fn check_start(&mut self, pod: &PodUid, request: &StartRequest) {
        let name = &request.container.name;
        let spec = Arc::clone(&request.pod);
        let mut violations = Vec::new();
        let others = self.containers.values().filter(|other| other.pod == *pod && other.is_running());
        for other in others {
            if other.name == *name && other.attempt != request.attempt {
                violations.push(format!(
                    "{pod}/{name}: attempts {} and {} at once",
                    other.attempt, request.attempt
                ));
            }
            let init = |name: &ContainerName| {
                spec.init_containers.iter().any(|one| one.name == *name && one.kind == ContainerKind::Init)
            };
            if init(&other.name) && other.name != *name && !starts_beside_them(&spec, name) {
                violations.push(format!("{pod}/{name}: started while init container {} runs", other.name));
            }
        }
        let there = [
            (self.dirs.contains(pod), "dirs"),
            (self.cgroups.contains_key(pod), "cgroup"),
            (spec.network == NetworkMode::Node || self.networks.contains_key(&request.sandbox), "network"),
            (spec.volumes.iter().all(|volume| self.has_volume(&spec, &request.container, volume)), "volumes"),
        ];
        for (is_there, what) in there {
            if !is_there {
                violations.push(format!("{pod}/{name}: started without {what}"));
            }
        }
        self.violations.append(&mut violations);
    }

    /// Whether a volume is there for a container: nobody waits for an image that somebody else mounts, nor for what nobody does.
    fn has_volume(&self, pod: &Pod, container: &Container, volume: &Volume) -> bool {
        let mounts = |container: &Container| container.mounts.iter().any(|mount| mount.volume == volume.name);
        let key = (pod.uid.clone(), volume.name.clone());
        let is_made = self.volumes.contains(&key);
        match volume.image() {
            None => is_made == pod.all_containers().any(|one| mounts(one)),
            Some(_) => !mounts(container) || is_made && self.volume_layers.contains_key(&key),
        }
    }
}

/// The ends that a status shows: of current runs and of those before.
fn ends(status: &PodStatus) -> impl Iterator<Item = &Terminated> {
    status.all_containers().flat_map(|container| {
        let now = match &container.state {
            ContainerState::Terminated(end) => Some(end),
            ContainerState::Waiting { .. } | ContainerState::Running { .. } => None,
        };
        now.into_iter().chain(&container.last_state)
    })
}

/// Whether a container may start while an init container runs.
fn starts_beside_them(pod: &Pod, name: &ContainerName) -> bool {
    let mut all = pod.all_containers();
    let kinds = [ContainerKind::Sidecar, ContainerKind::Ephemeral];
    all.any(|one| one.name == *name && kinds.contains(&one.kind))
}
