//! Levels as slices of systemd: names, properties, and what systemd rounds.
//!
//! Source: `systemd/common.go`, `v1.go`, `v2.go` of opencontainers/cgroups, which the kubelet makes its slices with;
//! systemd.resource-control(5).

use super::{CgroupValues, cpu};
use crate::config::{CgroupDriver, CgroupVersion};

/// A property without bound (`infinity`).
const INFINITY: u64 = u64::MAX;
/// systemd keeps CPU bounds as whole percents: in µs per second.
const PERCENT_US: u64 = 10_000;
const SECOND_US: u64 = 1_000_000;
/// Most CPUs that Linux is built for (`CONFIG_NR_CPUS`).
const CPUS_MAX: usize = 8192;
/// Length of a CPU period in µs where none is named (`kernel/sched/core.c`).
const PERIOD_US: u64 = 100_000;

/// A slice and what bounds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Name of the unit.
    pub name: String,
    /// Properties with the values of the level.
    pub bounds: Vec<Property>,
}

/// A property of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// By the name that D-Bus has for it.
    pub name: &'static str,
    /// Its value.
    pub value: PropertyValue,
}

/// A value as D-Bus types it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropertyValue {
    /// A boolean.
    Flag(bool),
    /// An unsigned number of 64 bits.
    Amount(u64),
    /// A set of small numbers: n is bit n mod 8 of byte n / 8.
    Bits(Vec<u8>),
}

/// What every slice is made with, beside its bounds: the controllers are there from the beginning, since a cgroup that
/// joins one later starts with nothing accounted; and pods do not end before everything else at shutdown. The parent
/// is in the name, and systemd requires it by itself.
pub static SLICE_BASICS: [Property; 5] = [
    flag("MemoryAccounting", true),
    flag("CPUAccounting", true),
    flag("IOAccounting", true),
    flag("TasksAccounting", true),
    flag("DefaultDependencies", false),
];

/// The slice at `path`, bounded by `values` as far as systemd knows them: huge pages are only in files.
#[must_use]
pub fn slice(path: &str, values: &CgroupValues, version: CgroupVersion) -> Slice {
    Slice { name: slice_name(path).to_owned(), bounds: bounds(values, version) }
}

/// The slice at `path`: its last part, which names the parents too.
#[must_use]
pub fn slice_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// The values as a driver can keep them: systemd takes CPU bounds in whole percents, so they are rounded up for the
/// files too. A container's bound, which its runtime rounds the same way, else exceeds its pod's; version 1 refuses that.
#[must_use]
pub fn kept_by(driver: CgroupDriver, values: CgroupValues) -> CgroupValues {
    match driver {
        CgroupDriver::Cgroupfs => values,
        CgroupDriver::Systemd => CgroupValues {
            cpu_quota_us: values.cpu_quota_us.map(|quota| {
                let period = values.cpu_period_us.unwrap_or(PERIOD_US);
                scaled(per_second_us(quota, period), period, SECOND_US)
            }),
            pids_max: values.pids_max.map(at_least_one),
            ..values
        },
    }
}

fn bounds(values: &CgroupValues, version: CgroupVersion) -> Vec<Property> {
    let weight = values.cpu_shares.map(|shares| match version {
        CgroupVersion::V1 => amount("CPUShares", shares),
        CgroupVersion::V2 => amount("CPUWeight", cpu::weight(shares)),
    });
    let period = values.cpu_period_us.map(|period| amount("CPUQuotaPeriodUSec", period));
    // As in files, a period without quota removes the bound.
    let quota = match (values.cpu_quota_us, values.cpu_period_us) {
        (None, None) => None,
        (None, Some(_)) => Some(INFINITY),
        (Some(quota), period) => Some(per_second_us(quota, period.unwrap_or(PERIOD_US))),
    };
    let (min, low, max) = (values.memory_bytes_min, values.memory_bytes_low, values.memory_bytes_max);
    let memory = match version {
        CgroupVersion::V1 => [("MemoryLimit", max), ("", None), ("", None)],
        CgroupVersion::V2 => [("MemoryMin", min), ("MemoryLow", low), ("MemoryMax", max)],
    };
    let memory = memory.map(|(name, bytes)| bytes.map(|bytes| amount(name, bytes)));
    let tasks = values.pids_max.map(|tasks| amount("TasksMax", at_least_one(tasks)));
    let cpus = match version {
        CgroupVersion::V1 => None,
        CgroupVersion::V2 => values.cpus.as_deref().map(bits).filter(|bits| !bits.is_empty()),
    };
    let cpus = cpus.map(|cpus| Property { name: "AllowedCPUs", value: PropertyValue::Bits(cpus) });
    let quota = quota.map(|quota| amount("CPUQuotaPerSecUSec", quota));
    [weight, period, quota, cpus].into_iter().chain(memory).chain([tasks]).flatten().collect()
}

/// systemd refuses a bound of no task at all.
fn at_least_one(tasks: u64) -> u64 {
    tasks.max(1)
}

/// A list of CPUs in the kernel's form as a set.
fn bits(list: &str) -> Vec<u8> {
    let mut bits = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last.min(CPUS_MAX) {
            bits.resize(bits.len().max(cpu / 8 + 1), 0);
            bits[cpu / 8] |= 1 << (cpu % 8);
        }
    }
    bits
}

/// CPU time in µs per second, up to a whole percent.
fn per_second_us(quota_us: u64, period_us: u64) -> u64 {
    scaled(quota_us, SECOND_US, period_us.max(1)).div_ceil(PERCENT_US).saturating_mul(PERCENT_US)
}

/// `value · by / of` without overflow on the way.
fn scaled(value: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(by) / u128::from(of)).unwrap_or(u64::MAX)
}

const fn flag(name: &'static str, value: bool) -> Property {
    Property { name, value: PropertyValue::Flag(value) }
}

const fn amount(name: &'static str, value: u64) -> Property {
    Property { name, value: PropertyValue::Amount(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(slice: &Slice) -> Vec<String> {
        let property = |it: &Property| match &it.value {
            PropertyValue::Flag(value) => format!("{}={value}", it.name),
            PropertyValue::Amount(INFINITY) => format!("{}=infinity", it.name),
            PropertyValue::Amount(value) => format!("{}={value}", it.name),
            PropertyValue::Bits(bytes) => format!("{}={bytes:?}", it.name),
        };
        slice.bounds.iter().map(property).collect()
    }

    fn cpu_bound(quota: Option<u64>, period: Option<u64>) -> CgroupValues {
        CgroupValues { cpu_quota_us: quota, cpu_period_us: period, ..CgroupValues::default() }
    }

    #[test]
    fn everything_at_once() {
        let values = CgroupValues {
            cpu_shares: Some(1024),
            cpu_quota_us: Some(50_000),
            cpu_period_us: Some(100_000),
            cpus: Some("0-1,3".into()),
            memory_bytes_min: Some(16 << 20),
            memory_bytes_low: Some(0),
            memory_bytes_max: Some(64 << 20),
            pids_max: Some(100),
            hugepages_bytes_max: [(2 << 20, 4 << 20)].into(),
        };
        let path = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice";
        let v2 = slice(path, &values, CgroupVersion::V2);
        assert_eq!(v2.name, "kubepods-burstable-pod1.slice");
        assert_eq!(
            shown(&v2),
            [
                "CPUWeight=100",
                "CPUQuotaPeriodUSec=100000",
                "CPUQuotaPerSecUSec=500000",
                "AllowedCPUs=[11]",
                "MemoryMin=16777216",
                "MemoryLow=0",
                "MemoryMax=67108864",
                "TasksMax=100"
            ]
        );
        assert_eq!(
            shown(&slice(path, &values, CgroupVersion::V1)),
            [
                "CPUShares=1024",
                "CPUQuotaPeriodUSec=100000",
                "CPUQuotaPerSecUSec=500000",
                "MemoryLimit=67108864",
                "TasksMax=100"
            ]
        );
    }

    #[test]
    fn what_is_not_named_is_left_alone() {
        for version in [CgroupVersion::V1, CgroupVersion::V2] {
            assert_eq!(slice("/kubepods.slice", &CgroupValues::default(), version).bounds, []);
        }
    }

    /// Values by `addCPUQuota` of opencontainers/cgroups.
    #[test]
    fn cpu_bounds_are_whole_percents_in_files_too() {
        for (quota, period, property, file) in [
            (None, None, None, None),
            (None, Some(100_000), Some("infinity"), None),
            (Some(100_000), Some(100_000), Some("1000000"), Some(100_000)),
            (Some(1000), Some(100_000), Some("10000"), Some(1000)),
            (Some(1500), Some(100_000), Some("20000"), Some(2000)),
            (Some(123_456), Some(100_000), Some("1240000"), Some(124_000)),
            (Some(1000), Some(1_000_000), Some("10000"), Some(10_000)),
            (Some(1500), None, Some("20000"), Some(2000)),
        ] {
            let values = cpu_bound(quota, period);
            let quota_shown = shown(&slice("/kubepods.slice", &values, CgroupVersion::V2))
                .iter()
                .find_map(|line| line.strip_prefix("CPUQuotaPerSecUSec=").map(str::to_owned));
            assert_eq!(quota_shown.as_deref(), property, "{values:?}");
            assert_eq!(kept_by(CgroupDriver::Cgroupfs, values.clone()), values);
            assert_eq!(kept_by(CgroupDriver::Systemd, values.clone()), cpu_bound(file, period), "{values:?}");
        }
    }

    #[test]
    fn cpus_are_bits() {
        for (list, expected) in [
            ("0", vec![1]),
            ("0-3\n", vec![15]),
            ("1,3-5", vec![0b11_1010]),
            ("0-7,9", vec![255, 2]),
            ("16", vec![0, 0, 1]),
            ("", vec![]),
            ("x,4-2", vec![]),
        ] {
            assert_eq!(bits(list), expected, "{list:?}");
        }
        assert_eq!(bits("0-18446744073709551615").len(), CPUS_MAX / 8 + 1);
    }

    #[test]
    fn bad_amounts_do_not_reach_systemd() {
        let none = CgroupValues { pids_max: Some(0), cpus: Some(String::new()), ..CgroupValues::default() };
        assert_eq!(shown(&slice("/kubepods.slice", &none, CgroupVersion::V2)), ["TasksMax=1"]);
        assert_eq!(kept_by(CgroupDriver::Systemd, none.clone()).pids_max, Some(1));
        assert_eq!(kept_by(CgroupDriver::Cgroupfs, none).pids_max, Some(0));
        for (quota, period) in [(u64::MAX, 1), (u64::MAX, u64::MAX), (1, 0)] {
            let values = cpu_bound(Some(quota), Some(period));
            // Neither overflows.
            let _bounded = slice("/kubepods.slice", &values, CgroupVersion::V2);
            let _kept = kept_by(CgroupDriver::Systemd, values);
        }
    }
}
