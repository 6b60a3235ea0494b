//! Processors, memory, tasks and pressure of each level.

use super::{Kind, Labels, Row, Series, Values, float, one, seconds, timed, timeless};
use crate::stats::{Cpu, Memory, Pressure, Psi, Throttled, report::LIMIT_MAX};

/// All of them.
pub(super) const ALL: [Series; 43] = [
    timed(
        "container_cpu_user_seconds_total",
        "Processor time in user mode, in seconds.",
        Kind::Counter,
        |row| cpu(row, |cpu| seconds(cpu.user_ns)),
    ),
    timed(
        "container_cpu_system_seconds_total",
        "Processor time in the kernel, in seconds.",
        Kind::Counter,
        |row| cpu(row, |cpu| seconds(cpu.system_ns)),
    ),
    timed("container_cpu_usage_seconds_total", "Processor time in all, in seconds.", Kind::Counter, |row| {
        let used = row.sampled.level.cpu.map_or(0, |cpu| cpu.total_ns);
        if used == 0 { Vec::new() } else { vec![(Labels::new([("cpu", "total")]), seconds(used))] }
    }),
    timed(
        "container_cpu_cfs_periods_total",
        "Periods of the quota in which something ran.",
        Kind::Counter,
        |row| throttled(row, |of| float(of.periods)),
    ),
    timed(
        "container_cpu_cfs_throttled_periods_total",
        "Periods in which the quota was used up.",
        Kind::Counter,
        |row| throttled(row, |of| float(of.throttled_periods)),
    ),
    timed(
        "container_cpu_cfs_throttled_seconds_total",
        "Seconds of waiting for the next period.",
        Kind::Counter,
        |row| throttled(row, |of| seconds(of.throttled_ns)),
    ),
    timed(
        "container_cpu_cfs_burst_periods_total",
        "Periods in which more than the quota was used.",
        Kind::Counter,
        |row| throttled(row, |of| float(of.burst_periods)),
    ),
    timed(
        "container_cpu_cfs_burst_seconds_total",
        "Seconds of processor time beyond the quota.",
        Kind::Counter,
        |row| throttled(row, |of| seconds(of.burst_ns)),
    ),
    // Nothing measures load, in the kubelet either.
    timed("container_cpu_load_average_10s", "Load, which nothing measures: 0.", Kind::Gauge, |_| one(0.0)),
    timed(
        "container_cpu_load_d_average_10s",
        "Load of tasks that cannot be interrupted, which nothing measures: 0.",
        Kind::Gauge,
        |_| one(0.0),
    ),
    timed("container_tasks_state", "Tasks by state, which nothing measures: 0.", Kind::Gauge, |_| {
        let states = ["sleeping", "running", "stopped", "uninterruptible", "iowaiting"];
        states.map(|state| (Labels::new([("state", state)]), 0.0)).into()
    }),
    timed("container_health_state", "Health, of which nothing is known: -1.", Kind::Gauge, |_| one(-1.0)),
    timed("container_last_seen", "When it was read last, in seconds since 1970.", Kind::Gauge, |row| {
        one(float(u64::try_from(row.sampled.at.wall.as_second()).unwrap_or(0)))
    }),
    timeless("container_start_time_seconds", "When it was made, in seconds since 1970.", |row| {
        let made = row.sampled.created.map(|made| u64::try_from(made.as_second()).unwrap_or(0));
        made.map(|made| one(float(made))).unwrap_or_default()
    }),
    timed("container_memory_cache", "Bytes of the page cache.", Kind::Gauge, |row| {
        memory(row, |memory| memory.cache)
    }),
    timed("container_memory_rss", "Bytes of memory that no file backs.", Kind::Gauge, |row| {
        memory(row, |memory| memory.rss)
    }),
    timed("container_memory_kernel_usage", "Bytes that the kernel holds for it.", Kind::Gauge, |row| {
        memory(row, |memory| memory.kernel)
    }),
    timed("container_memory_mapped_file", "Bytes of files that are mapped.", Kind::Gauge, |row| {
        memory(row, |memory| memory.mapped_file)
    }),
    timed("container_memory_swap", "Bytes in swap.", Kind::Gauge, |row| memory(row, |memory| memory.swap)),
    timed("container_memory_failcnt", "How often a limit was reached.", Kind::Counter, |row| {
        memory(row, |memory| memory.failures)
    }),
    timed(
        "container_memory_usage_bytes",
        "Bytes of memory in all, page cache among them.",
        Kind::Gauge,
        |row| memory(row, |memory| memory.usage),
    ),
    timed("container_memory_max_usage_bytes", "Most bytes of memory so far.", Kind::Gauge, |row| {
        memory(row, |memory| memory.usage_max)
    }),
    timed(
        "container_memory_working_set_bytes",
        "Bytes of memory without inactive pages of files.",
        Kind::Gauge,
        |row| memory(row, |memory| memory.working_set),
    ),
    timed(
        "container_memory_total_active_file_bytes",
        "Bytes of files that were used of late.",
        Kind::Gauge,
        |row| memory(row, |memory| memory.active_file),
    ),
    timed(
        "container_memory_total_inactive_file_bytes",
        "Bytes of files that were not used of late.",
        Kind::Gauge,
        |row| memory(row, |memory| memory.inactive_file),
    ),
    timed("container_memory_failures_total", "Page faults, by kind.", Kind::Counter, memory_failures),
    timed(
        "container_oom_events_total",
        "Processes that the kernel ended for want of memory.",
        Kind::Counter,
        |row| one(float(row.sampled.level.oom_kills)),
    ),
    timed("container_processes", "Processes.", Kind::Gauge, |row| {
        one(float(row.sampled.level.tasks.processes))
    }),
    timed("container_threads", "Threads.", Kind::Gauge, |row| one(float(row.sampled.level.tasks.threads))),
    timed("container_threads_max", "How many threads there may be; 0 is any number.", Kind::Gauge, |row| {
        one(float(row.sampled.level.tasks.threads_max))
    }),
    timed("container_ulimits_soft", "Soft limits of the first process; -1 is none.", Kind::Gauge, open_files),
    timeless("container_spec_cpu_period", "Period of the quota, in microseconds.", |row| {
        cpu(row, |_| float(row.sampled.level.limits.cpu_period_us))
    }),
    timeless("container_spec_cpu_quota", "Processor time of each period, in microseconds.", |row| {
        row.sampled.level.limits.cpu_quota_us.map(|quota| one(float(quota))).unwrap_or_default()
    }),
    timeless("container_spec_cpu_shares", "Weight among others that want the processor.", |row| {
        cpu(row, |_| float(row.sampled.level.limits.cpu_shares))
    }),
    timeless(
        "container_spec_memory_limit_bytes",
        "Bytes of memory that may be used; 0 is any number.",
        |row| memory(row, |_| limit(row.sampled.level.limits.memory)),
    ),
    timeless(
        "container_spec_memory_swap_limit_bytes",
        "Bytes of swap that may be used; 0 is any number.",
        |row| memory(row, |_| limit(row.sampled.level.limits.swap)),
    ),
    timeless(
        "container_spec_memory_reservation_limit_bytes",
        "Bytes of memory that are taken back last.",
        |row| memory(row, |_| limit(row.sampled.level.limits.reservation)),
    ),
    timed(
        "container_pressure_cpu_stalled_seconds_total",
        "Seconds in which all tasks waited for a processor.",
        Kind::Counter,
        |row| pressure(cpu_psi(row), |psi| psi.full),
    ),
    timed(
        "container_pressure_cpu_waiting_seconds_total",
        "Seconds in which a task waited for a processor.",
        Kind::Counter,
        |row| pressure(cpu_psi(row), |psi| psi.some),
    ),
    timed(
        "container_pressure_memory_stalled_seconds_total",
        "Seconds in which all tasks waited for memory.",
        Kind::Counter,
        |row| pressure(memory_psi(row), |psi| psi.full),
    ),
    timed(
        "container_pressure_memory_waiting_seconds_total",
        "Seconds in which a task waited for memory.",
        Kind::Counter,
        |row| pressure(memory_psi(row), |psi| psi.some),
    ),
    timed(
        "container_pressure_io_stalled_seconds_total",
        "Seconds in which all tasks waited for disks.",
        Kind::Counter,
        |row| pressure(row.sampled.level.io_psi, |psi| psi.full),
    ),
    timed(
        "container_pressure_io_waiting_seconds_total",
        "Seconds in which a task waited for disks.",
        Kind::Counter,
        |row| pressure(row.sampled.level.io_psi, |psi| psi.some),
    ),
];

fn cpu(row: &Row<'_>, value: impl Fn(&Cpu) -> f64) -> Values {
    row.sampled.level.cpu.as_ref().map(|cpu| one(value(cpu))).unwrap_or_default()
}

/// What a quota did, where there is one.
fn throttled(row: &Row<'_>, value: impl Fn(&Throttled) -> f64) -> Values {
    if row.sampled.level.limits.cpu_quota_us.is_none() {
        return Vec::new();
    }
    cpu(row, |cpu| value(&cpu.throttled))
}

fn memory(row: &Row<'_>, value: impl Fn(&Memory) -> u64) -> Values {
    row.sampled.level.memory.as_ref().map(|memory| one(float(value(memory)))).unwrap_or_default()
}

fn memory_failures(row: &Row<'_>) -> Values {
    let Some(memory) = row.sampled.level.memory else { return Vec::new() };
    let faults = [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)];
    let of = |scope: &'static str| {
        faults.map(|(kind, count)| (Labels::new([("failure_type", kind), ("scope", scope)]), float(count)))
    };
    ["container", "hierarchy"].into_iter().flat_map(of).collect()
}

fn open_files(row: &Row<'_>) -> Values {
    let Some(max) = row.sampled.level.tasks.open_files_max else { return Vec::new() };
    let value = u64::try_from(max).map_or(-1.0, float);
    vec![(Labels::new([("ulimit", "max_open_files")]), value)]
}

/// A limit; what is as good as none is 0.
fn limit(bytes: u64) -> u64 {
    if bytes > LIMIT_MAX { 0 } else { bytes }
}

fn cpu_psi(row: &Row<'_>) -> Option<Psi> {
    row.sampled.level.cpu?.psi
}

fn memory_psi(row: &Row<'_>) -> Option<Psi> {
    row.sampled.level.memory?.psi
}

fn pressure(psi: Option<Psi>, line: impl Fn(Psi) -> Pressure) -> Values {
    psi.map(|psi| one(float(line(psi).total_us) / 1e6)).unwrap_or_default()
}
