//! What a container says itself of being started again: `restartPolicy` and `restartPolicyRules`.

use berth_core::spec::{ContainerKind, OwnRestarts, RestartAction, RestartPolicy, RestartRule};
use k8s_openapi::api::core::v1::{Container as ApiContainer, ContainerRestartRule};

use super::notes::Notes;

/// Most rules of a container, and most codes of a rule (`validateContainerRestartPolicy` of `pkg/apis/core/validation/validation.go`).
const RULES_MAX: usize = 20;
const CODES_MAX: usize = 255;

/// The role of a container in its pod, and its own rules. An init container that always runs again is a sidecar.
pub(super) fn convert(
    notes: &mut Notes<'_>,
    field: &str,
    written: &ApiContainer,
    role: ContainerKind,
) -> (ContainerKind, OwnRestarts) {
    let known = [
        ("Always", RestartPolicy::Always),
        ("OnFailure", RestartPolicy::OnFailure),
        ("Never", RestartPolicy::Never),
    ];
    if role == ContainerKind::Ephemeral {
        return (role, OwnRestarts::default());
    }
    let policy = written.restart_policy.as_deref().filter(|policy| !policy.is_empty());
    let policy = policy.map(|policy| notes.one_of(&format!("{field}.restartPolicy"), Some(policy), &known));
    let rules = written.restart_policy_rules.as_deref().unwrap_or_default();
    if policy.is_none() && !rules.is_empty() {
        notes.fault(&format!("{field}.restartPolicyRules"), "go with `restartPolicy` only");
    }
    let rules = rules.iter().enumerate();
    let rules = rules.filter_map(|(at, one)| rule(notes, &format!("{field}.restartPolicyRules[{at}]"), one));
    let rules: Vec<_> = rules.collect();
    if rules.len() > RULES_MAX {
        notes.fault(&format!("{field}.restartPolicyRules"), format!("more than {RULES_MAX}"));
    }
    if (role, policy) == (ContainerKind::Init, Some(RestartPolicy::Always)) {
        return (ContainerKind::Sidecar, OwnRestarts { policy: None, rules });
    }
    (role, OwnRestarts { policy, rules })
}

fn rule(notes: &mut Notes<'_>, field: &str, written: &ContainerRestartRule) -> Option<RestartRule> {
    let known =
        [("Restart", RestartAction::Restart), ("RestartAllContainers", RestartAction::RestartAllContainers)];
    let action = notes.required_one_of(&format!("{field}.action"), &written.action, &known);
    let Some(on) = &written.exit_codes else {
        notes.fault(&format!("{field}.exitCodes"), "is missing");
        return None;
    };
    let known = [("In", true), ("NotIn", false)];
    let is_in = notes.required_one_of(&format!("{field}.exitCodes.operator"), &on.operator, &known);
    if on.values.iter().flatten().count() > CODES_MAX {
        notes.fault(&format!("{field}.exitCodes.values"), format!("more than {CODES_MAX}"));
    }
    // Nothing ends with a code below zero.
    let codes = on.values.iter().flatten().filter_map(|code| u32::try_from(*code).ok()).collect();
    Some(RestartRule { codes, is_in, action })
}

#[cfg(test)]
mod tests {
    use berth_core::spec::{Pod, Source};
    use serde_json::{Value, json};

    use super::*;
    use crate::manifest::api_pod;

    fn read(init: &Value, main: &Value, rules: &Value) -> Result<(Pod, Vec<String>), String> {
        let init_rules = if init.is_null() { &Value::Null } else { rules };
        let spec = json!({
            "initContainers": [
                { "name": "init", "image": "i", "restartPolicy": init, "restartPolicyRules": init_rules },
            ],
            "containers": [{ "name": "main", "image": "i", "restartPolicy": main, "restartPolicyRules": rules }],
        });
        let metadata = json!({ "name": "web", "namespace": "default", "uid": "u1" });
        let pod = json!({ "metadata": metadata, "spec": spec });
        let pod = serde_json::from_value(pod).map_err(|error| error.to_string())?;
        let manifest = api_pod(&pod, jiff::Timestamp::UNIX_EPOCH).map_err(|faults| faults.to_string())?;
        assert_eq!(manifest.pod.source, Source::Api);
        Ok((Pod::clone(&manifest.pod), manifest.unsupported))
    }

    #[test]
    fn containers_say_themselves_whether_they_run_again() {
        let on = |action: &str, operator: &str| json!([{ "action": action, "exitCodes": { "operator": operator, "values": [42] } }]);
        let (pod, unsupported) = read(&json!("Always"), &json!("Never"), &on("Restart", "In")).unwrap();
        assert_eq!(pod.init_containers[0].kind, ContainerKind::Sidecar);
        let rule = |is_in, action| vec![RestartRule { codes: vec![42], is_in, action }];
        let own = |policy, rules| OwnRestarts { policy: Some(policy), rules };
        let expected = own(RestartPolicy::Never, rule(true, RestartAction::Restart));
        assert_eq!((&pod.containers[0].restarts, unsupported.len()), (&expected, 0));
        let of_a_sidecar = OwnRestarts { policy: None, rules: expected.rules };
        assert_eq!(pod.init_containers[0].restarts, of_a_sidecar);

        let (pod, unsupported) =
            read(&json!("OnFailure"), &json!("Always"), &on("RestartAllContainers", "NotIn")).unwrap();
        assert_eq!(pod.init_containers[0].kind, ContainerKind::Init);
        let rules = rule(false, RestartAction::RestartAllContainers);
        assert_eq!(pod.init_containers[0].restarts, own(RestartPolicy::OnFailure, rules.clone()));
        assert_eq!(pod.containers[0].restarts, own(RestartPolicy::Always, rules));
        assert_eq!(unsupported.len(), 0);
    }

    #[test]
    fn rules_without_a_policy_are_refused() {
        let rules = json!([{ "action": "Restart" }]);
        let refused = read(&Value::Null, &Value::Null, &rules).unwrap_err();
        assert!(refused.contains("spec.containers[0].restartPolicyRules"), "{refused}");
    }

    #[test]
    fn what_a_rule_lacks_and_what_is_too_much_is_refused() {
        let on = |codes: usize| json!({ "action": "Restart", "exitCodes": { "operator": "In", "values": vec![7; codes] } });
        for (rules, fault) in [
            (json!([on(255)]), None),
            (json!(vec![on(1); 20]), None),
            (json!([{ "action": "Restart" }]), Some("exitCodes: is missing")),
            (json!([{ "exitCodes": { "operator": "In", "values": [1] } }]), Some("action: is missing")),
            (json!([{ "action": "Restart", "exitCodes": { "values": [1] } }]), Some("operator: is missing")),
            (json!([on(256)]), Some("values: more than 255")),
            (json!(vec![on(1); 21]), Some("restartPolicyRules: more than 20")),
        ] {
            let refused = read(&json!("Never"), &json!("Never"), &rules).err();
            assert_eq!(refused.is_some(), fault.is_some(), "{rules}: {refused:?}");
            let text = refused.unwrap_or_default();
            assert!(fault.is_none_or(|fault| text.contains(fault)), "{rules}: {text}");
        }
    }
}
