//! A level of version 1, whose files are in a hierarchy for each controller. Source: `opencontainers/cgroups` `fs`, cAdvisor
//! `container/common/helpers.go` `getSpecInternal`.

use std::collections::BTreeMap;

use super::{
    Cpu, Device, DeviceStats, Level, Limits, Memory, MemoryInfo, Tasks, Throttled,
    level::DEVICES_MAX,
    parse::{keyed, number, value_of},
    v2::{count, device_number},
};

/// Nanoseconds of a tick (`USER_HZ`), in which version 1 counts time in programs and in the kernel.
const TICK_NS: u64 = 10_000_000;

/// A level, by a reader of its files, each of a controller.
#[must_use]
pub fn level(read: impl Fn(&str, &str) -> Option<String>) -> Level {
    let value = |controller: &str, file: &str| read(controller, file).as_deref().and_then(number);
    let processes = read("cpu", "cgroup.procs").map_or(0, |text| count(&text));
    let memory = memory(&read, &value);
    let [bytes, operations] = ["io_service_bytes", "io_serviced"].map(|what| transfers(&read, what));
    Level {
        cpu: cpu(&read, &value),
        has_io: bytes.is_some() || operations.is_some(),
        devices: devices(&bytes.unwrap_or_default(), &operations.unwrap_or_default()),
        io_psi: None,
        tasks: Tasks {
            processes,
            threads: value("pids", "pids.current").unwrap_or(0),
            threads_max: value("pids", "pids.max").filter(|max| *max != u64::MAX).unwrap_or(0),
            open_files_max: None,
        },
        limits: Limits {
            cpu_period_us: value("cpu", "cpu.cfs_period_us").unwrap_or(0),
            cpu_quota_us: value("cpu", "cpu.cfs_quota_us").filter(|quota| *quota != 0),
            cpu_shares: value("cpu", "cpu.shares").unwrap_or(0),
            memory: value("memory", "memory.limit_in_bytes").unwrap_or(0),
            swap: value("memory", "memory.memsw.limit_in_bytes").unwrap_or(0),
            reservation: value("memory", "memory.soft_limit_in_bytes").unwrap_or(0),
        },
        oom_kills: read("memory", "memory.oom_control")
            .and_then(|text| value_of(&text, "oom_kill"))
            .unwrap_or(0),
        memory,
    }
}

/// The root, whose limits are the machine's.
#[must_use]
pub fn root(read: impl Fn(&str, &str) -> Option<String>, machine: &MemoryInfo) -> Level {
    level(read).of_machine(machine)
}

fn cpu(
    read: &impl Fn(&str, &str) -> Option<String>,
    value: &impl Fn(&str, &str) -> Option<u64>,
) -> Option<Cpu> {
    let total_ns = value("cpuacct", "cpuacct.usage")?;
    let split = read("cpuacct", "cpuacct.stat").unwrap_or_default();
    let ticks = |name| value_of(&split, name).unwrap_or(0).saturating_mul(TICK_NS);
    let quota = read("cpu", "cpu.stat").unwrap_or_default();
    let of_quota = |name| value_of(&quota, name).unwrap_or(0);
    Some(Cpu {
        total_ns,
        user_ns: ticks("user"),
        system_ns: ticks("system"),
        throttled: Throttled {
            periods: of_quota("nr_periods"),
            throttled_periods: of_quota("nr_throttled"),
            throttled_ns: of_quota("throttled_time"),
            // Read in version 2 alone, as there.
            burst_periods: 0,
            burst_ns: 0,
        },
        psi: None,
    })
}

fn memory(
    read: &impl Fn(&str, &str) -> Option<String>,
    value: &impl Fn(&str, &str) -> Option<u64>,
) -> Option<Memory> {
    let usage = value("memory", "memory.usage_in_bytes")?;
    let text = read("memory", "memory.stat").unwrap_or_default();
    let stats: BTreeMap<&str, u64> = keyed(&text).collect();
    let stat = |name: &str| stats.get(name).copied().unwrap_or(0);
    let is_hierarchical = value("memory", "memory.use_hierarchy") == Some(1);
    let [cache, rss, swap, mapped_file] = if is_hierarchical {
        ["total_cache", "total_rss", "total_swap", "total_mapped_file"]
    } else {
        ["cache", "rss", "swap", "mapped_file"]
    }
    .map(stat);
    let memory = Memory {
        usage,
        usage_max: value("memory", "memory.max_usage_in_bytes").unwrap_or(0),
        rss,
        cache,
        mapped_file,
        kernel: value("memory", "memory.kmem.usage_in_bytes").unwrap_or(0),
        swap,
        failures: value("memory", "memory.failcnt").unwrap_or(0),
        page_faults: stat("pgfault"),
        major_page_faults: stat("pgmajfault"),
        ..Memory::default()
    };
    Some(memory.with_files(stat("total_active_file"), stat("total_inactive_file")))
}

/// What a level and those below it transferred, or, in old kernels, the level itself.
fn transfers(read: &impl Fn(&str, &str) -> Option<String>, what: &str) -> Option<String> {
    let file = format!("blkio.throttle.{what}");
    read("blkio", &format!("{file}_recursive")).or_else(|| read("blkio", &file))
}

/// Lines of a device, an operation and a number; the last one has no device.
fn devices(bytes: &str, operations: &str) -> Vec<Device> {
    let mut found: BTreeMap<(u32, u32), DeviceStats> = BTreeMap::new();
    for (text, is_bytes) in [(bytes, true), (operations, false)] {
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(number), Some(operation), Some(Ok(count))) =
                (words.next().and_then(device_number), words.next(), words.next().map(str::parse))
            else {
                continue;
            };
            if found.len() >= DEVICES_MAX && !found.contains_key(&number) {
                continue;
            }
            let stats = found.entry(number).or_default();
            let counts = if is_bytes { &mut stats.bytes } else { &mut stats.operations };
            counts.push((operation.to_owned(), count));
        }
    }
    found.into_iter().map(|(number, stats)| Device { number, stats }).collect()
}
