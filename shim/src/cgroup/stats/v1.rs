//! `io.containerd.cgroups.v1.Metrics`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use berth_proto::cgroup1::{
    BlkIoEntry, BlkIoStat, CpuStat, CpuUsage, HugetlbStat, MemoryEntry, MemoryOomControl, MemoryStat,
    Metrics, PidsStat, RdmaEntry, RdmaStat, Throttle,
};

use super::{Table, huge_page_sizes, number, parse_rdma, read};

/// Nanoseconds of one tick of `cpuacct.stat`, whose unit is USER_HZ.
const TICK_NS: u64 = 10_000_000;

/// What the groups of a container use, by controller.
pub(super) fn metrics(paths: &BTreeMap<String, PathBuf>) -> Metrics {
    let at = |controller: &str| paths.get(controller).map(PathBuf::as_path);
    Metrics {
        hugetlb: at("hugetlb").map(huge_pages).unwrap_or_default(),
        pids: at("pids").map(|group| PidsStat {
            current: number(&group.join("pids.current")),
            // "max" is told as 0 in this version (`readUint` of `containerd/cgroups`).
            limit: Some(number(&group.join("pids.max"))).filter(|limit| *limit != u64::MAX).unwrap_or(0),
        }),
        cpu: Some(CpuStat { usage: at("cpuacct").map(cpu), throttling: at("cpu").map(throttling) }),
        memory: at("memory").map(memory),
        blkio: at("blkio").map(|group| block_devices(group, &read(Path::new("/proc/partitions")))),
        rdma: at("rdma").map(|group| RdmaStat {
            current: rdma(&read(&group.join("rdma.current"))),
            limit: rdma(&read(&group.join("rdma.max"))),
        }),
        memory_oom_control: at("memory").map(|group| {
            let control = Table::read(&group.join("memory.oom_control"));
            MemoryOomControl {
                oom_kill_disable: control.of("oom_kill_disable"),
                under_oom: control.of("under_oom"),
                oom_kill: control.of("oom_kill"),
            }
        }),
        // The runc shim fills neither.
        network: Vec::new(),
        cgroup_stats: None,
    }
}

fn cpu(group: &Path) -> CpuUsage {
    let stat = Table::read(&group.join("cpuacct.stat"));
    let each = read(&group.join("cpuacct.usage_percpu"));
    CpuUsage {
        total: number(&group.join("cpuacct.usage")),
        kernel: stat.of("system").saturating_mul(TICK_NS),
        user: stat.of("user").saturating_mul(TICK_NS),
        per_cpu: each.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect(),
    }
}

fn throttling(group: &Path) -> Throttle {
    let stat = Table::read(&group.join("cpu.stat"));
    Throttle {
        periods: stat.of("nr_periods"),
        throttled_periods: stat.of("nr_throttled"),
        throttled_time: stat.of("throttled_time"),
    }
}

fn memory(group: &Path) -> MemoryStat {
    let stat = Table::read(&group.join("memory.stat"));
    let entry = |name: &str| {
        let at = |file: &str| group.join(format!("memory.{name}{file}"));
        Some(MemoryEntry {
            limit: number(&at("limit_in_bytes")),
            usage: number(&at("usage_in_bytes")),
            max: number(&at("max_usage_in_bytes")),
            failcnt: number(&at("failcnt")),
        })
    };
    MemoryStat {
        cache: stat.of("cache"),
        rss: stat.of("rss"),
        rss_huge: stat.of("rss_huge"),
        mapped_file: stat.of("mapped_file"),
        dirty: stat.of("dirty"),
        writeback: stat.of("writeback"),
        pg_pg_in: stat.of("pgpgin"),
        pg_pg_out: stat.of("pgpgout"),
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
        total_dirty: stat.of("total_dirty"),
        total_writeback: stat.of("total_writeback"),
        total_pg_pg_in: stat.of("total_pgpgin"),
        total_pg_pg_out: stat.of("total_pgpgout"),
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
    }
}

/// The files of the CFQ scheduler, which Linux 5.0 took away, or else those of throttling, which count every device.
fn block_devices(group: &Path, partitions: &str) -> BlkIoStat {
    let of = |file: &str| block_io(&read(&group.join(format!("blkio.{file}"))), partitions);
    let stat = BlkIoStat {
        io_service_bytes_recursive: of("io_service_bytes_recursive"),
        io_serviced_recursive: of("io_serviced_recursive"),
        io_queued_recursive: of("io_queued_recursive"),
        io_service_time_recursive: of("io_service_time_recursive"),
        io_wait_time_recursive: of("io_wait_time_recursive"),
        io_merged_recursive: of("io_merged_recursive"),
        io_time_recursive: of("time_recursive"),
        sectors_recursive: of("sectors_recursive"),
    };
    if stat != BlkIoStat::default() {
        return stat;
    }
    // Linux 5.0 brought the recursive ones.
    let throttle = |file: &str| {
        let recursive = of(&format!("throttle.{file}_recursive"));
        if recursive.is_empty() { of(&format!("throttle.{file}")) } else { recursive }
    };
    BlkIoStat {
        io_service_bytes_recursive: throttle("io_service_bytes"),
        io_serviced_recursive: throttle("io_serviced"),
        ..BlkIoStat::default()
    }
}

/// Lines `major:minor Operation N` or `major:minor N`; the line `Total N` is of no device.
fn block_io(text: &str, partitions: &str) -> Vec<BlkIoEntry> {
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (number, op, value) = match words.as_slice() {
            [number, op, value] => (number, *op, value),
            [number, value] => (number, "", value),
            _ => return None,
        };
        let (major, minor) = number.split_once(':')?;
        Some(BlkIoEntry {
            op: op.to_owned(),
            device: device(partitions, major, minor),
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            value: value.parse().ok()?,
        })
    };
    text.lines().filter_map(entry).collect()
}

/// The file of a device, by a line `major minor blocks name` of /proc/partitions.
fn device(partitions: &str, major: &str, minor: &str) -> String {
    let name = partitions.lines().find_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            [of_major, of_minor, _, name] if (*of_major, *of_minor) == (major, minor) => Some(*name),
            _ => None,
        }
    });
    name.map(|name| format!("/dev/{name}")).unwrap_or_default()
}

fn rdma(text: &str) -> Vec<RdmaEntry> {
    let entries = text.lines().filter_map(parse_rdma);
    entries.map(|(device, hca_handles, hca_objects)| RdmaEntry { device, hca_handles, hca_objects }).collect()
}

fn huge_pages(group: &Path) -> Vec<HugetlbStat> {
    let sizes = huge_page_sizes(group, ".usage_in_bytes").into_iter();
    let stat = |pagesize: String| {
        let at = |file: &str| group.join(format!("hugetlb.{pagesize}.{file}"));
        HugetlbStat {
            usage: number(&at("usage_in_bytes")),
            max: number(&at("max_usage_in_bytes")),
            failcnt: number(&at("failcnt")),
            pagesize,
        }
    };
    sizes.map(stat).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// As Linux 6.18 and (`blkio.sectors…`) 4.19 write them, shortened.
    const FILES: [(&str, &str); 19] = [
        ("cpu.stat", "nr_periods 40\nnr_throttled 7\nthrottled_time 1234\nnr_bursts 0\nburst_time 0\n"),
        ("cpuacct.stat", "user 12\nsystem 5\n"),
        ("cpuacct.usage", "170000001\n"),
        ("cpuacct.usage_percpu", "100000001 70000000 \n"),
        (
            "memory.stat",
            "cache 1\nrss 2\nrss_huge 3\nshmem 0\nmapped_file 4\ndirty 5\nwriteback 6\nworkingset_refault_anon 0\nswap 0\npgpgin 7\npgpgout 8\npgfault 9\npgmajfault 10\ninactive_anon 11\nactive_anon 12\ninactive_file 13\nactive_file 14\nunevictable 15\nhierarchical_memory_limit 33554432\nhierarchical_memsw_limit 67108864\ntotal_cache 16\ntotal_rss 17\ntotal_rss_huge 18\ntotal_mapped_file 19\ntotal_dirty 20\ntotal_writeback 21\ntotal_pgpgin 22\ntotal_pgpgout 23\ntotal_pgfault 24\ntotal_pgmajfault 25\ntotal_inactive_anon 26\ntotal_active_anon 27\ntotal_inactive_file 28\ntotal_active_file 29\ntotal_unevictable 30\n",
        ),
        ("memory.limit_in_bytes", "33554432\n"),
        ("memory.usage_in_bytes", "1048576\n"),
        ("memory.max_usage_in_bytes", "2097152\n"),
        ("memory.failcnt", "4\n"),
        ("memory.memsw.limit_in_bytes", "9223372036854771712\n"),
        ("memory.kmem.usage_in_bytes", "77\n"),
        ("memory.kmem.tcp.failcnt", "78\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 2\n"),
        ("pids.current", "3\n"),
        ("pids.max", "100\n"),
        ("blkio.throttle.io_serviced_recursive", "254:0 Read 1\n254:0 Write 2\n254:0 Total 3\nTotal 3\n"),
        ("blkio.throttle.io_service_bytes", "254:0 Read 4096\nTotal 4096\n"),
        ("hugetlb.2MB.usage_in_bytes", "4194304\n"),
        ("hugetlb.2MB.failcnt", "9\n"),
    ];
    const PARTITIONS: &str =
        "major minor  #blocks  name\n\n 254        0   10485760 vda\n 254        1    1048576 vda1\n";

    fn group() -> (tempfile::TempDir, BTreeMap<String, PathBuf>) {
        let group = tempfile::tempdir().unwrap();
        for (file, text) in FILES {
            fs::write(group.path().join(file), text).unwrap();
        }
        fs::write(group.path().join("hugetlb.2MB.rsvd.usage_in_bytes"), "1\n").unwrap();
        let names = ["blkio", "cpu", "cpuacct", "hugetlb", "memory", "pids"];
        let paths = names.map(|name| (name.to_owned(), group.path().to_owned())).into();
        (group, paths)
    }

    #[test]
    fn processor_processes_and_pages_are_counted() {
        let (_group, paths) = group();
        let Metrics { hugetlb, pids, cpu, memory_oom_control, rdma, .. } = metrics(&paths);
        let usage = CpuUsage {
            total: 170_000_001,
            kernel: 50_000_000,
            user: 120_000_000,
            per_cpu: vec![100_000_001, 70_000_000],
        };
        let throttling = Throttle { periods: 40, throttled_periods: 7, throttled_time: 1234 };
        assert_eq!(cpu, Some(CpuStat { usage: Some(usage), throttling: Some(throttling) }));
        assert_eq!(pids, Some(PidsStat { current: 3, limit: 100 }));
        let control = MemoryOomControl { oom_kill_disable: 0, under_oom: 1, oom_kill: 2 };
        assert_eq!(memory_oom_control, Some(control));
        let pages = HugetlbStat { usage: 4 << 20, max: 0, failcnt: 9, pagesize: "2MB".to_owned() };
        assert_eq!((hugetlb, rdma), (vec![pages], None));
    }

    #[test]
    fn memory_is_counted_in_every_field() {
        let (_group, paths) = group();
        let wanted = MemoryStat {
            cache: 1,
            rss: 2,
            rss_huge: 3,
            mapped_file: 4,
            dirty: 5,
            writeback: 6,
            pg_pg_in: 7,
            pg_pg_out: 8,
            pg_fault: 9,
            pg_maj_fault: 10,
            inactive_anon: 11,
            active_anon: 12,
            inactive_file: 13,
            active_file: 14,
            unevictable: 15,
            hierarchical_memory_limit: 32 << 20,
            hierarchical_swap_limit: 64 << 20,
            total_cache: 16,
            total_rss: 17,
            total_rss_huge: 18,
            total_mapped_file: 19,
            total_dirty: 20,
            total_writeback: 21,
            total_pg_pg_in: 22,
            total_pg_pg_out: 23,
            total_pg_fault: 24,
            total_pg_maj_fault: 25,
            total_inactive_anon: 26,
            total_active_anon: 27,
            total_inactive_file: 28,
            total_active_file: 29,
            total_unevictable: 30,
            usage: Some(MemoryEntry { limit: 32 << 20, usage: 1 << 20, max: 2 << 20, failcnt: 4 }),
            swap: Some(MemoryEntry { limit: 9_223_372_036_854_771_712, ..Default::default() }),
            kernel: Some(MemoryEntry { usage: 77, ..Default::default() }),
            kernel_tcp: Some(MemoryEntry { failcnt: 78, ..Default::default() }),
        };
        assert_eq!(metrics(&paths).memory, Some(wanted));
    }

    #[test]
    fn block_devices_are_named_and_counted_once() {
        let (group, _paths) = group();
        let entry = |op: &str, value| BlkIoEntry {
            op: op.to_owned(),
            device: "/dev/vda".to_owned(),
            major: 254,
            minor: 0,
            value,
        };
        let stat = block_devices(group.path(), PARTITIONS);
        assert_eq!(stat.io_serviced_recursive, [entry("Read", 1), entry("Write", 2), entry("Total", 3)]);
        assert_eq!(stat.io_service_bytes_recursive, [entry("Read", 4096)]);
        fs::write(group.path().join("blkio.sectors_recursive"), "254:0 8\n").unwrap();
        let stat = block_devices(group.path(), PARTITIONS);
        assert_eq!(stat.sectors_recursive, [entry("", 8)]);
        assert!(stat.io_serviced_recursive.is_empty(), "two schedulers' numbers are not mixed");
        assert_eq!(device(PARTITIONS, "8", "0"), "");
    }

    #[test]
    fn what_a_machine_lacks_is_left_out() {
        let none = metrics(&BTreeMap::new());
        assert_eq!((none.memory, none.pids, none.blkio), (None, None, None));
        let nowhere = [("memory".to_owned(), PathBuf::from("/nowhere"))].into();
        assert_eq!(metrics(&nowhere).memory.unwrap().rss, 0);
    }
}
