//! Levels of the tree: made, written, emptied and removed.
//!
//! With the systemd driver the levels are slices, which systemd has made before. Here they then get the controllers and
//! values that systemd does not know, in the hierarchies that it leaves alone too, and what it leaves behind is removed.
//!
//! Version 1 is made through cgroups-rs, which knows its hierarchies; version 2 is directories and a handful of files.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use berth_core::{
    cgroup::{CgroupFile, Controller},
    config::CgroupVersion,
    pod::port::resize::MemoryUse,
};
use cgroups_rs::fs::{Cgroup, Controllers, Hierarchy, hierarchies::V1};
use nix::{
    errno::Errno,
    sys::statfs::{CGROUP2_SUPER_MAGIC, statfs},
};

use super::{level, unified};
use crate::absent::Absence as _;

/// How long killed processes may take to leave a cgroup: the kernel frees the memory of a large one first.
const EMPTY_WITHIN: Duration = Duration::from_secs(20);

/// Between two looks at a cgroup that is not empty yet. Processes leave within microseconds of their end.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Where version 2 is mounted, when it is alone.
const ROOT: &str = "/sys/fs/cgroup";

/// Where version 2 is mounted beside version 1, without controllers. OCI runtimes make their levels there too.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// The tree.
#[derive(Debug)]
pub struct Tree {
    version: CgroupVersion,
    v1: V1,
    /// Where version 2 is.
    root: PathBuf,
}

/// Why a level could not be made, written or removed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Not made, in version 1.
    #[error("create cgroup {0}")]
    Create(String, #[source] cgroups_rs::fs::error::Error),
    /// Not made, in version 2.
    #[error("create cgroup {}", .0.display())]
    Level(PathBuf, #[source] io::Error),
    /// Processes are where only levels may be.
    #[error(
        "hand {controllers} down from cgroup {level}: version 2 allows no processes beside levels with controllers, and {processes} are in it; \
         move them into a level of their own below it, or name an empty one by `cgroupRoot`",
        level = .level.display()
    )]
    Occupied {
        /// The level.
        level: PathBuf,
        /// What levels below it were to get.
        controllers: String,
        /// The processes in it.
        processes: String,
    },
    /// A controller that pods need stays above.
    #[error("hand {controller} down from cgroup {level}", level = .level.display())]
    HandDown {
        /// The level.
        level: PathBuf,
        /// The controller.
        controller: String,
        /// Why not.
        source: io::Error,
    },
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
    /// Not read.
    #[error("read {file}")]
    Read {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The machine lacks a controller that a value needs.
    #[error("bound the {0} of pods: their cgroup has no {0} controller")]
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
        Self { version, v1: V1::new(), root: PathBuf::from(ROOT) }
    }

    /// A tree of version 2 in a directory.
    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Self {
        Self { version: CgroupVersion::V2, v1: V1::new(), root: root.to_owned() }
    }

    /// Makes a level and those above it, in every hierarchy, with all controllers that there are.
    ///
    /// # Errors
    /// When a directory cannot be made, or a controller that pods need not be handed down to it.
    pub fn ensure(&self, path: &str) -> Result<(), TreeError> {
        match self.version {
            CgroupVersion::V1 => Cgroup::new(self.v1(), relative(path))
                .map(drop)
                .map_err(|error| TreeError::Create(path.to_owned(), error)),
            CgroupVersion::V2 => unified::ensure(&self.root, relative(path)),
        }
    }

    /// Writes values. Huge pages of a size that the machine does not have are left out.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, path: &str, files: &[CgroupFile]) -> Result<(), TreeError> {
        for CgroupFile { controller, name, value, unit: _ } in files {
            let dir = self.dir(path, *controller).ok_or(TreeError::NoController(controller.as_str()))?;
            let file = dir.join(name);
            match level::write(&file, value) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && dir.is_dir() => match controller {
                    // Neither pages of that size nor a choice of CPUs.
                    Controller::Hugetlb | Controller::Cpuset => {}
                    Controller::Cpu | Controller::Memory | Controller::Pids => {
                        return Err(TreeError::NoController(controller.as_str()));
                    }
                },
                result => {
                    result.map_err(|source| TreeError::Write { file, value: value.clone(), source })?;
                }
            }
        }
        Ok(())
    }

    /// Whether a level is there, in every hierarchy that it was made in, and has these values.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn has(&self, path: &str, files: &[CgroupFile]) -> Result<bool, TreeError> {
        if !self.made_dirs(path).iter().all(|dir| dir.is_dir()) {
            return Ok(false);
        }
        for wanted in files {
            let Some(dir) = self.dir(path, wanted.controller) else { continue };
            let file = dir.join(&wanted.name);
            match fs::read_to_string(&file) {
                Ok(text) if wanted.is_read_as(&text) => {}
                Ok(_) => return Ok(false),
                // What writing left out, since the machine has none.
                Err(error) if error.kind() == io::ErrorKind::NotFound && dir.is_dir() => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                Err(source) => return Err(TreeError::Read { file, source }),
            }
        }
        Ok(true)
    }

    /// The memory of a level, with what is below it; `None` when it is not there.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn memory_use(&self, path: &str) -> Result<Option<MemoryUse>, TreeError> {
        let (used, limit) = match self.version {
            CgroupVersion::V1 => ("memory.usage_in_bytes", "memory.limit_in_bytes"),
            CgroupVersion::V2 => ("memory.current", "memory.max"),
        };
        let dir = self.dir(path, Controller::Memory).ok_or(TreeError::NoController("memory"))?;
        let Some(used) = number_in(dir.join(used))? else { return Ok(None) };
        Ok(number_in(dir.join(limit))?.map(|limit| MemoryUse { used, limit }))
    }

    /// Whether a level is there, in every hierarchy.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.dirs(path).iter().all(|dir| dir.is_dir())
    }

    /// Kills what is in a level or below it, without waiting for its end.
    pub fn kill(&self, path: &str) {
        self.dirs(path).iter().for_each(|dir| level::kill(dir));
    }

    /// Kills what is in a level or below it and removes it. Succeeds when it is not there.
    ///
    /// # Errors
    /// When processes do not die, or a directory cannot be removed.
    pub fn remove(&self, path: &str) -> Result<(), TreeError> {
        for dir in self.dirs(path) {
            let deadline = Instant::now() + EMPTY_WITHIN;
            while let Err(error) = level::remove(&dir) {
                if error.raw_os_error() != Some(Errno::EBUSY as i32) {
                    return Err(TreeError::Remove(dir, error));
                }
                if Instant::now() >= deadline {
                    return Err(TreeError::NotEmpty(dir));
                }
                level::kill(&dir);
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
            dirs.iter().flat_map(|dir| level::below(dir)).filter_map(|dir| name_of(&dir)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn v1(&self) -> Box<dyn Hierarchy> {
        Box::new(self.v1.clone())
    }

    /// Where the level may be.
    fn dirs(&self, path: &str) -> Vec<PathBuf> {
        let mut dirs = self.made_dirs(path);
        match self.version {
            CgroupVersion::V1 if is_version_2(UNIFIED) => dirs.push(Path::new(UNIFIED).join(relative(path))),
            CgroupVersion::V1 | CgroupVersion::V2 => {}
        }
        dirs
    }

    /// Where [`ensure`](Self::ensure) makes the level.
    fn made_dirs(&self, path: &str) -> Vec<PathBuf> {
        match self.version {
            CgroupVersion::V1 => {
                let cgroup = Cgroup::load(self.v1(), relative(path));
                cgroup.subsystems().iter().map(|it| it.to_controller().path().to_owned()).collect()
            }
            CgroupVersion::V2 => vec![self.root.join(relative(path))],
        }
    }

    fn dir(&self, path: &str, controller: Controller) -> Option<PathBuf> {
        let name = match controller {
            Controller::Cpu => Controllers::Cpu,
            Controller::Cpuset => Controllers::CpuSet,
            Controller::Memory => Controllers::Mem,
            Controller::Pids => Controllers::Pids,
            Controller::Hugetlb => Controllers::HugeTlb,
        };
        match self.version {
            CgroupVersion::V1 => {
                let (mount, _root) = self.v1.get_mount_point(name)?;
                Some(mount.join(relative(path)))
            }
            CgroupVersion::V2 => Some(self.root.join(relative(path))),
        }
    }
}

/// The number in a file of a level, the largest where it is without limit; `None` when the level is not there.
fn number_in(file: PathBuf) -> Result<Option<u64>, TreeError> {
    let not_a_number = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let number = |text: String| match text.trim() {
        "max" => Ok(u64::MAX),
        text => text.parse().map_err(not_a_number),
    };
    match fs::read_to_string(&file).and_then(number) {
        Ok(number) => Ok(Some(number)),
        // It was removed before this, or since the file was opened.
        Err(error) if error.is_absence() || error.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(None),
        Err(source) => Err(TreeError::Read { file, source }),
    }
}

fn is_version_2(mount: &str) -> bool {
    statfs(mount).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

fn relative(path: &str) -> &str {
    path.trim_start_matches('/')
}

fn name_of(dir: &Path) -> Option<String> {
    Some(dir.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests;
