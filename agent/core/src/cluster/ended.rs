//! What is told of a pod that others ended before anything of it was begun here.
//!
//! How its containers ended is told by whoever ran them, should somebody have: an earlier agent before its records went, or another
//! one. That stays. What of the status says that the pod still comes to be is made what it is of a pod that has ended. Source:
//! `generateAPIPodStatus` and `convertToAPIContainerStatuses` of `pkg/kubelet/kubelet_pods.go`, `pkg/kubelet/status/generate.go`,
//! `TerminatePod` of `pkg/kubelet/status/status_manager.go`.

use serde_json::{Map, Value};

use super::patch::list;

/// Fields with statuses of containers.
const CONTAINERS: &[&str] = &["initContainerStatuses", "containerStatuses"];

/// The condition that a pod never loses.
const INITIALIZED: &str = "Initialized";

/// The status of a pod of which the API has `known`, and of which the node would show `shown` had nobody ever run it.
#[must_use]
pub(super) fn by_others(known: &Value, shown: &Value) -> Value {
    let mut status = shown.as_object().cloned().unwrap_or_default();
    for field in CONTAINERS {
        if status.contains_key(*field) {
            let told = list(shown, field).iter().map(|one| container(list(known, field), one));
            status.insert((*field).to_owned(), told.collect());
        }
    }
    let told: Value = list(shown, "conditions").iter().map(|one| condition(known, one)).collect();
    for (field, value) in known.as_object().into_iter().flatten() {
        let is_made = CONTAINERS.contains(&field.as_str()) && status.contains_key(field);
        if !is_made && !value.is_null() {
            status.insert(field.clone(), value.clone());
        }
    }
    status.insert("conditions".to_owned(), told);
    Value::Object(status)
}

/// A container whose end is told ended so; another one was never seen to end, however often it had ended before.
fn container(known: &[Value], shown: &Value) -> Value {
    let Some(known) = known.iter().find(|one| one.get("name") == shown.get("name")) else {
        return shown.clone();
    };
    if known.pointer("/state/terminated").is_some_and(Value::is_object) {
        return known.clone();
    }
    let mut told: Map<String, Value> = shown.as_object().cloned().unwrap_or_default();
    for field in ["restartCount", "lastState"] {
        told.extend(known.get(field).map(|value| (field.to_owned(), value.clone())));
    }
    Value::Object(told)
}

fn condition(known: &Value, shown: &Value) -> Value {
    let before = list(known, "conditions").iter().find(|one| one.get("type") == shown.get("type"));
    let holds = |one: &Value| one.get("status").is_some_and(|status| status == "True");
    let stays = |before: &&Value| shown["type"] == INITIALIZED && holds(before) && !holds(shown);
    before.filter(stays).unwrap_or(shown).clone()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::patch;

    fn is(kind: &str, status: &str, reason: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason})
    }

    fn lost() -> Value {
        json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}})
    }

    /// What the node shows of a pod with an init container that never began here.
    fn shown() -> Value {
        json!({
            "phase": "Failed", "startTime": "t9", "hostIP": "192.0.2.1",
            "conditions": [
                is("Initialized", "False", "ContainersNotInitialized"),
                is("Ready", "False", "PodFailed"),
            ],
            "initContainerStatuses": [{"name": "init", "restartCount": 0, "state": lost()}],
            "containerStatuses": [{"name": "main", "restartCount": 0, "state": lost()}],
        })
    }

    #[test]
    fn what_is_told_of_an_end_stays_and_what_still_came_to_be_has_ended() {
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        let ended = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let container = |name: &str, restarts: u32, state: &Value| json!({"name": name, "restartCount": restarts, "state": state});
        for (what, known, expected) in [
            (
                "nothing was told of it but its end",
                json!({"phase": "Failed", "reason": "Evicted"}),
                Some(json!({
                    "startTime": "t9", "hostIP": "192.0.2.1",
                    "conditions": shown()["conditions"],
                    "initContainerStatuses": shown()["initContainerStatuses"],
                    "containerStatuses": shown()["containerStatuses"],
                })),
            ),
            (
                "it was to be begun",
                json!({
                    "phase": "Failed", "startTime": "t1", "hostIP": "192.0.2.1", "podIP": "192.0.2.7",
                    "conditions": [
                        is("Initialized", "True", ""), is("Ready", "False", "ContainersNotReady"),
                        is("example.com/gate", "True", ""),
                    ],
                    "initContainerStatuses": [container("init", 0, &ended)],
                    "containerStatuses": [container("main", 2, &waiting)],
                }),
                Some(json!({
                    "$setElementOrder/conditions": [{"type": "example.com/gate"}, {"type": "Initialized"}, {"type": "Ready"}],
                    "conditions": [{"type": "Ready", "reason": "PodFailed"}],
                    "containerStatuses": [container("main", 2, &lost())],
                })),
            ),
            (
                "somebody ran it and told all",
                json!({
                    "phase": "Failed", "startTime": "t1", "hostIP": "192.0.2.8", "podIP": "192.0.2.7",
                    "conditions": [is("Initialized", "True", ""), is("Ready", "False", "PodFailed")],
                    "initContainerStatuses": [container("init", 0, &ended)],
                    "containerStatuses": [container("main", 2, &ended)],
                }),
                None,
            ),
        ] {
            let told = by_others(&known, &shown());
            assert_eq!(patch::status(&known, &told), expected, "{what}");
            assert_eq!(by_others(&told, &shown()), told, "{what}: it is told once");
        }
    }

    #[test]
    fn a_pod_that_succeeded_is_initialized_and_completed() {
        let conditions =
            json!([is("Initialized", "True", "PodCompleted"), is("Ready", "False", "PodCompleted")]);
        let known = json!({"phase": "Succeeded", "conditions": [
            is("Initialized", "True", ""), is("Ready", "True", "")]});
        let told = by_others(&known, &json!({"phase": "Succeeded", "conditions": conditions}));
        assert_eq!(told["conditions"], conditions);
    }
}
