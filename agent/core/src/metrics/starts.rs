//! How long pods take to start.
//!
//! Source: `pkg/kubelet/util/pod_startup_latency_tracker.go` and `SyncPod` of `pkg/kubelet/kubelet.go`. A pod that ran already when
//! this agent saw it first is not measured.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::between;
use crate::{
    id::PodUid,
    spec::{ContainerKind, NetworkMode, Pod, Source, Volume, VolumeSource},
    status::{ContainerState, ContainerStatus, Phase, PodStatus},
};

/// Pulls of one pod that are counted: what a pod with more has pulled beyond is not taken off.
const PULLS_MAX: usize = 64;

/// Pods that are starting.
#[derive(Debug, Default)]
pub struct Starts {
    pods: BTreeMap<PodUid, Start>,
    /// Whether a pod with a network of its own was measured.
    has_seen_network: bool,
}

/// One that has not started yet.
#[derive(Debug)]
struct Start {
    seen: Timestamp,
    /// Pulls under way, oldest first.
    pulling: Vec<Timestamp>,
    pulled: Vec<(Timestamp, Timestamp)>,
    /// Whether a container of it was seen to have begun.
    has_begun: bool,
    /// Whether it was seen running, and what remains is that all of it runs.
    is_running: bool,
}

/// What is known once more of a pod has started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// From the moment at which the node saw the pod until its first container began.
    pub first_container: Option<Duration>,
    /// From the same moment until the pod was running.
    pub running: Option<Duration>,
    /// From its creation until all its main containers ran.
    pub total: Option<Duration>,
    /// The same without pulls and init containers, for a pod whose volumes need nothing of others.
    pub service_level: Option<Duration>,
    /// Whether it is the first one with a network of its own.
    pub is_first_network: bool,
}

impl Starts {
    /// A pod has this status now. `created` is asked for once, when all of the pod has started.
    pub fn published(
        &mut self,
        pod: &Pod,
        status: &PodStatus,
        created: impl FnOnce() -> Option<Timestamp>,
        now: Timestamp,
    ) -> Started {
        let mut started = Started::default();
        if status.phase.is_final() || status.terminating {
            self.pods.remove(&pod.uid);
            return started;
        }
        let is_known = self.pods.contains_key(&pod.uid);
        if !is_known && (status.phase != Phase::Pending || begun(status)) {
            return started;
        }
        let start = self.pods.entry(pod.uid.clone()).or_insert_with(|| Start::seen(now));
        let since_seen = between(start.seen, now);
        if !start.has_begun && begun(status) {
            start.has_begun = true;
            started.first_container = Some(since_seen);
        }
        if !start.is_running && status.phase == Phase::Running {
            start.is_running = true;
            started.running = Some(since_seen);
        }
        if start.is_running && status.containers.iter().all(runs) {
            let apart = start.pulling_time() + init_time(status);
            self.pods.remove(&pod.uid);
            self.measure(pod, &mut started, created(), apart, now);
        }
        started
    }

    /// A pull for a pod has begun.
    pub fn pulling(&mut self, uid: &PodUid, now: Timestamp) {
        if let Some(start) = self.pods.get_mut(uid).filter(|start| start.pulling.len() < PULLS_MAX) {
            start.pulling.push(now);
        }
    }

    /// The oldest pull for a pod has ended; nothing where there is none.
    pub fn pulled(&mut self, uid: &PodUid, now: Timestamp) {
        if let Some(start) = self.pods.get_mut(uid)
            && !start.pulling.is_empty()
            && start.pulled.len() < PULLS_MAX
        {
            let began = start.pulling.remove(0);
            start.pulled.push((began, now));
        }
    }

    /// The pod is no longer here.
    pub fn withdrawn(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Static pods have no moment of creation that would say how long they took.
    fn measure(
        &mut self,
        pod: &Pod,
        started: &mut Started,
        created: Option<Timestamp>,
        apart: Duration,
        now: Timestamp,
    ) {
        let Some(created) = created.filter(|_| pod.source == Source::Api) else { return };
        let total = between(created, now);
        started.total = Some(total);
        if is_stateful(pod) {
            return;
        }
        started.service_level = Some(total.saturating_sub(apart));
        started.is_first_network = pod.network == NetworkMode::Pod && !self.has_seen_network;
        self.has_seen_network |= started.is_first_network;
    }
}

impl Start {
    fn seen(now: Timestamp) -> Self {
        Self { seen: now, pulling: Vec::new(), pulled: Vec::new(), has_begun: false, is_running: false }
    }

    /// Time in which something was pulled: pulls that overlap count once.
    fn pulling_time(&self) -> Duration {
        let mut pulls = self.pulled.clone();
        pulls.sort_unstable();
        let mut total = Duration::ZERO;
        let mut end = Timestamp::MIN;
        for (began, ended) in pulls {
            total += between(began.max(end), ended);
            end = end.max(ended);
        }
        total
    }
}

fn runs(container: &ContainerStatus) -> bool {
    matches!(container.state, ContainerState::Running { .. })
}

/// Whether any container has begun.
fn begun(status: &PodStatus) -> bool {
    let has_begun = |container: &ContainerStatus| !matches!(container.state, ContainerState::Waiting { .. });
    status.init_containers.iter().chain(&status.containers).any(has_begun)
}

/// How long init containers took that ended.
fn init_time(status: &PodStatus) -> Duration {
    let init = status.init_containers.iter().filter(|container| container.kind == ContainerKind::Init);
    let ended = init.filter_map(|container| match &container.state {
        ContainerState::Terminated(ended) => Some(between(ended.started_at?, ended.finished_at?)),
        ContainerState::Waiting { .. } | ContainerState::Running { .. } => None,
    });
    ended.sum()
}

/// Whether its volumes are more than what the API server and the node make for it. Source: `isStatefulPod`.
fn is_stateful(pod: &Pod) -> bool {
    let of_pod =
        |volume: &Volume| matches!(volume.source, VolumeSource::EmptyDir { .. } | VolumeSource::Content(_));
    !pod.volumes.iter().all(of_pod)
}

#[cfg(test)]
pub(super) mod tests;
