//! Where a pod may run, as far as the node checks it.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// What a pod asks of its node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// `metadata.creationTimestamp`: the older pod comes first.
    pub created: Option<Timestamp>,
    /// `spec.nodeName`.
    pub node_name: Option<String>,
    /// `spec.os.name`: the system that the pod is made for; absent is any.
    pub os: Option<String>,
    /// `spec.nodeSelector`: labels that the node has.
    pub selector: BTreeMap<String, String>,
    /// `requiredDuringSchedulingIgnoredDuringExecution` of `spec.affinity.nodeAffinity`: the node fits one of them. Absent is any node.
    pub affinity: Option<Vec<NodeTerm>>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
}

/// One `nodeSelectorTerm`: the node fits all of it. One that asks for nothing fits no node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeTerm {
    /// `matchExpressions`, over labels.
    pub labels: Vec<Requirement>,
    /// `matchFields`, over fields, of which there is `metadata.name`.
    pub fields: Vec<Requirement>,
}

/// One `nodeSelectorRequirement`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Label or field.
    pub key: String,
    /// How it is compared.
    pub operator: Operator,
    /// With what.
    pub values: Vec<String>,
}

/// How a requirement compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Is one of the values.
    In,
    /// Is none of them, or is not there.
    NotIn,
    /// Is there.
    Exists,
    /// Is not there.
    DoesNotExist,
    /// Is a number above the value.
    Gt,
    /// Is a number below the value.
    Lt,
}

/// One toleration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    /// Key of the taint; any when empty.
    pub key: String,
    /// Whether the value counts.
    pub operator: TolerationOperator,
    /// Value of the taint.
    pub value: String,
    /// Effect of the taint; any when empty.
    pub effect: String,
}

/// `operator` of a toleration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TolerationOperator {
    /// The value is the same.
    Equal,
    /// Any value.
    Exists,
    /// Something that this version does not compare: tolerates nothing.
    Other,
}
