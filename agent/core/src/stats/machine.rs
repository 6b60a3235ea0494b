//! Facts of the machine that statistics need.

use std::collections::BTreeSet;

/// What the machine is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// `machine-id`, `product_uuid` and `boot_id`.
    pub ids: [String; 3],
    /// Release of the kernel.
    pub kernel: String,
    /// The operating system, as it calls itself.
    pub os: String,
    /// Logical processors, physical cores, sockets.
    pub processors: [u64; 3],
    /// Its memory.
    pub memory: MemoryInfo,
}

/// What `/proc/meminfo` says, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All memory.
    pub total: u64,
    /// All swap.
    pub swap_total: u64,
    /// Swap that is free.
    pub swap_free: u64,
}

impl MemoryInfo {
    /// Swap that is in use.
    #[must_use]
    pub fn swap_used(&self) -> u64 {
        self.swap_total.saturating_sub(self.swap_free)
    }
}

/// Reads `/proc/meminfo`.
#[must_use]
pub fn memory_info(text: &str) -> MemoryInfo {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
        kib.unwrap_or(0).saturating_mul(1024)
    };
    MemoryInfo { total: bytes("MemTotal"), swap_total: bytes("SwapTotal"), swap_free: bytes("SwapFree") }
}

/// Logical processors, physical cores and sockets of `/proc/cpuinfo`. Where it does not tell cores, each processor is one.
#[must_use]
pub fn topology(cpuinfo: &str) -> [u64; 3] {
    let (mut processors, mut cores, mut sockets) = (0_u64, BTreeSet::new(), BTreeSet::new());
    for block in cpuinfo.split("\n\n") {
        let field = |name: &str| {
            let (_, value) =
                block.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)?;
            Some(value.trim().to_owned())
        };
        let Some(processor) = field("processor") else { continue };
        processors += 1;
        let socket = field("physical id").unwrap_or_default();
        cores.insert((socket.clone(), field("core id").unwrap_or(processor)));
        sockets.insert(socket);
    }
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    [processors, count(cores.len()), count(sockets.len())]
}

/// Tasks that there are, by `/proc/loadavg`.
#[must_use]
pub fn tasks(loadavg: &str) -> Option<i64> {
    loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// The soft bound on open files in `/proc/<pid>/limits`; -1 is none.
#[must_use]
pub fn soft_open_files(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

/// The level that `/proc/self/cgroup` says the process is in: that of version 2, or the one of systemd, or of `cpu` and `memory`
/// where both are the same. Source: `pkg/kubelet/cm/container_manager_linux.go` `getContainer`.
#[must_use]
pub fn own_cgroup(text: &str, is_version_2: bool) -> Option<String> {
    let of = |wanted: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|name| name == wanted).then(|| path.to_owned())
        })
    };
    if is_version_2 {
        return of("");
    }
    let cpu = of("cpu")?;
    (of("memory").as_ref() == Some(&cpu)).then(|| of("name=systemd").unwrap_or(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_cores_and_sockets_are_counted() {
        let block = |number: u32, socket: u32, core: u32| {
            format!("processor\t: {number}\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n")
        };
        let text: String = (0..8).map(|number| block(number, number / 4, number % 2)).collect();
        assert_eq!(topology(&text), [8, 4, 2]);
        // As on ARM.
        assert_eq!(topology("processor\t: 0\n\nprocessor\t: 1\n\nHardware\t: x\n"), [2, 2, 1]);
        assert_eq!(topology(""), [0, 0, 0]);
    }

    #[test]
    fn files_of_proc_are_read() {
        let memory = memory_info("MemTotal:       24686168 kB\nSwapTotal: 100 kB\nSwapFree: 40 kB\n");
        assert_eq!((memory.total, memory.swap_used()), (24_686_168 * 1024, 60 * 1024));
        assert_eq!(memory_info("MemTotal: x kB\n"), MemoryInfo::default());
        assert_eq!(tasks("2.02 2.29 2.91 3/113 12860\n"), Some(113));
        assert_eq!((tasks("2.02"), tasks("a b c d e")), (None, None));
        let limits = "Limit      Soft Limit  Hard Limit  Units\nMax open files   1048576   1048576   files\n";
        assert_eq!(soft_open_files(limits), Some(1_048_576));
        assert_eq!(soft_open_files("Max open files unlimited unlimited files"), Some(-1));
        assert_eq!(soft_open_files(""), None);
    }

    #[test]
    fn the_level_of_the_agent_is_the_one_that_the_kubelet_would_name() {
        let v1 = "4:memory:/system.slice/a\n3:cpu,cpuacct:/system.slice/a\n1:name=systemd:/system.slice/a.service\n";
        let cases = [
            (v1, false, Some("/system.slice/a.service")),
            ("2:memory:/x\n1:cpu:/x\n", false, Some("/x")),
            ("2:memory:/x\n1:cpu:/\n", false, None),
            ("1:cpu:/\n", false, None),
            ("0::/system.slice/berth.service\n", true, Some("/system.slice/berth.service")),
            (v1, true, None),
            ("", true, None),
        ];
        for (text, is_version_2, expected) in cases {
            assert_eq!(own_cgroup(text, is_version_2).as_deref(), expected, "{text}");
        }
    }
}
