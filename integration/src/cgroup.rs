//! Where the control groups of this machine are, on version 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::files;

const ROOT: &str = "/sys/fs/cgroup";

/// Whether there is one hierarchy for all controllers: version 2, and no version 1 beside it.
#[must_use]
pub fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// The top of the hierarchy that has a controller.
#[must_use]
pub fn of_controller(name: &str) -> PathBuf {
    if is_unified() { ROOT.into() } else { Path::new(ROOT).join(name) }
}

/// The top of every hierarchy.
///
/// # Errors
/// They cannot be listed.
pub fn hierarchies() -> Result<Vec<PathBuf>> {
    if is_unified() {
        return Ok(vec![ROOT.into()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(ROOT).with_context(|| format!("read {ROOT}"))? {
        let failed = || format!("read {ROOT}");
        let entry = entry.with_context(failed)?;
        // Links to them are none.
        if entry.file_type().with_context(failed)?.is_dir() && entry.path().join("cgroup.procs").exists() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The controller that a file belongs to, by its name.
fn controller_of(file: &str) -> &str {
    match file.split_once('.') {
        Some((controller, _)) => controller,
        None => file,
    }
}

/// A cgroup, in whatever hierarchies there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    path: PathBuf,
}

/// What the files of a cgroup bound. Nothing is what the kernel begins with: no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// `cpu.shares` of version 1, `cpu.weight` of version 2.
    pub cpu: u64,
    /// CPU time in µs per period of 100 ms.
    pub quota_us: Option<u64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Number of tasks.
    pub tasks: Option<u64>,
}

impl Group {
    /// The group of this path below the top of each hierarchy.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        Self { path: path.strip_prefix("/").unwrap_or(path).to_owned() }
    }

    /// The group of this name, or relative path, below.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        Self { path: self.path.join(name) }
    }

    /// Its directory in the hierarchy of a controller.
    #[must_use]
    pub fn dir(&self, controller: &str) -> PathBuf {
        of_controller(controller).join(&self.path)
    }

    /// Its directories that exist.
    ///
    /// # Errors
    /// The hierarchies cannot be listed.
    pub fn dirs(&self) -> Result<Vec<PathBuf>> {
        let dirs = hierarchies()?.into_iter().map(|top| top.join(&self.path));
        Ok(dirs.filter(|dir| dir.exists()).collect())
    }

    /// Makes it and those above it, in every hierarchy.
    ///
    /// # Errors
    /// A directory cannot be made.
    pub fn make(&self) -> Result<()> {
        for top in hierarchies()? {
            let dir = top.join(&self.path);
            fs::create_dir_all(&dir).with_context(|| format!("make cgroup {}", dir.display()))?;
        }
        Ok(())
    }

    /// Moves a process into it, where its memory and its tasks are counted.
    ///
    /// # Errors
    /// The group is not there, or the process.
    pub fn take_in(&self, pid: u32) -> Result<()> {
        for dir in ["memory", "pids"].map(|controller| self.dir(controller)) {
            fs::write(dir.join("cgroup.procs"), pid.to_string())
                .with_context(|| format!("move process {pid} into {}", dir.display()))?;
        }
        Ok(())
    }

    /// The processes in it and in those below, where memory is counted. What goes below it meanwhile has none.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn members(&self) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        let top = self.dir("memory");
        let mut dirs = vec![top.clone()];
        while let Some(dir) = dirs.pop() {
            let path = dir.join("cgroup.procs");
            let Some(text) = files::read_if_there(&path)? else {
                ensure!(dir != top, "there is no {}", path.display());
                continue;
            };
            for line in text.lines() {
                found.push(line.parse::<u32>().with_context(|| format!("{line:?} in {}", path.display()))?);
            }
            dirs.extend(files::directories_if_there(&dir)?);
        }
        Ok(found)
    }

    /// How many groups are directly below it, where memory is counted.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn children(&self) -> Result<usize> {
        Ok(files::directories_if_there(self.dir("memory"))?.len())
    }

    /// What a file holds, without the line end.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, file: &str) -> Result<String> {
        let path = self.dir(controller_of(file)).join(file);
        Ok(fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?.trim().to_owned())
    }

    /// The number behind a word at the beginning of a line; 0 when the kernel does not know the word.
    ///
    /// # Errors
    /// The file cannot be read, or there is no number.
    pub fn count(&self, file: &str, word: &str) -> Result<u64> {
        let text = self.read(file)?;
        let found = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        Ok(found
            .map(str::parse)
            .transpose()
            .with_context(|| format!("{word} in {file}: {text}"))?
            .unwrap_or(0))
    }

    /// What its files bound.
    ///
    /// # Errors
    /// One is missing, or has another form than known.
    pub fn bounds(&self) -> Result<Bounds> {
        let (cpu, time, memory) = if is_unified() {
            ("cpu.weight", self.read("cpu.max")?, "memory.max")
        } else {
            let time = [self.read("cpu.cfs_quota_us")?, self.read("cpu.cfs_period_us")?];
            ("cpu.shares", time.join(" "), "memory.limit_in_bytes")
        };
        let (quota, period) = time.split_once(' ').unwrap_or_default();
        ensure!(period == "100000", "the CPU time of {} is {time:?}", self.path.display());
        Ok(Bounds {
            cpu: self.read(cpu)?.parse()?,
            quota_us: amount(quota)?,
            memory_bytes: self.amount(memory)?,
            tasks: self.amount("pids.max")?,
        })
    }

    /// The bound that a file holds.
    ///
    /// # Errors
    /// It cannot be read, or holds something else.
    pub fn amount(&self, file: &str) -> Result<Option<u64>> {
        amount(&self.read(file)?)
    }

    /// Times that its own bound of memory stood in the way.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn memory_refusals(&self) -> Result<u64> {
        if is_unified() {
            return self.count("memory.events.local", "max");
        }
        Ok(self.read("memory.failcnt")?.parse()?)
    }

    /// Processes killed for memory, on version 2 those of groups below among them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn oom_kills(&self) -> Result<u64> {
        self.count(if is_unified() { "memory.events" } else { "memory.oom_control" }, "oom_kill")
    }

    /// CPU time that it and those below have used, in µs.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn cpu_us(&self) -> Result<u64> {
        if is_unified() {
            return self.count("cpu.stat", "usage_usec");
        }
        Ok(self.read("cpuacct.usage")?.parse::<u64>()? / 1000)
    }
}

/// A bound as the kernel writes it; version 1 writes none as -1, or as the most pages that a number holds.
fn amount(text: &str) -> Result<Option<u64>> {
    if matches!(text, "max" | "-1") {
        return Ok(None);
    }
    let amount: u64 = text.parse().with_context(|| format!("{text:?} is no amount"))?;
    Ok(Some(amount).filter(|amount| *amount < 1 << 62))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bound_has_three_forms() {
        for (text, expected) in [
            ("max", None),
            ("-1", None),
            ("9223372036854771712", None),
            ("0", Some(0)),
            ("1048576", Some(1 << 20)),
        ] {
            assert_eq!(amount(text).unwrap(), expected, "{text}");
        }
        assert_eq!(amount("much").unwrap_err().to_string(), "\"much\" is no amount");
    }
}
