//! Resource use of a container: a summary, and containerd's own metrics messages.
//!
//! Every file may be missing: a controller that the kernel or the runtime left out counts nothing. The messages hold what
//! containerd's shim for runc fills (`Stat` of `containerd/cgroups` v3), so that every reader of them works unchanged.

mod v1;
mod v2;

use std::fs;
use std::path::Path;

use berth_proto::cgroup2::PsiStats;
use berth_proto::{Any, pack};

use super::Cgroup;

/// The figures of the summary API.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) cpu_ns: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) working_set_bytes: u64,
    pub(crate) swap_bytes: u64,
    pub(crate) pids: u64,
    pub(crate) pressure: Pressure,
}

/// How long processes have waited. Version 1 does not count that.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pressure {
    pub(crate) cpu: Option<PsiStats>,
    pub(crate) memory: Option<PsiStats>,
    pub(crate) io: Option<PsiStats>,
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
                    swap_bytes: number(&path.join("memory.swap.current")),
                    pids: number(&path.join("pids.current")),
                    pressure: Pressure {
                        cpu: v2::pressure(path, "cpu"),
                        memory: v2::pressure(path, "memory"),
                        io: v2::pressure(path, "io"),
                    },
                }
            }
            Self::Split(paths) => {
                let at = |controller: &str, file: &str| paths.get(controller).map(|path| path.join(file));
                let number_at = |controller, file| at(controller, file).map_or(0, |path| number(&path));
                let memory_bytes = number_at("memory", "memory.usage_in_bytes");
                let stat = at("memory", "memory.stat").map(|path| Table::read(&path)).unwrap_or_default();
                Usage {
                    cpu_ns: number_at("cpuacct", "cpuacct.usage"),
                    memory_bytes,
                    working_set_bytes: memory_bytes.saturating_sub(stat.of("total_inactive_file")),
                    swap_bytes: stat.of("total_swap"),
                    pids: number_at("pids", "pids.current"),
                    pressure: Pressure::default(),
                }
            }
        }
    }

    /// containerd's metrics message for the version of the group.
    pub(crate) fn metrics(&self) -> Any {
        match self {
            Self::Unified(path) => pack(&v2::metrics(path)),
            Self::Split(paths) => pack(&v1::metrics(paths)),
        }
    }
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
    parse_limit(&read(path))
}

/// A number, of which `max` is the largest. Version 1 writes -1 where a limit is none that it counts with.
fn parse_limit(text: &str) -> u64 {
    match text.trim() {
        "max" => u64::MAX,
        text => text.parse().unwrap_or(0),
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Page sizes of a group, by the names of its files `hugetlb.<size><suffix>`, in order.
fn huge_page_sizes(group: &Path, suffix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(group) else { return Vec::new() };
    let mut sizes: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let size = name.strip_prefix("hugetlb.")?.strip_suffix(suffix)?;
            (!size.contains('.')).then(|| size.to_owned())
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

/// One device of `rdma.current` or `rdma.max`: name, handles, objects. `max` is the largest number.
fn parse_rdma(line: &str) -> Option<(String, u32, u32)> {
    let mut words = line.split_ascii_whitespace();
    let device = words.next()?.to_owned();
    let (mut handles, mut objects) = (0, 0);
    for (name, value) in words.filter_map(|word| word.split_once('=')) {
        let value = if value == "max" { u32::MAX } else { value.parse().unwrap_or(0) };
        match name {
            "hca_handle" => handles = value,
            "hca_object" => objects = value,
            _ => {}
        }
    }
    Some((device, handles, objects))
}

#[cfg(test)]
mod tests {
    use berth_proto::cgroup2::PsiData;

    use super::*;

    #[test]
    fn names_that_begin_alike_are_told_apart() {
        let table = Table("oom_kill_disable 1\noom_kill 7\n".to_owned());
        assert_eq!(table.of("oom_kill"), 7);
        assert_eq!(table.of("oom"), 0);
    }

    #[test]
    fn limits_are_numbers_or_the_largest() {
        for (text, limit) in [
            ("max\n", u64::MAX),
            ("4096\n", 4096),
            ("9223372036854771712\n", 9_223_372_036_854_771_712),
            ("-1\n", 0),
            ("", 0),
            ("18446744073709551616\n", 0),
        ] {
            assert_eq!(parse_limit(text), limit, "{text:?}");
        }
    }

    #[test]
    fn rdma_devices_have_two_resources() {
        assert_eq!(parse_rdma("mlx4_0 hca_handle=2 hca_object=2000"), Some(("mlx4_0".to_owned(), 2, 2000)));
        assert_eq!(
            parse_rdma("ocrdma1 hca_handle=3 hca_object=max"),
            Some(("ocrdma1".to_owned(), 3, u32::MAX))
        );
        assert_eq!(parse_rdma(""), None);
    }

    #[test]
    fn a_group_is_summed_up_on_both_versions() {
        let group = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("memory.current", "1000\n"),
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.stat", "anon 1\ninactive_file 300\ntotal_inactive_file 400\ntotal_swap 30\n"),
            ("memory.swap.current", "20\n"),
            ("memory.pressure", "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n"),
            ("cpu.stat", "usage_usec 5\nuser_usec 3\n"),
            ("cpuacct.usage", "5000\n"),
            ("pids.current", "2\n"),
        ] {
            fs::write(group.path().join(file), text).unwrap();
        }
        let unified = Cgroup::Unified(group.path().to_owned());
        let waited = PsiData { avg10: 1.5, total: 9, ..PsiData::default() };
        let memory = Some(PsiStats { some: Some(waited), full: None });
        let usage = Usage {
            cpu_ns: 5000,
            memory_bytes: 1000,
            working_set_bytes: 700,
            swap_bytes: 20,
            pids: 2,
            pressure: Pressure { memory, ..Pressure::default() },
        };
        assert_eq!(unified.usage(), usage);
        assert_eq!(unified.metrics().type_url, "io.containerd.cgroups.v2.Metrics");
        let all = ["memory", "cpuacct", "pids"].map(|name| (name.to_owned(), group.path().to_owned()));
        let split = Cgroup::Split(all.into());
        let on_split =
            Usage { working_set_bytes: 600, swap_bytes: 30, pressure: Pressure::default(), ..usage };
        assert_eq!(split.usage(), on_split);
        assert_eq!(split.metrics().type_url, "io.containerd.cgroups.v1.Metrics");
        assert_eq!(Cgroup::Split([].into()).usage(), Usage::default());
    }
}
