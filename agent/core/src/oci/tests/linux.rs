//! Namespaces, capabilities, bounds, and what of the kernel is hidden.

use std::{collections::BTreeSet, path::Path};

use oci_spec::runtime::{Linux, LinuxIdMapping, LinuxSeccompAction};

use super::Bench;
use crate::{
    config::{CgroupDriver, CgroupVersion},
    fixtures,
    oci::ConfigError,
    spec::{IpcMode, NetworkMode, PidMode, ProcMount, QosClass, Resources, Seccomp, UserMode},
    users::HostIds,
};

const GIB: u64 = 1 << 30;

fn linux(bench: &Bench) -> Linux {
    bench.spec().linux().clone().unwrap()
}

fn namespaces(bench: &Bench) -> Vec<String> {
    let linux = linux(bench);
    let all = linux.namespaces().iter().flatten();
    all.map(|one| match one.path() {
        Some(path) => format!("{}={}", one.typ(), path.display()),
        None => one.typ().to_string(),
    })
    .collect()
}

#[test]
fn namespaces_of_the_pod_are_placeholders_those_of_the_container_are_new() {
    let net = "net=/proc/1/ns/net";
    let ipc = "ipc=/proc/1/ns/ipc";
    let uts = "uts=/proc/1/ns/uts";
    for (network, ipc_mode, pid, version, expected) in [
        (
            NetworkMode::Pod,
            IpcMode::Pod,
            PidMode::Container,
            CgroupVersion::V2,
            vec![net, ipc, uts, "mnt", "pid", "cgroup"],
        ),
        (
            NetworkMode::Pod,
            IpcMode::Pod,
            PidMode::Container,
            CgroupVersion::V1,
            vec![net, ipc, uts, "mnt", "pid"],
        ),
        (
            NetworkMode::Pod,
            IpcMode::Pod,
            PidMode::Pod,
            CgroupVersion::V1,
            vec![net, ipc, uts, "pid=/proc/1/ns/pid", "mnt"],
        ),
        (NetworkMode::Node, IpcMode::Node, PidMode::Node, CgroupVersion::V1, vec!["mnt"]),
        (NetworkMode::Node, IpcMode::Pod, PidMode::Container, CgroupVersion::V1, vec![ipc, "mnt", "pid"]),
    ] {
        let bench = Bench::with(|bench| {
            (bench.pod.network, bench.pod.ipc, bench.pod.pid) = (network, ipc_mode, pid);
            bench.node.cgroups.version = version;
        });
        assert_eq!(namespaces(&bench), expected);
    }
}

#[test]
fn a_pod_with_a_user_namespace_has_its_ids_in_all_that_it_mounts_of_the_node() {
    let bench = Bench::with(|bench| {
        bench.pod.users = UserMode::Pod;
        bench.ids = Some(HostIds { first: 131_072, count: 65_536 });
    });
    assert_eq!(namespaces(&bench)[0], "user=/proc/1/ns/user");
    let is_map = |maps: &Option<Vec<LinuxIdMapping>>| {
        let all: Vec<_> =
            maps.iter().flatten().map(|it| (it.container_id(), it.host_id(), it.size())).collect();
        all == [(0, 131_072, 65_536)]
    };
    let linux = linux(&bench);
    assert!(is_map(linux.uid_mappings()) && is_map(linux.gid_mappings()), "{linux:?}");
    let spec = bench.spec();
    for mount in spec.mounts().iter().flatten() {
        let is_bound = mount.typ().as_deref() == Some("bind");
        assert_eq!(is_map(mount.uid_mappings()) && is_map(mount.gid_mappings()), is_bound, "{mount:?}");
        let options = mount.options().iter().flatten();
        assert_eq!(options.filter(|option| *option == "idmap").count(), usize::from(is_bound), "{mount:?}");
    }
    // Without one nothing of it is said.
    let plain = serde_json::to_string(&Bench::new().spec()).unwrap();
    assert!(!plain.contains("idmap") && !plain.contains("Mappings") && !plain.contains("ns/user"), "{plain}");
}

/// Where a container would have its own, and nowhere else.
#[test]
fn the_pid_namespace_of_a_target_takes_the_place_of_a_containers_own() {
    for (pid, expected) in [
        (PidMode::Container, Some("pid=/proc/77/ns/pid")),
        (PidMode::Pod, Some("pid=/proc/1/ns/pid")),
        (PidMode::Node, None),
    ] {
        let bench = Bench::with(|bench| (bench.pod.pid, bench.target) = (pid, Some(77)));
        let all = namespaces(&bench);
        let found = all.iter().find(|one| one.starts_with("pid"));
        assert_eq!(found.map(String::as_str), expected, "{pid:?}");
    }
}

/// Names of the bounding set, without `CAP_`.
fn capabilities(bench: &Bench) -> BTreeSet<String> {
    let held = bench.process().capabilities().clone().unwrap();
    assert_eq!(held.bounding(), held.effective());
    assert_eq!(held.bounding(), held.permitted());
    assert_eq!((held.inheritable(), held.ambient()), (&None, &None));
    held.bounding().iter().flatten().map(ToString::to_string).collect()
}

fn set(names: &str) -> BTreeSet<String> {
    names.split_whitespace().map(str::to_owned).collect()
}

const DEFAULT: &str = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE \
                       SYS_CHROOT KILL AUDIT_WRITE";

#[test]
fn capabilities_are_the_default_changed_by_the_container() {
    for (add, drop, expected) in [
        ("", "", set(DEFAULT)),
        ("NET_ADMIN", "", set(&format!("{DEFAULT} NET_ADMIN"))),
        ("net_admin CAP_SYS_TIME", "", set(&format!("{DEFAULT} NET_ADMIN SYS_TIME"))),
        ("", "ALL", set("")),
        ("NET_BIND_SERVICE", "ALL", set("NET_BIND_SERVICE")),
        ("KILL", "KILL", {
            let mut all = set(DEFAULT);
            all.remove("KILL");
            all
        }),
        ("ALL", "ALL", set("")),
        ("ALL CHOWN", "all", set("CHOWN")),
        ("NO_SUCH_THING", "NEITHER_THIS", set(DEFAULT)),
        ("\0 ../x", "", set(DEFAULT)),
    ] {
        let bench = Bench::with(|bench| {
            bench.container.security.capabilities.add = add.split(' ').map(str::to_owned).collect();
            bench.container.security.capabilities.drop = drop.split(' ').map(str::to_owned).collect();
        });
        assert_eq!(capabilities(&bench), expected, "{add:?} {drop:?}");
    }
    let all = Bench::with(|bench| {
        bench.container.security.capabilities.add = vec!["ALL".into()];
        bench.container.security.capabilities.drop = vec!["SYS_ADMIN".into()];
    });
    assert_eq!(capabilities(&all).len(), 40);
}

/// As runc: the container runs without, and its owner is told. What the agent itself lacks stays an error.
#[test]
fn a_capability_that_the_kernel_lacks_is_a_warning() {
    const UP_TO_AUDIT_READ: u64 = (1 << 38) - 1;
    let old = |add: &str| {
        Bench::with(|bench| {
            bench.node.kernel_capabilities = UP_TO_AUDIT_READ;
            bench.node.capabilities = UP_TO_AUDIT_READ;
            bench.container.security.capabilities.add = add.split_whitespace().map(str::to_owned).collect();
        })
    };
    assert_eq!(capabilities(&old("BPF NET_ADMIN")), set(&format!("{DEFAULT} NET_ADMIN")));
    assert_eq!(
        old("BPF NET_ADMIN").plan().unwrap().warnings,
        ["ignoring capability CAP_BPF: the kernel does not have it"]
    );
    assert_eq!(old("NET_ADMIN").plan().unwrap().warnings, Vec::<String>::new());
}

#[test]
fn a_container_has_no_more_than_the_agent() {
    const CHOWN_AND_NET_ADMIN: u64 = 1 | 1 << 12;
    let poor = |privileged, add: &str| {
        Bench::with(|bench| {
            bench.node.capabilities = CHOWN_AND_NET_ADMIN;
            bench.container.security.privileged = privileged;
            bench.container.security.capabilities.add = add.split_whitespace().map(str::to_owned).collect();
        })
    };
    assert_eq!(capabilities(&poor(false, "")), set("CHOWN"));
    assert_eq!(capabilities(&poor(false, "NET_ADMIN")), set("CHOWN NET_ADMIN"));
    assert_eq!(capabilities(&poor(false, "ALL")), set("CHOWN NET_ADMIN"));
    assert_eq!(capabilities(&poor(true, "")), set("CHOWN NET_ADMIN"));
    let error = poor(false, "SYS_RESOURCE").error();
    assert_eq!(error, ConfigError::CapabilityUnavailable { name: "CAP_SYS_RESOURCE".into() });
    assert_eq!(error.to_string(), "capability CAP_SYS_RESOURCE is not available on this node");
}

#[test]
fn a_privileged_container_is_the_nodes_equal() {
    let bench = Bench::with(|bench| {
        bench.container.security.privileged = true;
        bench.container.security.seccomp = Some(Seccomp::RuntimeDefault);
        bench.node.seccomp_default = true;
    });
    let linux = linux(&bench);
    assert_eq!(capabilities(&bench).len(), 41);
    assert_eq!(linux.masked_paths().as_deref(), Some(&[][..]));
    assert_eq!(linux.readonly_paths().as_deref(), Some(&[][..]));
    assert_eq!(linux.seccomp(), &None);
    let rule = linux.resources().as_ref().unwrap().devices().as_ref().unwrap()[0].clone();
    assert_eq!((rule.allow(), rule.access().as_deref()), (true, Some("rwm")));
    let spec = bench.spec();
    let options = |path: &str| {
        let mount =
            spec.mounts().iter().flatten().find(|mount| mount.destination() == Path::new(path)).unwrap();
        (mount.typ().clone().unwrap(), mount.options().clone().unwrap().join(","))
    };
    assert_eq!(options("/sys"), ("sysfs".into(), "nosuid,noexec,nodev,rw".into()));
    assert_eq!(options("/sys/fs/cgroup"), ("bind".into(), "rbind,rprivate,nosuid,noexec,nodev,rw".into()));
    assert!(!namespaces(&bench).contains(&"cgroup".to_owned()));
}

#[test]
fn the_kernel_is_hidden_unless_proc_is_unmasked() {
    let masked = linux(&Bench::with(|bench| {
        bench.node.thermal_counters.push("/sys/devices/system/cpu/cpu64/thermal_throttle".into());
    }));
    for path in [
        "/proc/kcore",
        "/proc/keys",
        "/proc/interrupts",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
        "/sys/devices/system/cpu/cpu64/thermal_throttle",
    ] {
        assert!(masked.masked_paths().iter().flatten().any(|one| one == path), "{path}");
    }
    assert_eq!(
        masked.readonly_paths().as_deref().unwrap(),
        ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
    );
    let bare = linux(&Bench::with(|bench| bench.container.security.proc_mount = ProcMount::Unmasked));
    assert_eq!(
        (bare.masked_paths().as_deref(), bare.readonly_paths().as_deref()),
        (Some(&[][..]), Some(&[][..]))
    );
}

#[test]
fn seccomp_is_the_containers_then_the_pods_then_the_nodes() {
    use Seccomp::{Localhost, RuntimeDefault, Unconfined};
    let errno = Some(LinuxSeccompAction::ScmpActErrno);
    let closed = Some(LinuxSeccompAction::ScmpActKillProcess);
    let file = || Some(Localhost("profiles/a.json".into()));
    for (container, pod, node, action, path) in [
        (None, None, false, None, None),
        (None, None, true, errno, None),
        (None, Some(RuntimeDefault), false, errno, None),
        (None, Some(Unconfined), true, None, None),
        (Some(Unconfined), Some(RuntimeDefault), true, None, None),
        (Some(RuntimeDefault), Some(Unconfined), false, errno, None),
        (file(), None, false, closed, Some("/var/lib/kubelet/seccomp/profiles/a.json")),
        (None, file(), true, closed, Some("/var/lib/kubelet/seccomp/profiles/a.json")),
    ] {
        let bench = Bench::with(|bench| {
            bench.container.security.seccomp = container.clone();
            bench.pod.security.seccomp = pod.clone();
            bench.node.seccomp_default = node;
        });
        let plan = bench.plan().unwrap();
        let seccomp = plan.spec.linux().clone().unwrap().seccomp().clone();
        assert_eq!(seccomp.map(|filter| filter.default_action()), action, "{container:?} {pod:?} {node}");
        assert_eq!(plan.seccomp_file.as_deref(), path);
    }
}

#[test]
fn bounds_of_the_container() {
    // Requests, limits, pod's limits; shares, quota, memory.
    for (requests, limits, pod, shares, quota, memory) in [
        ((0, 0), (0, 0), None, 2, None, None),
        ((500, GIB), (0, 0), None, 512, None, None),
        ((500, GIB), (1000, 2 * GIB), None, 512, Some(100_000), Some(2 * GIB)),
        ((0, 0), (1500, GIB), None, 1536, Some(150_000), Some(GIB)),
        ((1, 0), (5, 0), None, 2, Some(1000), None),
        ((0, 0), (0, 0), Some((2000, 4 * GIB)), 2048, Some(200_000), Some(4 * GIB)),
        ((100, 0), (0, GIB), Some((2000, 4 * GIB)), 102, Some(200_000), Some(GIB)),
    ] {
        let bench = Bench::with(|bench| {
            bench.container.resources = fixtures::resources(requests, limits);
            bench.pod.resources = pod.map(|limits| fixtures::resources((0, 0), limits));
        });
        let resources = linux(&bench).resources().clone().unwrap();
        let cpu = resources.cpu().clone().unwrap();
        assert_eq!((cpu.shares(), cpu.quota(), cpu.period()), (Some(shares), quota, Some(100_000)));
        assert_eq!(resources.memory().unwrap().limit(), memory.map(u64::cast_signed));
        assert_eq!(resources.pids(), &None);
    }
}

#[test]
fn no_quota_where_the_node_enforces_none() {
    let bench = Bench::with(|bench| {
        bench.node.cgroups.cfs_quota = false;
        bench.container.resources = fixtures::resources((500, 0), (1000, 0));
    });
    let cpu = linux(&bench).resources().clone().unwrap().cpu().clone().unwrap();
    assert_eq!((cpu.shares(), cpu.quota(), cpu.period()), (Some(512), None, None));
}

#[test]
fn huge_pages_are_bounded_for_the_pod_alone() {
    let bench = Bench::with(|bench| {
        bench.node.cgroups.hugepage_sizes = [2 << 20, GIB].into();
        bench.pod.resources = Some(Resources::default());
        bench.container.resources.limits.hugepages_bytes = [(2 << 20, 64 << 20)].into();
    });
    assert_eq!(linux(&bench).resources().clone().unwrap().hugepage_limits(), &None);
}

#[test]
fn cgroups_path_is_the_drivers() {
    let bench = Bench::with(|bench| bench.pod.qos = QosClass::Burstable);
    let id = bench.id();
    let path = linux(&bench).cgroups_path().clone().unwrap();
    assert_eq!(path, Path::new(&format!("/kubepods/burstable/pod0b1c-2d/{id}")));
    let bench = Bench::with(|bench| bench.node.cgroups.driver = CgroupDriver::Systemd);
    let path = linux(&bench).cgroups_path().clone().unwrap();
    assert_eq!(path, Path::new(&format!("kubepods-besteffort-pod0b1c_2d.slice:cri-containerd:{id}")));
}

#[test]
fn cve_2021_43816_nothing_of_the_node_is_relabelled() {
    let bench = Bench::with(|bench| bench.container.security.privileged = true);
    for bench in [Bench::new(), bench] {
        assert_eq!(linux(&bench).mount_label(), &None);
        assert_eq!(bench.process().selinux_label(), &None);
        assert_eq!(bench.plan().unwrap().relabel, None);
        assert!(bench.spec().mounts().iter().flatten().all(|mount| {
            mount.options().iter().flatten().all(|option| !matches!(option.as_str(), "z" | "Z"))
        }));
    }
}
