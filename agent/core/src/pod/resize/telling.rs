//! What is told of a resize. Source: `pkg/kubelet/events/resize.go`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::spec::Pod;

/// Reasons of the condition `PodResizePending`. Whatever keeps it out, that is all it says (`SetPodResizePendingCondition` of
/// `pkg/kubelet/status/status_manager.go`).
pub(in crate::pod) fn pending_reason(is_infeasible: bool) -> &'static str {
    if is_infeasible { "Infeasible" } else { "Deferred" }
}

/// A moment of a resize that an event tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment<'a> {
    /// It is not allocated, for this reason.
    Refused(&'a str),
    /// It is allocated.
    Started,
    /// A try to put it into force has failed.
    Failed,
    /// It is in force.
    Completed,
}

/// The manifest of the version whose resources the pod has.
pub(super) fn allocated_manifest(pod: &Pod) -> &Arc<str> {
    pod.resize.as_ref().map_or(&pod.manifest, |resize| &resize.allocated)
}

/// The message of an event about the resources that a manifest asks for.
pub(super) fn message(
    moment: Moment<'_>,
    manifest: &str,
    generation: Option<i64>,
    error: Option<&str>,
) -> String {
    let summary = summary(&asked(manifest), generation, error);
    match moment {
        Moment::Refused(reason) => format!("Pod resize {reason}: {summary}"),
        Moment::Started => format!("Pod resize started: {summary}"),
        Moment::Failed => format!("Pod resize error: {summary}"),
        Moment::Completed => format!("Pod resize completed: {summary}"),
    }
}

/// What a manifest asks for: its fields in the order in which they are told, then what is not told.
pub(super) fn asked(manifest: &str) -> [Value; 3] {
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

fn summary([init, main, _]: &[Value; 3], generation: Option<i64>, error: Option<&str>) -> String {
    let lists = [("initContainers", init), ("containers", main)];
    let lists = lists.into_iter().filter(|(_, list)| **list != json!([]));
    let mut fields: Vec<String> = lists.map(|(name, list)| format!("\"{name}\":{list}")).collect();
    fields.push(format!("\"generation\":{}", generation.unwrap_or_default()));
    fields.extend(error.map(|error| format!("\"error\":{}", Value::from(error))));
    format!("{{{}}}", fields.join(","))
}
