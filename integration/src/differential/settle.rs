//! When a pod has come to what it comes to: its status has been the same for so long that nothing more is to be expected.

use std::time::Duration;

use serde_json::Value;

/// For what runs, or has ended for good.
const STEADY: Duration = Duration::from_secs(4);
/// For what a kubelet looks at again: it does so every 10 to 15 s.
const WAITING: Duration = Duration::from_secs(17);
/// For what has only begun; both nodes are busy with the other pods of a batch then.
const BEGINNING: Duration = Duration::from_secs(40);
/// For what is shown until the next look.
const PASSING: [&str; 2] = ["ErrImagePull", "PodInitializing"];
/// What is shown while something is made, and for as long as it cannot be.
const MAKING: &str = "ContainerCreating";

/// How long a pod with this status has to be as it is.
#[must_use]
pub fn steady_for(pod: &Value) -> Duration {
    let status = &pod["status"];
    if ["Succeeded", "Failed"].iter().any(|phase| status["phase"] == *phase) {
        return if is_down(status) { STEADY } else { WAITING };
    }
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let containers: Vec<&Value> =
        lists.iter().filter_map(|list| status[*list].as_array()).flatten().collect();
    if containers.is_empty() {
        return BEGINNING;
    }
    let is_still_running = |name: &Value| {
        containers.iter().any(|one| one["name"] == *name && one["state"]["running"].is_object())
    };
    let of_spec = ["initContainers", "containers"].iter().filter_map(|list| pod["spec"][*list].as_array());
    if of_spec.flatten().any(|one| ends_by_itself(one) && is_still_running(&one["name"])) {
        return BEGINNING;
    }
    let waits_for = |reason: &str| containers.iter().any(|one| one["state"]["waiting"]["reason"] == reason);
    if waits_for(MAKING) {
        return BEGINNING;
    }
    let restarts = pod["spec"]["restartPolicy"] != "Never";
    let ended = |one: &&Value| {
        let code = &one["state"]["terminated"]["exitCode"];
        code.is_number() && (*code != 0 || pod["spec"]["restartPolicy"] == "Always")
    };
    let main = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !main.is_empty() && main.iter().all(|one| one["state"]["terminated"].is_object()) {
        return WAITING;
    }
    let is_between = restarts && containers.iter().any(ended);
    if is_between || PASSING.iter().any(|reason| waits_for(reason)) {
        return WAITING;
    }
    STEADY
}

/// It runs a script that has an end.
fn ends_by_itself(container: &Value) -> bool {
    let script = container["command"][2].as_str();
    script.is_some_and(|script| !script.contains("sleep infinity") && !script.contains("while :"))
}

/// Its sandbox is gone, or it was never let in.
fn is_down(status: &Value) -> bool {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let down = |one: &Value| one["type"] == "PodReadyToStartContainers" && one["status"] == "False";
    conditions.iter().any(down) || !status["containerStatuses"].is_array()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_on_its_way_has_to_be_the_same_for_longer() {
        let of = |state: Value, policy: &str| {
            json!({
                "spec": { "restartPolicy": policy },
                "status": { "phase": "Running", "containerStatuses": [{ "state": state }] },
            })
        };
        let ended = |code: i64| json!({ "terminated": { "exitCode": code } });
        let waits = |reason: &str| json!({ "waiting": { "reason": reason } });
        let scripted = |script: &str| {
            json!({
                "spec": { "containers": [{ "name": "a", "command": ["/bin/sh", "-c", script] }] },
                "status": { "phase": "Running", "containerStatuses": [{ "name": "a", "state": { "running": {} } }] },
            })
        };
        for (pod, expected) in [
            (scripted("echo it ends"), BEGINNING),
            (scripted("trap x TERM; sleep infinity"), STEADY),
            (json!({ "status": { "phase": "Pending" } }), BEGINNING),
            (of(json!({ "running": {} }), "Always"), STEADY),
            (of(ended(1), "Always"), WAITING),
            (of(ended(0), "OnFailure"), WAITING),
            (of(ended(1), "Never"), WAITING),
            (of(waits("ContainerCreating"), "Always"), BEGINNING),
            (of(waits("ErrImagePull"), "Always"), WAITING),
            (of(waits("CrashLoopBackOff"), "Always"), STEADY),
            (json!({ "status": { "phase": "Failed", "reason": "OutOfcpu" } }), STEADY),
            (json!({ "status": { "phase": "Failed", "containerStatuses": [{}] } }), WAITING),
        ] {
            assert_eq!(steady_for(&pod), expected, "{pod}");
        }
    }
}
