//! Quality-of-service class of a pod.
//!
//! Source: `pkg/apis/core/v1/helper/qos/qos.go` `ComputePodQOS`. Only CPU and memory count, and only amounts above zero.

use crate::spec::{QosClass, Quantities, Resources};

/// The class of a pod with these resources: the pod's own where there are some, be they empty, else those of all its containers, init
/// containers included. Requests must already have their default, the limit.
#[must_use]
pub fn class<'a>(pod: Option<&Resources>, containers: impl IntoIterator<Item = &'a Resources>) -> QosClass {
    match pod {
        Some(pod) => of_levels(std::iter::once(pod)),
        None => of_levels(containers),
    }
}

fn of_levels<'a>(levels: impl IntoIterator<Item = &'a Resources>) -> QosClass {
    let mut requests = Sum::default();
    let mut limits = Sum::default();
    let mut all_limited = true;
    for level in levels {
        all_limited &= named(level.limits.cpu_milli) && named(level.limits.memory_bytes);
        requests.add(&level.requests);
        limits.add(&level.limits);
    }
    if requests == Sum::default() && limits == Sum::default() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// CPU and memory of all levels together; zero is the same as not named.
#[derive(Default, PartialEq, Eq)]
struct Sum {
    cpu_milli: u64,
    memory_bytes: u64,
}

impl Sum {
    fn add(&mut self, quantities: &Quantities) {
        self.cpu_milli = self.cpu_milli.saturating_add(quantities.cpu_milli.unwrap_or(0));
        self.memory_bytes = self.memory_bytes.saturating_add(quantities.memory_bytes.unwrap_or(0));
    }
}

fn named(amount: Option<u64>) -> bool {
    amount.is_some_and(|amount| amount > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use QosClass::{BestEffort, Burstable, Guaranteed};

    fn quantities((cpu, memory): (u64, u64)) -> Quantities {
        let some = |amount| (amount > 0).then_some(amount);
        Quantities { cpu_milli: some(cpu), memory_bytes: some(memory), ..Quantities::default() }
    }

    fn resources(requests: (u64, u64), limits: (u64, u64)) -> Resources {
        Resources { requests: quantities(requests), limits: quantities(limits) }
    }

    #[test]
    fn containers_decide_when_the_pod_names_nothing() {
        let none = resources((0, 0), (0, 0));
        let full = resources((100, 10), (100, 10));
        for (containers, expected) in [
            (vec![], BestEffort),
            (vec![none.clone(), none.clone()], BestEffort),
            (vec![full.clone()], Guaranteed),
            (vec![full.clone(), full.clone()], Guaranteed),
            (vec![full.clone(), none], Burstable),
            (vec![resources((100, 10), (200, 10))], Burstable),
            (vec![resources((100, 0), (100, 0))], Burstable),
            (vec![resources((0, 10), (0, 10))], Burstable),
            (vec![resources((0, 0), (100, 10))], Burstable),
            (vec![resources((1, 0), (0, 0))], Burstable),
            (vec![full, resources((50, 5), (60, 5))], Burstable),
        ] {
            assert_eq!(class(None, &containers), expected, "{containers:?}");
        }
    }

    #[test]
    fn resources_of_the_pod_take_precedence() {
        let containers = [resources((100, 10), (100, 10))];
        for (pod, expected) in [
            (resources((200, 20), (200, 20)), Guaranteed),
            (resources((200, 20), (400, 20)), Burstable),
            (resources((200, 0), (200, 0)), Burstable),
            (resources((0, 0), (0, 0)), BestEffort),
        ] {
            assert_eq!(class(Some(&pod), &containers), expected, "{pod:?}");
        }
    }

    #[test]
    fn an_amount_of_zero_is_not_named() {
        let zero = Quantities { cpu_milli: Some(0), memory_bytes: Some(0), ..Quantities::default() };
        let container = Resources { requests: zero.clone(), limits: zero };
        assert_eq!(class(None, [&container]), BestEffort);
    }

    #[test]
    fn sums_do_not_overflow() {
        let huge = resources((u64::MAX, u64::MAX), (u64::MAX, u64::MAX));
        assert_eq!(class(None, [&huge, &huge]), Guaranteed);
    }
}
