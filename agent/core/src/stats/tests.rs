mod files;
mod pods;

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    collected::{ContainerSubject, NetworkOf, PodSubject, VolumeSubject},
    *,
};
use crate::{
    config::{CgroupDriver, CgroupSettings, CgroupVersion},
    fixtures,
    id::{ContainerId, ContainerName, PodName, PodUid, SandboxId, VolumeName},
    spec::{ContainerKind, HostPathType, Medium, NetworkMode, QosClass, Volume, VolumeSource},
    status::{ContainerState, ContainerStatus, Phase, PodStatus, Terminated},
    time::{Mono, Now},
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + second * 1000 + 250).unwrap()
}

fn psi(total_us: u64) -> Psi {
    let some = Pressure { avg10: 1.25, avg60: 2.0, avg300: 0.0, total_us };
    Psi { full: Pressure { total_us: total_us / 2, ..Pressure::default() }, some }
}

fn sampled(second: i64, scale: u64) -> Sampled {
    let level = Level {
        cpu: Some(Cpu {
            total_ns: scale * 1_500_000_000,
            user_ns: scale * 1_000_000_000,
            system_ns: scale * 500_000_000,
            throttled: Throttled {
                periods: 10,
                throttled_periods: 2,
                throttled_ns: 30_000_000,
                ..Throttled::default()
            },
            psi: Some(psi(1000)),
        }),
        memory: Some(
            Memory {
                usage: scale * 10_000_000,
                usage_max: scale * 20_000_000,
                rss: scale * 4_000_000,
                cache: scale * 5_000_000,
                mapped_file: 1024,
                swap: 4096,
                page_faults: 77,
                major_page_faults: 7,
                psi: Some(psi(2000)),
                ..Memory::default()
            }
            .with_files(scale * 1_000_000, scale * 3_000_000),
        ),
        has_io: true,
        devices: vec![Device {
            number: (8, 0),
            stats: DeviceStats {
                bytes: vec![("Read".to_owned(), 4096), ("Write".to_owned(), 8192)],
                operations: vec![("Read".to_owned(), 1), ("Write".to_owned(), 2)],
            },
        }],
        io_psi: Some(psi(3000)),
        tasks: Tasks { processes: scale, threads: 2 * scale, threads_max: 0, open_files_max: None },
        limits: Limits {
            cpu_period_us: 100_000,
            cpu_quota_us: None,
            cpu_shares: 1024,
            memory: u64::MAX,
            swap: u64::MAX,
            reservation: 0,
        },
        oom_kills: 0,
    };
    Sampled {
        at: Now { mono: Mono::default(), wall: at(second) },
        created: Some(at(-100)),
        level,
        nano_cores: Some(scale * 1_000_000),
    }
}

/// A container with limits.
fn bounded(second: i64) -> Sampled {
    let mut sampled = sampled(second, 1);
    sampled.level.limits =
        Limits { cpu_quota_us: Some(50_000), memory: 64 << 20, swap: 0, ..sampled.level.limits };
    sampled.level.tasks.open_files_max = Some(1_048_576);
    sampled.level.oom_kills = 1;
    sampled.nano_cores = None;
    sampled
}

fn interface(name: &str) -> Interface {
    Interface { name: name.to_owned(), received: [1, 2, 3, 4], sent: [5, 6, 7, 8] }
}

fn container(name: &str, id: &str) -> ContainerSubject {
    ContainerSubject {
        name: ContainerName::new(name),
        id: ContainerId::from_known(id),
        image: "registry.example/app:1".to_owned(),
        started_at: at(-50),
        cgroup: format!("/kubepods/burstable/podu1/{id}"),
    }
}

fn pod(uid: &str, name: &str, network: NetworkOf, containers: Vec<ContainerSubject>) -> PodSubject {
    let volume = |name: &str, is_local| {
        let source = VolumeSource::EmptyDir { medium: Medium::Disk, size_limit_bytes: None };
        VolumeSubject { volume: Volume { name: VolumeName::new(name), source }, is_local }
    };
    PodSubject {
        uid: PodUid::new(uid),
        name: PodName { namespace: "default".to_owned(), name: name.to_owned() },
        started_at: Some(at(-60)),
        cgroup: format!("/kubepods/burstable/pod{uid}"),
        network,
        volumes: vec![volume("scratch", true), volume("token", false), volume("unmeasured", true)],
        containers,
    }
}

/// A node with a pod of its own network, one in the node's, and one that has gone meanwhile.
fn read() -> Collected {
    let sandbox = NetworkOf::Sandbox(SandboxId::from_known("s1"));
    let mut host = pod("u2", "host", NetworkOf::Node, vec![container("c", "c2")]);
    host.volumes.clear();
    let ended = pod("u3", "ended", NetworkOf::None, vec![container("c", "gone")]);
    let both = vec![container("web", "c1"), container("ended", "gone")];
    let pods = vec![ended, host, pod("u1", "we\"b", sandbox, both)];
    let levels = [
        ("/", sampled(0, 100)),
        ("/kubepods", sampled(1, 10)),
        ("/kubepods/burstable", sampled(1, 10)),
        ("/system.slice/berth.service", sampled(1, 2)),
        ("/kubepods/burstable/podu1", sampled(2, 3)),
        ("/kubepods/burstable/podu1/c1", bounded(2)),
        ("/kubepods/burstable/podu2", sampled(2, 3)),
        ("/kubepods/burstable/podu1/c2", sampled(2, 2)),
    ];
    let mut levels: BTreeMap<_, _> =
        levels.into_iter().map(|(path, level)| (path.to_owned(), level)).collect();
    let memory = MemoryInfo { total: 8 << 30, swap_total: 1 << 30, swap_free: 1 << 29 };
    let root = levels.remove("/").unwrap();
    levels.insert("/".to_owned(), Sampled { level: root.level.of_machine(&memory), ..root });
    Collected {
        at: at(0),
        subjects: Subjects {
            above: ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"].map(str::to_owned).into(),
            system: SystemContainers {
                kubelet: Some("/system.slice/berth.service".to_owned()),
                runtime: Some("/gone".to_owned()),
                misc: None,
                pods: Some("/kubepods".to_owned()),
            },
            pods,
        },
        levels,
        networks: [(
            PodUid::new("u1"),
            Network { at: at(3), interfaces: vec![interface("eth0"), interface("net1")] },
        )]
        .into(),
        node: Node {
            name: "node-1".to_owned(),
            booted_at: Some(at(-1000)),
            agent_began: at(-500),
            machine: Machine {
                ids: ["m", "s", "b"].map(str::to_owned),
                kernel: "6.1.0".to_owned(),
                os: "Debian".to_owned(),
                processors: [8, 4, 1],
                memory,
            },
            network: Network { at: at(0), interfaces: vec![interface("ens3")] },
            tasks_max: Some(32_768),
            tasks: Some(113),
            disks: [((8, 0), "/dev/sda".to_owned())].into(),
            disk_stats: [((8, 1), [1, 2, 3, 4000, 5, 6, 7, 8000, 9, 10_000, 11_000])].into(),
        },
    }
}

fn disks() -> DiskUsage {
    let fs = FileSystem { capacity: 1000, free: 400, available: 300, inodes: 100, inodes_free: 60 };
    let usage = |bytes, inodes| Usage { at: at(5), bytes, inodes, file_system: fs };
    let pod = PodUsage {
        volumes: [("scratch".to_owned(), usage(10, 1)), ("token".to_owned(), usage(20, 2))].into(),
        logs: [("web".to_owned(), usage(30, 3)), ("ended".to_owned(), usage(1000, 1000))].into(),
        layers: [("c1".to_owned(), usage(40, 4))].into(),
        pod_logs: None,
        hosts: Some(usage(1, 1)),
    };
    DiskUsage {
        pods: [(PodUid::new("u1"), pod)].into(),
        node: Some((at(4), fs)),
        images: Some((at(4), fs)),
        layers_used: Some((500, 50)),
        mounted: vec![(
            Mounted { device: "/dev/sda1".to_owned(), point: "/".to_owned(), number: (8, 1) },
            fs,
        )],
    }
}

fn json(value: &summary::Summary) -> String {
    serde_json::to_string_pretty(value).unwrap() + "\n"
}

#[test]
fn a_summary_is_the_kubelets() {
    let said = json(&summary(&read(), &disks()).unwrap());
    assert!(said == include_str!("tests/summary.json"), "{said}");
}

#[test]
fn a_short_summary_has_processors_memory_and_swap_alone() {
    let said = json(&cpu_and_memory(&read()).unwrap());
    assert!(said == include_str!("tests/short.json"), "{said}");
}

#[test]
fn resources_are_the_kubelets() {
    let said = resource_metrics(cpu_and_memory(&read()).as_ref());
    assert!(said == include_str!("tests/resource.txt"), "{said}");
    let failed = resource_metrics(None);
    assert!(failed.ends_with("# TYPE resource_scrape_error gauge\nresource_scrape_error 1\n"), "{failed}");
    assert_eq!(failed.lines().count(), 3);
}

#[test]
fn levels_are_as_cadvisor_shows_them() {
    let said = cgroup_metrics(Some(&read()), &disks());
    assert!(said == include_str!("tests/cadvisor.txt"), "{said}");
    let families: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    assert!(families.is_sorted(), "{families:?}");
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with('#')).collect();
    let names: std::collections::BTreeSet<_> =
        lines.iter().filter_map(|line| line.rsplit_once("} ")).map(|(name, _)| name).collect();
    let labelled = lines.iter().filter(|line| line.contains('{')).count();
    assert_eq!(names.len(), labelled, "no line is there twice");
    let failed = cgroup_metrics(None, &DiskUsage::default());
    assert!(failed.contains("\ncontainer_scrape_error 1\n") && failed.contains("\nmachine_scrape_error 1\n"));
}

#[test]
fn without_a_root_there_is_nothing_and_without_figures_less() {
    let mut nothing = read();
    nothing.levels.clear();
    assert_eq!(summary(&nothing, &disks()), None);
    let mut bare = read();
    for level in bare.levels.values_mut() {
        level.level = Level::default();
    }
    bare.node.network.interfaces.clear();
    let said = summary(&bare, &DiskUsage::default()).unwrap();
    let node = &said.node;
    assert_eq!(
        (&node.io, &node.network, &node.fs, &node.runtime, &node.swap),
        (&None, &None, &None, &None, &None)
    );
    let cpu = node.cpu.as_ref().unwrap();
    assert_eq!((cpu.usage_nano_cores, cpu.usage_core_nano_seconds), (Some(100_000_000), Some(0)));
    let memory = node.memory.as_ref().unwrap();
    assert_eq!((memory.working_set_bytes, memory.usage_bytes), (Some(0), None));
    assert_eq!((said.pods.len(), &said.pods[1].ephemeral_storage), (2, &None));
}

fn status(containers: Vec<ContainerStatus>) -> PodStatus {
    PodStatus {
        uid: PodUid::new("u"),
        name: PodName { namespace: "n".to_owned(), name: "p".to_owned() },
        phase: Phase::Running,
        reason: String::new(),
        message: String::new(),
        terminating: false,
        conditions: Vec::new(),
        host_ips: Vec::new(),
        pod_ips: Vec::new(),
        start_time: Some(at(0)),
        qos: QosClass::BestEffort,
        recursive_read_only: false,
        resources: None,
        init_containers: Vec::new(),
        ephemeral_containers: Vec::new(),
        containers,
    }
}

fn of_state(id: Option<&str>, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: ContainerName::new("c"),
        kind: ContainerKind::Main,
        image: String::new(),
        image_id: String::new(),
        id: id.map(ContainerId::from_known),
        state,
        last_state: None,
        ready: false,
        started: false,
        restart_count: 0,
        user: None,
        actuated: None,
    }
}

#[test]
fn what_runs_is_counted() {
    let running = || ContainerState::Running { started_at: at(1) };
    let waiting = ContainerState::Waiting { reason: String::new(), message: String::new() };
    let ended = ContainerState::Terminated(Terminated {
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        started_at: None,
        finished_at: None,
        id: None,
    });
    let all = vec![
        of_state(Some("a"), running()),
        of_state(Some("b"), ended.clone()),
        of_state(Some("d"), waiting.clone()),
    ];
    let mut pod = fixtures::pod(Vec::new());
    pod.qos = QosClass::BestEffort;
    pod.network = NetworkMode::Pod;
    let volume = |name: &str, source| Volume { name: VolumeName::new(name), source };
    let empty = |medium| VolumeSource::EmptyDir { medium, size_limit_bytes: None };
    pod.volumes = vec![
        volume("disk", empty(Medium::Disk)),
        volume("memory", empty(Medium::Memory)),
        volume("pages", empty(Medium::HugePages(None))),
        volume("host", VolumeSource::HostPath { path: "/".to_owned(), kind: HostPathType::Unset }),
    ];
    let settings = CgroupSettings::new(CgroupVersion::V2, CgroupDriver::Cgroupfs, "/");
    let sandbox = SandboxId::from_known("s");
    let system = SystemContainers { pods: Some("/kubepods".to_owned()), ..SystemContainers::default() };
    let (running_status, none) =
        (status(all), status(vec![of_state(Some("b"), ended), of_state(None, waiting)]));
    let alone = Subjects::of(&settings, SystemContainers::default(), [(&pod, &none, Some(&sandbox))]);
    let [found] = &*alone.pods else { panic!("{:?}", alone.pods) };
    assert!(found.containers.is_empty(), "a sandbox is counted without containers");
    let subjects =
        Subjects::of(&settings, system, [(&pod, &running_status, Some(&sandbox)), (&pod, &none, None)]);
    let level = format!("/kubepods/besteffort/pod{}", pod.uid);
    let [found] = &*subjects.pods else { panic!("{:?}", subjects.pods) };
    assert_eq!((&found.cgroup, &found.network), (&level, &NetworkOf::Sandbox(sandbox)));
    let volumes: Vec<_> =
        found.volumes.iter().map(|volume| (volume.volume.name.as_str(), volume.is_local)).collect();
    assert_eq!(volumes, [("disk", true), ("memory", false), ("pages", false)]);
    let levels: Vec<&str> = subjects.levels().collect();
    let inner = format!("{level}/a");
    let expected =
        ["/", "/kubepods", "/kubepods/burstable", "/kubepods/besteffort", &level, &inner, "/kubepods"];
    assert_eq!(levels, expected);
}
