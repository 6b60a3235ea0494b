//! Where a process's control groups are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The control groups of one container: one directory in the unified hierarchy, or one per controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cgroup {
    /// cgroup v2.
    Unified(PathBuf),
    /// cgroup v1, by controller.
    Split(BTreeMap<String, PathBuf>),
}

/// Controllers whose directories this shim reads or writes.
const CONTROLLERS: [&str; 6] = ["blkio", "cpu", "cpuacct", "freezer", "memory", "pids"];

impl Cgroup {
    /// The container's own groups: those of `pid` that the shim itself is not in, nor below.
    ///
    /// A container whose runtime made none shares the shim's, which must never be killed or taken for the container's.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let theirs = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        find(&mounts, &own, &theirs)
    }

    /// The directory in which the container's processes are listed.
    pub(crate) fn tree(&self) -> Option<&Path> {
        match self {
            Self::Unified(path) => Some(path),
            Self::Split(paths) => ["pids", "freezer", "memory", "cpu"]
                .iter()
                .find_map(|name| paths.get(*name))
                .map(PathBuf::as_path),
        }
    }

    /// The directory of the memory controller.
    pub(crate) fn memory(&self) -> Option<&Path> {
        match self {
            Self::Unified(path) => Some(path),
            Self::Split(paths) => paths.get("memory").map(PathBuf::as_path),
        }
    }

    /// The groups above, which are a pod's when these are a member's.
    pub(crate) fn parent(&self) -> Option<Self> {
        match self {
            Self::Unified(path) => Some(Self::Unified(path.parent()?.to_owned())),
            Self::Split(paths) => {
                let above =
                    |(name, path): (&String, &PathBuf)| Some((name.clone(), path.parent()?.to_owned()));
                paths.iter().map(above).collect::<Option<_>>().map(Self::Split)
            }
        }
    }
}

fn find(mounts: &str, own: &str, theirs: &str) -> Option<Cgroup> {
    let mut paths = BTreeMap::new();
    for name in CONTROLLERS {
        let path = group(theirs, name).filter(|path| is_apart(path, group(own, name)));
        let mount = mounts.lines().find_map(|line| hierarchy(line, Some(name)));
        if let (Some(path), Some(mount)) = (path, mount)
            && let Some(path) = mount.join(path)
        {
            paths.insert(name.to_owned(), path);
        }
    }
    if !paths.is_empty() {
        return Some(Cgroup::Split(paths));
    }
    let path = group(theirs, "").filter(|path| is_apart(path, group(own, "")))?;
    mounts.lines().find_map(|line| hierarchy(line, None))?.join(path).map(Cgroup::Unified)
}

/// The path in a line `id:controllers:path` of /proc/pid/cgroup; the unified hierarchy has no controllers.
fn group<'a>(table: &'a str, controller: &str) -> Option<&'a str> {
    table.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

/// Whether the shim, in `own`, is outside of `path`.
fn is_apart(path: &str, own: Option<&str>) -> bool {
    let inside = |own: &str| own == path || own.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    path != "/" && !path.contains("..") && !own.is_some_and(inside)
}

struct Hierarchy<'a> {
    root: &'a str,
    mount: &'a str,
}

impl Hierarchy<'_> {
    fn join(&self, path: &str) -> Option<PathBuf> {
        let below = path.strip_prefix(self.root.trim_end_matches('/'))?;
        Some(Path::new(self.mount).join(below.trim_start_matches('/')))
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
    fn a_group_that_the_shim_is_in_is_never_the_containers() {
        for (own, theirs) in [("/a/b", "/a/b"), ("/a/b", "/a"), ("/", "/"), ("/x", "/y/../x")] {
            assert_eq!(find(UNIFIED, &format!("0::{own}"), &format!("0::{theirs}")), None, "{own} {theirs}");
        }
        assert!(find(UNIFIED, "0::/a/b", "0::/a/bc").is_some());
    }
}
