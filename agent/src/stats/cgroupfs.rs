//! Levels of the hierarchy, through a descriptor for each.

use std::{
    fs::File,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use berth_core::{
    config::CgroupVersion,
    stats::{Level, MemoryInfo, PROCESS_LISTS, level_v1, level_v2, root_v1, root_v2, soft_open_files},
};
use jiff::Timestamp;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, statat};

use super::proc;

/// Where it is mounted.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// Controllers of version 1 that are read.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "memory", "blkio", "pids"];

/// Flags of a level, and of a file of it.
const LEVEL: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The hierarchy.
#[derive(Debug)]
pub(super) struct Hierarchy {
    version: CgroupVersion,
    root: PathBuf,
}

/// A level that was read.
#[derive(Debug)]
pub(super) struct Read {
    /// When it was made.
    pub(super) created: Option<Timestamp>,
    /// What it uses.
    pub(super) level: Level,
}

impl Hierarchy {
    /// That of this machine.
    pub(super) fn of(version: CgroupVersion) -> Self {
        Self { version, root: ROOT.into() }
    }

    /// One in a directory.
    #[cfg(test)]
    pub(super) fn at(version: CgroupVersion, root: &Path) -> Self {
        Self { version, root: root.to_owned() }
    }

    /// What a level uses; `None` when it is not there, or has gone meanwhile.
    pub(super) fn read(&self, path: &str, machine: &MemoryInfo) -> Option<Read> {
        match self.version {
            CgroupVersion::V1 => self.read_v1(path, machine),
            CgroupVersion::V2 => self.read_v2(path, machine),
        }
    }

    /// The first process of a level.
    pub(super) fn first_process(&self, path: &str) -> Option<u32> {
        let (controller, lists): (_, &[&str]) = match self.version {
            CgroupVersion::V1 => ("cpu", &["cgroup.procs"]),
            CgroupVersion::V2 => ("", &PROCESS_LISTS),
        };
        let dir = self.open(controller, path)?;
        lists.iter().find_map(|list| file(&dir, list)?.lines().next()?.parse().ok())
    }

    /// The soft bound on open files of a level's first process.
    pub(super) fn open_files_max(&self, path: &str) -> Option<i64> {
        let process = self.first_process(path)?;
        soft_open_files(&proc::text(Path::new(&format!("/proc/{process}/limits")))?)
    }

    fn read_v2(&self, path: &str, machine: &MemoryInfo) -> Option<Read> {
        let dir = self.open("", path)?;
        let files = |name: &str| file(&dir, name);
        let level = if path == "/" { root_v2(files, machine) } else { level_v2(files) };
        let created = created(&dir, "cgroup.events");
        // A level has processor time for as long as it is there.
        level.cpu.is_some().then_some(Read { created, level })
    }

    fn read_v1(&self, path: &str, machine: &MemoryInfo) -> Option<Read> {
        let dirs = CONTROLLERS.map(|controller| (controller, self.open(controller, path)));
        let dir = |wanted: &str| dirs.iter().find(|(name, _)| *name == wanted)?.1.as_ref();
        let files = |controller: &str, name: &str| file(dir(controller)?, name);
        let level = if path == "/" { root_v1(files, machine) } else { level_v1(files) };
        let created =
            dirs.iter().filter_map(|(_, dir)| created(dir.as_ref()?, "cgroup.clone_children")).min();
        (level.cpu.is_some() || level.memory.is_some()).then_some(Read { created, level })
    }

    fn open(&self, controller: &str, path: &str) -> Option<OwnedFd> {
        let path = self.root.join(controller).join(path.trim_start_matches('/'));
        openat(CWD, &path, LEVEL, Mode::empty()).ok()
    }
}

fn file(dir: &OwnedFd, name: &str) -> Option<String> {
    proc::whole(File::from(openat(dir, name, FILE, Mode::empty()).ok()?))
}

/// When a level was made: the earlier time of its directory, which changes with the levels below it, and a file of it. Source: cAdvisor
/// `container/common/helpers.go` `getSpecInternal`.
fn created(dir: &OwnedFd, name: &str) -> Option<Timestamp> {
    let modified = |stat: Stat| Timestamp::from_second(stat.st_mtime).ok();
    let file = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok().and_then(modified);
    let dir = fstat(dir).ok().and_then(modified);
    [file, dir].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_level_of_version_2_is_read_and_one_that_has_gone_is_none() {
        let dir = TempDir::new().unwrap();
        let level = dir.path().join("kubepods/pod1");
        fs::create_dir_all(&level).unwrap();
        for (name, text) in [
            ("cpu.stat", "usage_usec 5\n"),
            ("memory.max", "max\n"),
            ("memory.current", "100\n"),
            ("memory.stat", "inactive_file 30\n"),
            ("cgroup.procs", "1\n2\n"),
            ("cgroup.events", "populated 1\n"),
        ] {
            fs::write(level.join(name), text).unwrap();
        }
        let hierarchy = Hierarchy::at(CgroupVersion::V2, dir.path());
        let read = hierarchy.read("/kubepods/pod1", &MemoryInfo::default()).unwrap();
        assert_eq!(read.level.cpu.unwrap().total_ns, 5000);
        assert_eq!(read.level.memory.unwrap().working_set, 70);
        assert_eq!(read.level.tasks.processes, 2);
        assert!(read.created.is_some());
        assert_eq!(hierarchy.first_process("/kubepods/pod1"), Some(1));
        // Its files go before the directory that is still open does.
        fs::remove_file(level.join("cpu.stat")).unwrap();
        assert!(hierarchy.read("/kubepods/pod1", &MemoryInfo::default()).is_none());
        assert!(hierarchy.read("/kubepods/pod2", &MemoryInfo::default()).is_none());
        assert_eq!(hierarchy.first_process("/kubepods/pod2"), None);
    }

    #[test]
    fn processes_that_crun_has_under_systemd_are_found() {
        let dir = TempDir::new().unwrap();
        let scope = dir.path().join("pod.slice/cri-containerd-id.scope");
        fs::create_dir_all(scope.join("container")).unwrap();
        fs::write(scope.join("cpu.stat"), "usage_usec 5\n").unwrap();
        fs::write(scope.join("cgroup.procs"), "").unwrap();
        fs::write(scope.join("container/cgroup.procs"), "7\n8\n9\n").unwrap();
        let hierarchy = Hierarchy::at(CgroupVersion::V2, dir.path());
        let path = "/pod.slice/cri-containerd-id.scope";
        assert_eq!(hierarchy.first_process(path), Some(7));
        assert_eq!(hierarchy.read(path, &MemoryInfo::default()).unwrap().level.tasks.processes, 3);
    }

    #[test]
    fn a_level_of_version_1_is_read_from_the_hierarchies_that_have_it() {
        let dir = TempDir::new().unwrap();
        for (controller, name, text) in
            [("memory", "memory.usage_in_bytes", "7\n"), ("cpuacct", "cpuacct.usage", "9\n")]
        {
            let level = dir.path().join(controller).join("pod1");
            fs::create_dir_all(&level).unwrap();
            fs::write(level.join(name), text).unwrap();
        }
        let hierarchy = Hierarchy::at(CgroupVersion::V1, dir.path());
        let level = hierarchy.read("/pod1", &MemoryInfo::default()).unwrap().level;
        assert_eq!((level.cpu.unwrap().total_ns, level.memory.unwrap().usage), (9, 7));
        assert!(hierarchy.read("/pod2", &MemoryInfo::default()).is_none());
    }

    #[test]
    fn this_machine_has_a_root() {
        let has_v2 = Path::new(ROOT).join("cgroup.controllers").exists();
        let version = if has_v2 { CgroupVersion::V2 } else { CgroupVersion::V1 };
        let read = Hierarchy::of(version)
            .read("/", &MemoryInfo { total: 1 << 40, ..MemoryInfo::default() })
            .unwrap();
        assert!(read.level.cpu.unwrap().total_ns > 0 && read.level.memory.unwrap().usage > 0);
        assert_eq!(read.level.limits.memory, 1 << 40);
    }
}
