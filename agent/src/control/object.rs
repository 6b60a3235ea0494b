//! A pod as the API shows it: its manifest with a `v1.PodStatus`, and what the API has no field for.

use berth_core::{config::Paths, paths, status::Severity};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod as ApiPod, apimachinery::pkg::apis::meta::v1::Time};
use serde::{Deserialize, Serialize};

use crate::{
    pod_status,
    view::{PodView, Problem, SeenEvent, View},
    workers::{Hanging, Workers},
};

/// Everything at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Pods, by namespace and name.
    pub pods: Vec<PodObject>,
    /// Manifests that cannot be used, and containerd's configuration when it cannot.
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
    /// What the agent waits for on behalf of the pod, longest first.
    #[serde(default)]
    pub hanging: Vec<HangingObject>,
    /// Containers that wait for the disk of their log; told of one pod alone.
    #[serde(default)]
    pub stalled_logs: Vec<StalledLogObject>,
}

/// Work on files that does not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HangingObject {
    /// What is being done, such as `volume data`.
    pub what: String,
    /// On which path.
    pub path: String,
    /// Since when.
    pub since: Timestamp,
    /// By which process of the agent.
    pub process: u32,
}

/// A log whose disk does not answer. Its container waits once it has written more than is kept for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StalledLogObject {
    /// Whose log.
    pub container: String,
    /// Since when.
    pub since: Timestamp,
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
    /// For people.
    pub message: String,
    /// How often.
    pub count: u32,
    /// First time.
    pub first: Timestamp,
    /// Last time.
    pub last: Timestamp,
}

impl Overview {
    pub(super) fn of(view: &View, paths: &Paths, workers: &Workers) -> Self {
        let pods = view.pods();
        let pods = pods.iter().map(|pod| PodObject::of(pod, paths, workers)).collect();
        Self { pods, problems: view.problems() }
    }
}

impl PodObject {
    /// Makes the object of a pod.
    #[must_use]
    pub fn of(view: &PodView, paths: &Paths, workers: &Workers) -> Self {
        // Berth wrote the manifest itself; should it be unreadable all the same, the status is still worth showing.
        let mut pod: ApiPod = serde_json::from_str(&view.pod.manifest).unwrap_or_default();
        pod.metadata.name = Some(view.pod.name.name.clone());
        pod.metadata.namespace = Some(view.pod.name.namespace.clone());
        pod.metadata.creation_timestamp = view.status.start_time.map(Time);
        pod.metadata.deletion_timestamp = view.terminating_since.map(Time);
        pod.status = Some(pod_status::of(&view.status, &view.pod, pod.spec.as_ref()));
        Self {
            pod,
            events: view.events.iter().map(EventObject::of).collect(),
            unsupported: view.unsupported.clone(),
            sandbox: view.sandbox.as_ref().map(ToString::to_string),
            log_root: paths.pod_logs.clone(),
            log_directory: paths::pod_logs(paths, &view.pod.name, &view.pod.uid),
            hanging: workers.hanging(view.pod.uid.as_str()).into_iter().map(HangingObject::of).collect(),
            stalled_logs: Vec::new(),
        }
    }
}

impl HangingObject {
    fn of(hanging: Hanging) -> Self {
        let Hanging { what, path, since, process } = hanging;
        Self { what, path, since, process }
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
            reason: seen.event.reason.to_string(),
            container: seen.event.container.as_ref().map(ToString::to_string),
            message: seen.event.message.clone(),
            count: seen.count,
            first: seen.first,
            last: seen.last,
        }
    }
}
