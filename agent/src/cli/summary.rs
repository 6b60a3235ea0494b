//! One line about a pod, as kubectl's table has it. Source: `pkg/printers/internalversion/printers.go` `printPod`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod, PodStatus};

use super::age;

/// What the table shows of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Summary {
    /// Containers that are ready, of those that are to be.
    pub(super) ready: String,
    /// One word.
    pub(super) status: String,
    /// Restarts, with the time since the last one.
    pub(super) restarts: String,
}

/// Sums a pod up.
pub(super) fn summarize(pod: &Pod, now: Timestamp) -> Summary {
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let total = pod.spec.as_ref().map_or(0, |spec| spec.containers.len())
        + init.iter().filter(|one| sidecar(one)).count();
    let mut counts = Counts::default();
    let own = [&status.reason, &status.phase].into_iter().flatten().find(|text| !text.is_empty());
    let mut word = own.cloned().unwrap_or_else(|| "Unknown".to_owned());
    let initializing = initializing(init, status, &mut counts);
    let initialized = holds(status, "Initialized");
    if let Some(text) = &initializing {
        word.clone_from(text);
    }
    if initializing.is_none() || initialized {
        word = main_containers(status, word, &mut counts);
    }
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if pod.metadata.deletion_timestamp.is_some() && !ended {
        "Terminating".clone_into(&mut word);
    }
    Summary { ready: format!("{}/{total}", counts.ready), status: word, restarts: counts.restarts(now) }
}

#[derive(Default)]
struct Counts {
    ready: usize,
    restarts: i32,
    last: Option<Timestamp>,
    sidecar_restarts: i32,
    sidecar_last: Option<Timestamp>,
}

impl Counts {
    fn add(&mut self, status: &ContainerStatus) {
        self.restarts = self.restarts.saturating_add(status.restart_count);
        self.last = self.last.max(last_end(status));
    }

    fn restarts(&self, now: Timestamp) -> String {
        match self.last.filter(|_| self.restarts > 0) {
            Some(last) => format!("{} ({} ago)", self.restarts, age::since(now, Some(last))),
            None => self.restarts.to_string(),
        }
    }
}

fn last_end(status: &ContainerStatus) -> Option<Timestamp> {
    Some(status.last_state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
}

fn sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The word for an init container that is not done, if there is one.
fn initializing(init: &[Container], status: &PodStatus, counts: &mut Counts) -> Option<String> {
    for (index, one) in status.init_container_statuses.iter().flatten().enumerate() {
        let stays = init.iter().any(|container| container.name == one.name && sidecar(container));
        counts.add(one);
        if stays {
            counts.sidecar_restarts = counts.sidecar_restarts.saturating_add(one.restart_count);
            counts.sidecar_last = counts.sidecar_last.max(last_end(one));
        }
        let state = one.state.as_ref();
        let ended = state.and_then(|state| state.terminated.as_ref());
        let waiting =
            state.and_then(|state| state.waiting.as_ref()).and_then(|waiting| waiting.reason.as_deref());
        match (ended, waiting) {
            (Some(ended), _) if ended.exit_code == 0 => {}
            _ if stays && one.started == Some(true) => counts.ready += usize::from(one.ready),
            (Some(ended), _) => return Some(format!("Init:{}", end_word(ended))),
            (None, Some(reason)) if !reason.is_empty() && reason != "PodInitializing" => {
                return Some(format!("Init:{reason}"));
            }
            (None, _) => return Some(format!("Init:{index}/{}", init.len())),
        }
    }
    None
}

fn main_containers(status: &PodStatus, mut word: String, counts: &mut Counts) -> String {
    // Restarts of init containers that are done are of no interest any more.
    counts.restarts = counts.sidecar_restarts;
    counts.last = counts.sidecar_last;
    let mut running = false;
    for one in status.container_statuses.iter().flatten().rev() {
        counts.add(one);
        let Some(state) = &one.state else { continue };
        let reason = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
        if !reason.is_empty() {
            reason.clone_into(&mut word);
        } else if let Some(ended) = &state.terminated {
            word = end_word(ended);
        } else if one.ready && state.running.is_some() {
            running = true;
            counts.ready += 1;
        }
    }
    if word == "Completed" && running {
        let ready = holds(status, "Ready");
        if ready { "Running" } else { "NotReady" }.clone_into(&mut word);
    }
    word
}

fn end_word(ended: &ContainerStateTerminated) -> String {
    match (
        ended.reason.as_deref().filter(|reason| !reason.is_empty()),
        ended.signal.filter(|signal| *signal != 0),
    ) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) => format!("Signal:{signal}"),
        (None, None) => format!("ExitCode:{}", ended.exit_code),
    }
}

fn holds(status: &PodStatus, condition: &str) -> bool {
    status.conditions.iter().flatten().any(|one| one.type_ == condition && one.status == "True")
}
