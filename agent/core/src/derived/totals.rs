//! What a pod requests and may use as a whole.
//!
//! Source: `k8s.io/component-helpers/resource` `PodRequests` and `PodLimits`. Init containers run one after the other
//! beside the sidecars started before them, main containers beside all sidecars; the pod needs the larger of the two.
//! What the pod names for itself takes the place of the sum.

use std::sync::Arc;

use crate::spec::{Container, ContainerKind, Pod, Quantities, Resources};

/// Requests of the whole pod.
#[must_use]
pub fn requests(pod: &Pod) -> Quantities {
    let own = pod.resources.as_ref().map(|resources| &resources.requests);
    let mut requests = replaced_by(of_containers(&pod.init_containers, &pod.containers).requests, own);
    combine(&mut requests, &pod.overhead, u64::saturating_add);
    requests
}

/// Requests and limits of all containers together, whatever the pod names for itself.
#[must_use]
pub fn of_containers(init: &[Arc<Container>], main: &[Arc<Container>]) -> Resources {
    Resources {
        requests: total(init, main, |resources| &resources.requests),
        limits: total(init, main, |resources| &resources.limits),
    }
}

/// Limits of the whole pod. A limit that only some containers have is a sum of those and binds nobody; see
/// [`every_container_limits`].
#[must_use]
pub fn limits(pod: &Pod) -> Quantities {
    let own = pod.resources.as_ref().map(|resources| &resources.limits);
    let mut limits = replaced_by(of_containers(&pod.init_containers, &pod.containers).limits, own);
    // Overhead makes no limit where there is none.
    let Quantities { cpu_milli, memory_bytes, ephemeral_storage_bytes, .. } = pod.overhead;
    let add = |limit: &mut Option<u64>, more: Option<u64>| {
        *limit = limit.map(|limit| limit.saturating_add(more.unwrap_or(0)));
    };
    add(&mut limits.cpu_milli, cpu_milli);
    add(&mut limits.memory_bytes, memory_bytes);
    add(&mut limits.ephemeral_storage_bytes, ephemeral_storage_bytes);
    limits
}

/// Whether the pod as a whole is limited in a resource: by itself, or because every container is. Those that begin beside a sidecar that is
/// limited count as limited (`ContainerFn` of `AggregateContainerLimits`, which is asked of sums).
#[must_use]
pub fn every_container_limits(pod: &Pod, amount: impl Fn(&Quantities) -> Option<u64>) -> bool {
    let limited = |resources: &Resources| amount(&resources.limits).is_some_and(|amount| amount > 0);
    let mut is_beside = false;
    let mut counts = |container: &Arc<Container>| {
        let is_limited = limited(&container.resources);
        is_beside |= is_limited && container.kind == ContainerKind::Sidecar;
        is_limited || is_beside
    };
    pod.resources.as_ref().is_some_and(limited)
        || (pod.init_containers.iter().all(&mut counts)
            && pod.containers.iter().all(|one| limited(&one.resources)))
}

fn total(
    init: &[Arc<Container>],
    main: &[Arc<Container>],
    level: impl Fn(&Resources) -> &Quantities,
) -> Quantities {
    let mut running = Quantities::default();
    let mut peak = Quantities::default();
    let quantities = |container: &Container| level(&container.resources).clone();
    for container in init {
        let mut beside = running.clone();
        combine(&mut beside, &quantities(container), u64::saturating_add);
        match container.kind {
            ContainerKind::Sidecar => running = beside.clone(),
            ContainerKind::Init | ContainerKind::Main | ContainerKind::Ephemeral => {}
        }
        combine(&mut peak, &beside, u64::max);
    }
    for container in main {
        combine(&mut running, &quantities(container), u64::saturating_add);
    }
    combine(&mut running, &peak, u64::max);
    running
}

/// Joins amounts by name; one that only one side has stays as it is.
fn combine(left: &mut Quantities, right: &Quantities, join: impl Fn(u64, u64) -> u64) {
    let one = |left: &mut Option<u64>, right: Option<u64>| {
        *left = match (*left, right) {
            (Some(left), Some(right)) => Some(join(left, right)),
            (left, right) => left.or(right),
        };
    };
    one(&mut left.cpu_milli, right.cpu_milli);
    one(&mut left.memory_bytes, right.memory_bytes);
    one(&mut left.ephemeral_storage_bytes, right.ephemeral_storage_bytes);
    for (size, amount) in &right.hugepages_bytes {
        left.hugepages_bytes.entry(*size).and_modify(|left| *left = join(*left, *amount)).or_insert(*amount);
    }
    for (name, amount) in &right.extended {
        left.extended.entry(name.clone()).and_modify(|left| *left = join(*left, *amount)).or_insert(*amount);
    }
}

/// Pod-level resources are CPU, memory and huge pages (KEP-2837).
fn replaced_by(mut sum: Quantities, own: Option<&Quantities>) -> Quantities {
    if let Some(own) = own {
        sum.cpu_milli = own.cpu_milli.or(sum.cpu_milli);
        sum.memory_bytes = own.memory_bytes.or(sum.memory_bytes);
        sum.hugepages_bytes.extend(&own.hugepages_bytes);
    }
    sum
}

#[cfg(test)]
mod tests;
