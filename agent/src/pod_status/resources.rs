//! Resources in a pod's status: of its containers, and of all of it.

mod form;
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

use self::{form::Form, forms::Forms};
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
        let cores = Form::Decimal.written_milli(cpu.into());
        for (name, amount, text) in [("cpu", cpu, cores), ("memory", memory, text)] {
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
    set(&mut resources.requests, has.cpu_request, request, Form::Binary.written(request));
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
    let as_asked = |name: &str, default, _| forms.get(name).unwrap_or(default);
    let as_read = |_: &str, default, amount| match default {
        Form::Binary => form_of_read(amount),
        Form::Decimal | Form::Exponent => default,
    };
    let resources = ResourceRequirements {
        requests: amounts(&shown.has.requests, as_asked),
        limits: amounts(&shown.has.limits, as_read),
        ..ResourceRequirements::default()
    };
    (amounts(&shown.allocated, as_asked), resources)
}

/// Each in the form that its name, what it has by default and its size call for.
fn amounts(of: &Quantities, form: impl Fn(&str, Form, u64) -> Form) -> Option<Amounts> {
    let cpu = of.cpu_milli.map(|milli| {
        let form = form("cpu", Form::Decimal, milli);
        ("cpu".to_owned(), Quantity(form.written_milli(milli.into())))
    });
    let bytes = [("memory", of.memory_bytes), ("ephemeral-storage", of.ephemeral_storage_bytes)];
    let bytes = bytes.into_iter().filter_map(|(name, bytes)| Some((name.to_owned(), bytes?)));
    let page = |size: u64| format!("hugepages-{}", Form::Binary.written(size));
    let pages = of.hugepages_bytes.iter().map(|(size, bytes)| (page(*size), *bytes));
    let extended = of.extended.iter().map(|(name, amount)| (name.clone(), *amount));
    let bytes = bytes.chain(pages).map(|(name, bytes)| (name, Form::Binary, bytes));
    let others = bytes.chain(extended.map(|(name, amount)| (name, Form::Decimal, amount)));
    let written = others.map(|(name, default, amount)| {
        let text = form(&name, default, amount).written(amount);
        (name, Quantity(text))
    });
    let all: Amounts = cpu.into_iter().chain(written).collect();
    (!all.is_empty()).then_some(all)
}

/// As the API server writes what the kubelet reads of a cgroup: with powers of two, or of ten where there is no power of two in it.
fn form_of_read(bytes: u64) -> Form {
    if bytes.is_multiple_of(1 << 10) { Form::Binary } else { Form::Decimal }
}

fn read_back(bytes: u64) -> String {
    form_of_read(bytes).written(bytes)
}

#[cfg(test)]
mod tests {
    use berth_core::spec::Resources;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_asked_for_is_written_as_it_was_asked_for() {
        for (written, memory, disk) in [
            ("100M", "100M", "100M"),
            ("100000000", "100M", "100M"),
            ("64Mi", "64Mi", "64Mi"),
            ("129e6", "129e6", "129e6"),
        ] {
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
