//! Files as kernels have them.

use std::collections::BTreeMap;

use super::super::*;

/// Of a container of version 2, Linux 6.1.
const V2: [(&str, &str); 17] = [
    ("cgroup.procs", "4711\n4712\n4730\n"),
    ("cpu.max", "50000 100000\n"),
    (
        "cpu.pressure",
        "some avg10=0.94 avg60=11.66 avg300=24.39 total=4396854366\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
    ),
    (
        "cpu.stat",
        "usage_usec 4711\nuser_usec 3000\nsystem_usec 1711\ncore_sched.force_idle_usec 0\nnr_periods 9\nnr_throttled 3\nthrottled_usec 120\nnr_bursts 1\nburst_usec 2\n",
    ),
    ("cpu.weight", "39\n"),
    (
        "io.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=8\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=6\n",
    ),
    (
        "io.stat",
        "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n259:1 rbytes=1 wbytes=x\nbad\n8:x rbytes=1\n253:0 \n",
    ),
    ("memory.current", "10000000\n"),
    ("memory.events.local", "low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n"),
    ("memory.max", "67108864\n"),
    ("memory.min", "0\n"),
    ("memory.peak", "12000000\n"),
    ("memory.pressure", ""),
    (
        "memory.stat",
        "anon 4000000\nfile 5000000\nkernel 900000\nfile_mapped 1024\nactive_file 1000000\ninactive_file 3000000\npgfault 77\npgmajfault 7\n",
    ),
    ("memory.swap.current", "4096\n"),
    ("memory.swap.max", "0\n"),
    ("pids.max", "max\n"),
];

fn files(of: &[(&'static str, &'static str)]) -> BTreeMap<&'static str, &'static str> {
    of.iter().copied().collect()
}

#[test]
fn a_level_of_version_2() {
    let files = files(&V2);
    let level = level_v2(|name| files.get(name).map(|text| (*text).to_owned()));
    let cpu = level.cpu.unwrap();
    assert_eq!((cpu.total_ns, cpu.user_ns, cpu.system_ns), (4_711_000, 3_000_000, 1_711_000));
    let throttled = Throttled {
        periods: 9,
        throttled_periods: 3,
        throttled_ns: 120_000,
        burst_periods: 1,
        burst_ns: 2000,
    };
    assert_eq!(cpu.throttled, throttled);
    let some = Pressure { avg10: 0.94, avg60: 11.66, avg300: 24.39, total_us: 4_396_854_366 };
    let full = Pressure { total_us: 5, ..Pressure::default() };
    assert_eq!(cpu.psi, Some(Psi { full, some }), "they are not mixed up");
    let memory = level.memory.unwrap();
    let expected = Memory {
        usage: 10_000_000,
        usage_max: 12_000_000,
        working_set: 7_000_000,
        rss: 4_000_000,
        cache: 5_000_000,
        mapped_file: 1024,
        active_file: 1_000_000,
        inactive_file: 3_000_000,
        swap: 4096,
        page_faults: 77,
        major_page_faults: 7,
        ..Memory::default()
    };
    assert_eq!(memory, expected);
    let devices: Vec<_> =
        level.devices.iter().map(|device| (device.number, device.stats.bytes.len())).collect();
    assert_eq!(devices, [((8, 0), 2), ((253, 0), 0), ((259, 1), 1)]);
    assert_eq!(level.devices[0].stats.operations, [("Read".to_owned(), 1), ("Write".to_owned(), 2)]);
    let io = level.io_psi.unwrap();
    assert_eq!((io.some.total_us, io.full.total_us), (8, 6));
    // Without the controller the processes are counted.
    assert_eq!(level.tasks, Tasks { processes: 3, threads: 3, threads_max: 0, open_files_max: None });
    let limits = Limits {
        cpu_period_us: 100_000,
        cpu_quota_us: Some(50_000),
        cpu_shares: 998,
        memory: 64 << 20,
        swap: 0,
        reservation: 0,
    };
    assert_eq!((level.limits, level.oom_kills), (limits, 2));
}

#[test]
fn the_root_of_version_2_is_what_the_machine_uses() {
    let root = files(&[
        ("cpu.stat", "usage_usec 10\nuser_usec 6\nsystem_usec 4\n"),
        ("memory.stat", "anon 100\nfile 200\nactive_file 50\ninactive_file 400\n"),
    ]);
    let machine = MemoryInfo { total: 1 << 30, swap_total: 100, swap_free: 40 };
    let level = root_v2(|name| root.get(name).map(|text| (*text).to_owned()), &machine);
    let memory = level.memory.unwrap();
    // More inactive file pages than there is usage: none of it is in use.
    assert_eq!((memory.usage, memory.working_set, memory.swap), (300, 0, 60));
    assert_eq!((level.limits.memory, level.limits.swap), (1 << 30, 100));
    assert_eq!(level.cpu.unwrap().total_ns, 10_000);
}

/// Of the root of version 1, Linux 6.18.
const V1: [(&str, &str); 17] = [
    (
        "blkio/blkio.throttle.io_service_bytes_recursive",
        "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 12288\n8:0 Total 12288\nTotal 12288\n",
    ),
    ("blkio/blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\nTotal 3\n"),
    ("cpu/cgroup.procs", "1\n2\n"),
    ("cpu/cpu.cfs_period_us", "100000\n"),
    ("cpu/cpu.cfs_quota_us", "-1\n"),
    ("cpu/cpu.shares", "1024\n"),
    ("cpu/cpu.stat", "nr_periods 4\nnr_throttled 1\nthrottled_time 70\nnr_bursts 9\nburst_time 9\n"),
    ("cpuacct/cpuacct.stat", "user 1421376\nsystem 471613\n"),
    ("cpuacct/cpuacct.usage", "18929910690580\n"),
    ("memory/memory.failcnt", "3\n"),
    ("memory/memory.kmem.usage_in_bytes", "995528704\n"),
    ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
    ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"),
    (
        "memory/memory.stat",
        "cache 12156928\nrss 17559552\nswap 1\nmapped_file 7663616\npgfault 138084\npgmajfault 2\ninactive_file 204800\n\
         active_file 2867200\nhierarchical_memory_limit 9223372036854771712\ntotal_cache 10217705472\ntotal_rss 476946432\n\
         total_mapped_file 292675584\ntotal_swap 0\ntotal_pgfault 535803259\ntotal_inactive_file 7914934272\n\
         total_active_file 2293682176\n",
    ),
    ("memory/memory.usage_in_bytes", "10697101312\n"),
    ("memory/memory.use_hierarchy", "1\n"),
    ("pids/pids.current", "7\n"),
];

fn level_of(files: &BTreeMap<&'static str, &'static str>) -> Level {
    level_v1(|controller, name| files.get(&*format!("{controller}/{name}")).map(|text| (*text).to_owned()))
}

#[test]
fn a_level_of_version_1() {
    let mut files = files(&V1);
    let level = level_of(&files);
    let cpu = level.cpu.unwrap();
    assert_eq!(
        (cpu.total_ns, cpu.user_ns, cpu.system_ns),
        (18_929_910_690_580, 14_213_760_000_000, 4_716_130_000_000)
    );
    let throttled = Throttled { periods: 4, throttled_periods: 1, throttled_ns: 70, ..Throttled::default() };
    assert_eq!((cpu.throttled, cpu.psi), (throttled, None));
    let memory = level.memory.unwrap();
    let expected = Memory {
        usage: 10_697_101_312,
        working_set: 2_782_167_040,
        rss: 476_946_432,
        cache: 10_217_705_472,
        mapped_file: 292_675_584,
        active_file: 2_293_682_176,
        inactive_file: 7_914_934_272,
        kernel: 995_528_704,
        failures: 3,
        page_faults: 138_084,
        major_page_faults: 2,
        ..Memory::default()
    };
    assert_eq!(memory, expected);
    let limits = Limits {
        cpu_period_us: 100_000,
        cpu_quota_us: None,
        cpu_shares: 1024,
        memory: 9_223_372_036_854_771_712,
        ..Limits::default()
    };
    assert_eq!(
        (level.limits, level.oom_kills, level.tasks.processes, level.tasks.threads),
        (limits, 5, 2, 7)
    );
    let [device] = &*level.devices else { panic!("{:?}", level.devices) };
    let names: Vec<&str> = device.stats.bytes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Read", "Write", "Sync", "Total"]);
    assert_eq!(device.stats.operations.len(), 2);

    files.insert("memory/memory.use_hierarchy", "0\n");
    let memory = level_of(&files).memory.unwrap();
    assert_eq!(
        (memory.cache, memory.rss, memory.swap, memory.mapped_file),
        (12_156_928, 17_559_552, 1, 7_663_616)
    );
}

/// Whatever is in a file, and whichever files have gone, something comes of it.
#[test]
fn files_that_are_missing_or_malformed_are_as_good_as_none() {
    for text in [
        "",
        "\n",
        "x",
        "99999999999999999999999\n",
        "-5\n",
        "max",
        "\u{fffd}:\u{fffd} = =\n",
        "8:0 Read -1\n8:0\n",
    ] {
        let level = level_v2(|_| Some(text.to_owned()));
        assert!(level.memory.is_none_or(|memory| memory.working_set <= memory.usage), "{text}");
        let level = level_v1(|_, _| Some(text.to_owned()));
        assert!(level.memory.is_none_or(|memory| memory.working_set <= memory.usage), "{text}");
    }
    assert_eq!(level_v1(|_, _| None), Level::default());
    assert_eq!(level_v2(|_| None), Level { has_io: true, ..Level::default() });
    let full = files(&V2);
    for missing in full.keys() {
        let level =
            level_v2(|name| full.get(name).filter(|_| name != *missing).map(|text| (*text).to_owned()));
        assert_eq!(level.cpu.is_none(), *missing == "cpu.stat", "{missing}");
        assert_eq!(level.memory.is_none(), matches!(*missing, "memory.max" | "memory.current"), "{missing}");
    }
}

#[test]
fn a_level_with_many_devices_shows_some() {
    let text: String = (0..1000).map(|minor| format!("7:{minor} rbytes=1 wbytes=1\n")).collect();
    let level = level_v2(|name| (name == "io.stat").then(|| text.clone()));
    assert_eq!(level.devices.len(), 128);
}
