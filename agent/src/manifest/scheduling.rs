//! Where a pod may run.

use berth_core::spec::{NodeTerm, Operator, Requirement, Scheduling, Toleration, TolerationOperator};
use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, Pod as ApiPod, Toleration as ApiToleration,
};

use super::notes::Notes;

/// What a pod asks of its node. What is only preferred is the scheduler's.
pub(super) fn of_pod(notes: &mut Notes<'_>, written: &ApiPod) -> Scheduling {
    let Some(spec) = &written.spec else { return Scheduling::default() };
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let field = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    Scheduling {
        created: written.metadata.creation_timestamp.as_ref().map(|time| time.0),
        node_name: spec.node_name.clone(),
        os: spec.os.as_ref().map(|os| os.name.clone()),
        selector: spec.node_selector.clone().unwrap_or_default(),
        affinity: required.map(|required| {
            let terms = required.node_selector_terms.iter().enumerate();
            terms.map(|(index, written)| term(notes, &format!("{field}[{index}]"), written)).collect()
        }),
        tolerations: spec.tolerations.iter().flatten().map(toleration).collect(),
    }
}

fn term(notes: &mut Notes<'_>, field: &str, written: &NodeSelectorTerm) -> NodeTerm {
    let mut all = |name: &str, written: &Option<Vec<NodeSelectorRequirement>>| {
        let written = written.iter().flatten().enumerate();
        written.map(|(index, one)| requirement(notes, &format!("{field}.{name}[{index}]"), one)).collect()
    };
    NodeTerm {
        labels: all("matchExpressions", &written.match_expressions),
        fields: all("matchFields", &written.match_fields),
    }
}

/// `operator` of what is asked of a node.
pub(crate) const NODE_OPERATORS: [(&str, Operator); 6] = [
    ("In", Operator::In),
    ("NotIn", Operator::NotIn),
    ("Exists", Operator::Exists),
    ("DoesNotExist", Operator::DoesNotExist),
    ("Gt", Operator::Gt),
    ("Lt", Operator::Lt),
];

fn requirement(notes: &mut Notes<'_>, field: &str, written: &NodeSelectorRequirement) -> Requirement {
    Requirement {
        key: written.key.clone(),
        operator: notes.one_of(&format!("{field}.operator"), Some(&written.operator), &NODE_OPERATORS),
        values: written.values.clone().unwrap_or_default(),
    }
}

fn toleration(written: &ApiToleration) -> Toleration {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Toleration {
        key: text(&written.key),
        operator: match written.operator.as_deref() {
            None | Some("" | "Equal") => TolerationOperator::Equal,
            Some("Exists") => TolerationOperator::Exists,
            Some(_) => TolerationOperator::Other,
        },
        value: text(&written.value),
        effect: text(&written.effect),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::manifest::api_pod;

    /// What a pod of the API asks with these fields in its spec.
    fn asked(field: &str, value: Value) -> Scheduling {
        let mut pod = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
            "spec": { "nodeName": "n", "containers": [{ "name": "main", "image": "a" }] },
        });
        pod["spec"][field] = value;
        let pod = serde_json::from_value(pod).unwrap();
        api_pod(&pod, Timestamp::UNIX_EPOCH).unwrap().pod.scheduling.clone()
    }

    #[test]
    fn what_an_affinity_requires_is_read_with_its_operator() {
        for (written, operator) in [
            ("In", Operator::In),
            ("NotIn", Operator::NotIn),
            ("Exists", Operator::Exists),
            ("DoesNotExist", Operator::DoesNotExist),
            ("Gt", Operator::Gt),
            ("Lt", Operator::Lt),
        ] {
            let one = |key: &str| json!([{ "key": key, "operator": written, "values": ["v"] }]);
            let terms = json!([{ "matchExpressions": one("a"), "matchFields": one("metadata.name") }, {}]);
            let required = json!({ "nodeSelectorTerms": terms });
            let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": required });
            let values = || vec!["v".to_owned()];
            let read = |key: &str| vec![Requirement { key: key.to_owned(), operator, values: values() }];
            let term = NodeTerm { labels: read("a"), fields: read("metadata.name") };
            let found = asked("affinity", json!({ "nodeAffinity": required })).affinity;
            assert_eq!(found, Some(vec![term, NodeTerm::default()]), "{written}");
        }
        let preferred = json!([{ "weight": 1, "preference": { "matchExpressions": [] } }]);
        let preferred = json!({ "preferredDuringSchedulingIgnoredDuringExecution": preferred });
        assert_eq!(asked("affinity", json!({ "nodeAffinity": preferred })).affinity, None);
    }

    #[test]
    fn a_toleration_is_read_whole() {
        use TolerationOperator::{Equal, Exists, Other};
        for (written, operator) in [
            (Value::Null, Equal),
            (json!(""), Equal),
            (json!("Equal"), Equal),
            (json!("Exists"), Exists),
            (json!("Lt"), Other),
        ] {
            let one = json!({ "key": "k", "operator": written, "value": "v", "effect": "NoExecute" });
            let [key, value, effect] = ["k", "v", "NoExecute"].map(str::to_owned);
            let expected = Toleration { key, operator, value, effect };
            assert_eq!(asked("tolerations", json!([one])).tolerations, [expected], "{written}");
        }
    }
}
