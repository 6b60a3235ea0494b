//! The smallest strategic merge patch from one pod status to another.
//!
//! Only fields that the node owns are compared: what controllers and schedulers write beside them is not touched, and conditions of
//! others neither, but that they come before the node's. Source: `mergePodStatus` and `updateStatusInternal` of
//! `pkg/kubelet/status/status_manager.go`, `pkg/util/pod/pod.go` `PatchPodStatus`; merge keys:
//! `staging/src/k8s.io/api/core/v1/types.go` `PodStatus`.

use serde_json::{Map, Value, json};

/// Fields of the node that are compared as a whole: the server puts them in the place of what it has, but for what [`OF_FIELDS`] names.
const WHOLE: &[&str] = &[
    "phase",
    "reason",
    "message",
    "hostIP",
    "podIP",
    "startTime",
    "qosClass",
    "observedGeneration",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "resize",
    "resources",
    "allocatedResources",
];

/// Those that the server merges field by field.
const OF_FIELDS: &[&str] = &["resources", "allocatedResources"];

/// What never changes once it is told.
const ONCE: &str = "startTime";

/// What of a pod that has ended never changes.
const OF_THE_END: &[&str] = &["phase", "reason", "message"];

/// Lists that are merged by a key of their elements.
const MERGED: &[(&str, &str)] = &[("hostIPs", "ip"), ("podIPs", "ip")];

/// Conditions that the node sets and removes. Source: `PodConditionByKubelet` of `pkg/kubelet/types/pod_status.go`.
const CONDITIONS: &[&str] = &[
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];

/// Says in which order conditions are to be. Source: `CreateTwoWayMergePatch` of
/// `staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go`.
pub(super) const ORDER: &str = "$setElementOrder/conditions";

/// What a condition says, beside when it was looked at.
const OF_A_CONDITION: &[&str] = &["status", "reason", "message", "lastTransitionTime", "observedGeneration"];

/// What has to be patched in `status` so that it becomes `wanted`; `None` when nothing has. A pod that has ended stays ended, as it
/// ended, and one that has begun began when it was first told to have.
#[must_use]
pub fn status(seen: &Value, wanted: &Value) -> Option<Value> {
    let mut patch = Map::new();
    let has_ended = is_terminal(seen);
    for field in WHOLE {
        let is_told = *field == ONCE && !is_same(seen.get(field), None);
        let is_final = is_told || (has_ended && OF_THE_END.contains(field));
        if !is_final && !is_same(seen.get(field), wanted.get(field)) {
            let wanted = wanted.get(field).cloned().unwrap_or(Value::Null);
            let change = match seen.get(field) {
                Some(seen) if OF_FIELDS.contains(field) => merge(seen, wanted),
                Some(_) | None => wanted,
            };
            patch.insert((*field).to_owned(), change);
        }
    }
    for (field, key) in MERGED {
        let changes = merged(list(seen, field), list(wanted, field), key);
        if !changes.is_empty() {
            patch.insert((*field).to_owned(), Value::Array(changes));
        }
    }
    let (seen, wanted) = (list(seen, "conditions"), list(wanted, "conditions"));
    let order = order(seen, wanted);
    let changes = conditions(seen, wanted, &order);
    let is_as_it_is = changes.is_empty() && kinds(seen).eq(order.iter().copied());
    if !changes.is_empty() {
        patch.insert("conditions".to_owned(), Value::Array(changes));
    }
    // Where there are none yet, they come in the order of the patch. The order alone is worth no patch.
    if !patch.is_empty() && !seen.is_empty() && !order.is_empty() && !is_as_it_is {
        let order = order.into_iter().map(|kind| json!({ "type": kind }));
        patch.insert(ORDER.to_owned(), order.collect());
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// A status as readers see it: what the node shows, with what others have said beside it, whose conditions come first.
#[must_use]
pub fn beside_others(seen: &Value, own: &Value) -> Value {
    let of_node = |field: &str| WHOLE.contains(&field) || MERGED.iter().any(|(name, _)| *name == field);
    let others = seen.as_object().into_iter().flatten().filter(|(field, _)| !of_node(field));
    let fields = others.chain(own.as_object().into_iter().flatten());
    let mut shown: Map<String, Value> = fields.map(|(field, value)| (field.clone(), value.clone())).collect();
    let owned = list(own, "conditions");
    let of_others = list(seen, "conditions").iter().filter(|condition| {
        condition.get("type").is_some_and(|kind| !is_ours(kind) && find(owned, kind).is_none())
    });
    let conditions: Vec<Value> = of_others.chain(owned).cloned().collect();
    if !conditions.is_empty() {
        shown.insert("conditions".to_owned(), Value::Array(conditions));
    }
    Value::Object(shown)
}

/// Whether a status is of a pod that has ended.
#[must_use]
pub fn is_terminal(status: &Value) -> bool {
    matches!(status.get("phase").and_then(Value::as_str), Some("Succeeded" | "Failed"))
}

/// The elements of a list of a status; none where it is not there.
pub(super) fn list<'a>(status: &'a Value, field: &str) -> &'a [Value] {
    status.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether two values say the same: what is empty says nothing. The server writes `lastState: {}` for what was never sent.
fn is_same(one: Option<&Value>, other: Option<&Value>) -> bool {
    let says = |value: &&Value| match value {
        Value::Null => false,
        Value::Object(fields) => !fields.values().all(|value| is_same(Some(value), None)),
        Value::Array(elements) => !elements.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    };
    match (one.filter(says), other.filter(says)) {
        (None, None) => true,
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            let keys = one.keys().chain(other.keys());
            keys.into_iter().all(|key| is_same(one.get(key), other.get(key)))
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_same(Some(one), Some(other)))
        }
        (one, other) => one == other,
    }
}

/// What makes an object another one, where fields stay that are not named.
fn merge(seen: &Value, wanted: Value) -> Value {
    let (Value::Object(seen), Value::Object(wanted)) = (seen, &wanted) else { return wanted };
    let kept = wanted.iter().filter(|(field, value)| !is_same(seen.get(*field), Some(value)));
    let kept = kept.map(|(field, value)| {
        let change = seen.get(field).map_or_else(|| value.clone(), |seen| merge(seen, value.clone()));
        (field.clone(), change)
    });
    let gone = seen.keys().filter(|field| !wanted.contains_key(*field));
    kept.chain(gone.map(|field| (field.clone(), Value::Null))).collect()
}

/// A list whose order is kept: what is no longer in it goes, and where that is not all, the new list is put in its place.
fn merged(seen: &[Value], wanted: &[Value], key: &str) -> Vec<Value> {
    if seen == wanted {
        return Vec::new();
    }
    let mut changes = vec![json!({"$patch": "replace"})];
    changes.extend(wanted.iter().filter(|element| element.get(key).is_some()).cloned());
    changes
}

fn kinds(conditions: &[Value]) -> impl Iterator<Item = &Value> {
    conditions.iter().filter_map(|one| one.get("type"))
}

fn is_ours(kind: &Value) -> bool {
    kind.as_str().is_some_and(|kind| CONDITIONS.contains(&kind))
}

/// The types of the conditions that there are to be, in their order: those of others as they are, then those of the node.
fn order<'a>(seen: &'a [Value], wanted: &'a [Value]) -> Vec<&'a Value> {
    let of_others = kinds(seen).filter(|kind| !is_ours(kind));
    let mut order = Vec::new();
    for kind in of_others.chain(kinds(wanted)) {
        if !order.contains(&kind) {
            order.push(kind);
        }
    }
    order
}

fn find<'a>(conditions: &'a [Value], kind: &Value) -> Option<&'a Value> {
    conditions.iter().find(|one| one.get("type") == Some(kind))
}

/// What of conditions differs, in their order, to which the server holds a patch; then what goes.
fn conditions(seen: &[Value], wanted: &[Value], order: &[&Value]) -> Vec<Value> {
    let mut changes = Vec::new();
    for kind in order {
        let Some(condition) = find(wanted, kind) else { continue };
        let known = find(seen, kind);
        let before = |field: &str| known.and_then(|known| known.get(field));
        let has_changed = before("status") != condition.get("status");
        let mut change = Map::new();
        for &field in OF_A_CONDITION {
            // Whoever set it first knows since when it holds.
            let counts = has_changed || field != "lastTransitionTime";
            if counts && !is_same(before(field), condition.get(field)) {
                change.insert(field.to_owned(), condition.get(field).cloned().unwrap_or(Value::Null));
            }
        }
        if !change.is_empty() {
            change.insert("type".to_owned(), Value::clone(kind));
            changes.push(Value::Object(change));
        }
    }
    let gone = kinds(seen).filter(|kind| is_ours(kind) && find(wanted, kind).is_none());
    changes.extend(gone.map(|kind| json!({"type": kind, "$patch": "delete"})));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Value {
        json!({
            "phase": "Pending",
            "nominatedNodeName": "other",
            "hostIPs": [{"ip": "192.0.2.1"}],
            "conditions": [
                {"type": "example.com/gate", "status": "True"},
                {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": "t0"},
            ],
        })
    }

    fn in_order(kinds: &[&str]) -> Value {
        kinds.iter().map(|kind| json!({ "type": kind })).collect()
    }

    #[test]
    fn of_resources_each_that_goes_is_named() {
        let has = |cpu: Value, more: Value| {
            let mut limits = more;
            limits["cpu"] = cpu;
            json!({ "resources": { "limits": limits, "requests": { "cpu": "1" } }, "allocatedResources": { "cpu": "1" } })
        };
        let seen = has(json!("1"), json!({ "memory": "1Gi" }));
        for (wanted, patch) in [
            (seen.clone(), None),
            (has(json!("1"), json!({})), Some(json!({ "resources": { "limits": { "memory": null } } }))),
            (
                has(json!("2"), json!({ "memory": "1Gi" })),
                Some(json!({ "resources": { "limits": { "cpu": "2" } } })),
            ),
            (
                json!({ "resources": { "limits": { "cpu": "1", "memory": "1Gi" } }, "allocatedResources": { "cpu": "1", "memory": "1" } }),
                Some(json!({ "resources": { "requests": null }, "allocatedResources": { "memory": "1" } })),
            ),
            (
                json!({ "resources": {} }),
                Some(
                    json!({ "resources": { "limits": null, "requests": null }, "allocatedResources": null }),
                ),
            ),
        ] {
            assert_eq!(status(&seen, &wanted), patch, "{wanted}");
        }
    }

    #[test]
    fn a_patch_holds_what_differs_and_nothing_else() {
        for (name, wanted, patch) in [
            ("nothing", seen(), None),
            (
                "fields of others are not named",
                json!({"phase": "Pending", "hostIPs": [{"ip": "192.0.2.1"}], "conditions": seen()["conditions"]}),
                None,
            ),
            (
                "a condition of another stays",
                json!({"phase": "Pending", "hostIPs": [{"ip": "192.0.2.1"}],
                       "conditions": [seen()["conditions"][1]]}),
                None,
            ),
            (
                "a condition changes, fields that go are null",
                json!({"phase": "Running", "hostIPs": [{"ip": "192.0.2.1"}],
                       "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "t1"}]}),
                Some(
                    json!({"phase": "Running", ORDER: in_order(&["example.com/gate", "Ready"]), "conditions": [
                    {"type": "Ready", "status": "True", "reason": null, "lastTransitionTime": "t1"}]}),
                ),
            ),
            (
                "who set a condition first knows since when it holds",
                json!({"phase": "Pending", "hostIPs": [{"ip": "192.0.2.1"}], "conditions": [
                    {"type": "Ready", "status": "False", "reason": "Other", "lastTransitionTime": "t9"}]}),
                Some(json!({ORDER: in_order(&["example.com/gate", "Ready"]),
                    "conditions": [{"type": "Ready", "reason": "Other"}]})),
            ),
            (
                "a condition of ours that goes is deleted, a new one is whole",
                json!({"phase": "Pending", "hostIPs": [{"ip": "192.0.2.1"}],
                       "conditions": [{"type": "Initialized", "status": "True"}]}),
                Some(json!({ORDER: in_order(&["example.com/gate", "Initialized"]), "conditions": [
                    {"type": "Initialized", "status": "True"}, {"type": "Ready", "$patch": "delete"}]})),
            ),
            (
                "addresses are replaced in their order",
                json!({"phase": "Pending", "hostIPs": [{"ip": "2001:db8::1"}, {"ip": "192.0.2.1"}],
                       "conditions": seen()["conditions"]}),
                Some(json!({"hostIPs": [{"$patch": "replace"}, {"ip": "2001:db8::1"}, {"ip": "192.0.2.1"}]})),
            ),
            (
                "what is gone is null",
                json!({"hostIPs": [{"ip": "192.0.2.1"}], "conditions": seen()["conditions"]}),
                Some(json!({"phase": null})),
            ),
        ] {
            assert_eq!(status(&seen(), &wanted), patch, "{name}");
        }
    }

    /// What the API has, what is shown, what of it the patch names, and the order that it asks for.
    #[test]
    fn conditions_are_in_the_kubelets_order() {
        const GATE: &str = "example.com/gate";
        const TARGET: &str = "DisruptionTarget";
        const RESIZE: &str = "PodResizePending";
        const ALL: &[&str] = &["Initialized", "Ready", "PodScheduled"];
        type Kinds = &'static [&'static str];
        let of = |kinds: Kinds, status: &str| -> Value {
            kinds.iter().map(|kind| json!({ "type": kind, "status": status })).collect()
        };
        let cases: [(&str, Kinds, Kinds, Kinds, Kinds); 8] = [
            ("the first status of a pod", &[], ALL, ALL, &[]),
            ("of one that was scheduled", &["PodScheduled"], ALL, ALL, ALL),
            ("a gate was there first", &[GATE], &["Ready"], &["Ready"], &[GATE, "Ready"]),
            ("a gate came later", &["Ready", GATE], &["Ready"], &["Ready"], &[GATE, "Ready"]),
            ("it is ended", &["Ready"], &[TARGET, "Ready"], &[TARGET, "Ready"], &[TARGET, "Ready"]),
            (
                "others were to end it",
                &["Ready", TARGET],
                &[RESIZE, TARGET, "Ready"],
                &[TARGET, RESIZE, "Ready"],
                &[TARGET, RESIZE, "Ready"],
            ),
            ("one goes", &["Initialized", "Ready"], &["Ready"], &["Ready", "Initialized"], &["Ready"]),
            ("all go", &["Ready"], &[], &["Ready"], &[]),
        ];
        for (what, seen, wanted, named, order) in cases {
            let seen = json!({"conditions": of(seen, "False")});
            let patch = status(&seen, &json!({"conditions": of(wanted, "True")})).unwrap();
            let is_named: Vec<&str> = kinds(list(&patch, "conditions")).filter_map(Value::as_str).collect();
            assert_eq!(is_named, named, "{what}");
            let expected = (!order.is_empty()).then(|| in_order(order));
            assert_eq!(patch.get(ORDER), expected.as_ref(), "{what}");
        }
        let seen = json!({"phase": "Pending", "conditions": of(&["Ready", GATE], "True")});
        let with = |phase: &str| json!({"phase": phase, "conditions": of(&["Ready"], "True")});
        assert_eq!(status(&seen, &with("Pending")), None, "the order alone");
        let patch = json!({"phase": "Running", ORDER: in_order(&[GATE, "Ready"])});
        assert_eq!(status(&seen, &with("Running")), Some(patch), "the order with something else");
    }

    #[test]
    fn readers_see_what_others_say_beside_what_the_node_shows() {
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
        let seen = json!({
            "phase": "Pending", "podIP": "192.0.2.9", "nominatedNodeName": "n", "resourceClaimStatuses": [1],
            "conditions": [condition("Ready", "False"), condition("example.com/gate", "True"), {}],
        });
        let own = json!({ "phase": "Running", "conditions": [condition("Ready", "True")] });
        let shown = json!({
            "phase": "Running", "nominatedNodeName": "n", "resourceClaimStatuses": [1],
            "conditions": [condition("example.com/gate", "True"), condition("Ready", "True")],
        });
        assert_eq!(beside_others(&seen, &own), shown);
        assert_eq!(beside_others(&Value::Null, &own), own);
        assert_eq!(beside_others(&json!({}), &json!({})), json!({}));
    }

    #[test]
    fn what_is_empty_says_nothing() {
        let seen = json!({"containerStatuses": [
            {"name": "a", "lastState": {}, "state": {"waiting": null}, "ready": false, "list": []}]});
        for (wanted, is_same) in [
            (json!({"name": "a", "ready": false}), true),
            (json!({"name": "a", "ready": false, "state": {}, "lastState": {"running": {}}}), true),
            (json!({"name": "a", "ready": true}), false),
            (json!({"name": "a"}), false),
            (json!({"name": "a", "ready": false, "lastState": {"running": {"startedAt": "t"}}}), false),
        ] {
            let wanted = json!({"containerStatuses": [wanted]});
            let expected = if is_same { None } else { Some(wanted.clone()) };
            assert_eq!(status(&seen, &wanted), expected);
        }
        assert_eq!(status(&json!({"containerStatuses": []}), &json!({})), None);
    }

    /// Another agent has told it, or an earlier record that is gone.
    #[test]
    fn when_a_pod_began_is_told_once() {
        let began = |at: Value| json!({"phase": "Pending", "startTime": at});
        for (seen, wanted, patch) in [
            (json!({"phase": "Pending"}), began(json!("2")), Some(json!({"startTime": "2"}))),
            (began(Value::Null), began(json!("2")), Some(json!({"startTime": "2"}))),
            (began(json!("1")), began(json!("1")), None),
            (began(json!("1")), began(json!("2")), None),
            (began(json!("1")), json!({"phase": "Pending"}), None),
            (
                began(json!("1")),
                json!({"phase": "Running", "startTime": "2"}),
                Some(json!({"phase": "Running"})),
            ),
        ] {
            assert_eq!(status(&seen, &wanted), patch, "{seen} {wanted}");
        }
    }

    #[test]
    fn a_pod_that_has_ended_stays_ended() {
        for phase in ["Succeeded", "Failed"] {
            let ended = json!({"phase": phase, "reason": "Evicted", "podIP": "192.0.2.7"});
            assert!(is_terminal(&ended));
            for other in ["Running", "Succeeded", "Failed"] {
                assert_eq!(status(&ended, &json!({"phase": other, "podIP": "192.0.2.7"})), None);
            }
            let rest = status(&ended, &json!({"phase": "Running", "qosClass": "Burstable"}));
            assert_eq!(rest, Some(json!({"podIP": null, "qosClass": "Burstable"})));
        }
        assert!(!is_terminal(&json!({"phase": "Running"})) && !is_terminal(&json!({})));
    }
}
