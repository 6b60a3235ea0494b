//! A pod as the API shows it: its manifest with a `v1.PodStatus`, and what the API has no field for.

use berth_core::{
    config::Paths,
    paths,
    status::{Condition, ContainerState, ContainerStatus, PodStatus, Severity, Terminated},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus as ApiContainerStatus, HostIP, Pod as ApiPod, PodCondition, PodIP,
        PodStatus as ApiStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde::{Deserialize, Serialize};

use crate::view::{PodView, Problem, SeenEvent, View};

/// Everything at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Pods, by namespace and name.
    pub pods: Vec<PodObject>,
    /// Manifests that cannot be used.
    pub problems: Vec<Problem>,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodObject {
    /// The pod, as `kubectl get pod -o json` would show it.
    pub pod: ApiPod,
    /// What happened to it, oldest first.
    pub events: Vec<EventObject>,
    /// Fields that are not acted on.
    pub unsupported: Vec<String>,
    /// The sandbox it runs in.
    pub sandbox: Option<String>,
    /// Directory of all pods' logs.
    pub log_root: String,
    /// Directory of this pod's logs.
    pub log_directory: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventObject {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub severity: String,
    /// Reason, such as `Pulled`.
    pub reason: String,
    /// The container it is about.
    pub container: Option<String>,
    /// Words.
    pub message: String,
    /// How often.
    pub count: u32,
    /// First time.
    pub first: Timestamp,
    /// Last time.
    pub last: Timestamp,
}

impl Overview {
    pub(super) fn of(view: &View, paths: &Paths) -> Self {
        let pods = view.pods();
        Self { pods: pods.iter().map(|pod| PodObject::of(pod, paths)).collect(), problems: view.problems() }
    }
}

impl PodObject {
    /// Makes the object of a pod.
    #[must_use]
    pub fn of(view: &PodView, paths: &Paths) -> Self {
        // Berth wrote the manifest itself; should it be unreadable all the same, the status is still worth showing.
        let mut pod: ApiPod = serde_json::from_str(&view.pod.manifest).unwrap_or_default();
        pod.metadata.name = Some(view.pod.name.name.clone());
        pod.metadata.namespace = Some(view.pod.name.namespace.clone());
        pod.metadata.creation_timestamp = view.status.start_time.map(Time);
        pod.metadata.deletion_timestamp = view.terminating_since.map(Time);
        pod.status = Some(status(&view.status));
        Self {
            pod,
            events: view.events.iter().map(EventObject::of).collect(),
            unsupported: view.unsupported.clone(),
            sandbox: view.sandbox.as_ref().map(ToString::to_string),
            log_root: paths.pod_logs.clone(),
            log_directory: paths::pod_logs(paths, &view.pod.name, &view.pod.uid),
        }
    }
}

impl EventObject {
    fn of(seen: &SeenEvent) -> Self {
        let severity = match seen.event.severity {
            Severity::Normal => "Normal",
            Severity::Warning => "Warning",
        };
        Self {
            severity: severity.to_owned(),
            reason: seen.event.reason.to_owned(),
            container: seen.event.container.as_ref().map(ToString::to_string),
            message: seen.event.message.clone(),
            count: seen.count,
            first: seen.first,
            last: seen.last,
        }
    }
}

fn status(status: &PodStatus) -> ApiStatus {
    ApiStatus {
        phase: Some(status.phase.as_str().to_owned()),
        reason: text(&status.reason),
        message: text(&status.message),
        conditions: Some(status.conditions.iter().map(condition).collect()),
        host_ip: status.host_ips.first().map(ToString::to_string),
        host_ips: some(status.host_ips.iter().map(|ip| HostIP { ip: ip.to_string() })),
        pod_ip: status.pod_ips.first().map(ToString::to_string),
        pod_ips: some(status.pod_ips.iter().map(|ip| PodIP { ip: ip.to_string() })),
        start_time: status.start_time.map(Time),
        qos_class: Some(status.qos.as_str().to_owned()),
        init_container_statuses: some(status.init_containers.iter().map(container)),
        container_statuses: some(status.containers.iter().map(container)),
        ..ApiStatus::default()
    }
}

fn condition(condition: &Condition) -> PodCondition {
    PodCondition {
        type_: condition.kind.as_str().to_owned(),
        status: if condition.holds { "True" } else { "False" }.to_owned(),
        reason: text(&condition.reason),
        message: text(&condition.message),
        last_transition_time: Some(Time(condition.since)),
        ..PodCondition::default()
    }
}

fn container(status: &ContainerStatus) -> ApiContainerStatus {
    ApiContainerStatus {
        name: status.name.to_string(),
        image: status.image.clone(),
        image_id: status.image_id.clone(),
        container_id: status.id.as_ref().map(|id| format!("containerd://{id}")),
        state: Some(state(&status.state)),
        last_state: status
            .last_state
            .as_ref()
            .map(|last| ApiState { terminated: Some(terminated(last)), ..ApiState::default() }),
        ready: status.ready,
        started: Some(status.started),
        restart_count: i32::try_from(status.restart_count).unwrap_or(i32::MAX),
        ..ApiContainerStatus::default()
    }
}

fn state(state: &ContainerState) -> ApiState {
    match state {
        ContainerState::Waiting { reason, message } => ApiState {
            waiting: Some(ContainerStateWaiting { reason: text(reason), message: text(message) }),
            ..ApiState::default()
        },
        ContainerState::Running { started_at } => ApiState {
            running: Some(ContainerStateRunning { started_at: Some(Time(*started_at)) }),
            ..ApiState::default()
        },
        ContainerState::Terminated(ended) => {
            ApiState { terminated: Some(terminated(ended)), ..ApiState::default() }
        }
    }
}

fn terminated(ended: &Terminated) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: i32::try_from(ended.exit_code).unwrap_or(i32::MAX),
        reason: text(&ended.reason),
        message: text(&ended.message),
        started_at: ended.started_at.map(Time),
        finished_at: ended.finished_at.map(Time),
        container_id: Some(format!("containerd://{}", ended.id)),
        signal: None,
    }
}

/// A list, absent rather than empty.
fn some<T>(list: impl Iterator<Item = T>) -> Option<Vec<T>> {
    Some(list.collect()).filter(|list: &Vec<T>| !list.is_empty())
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}
