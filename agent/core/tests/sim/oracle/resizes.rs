//! Resources that change while containers run, from "Resize CPU and Memory Resources assigned to Containers" of the tasks of Kubernetes and
//! KEP-1287.

use std::sync::Arc;

use berth_core::{
    id::PodUid,
    record::PodRecord,
    spec::{Container, ContainerKind, Pod, Quantities, Resources},
};

use super::{Oracle, Run};
use crate::{
    pods,
    world::{Bound, Given},
};

impl Oracle {
    /// A container has this from now on; what was allocated to it by what is on disk.
    pub(crate) fn given(&mut self, pod: &PodUid, given: Given, allocated: Option<Given>) {
        let is_right = allocated == Some(given);
        let broken = (!is_right).then(|| format!("{pod}: {given:?} in place of {allocated:?}"));
        self.judge("a container is given what was allocated to it", broken);
    }

    /// The cgroup of a pod, or what runs in it, has changed. Where nothing runs nothing is judged.
    pub(crate) fn level(&mut self, pod: &PodUid, level: Given, running: &[Given], bound: Bound) {
        if running.is_empty() {
            return;
        }
        let is_right = match bound {
            Bound::All => level.is_enough_for(Given::sum(running)),
            Bound::Each => running.iter().all(|one| level.is_enough_for(*one)),
        };
        let broken = (!is_right).then(|| format!("{pod}: {running:?} in {level:?}"));
        self.judge("a pod's cgroup is enough for what runs in it", broken);
    }

    /// The memory limit of a pod becomes lower, when so much was last found to be enough for what it uses.
    pub(crate) fn lowered(&mut self, pod: &PodUid, limit: u64, enough: Option<u64>) {
        let is_right = enough.is_some_and(|enough| enough <= limit);
        let broken = (!is_right).then(|| format!("{pod}: {limit}, and {enough:?} was found to be enough"));
        self.judge("a pod's memory limit becomes lower when what it uses was looked at", broken);
    }

    /// Nothing changes any more. What a pod names for itself bounds all of it.
    pub(crate) fn level_at_rest(&mut self, pod: &PodUid, level: Given, own: Given) {
        let is_right = |level: Option<u64>, own: Option<u64>| own.is_none() || level == own;
        let is_right = is_right(level.quota, own.quota)
            && is_right(level.memory, own.memory)
            && is_right(level.shares, own.shares);
        let broken = (!is_right).then(|| format!("{pod}: {level:?} in place of {own:?}"));
        self.judge("at rest a pod has what it names for itself", broken);
    }

    /// Nothing changes any more.
    pub(crate) fn given_at_rest(&mut self, pod: &PodUid, given: Given, allocated: Given, is_told: bool) {
        let is_right = given == allocated && !is_told;
        let broken =
            (!is_right).then(|| format!("{pod}: {given:?} in place of {allocated:?}, told {is_told}"));
        self.judge("at rest a container has what is allocated to it", broken);
    }

    /// Nothing changes any more: "`Deferred`: the resize is feasible, but not possible at the moment". What the pod has, what others have,
    /// and what it tells.
    pub(crate) fn waits_at_rest(&mut self, asked: &Pod, has: &Pod, others: &[Arc<Pod>], told: Option<&str>) {
        let all = others.iter().map(|pod| Requests::of(pod)).fold(Requests::of(asked), Requests::plus);
        let fits = all.fits();
        let amounts = |pod: &Pod| -> (Option<Resources>, Vec<Resources>) {
            let of_containers = pod.fixed_containers().map(|container| container.resources.clone());
            (pod.resources.clone(), of_containers.collect())
        };
        let waits = amounts(asked) != amounts(has);
        let is_right = match told {
            None => !waits,
            Some("Deferred") => waits && !fits,
            Some(_) => false,
        };
        let broken = (!is_right).then(|| format!("{}: told {told:?}, fits {fits}, waits {waits}", asked.uid));
        self.judge("at rest a resize waits where it does not fit", broken);
    }
}

/// What is set aside for a pod: thousandths of a core, and bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Requests {
    cpu: u64,
    memory: u64,
}

impl Requests {
    /// What all that runs at one time asks for, from "Resource sharing within containers" of "Init Containers" and "Sidecar Containers": an
    /// init container has the sidecars before it beside it, and main containers have all of them. What a pod requests for itself is in place of
    /// that ("Assign Pod-level CPU and memory resources").
    pub(super) fn of(pod: &Pod) -> Self {
        let (mut sidecars, mut most) = (Self::default(), Self::default());
        for container in &pod.init_containers {
            let beside = sidecars.plus(Self::of_container(container));
            most = most.max(beside);
            if container.kind == ContainerKind::Sidecar {
                sidecars = beside;
            }
        }
        let main = pod.containers.iter().map(|one| Self::of_container(one)).fold(sidecars, Self::plus);
        let own = |amount: fn(&Quantities) -> Option<u64>| amount(&pod.resources.as_ref()?.requests);
        Self {
            cpu: own(|all| all.cpu_milli).unwrap_or(most.cpu.max(main.cpu)),
            memory: own(|all| all.memory_bytes).unwrap_or(most.memory.max(main.memory)),
        }
    }

    fn of_container(container: &Container) -> Self {
        let requests = &container.resources.requests;
        Self { cpu: requests.cpu_milli.unwrap_or(0), memory: requests.memory_bytes.unwrap_or(0) }
    }

    /// Whether the node has so much.
    pub(super) fn fits(self) -> bool {
        let node = pods::node().allocatable;
        self.cpu <= node.cpu_milli.unwrap() && self.memory <= node.memory_bytes.unwrap()
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, memory: self.memory + other.memory }
    }
}

impl Run {
    /// Whether it is to begin anew to be what is wanted now.
    pub(super) fn is_another(&self, spec: &Pod, wanted: &Container) -> bool {
        let made = Amounts { own: self.container.resources.clone(), whole: self.whole.clone() };
        self.container.hash != wanted.hash || made.restarts_for(spec, wanted)
    }
}

impl Oracle {
    /// By a record on disk a run may be made: what an agent that is killed left of it is what the next one begins, with what it was made with.
    pub(crate) fn may_begin(&mut self, record: &PodRecord, spec: &Pod) {
        let Some(account) = self.pods.get_mut(&record.uid) else { return };
        for container in spec.fixed_containers() {
            let run = record.containers.get(&container.name);
            if let Some(run) = run.filter(|run| run.started_in == Some(record.sandbox)) {
                let made = || Amounts { own: container.resources.clone(), whole: spec.resources.clone() };
                let key = (run.id.clone(), record.sandbox_id.clone());
                account.made_first.entry(key).or_insert_with(made);
            }
        }
    }
}

/// What a container was made with: what it named, and what its pod did.
#[derive(Debug, Clone)]
pub(super) struct Amounts {
    own: Resources,
    whole: Option<Resources>,
}

impl Amounts {
    /// "`RestartContainer`: the container is restarted to apply the resize", where one of this kind of resource is asked for. What bounds it for
    /// want of a limit of its own is its limit.
    pub(super) fn restarts_for(&self, pod: &Pod, container: &Container) -> bool {
        let policy = container.resize_policy;
        let amounts = |own: &Resources, whole: Option<&Resources>, of: fn(&Quantities) -> Option<u64>| {
            (of(&own.requests), of(&own.limits).or_else(|| of(&whole?.limits)))
        };
        let differs = |of: fn(&Quantities) -> Option<u64>| {
            let now = amounts(&container.resources, pod.resources.as_ref(), of);
            now != amounts(&self.own, self.whole.as_ref(), of)
        };
        (policy.memory_restarts && differs(|all| all.memory_bytes))
            || (policy.cpu_restarts && differs(|all| all.cpu_milli))
    }
}
