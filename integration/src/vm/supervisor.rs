//! From the caller to a world in namespaces of its own.

use std::env;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::{ExitStatusExt as _, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;

use super::job::LOGS;
use super::{Disk, Job, PART, Part, THIS, feature, guest, world};
use crate::lab;

/// The part that the supervisor starts.
const NEXT: &str = "BERTH_VM_NEXT";
/// Whom a process must not outlive.
const PARENT: &str = "BERTH_VM_PARENT";
/// Among the logs: seconds of each of the guest's labs.
const TIMES: &str = "times";

/// Runs a job in a machine and gives the exit code of its command (128 + n for signal n).
///
/// # Errors
/// The machine did not come up, or ended without a result; the message says where its logs are.
pub fn run(disk: &Disk, job: &Job) -> Result<u8> {
    let mut job = job.clone();
    job.environment.insert(feature::LACKS.to_owned(), feature::list(disk.backend().lacks()));
    let logs = world::make_logs(&job)?;
    let times = env::var_os(lab::TIMES).map(PathBuf::from);
    if times.is_some() {
        let inside = guest::exchange(LOGS).join(TIMES).display().to_string();
        job.environment.insert(lab::TIMES.to_owned(), inside);
    }
    let status = in_namespaces(Part::World, |command| {
        command.env(world::DISK, disk.dir()).env(world::BACKEND, disk.backend().name());
        command.env(world::LOGS, &logs);
        Ok(command.env(world::JOB, serde_json::to_string(&job)?))
    })?;
    let code =
        status.code().with_context(|| format!("the world was ended by signal {:?}", status.signal()))?;
    if let Some(times) = times {
        append_times(&logs.join(TIMES), &times, &job.name)?;
    }
    world::clear_logs(&job, &logs, code)?;
    Ok(u8::try_from(code)?)
}

/// Adds the times of a guest's labs to the list outside, with the job's name; jobs without labs have none.
fn append_times(from: &Path, list: &Path, job: &str) -> Result<()> {
    let failed = || format!("add {} to {}", from.display(), list.display());
    if !from.exists() {
        return Ok(());
    }
    let lines = fs::read_to_string(from).with_context(failed)?;
    let lines: String = lines.lines().map(|line| format!("{line} ({job})\n")).collect();
    let mut list = File::options().append(true).create(true).open(list).with_context(failed)?;
    list.write_all(lines.as_bytes()).with_context(failed)
}

/// Plays a part as process 1 of new pid and mount namespaces, with what `more` adds to its command.
pub(super) fn in_namespaces(
    part: Part,
    more: impl FnOnce(&mut Command) -> Result<&mut Command>,
) -> Result<ExitStatus> {
    ensure!(geteuid().is_root(), "a virtual machine needs root, for namespaces");
    let mut command = Command::new(THIS);
    command
        .env(PART, Part::Supervisor.name())
        .env(NEXT, part.name())
        .env(PARENT, std::process::id().to_string());
    more(&mut command)?.status().with_context(|| format!("start the part {part}"))
}

/// The supervisor: namespaces are for children, so one process more is needed for each machine.
pub(super) fn supervise() -> Result<ExitCode> {
    set_pdeathsig(Signal::SIGKILL)?;
    let parent: u32 = env::var(PARENT)?.parse()?;
    ensure!(parent_id() == parent, "the caller ended before its machine was started");
    unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS).context("make pid and mount namespaces")?;
    let status = Command::new(THIS)
        .env(PART, env::var(NEXT)?)
        .env(PARENT, std::process::id().to_string())
        .status()
        .context("start process 1")?;
    let code =
        status.code().with_context(|| format!("process 1 was ended by signal {:?}", status.signal()))?;
    Ok(ExitCode::from(u8::try_from(code)?))
}

/// In process 1: ends with the supervisor, and has mounts of its own.
pub(super) fn settle_in() -> Result<()> {
    use nix::mount::{MsFlags, mount};
    set_pdeathsig(Signal::SIGKILL)?;
    // /proc is still that of outside, where the supervisor has its number.
    let supervisor = env::var(PARENT)?;
    ensure!(
        Path::new("/proc").join(&supervisor).exists(),
        "the supervisor ended before its machine was started"
    );
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("make mounts private")
}
