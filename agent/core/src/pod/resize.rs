//! Resources that a pod has, while its source asks for others. It keeps those that it was admitted with, and says so.
//!
//! Source: `UpdatePodFromAllocation` and `handlePodResourcesResize` of `pkg/kubelet/allocation/allocation_manager.go`,
//! `podResourceSummary` of `pkg/kubelet/events/resize.go`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::text::about_pod;
use crate::{
    spec::{Container, Pod, Resize},
    status::{PodEvent, Severity},
};

/// Reason of the condition `PodResizePending`: it is not tried again.
pub(super) const REASON: &str = "Infeasible";

/// Message of the condition.
pub(super) const MESSAGE: &str = "in-place resize is not supported by this node's agent: the pod goes on with the resources it was admitted with";

/// The version of a pod that is wanted now, with the resources that it has: those of the version `before`, which may have kept them from
/// an earlier one.
#[must_use]
pub fn with_allocated(before: &Pod, wanted: Arc<Pod>) -> Arc<Pod> {
    if before.resources == wanted.resources
        && wanted.all_containers().all(|one| has_what_it_asks(before, one))
    {
        return wanted;
    }
    let resize = match &before.resize {
        Some(pending) if asked(&before.manifest) == asked(&wanted.manifest) => pending.clone(),
        Some(pending) => Resize { generation: wanted.generation, ..pending.clone() },
        None => Resize { allocated: Arc::clone(&before.manifest), generation: wanted.generation },
    };
    with(before, &wanted, resize)
}

/// A pod as it is read back from its record: `wanted` is its newest version, `allocated` the one that [`Resize::allocated`] names.
#[must_use]
pub fn read_back(allocated: &Pod, wanted: &Pod, resize: Resize) -> Arc<Pod> {
    with(allocated, wanted, resize)
}

fn with(allocated: &Pod, wanted: &Pod, resize: Resize) -> Arc<Pod> {
    let keep = |all: &[Arc<Container>]| -> Vec<Arc<Container>> {
        let keep = |one: &Arc<Container>| match of_name(allocated, one) {
            Some(old) if old.resources != one.resources => {
                Arc::new(Container { resources: old.resources.clone(), ..Container::clone(one) })
            }
            Some(_) | None => Arc::clone(one),
        };
        all.iter().map(keep).collect()
    };
    Arc::new(Pod {
        resources: allocated.resources.clone(),
        qos: allocated.qos,
        init_containers: keep(&wanted.init_containers),
        containers: keep(&wanted.containers),
        resize: Some(resize),
        ..wanted.clone()
    })
}

fn of_name<'a>(pod: &'a Pod, container: &Container) -> Option<&'a Arc<Container>> {
    pod.all_containers().find(|one| one.name == container.name)
}

fn has_what_it_asks(before: &Pod, container: &Container) -> bool {
    of_name(before, container).is_none_or(|old| old.resources == container.resources)
}

/// What is told when another resize is asked for than before.
pub(super) fn note(before: &Pod, now: &Pod) -> Option<PodEvent> {
    let resize = now.resize.as_ref()?;
    if before.resize.is_some() && asked(&before.manifest) == asked(&now.manifest) {
        return None;
    }
    let summary = summary(&asked(&now.manifest), resize.generation);
    Some(about_pod(Severity::Warning, "ResizeInfeasible", format!("Pod resize {REASON}: {summary}")))
}

/// What a manifest asks for: its fields in the order in which they are told, then what is not told.
fn asked(manifest: &str) -> [Value; 3] {
    let pod: Value = serde_json::from_str(manifest).unwrap_or_default();
    let list = |field: &str| -> Value {
        let all = pod["spec"][field].as_array().map(Vec::as_slice).unwrap_or_default();
        let one = |container: &Value| {
            let resources = container.get("resources").cloned().unwrap_or_else(|| json!({}));
            json!({ "name": container["name"], "resources": resources })
        };
        all.iter().map(one).collect()
    };
    [list("initContainers"), list("containers"), pod["spec"]["resources"].clone()]
}

fn summary([init, main, _]: &[Value; 3], generation: Option<i64>) -> String {
    let lists = [("initContainers", init), ("containers", main)];
    let lists = lists.into_iter().filter(|(_, list)| **list != json!([]));
    let mut fields: Vec<String> = lists.map(|(name, list)| format!("\"{name}\":{list}")).collect();
    fields.push(format!("\"generation\":{}", generation.unwrap_or_default()));
    fields.push(format!("\"error\":{}", Value::from(MESSAGE)));
    format!("{{{}}}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures, spec::QosClass};

    /// A version of a pod whose container may use so much of a core, in thousandths.
    fn version(generation: i64, milli: u64) -> Arc<Pod> {
        let mut container = fixtures::container("web");
        container.resources.limits.cpu_milli = Some(milli);
        let manifest = json!({ "spec": {
            "containers": [{ "name": "web", "resources": { "limits": { "cpu": format!("{milli}m") } } }],
        }, "generation": generation });
        Arc::new(Pod {
            generation: Some(generation),
            qos: QosClass::Burstable,
            manifest: manifest.to_string().into(),
            ..fixtures::pod(vec![container])
        })
    }

    fn milli(pod: &Pod) -> Option<u64> {
        pod.containers[0].resources.limits.cpu_milli
    }

    #[test]
    fn a_pod_keeps_what_it_was_admitted_with_and_says_once_that_it_does() {
        let mut pod = version(1, 500);
        for (generation, asks, pending_since, is_told) in [
            (2, 500, None, false),
            (3, 800, Some(3), true),
            (4, 800, Some(3), false),
            (5, 900, Some(5), true),
            (6, 500, None, false),
            (7, 700, Some(7), true),
        ] {
            let next = with_allocated(&pod, version(generation, asks));
            assert_eq!((milli(&next), next.generation), (Some(500), Some(generation)), "{generation}");
            let resize = next.resize.as_ref();
            assert_eq!(resize.and_then(|resize| resize.generation), pending_since, "{generation}");
            assert_eq!(note(&pod, &next).is_some(), is_told, "{generation}");
            assert!(resize.is_none_or(|resize| resize.allocated.contains("\"500m\"")), "{resize:?}");
            pod = next;
        }
    }

    /// As the kubelet tells it.
    #[test]
    fn the_event_names_what_is_asked_for() {
        let (before, asks) = (version(1, 500), version(2, 800));
        let note = note(&before, &with_allocated(&before, asks)).unwrap();
        assert_eq!(note.reason, "ResizeInfeasible");
        let text = format!(
            "Pod resize Infeasible: {{\"containers\":[{{\"name\":\"web\",\"resources\":{{\"limits\":{{\"cpu\":\"800m\"}}}}}}],\
             \"generation\":2,\"error\":\"{MESSAGE}\"}}"
        );
        assert_eq!(note.message, text);
    }

    /// The next agent has the manifests of both.
    #[test]
    fn what_is_read_back_is_what_was() {
        let (before, asks) = (version(1, 500), version(2, 800));
        let was = with_allocated(&before, Arc::clone(&asks));
        assert_eq!(read_back(&before, &asks, was.resize.clone().unwrap()), was);
    }
}
