//! Resources in a pod's status: of its containers, and of all of it.

mod forms;

use std::collections::BTreeMap;

use berth_core::{
    spec::{CpuMemory, Quantities},
    status::PodResources,
};
use k8s_openapi::{
    api::core::v1::{Container, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use self::forms::Forms;
use crate::quantity::Quantity as Amount;

type Amounts = BTreeMap<String, Quantity>;

/// Of a container. A limit without a request is a request too (`SetDefaults_Pod` of `pkg/apis/core/v1/defaults.go`).
pub(super) fn of_container(container: &Container) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    for (name, limit) in resources.limits.iter().flatten() {
        resources
            .requests
            .get_or_insert_with(BTreeMap::new)
            .entry(name.clone())
            .or_insert_with(|| limit.clone());
    }
    resources
}

/// While a resize is under way, a container shows what it has as its resources, and what it gets as allocated. Where it names no limits, or no
/// requests, it shows none, though its pod may bound it (`convertToAPIContainerStatuses` of `pkg/kubelet/kubelet_pods.go`).
pub(super) fn set_actuated(resources: &mut ResourceRequirements, has: CpuMemory) {
    let set = |list: &mut Option<Amounts>, cpu: u64, memory: u64, text: String| {
        let Some(amounts) = list else { return };
        for (name, amount, text) in [("cpu", cpu, cores(cpu)), ("memory", memory, text)] {
            if amount == 0 {
                amounts.remove(name);
            } else {
                amounts.insert(name.to_owned(), Quantity(text));
            }
        }
        if amounts.is_empty() {
            *list = None;
        }
    };
    let (request, limit) = (has.memory_request, has.memory_limit);
    set(&mut resources.requests, has.cpu_request, request, binary(request));
    set(&mut resources.limits, has.cpu_limit, limit, read_back(limit));
}

/// A container that runs shows its limit of memory as it is read back, in whole bytes (`toKubeContainerResources` of
/// `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`).
pub(super) fn set_read_back(resources: &mut ResourceRequirements) {
    let limit = resources.limits.as_mut().and_then(|limits| limits.get_mut("memory"));
    if let Some(limit) = limit
        && let Ok(amount) = limit.0.parse::<Amount>()
    {
        limit.0 = read_back(amount.units().unsigned_abs());
    }
}

/// `status.allocatedResources` and `status.resources` of a pod.
pub(super) fn of_pod(shown: &PodResources, spec: &PodSpec) -> (Option<Amounts>, ResourceRequirements) {
    let forms = Forms::of(spec);
    let as_asked = |name: &str, amount| if forms.is_binary(name) { binary(amount) } else { decimal(amount) };
    let resources = ResourceRequirements {
        requests: amounts(&shown.has.requests, as_asked),
        limits: amounts(&shown.has.limits, |_, bytes| read_back(bytes)),
        ..ResourceRequirements::default()
    };
    (amounts(&shown.allocated, as_asked), resources)
}

fn amounts(of: &Quantities, bytes: impl Fn(&str, u64) -> String) -> Option<Amounts> {
    let mut all = Amounts::new();
    let mut add = |name: String, text: Option<String>| {
        all.extend(text.map(|text| (name, Quantity(text))));
    };
    add("cpu".to_owned(), of.cpu_milli.map(cores));
    for (name, amount) in [("memory", of.memory_bytes), ("ephemeral-storage", of.ephemeral_storage_bytes)] {
        add(name.to_owned(), amount.map(|amount| bytes(name, amount)));
    }
    for (size, amount) in &of.hugepages_bytes {
        let name = format!("hugepages-{}", binary(*size));
        let text = bytes(&name, *amount);
        add(name, Some(text));
    }
    for (name, amount) in &of.extended {
        add(name.clone(), Some(decimal(*amount)));
    }
    (!all.is_empty()).then_some(all)
}

fn cores(milli: u64) -> String {
    if milli.is_multiple_of(1000) { decimal(milli / 1000) } else { format!("{milli}m") }
}

/// As the API server writes what the kubelet reads of a cgroup: with powers of two, or of ten where there is no power of two in it.
fn read_back(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 10) { binary(bytes) } else { decimal(bytes) }
}

/// In the largest unit of which it is a multiple.
fn binary(amount: u64) -> String {
    in_units(
        amount,
        [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")]
            .map(|(power, name)| (1 << power, name)),
    )
}

/// The same with powers of ten.
fn decimal(amount: u64) -> String {
    in_units(
        amount,
        [(18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")]
            .map(|(power, name)| (10_u64.pow(power), name)),
    )
}

fn in_units(amount: u64, units: [(u64, &str); 6]) -> String {
    let unit = units.into_iter().find(|(size, _)| amount > 0 && amount.is_multiple_of(*size));
    unit.map_or_else(|| amount.to_string(), |(size, name)| format!("{}{name}", amount / size))
}

#[cfg(test)]
mod tests {
    use berth_core::spec::Resources;
    use serde_json::json;

    use super::*;

    /// As Go writes them.
    #[test]
    fn amounts_are_written_as_the_kubelet_writes_them() {
        for (amount, in_binary, in_decimal) in [
            (0, "0", "0"),
            (999, "999", "999"),
            (1000, "1000", "1k"),
            (1024, "1Ki", "1024"),
            (200_000_000, "200000000", "200M"),
            (64 << 20, "64Mi", "67108864"),
            (3 << 40, "3Ti", "3298534883328"),
        ] {
            assert_eq!(binary(amount), in_binary);
            assert_eq!(decimal(amount), in_decimal);
        }
        for (milli, text) in [(1, "1m"), (1500, "1500m"), (2000, "2"), (1_000_000, "1k")] {
            assert_eq!(cores(milli), text);
        }
    }

    #[test]
    fn what_is_asked_for_is_written_as_it_was_asked_for() {
        for (written, memory, disk) in
            [("100M", "100M", "100M"), ("100000000", "100M", "100M"), ("64Mi", "64Mi", "64Mi")]
        {
            let amount = written.parse::<Amount>().unwrap().units().unsigned_abs();
            let requests = Quantities {
                memory_bytes: Some(amount),
                ephemeral_storage_bytes: Some(amount),
                ..Quantities::default()
            };
            let asks = json!({ "requests": { "memory": written, "ephemeral-storage": written } });
            let spec = json!({ "containers": [{ "name": "a", "resources": asks }] });
            let has = Resources { requests: requests.clone(), ..Resources::default() };
            let shown = PodResources { allocated: requests, has };
            let (allocated, resources) = of_pod(&shown, &serde_json::from_value(spec).unwrap());
            let shown = json!({ "memory": memory, "ephemeral-storage": disk });
            assert_eq!(serde_json::to_value(allocated).unwrap(), shown);
            assert_eq!(serde_json::to_value(resources).unwrap(), json!({ "requests": shown }));
        }
    }

    #[test]
    fn a_limit_of_memory_is_shown_as_it_is_read_back() {
        for (written, expected) in [
            ("512M", "500000Ki"),
            ("100M", "100M"),
            ("64Mi", "64Mi"),
            ("128974848", "123Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.05Gi", "53687092"),
            ("100000001", "100000001"),
        ] {
            let shown = |text: &str| json!({ "limits": { "cpu": "0.5", "memory": text }, "requests": { "memory": written } });
            let mut resources = serde_json::from_value(shown(written)).unwrap();
            set_read_back(&mut resources);
            assert_eq!(serde_json::to_value(&resources).unwrap(), shown(expected), "{written}");
        }
        let mut none = ResourceRequirements::default();
        set_read_back(&mut none);
        assert_eq!(none, ResourceRequirements::default());
        let limits = Quantities { memory_bytes: Some(512_000_000), ..Quantities::default() };
        let has = Resources { limits, ..Resources::default() };
        let (_, of_pod) =
            of_pod(&PodResources { allocated: Quantities::default(), has }, &PodSpec::default());
        assert_eq!(serde_json::to_value(of_pod).unwrap(), json!({ "limits": { "memory": "500000Ki" } }));
    }

    #[test]
    fn all_that_a_pod_takes_has_its_name() {
        let all = Quantities {
            cpu_milli: Some(250),
            memory_bytes: Some(64 << 20),
            ephemeral_storage_bytes: Some(1 << 30),
            hugepages_bytes: [(2 << 20, 4 << 20)].into(),
            extended: [("example.com/gpu".to_owned(), 2)].into(),
        };
        let shown = PodResources { allocated: all, has: Resources::default() };
        let (allocated, resources) = of_pod(&shown, &PodSpec::default());
        let expected = json!({
            "cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi", "example.com/gpu": "2",
        });
        assert_eq!(serde_json::to_value(allocated).unwrap(), expected);
        assert_eq!(serde_json::to_value(resources).unwrap(), json!({}), "nothing is not absent");
    }
}
