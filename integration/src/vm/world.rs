//! Around one machine: lays out what its guest may see, starts it, waits for it and takes its result.

use std::env;
use std::fs::{self, File};
use std::io::{self, pipe};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{self, ChildStdout, Command, ExitCode};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::job::{EXCHANGE, HOST, Job, PROGRAM, STARTED, STATUS, Stdio, below};
use super::processor::Processor;
use super::{Backend, Disk, THIS, job, supervisor};
use crate::components;
use crate::process::tail;
use crate::wait::{self, Look};

/// The job as JSON.
pub(super) const JOB: &str = "BERTH_VM_JOB";
/// Directory of the disk.
pub(super) const DISK: &str = "BERTH_VM_DISK";
/// The kind of machine that the disk is for.
pub(super) const BACKEND: &str = "BERTH_VM_BACKEND";
/// Directory for what is worth keeping from a failure.
pub(super) const LOGS: &str = "BERTH_VM_LOGS";

/// How long a guest may take to start the job's command. It takes two seconds, with systemd five.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long a guest may take from its result to its end, which is a system call away.
const END_LIMIT: Duration = Duration::from_secs(30);
/// The guest's console, among the logs.
const CONSOLE: &str = "console.log";

/// What a machine is started with.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) disk: Disk,
    pub(super) job: Job,
    /// A tmpfs. What is below `share` is for the guest.
    pub(super) dir: PathBuf,
    /// Where the kernel's messages go.
    pub(super) console: File,
}

/// A started machine.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) pid: u32,
    /// The outputs of the job's command, unless they are the terminal.
    pub(super) outputs: Option<(ChildStdout, OwnedFd)>,
}

impl Machine {
    /// Starts a machine's program. `more` adds what its serial lines are: the outputs of the job's command, standard output
    /// and the descriptor that it is given, or both directions of the terminal.
    pub(super) fn spawn(
        mut command: Command,
        stdio: Stdio,
        more: impl FnOnce(&mut Command, Option<RawFd>),
    ) -> Result<Self> {
        let failed = || "start the machine";
        match stdio {
            Stdio::Terminal => {
                more(&mut command, None);
                Ok(Self { pid: command.spawn().with_context(failed)?.id(), outputs: None })
            }
            Stdio::Outputs => {
                // Pipes of its own: machines make what they are given non-blocking, for everybody who shares it.
                let (read, write) = pipe()?;
                fcntl(&write, FcntlArg::F_SETFD(FdFlag::empty())).context("hand a pipe down")?;
                more(&mut command, Some(write.as_raw_fd()));
                command.stdin(process::Stdio::null()).stdout(process::Stdio::piped());
                let mut child = command.spawn().with_context(failed)?;
                let out = child.stdout.take().with_context(failed)?;
                Ok(Self { pid: child.id(), outputs: Some((out, read.into())) })
            }
        }
    }
}

/// Makes the directory for the logs of a job.
pub(super) fn make_logs(job: &Job) -> Result<PathBuf> {
    let own =
        || components::workspace().join("target/vm/logs").join(format!("{}-{}", job.name, process::id()));
    let logs = job.kept.clone().unwrap_or_else(own);
    fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
    Ok(logs)
}

/// Removes the logs of a success that nobody wants; says where those of a failure are.
#[expect(clippy::print_stderr, reason = "who looks for the reason needs the place")]
pub(super) fn clear_logs(job: &Job, logs: &Path, code: i32) -> Result<()> {
    if job.kept.is_some() {
        return Ok(());
    }
    if code == 0 {
        return fs::remove_dir_all(logs).with_context(|| format!("remove {}", logs.display()));
    }
    eprintln!("vm: logs of the guest are in {}", logs.display());
    Ok(())
}

/// As process 1 of the namespaces.
pub(super) fn run() -> Result<ExitCode> {
    supervisor::settle_in()?;
    let job: Job = serde_json::from_str(&env::var(JOB)?)?;
    let disk = Disk::at(env::var(DISK)?.into(), Backend::named(&env::var(BACKEND)?)?);
    let logs = PathBuf::from(env::var(LOGS)?);
    let dir = disk.world();
    lay_out(&dir, &job, &logs)?;
    let console = File::create(logs.join(CONSOLE))?;
    let plan = Plan { disk, job, dir, console };
    let terminal = Terminal::save(plan.job.stdio)?;
    let _processor = match plan.disk.backend() {
        Backend::Uml => Some(Processor::take(&plan.disk.locks())?),
        Backend::Qemu => None,
    };
    let machine = plan.disk.backend().start(&plan)?;
    let copies =
        machine.outputs.map(|(out, err)| [copy(out, io::stdout()), copy(File::from(err), io::stderr())]);
    let exchange = plan.dir.join("share").join(EXCHANGE);
    let ended = until_end(machine.pid, &exchange)
        .with_context(|| format!("the guest's console ends with:\n{}", tail(&logs.join(CONSOLE))));
    // The machine's helpers, which hold its ends of the pipes. From process 1 this is all of the namespace but itself.
    match kill(Pid::from_raw(-1), Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(failure) => return Err(failure).context("end the machine's processes"),
    }
    terminal.restore()?;
    for copy in copies.into_iter().flatten() {
        if copy.join().is_err() {
            bail!("an output of the guest could not be copied");
        }
    }
    Ok(ExitCode::from(ended?))
}

/// Below `dir`, on a tmpfs: `share/exchange`, and `share/host` with the paths of the job.
fn lay_out(dir: &Path, job: &Job, logs: &Path) -> Result<()> {
    let tmpfs = |options: &str| mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some(options));
    // It has a guest's memory, and not every kernel has large pages for it.
    tmpfs("mode=755,huge=within_size").or_else(|_| tmpfs("mode=755")).context("mount the world")?;
    let share = dir.join("share");
    let exchange = share.join(EXCHANGE);
    fs::create_dir_all(&exchange)?;
    fs::write(exchange.join(job::JOB), serde_json::to_vec(job)?)?;
    fs::copy(THIS, exchange.join(PROGRAM))?;
    bind(logs, &exchange.join(job::LOGS), MsFlags::empty())?;
    for path in &job.shares {
        bind(path, &below(&share.join(HOST), path), MsFlags::MS_RDONLY)?;
    }
    Ok(())
}

/// Binds a directory or a file.
pub(super) fn bind(from: &Path, to: &Path, flags: MsFlags) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
    } else {
        File::create(to)?;
    }
    let failed = || format!("bind {} to {}", from.display(), to.display());
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>).with_context(failed)?;
    if flags.is_empty() {
        return Ok(());
    }
    // A bind takes no other flags with it.
    let again = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags;
    mount(None::<&str>, to, None::<&str>, again, None::<&str>).with_context(failed)
}

/// How the caller's terminal was before the machine took it.
struct Terminal(Option<(Termios, OFlag)>);

impl Terminal {
    fn save(stdio: Stdio) -> Result<Self> {
        match stdio {
            Stdio::Outputs => Ok(Self(None)),
            Stdio::Terminal => {
                let settings = tcgetattr(io::stdin()).context("a shell needs a terminal")?;
                Ok(Self(Some((settings, OFlag::from_bits_retain(fcntl(io::stdin(), FcntlArg::F_GETFL)?)))))
            }
        }
    }

    fn restore(self) -> Result<()> {
        if let Some((settings, flags)) = self.0 {
            fcntl(io::stdin(), FcntlArg::F_SETFL(flags))?;
            tcsetattr(io::stdin(), SetArg::TCSANOW, &settings)?;
        }
        Ok(())
    }
}

fn copy(mut from: impl io::Read + Send + 'static, mut to: impl io::Write + Send + 'static) -> JoinHandle<()> {
    thread::spawn(move || {
        // A caller that no longer listens gets no more; the exit code is what counts then.
        let _copied = io::copy(&mut from, &mut to).and_then(|_| to.flush());
    })
}

/// Waits for the machine and gives the exit code that its guest left.
fn until_end(machine: u32, exchange: &Path) -> Result<u8> {
    let machine = Pid::from_raw(i32::try_from(machine)?);
    let began = Instant::now();
    let mut finished = None;
    // The job's own limits are the caller's: only what comes before and after it is limited here.
    let status = wait::until("the machine to end", Duration::MAX, || {
        let ended = has_ended(machine)?;
        let status = read(&exchange.join(STATUS))?;
        if ended {
            return Ok(Look::Ready(status.context("the machine ended and its guest left no result")?));
        }
        if status.is_some() {
            let finished: &mut Instant = finished.get_or_insert_with(Instant::now);
            ensure!(finished.elapsed() < END_LIMIT, "the guest has a result and does not end");
        }
        let booted = exchange.join(STARTED).exists();
        ensure!(booted || began.elapsed() < BOOT_LIMIT, "the guest did not come up in {BOOT_LIMIT:?}");
        Ok(Look::NotYet("running".to_owned()))
    })?;
    status.trim().parse().with_context(|| format!("the guest's result is {status:?}"))
}

/// Reaps what there is to reap; whether the machine was among it.
fn has_ended(machine: Pid) -> Result<bool> {
    loop {
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return Ok(false),
            Ok(status) if status.pid() == Some(machine) => return Ok(true),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => return Ok(true),
            Err(failure) => return Err(failure).context("wait for the machine"),
        }
    }
}

fn read(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) if text.ends_with('\n') => Ok(Some(text)),
        // It is still being written.
        Ok(_) => Ok(None),
        Err(failure) if failure.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(failure) => Err(failure).with_context(|| format!("read {}", file.display())),
    }
}
