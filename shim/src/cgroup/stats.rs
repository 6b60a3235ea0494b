//! Resource use of a container: a summary, and containerd's own metrics messages.

use std::fs;
use std::path::Path;
use std::str::SplitAsciiWhitespace;

use berth_proto::{Any, cgroup1, cgroup2, pack};

use super::Cgroup;

/// Nanoseconds of one tick of the v1 `cpuacct.stat`, whose unit is USER_HZ.
const TICK_NS: u64 = 10_000_000;

/// The figures of the summary API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu_ns: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) working_set_bytes: u64,
    pub(crate) pids: u64,
}

impl Cgroup {
    /// What the container uses now. A controller that is not there counts nothing.
    pub(crate) fn usage(&self) -> Usage {
        match self {
            Self::Unified(path) => {
                let memory_bytes = number(&path.join("memory.current"));
                let inactive = Table::read(&path.join("memory.stat")).of("inactive_file");
                Usage {
                    cpu_ns: Table::read(&path.join("cpu.stat")).of("usage_usec").saturating_mul(1000),
                    memory_bytes,
                    working_set_bytes: memory_bytes.saturating_sub(inactive),
                    pids: number(&path.join("pids.current")),
                }
            }
            Self::Split(paths) => {
                let at = |controller: &str, file: &str| paths.get(controller).map(|path| path.join(file));
                let memory_bytes = at("memory", "memory.usage_in_bytes").map_or(0, |path| number(&path));
                let stat = at("memory", "memory.stat").map(|path| Table::read(&path)).unwrap_or_default();
                Usage {
                    cpu_ns: at("cpuacct", "cpuacct.usage").map_or(0, |path| number(&path)),
                    memory_bytes,
                    working_set_bytes: memory_bytes.saturating_sub(stat.of("total_inactive_file")),
                    pids: at("pids", "pids.current").map_or(0, |path| number(&path)),
                }
            }
        }
    }

    /// containerd's metrics message for the version of the group.
    pub(crate) fn metrics(&self) -> Any {
        match self {
            Self::Unified(path) => pack(&unified(path)),
            Self::Split(_) => pack(&split(self)),
        }
    }
}

fn unified(path: &Path) -> cgroup2::Metrics {
    let cpu = Table::read(&path.join("cpu.stat"));
    let events = Table::read(&path.join("memory.events"));
    cgroup2::Metrics {
        pids: Some(cgroup2::PidsStat {
            current: number(&path.join("pids.current")),
            limit: limit(&path.join("pids.max")),
        }),
        cpu: Some(cgroup2::CpuStat {
            usage_usec: cpu.of("usage_usec"),
            user_usec: cpu.of("user_usec"),
            system_usec: cpu.of("system_usec"),
            nr_periods: cpu.of("nr_periods"),
            nr_throttled: cpu.of("nr_throttled"),
            throttled_usec: cpu.of("throttled_usec"),
            nr_bursts: cpu.of("nr_bursts"),
            burst_usec: cpu.of("burst_usec"),
            ..Default::default()
        }),
        memory: Some(unified_memory(path)),
        io: Some(cgroup2::IoStat { usage: unified_io(&read(&path.join("io.stat"))), ..Default::default() }),
        memory_events: Some(cgroup2::MemoryEvents {
            low: events.of("low"),
            high: events.of("high"),
            max: events.of("max"),
            oom: events.of("oom"),
            oom_kill: events.of("oom_kill"),
            oom_group_kill: events.of("oom_group_kill"),
        }),
        ..Default::default()
    }
}

fn unified_memory(path: &Path) -> cgroup2::MemoryStat {
    let stat = Table::read(&path.join("memory.stat"));
    cgroup2::MemoryStat {
        anon: stat.of("anon"),
        file: stat.of("file"),
        kernel_stack: stat.of("kernel_stack"),
        slab: stat.of("slab"),
        sock: stat.of("sock"),
        shmem: stat.of("shmem"),
        file_mapped: stat.of("file_mapped"),
        file_dirty: stat.of("file_dirty"),
        file_writeback: stat.of("file_writeback"),
        anon_thp: stat.of("anon_thp"),
        inactive_anon: stat.of("inactive_anon"),
        active_anon: stat.of("active_anon"),
        inactive_file: stat.of("inactive_file"),
        active_file: stat.of("active_file"),
        unevictable: stat.of("unevictable"),
        slab_reclaimable: stat.of("slab_reclaimable"),
        slab_unreclaimable: stat.of("slab_unreclaimable"),
        pgfault: stat.of("pgfault"),
        pgmajfault: stat.of("pgmajfault"),
        usage: number(&path.join("memory.current")),
        usage_limit: limit(&path.join("memory.max")),
        max_usage: number(&path.join("memory.peak")),
        swap_usage: number(&path.join("memory.swap.current")),
        swap_limit: limit(&path.join("memory.swap.max")),
        swap_max_usage: number(&path.join("memory.swap.peak")),
        ..Default::default()
    }
}

/// Lines `major:minor rbytes=N wbytes=N rios=N wios=N …`.
fn unified_io(text: &str) -> Vec<cgroup2::IoEntry> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (major, minor) = words.next()?.split_once(':')?;
            let mut entry = cgroup2::IoEntry {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
                ..Default::default()
            };
            for (name, value) in words.filter_map(|word| word.split_once('=')) {
                let value = value.parse().unwrap_or(0);
                match name {
                    "rbytes" => entry.rbytes = value,
                    "wbytes" => entry.wbytes = value,
                    "rios" => entry.rios = value,
                    "wios" => entry.wios = value,
                    _ => {}
                }
            }
            Some(entry)
        })
        .collect()
}

fn split(cgroup: &Cgroup) -> cgroup1::Metrics {
    let Cgroup::Split(paths) = cgroup else { return cgroup1::Metrics::default() };
    let pids = paths.get("pids").map(|path| cgroup1::PidsStat {
        current: number(&path.join("pids.current")),
        limit: limit(&path.join("pids.max")),
    });
    let throttling =
        paths.get("cpu").map(|path| Table::read(&path.join("cpu.stat"))).map(|stat| cgroup1::Throttle {
            periods: stat.of("nr_periods"),
            throttled_periods: stat.of("nr_throttled"),
            throttled_time: stat.of("throttled_time"),
        });
    let usage = paths.get("cpuacct").map(|path| {
        let stat = Table::read(&path.join("cpuacct.stat"));
        cgroup1::CpuUsage {
            total: number(&path.join("cpuacct.usage")),
            kernel: stat.of("system").saturating_mul(TICK_NS),
            user: stat.of("user").saturating_mul(TICK_NS),
            per_cpu: read(&path.join("cpuacct.usage_percpu"))
                .split_ascii_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect(),
        }
    });
    let oom = paths.get("memory").map(|path| Table::read(&path.join("memory.oom_control")));
    cgroup1::Metrics {
        pids,
        cpu: Some(cgroup1::CpuStat { usage, throttling }),
        memory: paths.get("memory").map(|path| split_memory(path)),
        blkio: paths.get("blkio").map(|path| cgroup1::BlkIoStat {
            io_service_bytes_recursive: split_io(&read(
                &path.join("blkio.throttle.io_service_bytes_recursive"),
            )),
            io_serviced_recursive: split_io(&read(&path.join("blkio.throttle.io_serviced_recursive"))),
            ..Default::default()
        }),
        memory_oom_control: oom.map(|oom| cgroup1::MemoryOomControl {
            oom_kill_disable: oom.of("oom_kill_disable"),
            under_oom: oom.of("under_oom"),
            oom_kill: oom.of("oom_kill"),
        }),
        ..Default::default()
    }
}

fn split_memory(path: &Path) -> cgroup1::MemoryStat {
    let stat = Table::read(&path.join("memory.stat"));
    let entry = |name: &str| {
        let at = |file: &str| path.join(format!("memory.{name}{file}"));
        Some(cgroup1::MemoryEntry {
            limit: number(&at("limit_in_bytes")),
            usage: number(&at("usage_in_bytes")),
            max: number(&at("max_usage_in_bytes")),
            failcnt: number(&at("failcnt")),
        })
    };
    cgroup1::MemoryStat {
        cache: stat.of("cache"),
        rss: stat.of("rss"),
        rss_huge: stat.of("rss_huge"),
        mapped_file: stat.of("mapped_file"),
        dirty: stat.of("dirty"),
        writeback: stat.of("writeback"),
        pg_fault: stat.of("pgfault"),
        pg_maj_fault: stat.of("pgmajfault"),
        inactive_anon: stat.of("inactive_anon"),
        active_anon: stat.of("active_anon"),
        inactive_file: stat.of("inactive_file"),
        active_file: stat.of("active_file"),
        unevictable: stat.of("unevictable"),
        hierarchical_memory_limit: stat.of("hierarchical_memory_limit"),
        hierarchical_swap_limit: stat.of("hierarchical_memsw_limit"),
        total_cache: stat.of("total_cache"),
        total_rss: stat.of("total_rss"),
        total_rss_huge: stat.of("total_rss_huge"),
        total_mapped_file: stat.of("total_mapped_file"),
        total_pg_fault: stat.of("total_pgfault"),
        total_pg_maj_fault: stat.of("total_pgmajfault"),
        total_inactive_anon: stat.of("total_inactive_anon"),
        total_active_anon: stat.of("total_active_anon"),
        total_inactive_file: stat.of("total_inactive_file"),
        total_active_file: stat.of("total_active_file"),
        total_unevictable: stat.of("total_unevictable"),
        usage: entry(""),
        swap: entry("memsw."),
        kernel: entry("kmem."),
        kernel_tcp: entry("kmem.tcp."),
        ..Default::default()
    }
}

/// Lines `major:minor Operation N`.
fn split_io(text: &str) -> Vec<cgroup1::BlkIoEntry> {
    let entry = |mut words: SplitAsciiWhitespace<'_>| {
        let (major, minor) = words.next()?.split_once(':')?;
        let op = words.next()?.to_owned();
        let value = words.next()?.parse().ok()?;
        Some(cgroup1::BlkIoEntry {
            op,
            device: String::new(),
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            value,
        })
    };
    text.lines().filter_map(|line| entry(line.split_ascii_whitespace())).collect()
}

/// A file of lines `name number`.
#[derive(Debug, Default)]
struct Table(String);

impl Table {
    fn read(path: &Path) -> Self {
        Self(read(path))
    }

    fn of(&self, name: &str) -> u64 {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
        self.0.lines().find_map(value).unwrap_or(0)
    }
}

fn number(path: &Path) -> u64 {
    read(path).trim().parse().unwrap_or(0)
}

/// A limit, of which `max` is the largest number.
fn limit(path: &Path) -> u64 {
    match read(path).trim() {
        "max" => u64::MAX,
        text => text.parse().unwrap_or(0),
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unified_group_is_summed_up() {
        let group = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("memory.current", "1000\n"),
            ("memory.stat", "anon 1\ninactive_file 300\n"),
            ("cpu.stat", "usage_usec 5\nuser_usec 3\n"),
            ("pids.current", "2\n"),
            ("pids.max", "max\n"),
            ("io.stat", "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n"),
        ] {
            fs::write(group.path().join(file), text).unwrap();
        }
        let cgroup = Cgroup::Unified(group.path().to_owned());
        let usage = Usage { cpu_ns: 5000, memory_bytes: 1000, working_set_bytes: 700, pids: 2 };
        assert_eq!(cgroup.usage(), usage);
        let metrics = unified(group.path());
        assert_eq!(metrics.pids.unwrap().limit, u64::MAX);
        let io = metrics.io.unwrap().usage.remove(0);
        assert_eq!((io.major, io.wbytes, io.wios), (8, 2, 4));
        assert_eq!(cgroup.metrics().type_url, "io.containerd.cgroups.v2.Metrics");
    }

    #[test]
    fn names_that_begin_alike_are_told_apart() {
        let table = Table("oom_kill_disable 1\noom_kill 7\n".to_owned());
        assert_eq!(table.of("oom_kill"), 7);
        assert_eq!(table.of("oom"), 0);
    }
}
