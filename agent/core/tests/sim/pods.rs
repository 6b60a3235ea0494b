//! Pods and a node to test with.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_core::{
    config::{
        AppArmor, CgroupDriver, CgroupSettings, CgroupVersion, DnsSettings, LogSettings, NodeConfig, Paths,
        PullSettings,
    },
    id::{ContainerName, ImageRef, PodName, PodUid, VolumeName},
    spec::{
        Container, ContainerKind, ContainerSecurity, DnsPolicy, ImagePullPolicy, IpcMode, Lifecycle, Medium,
        Mount, MountPropagation, NetworkMode, OwnRestarts, PidMode, Pod, PodSecurity, Probe, ProbeHandler,
        ProbePort, Probes, QosClass, Quantities, RecursiveReadOnly, ResizePolicy, Resources, RestartAction,
        RestartPolicy, RestartRule, Scheduling, Source, Stdin, Stdio, SubPath, TerminationMessage,
        TerminationMessagePolicy, UserMode, Volume, VolumeSource,
    },
    users::PodIds,
};

use serde_json::{Value, json};

pub(crate) fn node() -> NodeConfig {
    let amounts = Quantities {
        cpu_milli: Some(2000),
        memory_bytes: Some(8 << 30),
        ephemeral_storage_bytes: None,
        hugepages_bytes: BTreeMap::new(),
        extended: BTreeMap::new(),
    };
    NodeConfig {
        name: "node".into(),
        labels: BTreeMap::new(),
        pods_max: 110,
        ips: vec!["192.0.2.1".parse().unwrap()],
        hostname: "node".into(),
        capacity: amounts.clone(),
        allocatable: amounts.clone(),
        unreserved: amounts,
        paths: Paths {
            root: "/var/lib/kubelet".into(),
            pod_logs: "/var/log/pods".into(),
            container_logs: "/var/log/containers".into(),
            run: "/run/berth".into(),
            seccomp: "/var/lib/kubelet/seccomp".into(),
        },
        // So few that pods meet.
        pod_ids: PodIds::of(1 << 16, 110 << 16, 1 << 16, 110).unwrap(),
        dns: DnsSettings::default(),
        cgroups: CgroupSettings::new(CgroupVersion::V2, CgroupDriver::Cgroupfs, "/"),
        pulls: PullSettings { parallel_max: None, qps: 5, burst: 10 },
        collection: None,
        logs: LogSettings { max_size_bytes: 10 << 20, max_files: 5 },
        sync_frequency: Duration::from_secs(60),
        crash_backoff_max: Duration::from_secs(300),
        seccomp_default: false,
        app_armor: AppArmor::Absent,
        se_linux: None,
        thermal_counters: Vec::new(),
        unsafe_sysctls: Vec::new(),
        oom_score_floor: -999,
        kernel_capabilities: u64::MAX,
        capabilities: u64::MAX,
    }
}

/// A pod with one container per name; `init-…` is an init container, `side-…` a sidecar, `debug-…` an ephemeral container.
pub(crate) fn pod(name: &str, containers: &[&str]) -> Pod {
    let made: Vec<Arc<Container>> = containers.iter().map(|name| Arc::new(container(name))).collect();
    let of = |kinds: &[ContainerKind]| made.iter().filter(|one| kinds.contains(&one.kind)).cloned().collect();
    let init_containers = of(&[ContainerKind::Init, ContainerKind::Sidecar]);
    let containers = of(&[ContainerKind::Main]);
    let ephemeral_containers = of(&[ContainerKind::Ephemeral]);
    Pod {
        uid: PodUid::new(format!("uid-{name}")),
        name: PodName { namespace: "default".into(), name: name.into() },
        source: Source::File,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        restart_policy: RestartPolicy::Always,
        grace: Duration::from_secs(30),
        active_deadline: None,
        generation: None,
        version: None,
        deletion: None,
        started_at: None,
        ended: None,
        have_run: BTreeMap::new(),
        told_allocated: None,
        readiness_gates: Vec::new(),
        scheduling: Scheduling::default(),
        overhead: Quantities::default(),
        network: NetworkMode::Pod,
        pid: PidMode::Container,
        ipc: IpcMode::Pod,
        users: UserMode::Node,
        hostname: None,
        hostname_override: None,
        subdomain: None,
        hostname_as_fqdn: false,
        host_aliases: Vec::new(),
        dns_policy: DnsPolicy::Default,
        dns_config: None,
        service_account: "default".into(),
        service_links: true,
        pull_secrets: Vec::new(),
        priority: 0,
        priority_class: String::new(),
        security: PodSecurity::default(),
        resources: None,
        qos: QosClass::BestEffort,
        runtime: None,
        volumes: Vec::new(),
        init_containers,
        containers,
        ephemeral_containers,
        manifest: format!("{{\"name\":\"{name}\"}}").into(),
        resize: None,
    }
}

pub(crate) fn container(name: &str) -> Container {
    let kind = match name.split_once('-') {
        Some(("init", _)) => ContainerKind::Init,
        Some(("side", _)) => ContainerKind::Sidecar,
        Some(("debug", _)) => ContainerKind::Ephemeral,
        Some(_) | None => ContainerKind::Main,
    };
    Container {
        name: ContainerName::new(name),
        kind,
        target: None,
        restarts: OwnRestarts::default(),
        image: ImageRef::new("busybox:1"),
        pull_policy: ImagePullPolicy::IfNotPresent,
        command: vec!["/bin/sh".into()],
        args: Vec::new(),
        env_from: Vec::new(),
        env: Vec::new(),
        working_dir: None,
        ports: Vec::new(),
        resources: Resources::default(),
        resize_policy: ResizePolicy::default(),
        mounts: Vec::new(),
        devices: Vec::new(),
        stdio: Stdio { stdin: Stdin::Closed, tty: false },
        security: ContainerSecurity::default(),
        probes: Probes::default(),
        lifecycle: Lifecycle::default(),
        termination_message: TerminationMessage {
            path: "/dev/termination-log".into(),
            policy: TerminationMessagePolicy::File,
        },
        hash: 1,
    }
}

/// A manifest of its own for each version of a pod, with what it asks for.
pub(crate) fn manifest(pod: &Pod, version: u64) -> Arc<str> {
    let amounts = |of: &Quantities| json!({ "cpu": of.cpu_milli, "memory": of.memory_bytes });
    let resources =
        |of: &Resources| json!({ "requests": amounts(&of.requests), "limits": amounts(&of.limits) });
    let one =
        |one: &Arc<Container>| json!({ "name": one.name.as_str(), "resources": resources(&one.resources) });
    let containers: Vec<Value> = pod.containers.iter().map(one).collect();
    let own = pod.resources.as_ref().map(resources);
    json!({ "name": pod.name.name, "version": version, "spec": { "containers": containers, "resources": own } })
        .to_string()
        .into()
}

/// What a container requests and may use: thousandths of a core, and bytes.
pub(crate) fn resources(requests: (u64, u64), limits: (u64, u64)) -> Resources {
    let amounts = |(cpu, memory)| Quantities {
        cpu_milli: Some(cpu),
        memory_bytes: Some(memory),
        ..Quantities::default()
    };
    Resources { requests: amounts(requests), limits: amounts(limits) }
}

/// A TCP probe that asks every ten seconds.
pub(crate) fn probe() -> Probe {
    Probe {
        handler: ProbeHandler::Tcp { host: None, port: ProbePort::Number(80) },
        initial_delay: Duration::ZERO,
        timeout: Duration::from_secs(1),
        period: Duration::from_secs(10),
        successes: 1,
        failures: 3,
        grace: None,
    }
}

/// The container of a pod, to be changed.
pub(crate) fn edit<'a>(pod: &'a mut Pod, name: &str) -> &'a mut Container {
    let all = pod.init_containers.iter_mut().chain(&mut pod.containers).chain(&mut pod.ephemeral_containers);
    Arc::make_mut(all.into_iter().find(|one| one.name.as_str() == name).expect("container"))
}

/// All containers of a pod begin anew when one of them ends with this code.
pub(crate) fn restart_all_on(pod: &mut Pod, name: &str, code: u32) {
    let action = RestartAction::RestartAllContainers;
    edit(pod, name).restarts.rules.push(RestartRule { codes: vec![code], is_in: true, action });
}

/// An ephemeral container comes to a pod.
pub(crate) fn debug(pod: &mut Pod, name: &str, target: Option<&str>) {
    let target = target.map(ContainerName::new);
    pod.ephemeral_containers.push(Arc::new(Container { target, ..container(name) }));
}

/// A volume of a pod that is an image, which one of its containers mounts.
pub(crate) fn add_image_volume(pod: &mut Pod, container: Option<&str>, name: &str, image: &str) {
    let volume = VolumeName::new(name);
    let source =
        VolumeSource::Image { image: ImageRef::new(image), pull_policy: ImagePullPolicy::IfNotPresent };
    pod.volumes.push(Volume { name: volume.clone(), source });
    if let Some(container) = container {
        mount(edit(pod, container), &volume);
    }
}

/// One of its containers mounts all volumes of a pod.
pub(crate) fn mount_all(pod: &mut Pod, container: &str) {
    let names: Vec<VolumeName> = pod.volumes.iter().map(|volume| volume.name.clone()).collect();
    names.iter().for_each(|name| mount(edit(pod, container), name));
}

fn mount(container: &mut Container, volume: &VolumeName) {
    container.mounts.push(Mount {
        volume: volume.clone(),
        path: format!("/{volume}"),
        sub_path: SubPath::Root,
        read_only: false,
        recursive_read_only: RecursiveReadOnly::Disabled,
        propagation: MountPropagation::Private,
    });
}

pub(crate) fn empty_dir(name: &str) -> Volume {
    Volume {
        name: VolumeName::new(name),
        source: VolumeSource::EmptyDir { medium: Medium::Disk, size_limit_bytes: None },
    }
}
