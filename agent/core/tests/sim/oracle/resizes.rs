//! Resources that change while containers run, from "Resize CPU and Memory Resources assigned to Containers" of the tasks of Kubernetes and
//! KEP-1287.

use berth_core::{
    id::PodUid,
    spec::{Container, Resources},
};

use super::Oracle;
use crate::world::Given;

impl Oracle {
    /// A container has this from now on; what was allocated to it by what is on disk.
    pub(crate) fn given(&mut self, pod: &PodUid, given: Given, allocated: Option<Given>) {
        let is_right = allocated == Some(given);
        let broken = (!is_right).then(|| format!("{pod}: {given:?} in place of {allocated:?}"));
        self.judge("a container is given what was allocated to it", broken);
    }

    /// The cgroup of a pod, or what runs in it, has changed.
    pub(crate) fn level(&mut self, pod: &PodUid, level: Given, running: &[Given]) {
        let is_right = level.is_enough_for(Given::sum(running));
        let broken = (!is_right).then(|| format!("{pod}: {running:?} in {level:?}"));
        self.judge("a pod's cgroup is enough for what runs in it", broken);
    }

    /// Nothing changes any more.
    pub(crate) fn given_at_rest(&mut self, pod: &PodUid, given: Given, allocated: Given, is_told: bool) {
        let is_right = given == allocated && !is_told;
        let broken =
            (!is_right).then(|| format!("{pod}: {given:?} in place of {allocated:?}, told {is_told}"));
        self.judge("at rest a container has what is allocated to it", broken);
    }
}

/// "`RestartContainer`: the container is restarted to apply the resize", where one of this kind of resource is asked for.
pub(super) fn restarts_for(container: &Container, had: &Resources) -> bool {
    let (now, policy) = (&container.resources, container.resize_policy);
    let memory = |of: &Resources| (of.requests.memory_bytes, of.limits.memory_bytes);
    let cpu = |of: &Resources| (of.requests.cpu_milli, of.limits.cpu_milli);
    (policy.memory_restarts && memory(now) != memory(had)) || (policy.cpu_restarts && cpu(now) != cpu(had))
}
