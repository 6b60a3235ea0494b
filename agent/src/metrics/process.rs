//! The agent's own process, by the names that every program with Prometheus' client shows.
//!
//! What cannot be read is left as it was.

use std::{fs, time::Duration};

use jiff::Timestamp;
use nix::unistd::{SysconfVar, sysconf};
use prometheus::{Counter, Gauge, Opts, Registry, Result};
use rustix::process::{Resource, getrlimit};

use super::families::number;

/// Where the kernel tells of this process.
const OWN: &str = "/proc/self";

/// Families of the process.
#[derive(Debug)]
pub(super) struct Process {
    cpu: Counter,
    started: Gauge,
    resident: Gauge,
    virtual_memory: Gauge,
    virtual_memory_max: Gauge,
    open_files: Gauge,
    open_files_max: Gauge,
    threads: Gauge,
}

impl Process {
    pub(super) fn new(registry: &Registry, started: Timestamp) -> Result<Self> {
        let gauge = |name: &str, help: &str| {
            let gauge = Gauge::with_opts(Opts::new(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let help = "Processor time of the agent, in seconds.";
        let cpu = Counter::with_opts(Opts::new("process_cpu_seconds_total", help))?;
        registry.register(Box::new(cpu.clone()))?;
        let process = Self {
            cpu,
            started: gauge("process_start_time_seconds", "When the agent began, in seconds since 1970.")?,
            resident: gauge("process_resident_memory_bytes", "Memory that the agent has, in bytes.")?,
            virtual_memory: gauge("process_virtual_memory_bytes", "Addresses that the agent has, in bytes.")?,
            virtual_memory_max: gauge(
                "process_virtual_memory_max_bytes",
                "Addresses that the agent may have, in bytes.",
            )?,
            open_files: gauge("process_open_fds", "Files that the agent has open.")?,
            open_files_max: gauge("process_max_fds", "Files that the agent may have open.")?,
            threads: gauge("process_threads", "Threads of the agent.")?,
        };
        process.started.set(started.as_duration().as_secs_f64());
        Ok(process)
    }

    /// When the agent began.
    pub(super) fn started(&self) -> &Gauge {
        &self.started
    }

    /// Looks. It is for one at a time: two that add at once would count twice.
    pub(super) fn look(&self) {
        if let Ok(stat) = fs::read_to_string(format!("{OWN}/stat")) {
            self.take(&stat, clock_ticks(), page_bytes());
        }
        if let Ok(files) = fs::read_dir(format!("{OWN}/fd")) {
            self.open_files.set(number(files.count()));
        }
        self.open_files_max.set(limit(Resource::Nofile));
        self.virtual_memory_max.set(limit(Resource::As));
    }

    /// Takes the fields of `proc(5)` `stat`, which come after the program's name, whatever is in that.
    fn take(&self, stat: &str, ticks_per_second: f64, page_bytes: f64) {
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<_> = after_name.split_whitespace().collect();
        let field = |of: usize| fields.get(of - 3).and_then(|text| text.parse::<u64>().ok()).map(large);
        if let (Some(user), Some(system)) = (field(14), field(15)) {
            self.cpu.inc_by(((user + system) / ticks_per_second - self.cpu.get()).max(0.0));
        }
        for (gauge, value) in [
            (&self.threads, field(20)),
            (&self.virtual_memory, field(23)),
            (&self.resident, field(24).map(|pages| pages * page_bytes)),
        ] {
            if let Some(value) = value {
                gauge.set(value);
            }
        }
    }
}

fn clock_ticks() -> f64 {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten();
    ticks.and_then(|ticks| u32::try_from(ticks).ok()).map_or(100.0, f64::from)
}

fn page_bytes() -> f64 {
    let bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    bytes.and_then(|bytes| u32::try_from(bytes).ok()).map_or(4096.0, f64::from)
}

/// What the kernel allows; where it sets no bound, the largest number, as `github.com/prometheus/procfs` `proc_limits.go` reads that.
fn limit(of: Resource) -> f64 {
    large(getrlimit(of).current.unwrap_or(u64::MAX))
}

/// A count in a float, as near as that has it.
fn large(count: u64) -> f64 {
    Duration::from_secs(count).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_behind_the_name() {
        let process = Process::new(&Registry::new(), Timestamp::from_second(7).unwrap()).unwrap();
        let stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 12345 8192000 300 18446744073709551615";
        process.take(stat, 100.0, 4096.0);
        let shown = [&process.threads, &process.virtual_memory, &process.resident, &process.started];
        assert_eq!(shown.map(Gauge::get), [9.0, 8_192_000.0, 1_228_800.0, 7.0]);
        process.take(&stat.replace("250 50", "250 150"), 100.0, 4096.0);
        assert!((process.cpu.get() - 4.0).abs() < f64::EPSILON, "it counts on");
        process.take(stat, 100.0, 4096.0);
        process.take("no such line", 100.0, 4096.0);
        process.take("1 (x) S 1", 100.0, 4096.0);
        assert!((process.cpu.get() - 4.0).abs() < f64::EPSILON, "it is as it was");
    }

    #[test]
    fn this_process_can_be_read() {
        let process = Process::new(&Registry::new(), Timestamp::UNIX_EPOCH).unwrap();
        process.look();
        for gauge in [&process.resident, &process.open_files, &process.open_files_max, &process.threads] {
            assert!(gauge.get() >= 1.0, "{gauge:?}");
        }
        let soft = fs::read_to_string(format!("{OWN}/limits")).unwrap();
        let soft = soft.lines().find_map(|line| line.strip_prefix("Max address space")).unwrap();
        let soft = soft.split_whitespace().next().unwrap().replace("unlimited", "18446744073709551615");
        let difference = process.virtual_memory_max.get() - soft.parse::<f64>().unwrap();
        assert!(difference.abs() < f64::EPSILON, "{soft}");
    }
}
