//! `io.containerd.cgroups.v2.Metrics`.

use std::path::Path;

use berth_proto::cgroup2::{
    CpuStat, HugeTlbStat, IoEntry, IoStat, MemoryEvents, MemoryStat, Metrics, PidsStat, PsiData, PsiStats,
    RdmaEntry, RdmaStat,
};

use super::{Table, huge_page_sizes, number, parse_rdma, read};

/// What a group of the unified hierarchy uses.
pub(super) fn metrics(group: &Path) -> Metrics {
    Metrics {
        pids: Some(PidsStat {
            current: number(&group.join("pids.current")),
            limit: number(&group.join("pids.max")),
        }),
        cpu: Some(cpu(group)),
        memory: Some(memory(group)),
        rdma: Some(RdmaStat {
            current: rdma(&read(&group.join("rdma.current"))),
            limit: rdma(&read(&group.join("rdma.max"))),
        }),
        io: Some(IoStat { usage: io(&read(&group.join("io.stat"))), psi: pressure(group, "io") }),
        hugetlb: huge_pages(group),
        memory_events: events(Table::read(&group.join("memory.events"))),
        network: Vec::new(),
    }
}

fn cpu(group: &Path) -> CpuStat {
    let stat = Table::read(&group.join("cpu.stat"));
    CpuStat {
        usage_usec: stat.of("usage_usec"),
        user_usec: stat.of("user_usec"),
        system_usec: stat.of("system_usec"),
        nr_periods: stat.of("nr_periods"),
        nr_throttled: stat.of("nr_throttled"),
        throttled_usec: stat.of("throttled_usec"),
        psi: pressure(group, "cpu"),
        nr_bursts: stat.of("nr_bursts"),
        burst_usec: stat.of("burst_usec"),
    }
}

fn memory(group: &Path) -> MemoryStat {
    let stat = Table::read(&group.join("memory.stat"));
    // Linux 5.9 split these two by the kind of page.
    let both = |name: &str| {
        let kinds = [name.to_owned(), format!("{name}_anon"), format!("{name}_file")];
        kinds.iter().fold(0, |sum: u64, name| sum.saturating_add(stat.of(name)))
    };
    MemoryStat {
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
        workingset_refault: both("workingset_refault"),
        workingset_activate: both("workingset_activate"),
        workingset_nodereclaim: stat.of("workingset_nodereclaim"),
        pgrefill: stat.of("pgrefill"),
        pgscan: stat.of("pgscan"),
        pgsteal: stat.of("pgsteal"),
        pgactivate: stat.of("pgactivate"),
        pgdeactivate: stat.of("pgdeactivate"),
        pglazyfree: stat.of("pglazyfree"),
        pglazyfreed: stat.of("pglazyfreed"),
        thp_fault_alloc: stat.of("thp_fault_alloc"),
        thp_collapse_alloc: stat.of("thp_collapse_alloc"),
        usage: number(&group.join("memory.current")),
        usage_limit: number(&group.join("memory.max")),
        swap_usage: number(&group.join("memory.swap.current")),
        swap_limit: number(&group.join("memory.swap.max")),
        max_usage: number(&group.join("memory.peak")),
        swap_max_usage: number(&group.join("memory.swap.peak")),
        psi: pressure(group, "memory"),
    }
}

/// A group without a memory controller has no such events.
fn events(events: Table) -> Option<MemoryEvents> {
    (!events.0.is_empty()).then(|| MemoryEvents {
        low: events.of("low"),
        high: events.of("high"),
        max: events.of("max"),
        oom: events.of("oom"),
        oom_kill: events.of("oom_kill"),
        oom_group_kill: events.of("oom_group_kill"),
    })
}

/// Lines `major:minor rbytes=N wbytes=N rios=N wios=N …`.
fn io(text: &str) -> Vec<IoEntry> {
    let entry = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (major, minor) = words.next()?.split_once(':')?;
        let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
        let mut entry = IoEntry { major, minor, ..Default::default() };
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
    };
    text.lines().filter_map(entry).collect()
}

/// Lines `some|full avg10=F avg60=F avg300=F total=N`; nothing where the kernel does not count, or is told not to.
pub(super) fn pressure(group: &Path, resource: &str) -> Option<PsiStats> {
    let text = read(&group.join(format!("{resource}.pressure")));
    let data = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let of = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let average = |name: &str| of(name).and_then(|value| value.parse().ok()).unwrap_or(0.0);
        let total = of("total").and_then(|value| value.parse().ok()).unwrap_or(0);
        Some(PsiData { avg10: average("avg10"), avg60: average("avg60"), avg300: average("avg300"), total })
    };
    let stats = PsiStats { some: data("some"), full: data("full") };
    (stats.some.is_some() || stats.full.is_some()).then_some(stats)
}

fn rdma(text: &str) -> Vec<RdmaEntry> {
    let entries = text.lines().filter_map(parse_rdma);
    entries.map(|(device, hca_handles, hca_objects)| RdmaEntry { device, hca_handles, hca_objects }).collect()
}

fn huge_pages(group: &Path) -> Vec<HugeTlbStat> {
    let sizes = huge_page_sizes(group, ".current").into_iter();
    let stat = |pagesize: String| {
        let at = |file: &str| group.join(format!("hugetlb.{pagesize}.{file}"));
        HugeTlbStat {
            current: number(&at("current")),
            max: number(&at("max")),
            failcnt: Table::read(&at("events")).of("max"),
            pagesize,
        }
    };
    sizes.map(stat).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// As Linux 6.12 writes them, shortened where lines repeat.
    const FILES: [(&str, &str); 19] = [
        (
            "cpu.stat",
            "usage_usec 5312\nuser_usec 3100\nsystem_usec 2212\nnice_usec 0\ncore_sched.force_idle_usec 0\nnr_periods 40\nnr_throttled 7\nthrottled_usec 1234\nnr_bursts 2\nburst_usec 99\n",
        ),
        (
            "cpu.pressure",
            "some avg10=1.50 avg60=0.92 avg300=0.10 total=5599149171\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        ),
        (
            "memory.stat",
            "anon 4096\nfile 8192\nkernel 300\nkernel_stack 16384\npagetables 100\nsock 5\nshmem 6\nfile_mapped 7\nfile_dirty 8\nfile_writeback 9\nanon_thp 2097152\ninactive_anon 10\nactive_anon 11\ninactive_file 12\nactive_file 13\nunevictable 14\nslab_reclaimable 15\nslab_unreclaimable 16\nslab 31\nworkingset_refault_anon 1\nworkingset_refault_file 2\nworkingset_activate_anon 3\nworkingset_activate_file 4\nworkingset_nodereclaim 17\npgscan 18\npgsteal 19\npgfault 20\npgmajfault 21\npgrefill 22\npgactivate 23\npgdeactivate 24\npglazyfree 25\npglazyfreed 26\nthp_fault_alloc 27\nthp_collapse_alloc 28\n",
        ),
        ("memory.current", "1048576\n"),
        ("memory.max", "33554432\n"),
        ("memory.peak", "2097152\n"),
        ("memory.swap.current", "512\n"),
        ("memory.swap.max", "max\n"),
        ("memory.swap.peak", "1024\n"),
        (
            "memory.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        ),
        ("memory.events", "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\n"),
        ("pids.current", "3\n"),
        ("pids.max", "max\n"),
        ("io.stat", "254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n7:0 \n"),
        ("rdma.current", "mlx4_0 hca_handle=2 hca_object=2000\n"),
        ("rdma.max", "mlx4_0 hca_handle=max hca_object=max\n"),
        ("hugetlb.2MB.current", "4194304\n"),
        ("hugetlb.2MB.max", "8388608\n"),
        ("hugetlb.2MB.events", "max 9\n"),
    ];

    fn group() -> tempfile::TempDir {
        let group = tempfile::tempdir().unwrap();
        for (file, text) in FILES {
            fs::write(group.path().join(file), text).unwrap();
        }
        // Names that are not of a page size's current use.
        fs::write(group.path().join("hugetlb.2MB.rsvd.current"), "1\n").unwrap();
        group
    }

    #[test]
    fn processor_processes_and_devices_are_counted() {
        let group = group();
        let Metrics { pids, cpu, io, rdma, hugetlb, .. } = metrics(group.path());
        assert_eq!(pids, Some(PidsStat { current: 3, limit: u64::MAX }));
        let cpu = cpu.unwrap();
        assert_eq!((cpu.usage_usec, cpu.user_usec, cpu.system_usec), (5312, 3100, 2212));
        assert_eq!((cpu.nr_periods, cpu.nr_throttled, cpu.throttled_usec), (40, 7, 1234));
        assert_eq!((cpu.nr_bursts, cpu.burst_usec), (2, 99));
        let some = PsiData { avg10: 1.5, avg60: 0.92, avg300: 0.1, total: 5_599_149_171 };
        assert_eq!(cpu.psi, Some(PsiStats { some: Some(some), full: Some(PsiData::default()) }));
        let io = io.unwrap();
        let idle = IoEntry { major: 7, ..Default::default() };
        let busy = IoEntry { major: 254, minor: 0, rbytes: 1, wbytes: 2, rios: 3, wios: 4 };
        assert_eq!((io.usage, io.psi), (vec![busy, idle], None));
        let rdma = rdma.unwrap();
        let device = "mlx4_0".to_owned();
        let none = RdmaEntry { device: device.clone(), hca_handles: u32::MAX, hca_objects: u32::MAX };
        assert_eq!(rdma.current, [RdmaEntry { device, hca_handles: 2, hca_objects: 2000 }]);
        assert_eq!(rdma.limit, [none]);
        let pages = HugeTlbStat { current: 4 << 20, max: 8 << 20, pagesize: "2MB".to_owned(), failcnt: 9 };
        assert_eq!(hugetlb, [pages]);
    }

    #[test]
    fn memory_is_counted_in_every_field() {
        let group = group();
        let Metrics { memory, memory_events, .. } = metrics(group.path());
        let pressure = PsiStats {
            some: Some(PsiData { total: 11, ..Default::default() }),
            full: Some(PsiData { total: 7, ..Default::default() }),
        };
        let wanted = MemoryStat {
            anon: 4096,
            file: 8192,
            kernel_stack: 16384,
            slab: 31,
            sock: 5,
            shmem: 6,
            file_mapped: 7,
            file_dirty: 8,
            file_writeback: 9,
            anon_thp: 2 << 20,
            inactive_anon: 10,
            active_anon: 11,
            inactive_file: 12,
            active_file: 13,
            unevictable: 14,
            slab_reclaimable: 15,
            slab_unreclaimable: 16,
            pgfault: 20,
            pgmajfault: 21,
            workingset_refault: 3,
            workingset_activate: 7,
            workingset_nodereclaim: 17,
            pgrefill: 22,
            pgscan: 18,
            pgsteal: 19,
            pgactivate: 23,
            pgdeactivate: 24,
            pglazyfree: 25,
            pglazyfreed: 26,
            thp_fault_alloc: 27,
            thp_collapse_alloc: 28,
            usage: 1 << 20,
            usage_limit: 32 << 20,
            swap_usage: 512,
            swap_limit: u64::MAX,
            max_usage: 2 << 20,
            swap_max_usage: 1024,
            psi: Some(pressure),
        };
        assert_eq!(memory, Some(wanted));
        let events = MemoryEvents { low: 1, high: 2, max: 3, oom: 4, oom_kill: 5, oom_group_kill: 6 };
        assert_eq!(memory_events, Some(events));
    }

    #[test]
    fn a_group_without_controllers_counts_nothing() {
        let group = tempfile::tempdir().unwrap();
        let none = metrics(group.path());
        assert_eq!((none.memory_events, none.hugetlb), (None, Vec::new()));
        assert_eq!(none.memory, Some(MemoryStat::default()));
        assert_eq!(metrics(Path::new("/nowhere")).cpu, Some(CpuStat::default()));
    }
}
