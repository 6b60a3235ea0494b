//! In which form what a pod asks for as a whole is written.
//!
//! A sum is written as its first part, and the larger of two amounts as that one is, in the order in which they are put together. Source:
//! `Add` of `k8s.io/apimachinery/pkg/api/resource/quantity.go`, `PodRequests` of `k8s.io/component-helpers/resource/helpers.go`.

use std::collections::BTreeMap;

use super::form::Form;

use k8s_openapi::{api::core::v1::PodSpec, apimachinery::pkg::api::resource::Quantity};

use crate::quantity::Quantity as Amount;

/// Amounts by the resources that they are of.
type Requests = BTreeMap<String, Quantity>;

/// What is asked for, by resource.
#[derive(Debug, Default)]
pub(super) struct Forms(BTreeMap<String, Sum>);

#[derive(Debug, Clone, Copy)]
struct Sum {
    milli: i64,
    form: Form,
}

impl Forms {
    /// Of all that a pod requests.
    pub(super) fn of(spec: &PodSpec) -> Self {
        let mut all = Self::default();
        for container in &spec.containers {
            all.add(&requests(container.resources.as_ref().and_then(|it| it.requests.as_ref())));
        }
        let (mut sidecars, mut init) = (Self::default(), Self::default());
        for container in spec.init_containers.iter().flatten() {
            let own = requests(container.resources.as_ref().and_then(|it| it.requests.as_ref()));
            if container.restart_policy.as_deref() == Some("Always") {
                all.add(&own);
                sidecars.add(&own);
                init.max(&sidecars);
            } else {
                let mut at_once = own;
                at_once.add(&sidecars);
                init.max(&at_once);
            }
        }
        all.max(&init);
        // What is said of the pod as a whole takes the place of what its containers say.
        all.0.extend(requests(spec.resources.as_ref().and_then(|it| it.requests.as_ref())).0);
        all.add(&requests(spec.overhead.as_ref()));
        all
    }

    /// That of a resource, where it was asked for.
    pub(super) fn get(&self, resource: &str) -> Option<Form> {
        self.0.get(resource).map(|sum| sum.form)
    }

    fn add(&mut self, more: &Self) {
        for (name, more) in &more.0 {
            let sum = self.0.entry(name.clone()).or_insert(Sum { milli: 0, ..*more });
            if sum.milli == 0 {
                sum.form = more.form;
            }
            sum.milli = sum.milli.saturating_add(more.milli);
        }
    }

    fn max(&mut self, other: &Self) {
        for (name, other) in &other.0 {
            let most = self.0.entry(name.clone()).or_insert(*other);
            if other.milli > most.milli {
                *most = *other;
            }
        }
    }
}

fn requests(requests: Option<&Requests>) -> Forms {
    let sum =
        |text: &Quantity| Sum { milli: text.0.parse().map_or(0, Amount::milli), form: Form::of(&text.0) };
    Forms(requests.into_iter().flatten().map(|(name, text)| (name.clone(), sum(text))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_sum_has_the_form_of_its_first_part_and_the_larger_amount_its_own() {
        use Form::{Binary, Decimal, Exponent};
        let asks = |text: Option<&str>| match text {
            None => json!({}),
            Some(text) => json!({ "requests": { "memory": text } }),
        };
        let form = |own, containers: &[Option<&str>], init: &[(&str, bool)], overhead: Value| {
            let containers: Vec<Value> =
                containers.iter().map(|text| json!({ "name": "c", "resources": asks(*text) })).collect();
            let init: Vec<Value> = init
                .iter()
                .map(|(text, is_sidecar)| {
                    let policy = is_sidecar.then_some("Always");
                    json!({ "name": "i", "restartPolicy": policy, "resources": asks(Some(text)) })
                })
                .collect();
            let spec = json!({
                "resources": asks(own), "containers": containers, "initContainers": init, "overhead": overhead,
            });
            Forms::of(&serde_json::from_value(spec).unwrap()).get("memory")
        };
        for (own, containers, init, expected) in [
            (None, &[Some("100M"), Some("64Mi")][..], &[][..], Some(Decimal)),
            (None, &[Some("64Mi"), Some("100M")], &[], Some(Binary)),
            (None, &[None, Some("100M")], &[], Some(Decimal)),
            // Nothing has no form.
            (None, &[Some("0"), Some("64Mi")], &[], Some(Binary)),
            // The larger of what init containers and the others take.
            (None, &[Some("20M")], &[("64Mi", false)], Some(Binary)),
            (None, &[Some("200M")], &[("64Mi", false)], Some(Decimal)),
            (None, &[Some("20Mi")], &[("64M", false), ("65M", false)], Some(Decimal)),
            (None, &[Some("20Mi")], &[("64M", false), ("64Mi", false)], Some(Binary)),
            // A sidecar is added to the others, and to those that begin after it.
            (None, &[Some("20M")], &[("64Mi", true)], Some(Decimal)),
            (None, &[None], &[("64Mi", true), ("10M", false)], Some(Decimal)),
            (None, &[Some("20Mi")], &[("64Mi", true), ("10M", false)], Some(Binary)),
            (None, &[Some("20Mi")], &[("1Mi", true), ("64M", false)], Some(Decimal)),
            // What is as much as the others is not more.
            (None, &[Some("64Mi")], &[("67108864", false)], Some(Binary)),
            (Some("200Mi"), &[Some("100M")], &[], Some(Binary)),
            (Some("200M"), &[Some("100Mi")], &[("1Gi", false)], Some(Decimal)),
            (None, &[None], &[], None),
            (None, &[Some("129e6"), Some("64Mi")], &[], Some(Exponent)),
            (None, &[Some("64M")], &[("65e6", false)], Some(Exponent)),
        ] {
            assert_eq!(form(own, containers, init, Value::Null), expected, "{own:?} {containers:?} {init:?}");
        }
        let overhead = || json!({ "memory": "10M" });
        assert_eq!(form(None, &[None], &[], overhead()), Some(Decimal));
        assert_eq!(form(None, &[Some("64Mi")], &[], overhead()), Some(Binary));
    }
}
