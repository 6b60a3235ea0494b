//! Processors, memory, tasks and pressure of each level.

use super::{Kind, Labels, Row, Series, Values, float, one, seconds, timed, timeless};
use crate::stats::{Cpu, Memory, Pressure, Psi, Throttled, report::LIMIT_MAX};

/// All of them.
pub(super) const ALL: [Series; 43] = [
    timed(
        "container_cpu_user_seconds_total",
        "Cumulative user cpu time consumed in seconds.",
        Kind::Counter,
        |row| cpu(row, |cpu| seconds(cpu.user_ns)),
    ),
    timed(
        "container_cpu_system_seconds_total",
        "Cumulative system cpu time consumed in seconds.",
        Kind::Counter,
        |row| cpu(row, |cpu| seconds(cpu.system_ns)),
    ),
    timed(
        "container_cpu_usage_seconds_total",
        "Cumulative cpu time consumed in seconds.",
        Kind::Counter,
        |row| {
            let used = row.sampled.level.cpu.map_or(0, |cpu| cpu.total_ns);
            if used == 0 { Vec::new() } else { vec![(Labels::new([("cpu", "total")]), seconds(used))] }
        },
    ),
    timed(
        "container_cpu_cfs_periods_total",
        "Number of elapsed enforcement period intervals.",
        Kind::Counter,
        |row| throttled(row, |of| float(of.periods)),
    ),
    timed(
        "container_cpu_cfs_throttled_periods_total",
        "Number of throttled period intervals.",
        Kind::Counter,
        |row| throttled(row, |of| float(of.throttled_periods)),
    ),
    timed(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        Kind::Counter,
        |row| throttled(row, |of| seconds(of.throttled_ns)),
    ),
    timed(
        "container_cpu_cfs_burst_periods_total",
        "Number of periods when burst occurs.",
        Kind::Counter,
        |row| throttled(row, |of| float(of.burst_periods)),
    ),
    timed(
        "container_cpu_cfs_burst_seconds_total",
        "Total time duration the container has been bursted.",
        Kind::Counter,
        |row| throttled(row, |of| seconds(of.burst_ns)),
    ),
    // Nothing measures load, in the kubelet either.
    timed(
        "container_cpu_load_average_10s",
        "Value of container cpu load average over the last 10 seconds.",
        Kind::Gauge,
        |_| one(0.0),
    ),
    timed(
        "container_cpu_load_d_average_10s",
        "Value of container cpu load.d average over the last 10 seconds.",
        Kind::Gauge,
        |_| one(0.0),
    ),
    timed("container_tasks_state", "Number of tasks in given state", Kind::Gauge, |_| {
        let states = ["sleeping", "running", "stopped", "uninterruptible", "iowaiting"];
        states.map(|state| (Labels::new([("state", state)]), 0.0)).into()
    }),
    timed("container_health_state", "The result of the container's health check", Kind::Gauge, |_| one(-1.0)),
    timed("container_last_seen", "Last time a container was seen by the exporter", Kind::Gauge, |row| {
        one(float(u64::try_from(row.sampled.at.wall.as_second()).unwrap_or(0)))
    }),
    timeless(
        "container_start_time_seconds",
        "Start time of the container since unix epoch in seconds.",
        |row| {
            let made = row.sampled.created.map(|made| u64::try_from(made.as_second()).unwrap_or(0));
            made.map(|made| one(float(made))).unwrap_or_default()
        },
    ),
    timed("container_memory_cache", "Number of bytes of page cache memory.", Kind::Gauge, |row| {
        memory(row, |memory| memory.cache)
    }),
    timed("container_memory_rss", "Size of RSS in bytes.", Kind::Gauge, |row| {
        memory(row, |memory| memory.rss)
    }),
    timed("container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", Kind::Gauge, |row| {
        memory(row, |memory| memory.kernel)
    }),
    timed("container_memory_mapped_file", "Size of memory mapped files in bytes.", Kind::Gauge, |row| {
        memory(row, |memory| memory.mapped_file)
    }),
    timed("container_memory_swap", "Container swap usage in bytes.", Kind::Gauge, |row| {
        memory(row, |memory| memory.swap)
    }),
    timed("container_memory_failcnt", "Number of memory usage hits limits", Kind::Counter, |row| {
        memory(row, |memory| memory.failures)
    }),
    timed(
        "container_memory_usage_bytes",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        Kind::Gauge,
        |row| memory(row, |memory| memory.usage),
    ),
    timed("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", Kind::Gauge, |row| {
        memory(row, |memory| memory.usage_max)
    }),
    timed("container_memory_working_set_bytes", "Current working set in bytes.", Kind::Gauge, |row| {
        memory(row, |memory| memory.working_set)
    }),
    timed(
        "container_memory_total_active_file_bytes",
        "Current total active file in bytes.",
        Kind::Gauge,
        |row| memory(row, |memory| memory.active_file),
    ),
    timed(
        "container_memory_total_inactive_file_bytes",
        "Current total inactive file in bytes.",
        Kind::Gauge,
        |row| memory(row, |memory| memory.inactive_file),
    ),
    timed(
        "container_memory_failures_total",
        "Cumulative count of memory allocation failures.",
        Kind::Counter,
        memory_failures,
    ),
    timed(
        "container_oom_events_total",
        "Count of out of memory events observed for the container",
        Kind::Counter,
        |row| one(float(row.sampled.level.oom_kills)),
    ),
    timed("container_processes", "Number of processes running inside the container.", Kind::Gauge, |row| {
        one(float(row.sampled.level.tasks.processes))
    }),
    timed("container_threads", "Number of threads running inside the container", Kind::Gauge, |row| {
        one(float(row.sampled.level.tasks.threads))
    }),
    timed(
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero",
        Kind::Gauge,
        |row| one(float(row.sampled.level.tasks.threads_max)),
    ),
    timed(
        "container_ulimits_soft",
        "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice",
        Kind::Gauge,
        open_files,
    ),
    timeless("container_spec_cpu_period", "CPU period of the container.", |row| {
        cpu(row, |_| float(row.sampled.level.limits.cpu_period_us))
    }),
    timeless("container_spec_cpu_quota", "CPU quota of the container.", |row| {
        row.sampled.level.limits.cpu_quota_us.map(|quota| one(float(quota))).unwrap_or_default()
    }),
    timeless("container_spec_cpu_shares", "CPU share of the container.", |row| {
        cpu(row, |_| float(row.sampled.level.limits.cpu_shares))
    }),
    timeless("container_spec_memory_limit_bytes", "Memory limit for the container.", |row| {
        memory(row, |_| limit(row.sampled.level.limits.memory))
    }),
    timeless("container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", |row| {
        memory(row, |_| limit(row.sampled.level.limits.swap))
    }),
    timeless(
        "container_spec_memory_reservation_limit_bytes",
        "Memory reservation limit for the container.",
        |row| memory(row, |_| limit(row.sampled.level.limits.reservation)),
    ),
    timed(
        "container_pressure_cpu_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to CPU congestion.",
        Kind::Counter,
        |row| pressure(cpu_psi(row), |psi| psi.full),
    ),
    timed(
        "container_pressure_cpu_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to CPU congestion.",
        Kind::Counter,
        |row| pressure(cpu_psi(row), |psi| psi.some),
    ),
    timed(
        "container_pressure_memory_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to memory congestion.",
        Kind::Counter,
        |row| pressure(memory_psi(row), |psi| psi.full),
    ),
    timed(
        "container_pressure_memory_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to memory congestion.",
        Kind::Counter,
        |row| pressure(memory_psi(row), |psi| psi.some),
    ),
    timed(
        "container_pressure_io_stalled_seconds_total",
        "Total time duration no tasks in the container could make progress due to IO congestion.",
        Kind::Counter,
        |row| pressure(row.sampled.level.io_psi, |psi| psi.full),
    ),
    timed(
        "container_pressure_io_waiting_seconds_total",
        "Total time duration tasks in the container have waited due to IO congestion.",
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
