//! What of the Node object counts for pods, and when it is read anew for one of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::machine::Node;
use crate::{
    effect::{Effect, NodeAct},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::PodUid,
    ops::{Ops, Purpose},
    time::Now,
};

/// What a pod is bound to.
///
/// Before the object was seen, and without a cluster, it is what the configuration says (`initialNode` of
/// `pkg/kubelet/kubelet_node_status.go`). When the object is deleted, what was seen last counts on (`getCachedNode` of
/// `pkg/kubelet/kubelet_nodecache.go`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Name of the node.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints with the effect `NoExecute`.
    pub taints: Vec<Taint>,
    /// What it has of resources with the name of a vendor, which others may have put there.
    pub extended: BTreeMap<String, u64>,
    /// Its addresses as pods see them, primary first; none where the object has none yet.
    pub ips: Vec<IpAddr>,
}

/// A taint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value.
    pub value: String,
}

/// Pods that nothing but the node's labels keep out. Watches tell of pods and of the node each in their own time, so such a pod is
/// judged once more by the object as the API server has it then (`generalFilter` of `pkg/kubelet/lifecycle/predicate.go`).
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// Those that the next reading is for.
    asked: BTreeSet<PodUid>,
    /// Those that one which is under way is for.
    reading: BTreeSet<PodUid>,
    /// Those for which it was read, or could not be.
    read: BTreeSet<PodUid>,
}

impl Doubts {
    /// Whether the object was read since the pod was first kept out; if not, it will be.
    pub(super) fn were_settled(&mut self, uid: &PodUid) -> bool {
        let is_read = self.read.remove(uid);
        if !is_read && !self.reading.contains(uid) {
            self.asked.insert(uid.clone());
        }
        is_read
    }

    /// Pods that nobody wants any more are not judged again.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&PodUid) -> bool) {
        for uids in [&mut self.asked, &mut self.reading, &mut self.read] {
            uids.retain(&is_wanted);
        }
    }

    /// Has the object read, once at a time.
    pub(super) fn poll_effect(&mut self, ops: &mut Ops) -> Option<Effect> {
        if self.asked.is_empty() || !self.reading.is_empty() {
            return None;
        }
        self.reading = std::mem::take(&mut self.asked);
        Some(Effect::Node { op: ops.open(Purpose::NodeObject), act: NodeAct::ReadNodeObject })
    }

    fn settle(&mut self) {
        self.read.append(&mut self.reading);
    }

    /// Nobody knows what it says: it is read again.
    fn ask_again(&mut self) {
        self.asked.append(&mut self.reading);
    }
}

impl Node {
    /// Takes what the Node object says. Pods that were admitted stay, whatever becomes of its labels.
    pub(super) fn take_info(&mut self, info: NodeInfo, now: Now) {
        self.config.allocatable.extended.clone_from(&info.extended);
        let has_other_ips = !info.ips.is_empty() && info.ips != self.config.ips;
        if has_other_ips {
            self.config.ips.clone_from(&info.ips);
        }
        self.resizes.room_has_changed();
        self.info = info;
        if has_other_ips {
            self.advance_all(now);
        }
    }

    /// The object was read for pods that its labels kept out. Where it could not be, they are kept out; where no end of it came in time,
    /// as on a node that waits for its certificate, it is read again.
    pub(super) fn node_object_read(&mut self, result: Result<Outcome, Failure>, now: Now) {
        match result {
            Ok(Outcome::NodeObject(info)) => self.take_info(*info, now),
            Ok(other) => tracing::error!(?other, "not the node's object"),
            Err(Failure { kind: FailureKind::Unknown, message }) => {
                tracing::debug!(why = message, "the node's object is read again for a pod");
                return self.doubts.ask_again();
            }
            Err(failure) => tracing::warn!(why = failure.message, "read the node's object for a pod"),
        }
        self.doubts.settle();
        self.is_uncompared = true;
    }
}
