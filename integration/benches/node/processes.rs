//! What the kernel knows about processes of the lab.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};

const KIB_PER_MIB: f64 = 1024.0;

/// The processes whose program has this name and whose arguments hold this word, in order of their ids; any arguments where the word
/// is empty.
pub(crate) fn of_program(program: &str, word: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may end between the two looks.
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split('\0');
        let name = words.next().map(Path::new).and_then(Path::file_name).unwrap_or_default();
        if name == program && (word.is_empty() || words.any(|one| one == word)) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The only one of these.
pub(crate) fn only(program: &str, word: &str) -> Result<u32> {
    match of_program(program, word)?.as_slice() {
        [pid] => Ok(*pid),
        several => bail!("processes {several:?} run {program} with {word}, not one"),
    }
}

/// Resident memory in MiB.
pub(crate) fn rss(pid: u32) -> Result<f64> {
    Ok(kib(&format!("/proc/{pid}/status"), "VmRSS:")? / KIB_PER_MIB)
}

/// The most resident memory that a process had since it started or since [`forget_peak`], in MiB.
pub(crate) fn peak(pid: u32) -> Result<f64> {
    Ok(kib(&format!("/proc/{pid}/status"), "VmHWM:")? / KIB_PER_MIB)
}

/// Makes the memory that a process has now its peak (proc_pid_clear_refs(5)).
pub(crate) fn forget_peak(pid: u32) -> Result<()> {
    let file = format!("/proc/{pid}/clear_refs");
    fs::write(&file, "5").with_context(|| format!("write {file}"))
}

/// Proportional memory in MiB: shared pages count in equal parts.
pub(crate) fn pss(pid: u32) -> Result<f64> {
    Ok(kib(&format!("/proc/{pid}/smaps_rollup"), "Pss:")? / KIB_PER_MIB)
}

/// Processor time of all threads that a process has or had.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid)?))?;
    Ok(clock_gettime(clock)?.into())
}

/// Processor time of the children that a process has waited for, theirs included: `cutime` and `cstime` of proc_pid_stat(5).
pub(crate) fn cpu_of_children(pid: u32) -> Result<Duration> {
    let file = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    // The name, in parentheses, may have spaces; the field after it is the third.
    let (_, fields) = text.rsplit_once(')').with_context(|| format!("no name in {file}"))?;
    let ticks = |number: usize| -> Result<f64> {
        let field = fields.split_whitespace().nth(number - 3);
        Ok(field.with_context(|| format!("no field {number} in {file}"))?.parse()?)
    };
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("the length of a clock tick is not known")?;
    Ok(Duration::from_secs_f64((ticks(16)? + ticks(17)?) / per_second as f64))
}

/// The `lowerdir` of the overlay that a process has as its root.
pub(crate) fn overlay_layers(pid: u32) -> Result<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo"))?;
    let root = table.lines().find(|line| line.split(' ').nth(4) == Some("/"));
    let options = root.and_then(|line| line.split(' ').next_back()).unwrap_or_default();
    let lower = options.split(',').find_map(|option| option.strip_prefix("lowerdir="));
    Ok(lower.with_context(|| format!("process {pid} has no overlay as its root"))?.to_owned())
}

fn kib(file: &str, name: &str) -> Result<f64> {
    let text = fs::read_to_string(file).with_context(|| format!("read {file}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let value = value.and_then(|rest| rest.split_whitespace().next());
    Ok(value.with_context(|| format!("no {name} in {file}"))?.parse()?)
}
