//! How soon a change of a pod's status is told.
//!
//! What others act on is told at once: the phase, readiness, why something waits. Steps on the way there are told with the next of
//! these, or after a second: about as soon as the kubelet sees them, which looks at its runtime once a second
//! (`genericPlegRelistPeriod` of `pkg/kubelet/kubelet.go`).

use std::time::Duration;

use serde_json::Value;

use super::patch::{self, list};

/// The longest time that a step on the way is not told.
pub(super) const STEP: Duration = Duration::from_secs(1);

/// The longest time that the end of a pod waits for that of its sandbox. The kubelet waits for ever (`SyncTerminatingPod` of
/// `pkg/kubelet/kubelet.go`).
const END: Duration = Duration::from_secs(10);

/// When a change is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Urgency {
    /// At once.
    Now,
    /// With the next change that is told at once, or after so long.
    Within(Duration),
    /// With the next change, if there is one.
    WithTheNext,
}

/// How urgent it is that what the API has (`seen`) becomes what is `wanted`, by this patch.
pub(super) fn of(seen: &Value, wanted: &Value, patch: &Value, is_deleted: bool) -> Urgency {
    if is_deleted && is_of_generation_alone(patch) {
        return Urgency::WithTheNext;
    }
    let is_new = seen.get("startTime").is_none();
    if is_new || patch::is_terminal(seen) {
        return Urgency::Now;
    }
    if patch::is_terminal(wanted) {
        return if goes_down_next(wanted, is_deleted) { Urgency::Within(END) } else { Urgency::Now };
    }
    let is_starting = said(wanted, "phase") == "Pending";
    let is_same = ["phase", "reason", "message"].iter().all(|field| said(seen, field) == said(wanted, field))
        && ["Ready", "ContainersReady"].iter().all(|kind| holds(seen, kind) == holds(wanted, kind));
    if is_starting && is_same && !is_held_up_anew(seen, wanted) {
        Urgency::Within(STEP)
    } else {
        Urgency::Now
    }
}

/// Whether no container of a pod runs that was taken down, and its sandbox is still there: that it goes is the last that is told.
fn goes_down_next(wanted: &Value, is_deleted: bool) -> bool {
    let was_ended = !said(wanted, "reason").is_empty();
    (is_deleted || was_ended) && holds(wanted, "PodReadyToStartContainers")
}

fn said<'a>(status: &'a Value, field: &str) -> &'a str {
    status.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn holds(status: &Value, kind: &str) -> bool {
    list(status, "conditions").iter().any(|one| one["type"] == kind && one["status"] == "True")
}

/// Whether a container waits for something else than before that somebody may have to see to.
fn is_held_up_anew(seen: &Value, wanted: &Value) -> bool {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"].iter().any(|field| {
        list(wanted, field).iter().any(|one| {
            let waiting = &one["state"]["waiting"];
            let is_in_the_way = waiting.is_object()
                && !matches!(waiting["reason"].as_str(), Some("ContainerCreating" | "PodInitializing"));
            let before = list(seen, field).iter().find(|before| before["name"] == one["name"]);
            is_in_the_way && before.is_none_or(|before| before["state"]["waiting"] != *waiting)
        })
    })
}

/// Whether a patch tells nothing but the generation of the pod that the status is of.
fn is_of_generation_alone(patch: &Value) -> bool {
    let only = |value: &Value, of: &[&str]| {
        value.as_object().is_some_and(|fields| fields.keys().all(|field| of.contains(&field.as_str())))
    };
    only(patch, &["observedGeneration", "conditions", patch::ORDER])
        && list(patch, "conditions").iter().all(|one| only(one, &["type", "observedGeneration"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn urgency(seen: &Value, wanted: &Value, is_deleted: bool) -> Urgency {
        of(seen, wanted, &patch::status(seen, wanted).unwrap(), is_deleted)
    }

    fn status(phase: &str, state: Value, [ready, sandbox]: [bool; 2]) -> Value {
        let word = |holds: bool| if holds { "True" } else { "False" };
        json!({
            "phase": phase,
            "startTime": "1",
            "conditions": [
                { "type": "PodReadyToStartContainers", "status": word(sandbox) },
                { "type": "Ready", "status": word(ready) },
            ],
            "containerStatuses": [{ "name": "main", "state": state }],
        })
    }

    #[test]
    fn what_others_act_on_is_told_at_once() {
        use Urgency::Now;
        let (soon, end) = (Urgency::Within(STEP), Urgency::Within(END));
        let creating = json!({ "waiting": { "reason": "ContainerCreating" } });
        let refused = json!({ "waiting": { "reason": "ErrImagePull", "message": "no such image" } });
        let running = json!({ "running": {} });
        let ended = json!({ "terminated": { "exitCode": 1 } });
        let begun = || status("Pending", creating.clone(), [false, false]);
        let runs = || status("Running", running.clone(), [true, true]);
        let over = |phase: &str, sandbox| status(phase, ended.clone(), [false, sandbox]);
        let with_reason = |mut status: Value| {
            status["reason"] = json!("DeadlineExceeded");
            status
        };
        for (what, seen, wanted, is_deleted, expected) in [
            ("the first one", json!({ "phase": "Pending" }), begun(), false, Now),
            ("its sandbox", begun(), status("Pending", creating.clone(), [false, true]), false, soon),
            ("one of two runs", begun(), status("Pending", running.clone(), [false, true]), false, soon),
            ("a failed pull", begun(), status("Pending", refused.clone(), [false, true]), false, Now),
            ("another try", status("Pending", refused, [false, true]), begun(), false, soon),
            ("the phase", begun(), status("Running", running.clone(), [false, true]), false, Now),
            ("ready", begun(), status("Pending", running.clone(), [true, true]), false, Now),
            ("a crash", runs(), status("Running", ended.clone(), [true, true]), false, Now),
            ("its own end", runs(), over("Succeeded", true), false, Now),
            ("the end of one that is deleted", runs(), over("Failed", true), true, end),
            ("with its sandbox", runs(), over("Failed", false), true, Now),
            ("the end by its deadline", runs(), with_reason(over("Failed", true)), false, end),
            ("a refused one", begun(), with_reason(over("Failed", false)), false, Now),
            ("its sandbox at last", over("Failed", true), over("Failed", false), true, Now),
        ] {
            assert_eq!(urgency(&seen, &wanted, is_deleted), expected, "{what}");
        }
    }

    #[test]
    fn that_a_deletion_was_seen_is_told_with_what_comes_of_it() {
        let seen = status("Running", json!({ "running": {} }), [true, true]);
        let mut wanted = seen.clone();
        wanted["observedGeneration"] = json!(2);
        wanted["conditions"][0]["observedGeneration"] = json!(2);
        assert_eq!(urgency(&seen, &wanted, true), Urgency::WithTheNext);
        assert_eq!(urgency(&seen, &wanted, false), Urgency::Now, "somebody may wait for a resize");
        wanted["phase"] = json!("Failed");
        assert_ne!(urgency(&seen, &wanted, true), Urgency::WithTheNext);
    }
}
