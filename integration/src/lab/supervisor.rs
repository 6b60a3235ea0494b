//! The part outside: makes the pid namespace, or the slice, and clears what outlives namespaces.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs, io, process};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::unistd::geteuid;

use super::{OWNER, ROLE, ROOT, cgroup_name, leaks, owner_of, root_of, slice_of};

/// Names a file to which each lab adds a line: seconds that it took, seconds of processor time of all its processes, and what
/// it ran.
pub(crate) const TIMES: &str = "BERTH_TEST_TIMES";

/// Starts init, waits for its end and clears up.
pub(super) fn run() -> Result<ExitCode> {
    ensure!(geteuid().is_root(), "a lab needs root, for namespaces and cgroups");
    let owner = owner_of(&process::id().to_string());
    let root = root_of(&owner);
    fs::create_dir(&root).with_context(|| format!("make {}", root.display()))?;
    let began = Instant::now();
    let ended = supervise(&owner, &root);
    let cleared = clear(&owner, &root);
    if let Some(list) = env::var_os(TIMES) {
        note_times(Path::new(&list), began)?;
    }
    let code = ended?;
    cleared?;
    Ok(code)
}

fn note_times(list: &Path, began: Instant) -> Result<()> {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: TimeVal| Duration::from_micros(time.num_microseconds().unsigned_abs()).as_secs_f64();
    let what = env::args().nth(1).unwrap_or_default();
    let processor = seconds(used.user_time()) + seconds(used.system_time());
    let line = format!("{:7.1} {processor:7.1} {what}\n", began.elapsed().as_secs_f64());
    let mut file = OpenOptions::new().append(true).create(true).open(list)?;
    file.write_all(line.as_bytes()).with_context(|| format!("write to {}", list.display()))
}

fn supervise(owner: &str, root: &Path) -> Result<ExitCode> {
    // Blocked before the start, so that neither an end nor an interruption is missed.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let this = env::current_exe()?;
    let mut command = if let Some(slice) = slice_of(owner) {
        slice.command(&this)
    } else {
        unshare(CloneFlags::CLONE_NEWPID).context("make a pid namespace")?;
        let mut command = Command::new(this);
        command.args(env::args_os().skip(1));
        command
    };
    let mut init = command
        .env(ROLE, "init")
        .env(ROOT, root)
        .env(OWNER, owner)
        .spawn()
        .context("start the lab's init")?;
    wait(&mut init, &signals)
}

/// Waits for the end of init; an interruption ends it, and with it the whole namespace if there is one.
fn wait(init: &mut Child, signals: &SigSet) -> Result<ExitCode> {
    let mut interrupted = None;
    loop {
        if let Some(status) = init.try_wait()? {
            if let Some(signal) = interrupted {
                bail!("interrupted by {signal}");
            }
            let code = status
                .code()
                .with_context(|| format!("the lab's init was killed by signal {:?}", status.signal()))?;
            return Ok(ExitCode::from(u8::try_from(code)?));
        }
        match signals.wait()? {
            Signal::SIGCHLD => {}
            signal => {
                interrupted = Some(signal);
                init.kill()?;
            }
        }
    }
}

/// Ends what is left and removes the directory and the cgroups, deepest first.
pub(super) fn clear(owner: &str, root: &Path) -> Result<()> {
    if let Some(slice) = slice_of(owner) {
        slice.end()?;
    }
    leaks::remove(&leaks::cgroups(&cgroup_name(owner))?)?;
    match fs::remove_dir_all(root) {
        Err(failure) if failure.kind() != io::ErrorKind::NotFound => {
            Err(failure).with_context(|| format!("remove {}", root.display()))
        }
        _ => Ok(()),
    }
}
