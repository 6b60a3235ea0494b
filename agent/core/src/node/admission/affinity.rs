//! Whether a node is one that a pod asks for. Source: `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`,
//! `k8s.io/apimachinery/pkg/labels/selector.go` `Requirement.Matches`.

use super::NodeInfo;
use crate::spec::{NodeTerm, Operator, Requirement, Scheduling};

pub(super) fn fits(asked: &Scheduling, node: &NodeInfo) -> bool {
    let has_labels = asked.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    has_labels && asked.affinity.as_ref().is_none_or(|terms| terms.iter().any(|term| fits_term(term, node)))
}

/// Whether a node fits all that a term asks for.
pub(crate) fn fits_term(term: &NodeTerm, node: &NodeInfo) -> bool {
    if term.labels.is_empty() && term.fields.is_empty() {
        return false;
    }
    let field = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
    term.labels.iter().all(|one| is_met(one, node.labels.get(&one.key).map(String::as_str)))
        && term.fields.iter().all(|one| is_met(one, field(&one.key)))
}

fn is_met(requirement: &Requirement, found: Option<&str>) -> bool {
    let is_listed = found.is_some_and(|found| requirement.values.iter().any(|value| value == found));
    match requirement.operator {
        Operator::In => is_listed,
        Operator::NotIn => !is_listed,
        Operator::Exists => found.is_some(),
        Operator::DoesNotExist => found.is_none(),
        Operator::Gt => compared(requirement, found).is_some_and(|(found, value)| found > value),
        Operator::Lt => compared(requirement, found).is_some_and(|(found, value)| found < value),
    }
}

fn compared(requirement: &Requirement, found: Option<&str>) -> Option<(i64, i64)> {
    let [value] = requirement.values.as_slice() else { return None };
    Some((found?.parse().ok()?, value.parse().ok()?))
}
