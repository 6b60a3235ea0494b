//! What the node asks of all its pods at once, kept up to date pod by pod, so that an event costs the same however many
//! pods there are: which pod a sandbox belongs to, whether a name is taken, who is woken next, what the QoS cgroups add up to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    cgroup::{QosShare, QosTotals},
    config::NodeConfig,
    id::{PodName, PodUid, SandboxId},
    pod::{PodMachine, actual::Stage},
    spec::Pod,
    time::Mono,
};

/// Of every pod on the node.
#[derive(Debug, Default)]
pub(super) struct Index {
    pods: BTreeMap<PodUid, Entry>,
    owners: BTreeMap<SandboxId, PodUid>,
    names: BTreeSet<(PodName, PodUid)>,
    wakes: BTreeSet<(Mono, PodUid)>,
    qos: QosTotals,
}

#[derive(Debug)]
struct Entry {
    sandbox: SandboxId,
    wake_at: Option<Mono>,
    spec: Arc<Pod>,
    stage: Stage,
    share: Option<QosShare>,
}

impl Index {
    /// Takes in a pod as it is now.
    pub(super) fn set(&mut self, config: &NodeConfig, pod: &PodMachine) {
        let (uid, record, spec) = (pod.uid(), &pod.life().record, pod.spec());
        let (stage, wake_at) = (pod.life().stage(), pod.wake_at());
        if let Some(known) = self.pods.get_mut(uid)
            && known.sandbox == record.sandbox_id
            && known.stage == stage
            && Arc::ptr_eq(&known.spec, spec)
        {
            // What changes with nearly every event.
            if known.wake_at != wake_at {
                let before = std::mem::replace(&mut known.wake_at, wake_at);
                self.wake(uid, before, wake_at);
            }
            return;
        }
        self.remove(uid);
        let share = match stage {
            Stage::Run => Some(QosShare::of(spec, config)),
            Stage::Stop => None,
        };
        self.qos.add(share);
        self.owners.insert(record.sandbox_id.clone(), uid.clone());
        self.names.insert((spec.name.clone(), uid.clone()));
        self.wake(uid, None, wake_at);
        let entry =
            Entry { sandbox: record.sandbox_id.clone(), wake_at, spec: Arc::clone(spec), stage, share };
        self.pods.insert(uid.clone(), entry);
    }

    /// A pod is gone.
    pub(super) fn remove(&mut self, uid: &PodUid) {
        let Some(entry) = self.pods.remove(uid) else { return };
        self.qos.subtract(entry.share);
        self.owners.remove(&entry.sandbox);
        self.names.remove(&(entry.spec.name.clone(), uid.clone()));
        self.wake(uid, entry.wake_at, None);
    }

    fn wake(&mut self, uid: &PodUid, before: Option<Mono>, now: Option<Mono>) {
        if let Some(at) = before {
            self.wakes.remove(&(at, uid.clone()));
        }
        if let Some(at) = now {
            self.wakes.insert((at, uid.clone()));
        }
    }

    /// The pod whose current sandbox has this id.
    pub(super) fn owner(&self, sandbox: &SandboxId) -> Option<&PodUid> {
        self.owners.get(sandbox)
    }

    /// Whether a pod with this name is on the node.
    pub(super) fn has_name(&self, name: &PodName) -> bool {
        let first = (name.clone(), PodUid::new(""));
        self.names.range(first..).next().is_some_and(|(known, _)| known == name)
    }

    /// When the next pod is to be woken.
    pub(super) fn next_wake(&self) -> Option<Mono> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// The pods whose time has come, by UID.
    pub(super) fn due(&self, now: Mono) -> BTreeSet<PodUid> {
        self.wakes.iter().take_while(|(at, _)| *at <= now).map(|(_, uid)| uid.clone()).collect()
    }

    /// What the pods that run ask for.
    pub(super) fn qos(&self) -> &QosTotals {
        &self.qos
    }
}

#[cfg(test)]
mod tests;
