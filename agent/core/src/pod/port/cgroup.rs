//! The pod's cgroup.

use crate::{
    cgroup::{self, CgroupValues},
    config::NodeConfig,
    effect::Act,
    event::Outcome,
    failure::Failure,
    pod::{
        actual::Life,
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resize::{in_force, memory_held, remember_memory},
        resource::{EndedEffect, Resource},
    },
    spec::QosClass,
};

/// The pod's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupRequest {
    /// Under which QoS parent.
    pub qos: QosClass,
    /// Values of the pod's own level.
    pub values: CgroupValues,
}

/// What a pod's cgroup is to be: while a resize is under way, what is enough for what its containers have and for what they are to have.
/// So it grows before the first of them, and shrinks after the last, its memory when what is used was looked at (`doPodResizeAction` of
/// `pkg/kubelet/kuberuntime/kuberuntime_manager.go`).
pub(in crate::pod) fn request(life: &Life, config: &NodeConfig) -> CgroupRequest {
    let pod = &life.spec;
    let values = cgroup::pod_values(pod, config);
    let mut values = match in_force(life) {
        Some(before) => values.enough_for(cgroup::pod_values(&before, config)),
        None => values,
    };
    if let Some(has) = memory_held(life) {
        values.memory_bytes_max = values.memory_bytes_max.filter(|_| has > 0).map(|bytes| bytes.max(has));
    }
    CgroupRequest { qos: pod.qos, values }
}

impl PodMachine {
    /// Asks for the cgroup.
    pub(in crate::pod) fn ensure_cgroup(&mut self, shared: &mut Shared<'_>) {
        let tries = self.life.actual.cgroup.tries();
        let request = request(&self.life, shared.config);
        remember_memory(&mut self.life);
        self.life.actual.cgroup_values = Some(Box::new(request.values.clone()));
        let act = Act::EnsureCgroup(request);
        self.life.actual.cgroup = Resource::Ensuring(self.ask(shared, Slot::Cgroup, tries, act));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn cgroup_made(&mut self, ended: EndedEffect, result: Result<Outcome, Failure>) {
        self.complain(&result, "FailedCreatePodContainer", "unable to ensure pod container exists: ");
        let result = fit::done(result);
        if let Err(failure) = &result
            && self.life.actual.cgroup.op() == Some(ended.op)
        {
            self.lowering_failed(ended, failure);
        }
        self.life.actual.cgroup.settle(ended, result);
    }
}
