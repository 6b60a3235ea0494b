//! What the machine says about itself, read once at start; what changes later is read again by [`LiveFacts`].

mod app_armor;
mod cgroups;
mod live;
mod selinux;
mod sub_ids;
mod swap;
mod thermal;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
};

use berth_core::{
    config::{AppArmor, CgroupVersion},
    spec::Quantities,
};
use nix::unistd::{SysconfVar, sysconf};

/// Largest file of the node that is copied into pods (resolv.conf, hosts).
const TEXT_MAX: u64 = 1 << 20;

/// The processors that are in use, as a list.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The highest number of a capability that the kernel knows.
const LAST_CAPABILITY: &str = "/proc/sys/kernel/cap_last_cap";

/// The node's names of addresses.
const HOSTS: &str = "/etc/hosts";

/// There when the machine was booted with systemd; see sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";

pub(super) use live::resolv_conf;
pub use {live::LiveFacts, swap::Swap};

/// Facts of the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Host name, lower case.
    pub hostname: String,
    /// Host name, as the kernel has it.
    pub kernel_hostname: String,
    /// The addresses that packets to elsewhere leave from, IPv4 first.
    pub ips: Vec<IpAddr>,
    /// Processors, memory, disk below the root directory, huge pages.
    pub capacity: Quantities,
    /// Version of the cgroup hierarchy.
    pub cgroup_version: CgroupVersion,
    /// Number of tasks that the kernel allows; `None` when cgroups cannot bound it.
    pub pids_max: Option<u64>,
    /// CPUs in the kernel's form, such as `0-3,8`; `None` when cgroups cannot choose among them, or only in version 1, where
    /// nothing has to be told of them.
    pub cpus: Option<String>,
    /// Sizes in bytes of the huge pages that cgroups can bound.
    pub hugepage_sizes: BTreeSet<u64>,
    /// Swap.
    pub swap: Swap,
    /// Whether the kernel keeps a tmpfs out of swap that asks for it.
    pub has_noswap: bool,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Whether systemd is process 1.
    pub booted_with_systemd: bool,
    /// The agent's own `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Effective capabilities within the bounding set; bit n is capability n.
    pub capabilities: u64,
    /// Capabilities that the kernel knows, in the same form.
    pub kernel_capabilities: u64,
    /// What becomes of AppArmor profiles.
    pub app_armor: AppArmor,
    /// Labels that the policy has for containers, as it is written; `None` where the kernel does not have SELinux.
    pub selinux_contexts: Option<String>,
    /// Where processors tell how hot they run.
    pub thermal_counters: Vec<String>,
    /// `/etc/hosts`.
    pub hosts: String,
    /// Ids that are set aside for pods with user namespaces, the first and how many; all above the node's own where none are.
    pub sub_ids: Option<(u32, u32)>,
}

/// Why a fact could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// A file of the kernel or of the node.
    #[error("read {path}", path = .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Its content is not what it should be.
    #[error("find {what} in {path}: the kernel's answer has another form than known", path = .path.display())]
    Form {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// Ids for pods that nobody can make out.
    #[error("find the ids that user `kubelet` has for pods in {path}: {why}", path = .path.display())]
    SubIds {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// A call of the kernel.
    #[error("ask the kernel for {what}")]
    Call {
        /// For what.
        what: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl Facts {
    /// Reads everything. `root_dir` is where pods' volumes will be: the disk that counts.
    ///
    /// # Errors
    /// The first fact that cannot be had.
    pub fn gather(root_dir: &Path) -> Result<Self, FactsError> {
        let cgroup_version = cgroups::version()?;
        let capacity = capacity(root_dir)?;
        let is_bounded = cgroups::has_controller(cgroup_version, "hugetlb");
        let kernel_hostname = hostname()?;
        Ok(Self {
            hostname: kernel_hostname.to_lowercase(),
            kernel_hostname,
            ips: addresses(),
            cgroup_version,
            pids_max: cgroups::pids_max(cgroup_version)?,
            cpus: cgroups::cpus(cgroup_version)?,
            hugepage_sizes: capacity.hugepages_bytes.keys().copied().filter(|_| is_bounded).collect(),
            capacity,
            swap: swap::swap(cgroup_version)?,
            has_noswap: swap::has_noswap(),
            page_bytes: page_bytes()?,
            booted_with_systemd: Path::new(SYSTEMD).is_dir(),
            oom_score_adj: oom_score_adj()?,
            capabilities: capabilities()?,
            kernel_capabilities: kernel_capabilities()?,
            app_armor: app_armor::found(
                Path::new("/"),
                std::env::var_os("container").is_some_and(|manager| !manager.is_empty()),
            ),
            selinux_contexts: selinux::contexts(Path::new("/")),
            thermal_counters: thermal::counters(Path::new("/")),
            hosts: text_or_empty(Path::new(HOSTS))?,
            sub_ids: sub_ids::sub_ids()?,
        })
    }
}

/// A text file of the node, cut at 1 MiB.
fn text(path: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(TEXT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The same, empty when there is none.
///
/// # Errors
/// When it is there and cannot be read.
fn text_or_empty(path: &Path) -> Result<String, FactsError> {
    match text(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        result => result.map_err(|source| FactsError::Read { path: path.to_owned(), source }),
    }
}

/// The processor's kind, as Go and Kubernetes name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn page_bytes() -> Result<u64, FactsError> {
    let what = "the size of a page";
    let size =
        sysconf(SysconfVar::PAGE_SIZE).map_err(|errno| FactsError::Call { what, source: errno.into() })?;
    let positive = size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
    positive.ok_or(FactsError::Call { what, source: io::ErrorKind::InvalidData.into() })
}

/// The machine's name, in lower case.
///
/// # Errors
/// The kernel does not tell it.
pub fn hostname() -> Result<String, FactsError> {
    let name = nix::unistd::gethostname()
        .map_err(|errno| FactsError::Call { what: "the host name", source: errno.into() })?;
    Ok(name.to_string_lossy().trim().to_owned())
}

/// Source addresses of the routes to the documentation networks. Connecting a datagram socket sends nothing.
#[must_use]
pub fn addresses() -> Vec<IpAddr> {
    [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")]
        .into_iter()
        .filter_map(|(local, remote)| {
            let socket = UdpSocket::bind(local).ok()?;
            socket.connect(remote).ok()?;
            socket.local_addr().ok().map(|address| address.ip())
        })
        .filter(|address| !address.is_unspecified() && !address.is_loopback())
        .collect()
}

fn capacity(root_dir: &Path) -> Result<Quantities, FactsError> {
    let online = kernel_text(ONLINE)?;
    let processors = cpu_list(&online).ok_or_else(|| form("the processors", ONLINE))?;
    let memory = kernel_text("/proc/meminfo")?;
    let memory = meminfo_bytes(&memory, "MemTotal").ok_or_else(|| form("MemTotal", "/proc/meminfo"))?;
    Ok(Quantities {
        cpu_milli: Some(processors * 1000),
        memory_bytes: Some(memory),
        ephemeral_storage_bytes: disk_bytes(root_dir),
        hugepages_bytes: hugepages(Path::new("/sys/kernel/mm/hugepages")),
        ..Quantities::default()
    })
}

/// Size of the file system below the nearest directory that is there.
fn disk_bytes(root_dir: &Path) -> Option<u64> {
    let stat = root_dir.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
    Some(stat.f_blocks.saturating_mul(stat.f_frsize))
}

/// Huge pages of every size that the kernel has, also of those of which there are none now.
fn hugepages(directory: &Path) -> BTreeMap<u64, u64> {
    let sizes = fs::read_dir(directory).into_iter().flatten().flatten();
    sizes
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count: u64 =
                fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
            Some((kib * 1024, kib * 1024 * count))
        })
        .collect()
}

fn oom_score_adj() -> Result<i32, FactsError> {
    let path = "/proc/self/oom_score_adj";
    kernel_text(path)?.trim().parse().map_err(|_not_a_number| form("a number", path))
}

fn capabilities() -> Result<u64, FactsError> {
    let path = "/proc/self/status";
    let status = kernel_text(path)?;
    let set = |name: &'static str| capability_set(&status, name).ok_or_else(|| form(name, path));
    Ok(set("CapEff:")? & set("CapBnd:")?)
}

/// All up to the last one.
fn kernel_capabilities() -> Result<u64, FactsError> {
    let last: u32 = kernel_text(LAST_CAPABILITY)?
        .trim()
        .parse()
        .map_err(|_not_a_number| form("a number", LAST_CAPABILITY))?;
    Ok(u64::MAX.checked_shr(63_u32.saturating_sub(last)).unwrap_or(1))
}

fn capability_set(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Number of processors in a list such as `0-3,8`.
fn cpu_list(list: &str) -> Option<u64> {
    list.trim().split(',').try_fold(0_u64, |total, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        total.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// A line of `/proc/meminfo` in bytes.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn kernel_text(path: &str) -> Result<String, FactsError> {
    fs::read_to_string(path).map_err(|source| FactsError::Read { path: PathBuf::from(path), source })
}

fn form(what: &'static str, path: &str) -> FactsError {
    FactsError::Form { what, path: PathBuf::from(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read() {
        for (list, count) in
            [("0\n", Some(1)), ("0-3\n", Some(4)), ("0-1,4,6-7", Some(5)), ("", None), ("3-1", None)]
        {
            assert_eq!(cpu_list(list), count, "{list}");
        }
        let meminfo = "MemTotal:       24686168 kB\nSwapTotal: 0 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), Some(24_686_168 * 1024));
        assert_eq!(meminfo_bytes(meminfo, "SwapTotal"), Some(0));
        assert_eq!(meminfo_bytes(meminfo, "Mem"), None);
        assert_eq!(capability_set("CapEff:\t000001ffffffffff\n", "CapEff:"), Some(0x1ff_ffff_ffff));
    }

    #[test]
    fn a_size_without_pages_is_a_size() {
        let directory = tempfile::TempDir::new().unwrap();
        for (size, count) in [("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "0\n"), ("other", "7\n")] {
            let size = directory.path().join(size);
            fs::create_dir(&size).unwrap();
            fs::write(size.join("nr_hugepages"), count).unwrap();
        }
        assert_eq!(hugepages(directory.path()), [(2 << 20, 6 << 20), (1 << 30, 0)].into());
        assert_eq!(hugepages(&directory.path().join("none")), BTreeMap::new());
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = Facts::gather(Path::new("/var/lib/kubelet")).unwrap();
        assert!(facts.capacity.cpu_milli >= Some(1000));
        assert!(facts.capacity.memory_bytes > Some(1 << 20));
        assert_eq!(facts.hostname, facts.hostname.to_lowercase());
        assert!(facts.page_bytes.is_power_of_two() && facts.page_bytes >= 4096);
        assert!(facts.pids_max > Some(1000));
        assert_eq!(facts.capabilities & !facts.kernel_capabilities, 0, "more than the kernel knows");
        assert!(facts.kernel_capabilities.count_ones() > 37);
    }
}
