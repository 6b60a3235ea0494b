//! A pod's status in the API's form. Source: `convertStatusToAPIStatus` and `convertToAPIContainerStatuses` of
//! `pkg/kubelet/kubelet_pods.go`.

mod resources;

use berth_core::{
    spec::{ContainerKind, Pod},
    status::{Condition, ConditionKind, ContainerState, ContainerStatus, PodStatus, RunUser, Terminated},
};
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
        ContainerStateWaiting, ContainerStatus as ApiContainerStatus, ContainerUser, HostIP,
        LinuxContainerUser, Pod as ApiPod, PodCondition, PodIP, PodSpec, PodStatus as ApiStatus, VolumeMount,
        VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::manifest::as_container;

/// The status of a pod, whose spec is `spec` in the API's form.
#[must_use]
pub fn of(status: &PodStatus, pod: &Pod, spec: Option<&PodSpec>) -> ApiStatus {
    let mut shown = ApiStatus {
        phase: Some(status.phase.as_str().to_owned()),
        reason: text(&status.reason),
        message: text(&status.message),
        observed_generation: pod.generation,
        conditions: Some(status.conditions.iter().map(|one| condition(one, pod)).collect()),
        host_ip: status.host_ips.first().map(ToString::to_string),
        host_ips: some(status.host_ips.iter().map(|ip| HostIP { ip: ip.to_string() })),
        pod_ip: status.pod_ips.first().map(ToString::to_string),
        pod_ips: some(status.pod_ips.iter().map(|ip| PodIP { ip: ip.to_string() })),
        start_time: status.start_time.map(Time),
        qos_class: Some(status.qos.as_str().to_owned()),
        init_container_statuses: some(status.init_containers.iter().map(container)),
        container_statuses: some(status.containers.iter().map(container)),
        ephemeral_container_statuses: some(status.ephemeral_containers.iter().map(container)),
        ..ApiStatus::default()
    };
    if let Some(spec) = spec {
        let kept = pod.resize.as_ref().and_then(|resize| spec_of(&resize.allocated));
        let allocated = kept.as_ref().unwrap_or(spec);
        let init = |spec: &PodSpec| spec.init_containers.clone().unwrap_or_default();
        if let Some(whole) = &status.resources {
            let (set_aside, has) = resources::of_pod(whole, allocated);
            shown.allocated_resources = set_aside;
            shown.resources = Some(has);
        }
        let rro = status.recursive_read_only;
        add_spec(&mut shown.init_container_statuses, &init(spec), &init(allocated), rro);
        add_spec(&mut shown.container_statuses, &spec.containers, &allocated.containers, rro);
        set_actuated(&mut shown.init_container_statuses, &status.init_containers);
        set_actuated(&mut shown.container_statuses, &status.containers);
        let ephemeral: Vec<Container> =
            spec.ephemeral_containers.iter().flatten().map(as_container).collect();
        add_spec(&mut shown.ephemeral_container_statuses, &ephemeral, &ephemeral, rro);
    }
    shown
}

/// The spec of a manifest that was kept.
#[must_use]
pub fn spec_of(manifest: &str) -> Option<PodSpec> {
    serde_json::from_str::<ApiPod>(manifest).ok()?.spec
}

/// What the status of a container repeats of its spec. Source: `convertToAPIContainerStatuses` of
/// `pkg/kubelet/kubelet_pods.go`: mounts always, resources once there is a container, and those that it has.
fn add_spec(
    statuses: &mut Option<Vec<ApiContainerStatus>>,
    containers: &[Container],
    allocated: &[Container],
    recursive_read_only: bool,
) {
    for status in statuses.iter_mut().flatten() {
        let of_name = |all: &[Container]| all.iter().find(|one| one.name == status.name).cloned();
        let Some(container) = of_name(containers) else { continue };
        status.volume_mounts = some(
            container.volume_mounts.iter().flatten().map(|mount| volume_mount(mount, recursive_read_only)),
        );
        if status.container_id.is_some() {
            let stop_signal = container.lifecycle.as_ref().and_then(|one| one.stop_signal.clone());
            let mut resources = resources::of_container(&of_name(allocated).unwrap_or(container));
            status.allocated_resources.clone_from(&resources.requests);
            if status.state.as_ref().is_some_and(|state| state.running.is_some()) {
                resources::set_read_back(&mut resources);
            }
            status.resources = Some(resources);
            status.stop_signal = stop_signal;
        }
    }
}

fn set_actuated(shown: &mut Option<Vec<ApiContainerStatus>>, statuses: &[ContainerStatus]) {
    for (shown, status) in shown.iter_mut().flatten().zip(statuses) {
        if let (Some(has), Some(resources)) = (status.actuated, &mut shown.resources) {
            resources::set_actuated(resources, has);
        }
    }
}

fn volume_mount(mount: &VolumeMount, is_supported: bool) -> VolumeMountStatus {
    let is_asked = matches!(mount.recursive_read_only.as_deref(), Some("IfPossible" | "Enabled"));
    let mode = if is_asked && is_supported { "Enabled" } else { "Disabled" };
    VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        recursive_read_only: (mount.read_only == Some(true)).then(|| mode.to_owned()),
        ..VolumeMountStatus::default()
    }
}

fn user(user: &RunUser) -> ContainerUser {
    let linux = LinuxContainerUser {
        uid: i64::from(user.uid),
        gid: i64::from(user.gid),
        supplemental_groups: some(user.supplemental_groups.iter().map(|group| i64::from(*group))),
    };
    ContainerUser { linux: Some(linux) }
}

fn condition(condition: &Condition, pod: &Pod) -> PodCondition {
    PodCondition {
        type_: condition.kind.as_str().to_owned(),
        status: if condition.holds { "True" } else { "False" }.to_owned(),
        reason: text(&condition.reason),
        message: text(&condition.message),
        last_transition_time: Some(Time(condition.since)),
        observed_generation: observed_generation(condition, pod),
        ..PodCondition::default()
    }
}

/// `GenerateAllContainersRestartingCondition` of `pkg/kubelet/status/generate.go` names none.
fn observed_generation(condition: &Condition, pod: &Pod) -> Option<i64> {
    let generation = condition.generation.or(pod.generation);
    generation.filter(|_| condition.kind != ConditionKind::AllContainersRestarting)
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
        // Of an ephemeral container nobody asks.
        started: (status.kind != ContainerKind::Ephemeral).then_some(status.started),
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
        container_id: ended.id.as_ref().map(|id| format!("containerd://{id}")),
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
        spec::{CpuMemory, QosClass, Resize, Source},
        status::Phase,
    };
    use jiff::Timestamp;
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
            actuated: None,
        }
    }

    fn spec() -> PodSpec {
        serde_json::from_value(json!({
            "containers": [{
                "name": "web",
                "resources": { "limits": { "cpu": "500m", "memory": "64Mi" }, "requests": { "cpu": "250m" } },
                "volumeMounts": [
                    { "name": "data", "mountPath": "/data" },
                    { "name": "conf", "mountPath": "/conf", "readOnly": true },
                ],
            }, { "name": "other" }],
            "initContainers": [{ "name": "first", "volumeMounts": [{ "name": "data", "mountPath": "/d" }] }],
            "ephemeralContainers": [{
                "name": "debug",
                "targetContainerName": "web",
                "volumeMounts": [{ "name": "data", "mountPath": "/e" }],
            }],
        }))
        .unwrap()
    }

    fn known() -> PodStatus {
        PodStatus {
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
            recursive_read_only: false,
            resources: None,
            init_containers: vec![running("first", ContainerKind::Init, Some("2"))],
            containers: vec![
                running("web", ContainerKind::Main, Some("1")),
                running("other", ContainerKind::Main, None),
            ],
            ephemeral_containers: vec![ContainerStatus {
                ready: false,
                started: false,
                ..running("debug", ContainerKind::Ephemeral, Some("3"))
            }],
        }
    }

    fn pod() -> std::sync::Arc<Pod> {
        let manifest = r#"{"metadata": {"name": "web", "namespace": "default", "uid": "1-a", "generation": 3},
                           "spec": {"containers": [{"name": "web", "image": "i"}]}}"#;
        crate::manifest::pod_from_json(manifest, Source::Api).unwrap()
    }

    /// Source: `convertToAPIContainerStatuses` of `pkg/kubelet/kubelet_pods.go`.
    #[test]
    fn a_mount_shows_whether_all_below_is_read_only() {
        for (mode, is_supported, expected) in [
            (json!({ "readOnly": true }), true, json!("Disabled")),
            (json!({ "readOnly": true, "recursiveReadOnly": "Disabled" }), true, json!("Disabled")),
            (json!({ "readOnly": true, "recursiveReadOnly": "IfPossible" }), true, json!("Enabled")),
            (json!({ "readOnly": true, "recursiveReadOnly": "IfPossible" }), false, json!("Disabled")),
            (json!({ "readOnly": true, "recursiveReadOnly": "Enabled" }), true, json!("Enabled")),
            (json!({ "readOnly": true, "recursiveReadOnly": "Enabled" }), false, json!("Disabled")),
            (json!({}), true, serde_json::Value::Null),
        ] {
            let mut mount = json!({ "name": "data", "mountPath": "/data" });
            mount.as_object_mut().unwrap().extend(mode.as_object().unwrap().clone());
            let spec: PodSpec =
                serde_json::from_value(json!({ "containers": [{ "name": "web", "volumeMounts": [mount] }] }))
                    .unwrap();
            let status = PodStatus { recursive_read_only: is_supported, ..known() };
            let shown = serde_json::to_value(of(&status, &pod(), Some(&spec))).unwrap();
            let shown = &shown["containerStatuses"][0]["volumeMounts"][0]["recursiveReadOnly"];
            assert_eq!(*shown, expected, "{mode} {is_supported}");
        }
    }

    #[test]
    fn a_status_repeats_mounts_and_resources_as_the_kubelet_shows_them() {
        let shown = serde_json::to_value(of(&known(), &pod(), Some(&spec()))).unwrap();
        assert_eq!(shown["observedGeneration"], 3);
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

    /// As the kubelet shows it: nobody asks whether it has started.
    #[test]
    fn an_ephemeral_container_has_a_status_of_its_own() {
        let shown = serde_json::to_value(of(&known(), &pod(), Some(&spec()))).unwrap();
        let expected = json!([{
            "name": "debug",
            "image": "i",
            "imageID": "",
            "containerID": "containerd://3",
            "state": { "running": { "startedAt": "1970-01-01T00:00:00Z" } },
            "ready": false,
            "restartCount": 0,
            "resources": {},
            "user": { "linux": { "uid": 1000, "gid": 2000, "supplementalGroups": [2000, 3000] } },
            "volumeMounts": [{ "name": "data", "mountPath": "/e" }],
        }]);
        assert_eq!(shown["ephemeralContainerStatuses"], expected);
        let nothing = PodStatus { ephemeral_containers: Vec::new(), ..known() };
        let shown = serde_json::to_value(of(&nothing, &pod(), Some(&spec()))).unwrap();
        assert!(shown.get("ephemeralContainerStatuses").is_none());
    }

    #[test]
    fn an_end_names_its_run_where_there_was_one() {
        for (id, expected) in [(None, None), (Some("1"), Some("containerd://1"))] {
            let end = Terminated {
                exit_code: 137,
                reason: String::new(),
                message: String::new(),
                started_at: None,
                finished_at: None,
                id: id.map(ContainerId::from_known),
            };
            assert_eq!(terminated(&end).container_id.as_deref(), expected);
        }
    }

    #[test]
    fn what_is_not_in_force_yet_is_allocated_and_shown_as_it_is() {
        let (pod, mut known) = (pod(), known());
        known.containers[0].actuated =
            Some(CpuMemory { cpu_request: 250, cpu_limit: 2000, memory_request: 0, memory_limit: 3 << 20 });
        let shown = serde_json::to_value(of(&known, &pod, Some(&spec()))).unwrap();
        let web = &shown["containerStatuses"][0];
        let resources = json!({ "requests": { "cpu": "250m" }, "limits": { "cpu": "2", "memory": "3Mi" } });
        assert_eq!(web["resources"], resources);
        assert_eq!(web["allocatedResources"], json!({ "cpu": "250m", "memory": "64Mi" }));
    }

    #[test]
    fn of_sidecars_is_shown_what_they_have_as_of_main_containers() {
        let with = |resources: serde_json::Value| -> PodSpec {
            let proxy = json!({ "name": "proxy", "restartPolicy": "Always", "resources": resources });
            serde_json::from_value(json!({ "initContainers": [proxy], "containers": [{ "name": "web" }] }))
                .unwrap()
        };
        let asks = with(json!({ "requests": { "cpu": "250m" }, "limits": { "memory": "64Mi" } }));
        let proxy = running("proxy", ContainerKind::Sidecar, Some("2"));
        let actuated =
            Some(CpuMemory { cpu_request: 100, cpu_limit: 0, memory_request: 0, memory_limit: 3 << 20 });
        let behind =
            PodStatus { init_containers: vec![ContainerStatus { actuated, ..proxy.clone() }], ..known() };
        let shown = serde_json::to_value(of(&behind, &pod(), Some(&asks))).unwrap();
        let shown = &shown["initContainerStatuses"][0];
        let resources = json!({ "requests": { "cpu": "100m" }, "limits": { "memory": "3Mi" } });
        assert_eq!(
            (&shown["resources"], &shown["allocatedResources"]),
            (&resources, &json!({ "cpu": "250m", "memory": "64Mi" }))
        );

        let has = json!({ "requests": { "cpu": "50m" } });
        let kept = json!({ "spec": { "initContainers": [{ "name": "proxy", "resources": has }] } });
        let resize = Resize { allocated: kept.to_string().into(), generation: Some(2), unallocated: None };
        let waits = Pod { resize: Some(resize), ..Pod::clone(&pod()) };
        let known = PodStatus { init_containers: vec![proxy], ..known() };
        let shown = serde_json::to_value(of(&known, &waits, Some(&asks))).unwrap();
        let shown = &shown["initContainerStatuses"][0];
        assert_eq!((&shown["resources"], &shown["allocatedResources"]), (&has, &has["requests"]));
    }

    #[test]
    fn a_pod_that_asks_for_other_resources_shows_those_that_it_has() {
        let (pod, known) = (pod(), known());
        let before = serde_json::to_value(of(&known, &pod, Some(&spec()))).unwrap();
        let resize = Resize { allocated: pod.manifest.clone(), generation: Some(2), unallocated: None };
        let kept = json!({ "spec": { "containers": [{ "name": "web", "resources": { "requests": { "cpu": "1" } } }] } });
        let resize = Resize { allocated: kept.to_string().into(), ..resize };
        let pending = Condition {
            kind: ConditionKind::PodResizePending,
            holds: true,
            reason: "Infeasible".to_owned(),
            message: String::new(),
            since: Timestamp::UNIX_EPOCH,
            generation: Some(2),
        };
        let asks = PodStatus { conditions: vec![pending], ..known };
        let asking = Pod { resize: Some(resize), ..Pod::clone(&pod) };
        let kept = serde_json::to_value(of(&asks, &asking, Some(&spec()))).unwrap();
        let web_kept = &kept["containerStatuses"][0];
        assert_eq!(web_kept["resources"], json!({ "requests": { "cpu": "1" } }), "what it has");
        assert_eq!(web_kept["allocatedResources"], json!({ "cpu": "1" }));
        assert_eq!(web_kept["volumeMounts"], before["containerStatuses"][0]["volumeMounts"]);
        let condition = &kept["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["observedGeneration"]),
            (&json!("PodResizePending"), &json!(2))
        );
    }
}
