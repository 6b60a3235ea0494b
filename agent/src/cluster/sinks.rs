//! What the node loop tells of pods.

use berth_core::{id::PodUid, pod::port::status::Published, status::Note};

use super::{Recorder, Reports};

/// Where it is told.
#[derive(Debug, Clone)]
pub struct Sinks {
    /// What pods are.
    pub reports: Reports,
    /// What happens to them.
    pub recorder: Recorder,
}

impl Sinks {
    /// A pod is this now.
    pub fn publish(&self, published: &Published) {
        self.reports.publish(published.clone());
    }

    /// A pod is no more.
    pub fn withdraw(&self, uid: &PodUid) {
        self.reports.withdraw(uid);
    }

    /// Something happened to a pod.
    pub fn note(&self, uid: &PodUid, note: &Note) {
        self.recorder.pod(uid, note);
    }
}
