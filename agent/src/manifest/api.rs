//! Pods of the API server, which has checked them and applied its defaults.

use std::collections::BTreeMap;

use berth_core::spec::Source;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodCondition, PodStatus};

use super::{
    read::{Manifest, convert},
    told,
};
use crate::document::{Faults, Node, Place, Value};

/// Makes a pod of one that the API server gave, and `seen` first then, in the version that it bears. What nobody here needs of it is left
/// out: who wrote which field, and its status but for when it began, how it ended, which of its containers have run, and the conditions that its
/// readiness waits for: an agent that begins anew goes on from these.
///
/// # Errors
/// What of it this node cannot do.
pub fn api_pod(given: &ApiPod, seen: Timestamp) -> Result<Manifest, Faults> {
    let mut written = given.clone();
    let metadata = &mut written.metadata;
    metadata.managed_fields = None;
    let annotations = metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert("kubernetes.io/config.source".to_owned(), Source::Api.as_str().to_owned());
    annotations.insert("kubernetes.io/config.seen".to_owned(), seen.to_string());
    let place = Place { file: "api".into(), line: 0 };
    let nowhere = Node { place, value: Value::Null };
    let status = written.status.take();
    written.status = status.as_ref().and_then(|status| of_gates(&written, status));
    let mut manifest = convert(&nowhere, &written, Source::Api)?;
    if let Some(pod) = std::sync::Arc::get_mut(&mut manifest.pod) {
        pod.ended = super::pod::ended(status.as_ref());
        pod.have_run = status.iter().flat_map(told::have_run).collect();
        pod.started_at = status.and_then(|status| status.start_time).map(|began| began.0);
    }
    Ok(manifest)
}

/// The conditions that the readiness of a pod waits for.
fn of_gates(pod: &ApiPod, status: &PodStatus) -> Option<PodStatus> {
    let gates = pod.spec.as_ref()?.readiness_gates.as_ref()?;
    let is_gate = |kind: &str| gates.iter().any(|gate| gate.condition_type == kind);
    let conditions = status.conditions.iter().flatten().filter(|condition| is_gate(&condition.type_));
    let bare = conditions.map(|condition| PodCondition {
        type_: condition.type_.clone(),
        status: condition.status.clone(),
        ..PodCondition::default()
    });
    Some(PodStatus { conditions: Some(bare.collect()), ..PodStatus::default() })
}

#[cfg(test)]
mod tests {
    use berth_core::{spec::Pod, status::Terminated};
    use serde_json::json;

    use super::*;
    use crate::manifest::pod_from_json;

    fn gates(pod: &Pod) -> Vec<(&str, Option<&str>)> {
        pod.readiness_gates.iter().map(|gate| (gate.condition.as_str(), gate.status.as_deref())).collect()
    }

    #[test]
    fn a_pod_began_when_its_status_says() {
        let given = |status: serde_json::Value| -> ApiPod {
            let json = json!({
                "metadata": { "name": "web", "namespace": "default", "uid": "u1" },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
                "status": status,
            });
            serde_json::from_value(json).unwrap()
        };
        for (status, began) in [
            (json!({}), None),
            (json!({ "phase": "Pending", "startTime": null }), None),
            (json!({ "startTime": "2026-11-01T10:00:00Z" }), Some("2026-11-01T10:00:00Z")),
            (json!({ "startTime": "0001-01-01T00:00:00Z" }), Some("0001-01-01T00:00:00Z")),
            (json!({ "startTime": "9999-12-30T00:00:00Z" }), Some("9999-12-30T00:00:00Z")),
        ] {
            let pod = api_pod(&given(status.clone()), Timestamp::UNIX_EPOCH).unwrap().pod;
            assert_eq!(pod.started_at.map(|at| at.to_string()).as_deref(), began, "{status}");
        }
    }

    #[test]
    fn containers_have_run_when_the_status_says() {
        let end = |code: i32| json!({ "terminated": { "exitCode": code, "reason": "Error", "containerID": "containerd://a" } });
        let (waiting, running) =
            (json!({ "waiting": { "reason": "ContainerCreating" } }), json!({ "running": {} }));
        for list in ["initContainer", "container", "ephemeralContainer"] {
            for (state, last, expected) in [
                (json!({}), json!({}), None),
                (waiting.clone(), json!({}), None),
                (running.clone(), json!({}), Some((None, None))),
                (running.clone(), end(3), Some((None, Some(3)))),
                (end(3), json!({}), Some((Some(3), None))),
                (end(3), end(4), Some((Some(3), Some(4)))),
                (waiting.clone(), end(4), Some((Some(4), None))),
                (end(-1), json!({}), Some((Some(255), None))),
            ] {
                let user = json!({ "linux": { "uid": 1, "gid": 2, "supplementalGroups": [2, 3] } });
                let status = json!({ "name": "e", "ready": false, "restartCount": 7, "image": "web:1",
                    "imageID": "sha256:01", "user": user, "state": state, "lastState": last });
                let mut given = json!({
                    "metadata": { "name": "web", "namespace": "default", "uid": "u1" },
                    "spec": { "containers": [{ "name": "c", "image": "i" }] },
                });
                given["status"] = json!({ (format!("{list}Statuses")): [status] });
                let given = serde_json::from_value(given).unwrap();
                let pod = api_pod(&given, Timestamp::UNIX_EPOCH).unwrap().pod;
                let found = pod.have_run.values().next();
                let ids =
                    found.iter().flat_map(|run| [&run.end, &run.before]).flatten().map(|end| end.id.clone());
                assert!(ids.flatten().all(|id| id.as_str() == "a"));
                let images = found.iter().filter_map(|run| run.image.as_ref());
                let images: Vec<_> = images.map(|image| format!("{image:?}")).collect();
                assert_eq!(images.len(), usize::from(expected.is_some()));
                let is_whole = |text: &String| {
                    ["web:1", "sha256:01", "gid: 2", "[2, 3]"].iter().all(|part| text.contains(part))
                };
                assert!(images.iter().all(is_whole), "{images:?}");
                let code = |end: &Option<Terminated>| end.as_ref().map(|end| end.exit_code);
                let found = found.map(|run| (run.restarts, code(&run.end), code(&run.before)));
                let expected = expected.map(|(end, before)| (7, end, before));
                assert_eq!(found, expected, "{list} {state} {last}");
            }
        }
    }

    /// What readiness waits for is in the record of the pod, and nothing else of its status; and so is the version that was seen first.
    #[test]
    fn what_others_say_of_a_pod_outlives_the_agent() {
        let conditions = json!([
            { "type": "a", "status": "True", "message": "canary" },
            { "type": "other", "status": "True" },
        ]);
        let spec = json!({
            "containers": [{ "name": "c", "image": "i" }],
            "readinessGates": [{ "conditionType": "a" }, { "conditionType": "b" }],
        });
        let given = json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "77" },
            "spec": spec, "status": { "conditions": conditions, "podIP": "192.0.2.7" },
        });
        let given: ApiPod = serde_json::from_value(given).unwrap();
        let pod = api_pod(&given, Timestamp::UNIX_EPOCH).unwrap().pod;
        let expected = [("a", Some("True")), ("b", None)];
        assert_eq!(gates(&pod), expected);
        for left_out in ["canary", "other", "192.0.2.7"] {
            assert!(!pod.manifest.contains(left_out), "{left_out} is in {}", pod.manifest);
        }
        let read_back = pod_from_json(&pod.manifest, Source::Api).unwrap();
        assert_eq!(gates(&read_back), expected);
        assert_eq!([pod, read_back].map(|pod| pod.version.clone()), [(); 2].map(|()| Some("77".to_owned())));
    }
}
