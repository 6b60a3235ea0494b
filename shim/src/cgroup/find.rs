//! Where a process's control groups are.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

/// The control groups of one container: one directory in the unified hierarchy, or one per controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cgroup {
    /// cgroup v2.
    Unified(PathBuf),
    /// cgroup v1, by controller.
    Split(BTreeMap<String, PathBuf>),
}

/// Controllers whose directories this shim reads or writes.
const CONTROLLERS: [&str; 8] = ["blkio", "cpu", "cpuacct", "freezer", "hugetlb", "memory", "pids", "rdma"];
/// Where the hierarchy is mounted that decides which version a machine runs.
const TOP: &str = "/sys/fs/cgroup";

impl Cgroup {
    /// The container's own groups: those of `pid` that the shim itself is not in, nor below.
    ///
    /// A container whose runtime made none shares the shim's, which must never be killed or taken for the container's.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let mounts = mounts().ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let theirs = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        find(&mounts, &own, &theirs)
    }

    /// The groups that a spec names, where no process tells which they are; `None` for systemd's `slice:prefix:name`.
    pub(crate) fn named(path: &str) -> Option<Self> {
        if !path.starts_with('/') || path.contains('\n') {
            return None;
        }
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        find(&mounts().ok()?, &own, &table_of(path))
    }

    /// The directories that are known of it.
    pub(super) fn directories(&self) -> Vec<&Path> {
        match self {
            Self::Unified(path) => vec![path],
            Self::Split(paths) => paths.values().map(PathBuf::as_path).collect(),
        }
    }

    /// The directory in which the container's processes are listed.
    pub(crate) fn tree(&self) -> Option<&Path> {
        match self {
            Self::Unified(path) => Some(path),
            Self::Split(paths) => paths.get(self.tree_controller()?).map(PathBuf::as_path),
        }
    }

    /// The controller whose directory that is; the unified hierarchy has none.
    pub(crate) fn tree_controller(&self) -> Option<&'static str> {
        match self {
            Self::Unified(_) => None,
            Self::Split(paths) => {
                ["pids", "freezer", "memory", "cpu"].into_iter().find(|name| paths.contains_key(*name))
            }
        }
    }

    /// The directory of the memory controller.
    pub(crate) fn memory(&self) -> Option<&Path> {
        match self {
            Self::Unified(path) => Some(path),
            Self::Split(paths) => paths.get("memory").map(PathBuf::as_path),
        }
    }

    /// As a record keeps it.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Unified(path) => json!({ "unified": path }),
            Self::Split(paths) => json!({ "split": paths }),
        }
    }

    /// From a record; `None` if it holds none.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        if let Some(path) = value.get("unified") {
            return Some(Self::Unified(path.as_str()?.into()));
        }
        let paths = value.get("split")?.as_object()?.iter();
        paths
            .map(|(name, path)| Some((name.clone(), path.as_str()?.into())))
            .collect::<Option<_>>()
            .map(Self::Split)
    }

    /// The groups above, which are a pod's when these are a member's.
    pub(crate) fn parent(&self) -> Option<Self> {
        match self {
            Self::Unified(path) => Some(Self::Unified(above(path)?.to_owned())),
            Self::Split(paths) => {
                let above = |(name, path): (&String, &PathBuf)| Some((name.clone(), above(path)?.to_owned()));
                paths.iter().map(above).collect::<Option<_>>().map(Self::Split)
            }
        }
    }
}

/// The group above a container's. A scope is the container's too: below the one that systemd makes, crun keeps a group of
/// its own (`run.oci.systemd.subgroup` in crun(1)), and both end together.
fn above(group: &Path) -> Option<&Path> {
    let parent = group.parent()?;
    if parent.extension().is_some_and(|kind| kind == "scope") { parent.parent() } else { Some(parent) }
}

/// The lines of mountinfo that are hierarchies. The rest, of which a busy node has thousands, is not kept.
pub(super) fn mounts() -> io::Result<String> {
    let mut table = BufReader::new(File::open("/proc/self/mountinfo")?);
    let (mut kept, mut line) = (String::new(), String::new());
    while table.read_line(&mut line)? > 0 {
        if line.contains(" - cgroup") {
            kept.push_str(&line);
        }
        line.clear();
    }
    Ok(kept)
}

/// What /proc/pid/cgroup would say of a process in a group of this name in every hierarchy.
fn table_of(path: &str) -> String {
    format!("1:{}:{path}\n0::{path}", CONTROLLERS.join(","))
}

fn find(mounts: &str, own: &str, theirs: &str) -> Option<Cgroup> {
    let apart = |controller| group(theirs, controller).filter(|path| is_apart(path, group(own, controller)));
    let unified = || path_of(mounts, None, apart("")?).map(Cgroup::Unified);
    // Hierarchies of version 1 beside this one have none of the controllers that matter (systemd's "hybrid" has it the
    // other way round, and mounts the unified one elsewhere).
    if mounts.lines().filter_map(|line| hierarchy(line, None)).any(|found| found.mount == TOP) {
        return unified();
    }
    let split = |name: &'static str| Some((name.to_owned(), path_of(mounts, Some(name), apart(name)?)?));
    let paths: BTreeMap<String, PathBuf> = CONTROLLERS.into_iter().filter_map(split).collect();
    if paths.is_empty() { unified() } else { Some(Cgroup::Split(paths)) }
}

/// Where a hierarchy shows a group. It may be mounted more than once, with parts of it only.
fn path_of(mounts: &str, controller: Option<&str>, group: &str) -> Option<PathBuf> {
    mounts.lines().filter_map(|line| hierarchy(line, controller)).find_map(|found| found.join(group))
}

/// Where every hierarchy of version 1 shows the group that one of them shows at `known`: runtimes make the same in all.
pub(super) fn in_all_hierarchies(mounts: &str, known: &Path) -> Vec<PathBuf> {
    let points: Vec<&Path> = mounts
        .lines()
        .filter(|line| line.contains(" - cgroup "))
        .filter_map(|line| line.split(' ').nth(4).map(Path::new))
        .collect();
    let below = points.iter().find_map(|point| known.strip_prefix(point).ok());
    below.map(|below| points.iter().map(|point| point.join(below)).collect()).unwrap_or_default()
}

/// The path in a line `id:controllers:path` of /proc/pid/cgroup; the unified hierarchy has no controllers.
fn group<'a>(table: &'a str, controller: &str) -> Option<&'a str> {
    table.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

/// Whether the shim, in `own`, is outside of `path`. A path with `..` is outside of the shim's cgroup namespace, and
/// nothing that it sees.
fn is_apart(path: &str, own: Option<&str>) -> bool {
    let inside = |own: &str| Path::new(own).starts_with(path);
    let hidden = Path::new(path).components().any(|part| part == Component::ParentDir);
    path != "/" && !hidden && !own.is_some_and(inside)
}

struct Hierarchy<'a> {
    root: &'a str,
    mount: &'a str,
}

impl Hierarchy<'_> {
    fn join(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(self.root).ok()?;
        Some(Path::new(self.mount).join(below))
    }
}

/// A line of mountinfo (proc(5)) that is the hierarchy of a controller, or the unified one.
fn hierarchy<'a>(line: &'a str, controller: Option<&str>) -> Option<Hierarchy<'a>> {
    let (head, tail) = line.split_once(" - ")?;
    let mut tail = tail.split(' ');
    let (kind, _, options) = (tail.next()?, tail.next()?, tail.next()?);
    let matches = match controller {
        Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
        None => kind == "cgroup2",
    };
    let mut head = head.split(' ').skip(3);
    matches.then_some(Hierarchy { root: head.next()?, mount: head.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "30 1 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 1 0:28 / /sys/fs/cgroup/unified rw - cgroup2 none rw";
    const UNIFIED: &str = "30 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn split_hierarchies_win_over_a_unified_one_without_controllers() {
        let theirs = "3:memory:/pod/c1\n2:cpu,cpuacct:/pod/c1\n0::/elsewhere";
        let Some(Cgroup::Split(paths)) = find(HYBRID, "3:memory:/\n2:cpu,cpuacct:/\n0::/", theirs) else {
            panic!("expected version 1")
        };
        assert_eq!(paths.get("memory"), Some(&PathBuf::from("/sys/fs/cgroup/memory/pod/c1")));
        assert_eq!(paths.get("cpuacct"), Some(&PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/pod/c1")));
        assert_eq!(paths.get("pids"), None);
    }

    #[test]
    fn the_unified_hierarchy_has_one_directory() {
        let found = find(UNIFIED, "0::/system.slice/containerd.service", "0::/kubepods/pod1/c1");
        assert_eq!(found, Some(Cgroup::Unified("/sys/fs/cgroup/kubepods/pod1/c1".into())));
        let moved = UNIFIED.replace("0:26 / ", "0:26 /machine ");
        let found = find(&moved, "0::/", "0::/machine/c1");
        assert_eq!(found, Some(Cgroup::Unified("/sys/fs/cgroup/c1".into())));
    }

    #[test]
    fn a_name_leads_to_the_same_groups_as_a_process_in_them() {
        let unified = find(UNIFIED, "0::/", &table_of("/pod/c1"));
        assert_eq!(unified, Some(Cgroup::Unified("/sys/fs/cgroup/pod/c1".into())));
        let Some(Cgroup::Split(paths)) =
            find(HYBRID, "3:memory:/\n2:cpu,cpuacct:/\n0::/", &table_of("/pod/c1"))
        else {
            panic!("expected version 1")
        };
        let controllers: Vec<&str> = paths.keys().map(String::as_str).collect();
        assert_eq!(controllers, ["cpu", "cpuacct", "memory"]);
        assert_eq!(find(UNIFIED, "0::/a/b", &table_of("/a")), None, "the shim is in it");
        for other in ["pods.slice:cri:c1", "", "a/b", "/a\n0::/b"] {
            assert_eq!(Cgroup::named(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_group_that_the_shim_is_in_is_never_the_containers() {
        for (own, theirs) in [("/a/b", "/a/b"), ("/a/b", "/a"), ("/", "/"), ("/x", "/y/../x")] {
            assert_eq!(find(UNIFIED, &format!("0::{own}"), &format!("0::{theirs}")), None, "{own} {theirs}");
        }
        assert!(find(UNIFIED, "0::/a/b", "0::/a/bc").is_some());
        assert!(find(UNIFIED, "0::/", "0::/pod/a..b").is_some());
    }

    #[test]
    fn the_hierarchy_at_the_top_decides_the_version() {
        let both = format!("{UNIFIED}\n40 30 0:40 / /sys/fs/freezer rw - cgroup none rw,freezer");
        let found = find(&both, "2:freezer:/\n0::/", "2:freezer:/pod\n0::/pod/c1");
        assert_eq!(found, Some(Cgroup::Unified("/sys/fs/cgroup/pod/c1".into())));
    }

    #[test]
    fn above_a_member_is_the_pod_whatever_lies_between() {
        for (group, pod) in [
            ("/g/pods/pod1/c1", "/g/pods/pod1"),
            ("/g/pods-pod1.slice/cri-c1.scope", "/g/pods-pod1.slice"),
            ("/g/pods-pod1.slice/cri-c1.scope/container", "/g/pods-pod1.slice"),
        ] {
            let parent = Cgroup::Unified(group.into()).parent();
            assert_eq!(parent, Some(Cgroup::Unified(pod.into())), "{group}");
            let split = |path: &str| Cgroup::Split(BTreeMap::from([("memory".to_owned(), path.into())]));
            assert_eq!(split(group).parent(), Some(split(pod)), "{group}");
        }
    }

    #[test]
    fn a_mount_of_another_part_of_a_hierarchy_is_passed_over() {
        let parts = "30 1 0:26 /machine /mnt/part rw - cgroup cgroup rw,memory
31 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let Some(Cgroup::Split(paths)) = find(parts, "3:memory:/", "3:memory:/machine2/c1") else {
            panic!("expected version 1")
        };
        assert_eq!(paths.get("memory"), Some(&PathBuf::from("/sys/fs/cgroup/memory/machine2/c1")));
    }

    #[test]
    fn a_group_is_at_the_same_place_in_every_hierarchy() {
        let known = Path::new("/sys/fs/cgroup/memory/pod/c1");
        let places = in_all_hierarchies(HYBRID, known);
        let wanted = ["/sys/fs/cgroup/cpu,cpuacct/pod/c1", "/sys/fs/cgroup/memory/pod/c1"];
        assert_eq!(places, wanted.map(PathBuf::from));
        assert_eq!(in_all_hierarchies(HYBRID, Path::new("/elsewhere")), Vec::<PathBuf>::new());
    }
}
