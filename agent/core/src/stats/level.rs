//! What a level of the cgroup hierarchy, and a network namespace, use.

use jiff::Timestamp;

use super::Psi;
use crate::time::Now;

/// Interfaces of one namespace that are shown: a pod that may make interfaces makes as many as it likes.
pub const INTERFACES_MAX: usize = 128;

/// Devices of one level that are shown.
pub(super) const DEVICES_MAX: usize = 128;

/// What a level uses, as its files said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Level {
    /// Processor time; `None` where nothing counts it.
    pub cpu: Option<Cpu>,
    /// Memory; `None` where nothing counts it.
    pub memory: Option<Memory>,
    /// Whether transfers to disks are counted.
    pub has_io: bool,
    /// Transfers by device, those with the lowest numbers first.
    pub devices: Vec<Device>,
    /// Pressure on disks.
    pub io_psi: Option<Psi>,
    /// Processes and threads.
    pub tasks: Tasks,
    /// What bounds it.
    pub limits: Limits,
    /// Processes of its own that the kernel killed for lack of memory.
    pub oom_kills: u64,
}

/// Processor time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cpu {
    /// Of all tasks, in nanoseconds.
    pub total_ns: u64,
    /// In programs, in nanoseconds.
    pub user_ns: u64,
    /// In the kernel, in nanoseconds.
    pub system_ns: u64,
    /// How its quota held it up.
    pub throttled: Throttled,
    /// Pressure on processors.
    pub psi: Option<Psi>,
}

/// How a quota held up a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Periods that have passed.
    pub periods: u64,
    /// Those in which it was held up.
    pub throttled_periods: u64,
    /// How long, in nanoseconds.
    pub throttled_ns: u64,
    /// Periods in which it took more than its quota.
    pub burst_periods: u64,
    /// How long, in nanoseconds.
    pub burst_ns: u64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Memory {
    /// All that counts.
    pub usage: u64,
    /// The most that it was.
    pub usage_max: u64,
    /// What cannot be taken back without a loss: all but file pages that nobody used of late.
    pub working_set: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Pages of files.
    pub cache: u64,
    /// Of those, mapped ones.
    pub mapped_file: u64,
    /// Pages of files that were used of late.
    pub active_file: u64,
    /// Those that were not.
    pub inactive_file: u64,
    /// Of the kernel, where it is counted apart.
    pub kernel: u64,
    /// Swap.
    pub swap: u64,
    /// How often it met its limit, where that is counted.
    pub failures: u64,
    /// Page faults.
    pub page_faults: u64,
    /// Page faults that waited for a disk.
    pub major_page_faults: u64,
    /// Pressure on memory.
    pub psi: Option<Psi>,
}

impl Memory {
    /// Takes what file pages say. Source: cAdvisor `container/libcontainer/handler.go` `setMemoryStats`.
    pub(super) fn with_files(self, active_file: u64, inactive_file: u64) -> Self {
        let working_set = self.usage.saturating_sub(inactive_file);
        Self { active_file, inactive_file, working_set, ..self }
    }
}

/// Transfers to and from a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub number: (u32, u32),
    /// What was transferred.
    pub stats: DeviceStats,
}

/// Transfers by operation (`Read`, `Write`, …), by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// In bytes.
    pub bytes: Vec<(String, u64)>,
    /// In operations.
    pub operations: Vec<(String, u64)>,
}

impl DeviceStats {
    /// The number of one operation.
    pub(super) fn of(counts: &[(String, u64)], operation: &str) -> Option<u64> {
        counts.iter().find(|(name, _)| name == operation).map(|(_, count)| *count)
    }
}

/// Processes and threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Processes in the level itself.
    pub processes: u64,
    /// Threads in it and below it.
    pub threads: u64,
    /// How many threads there may be; 0 is without bound.
    pub threads_max: u64,
    /// The soft bound on open files of its first process.
    pub open_files_max: Option<i64>,
}

/// What bounds a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// In which time the quota counts, in microseconds.
    pub cpu_period_us: u64,
    /// Processor time in it, in microseconds.
    pub cpu_quota_us: Option<u64>,
    /// Weight among its neighbours, as version 1 has it.
    pub cpu_shares: u64,
    /// Memory in bytes; [`u64::MAX`] is none.
    pub memory: u64,
    /// Swap (version 2) or memory and swap (version 1) in bytes.
    pub swap: u64,
    /// Memory that is kept for it.
    pub reservation: u64,
}

/// A level at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// When it was read.
    pub at: Now,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// What it uses.
    pub level: Level,
    /// Processor time in each second since the sample before, in nanoseconds; `None` of a first sample.
    pub nano_cores: Option<u64>,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Received bytes, packets, errors, and packets that were dropped.
    pub received: [u64; 4],
    /// The same of what was sent.
    pub sent: [u64; 4],
}

/// Interfaces that are not shown, by how their names begin. Source: cAdvisor `ignoredDevicePrefixes`.
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// What `/proc/net/dev` says, in its order. An interface whose line has another form is left out.
#[must_use]
pub fn interfaces(text: &str) -> Vec<Interface> {
    text.lines().skip(2).filter_map(interface).take(INTERFACES_MAX).collect()
}

fn interface(line: &str) -> Option<Interface> {
    // A name may have a colon, numbers have none.
    let (name, numbers) = line.rsplit_once(':')?;
    let name = name.trim();
    let lower = name.to_lowercase();
    if name.is_empty() || IGNORED.iter().any(|prefix| lower.starts_with(prefix)) {
        return None;
    }
    let numbers: Vec<u64> =
        numbers.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let received = numbers.get(..4)?.try_into().ok()?;
    let sent = numbers.get(8..12)?.try_into().ok()?;
    Some(Interface { name: name.to_owned(), received, sent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_and_those_of_others_are_not_shown() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
lo: 15529156   27644    0    0    0     0          0         0 15529156   27644    0    0    0     0       0          0\n  \
eth0: 1402206726   79853    1    2    0     0          0         0  5771883   55976    3    4    0     0       0          0\n\
veth12:1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n\
DOCKER0: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n\
a:b: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n\
short: 1 2 3\n\
bad: 1 2 3 x 0 0 0 0 5 6 7 8 0 0 0 0\n\
huge: 99999999999999999999 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n";
        let found = interfaces(text);
        let names: Vec<_> = found.iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names, ["eth0", "a:b"]);
        assert_eq!(found[0].received, [1_402_206_726, 79_853, 1, 2]);
        assert_eq!(found[0].sent, [5_771_883, 55_976, 3, 4]);
        assert_eq!((interfaces(""), interfaces("one\ntwo\n")), (vec![], vec![]));
    }

    #[test]
    fn a_pod_with_many_interfaces_shows_some() {
        let lines: String = (0..2 * INTERFACES_MAX)
            .map(|number| format!("d{number}: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n"))
            .collect();
        let text = format!("\n\n{lines}");
        assert_eq!(interfaces(&text).len(), INTERFACES_MAX);
    }
}
