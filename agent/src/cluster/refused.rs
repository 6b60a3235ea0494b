//! Pods of the API server that this node cannot run as they are written: users are told, and such a pod can be deleted.

use std::{borrow::Cow, sync::Arc};

use berth_core::{
    cluster::sync::NodePod,
    id::{PodName, PodUid},
    pod::port::status::Remains,
    short::short,
    spec::Pod,
    status::{Note, PodEvent, Severity},
};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateWaiting, ContainerStatus, Pod as ApiPod, PodStatus,
};

use super::{lines::LINE_BYTES_MAX, pods::json};
use crate::{
    document::{Fault, Faults},
    manifest,
};

/// Reason of the containers' waiting: nothing of them can be begun as they are written (`ErrCreateContainerConfig` of
/// `pkg/kubelet/kuberuntime/kuberuntime_container.go`).
const WAITING: &str = "CreateContainerConfigError";

/// The event of a pod that its source gives and the node does not take (`filterInvalidPods` of `pkg/kubelet/config/config.go`).
pub(super) fn note(uid: &PodUid, name: &PodName, why: &str) -> Note {
    let message =
        format!("Error validating pod {}_{}({uid}) from api, ignoring: {why}", name.name, name.namespace);
    let reason = Cow::Borrowed("FailedValidation");
    let event = PodEvent { container: None, severity: Severity::Warning, reason, message };
    Note { name: name.clone(), version: None, field_path: String::new(), event }
}

/// What of a pod nothing is done about here.
pub(super) fn not_acted_on(name: &PodName, fields: &[String]) -> Note {
    let more = fields.len().saturating_sub(NAMED_MAX);
    let named = fields.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!("This node's agent does not act on {named}{more}: the pod runs without");
    let event = PodEvent {
        container: None,
        severity: Severity::Warning,
        reason: Cow::Borrowed("UnsupportedField"),
        message,
    };
    Note { name: name.clone(), version: None, field_path: String::new(), event }
}

/// A pod whose newest version cannot be run goes on as it was known; that it is to be deleted or to end counts all the same.
pub(super) fn as_before(known: &Arc<Pod>, given: &ApiPod) -> Arc<Pod> {
    let (deletion, ended) = (manifest::deletion(given), manifest::ended(given.status.as_ref()));
    if (known.deletion, &known.ended) == (deletion, &ended) {
        Arc::clone(known)
    } else {
        Arc::new(Pod { deletion, ended, ..Pod::clone(known) })
    }
}

/// Why a pod is not read.
pub(super) fn unread(bytes: usize, fault: Option<&str>) -> String {
    if let Some(fault) = fault {
        return format!("the pod is not understood: {fault}");
    }
    format!(
        "the pod is {} MiB large, and pods of more than {} MiB are not read",
        bytes >> 20,
        LINE_BYTES_MAX >> 20
    )
}

/// Whether an earlier agent has told this of the pod.
pub(super) fn was_told(given: &ApiPod, why: &str) -> bool {
    let status = given.status.as_ref();
    let mut containers = status.into_iter().flat_map(|status| status.container_statuses.iter().flatten());
    let waiting = |container: &ContainerStatus| container.state.as_ref()?.waiting.clone();
    containers.any(|one| waiting(one).is_some_and(|waiting| waiting.message.as_deref() == Some(why)))
}

/// Faults that are named: each container of the pod shows all of them, and the API takes so much for a pod and no more.
const NAMED_MAX: usize = 5;

/// The longest fault that is told whole, bytes.
const FAULT_MAX: usize = 200;

/// Containers of a pod that say why: a pod may have thousands, and its status must not become larger than the API takes.
const SHOWN_MAX: usize = 50;

/// Why a pod cannot be run, in a line.
pub(super) fn text(faults: Faults) -> String {
    let more = faults.0.len().saturating_sub(NAMED_MAX);
    let named = faults
        .0
        .into_iter()
        .take(NAMED_MAX)
        .map(|fault| short(Fault { place: None, ..fault }.to_string(), FAULT_MAX));
    let mut all: Vec<String> = named.collect();
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all.join("; ")
}

/// What the node shows of it: everything that the API has, with containers that wait and say why. Nothing of it is on the node, so it is
/// gone as soon as it is to be deleted; by then it counts as failed, as one whose containers were never begun.
pub(super) fn node_pod(given: &ApiPod, name: &PodName, why: &str) -> NodePod {
    let mut status = given.status.clone().unwrap_or_default();
    let is_deleted = given.metadata.deletion_timestamp.is_some();
    status.phase = Some(if is_deleted { "Failed" } else { "Pending" }.to_owned());
    let spec = given.spec.as_ref();
    let waiting = |containers: Option<&Vec<Container>>| -> Option<Vec<ContainerStatus>> {
        let why = |at: usize| if at < SHOWN_MAX { why } else { "" };
        Some(containers?.iter().enumerate().map(|(at, container)| waits(container, why(at))).collect())
    };
    status.init_container_statuses = waiting(spec.and_then(|spec| spec.init_containers.as_ref()));
    status.container_statuses = waiting(spec.map(|spec| &spec.containers));
    NodePod {
        name: name.clone(),
        status: Arc::new(json::<PodStatus>(&status)),
        remains: Remains::Directories,
        mirror: None,
    }
}

fn waits(container: &Container, why: &str) -> ContainerStatus {
    let waiting = ContainerStateWaiting {
        reason: Some(WAITING.to_owned()),
        message: (!why.is_empty()).then(|| why.to_owned()),
    };
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        started: Some(false),
        state: Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() }),
        ..ContainerStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use berth_core::{cluster::patch, id::PodUid};
    use serde_json::{Value, json};

    use super::*;

    fn given(metadata: &Value) -> ApiPod {
        let spec = json!({ "initContainers": [{ "name": "i", "image": "j" }], "containers": [{ "name": "c", "image": "i" }] });
        let status = json!({
            "phase": "Pending", "qosClass": "BestEffort",
            "conditions": [{ "type": "PodScheduled", "status": "True" }],
        });
        let pod = json!({ "metadata": metadata, "spec": spec, "status": status });
        serde_json::from_value(pod).unwrap()
    }

    fn name() -> PodName {
        PodName { namespace: "shop".into(), name: "web".into() }
    }

    /// Nothing that others wrote is taken back, and what is told once is not told again.
    #[test]
    fn users_see_why_a_pod_does_not_begin() {
        let why = "spec.volumes[0].nfs: is not supported by this version";
        let pod = given(&json!({ "name": "web", "namespace": "shop" }));
        let shown = node_pod(&pod, &name(), why);
        let status = shown.status;
        let change = patch::status(&json(&pod.status), &status).unwrap();
        let waiting = json!({ "waiting": { "reason": "CreateContainerConfigError", "message": why } });
        let fields: Vec<&String> = change.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["containerStatuses", "initContainerStatuses"]);
        for list in fields {
            assert_eq!(change[list][0]["state"], waiting, "{list}");
        }
        assert!(!was_told(&pod, why));
        let told = ApiPod { status: serde_json::from_value((*status).clone()).unwrap(), ..pod };
        assert!(was_told(&told, why) && !was_told(&told, "something else"));
        let note = note(&PodUid::new("u1"), &name(), why);
        assert_eq!(
            note.event.message,
            format!("Error validating pod web_shop(u1) from api, ignoring: {why}")
        );
    }

    /// The API takes so much for an object and no more: with a larger status it would never be told, and the pod never go.
    #[test]
    fn its_status_stays_small() {
        let fault = |number: usize| Fault {
            place: None,
            field: format!("spec.containers[{number}]"),
            message: "ä".repeat(1000),
        };
        let why = text(Faults((0..3000).map(fault).collect()));
        assert!(why.len() < 1500 && why.ends_with("…; and 2995 more"), "{why}");
        let containers: Vec<Value> =
            (0..3000).map(|number| json!({ "name": format!("c{number}") })).collect();
        let pod: ApiPod =
            serde_json::from_value(json!({ "metadata": {}, "spec": { "containers": containers } })).unwrap();
        let status = node_pod(&pod, &name(), &why).status;
        assert!(status.to_string().len() < 1 << 19);
    }

    /// Else nobody could delete it: its node has the last word.
    #[test]
    fn one_that_is_to_be_deleted_goes() {
        let times = json!({ "name": "web", "deletionTimestamp": "2026-11-01T00:00:00Z" });
        let shown = node_pod(&given(&times), &name(), "why");
        assert!(!shown.remains.is_more_than_directories() && patch::is_terminal(&shown.status));
    }
}
