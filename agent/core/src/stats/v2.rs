//! A level of version 2. Source: `opencontainers/cgroups` `fs2`, cAdvisor `container/common/helpers.go` `getSpecInternal`.

use std::collections::BTreeMap;

use super::{
    Cpu, Device, DeviceStats, Level, Limits, Memory, MemoryInfo, Psi, Tasks, Throttled,
    level::DEVICES_MAX,
    parse::{keyed, number, value_of},
};

/// A level, by a reader of its files.
#[must_use]
pub fn level(read: impl Fn(&str) -> Option<String>) -> Level {
    let value = |file: &str| read(file).as_deref().and_then(number);
    let (cpu_quota_us, cpu_period_us) = read("cpu.max").as_deref().map_or((None, 0), cpu_max);
    let memory_max = value("memory.max");
    let tasks = tasks(&read, &value);
    Level {
        cpu: cpu(&read),
        memory: memory_max.and_then(|_| memory(&read)),
        has_io: true,
        devices: read("io.stat").as_deref().map(devices).unwrap_or_default(),
        io_psi: psi(&read, "io.pressure"),
        tasks,
        limits: Limits {
            cpu_period_us,
            cpu_quota_us,
            cpu_shares: value("cpu.weight").and_then(shares).unwrap_or(0),
            memory: memory_max.unwrap_or(0),
            swap: value("memory.swap.max").unwrap_or(0),
            reservation: value("memory.min").unwrap_or(0),
        },
        oom_kills: read("memory.events.local").and_then(|text| value_of(&text, "oom_kill")).unwrap_or(0),
    }
}

/// The root, which has no files of its memory: it is what the machine uses.
#[must_use]
pub fn root(read: impl Fn(&str) -> Option<String>, machine: &MemoryInfo) -> Level {
    let stat = read("memory.stat").unwrap_or_default();
    let of_root = Memory { swap: machine.swap_used(), ..Memory::default() };
    let memory = stats(of_root, &stat, |anon, file| anon.saturating_add(file));
    Level { memory: Some(Memory { psi: psi(&read, "memory.pressure"), ..memory }), ..level(read) }
        .of_machine(machine)
}

impl Level {
    /// With the limits of the machine, as the root has them.
    pub(super) fn of_machine(self, machine: &MemoryInfo) -> Self {
        let limits = Limits { memory: machine.total, swap: machine.swap_total, ..self.limits };
        Self { limits, ..self }
    }
}

fn cpu(read: &impl Fn(&str) -> Option<String>) -> Option<Cpu> {
    let text = read("cpu.stat")?;
    let mut cpu = Cpu { psi: psi(read, "cpu.pressure"), ..Cpu::default() };
    let Throttled { periods, throttled_periods, throttled_ns, burst_periods, burst_ns } = &mut cpu.throttled;
    for (name, value) in keyed(&text) {
        let nanos = value.saturating_mul(1000);
        match name {
            "usage_usec" => cpu.total_ns = nanos,
            "user_usec" => cpu.user_ns = nanos,
            "system_usec" => cpu.system_ns = nanos,
            "nr_periods" => *periods = value,
            "nr_throttled" => *throttled_periods = value,
            "throttled_usec" => *throttled_ns = nanos,
            "nr_bursts" => *burst_periods = value,
            "burst_usec" => *burst_ns = nanos,
            _ => {}
        }
    }
    Some(cpu)
}

fn memory(read: &impl Fn(&str) -> Option<String>) -> Option<Memory> {
    let value = |file: &str| read(file).as_deref().and_then(number);
    let usage = value("memory.current")?;
    let memory = Memory {
        usage_max: value("memory.peak").unwrap_or(0),
        swap: value("memory.swap.current").unwrap_or(0),
        psi: psi(read, "memory.pressure"),
        ..Memory::default()
    };
    Some(stats(memory, &read("memory.stat").unwrap_or_default(), |_, _| usage))
}

/// With what `memory.stat` says. What counts as usage may follow from it.
fn stats(memory: Memory, text: &str, usage: impl Fn(u64, u64) -> u64) -> Memory {
    let mut memory = memory;
    let (mut active, mut inactive) = (0, 0);
    for (name, value) in keyed(text) {
        match name {
            "anon" => memory.rss = value,
            "file" => memory.cache = value,
            "file_mapped" => memory.mapped_file = value,
            "active_file" => active = value,
            "inactive_file" => inactive = value,
            "pgfault" => memory.page_faults = value,
            "pgmajfault" => memory.major_page_faults = value,
            _ => {}
        }
    }
    memory.usage = usage(memory.rss, memory.cache);
    memory.with_files(active, inactive)
}

/// Files that list the processes of a level of version 2. Under systemd crun has those of a container in a level of its own
/// (`run.oci.systemd.subgroup` of crun.1).
pub const PROCESS_LISTS: [&str; 2] = ["cgroup.procs", "container/cgroup.procs"];

fn tasks(read: &impl Fn(&str) -> Option<String>, value: &impl Fn(&str) -> Option<u64>) -> Tasks {
    let processes = PROCESS_LISTS.iter().filter_map(|list| read(list)).map(|text| count(&text)).sum();
    Tasks {
        processes,
        threads: value("pids.current").unwrap_or(processes),
        threads_max: value("pids.max").filter(|max| *max != u64::MAX).unwrap_or(0),
        open_files_max: None,
    }
}

/// Lines of a list.
pub(super) fn count(text: &str) -> u64 {
    u64::try_from(text.lines().count()).unwrap_or(u64::MAX)
}

fn psi(read: &impl Fn(&str) -> Option<String>, file: &str) -> Option<Psi> {
    Psi::parse(&read(file)?)
}

/// Quota and period.
fn cpu_max(text: &str) -> (Option<u64>, u64) {
    let Some((quota, period)) = text.trim().split_once(' ') else { return (None, 0) };
    (quota.parse().ok().filter(|quota| *quota != 0), period.parse().unwrap_or(0))
}

/// The shares that a weight stands for. Source: cAdvisor `convertCPUWeightToCPULimit`.
fn shares(weight: u64) -> Option<u64> {
    (1..=10_000).contains(&weight).then(|| 2 + (weight - 1) * 262_142 / 9999)
}

fn devices(text: &str) -> Vec<Device> {
    let mut found: BTreeMap<(u32, u32), DeviceStats> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(number) = words.next().and_then(device_number) else { continue };
        if found.len() >= DEVICES_MAX && !found.contains_key(&number) {
            continue;
        }
        let stats = found.entry(number).or_default();
        for (name, count) in words.filter_map(|word| word.split_once('=')) {
            let Ok(count) = count.parse() else { continue };
            match name {
                "rbytes" => stats.bytes.push(("Read".to_owned(), count)),
                "wbytes" => stats.bytes.push(("Write".to_owned(), count)),
                "rios" => stats.operations.push(("Read".to_owned(), count)),
                "wios" => stats.operations.push(("Write".to_owned(), count)),
                _ => {}
            }
        }
    }
    found.into_iter().map(|(number, stats)| Device { number, stats }).collect()
}

/// `major:minor`.
pub(super) fn device_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
