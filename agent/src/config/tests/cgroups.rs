//! cgroups: what fits a machine, and what is left for pods.

use berth_core::config::{
    CgroupDriver, CgroupSettings, CgroupVersion, KubepodsBounds, MemoryQos, MemoryReservation, SwapBehavior,
};

use super::{facts, load_text};
use crate::config::{Config, Facts, KubeletFlags, Said, Settings, Swap, ignored};

const GI: u64 = 1 << 30;

fn resolved(text: &str, facts: &Facts) -> Result<Config, String> {
    load_text(text, &[])?.resolve(facts).map_err(|faults| faults.to_string())
}

fn cgroups(text: &str, facts: &Facts) -> CgroupSettings {
    resolved(text, facts).unwrap().node.cgroups
}

#[test]
fn a_machine_with_cgroup_v1_is_refused_unless_told_otherwise() {
    let v1 = Facts { cgroup_version: CgroupVersion::V1, ..facts() };
    let faults = Settings::load(KubeletFlags::default()).unwrap().resolve(&v1).unwrap_err().to_string();
    assert!(faults.contains("failCgroupV1: this machine uses cgroup v1"), "{faults}");
    let settings = load_text("failCgroupV1: false\n", &[]).unwrap();
    assert_eq!(settings.resolve(&v1).unwrap().node.cgroups.version, CgroupVersion::V1);
}

#[test]
fn an_oom_kill_takes_whole_containers_where_the_kernel_can() {
    use CgroupVersion::{V1, V2};
    for (text, version, expected) in [
        ("", V2, Some(true)),
        ("singleProcessOOMKill: false\n", V2, Some(true)),
        ("singleProcessOOMKill: true\n", V2, Some(false)),
        ("failCgroupV1: false\n", V1, Some(false)),
        ("failCgroupV1: false\nsingleProcessOOMKill: true\n", V1, Some(false)),
        ("failCgroupV1: false\nsingleProcessOOMKill: false\n", V1, None),
    ] {
        let facts = Facts { cgroup_version: version, booted_with_systemd: false, ..facts() };
        match (load_text(text, &[]).unwrap().resolve(&facts), expected) {
            (Ok(config), expected) => assert_eq!(Some(config.node.cgroups.oom_group), expected, "{text:?}"),
            (Err(faults), None) => {
                assert!(faults.to_string().contains("singleProcessOOMKill: this machine uses cgroup v1"));
            }
            (Err(faults), expected) => panic!("{text:?} is not {expected:?}: {faults}"),
        }
    }
}

#[test]
fn the_cgroup_driver_is_what_is_set_else_what_suits_the_machine() {
    use CgroupDriver::{Cgroupfs, Systemd};
    use CgroupVersion::{V1, V2};
    for (text, flags, version, booted_with_systemd, expected) in [
        ("", &[][..], V2, true, Some(Systemd)),
        ("", &[], V2, false, Some(Cgroupfs)),
        ("", &[], V1, true, Some(Cgroupfs)),
        ("", &[], V1, false, Some(Cgroupfs)),
        ("cgroupDriver: null\n", &[], V2, true, Some(Systemd)),
        ("cgroupDriver: cgroupfs\n", &[], V2, true, Some(Cgroupfs)),
        ("cgroupDriver: systemd\n", &[], V2, true, Some(Systemd)),
        ("cgroupDriver: systemd\n", &[], V1, true, Some(Systemd)),
        ("cgroupDriver: systemd\n", &[], V2, false, None),
        ("", &["--cgroup-driver=cgroupfs"], V2, true, Some(Cgroupfs)),
        ("cgroupDriver: cgroupfs\n", &["--cgroup-driver=systemd"], V2, true, Some(Systemd)),
        ("cgroupDriver: systemd\n", &["--cgroup-driver="], V2, true, Some(Cgroupfs)),
    ] {
        let facts = Facts { cgroup_version: version, booted_with_systemd, ..facts() };
        let settings = load_text(&format!("failCgroupV1: false\n{text}"), flags).unwrap();
        let case = format!("{text:?} {flags:?} {version:?} {booted_with_systemd}");
        match (settings.resolve(&facts), expected) {
            (Ok(config), expected) => assert_eq!(Some(config.node.cgroups.driver), expected, "{case}"),
            (Err(faults), None) => {
                let faults = faults.to_string();
                assert!(faults.contains("cgroupDriver: this machine is not booted with systemd"), "{faults}");
            }
            (Err(faults), Some(_)) => panic!("{case}: {faults}"),
        }
    }
}

#[test]
fn containerds_word_on_the_driver_is_before_the_kubelets() {
    use CgroupDriver::{Cgroupfs, Systemd};
    for (text, said, booted_with_systemd, expected) in [
        ("", Some(true), true, Some(Systemd)),
        ("", Some(false), true, Some(Cgroupfs)),
        ("cgroupDriver: systemd\n", Some(false), true, Some(Cgroupfs)),
        ("cgroupDriver: cgroupfs\n", Some(true), true, Some(Systemd)),
        ("cgroupDriver: cgroupfs\n", Some(true), false, None),
        ("cgroupDriver: systemd\n", None, true, Some(Systemd)),
    ] {
        let facts = Facts { booted_with_systemd, ..facts() };
        let mut settings = load_text(text, &[]).unwrap();
        let file = std::path::Path::new("/c.toml").into();
        settings.containerd.systemd_cgroup = said.map(|value| Said { value, file });
        let told = ignored(&settings).iter().any(|ignored| ignored.name.contains("in /c.toml holds"));
        let is_overruled = matches!((text.split_once(": "), said), (Some((_, driver)), Some(said)) if (driver == "systemd\n") != said);
        assert_eq!(told, is_overruled, "{text:?} {said:?}");
        match (settings.resolve(&facts), expected) {
            (Ok(config), expected) => {
                assert_eq!(Some(config.node.cgroups.driver), expected, "{text:?} {said:?}");
            }
            (Err(faults), None) => assert!(faults.to_string().contains("SystemdCgroup = false"), "{faults}"),
            (Err(faults), Some(_)) => panic!("{text:?} {said:?}: {faults}"),
        }
    }
}

/// What the single precision of the kubelet makes of a tenth of 100 GiB.
const TENTH: u64 = 10_737_418_400;

#[test]
fn allocatable_is_capacity_without_what_is_kept() {
    const MI: u64 = 1 << 20;
    const GI: u64 = 1 << 30;
    for (text, cpu, memory, disk) in [
        ("", 4000, 8 * GI - 64 * MI - 100 * MI, 100 * GI - TENTH),
        (
            "kubeReserved: {cpu: 250m, memory: 1Gi}\nsystemReserved: {cpu: 500m, memory: 512Mi, ephemeral-storage: 1Gi}\n",
            3250,
            8 * GI - 64 * MI - 100 * MI - GI - 512 * MI,
            99 * GI - TENTH,
        ),
        ("evictionHard: {memory.available: 25%}\n", 4000, 6 * GI - 64 * MI, 100 * GI),
        ("evictionHard: {nodefs.available: 1Gi}\n", 4000, 8 * GI - 64 * MI, 99 * GI),
        (
            "evictionHard: {memory.available: 100%, nodefs.available: 100%}\n",
            4000,
            8 * GI - 64 * MI,
            100 * GI,
        ),
        (
            "evictionHard: {memory.available: 0%, nodefs.available: 10%}\n",
            4000,
            8 * GI - 64 * MI,
            100 * GI - TENTH,
        ),
        ("evictionHard: {memory.available: 100.0%}\n", 4000, 0, 100 * GI),
        (
            "evictionHard: {nodefs.available: 1Gi}\nmergeDefaultEvictionSettings: true\n",
            4000,
            8 * GI - 164 * MI,
            99 * GI,
        ),
        ("kubeReserved: {memory: 100Gi, cpu: 9999}\n", 0, 0, 100 * GI - TENTH),
    ] {
        let text = text.replace("cpu: 9999", "cpu: '9999'");
        let config = load_text(&text, &[]).unwrap().resolve(&facts()).unwrap();
        let allocatable = config.node.allocatable;
        assert_eq!(allocatable.cpu_milli, Some(cpu), "{text}");
        assert_eq!(allocatable.memory_bytes, Some(memory), "{text}");
        assert_eq!(allocatable.ephemeral_storage_bytes, Some(disk), "{text}");
    }
}

#[test]
fn all_pods_together_may_use_what_is_not_reserved() {
    const RESERVED: &str = "kubeReserved: {cpu: 250m, memory: 1Gi, pid: '1000'}\nsystemReserved: {cpu: 250m, memory: 512Mi, pid: '268'}\n";
    let machine = facts();
    let bounds = |cpu_milli, memory_bytes, pids_max| KubepodsBounds {
        resources: berth_core::spec::Quantities {
            cpu_milli: Some(cpu_milli),
            memory_bytes: Some(memory_bytes),
            ..machine.capacity.clone()
        },
        pids_max: Some(pids_max),
        cpus: Some("0-3".to_owned()),
    };
    // Neither eviction thresholds nor huge pages are taken off, as with the kubelet.
    for (text, expected) in [
        (String::new(), bounds(4000, 8 * GI, 32_768)),
        (RESERVED.to_owned(), bounds(3500, 8 * GI - 3 * GI / 2, 31_500)),
        (format!("{RESERVED}enforceNodeAllocatable: [none]\n"), bounds(4000, 8 * GI, 32_768)),
    ] {
        assert_eq!(cgroups(&text, &machine).kubepods, expected, "{text}");
    }
    let without = Facts { pids_max: None, ..facts() };
    assert_eq!(cgroups("", &without).kubepods.pids_max, None);
}

#[test]
fn tasks_of_a_pod_are_bounded_by_a_limit_above_zero() {
    for (text, expected) in [
        ("", None),
        ("podPidsLimit: -1\n", None),
        ("podPidsLimit: 0\n", None),
        ("podPidsLimit: 100\n", Some(100)),
    ] {
        assert_eq!(cgroups(text, &facts()).pod_pids_max, expected, "{text:?}");
    }
}

#[test]
fn memory_qos_has_a_gate_and_needs_version_2() {
    use MemoryReservation::{None as Unprotected, Tiered};
    let v1 = Facts { cgroup_version: CgroupVersion::V1, booted_with_systemd: false, ..facts() };
    let qos =
        |throttling_factor, reservation| Some(MemoryQos { throttling_factor, reservation, page_bytes: 4096 });
    for (text, expected) in [
        ("memoryThrottlingFactor: 0.5\n", None),
        ("featureGates: {MemoryQoS: true}\n", qos(0.9, Unprotected)),
        ("featureGates: {AllAlpha: true}\n", qos(0.9, Unprotected)),
        ("featureGates: {AllAlpha: true, MemoryQoS: false}\n", None),
        ("featureGates: {MemoryQoS: true}\nmemoryThrottlingFactor: 0.5\n", qos(0.5, Unprotected)),
        ("featureGates: {MemoryQoS: true}\nmemoryReservationPolicy: TieredReservation\n", qos(0.9, Tiered)),
    ] {
        let text = format!("failCgroupV1: false\n{text}");
        assert_eq!(cgroups(&text, &facts()).memory_qos, expected, "{text}");
        assert_eq!(cgroups(&text, &v1).memory_qos, None, "{text}");
    }
    let fault = load_text("memoryReservationPolicy: TieredReservation\n", &[]).unwrap_err();
    assert!(fault.contains("memoryReservationPolicy: TieredReservation needs `featureGates"), "{fault}");
}

#[test]
fn swap_behavior_is_what_the_kernel_can_bound() {
    use CgroupVersion::{V1, V2};
    let limited = SwapBehavior::LimitedSwap { node_bytes: 2 * GI };
    for (text, version, is_counted, expected) in [
        ("", V2, true, Some(SwapBehavior::NoSwap)),
        ("memorySwap: {swapBehavior: ''}\n", V2, true, Some(SwapBehavior::NoSwap)),
        ("memorySwap: {swapBehavior: NoSwap}\n", V1, true, Some(SwapBehavior::NoSwap)),
        ("memorySwap: {swapBehavior: LimitedSwap}\n", V2, true, Some(limited)),
        ("memorySwap: {swapBehavior: LimitedSwap}\n", V2, false, Some(SwapBehavior::Uncounted)),
        ("memorySwap: {swapBehavior: LimitedSwap}\n", V1, true, None),
        ("", V1, false, Some(SwapBehavior::Uncounted)),
    ] {
        let swap = Swap { is_counted, ..facts().swap };
        let facts = Facts { cgroup_version: version, booted_with_systemd: false, swap, ..facts() };
        match (resolved(&format!("failCgroupV1: false\n{text}"), &facts), expected) {
            (Ok(config), expected) => assert_eq!(Some(config.node.cgroups.swap), expected, "{text}"),
            (Err(fault), None) => {
                assert!(fault.contains("memorySwap.swapBehavior: this machine uses cgroup v1"), "{fault}");
            }
            (Err(fault), Some(_)) => panic!("{text}: {fault}"),
        }
    }
}

#[test]
fn a_machine_that_swaps_is_refused_unless_told_otherwise() {
    let swap = Swap { is_on: true, ..facts().swap };
    let machine = Facts { swap, ..facts() };
    for text in ["", "failSwapOn: true\n", "memorySwap: {swapBehavior: LimitedSwap}\n"] {
        let fault = resolved(text, &machine).unwrap_err();
        assert!(fault.contains("failSwapOn: swap is on"), "{fault}");
    }
    let config = resolved("failSwapOn: false\n", &machine).unwrap();
    assert_eq!(config.node.cgroups.swap, SwapBehavior::NoSwap);
    assert!(config.memory_volumes.may_be_swapped());
    let kept_out = Facts { has_noswap: true, ..machine };
    assert!(!resolved("failSwapOn: false\n", &kept_out).unwrap().memory_volumes.may_be_swapped());
}

#[test]
fn entries_that_do_nothing_are_named() {
    let text = "enforceNodeAllocatable: [pods, kube-reserved]\nkubeReservedCgroup: /kube\nfeatureGates: {MemoryQoS: true, EventedPLEG: true}\n";
    let names: Vec<_> = ignored(&load_text(text, &[]).unwrap()).into_iter().map(|it| it.name).collect();
    let expected = [
        "enforceNodeAllocatable: kube-reserved",
        "kubeReservedCgroup",
        "featureGates.EventedPLEG",
        "evictionHard: no pod is evicted",
    ];
    assert_eq!(names, expected);
}
