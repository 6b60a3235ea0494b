//! Whether a pod that is bound to this node may begin on it.
//!
//! Sources: `pkg/kubelet/lifecycle/predicate.go`, `pkg/scheduler/eventhandlers.go` `AdmissionCheck`,
//! `pkg/scheduler/framework/plugins/{noderesources,nodeaffinity,nodename,nodeports,tainttoleration}`,
//! `pkg/kubelet/preemption/preemption.go`.

mod affinity;
mod occupied;
mod preemption;
mod resources;

pub(crate) use self::affinity::fits_term;
pub(super) use self::{occupied::Occupied, preemption::victims};

use super::{NodeInfo, Taint};
use crate::{
    config::AppArmor,
    derived::{app_armor, security},
    spec::{Pod, Quantities, Source, Toleration, TolerationOperator},
};

/// Reason of a pod that asks for another node.
const NODE_AFFINITY: &str = "NodeAffinity";

/// What the node has for pods.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room<'a> {
    pub(super) node: &'a NodeInfo,
    pub(super) allocatable: &'a Quantities,
    pub(super) pods_max: u32,
    pub(super) unsafe_sysctls: &'a [String],
    pub(super) app_armor: AppArmor,
}

/// Why a pod may not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is too little of something: a critical pod takes it from others.
    Insufficient(Insufficient),
    /// Nothing helps.
    Unfit {
        /// Reason of the event and of the status.
        reason: &'static str,
        /// For people.
        message: String,
    },
}

/// There is too little of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Insufficient {
    /// As the API names it.
    pub(super) resource: String,
    pub(super) requested: u64,
    pub(super) used: u64,
    pub(super) capacity: u64,
}

impl Insufficient {
    /// How much is missing: what is used beyond the capacity too.
    pub(super) fn missing(&self) -> u64 {
        self.requested.saturating_add(self.used).saturating_sub(self.capacity)
    }
}

impl Refusal {
    /// Reason of the event and of the status.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Insufficient(Insufficient { resource, .. }) => format!("OutOf{resource}"),
            Self::Unfit { reason, .. } => (*reason).to_owned(),
        }
    }

    /// Whether the node is another than the pod asks for.
    pub(super) fn is_by_labels(&self) -> bool {
        matches!(self, Self::Unfit { reason: NODE_AFFINITY, .. })
    }

    /// For people.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Insufficient(Insufficient { resource, requested, used, capacity }) => format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
            Self::Unfit { message, .. } => message.clone(),
        }
    }
}

/// Everything that keeps a pod from beginning beside those that are here, in the order in which it is told: the first is the reason.
pub(super) fn check(pod: &Pod, here: &Occupied, room: Room<'_>) -> Vec<Refusal> {
    if let Some(refusal) = of_its_own(pod, room) {
        return vec![refusal];
    }
    let mut refusals: Vec<Refusal> =
        resources::missing(pod, here, room).into_iter().map(Refusal::Insufficient).collect();
    let mut predicate = |fits: bool, name: &'static str, why: &str| {
        if !fits {
            let message = format!("Predicate {name} failed: {why}");
            refusals.push(Refusal::Unfit { reason: name, message });
        }
    };
    let NodeInfo { name, taints, .. } = room.node;
    predicate(
        affinity::fits(&pod.scheduling, room.node),
        NODE_AFFINITY,
        "node(s) didn't match Pod's node affinity/selector",
    );
    let is_meant = pod.scheduling.node_name.as_ref().is_none_or(|wanted| wanted.is_empty() || wanted == name);
    predicate(is_meant, "NodeName", "node(s) didn't match the requested node name");
    predicate(
        !here.has_port_of(pod),
        "NodePorts",
        "node(s) didn't have free ports for the requested pod ports",
    );
    let tolerates = |taint: &Taint| pod.scheduling.tolerations.iter().any(|one| covers(one, taint));
    predicate(
        pod.source != Source::Api || taints.iter().all(tolerates),
        "TaintToleration",
        "node(s) had taints that the pod didn't tolerate",
    );
    if let Err(error) = app_armor::check(pod, room.app_armor) {
        refusals.push(Refusal::Unfit { reason: "AppArmor", message: error.to_string() });
    }
    refusals
}

/// What keeps it from beginning on any node like this one.
fn of_its_own(pod: &Pod, room: Room<'_>) -> Option<Refusal> {
    if let Err(error) = security::check_sysctls(pod, room.unsafe_sysctls) {
        return Some(Refusal::Unfit { reason: "SysctlForbidden", message: error.to_string() });
    }
    if pod.labels.get("kubernetes.io/os").is_some_and(|os| os != "linux") {
        return Some(Refusal::Unfit {
            reason: "PodOSSelectorNodeLabelDoesNotMatch",
            message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
                .to_owned(),
        });
    }
    if pod.scheduling.os.as_ref().is_some_and(|os| os != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS".to_owned();
        return Some(Refusal::Unfit { reason: "PodOSNotSupported", message });
    }
    None
}

/// Whether a toleration covers a taint of the effect `NoExecute`.
fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    (toleration.effect.is_empty() || toleration.effect == "NoExecute")
        && (toleration.key.is_empty() || toleration.key == taint.key)
        && match toleration.operator {
            TolerationOperator::Equal => toleration.value == taint.value,
            TolerationOperator::Exists => true,
            TolerationOperator::Other => false,
        }
}

#[cfg(test)]
mod tests;
