//! Pods of the API server, which has checked them and applied its defaults.

use std::{collections::BTreeMap, sync::Arc};

use berth_core::{
    pod::resize::read_back,
    spec::{Pod, Resize, Source, Unallocated},
};
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
    written.status = status.as_ref().and_then(|status| kept(&written, status));
    let mut manifest = convert(&nowhere, &written, Source::Api)?;
    let Some(status) = status else { return Ok(manifest) };
    if let Some(pod) = Arc::get_mut(&mut manifest.pod) {
        take_status(pod, &status);
    }
    // A status that cannot be used is no matter of the pod's.
    if let Some(waits) = told::pending_resize(&status)
        && told::allocate(&mut written, &status)
        && let Ok(Manifest { pod: allocated, .. }) = convert(&nowhere, &written, Source::Api)
        && let Some(pod) = Arc::get_mut(&mut manifest.pod)
    {
        let resize = Resize {
            allocated: Arc::clone(&allocated.manifest),
            generation: waits.observed_generation,
            unallocated: Some(Unallocated {
                is_infeasible: waits.reason.as_deref() == Some("Infeasible"),
                message: waits.message.clone().unwrap_or_default(),
            }),
        };
        pod.told_allocated = Some(read_back(&allocated, pod, resize));
    }
    Ok(manifest)
}

fn take_status(pod: &mut Pod, status: &PodStatus) {
    pod.ended = super::pod::ended(Some(status));
    pod.have_run = told::have_run(status).collect();
    pod.started_at = status.start_time.as_ref().map(|began| began.0);
}

/// What of its status a pod goes by for good: its class, which the API server found and nobody changes (`GetPodQOS` of
/// `pkg/apis/core/v1/helper/qos/qos.go`), and the conditions of its gates.
fn kept(pod: &ApiPod, status: &PodStatus) -> Option<PodStatus> {
    let kept = PodStatus { qos_class: status.qos_class.clone(), ..of_gates(pod, status).unwrap_or_default() };
    (kept != PodStatus::default()).then_some(kept)
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
    use berth_core::{spec::QosClass, status::Terminated};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
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

    /// Containers `c` and `s` ask for more of all, and the status says this of what they have.
    fn waiting(has: serde_json::Value, whole: serde_json::Value, kind: &str) -> ApiPod {
        let asks = json!({ "requests": { "cpu": "2", "memory": "2Gi", "hugepages-2Mi": "2Mi" },
            "limits": { "cpu": "4", "memory": "4Gi", "hugepages-2Mi": "2Mi" } });
        let told = |name: &str| {
            let mut told = json!({ "name": name, "ready": true, "restartCount": 0, "image": "i", "imageID": "i",
                "state": { "running": {} } });
            told.as_object_mut().unwrap().extend(has.as_object().unwrap().clone());
            told
        };
        let mut status = json!({ "conditions": [{ "type": kind, "status": "True", "reason": "Infeasible", "message": "why",
            "observedGeneration": 1 }],
            "containerStatuses": [told("c")], "initContainerStatuses": [told("s")] });
        status.as_object_mut().unwrap().extend(whole.as_object().unwrap().clone());
        let given = json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u1", "generation": 2 },
            "spec": {
                "resources": { "requests": { "cpu": "8", "memory": "8Gi" } },
                "initContainers": [{ "name": "s", "image": "i", "restartPolicy": "Always", "resources": asks }],
                "containers": [{ "name": "c", "image": "i", "resources": asks }],
            },
            "status": status,
        });
        serde_json::from_value(given).unwrap()
    }

    /// CPU and memory that a container requests, and its limits.
    fn has(pod: &Pod, name: &str) -> (Option<u64>, Option<u64>, Option<u64>, Option<u64>) {
        let container = pod.all_containers().find(|one| one.name.as_str() == name).unwrap();
        let (requests, limits) = (&container.resources.requests, &container.resources.limits);
        (requests.cpu_milli, requests.memory_bytes, limits.cpu_milli, limits.memory_bytes)
    }

    /// Source: `allocated_pods_state` of the kubelet, `pkg/kubelet/allocation/state`.
    #[test]
    fn what_a_pod_has_while_it_waits_for_more_is_what_its_status_says() {
        let told = json!({ "allocatedResources": { "cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi" },
            "resources": { "requests": { "cpu": "7" }, "limits": { "cpu": "3" } } });
        let (cpu, gib) = (|cores: u64| cores * 1000, |of: u64| of << 30);
        let pending = "PodResizePending";
        let asked = (Some(cpu(2)), Some(gib(2)), Some(cpu(4)), Some(gib(4)));
        let given = waiting(told.clone(), json!({}), pending);
        let pod = api_pod(&given, Timestamp::UNIX_EPOCH).unwrap().pod;
        let before = pod.told_allocated.as_ref().unwrap();
        for name in ["c", "s"] {
            assert_eq!(has(&pod, name), asked);
            // Of limits in force that of memory is not told: there was none.
            assert_eq!(has(before, name), (Some(cpu(1)), Some(gib(1)), Some(cpu(3)), None));
            let pages =
                |pod: &Pod| pod.all_containers().next().unwrap().resources.requests.hugepages_bytes.clone();
            assert_eq!(pages(before), pages(&pod), "it cannot be resized");
        }
        let whole = |pod: &Pod| pod.resources.as_ref().map(|all| all.requests.clone());
        assert_eq!((whole(before), before.generation), (whole(&pod), Some(2)));
        assert_eq!((before.have_run.len(), &before.have_run), (2, &pod.have_run));
        let resize = before.resize.as_ref().unwrap();
        let why = Unallocated { is_infeasible: true, message: "why".into() };
        assert_eq!((resize.generation, &resize.unallocated), (Some(1), &Some(why)));
        assert_eq!(manifest_asks(&before.manifest), manifest_asks(&pod.manifest));
        assert_ne!(manifest_asks(&resize.allocated), manifest_asks(&pod.manifest));

        // What is not told of a container that runs was not there.
        let requests = json!({ "allocatedResources": { "cpu": "1", "memory": "1Gi" }, "resources": { "requests": { "cpu": "1" } } });
        for (told, expected) in
            [(json!({ "resources": {} }), (None, None)), (requests, (Some(cpu(1)), Some(gib(1))))]
        {
            let pod = api_pod(&waiting(told, json!({}), pending), Timestamp::UNIX_EPOCH).unwrap().pod;
            let before = pod.told_allocated.as_ref().unwrap();
            assert_eq!(has(before, "c"), (expected.0, expected.1, None, None));
        }

        let whole_told = json!({ "allocatedResources": { "cpu": "5" } });
        let given = waiting(json!({}), whole_told, pending);
        let pod = api_pod(&given, Timestamp::UNIX_EPOCH).unwrap().pod;
        let before = pod.told_allocated.as_ref().unwrap();
        assert_eq!(has(before, "c"), asked, "nothing is told of it");
        // What it names no more is what its containers request.
        let of_all = whole(before).map(|has| (has.cpu_milli, has.memory_bytes));
        assert_eq!(of_all, Some((Some(cpu(5)), Some(gib(4)))));

        let same = json!({ "allocatedResources": { "cpu": "2", "memory": "2Gi" } });
        let unreadable = json!({ "allocatedResources": { "cpu": "much" } });
        for (has, kind) in
            [(told, "PodResizeInProgress"), (same, pending), (unreadable, pending), (json!({}), pending)]
        {
            let pod = api_pod(&waiting(has, json!({}), kind), Timestamp::UNIX_EPOCH).unwrap().pod;
            assert_eq!(pod.told_allocated, None, "{kind}");
        }
        let mut given = waiting(json!({ "resources": {} }), json!({}), pending);
        given.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].status = "False".into();
        let pod = api_pod(&given, Timestamp::UNIX_EPOCH).unwrap().pod;
        assert_eq!(pod.told_allocated, None, "it waits no more");
    }

    #[test]
    fn what_a_pod_has_as_a_whole_is_told_with_its_overhead() {
        let with_overhead = |given: &ApiPod| {
            let mut given = given.clone();
            let overhead = [("cpu", "500m"), ("memory", "1Gi")];
            let overhead = overhead.map(|(name, amount)| (name.to_owned(), ApiQuantity(amount.into())));
            given.spec.as_mut().unwrap().overhead = Some(overhead.into());
            given
        };
        let given = with_overhead(&waiting(
            json!({}),
            json!({ "allocatedResources": { "cpu": "5", "memory": "9Gi" } }),
            "PodResizePending",
        ));
        let pod = api_pod(&given, Timestamp::UNIX_EPOCH).unwrap().pod;
        let of_all = pod.told_allocated.as_ref().unwrap().resources.as_ref().map(|all| &all.requests);
        let of_all = of_all.map(|has| (has.cpu_milli, has.memory_bytes));
        assert_eq!(of_all, Some((Some(4500), Some(8 << 30))));
    }

    #[test]
    fn what_a_pod_has_amid_another_resize_is_what_was_allocated() {
        let (cpu, gib) = (|cores: u64| cores * 1000, |of: u64| of << 30);
        let pending = "PodResizePending";
        // Nothing of its limits is in force yet.
        let mut given = waiting(
            json!({ "allocatedResources": { "cpu": "1", "memory": "1Gi" }, "resources": {} }),
            json!({}),
            pending,
        );
        let conditions = given.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.push(PodCondition { type_: "PodResizeInProgress".into(), ..conditions[0].clone() });
        let pod = api_pod(&given, Timestamp::UNIX_EPOCH).unwrap().pod;
        let before = pod.told_allocated.as_ref().unwrap();
        assert_eq!(has(before, "c"), (Some(cpu(1)), Some(gib(1)), Some(cpu(4)), Some(gib(4))));

        // Of its limits less is in force than is allocated.
        let behind = json!({ "allocatedResources": { "cpu": "2", "memory": "1Gi" },
            "resources": { "limits": { "cpu": "1", "memory": "2Gi" } } });
        let pod = api_pod(&waiting(behind, json!({}), pending), Timestamp::UNIX_EPOCH).unwrap().pod;
        let before = pod.told_allocated.as_ref().unwrap();
        assert_eq!(has(before, "c"), (Some(cpu(2)), Some(gib(1)), Some(cpu(2)), Some(gib(2))));
    }

    /// What its record says that it asks for.
    fn manifest_asks(manifest: &str) -> serde_json::Value {
        let manifest: serde_json::Value = serde_json::from_str(manifest).unwrap();
        manifest["spec"]["containers"][0]["resources"].clone()
    }

    /// Source: `GetPodQOS` of `pkg/apis/core/v1/helper/qos/qos.go`.
    #[test]
    fn a_pod_is_of_the_class_that_its_status_says_for_good() {
        for (status, resources, expected) in [
            (json!({}), json!(null), QosClass::Burstable),
            (json!({}), json!({}), QosClass::BestEffort),
            (json!({ "qosClass": "BestEffort" }), json!(null), QosClass::BestEffort),
            (json!({ "qosClass": "Guaranteed" }), json!({}), QosClass::Guaranteed),
            (json!({ "qosClass": "Burstable" }), json!({}), QosClass::Burstable),
            (json!({ "qosClass": "None" }), json!(null), QosClass::Burstable),
        ] {
            let requests = json!({ "requests": { "cpu": "100m" } });
            let container = json!({ "name": "c", "image": "i", "resources": requests });
            let given = json!({
                "metadata": { "name": "web", "namespace": "default", "uid": "u1" },
                "spec": { "resources": resources, "containers": [container] }, "status": status,
            });
            let given = serde_json::from_value(given).unwrap();
            let pod = api_pod(&given, Timestamp::UNIX_EPOCH).unwrap().pod;
            let read_back = pod_from_json(&pod.manifest, Source::Api).unwrap();
            assert_eq!([pod.qos, read_back.qos], [expected; 2], "{status} {resources}");
            let static_pod = pod_from_json(&pod.manifest, Source::File).unwrap();
            let computed = if resources == json!({}) { QosClass::BestEffort } else { QosClass::Burstable };
            assert_eq!(static_pod.qos, computed, "{status} {resources}");
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
        let given = serde_json::from_value(given).unwrap();
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
