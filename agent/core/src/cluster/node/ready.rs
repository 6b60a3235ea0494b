//! Whether the node is ready, and why not.
//!
//! A kubelet that begins tells nothing of its node before its runtime has answered once or has failed to (`Run` of
//! `pkg/kubelet/kubelet.go`). Containerd's answer waits for the plugins' STATUS (`Status` of `internal/cri/server/status.go`). So a restart
//! makes no node unready that is only slow to answer. Berth tells of its node meanwhile, and leaves it as ready as it was; also while it
//! asks for the CSINode, until which a kubelet that begins calls its node unready.

use serde_json::Value;

use super::{Facts, health::DOWN_AFTER, previous_boot};
use crate::{pod::network_not_ready, time::Mono};

/// Resources without which nothing can run.
const NEEDED: [&str; 4] = ["cpu", "memory", "pods", "ephemeral-storage"];
/// What is said of a network that has not answered (`ErrNetworkUnknown`).
const NETWORK_UNKNOWN: &str = "network state unknown";

/// What keeps the node from being ready.
#[derive(Debug)]
struct Fault {
    why: String,
    /// Of a first answer that has not come: until when it still may.
    due: Option<Mono>,
}

impl Fault {
    fn known(why: String) -> Self {
        Self { why, due: None }
    }

    /// Whether nobody knows yet if this is one.
    fn is_open(&self, now: Mono) -> bool {
        self.due.is_some_and(|due| now < due)
    }
}

/// Until when a first answer of containerd and one of the network may come, of those that have not answered, and one about the CSINode.
fn dues(facts: &Facts) -> [Option<Mono>; 3] {
    let containerd = facts.health.version.is_none().then(|| facts.asked_since + DOWN_AFTER);
    let network = facts.network.is_none().then(|| facts.asked_since + facts.network_within);
    [containerd, network, facts.csi_node.due()]
}

/// All that keeps the node from being ready, as one text. A node that was ready stays so while nothing but first answers is missing
/// that may still come.
pub(super) fn errors(facts: &Facts, existing: &Value, capacity: Option<&Value>, now: Mono) -> Option<String> {
    let uid = existing.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    let faults = faults(facts, uid, capacity, now);
    let all_are_open = faults.iter().all(|fault| fault.is_open(now));
    if all_are_open && was_ready(existing, &facts.machine.boot_id) {
        return None;
    }
    let mut whys: Vec<String> = faults.into_iter().map(|fault| fault.why).collect();
    match whys.len() {
        0 | 1 => whys.pop(),
        // As Go joins an aggregate.
        _ => Some(format!("[{}]", whys.join(", "))),
    }
}

fn faults(facts: &Facts, uid: &str, capacity: Option<&Value>, now: Mono) -> Vec<Fault> {
    let [containerd, network, _] = dues(facts);
    let silent = facts.health.errors(now).into_iter().map(|why| Fault { why, due: containerd });
    let unwired = match &facts.network {
        Some(Ok(())) => None,
        Some(Err(why)) => Some(Fault::known(network_not_ready(why))),
        None => Some(Fault { why: NETWORK_UNKNOWN.to_owned(), due: network }),
    };
    let unlisted = facts.csi_node.missing(uid).map(|(why, due)| Fault { why, due: Some(due) });
    let missing: Vec<&str> = NEEDED
        .into_iter()
        .filter(|name| capacity.and_then(|capacity| capacity.get(*name)).is_none())
        .collect();
    let incomplete = (!missing.is_empty())
        .then(|| Fault::known(format!("missing node capacity for resources: {}", missing.join(", "))));
    silent.chain(unwired).chain(unlisted).chain(incomplete).collect()
}

/// Whether the object says that the node is ready, of this boot of the machine.
fn was_ready(object: &Value, boot_id: &str) -> bool {
    previous_boot(object) == Some(boot_id) && is_ready(object)
}

/// Whether the object says that the node is ready.
#[must_use]
pub fn is_ready(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let says_so = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    conditions.is_some_and(|all| all.iter().any(says_so))
}

/// When the node may have other words though nothing is heard.
#[must_use]
pub fn next_change(facts: &Facts, now: Mono) -> Option<Mono> {
    let dues = dues(facts).into_iter().flatten().filter(|due| now < *due);
    dues.chain(facts.health.next_change(now)).min()
}
