//! `/pods` and `/runningpods/`: lists as the API has them. Sources: `encodePods` and `getPods` of `pkg/kubelet/server/server.go`,
//! `GetPods` and `GetRunningPods` of `pkg/kubelet/kubelet_getters.go`.

use berth_core::{
    cluster::{defaults, patch},
    spec::Source,
    status::{ContainerState, ContainerStatus},
};
use serde_json::{Value, json};

use super::super::{Response, answer::json, lanes::Whole};
use crate::{
    pod_status,
    view::{PodView, View},
};

/// All pods that the node is to have, each with its status as the node knows it. Many and long manifests are read for it.
pub(super) async fn wanted(view: View, whole: &Whole) -> Response {
    whole.answer(move || json(&list(view.pods().iter().filter_map(pod).collect()))).await
}

/// All pods with a sandbox that runs, and their containers that do, with the little that the runtime would know of them.
pub(super) async fn running(view: View, whole: &Whole) -> Response {
    whole.answer(move || json(&list(view.pods().iter().filter_map(running_pod).collect()))).await
}

fn list(items: Vec<Value>) -> Value {
    json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": or_null(items) })
}

/// `null` without any item, as Go writes a list that nothing was added to.
fn or_null(items: Vec<Value>) -> Value {
    if items.is_empty() { Value::Null } else { Value::Array(items) }
}

/// Its manifest as it came, whatever fields it has, and its status: of a pod of the API with what others say of it, which readiness gates
/// wait for. A static pod has the defaults that the API server would give it.
fn pod(view: &PodView) -> Option<Value> {
    let mut pod: Value = serde_json::from_str(&view.pod.manifest).ok()?;
    let spec = pod_status::spec_of(&view.pod.manifest);
    let own = serde_json::to_value(pod_status::of(&view.status, &view.pod, spec.as_ref())).ok()?;
    let status = if view.pod.source == Source::Api {
        let seen = view.given.as_deref().or(pod.get("status")).unwrap_or(&Value::Null);
        patch::beside_others(seen, &own)
    } else {
        defaults::fill_in(&mut pod);
        own
    };
    let fields = pod.as_object_mut()?;
    // Of the list, not of each of its items.
    fields.remove("kind");
    fields.remove("apiVersion");
    fields.insert("status".to_owned(), status);
    Some(pod)
}

fn running_pod(view: &PodView) -> Option<Value> {
    let containers = view.status.all_containers();
    let containers: Vec<_> = containers.filter_map(running_container).collect();
    if containers.is_empty() && view.sandbox.is_none() {
        return None;
    }
    let containers = or_null(containers);
    let name = &view.pod.name;
    let metadata = json!({ "name": name.name, "namespace": name.namespace, "uid": view.status.uid.as_str() });
    Some(json!({ "metadata": metadata, "spec": { "containers": containers }, "status": {} }))
}

fn running_container(status: &ContainerStatus) -> Option<Value> {
    let is_running = matches!(status.state, ContainerState::Running { .. });
    is_running.then(|| json!({ "name": status.name.as_str(), "image": status.image, "resources": {} }))
}

#[cfg(test)]
mod tests;
