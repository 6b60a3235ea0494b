//! Levels of the tree: made, written, emptied and removed.
//!
//! With the systemd driver the levels are slices, which systemd has made before. Here they then get the controllers and
//! values that systemd does not know, in the hierarchies that it leaves alone too, and what it leaves behind is removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use berth_core::{
    cgroup::{CgroupFile, Controller},
    config::CgroupVersion,
};
use cgroups_rs::fs::{
    Cgroup, Controllers, Hierarchy,
    hierarchies::{V1, V2},
};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        statfs::{CGROUP2_SUPER_MAGIC, statfs},
    },
    unistd::Pid,
};

/// How long killed processes may take to leave a cgroup: the kernel frees the memory of a large one first.
const EMPTY_WITHIN: Duration = Duration::from_secs(20);

/// Between two looks at a cgroup that is not empty yet. Processes leave within microseconds of their end.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Where version 2 is mounted beside version 1, without controllers. OCI runtimes make their levels there too.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// Levels below a pod that are walked: containers, and what runs inside them under cgroup namespaces.
const DEPTH_MAX: usize = 32;

/// The tree.
#[derive(Debug)]
pub struct Tree {
    version: CgroupVersion,
    v1: V1,
}

/// Why a level could not be made, written or removed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Not made.
    #[error("create cgroup {0}")]
    Create(String, #[source] cgroups_rs::fs::error::Error),
    /// Not written.
    #[error("write {value:?} to {file}")]
    Write {
        /// The file.
        file: PathBuf,
        /// The value.
        value: String,
        /// Why not.
        source: io::Error,
    },
    /// The machine lacks a controller that a value needs.
    #[error("limit {0} of a pod: the machine has no {0} cgroup controller")]
    NoController(&'static str),
    /// Not removed.
    #[error("remove cgroup {0}")]
    Remove(PathBuf, #[source] io::Error),
    /// Processes that do not die.
    #[error(
        "empty cgroup {0}: killed processes are still in it; they hang in the kernel, see their stacks in /proc"
    )]
    NotEmpty(PathBuf),
}

impl Tree {
    /// The tree of this machine.
    #[must_use]
    pub fn new(version: CgroupVersion) -> Self {
        Self { version, v1: V1::new() }
    }

    /// Makes a level and those above it, in every hierarchy.
    ///
    /// # Errors
    /// When a directory cannot be made.
    pub fn ensure(&self, path: &str) -> Result<(), TreeError> {
        Cgroup::new(self.hierarchy(), relative(path))
            .map(drop)
            .map_err(|error| TreeError::Create(path.to_owned(), error))
    }

    /// Writes values. Huge pages of a size that the machine does not have are left out.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, path: &str, files: &[CgroupFile]) -> Result<(), TreeError> {
        for CgroupFile { controller, name, value } in files {
            let dir = self.dir(path, *controller).ok_or(TreeError::NoController(controller.as_str()))?;
            let file = dir.join(name);
            match fs::write(&file, value) {
                Err(error)
                    if *controller == Controller::Hugetlb && error.kind() == io::ErrorKind::NotFound => {}
                result => {
                    result.map_err(|source| TreeError::Write { file, value: value.clone(), source })?;
                }
            }
        }
        Ok(())
    }

    /// Whether a level is there, in every hierarchy.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.dirs(path).iter().all(|dir| dir.is_dir())
    }

    /// Kills what is in a level or below it, without waiting for its end.
    pub fn kill(&self, path: &str) {
        self.dirs(path).iter().for_each(|dir| kill_below(dir, DEPTH_MAX));
    }

    /// Kills what is in a level or below it and removes it. Succeeds when it is not there.
    ///
    /// # Errors
    /// When processes do not die, or a directory cannot be removed.
    pub fn remove(&self, path: &str) -> Result<(), TreeError> {
        for dir in self.dirs(path) {
            let deadline = Instant::now() + EMPTY_WITHIN;
            while let Err(error) = remove_below(&dir, DEPTH_MAX) {
                if error.raw_os_error() != Some(Errno::EBUSY as i32) {
                    return Err(TreeError::Remove(dir, error));
                }
                if Instant::now() >= deadline {
                    return Err(TreeError::NotEmpty(dir));
                }
                kill_below(&dir, DEPTH_MAX);
                thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Names of the levels directly below one.
    #[must_use]
    pub fn children(&self, path: &str) -> Vec<String> {
        let dirs = self.dirs(path);
        let mut names: Vec<String> =
            dirs.iter().flat_map(|dir| below(dir)).filter_map(|dir| name_of(&dir)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn hierarchy(&self) -> Box<dyn Hierarchy> {
        match self.version {
            CgroupVersion::V1 => Box::new(self.v1.clone()),
            CgroupVersion::V2 => Box::new(V2::new()),
        }
    }

    fn dirs(&self, path: &str) -> Vec<PathBuf> {
        let hierarchy = self.hierarchy();
        match self.version {
            CgroupVersion::V1 => {
                let cgroup = Cgroup::load(hierarchy, relative(path));
                let controllers = cgroup.subsystems().iter().map(|it| it.to_controller().path().to_owned());
                let unified = is_version_2(UNIFIED).then(|| Path::new(UNIFIED).join(relative(path)));
                controllers.chain(unified).collect()
            }
            CgroupVersion::V2 => vec![hierarchy.root().join(relative(path))],
        }
    }

    fn dir(&self, path: &str, controller: Controller) -> Option<PathBuf> {
        let name = match controller {
            Controller::Cpu => Controllers::Cpu,
            Controller::Memory => Controllers::Mem,
            Controller::Pids => Controllers::Pids,
            Controller::Hugetlb => Controllers::HugeTlb,
        };
        match self.version {
            CgroupVersion::V1 => {
                let (mount, _root) = self.v1.get_mount_point(name)?;
                Some(mount.join(relative(path)))
            }
            CgroupVersion::V2 => Some(V2::new().root().join(relative(path))),
        }
    }
}

fn is_version_2(mount: &str) -> bool {
    statfs(mount).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

fn relative(path: &str) -> &str {
    path.trim_start_matches('/')
}

/// Removes a level and those below it. `EBUSY` when a process is in one of them.
fn remove_below(dir: &Path, depth: usize) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) if depth > 0 => {}
        result => return result,
    }
    for child in below(dir) {
        remove_below(&child, depth - 1)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Kills every process in a level and below it. One call where the kernel can (5.14, version 2), else one by one; who
/// forks meanwhile is met by the next round.
fn kill_below(dir: &Path, depth: usize) {
    if fs::write(dir.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    let processes = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0) {
        // It may have ended by itself.
        let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    if depth > 0 {
        for child in below(dir) {
            kill_below(&child, depth - 1);
        }
    }
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn name_of(dir: &Path) -> Option<String> {
    Some(dir.file_name()?.to_str()?.to_owned())
}
