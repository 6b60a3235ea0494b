//! The cgroup of a container that runs, which is given other resources; and whether memory limits can become lower.

use oci_spec::runtime::LinuxResources;

use crate::{
    cgroup,
    effect::Act,
    event::Outcome,
    failure::Failure,
    id::{ContainerId, ContainerName, SandboxId},
    oci,
    pod::{
        actual::Life,
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resize::{actuated, changes_running, memory_now},
        resource::{EndedEffect, Resource, Retry},
    },
    spec::{CpuMemory, QosClass, Resizable},
};

/// Other resources for the cgroup of a container.
#[derive(Debug, Clone, PartialEq)]
pub struct ResizeRequest {
    /// The container.
    pub name: ContainerName,
    /// Its run.
    pub id: ContainerId,
    /// The sandbox that it runs in, whose shim is asked.
    pub sandbox: SandboxId,
    /// What its cgroup is to have of one resource: the rest is left as it is.
    pub resources: LinuxResources,
    /// Limits that become lower in this resize, where it touches memory.
    pub lowered: MemoryCheck,
}

/// Memory limits that become lower: none of them may be below what is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryCheck {
    /// Under which QoS parent the pod is.
    pub qos: QosClass,
    /// The limits, that of the pod first.
    pub bounds: Vec<MemoryBound>,
}

/// A memory limit that becomes lower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBound {
    /// The container that it is of; `None` is the pod.
    pub container: Option<(ContainerName, ContainerId)>,
    /// The limit in bytes.
    pub limit: u64,
}

/// The memory of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes that are used in it and below it.
    pub used: u64,
    /// Its limit in bytes, the largest number where there is none.
    pub limit: u64,
}

impl MemoryBound {
    /// Why it is not to be set, by the memory of the cgroup: one that has this limit already, or a lower one, since who set it was
    /// killed then, can be full. Source: `validateMemoryResizeAction` of
    /// `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.
    #[must_use]
    pub fn broken_by(&self, has: MemoryUse) -> Option<String> {
        let of = || match &self.container {
            None => "pod".to_owned(),
            Some((name, _)) => format!("container {:?}", name.as_str()),
        };
        let limit = self.limit;
        let used = has.used;
        (limit < has.limit && used >= limit)
            .then(|| format!("attempting to set {} memory limit ({limit}) {BELOW}{used})", of()))
    }
}

/// What stands before the bytes that are used.
const BELOW: &str = "below current usage (";

/// Why a resize fails, without how much is used: that is another number each time.
pub(in crate::pod) fn without_usage(why: &str) -> String {
    why.split(BELOW).map(|part| part.trim_start_matches(|letter: char| letter.is_ascii_digit())).collect()
}

/// Why no limit is made lower, in the words of the kubelet.
#[must_use]
pub fn below_usage(broken: &[String]) -> String {
    let all = broken.join(", ");
    let all = if broken.len() > 1 { format!("[{all}]") } else { all };
    format!("cannot decrease memory limits: {all}")
}

impl PodMachine {
    /// Has the cgroup of a container given what is allocated to it of a resource.
    pub(in crate::pod) fn resize_container(
        &mut self,
        name: &ContainerName,
        resource: Resizable,
        shared: &mut Shared<'_>,
    ) {
        let life = &self.life;
        let Some(container) = self.container(name) else { return };
        let Some(has) = actuated(life, &container) else { return };
        let is_limited = |amounts: CpuMemory| amounts.amounts(resource).0 > 0;
        let was_limited = is_limited(has.least());
        let given = CpuMemory::of(&life.spec, &container);
        let id = life.container_id(name);
        let request = ResizeRequest {
            name: name.clone(),
            id: id.clone(),
            sandbox: life.sandbox_id(),
            resources: oci::resized(shared.config, &life.spec, &container, resource, was_limited),
            lowered: MemoryCheck {
                qos: life.spec.qos,
                bounds: match resource {
                    Resizable::Memory => lowered(life),
                    Resizable::Cpu => Vec::new(),
                },
            },
        };
        let tries = life.actual.resize.tries();
        let slot = Slot::Resize(name.clone(), id, resource, given);
        let op = self.ask(shared, slot, tries, Act::ResizeContainer(Box::new(request)));
        self.life.actual.resize = Resource::Ensuring(op);
    }

    /// Takes the outcome.
    pub(in crate::pod) fn container_resized(
        &mut self,
        ended: EndedEffect,
        (name, id): (&ContainerName, &ContainerId),
        (resource, given): (Resizable, CpuMemory),
        result: Result<Outcome, Failure>,
    ) {
        if self.life.actual.resize.op() != Some(ended.op) {
            return;
        }
        let result = fit::done(result);
        if let Some(run) = self.life.record.containers.get_mut(name).filter(|run| run.id == *id) {
            run.actuated = run.actuated.map(|has| match &result {
                Ok(()) => has.given(resource, given),
                Err(_) => has.perhaps_given(has.has.with(resource, given)),
            });
        }
        self.settle_resize(ended, result);
    }

    /// Containers have what they get: the cgroup of the pod is to go by what is allocated from now on, where that is enough for the memory that
    /// is used.
    pub(in crate::pod) fn settle_whole(&mut self, shared: &mut Shared<'_>) {
        let bounds = lowered(&self.life);
        if bounds.is_empty() {
            return self.whole_settled();
        }
        let act = Act::CheckMemory(MemoryCheck { qos: self.life.spec.qos, bounds });
        let tries = self.life.actual.resize.tries();
        self.life.actual.resize = Resource::Ensuring(self.ask(shared, Slot::CheckMemory, tries, act));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn memory_checked(&mut self, ended: EndedEffect, result: Result<Outcome, Failure>) {
        if self.life.actual.resize.op() != Some(ended.op) {
            return;
        }
        let result = fit::done(result);
        if result.is_ok() {
            self.whole_settled();
        }
        self.settle_resize(ended, result);
    }

    fn whole_settled(&mut self) {
        self.life.actual.is_memory_enough = true;
        if let Some(resizing) = &mut self.life.record.resizing {
            resizing.whole = None;
        }
    }

    /// The pod's cgroup did not get what it was asked to have. Where that was the lower limit, what is used may have grown since it was looked at:
    /// it is looked at anew.
    pub(in crate::pod) fn lowering_failed(&mut self, ended: EndedEffect, failure: &Failure) {
        if std::mem::take(&mut self.life.actual.is_memory_enough) {
            self.tell_failure(failure, ended);
            self.life.actual.resize = Resource::Failed(Retry::after(failure.clone(), 0, ended.at));
        }
    }

    fn tell_failure(&mut self, failure: &Failure, ended: EndedEffect) {
        if !failure.kind.is_told_elsewhere() {
            self.resize_failed(&failure.message, ended.at);
        }
    }

    fn settle_resize(&mut self, ended: EndedEffect, result: Result<(), Failure>) {
        if let Err(failure) = &result {
            self.tell_failure(failure, ended);
        }
        self.life.actual.resize.settle(ended, result);
        if self.life.actual.resize.ready().is_some() {
            self.life.actual.resize = Resource::Absent;
        }
    }
}

/// Memory limits that become lower than they are.
fn lowered(life: &Life) -> Vec<MemoryBound> {
    let is_lower = |limit: u64, has: u64| limit > 0 && (has == 0 || limit < has);
    let limit = cgroup::memory_max(&life.spec).unwrap_or(0);
    let of_pod = is_lower(limit, memory_now(life)).then_some(MemoryBound { container: None, limit });
    let of_containers = life.spec.fixed_containers().filter_map(|container| {
        let has = changes_running(life, container)?;
        let limit = CpuMemory::of(&life.spec, container).memory_limit;
        let name = container.name.clone();
        let container = Some((name.clone(), life.container_id(&name)));
        is_lower(limit, has.most().memory_limit).then_some(MemoryBound { container, limit })
    });
    of_pod.into_iter().chain(of_containers).collect()
}
