//! What the machine takes and gives: pods as each side has them, requests and what came of them.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::{
    id::{OpId, PodName, PodUid},
    pod::port::status::Remains,
};

/// A pod as the API has it.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiPod {
    /// UID of the object.
    pub uid: PodUid,
    /// Namespace and name.
    pub name: PodName,
    /// How new this is; 0 where that cannot be told.
    pub version: u64,
    /// `status`.
    pub status: Arc<Value>,
    /// Whether it is to be deleted.
    pub is_deleted: bool,
    /// Of a mirror: the hash of the pod that it shows (`kubernetes.io/config.mirror`).
    pub mirrors: Option<String>,
}

/// A pod as the node has it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePod {
    /// Namespace and name.
    pub name: PodName,
    /// `status` as the node shows it.
    pub status: Arc<Value>,
    /// How much of it is left, and so whose word its status is: of a pod that it never ran the node's counts where the API knows no
    /// better.
    pub remains: Remains,
    /// What its mirror is made of, when the API server did not give it.
    pub mirror: Option<Mirror>,
}

impl NodePod {
    /// The status, where what the node shows counts whatever the API knows.
    pub(super) fn own_status(&self) -> Option<&Arc<Value>> {
        self.remains.is_to_be_told().then_some(&self.status)
    }
}

/// What a mirror is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The hash that it bears (`kubernetes.io/config.hash` of the pod).
    pub hash: String,
    /// The pod as JSON.
    pub manifest: Arc<str>,
}

/// One request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Given back with the answer.
    pub op: OpId,
    /// Which pod.
    pub name: PodName,
    /// What.
    pub call: Call,
}

/// What is asked of the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Patch the status of the pod with this UID, by strategic merge. Answer: the pod.
    PatchStatus {
        /// Whose.
        uid: PodUid,
        /// Of `status`.
        patch: Value,
    },
    /// Delete the pod with this UID at once: nothing of it is left. Answer: nothing.
    Delete {
        /// Whose.
        uid: PodUid,
    },
    /// Make the mirror of a pod. Answer: the pod.
    CreateMirror(Mirror),
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It was carried out; the pod as it is now.
    Pod(Box<ApiPod>),
    /// It was carried out.
    Done,
    /// There is no such pod, or another one bears its name already.
    Gone,
    /// It was changed meanwhile, or is another one of the same name.
    Conflict,
    /// The server refused, and will refuse again.
    Refused,
    /// It failed, or nobody knows.
    Failed {
        /// How long the server wants to be left alone at least.
        retry_after: Duration,
    },
}
