//! A small node, pod and image for tests to change.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use crate::{
    config::{
        AppArmor, CgroupDriver, CgroupSettings, CgroupVersion, DnsSettings, KubepodsBounds, LogSettings,
        NodeConfig, Paths, PullSettings, ResolvConf,
    },
    id::{ContainerName, ImageRef, PodName, PodUid},
    image::{
        ImageConfig, ImageInfo,
        collection::{StoredImage, StoredName},
    },
    oci::Accounts,
    spec::{
        Container, ContainerKind, ContainerSecurity, DnsPolicy, ImagePullPolicy, IpcMode, Lifecycle,
        NetworkMode, OwnRestarts, PidMode, Pod, PodSecurity, Probe, ProbeHandler, ProbePort, Probes,
        QosClass, Quantities, ResizePolicy, Resources, RestartPolicy, Scheduling, Source, Stdin, Stdio,
        TerminationMessage, TerminationMessagePolicy, UserMode,
    },
    users::PodIds,
};

/// Every capability there is.
pub(crate) const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

pub(crate) fn node() -> NodeConfig {
    NodeConfig {
        name: "node-1".into(),
        labels: BTreeMap::new(),
        pods_max: 110,
        ips: vec!["192.0.2.10".parse().unwrap()],
        hostname: "Node-1.example".into(),
        capacity: Quantities {
            cpu_milli: Some(4000),
            memory_bytes: Some(8 << 30),
            ephemeral_storage_bytes: Some(100 << 30),
            ..Quantities::default()
        },
        allocatable: Quantities {
            cpu_milli: Some(3500),
            memory_bytes: Some(7 << 30),
            ephemeral_storage_bytes: Some(90 << 30),
            ..Quantities::default()
        },
        unreserved: Quantities {
            cpu_milli: Some(3500),
            memory_bytes: Some(15 << 29),
            ephemeral_storage_bytes: Some(95 << 30),
            ..Quantities::default()
        },
        paths: Paths {
            root: "/var/lib/kubelet".into(),
            pod_logs: "/var/log/pods".into(),
            container_logs: "/var/log/containers".into(),
            run: "/run/berth".into(),
            seccomp: "/var/lib/kubelet/seccomp".into(),
        },
        pod_ids: PodIds::all(1 << 16, 110).unwrap(),
        dns: DnsSettings {
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            node_resolv_conf: ResolvConf::Text("nameserver 198.51.100.1\nsearch example.com\n".into()),
            node_hosts: "127.0.0.1\tlocalhost\n".into(),
        },
        cgroups: CgroupSettings {
            kubepods: KubepodsBounds {
                resources: Quantities {
                    cpu_milli: Some(3500),
                    memory_bytes: Some(15 << 29),
                    ..Quantities::default()
                },
                pids_max: Some(30_000),
                cpus: Some("0-3".into()),
            },
            ..CgroupSettings::new(CgroupVersion::V2, CgroupDriver::Cgroupfs, "/")
        },
        pulls: PullSettings { parallel_max: Some(1), qps: 5, burst: 10 },
        collection: None,
        logs: LogSettings { max_size_bytes: 10 << 20, max_files: 5 },
        sync_frequency: Duration::from_secs(60),
        crash_backoff_max: Duration::from_secs(300),
        seccomp_default: false,
        app_armor: AppArmor::Absent,
        se_linux: None,
        thermal_counters: Vec::new(),
        unsafe_sysctls: Vec::new(),
        oom_score_floor: -1000,
        capabilities: ALL_CAPABILITIES,
        kernel_capabilities: ALL_CAPABILITIES,
    }
}

pub(crate) fn container(name: &str) -> Container {
    Container {
        name: ContainerName::new(name),
        kind: ContainerKind::Main,
        target: None,
        restarts: OwnRestarts::default(),
        image: ImageRef::new("busybox"),
        pull_policy: ImagePullPolicy::IfNotPresent,
        command: Vec::new(),
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
        hash: 0xab12,
    }
}

pub(crate) fn pod(containers: Vec<Container>) -> Pod {
    Pod {
        uid: PodUid::new("0b1c-2d"),
        name: PodName { namespace: "shop".into(), name: "web-node-1".into() },
        source: Source::File,
        labels: BTreeMap::from([("app".into(), "web".into())]),
        annotations: BTreeMap::from([("note".into(), "a \"b\"".into())]),
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
        dns_policy: DnsPolicy::ClusterFirst,
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
        init_containers: Vec::new(),
        containers: containers.into_iter().map(Arc::new).collect(),
        ephemeral_containers: Vec::new(),
        manifest: "{}".into(),
        resize: None,
    }
}

pub(crate) fn image() -> ImageInfo {
    ImageInfo {
        name: "docker.io/library/busybox:latest".into(),
        id: "sha256:01".into(),
        tag: Some("docker.io/library/busybox:latest".into()),
        repo_digest: None,
        chain_id: "sha256:02".into(),
        size_bytes: 1,
        config: ImageConfig { cmd: vec!["sh".into()], ..ImageConfig::default() },
    }
}

pub(crate) fn accounts() -> Accounts {
    Accounts {
        passwd: "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:2000::/home/web:/bin/sh\n".into(),
        group: "root:x:0:\nwheel:x:10:root\nmedia:x:3000:web,other\nweb:x:2000:\nvideo:x:44:web\n".into(),
    }
}

/// Requests and limits in thousandths of a core and bytes; 0 names nothing.
pub(crate) fn resources(requests: (u64, u64), limits: (u64, u64)) -> Resources {
    Resources { requests: quantities(requests), limits: quantities(limits) }
}

fn quantities((cpu_milli, memory_bytes): (u64, u64)) -> Quantities {
    let named = |amount| (amount > 0).then_some(amount);
    Quantities { cpu_milli: named(cpu_milli), memory_bytes: named(memory_bytes), ..Quantities::default() }
}

/// A TCP probe with the API's defaults.
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

/// An image that nothing uses, by its id, with one name.
pub(crate) fn stored(id: &str, size_bytes: u64) -> StoredImage {
    StoredImage {
        id: id.into(),
        names: vec![StoredName {
            name: format!("docker.io/library/{id}:latest"),
            target: format!("of-{id}"),
        }],
        chain_id: format!("layers-of-{id}"),
        size_bytes,
        touched: Timestamp::UNIX_EPOCH,
        stays: None,
    }
}
