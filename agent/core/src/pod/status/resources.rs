//! What a pod takes as a whole, as its status shows it.
//!
//! Until it runs that is what is allocated to it; then what its cgroup has, in what it was computed from: what a weight of cgroups of version 2
//! or a page of the kernel rounds is not read back. Source: `convertToAPIPodLevelResourcesStatus` and
//! `getEffectiveAllocatedResources` of `pkg/kubelet/kubelet_pods.go`.

use crate::{
    cgroup::{cpu, kept_by},
    config::NodeConfig,
    derived::totals,
    pod::{
        actual::Life,
        port::cgroup,
        resize::{in_force, memory_now},
    },
    spec::Resources,
    status::{Phase, PodResources},
};

/// Thousandths of a core: smaller requests and limits are these in the kernel, so what is asked for is shown in their place.
const REQUEST_MIN: u64 = 2;
const LIMIT_MIN: u64 = 10;

pub(super) fn of(life: &Life, config: &NodeConfig, phase: Phase) -> PodResources {
    let allocated = totals::requests(&life.spec);
    let has = match phase {
        Phase::Pending => Resources { requests: allocated.clone(), limits: totals::limits(&life.spec) },
        Phase::Running | Phase::Succeeded | Phase::Failed => in_cgroup(life, config),
    };
    PodResources { allocated, has }
}

/// What the cgroup has of CPU and memory; what is requested of memory is in no cgroup, and of the rest the pod's own is shown.
fn in_cgroup(life: &Life, config: &NodeConfig) -> Resources {
    let values = kept_by(config.cgroups.driver, cgroup::request(life, config).values);
    let quota = values.cpu_quota_us.zip(values.cpu_period_us);
    let at_least = |amount: u64, least: u64, own: Option<u64>| {
        Some(amount).filter(|amount| *amount > least || own > Some(least)).or(own)
    };
    let before = in_force(life);
    let before = before.as_ref().unwrap_or(&life.spec);
    let Resources { mut requests, mut limits } = life.spec.resources.clone().unwrap_or_default();
    // What is named is shown without what the runtime takes beside it.
    let named = before.resources.as_ref().and_then(|own| own.requests.memory_bytes);
    requests.memory_bytes = named.or_else(|| totals::requests(before).memory_bytes);
    if let Some(shares) = values.cpu_shares {
        requests.cpu_milli = at_least(cpu::milli_of_shares(shares), REQUEST_MIN, requests.cpu_milli);
    }
    if let Some((quota, period)) = quota {
        limits.cpu_milli = at_least(cpu::milli_of_quota(quota, period), LIMIT_MIN, limits.cpu_milli);
    }
    limits.memory_bytes = Some(memory_now(life)).filter(|bytes| *bytes > 0).or(limits.memory_bytes);
    Resources { requests, limits }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use jiff::Timestamp;

    use super::*;
    use crate::{
        fixtures,
        metrics::Trigger,
        pod::PodMachine,
        spec::{Container, Pod, QosClass, Quantities},
        time::{Mono, Now},
    };

    const MIB: u64 = 1 << 20;
    const NOW: Now = Now { mono: Mono(Duration::ZERO), wall: Timestamp::UNIX_EPOCH };

    /// CPU in thousandths of a core and MiB of memory; none where it is 0.
    type Amounts = (u64, u64);

    fn resources(requests: Amounts, limits: Amounts) -> Resources {
        let bytes = |(cpu, mib): Amounts| (cpu, mib * MIB);
        fixtures::resources(bytes(requests), bytes(limits))
    }

    fn amounts(of: &Quantities) -> Amounts {
        (of.cpu_milli.unwrap_or(0), of.memory_bytes.unwrap_or(0) / MIB)
    }

    /// As the kubelet shows them on cgroups of version 1, but for the largest number of the kernel.
    #[test]
    fn before_it_runs_it_shows_what_is_allocated_and_then_what_its_cgroup_has() {
        let none = (0, 0);
        for (what, own, container, qos, pending, running) in [
            ("nothing", None, resources(none, none), QosClass::BestEffort, (none, none), (none, none)),
            (
                "requests of its container",
                None,
                resources((100, 64), none),
                QosClass::Burstable,
                ((100, 64), none),
                ((100, 64), none),
            ),
            (
                "a limit of one resource",
                None,
                resources((100, 64), (0, 64)),
                QosClass::Burstable,
                ((100, 64), (0, 64)),
                ((100, 64), (0, 64)),
            ),
            (
                "its own",
                Some(resources((300, 128), (600, 256))),
                resources((100, 64), (200, 64)),
                QosClass::Burstable,
                ((300, 128), (600, 256)),
                ((300, 128), (600, 256)),
            ),
            (
                "less than the kernel can bound",
                Some(resources((1, 0), (5, 0))),
                resources(none, none),
                QosClass::Burstable,
                ((1, 0), (5, 0)),
                ((1, 0), (5, 0)),
            ),
        ] {
            let container = Container { resources: container, ..fixtures::container("web") };
            let pod = Pod { resources: own, qos, ..fixtures::pod(vec![container]) };
            let pod = PodMachine::new(Arc::new(pod), NOW);
            for (phase, (requests, limits)) in [(Phase::Pending, pending), (Phase::Running, running)] {
                let shown = of(pod.life(), &fixtures::node(), phase);
                let has = (amounts(&shown.has.requests), amounts(&shown.has.limits));
                assert_eq!(has, (requests, limits), "{what} {phase:?}");
                assert_eq!(amounts(&shown.allocated), pending.0, "{what} {phase:?}");
            }
        }
    }

    fn naming(generation: i64, requests: Amounts, limits: Amounts) -> Pod {
        let manifest = format!("{{\"generation\":{generation}}}").into();
        Pod {
            resources: Some(resources(requests, limits)),
            generation: Some(generation),
            qos: QosClass::Burstable,
            manifest,
            ..fixtures::pod(vec![fixtures::container("web")])
        }
    }

    #[test]
    fn what_the_runtime_takes_is_in_its_cgroup_and_not_in_what_is_named_of_memory() {
        let overhead = fixtures::resources((10, 32 * MIB), (0, 0)).requests;
        let pod = Pod { overhead, ..naming(1, (300, 128), (600, 256)) };
        let pod = PodMachine::new(Arc::new(pod), NOW);
        let shown = of(pod.life(), &fixtures::node(), Phase::Running);
        let has = (amounts(&shown.has.requests), amounts(&shown.has.limits));
        assert_eq!(has, ((310, 128), (610, 288)));
        assert_eq!(amounts(&shown.allocated), (310, 160));
    }

    #[test]
    fn until_a_resize_is_done_it_shows_what_its_cgroup_still_has() {
        let mut pod = PodMachine::new(Arc::new(naming(1, (300, 128), (600, 256))), NOW);
        pod.update(Arc::new(naming(2, (200, 64), (400, 128))), NOW.mono);
        pod.allocate(Trigger::PodUpdated, NOW.mono);
        let shown = of(pod.life(), &fixtures::node(), Phase::Running);
        let has = (amounts(&shown.has.requests), amounts(&shown.has.limits));
        assert_eq!(has, ((300, 128), (600, 256)));
        assert_eq!(amounts(&shown.allocated), (200, 64));
    }
}
