//! A pod as the API shows it: its manifest with a `v1.PodStatus`, and what the API has no field for.

use std::collections::BTreeMap;

use berth_core::{
    config::Paths,
    paths,
    status::{Condition, ContainerState, ContainerStatus, PodStatus, RunUser, Severity, Terminated},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
        ContainerStateWaiting, ContainerStatus as ApiContainerStatus, ContainerUser, HostIP,
        LinuxContainerUser, Pod as ApiPod, PodCondition, PodIP, PodSpec, PodStatus as ApiStatus,
        ResourceRequirements, VolumeMount, VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde::{Deserialize, Serialize};

use crate::{
    view::{PodView, Problem, SeenEvent, View},
    workers::{Hanging, Workers},
};

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
        pod.status = Some(status(&view.status, pod.spec.as_ref()));
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
            reason: seen.event.reason.to_owned(),
            container: seen.event.container.as_ref().map(ToString::to_string),
            message: seen.event.message.clone(),
            count: seen.count,
            first: seen.first,
            last: seen.last,
        }
    }
}

fn status(status: &PodStatus, spec: Option<&PodSpec>) -> ApiStatus {
    let mut shown = ApiStatus {
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
    };
    if let Some(spec) = spec {
        add_spec(&mut shown.init_container_statuses, spec.init_containers.as_deref().unwrap_or_default());
        add_spec(&mut shown.container_statuses, &spec.containers);
    }
    shown
}

/// What the status of a container repeats of its spec. Source: `convertToAPIContainerStatuses` of
/// `pkg/kubelet/kubelet_pods.go`: mounts always, resources once there is a container.
fn add_spec(statuses: &mut Option<Vec<ApiContainerStatus>>, containers: &[Container]) {
    for status in statuses.iter_mut().flatten() {
        let Some(container) = containers.iter().find(|one| one.name == status.name) else { continue };
        status.volume_mounts = some(container.volume_mounts.iter().flatten().map(volume_mount));
        if status.container_id.is_some() {
            let resources = resources(container);
            status.allocated_resources.clone_from(&resources.requests);
            status.resources = Some(resources);
        }
    }
}

fn volume_mount(mount: &VolumeMount) -> VolumeMountStatus {
    VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        // Mounts below one that is read-only stay as they are; `IfPossible` is not possible yet.
        recursive_read_only: (mount.read_only == Some(true)).then(|| "Disabled".to_owned()),
        ..VolumeMountStatus::default()
    }
}

/// A limit without a request is a request too (`SetDefaults_Pod` of `pkg/apis/core/v1/defaults.go`).
fn resources(container: &Container) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    for (name, limit) in resources.limits.iter().flatten() {
        resources
            .requests
            .get_or_insert_with(BTreeMap::new)
            .entry(name.clone())
            .or_insert_with(|| limit.clone());
    }
    resources
}

fn user(user: &RunUser) -> ContainerUser {
    let linux = LinuxContainerUser {
        uid: i64::from(user.uid),
        gid: i64::from(user.gid),
        supplemental_groups: some(user.supplemental_groups.iter().map(|group| i64::from(*group))),
    };
    ContainerUser { linux: Some(linux) }
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
        user: status.user.as_ref().map(user),
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

#[cfg(test)]
mod tests {
    use berth_core::{
        id::{ContainerId, ContainerName, PodName, PodUid},
        spec::{ContainerKind, QosClass},
        status::Phase,
    };
    use serde_json::json;

    use super::*;

    fn running(name: &str, kind: ContainerKind, id: Option<&str>) -> ContainerStatus {
        ContainerStatus {
            name: ContainerName::new(name),
            kind,
            image: "i".to_owned(),
            image_id: String::new(),
            id: id.map(ContainerId::from_known),
            state: ContainerState::Running { started_at: Timestamp::UNIX_EPOCH },
            last_state: None,
            ready: true,
            started: true,
            restart_count: 0,
            user: Some(RunUser { uid: 1000, gid: 2000, supplemental_groups: vec![2000, 3000] }),
        }
    }

    #[test]
    fn a_status_repeats_mounts_and_resources_as_the_kubelet_shows_them() {
        let spec: PodSpec = serde_json::from_value(json!({
            "containers": [{
                "name": "web",
                "resources": { "limits": { "cpu": "500m", "memory": "64Mi" }, "requests": { "cpu": "250m" } },
                "volumeMounts": [
                    { "name": "data", "mountPath": "/data" },
                    { "name": "conf", "mountPath": "/conf", "readOnly": true },
                ],
            }, { "name": "other" }],
            "initContainers": [{ "name": "first", "volumeMounts": [{ "name": "data", "mountPath": "/d" }] }],
        }))
        .unwrap();
        let known = PodStatus {
            uid: PodUid::new("1-a"),
            name: PodName { namespace: "default".to_owned(), name: "web".to_owned() },
            phase: Phase::Running,
            reason: String::new(),
            message: String::new(),
            terminating: false,
            conditions: Vec::new(),
            host_ips: Vec::new(),
            pod_ips: Vec::new(),
            start_time: None,
            qos: QosClass::Burstable,
            init_containers: vec![running("first", ContainerKind::Init, Some("2"))],
            containers: vec![
                running("web", ContainerKind::Main, Some("1")),
                running("other", ContainerKind::Main, None),
            ],
        };
        let shown = serde_json::to_value(status(&known, Some(&spec))).unwrap();
        let (web, other) = (&shown["containerStatuses"][0], &shown["containerStatuses"][1]);
        assert_eq!(
            web["resources"],
            json!({
                "limits": { "cpu": "500m", "memory": "64Mi" }, "requests": { "cpu": "250m", "memory": "64Mi" },
            })
        );
        assert_eq!(web["allocatedResources"], json!({ "cpu": "250m", "memory": "64Mi" }));
        assert_eq!(
            web["volumeMounts"],
            json!([
                { "name": "data", "mountPath": "/data" },
                { "name": "conf", "mountPath": "/conf", "readOnly": true, "recursiveReadOnly": "Disabled" },
            ])
        );
        for absent in ["resources", "allocatedResources", "volumeMounts"] {
            assert!(other.get(absent).is_none(), "no container was made yet: {absent}");
        }
        assert_eq!(
            shown["initContainerStatuses"][0]["volumeMounts"],
            json!([{ "name": "data", "mountPath": "/d" }])
        );
        assert_eq!(
            web["user"],
            json!({ "linux": { "uid": 1000, "gid": 2000, "supplementalGroups": [2000, 3000] } })
        );
    }
}
