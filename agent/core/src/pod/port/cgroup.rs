//! The pod's cgroup.

use crate::{
    cgroup::{self, CgroupValues},
    config::NodeConfig,
    effect::Act,
    event::Outcome,
    failure::Failure,
    pod::{
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::{EndedEffect, Resource},
    },
    spec::{Pod, QosClass},
};

/// The pod's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupRequest {
    /// Under which QoS parent.
    pub qos: QosClass,
    /// Values of the pod's own level.
    pub values: CgroupValues,
}

/// What a pod's cgroup is to be.
pub(in crate::pod) fn request(pod: &Pod, config: &NodeConfig) -> CgroupRequest {
    CgroupRequest { qos: pod.qos, values: cgroup::pod_values(pod, config) }
}

impl PodMachine {
    /// Asks for the cgroup.
    pub(in crate::pod) fn ensure_cgroup(&mut self, shared: &mut Shared<'_>) {
        let tries = self.life.actual.cgroup.tries();
        let act = Act::EnsureCgroup(request(&self.life.spec, shared.config));
        self.life.actual.cgroup = Resource::Ensuring(self.ask(shared, Slot::Cgroup, tries, act));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn cgroup_made(&mut self, ended: EndedEffect, result: Result<Outcome, Failure>) {
        self.complain(&result, "FailedCreatePodContainer", "unable to ensure pod container exists: ");
        self.life.actual.cgroup.settle(ended, fit::done(result));
    }
}
