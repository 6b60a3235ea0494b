//! Running one plugin: find it, start it, feed it, collect what it prints, and never wait past the deadline.
//!
//! A plugin runs in a process group of its own, which is killed when the deadline passes, when it prints too much, or
//! when the caller gives up (the future is dropped), unless the process is about to end. It inherits the environment and no
//! descriptor. When this process ends, it goes on, and what it prints does not end it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::disk::Disk;
use crate::error::{PluginError, PluginFailure, truncate};
use crate::name::PluginType;
use crate::pipe;
use crate::plan::Request;

/// The most a plugin may print on standard output, in bytes.
pub(crate) const STDOUT_MAX: usize = 1 << 20;
/// The most that is kept of standard error, in bytes; the rest is read and dropped.
pub(crate) const STDERR_MAX: usize = 64 << 10;
/// How often a program that is still being written ("text file busy") is tried again, as in libcni.
const BUSY_RETRIES: u32 = 6;
/// The first and the longest pause between those tries.
const BUSY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long the pipes of a plugin that ended may stay open in processes it left behind.
const PIPE_GRACE: Duration = Duration::from_millis(500);
/// How much is read at once, in bytes. One turn of the task empties a full pipe: by the next one `PIPE_GRACE` may have passed.
const CHUNK: usize = 64 << 10;

/// Whether plugins go on when their callers give up. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct GoOn(Arc<AtomicBool>);

impl GoOn {
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where programs are, what waits for their disk, and whether they go on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Programs<'p> {
    pub(crate) bin_dirs: &'p [PathBuf],
    pub(crate) disk: &'p Disk,
    pub(crate) go_on: &'p GoOn,
}

/// Runs a request and returns what the plugin printed on standard output.
pub(crate) async fn run(
    request: &Request,
    programs: Programs<'_>,
    deadline: Instant,
) -> Result<Vec<u8>, PluginFailure> {
    let started = Instant::now();
    let finished = timeout_at(deadline, async {
        let mut running = Running::spawn(request, programs, deadline).await?;
        running.converse(&request.stdin).await
    });
    let output =
        finished.await.map_err(|_elapsed| PluginFailure::TimedOut { after: started.elapsed() })??;
    output.into_stdout(request)
}

/// The program of a plugin: the first regular file of that name.
fn find(plugin: &PluginType, bin_dirs: &[PathBuf]) -> Result<PathBuf, PluginFailure> {
    bin_dirs
        .iter()
        .map(|dir| dir.join(plugin.as_str()))
        .find(|path| path.is_file())
        .ok_or_else(|| PluginFailure::NotFound { plugin: plugin.clone(), searched: bin_dirs.to_vec() })
}

struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Output {
    fn into_stdout(self, request: &Request) -> Result<Vec<u8>, PluginFailure> {
        if self.status.success() {
            if !self.stderr.is_empty() {
                let stderr = String::from_utf8_lossy(&self.stderr);
                tracing::debug!(plugin = %request.plugin, verb = %request.verb, %stderr, "CNI plugin");
            }
            return Ok(self.stdout);
        }
        if let Some(error) = PluginError::parse(&self.stdout) {
            return Err(PluginFailure::Reported(error));
        }
        let printed = if self.stdout.is_empty() { &self.stderr } else { &self.stdout };
        let mut output = String::from_utf8_lossy(printed).into_owned();
        truncate(&mut output);
        Err(PluginFailure::Failed { status: self.status.to_string(), output })
    }
}

/// A started plugin. Dropped before it ended, its whole process group is killed, unless it is to go on.
struct Running {
    // Before `child`: a group is killed while its leader is not yet reaped, so that the id cannot be another's.
    group: KillOnDrop,
    child: Child,
}

struct KillOnDrop {
    group: Option<Pid>,
    unless: GoOn,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(group) = self.group
            && !self.unless.is_so()
            && let Err(error) = killpg(group, Signal::SIGKILL)
        {
            tracing::warn!(%group, %error, "cannot kill a CNI plugin");
        }
    }
}

impl Running {
    async fn spawn(
        request: &Request,
        programs: Programs<'_>,
        deadline: Instant,
    ) -> Result<Self, PluginFailure> {
        let mut pause = BUSY_PAUSE.0;
        for _attempt in 1..BUSY_RETRIES {
            match Self::spawn_once(request, programs, deadline).await {
                Err(PluginFailure::Spawn { source, .. })
                    if source.kind() == io::ErrorKind::ExecutableFileBusy =>
                {
                    sleep(pause).await;
                }
                spawned => return spawned,
            }
            pause = (pause * 2).min(BUSY_PAUSE.1);
        }
        Self::spawn_once(request, programs, deadline).await
    }

    /// To look for the program and to execute it are reads of the disk it is on: the caller of `spawn` waits for both.
    async fn spawn_once(
        request: &Request,
        programs: Programs<'_>,
        deadline: Instant,
    ) -> Result<Self, PluginFailure> {
        let (plugin, env) = (request.plugin.clone(), request.env.clone());
        let (bin_dirs, unless) = (programs.bin_dirs.to_vec(), programs.go_on.clone());
        let work = move || {
            let program = find(&plugin, &bin_dirs)?;
            let mut command = Command::new(&program);
            command.envs(env).process_group(0);
            Self::started(&program, spawn_with_pipes(command), unless)
        };
        let spawned = programs.disk.run(deadline, work).await;
        spawned.map_err(|source| PluginFailure::Spawn { program: request.plugin.as_str().into(), source })?
    }

    fn started(program: &Path, spawned: io::Result<Child>, unless: GoOn) -> Result<Self, PluginFailure> {
        let child = spawned.map_err(|source| PluginFailure::Spawn { program: program.to_owned(), source })?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        Ok(Self { group: KillOnDrop { group, unless }, child })
    }

    async fn converse(&mut self, input: &[u8]) -> Result<Output, PluginFailure> {
        let (stdin, stdout, stderr) =
            (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take());
        let (mut printed, mut complained) = (Vec::new(), Vec::new());
        let status = {
            let feed = async {
                if let Some(mut stdin) = stdin {
                    // A plugin need not read its input: a broken pipe is its choice.
                    drop(stdin.write_all(input).await);
                }
                Ok(())
            };
            let pipes = async {
                tokio::try_join!(
                    feed,
                    collect(stdout, &mut printed, STDOUT_MAX, Excess::Fails),
                    collect(stderr, &mut complained, STDERR_MAX, Excess::Dropped),
                )
            };
            tokio::pin!(pipes);
            tokio::select! {
                // Not polled again once done.
                closed = &mut pipes => {
                    // Nobody reads on: it would wait for ever.
                    closed.inspect_err(|_failed| self.group.unless = GoOn::default())?;
                    self.child.wait().await.map_err(PluginFailure::Pipe)?
                }
                // Cancel-safe: waiting again would give the same status.
                ended = self.child.wait() => {
                    let status = ended.map_err(PluginFailure::Pipe)?;
                    self.group.group = None;
                    // All it printed is in the pipes; only a process it left behind keeps them open.
                    if let Ok(closed) = timeout(PIPE_GRACE, &mut pipes).await {
                        closed?;
                    }
                    status
                }
            }
        };
        self.group.group = None;
        Ok(Output { status, stdout: printed, stderr: complained })
    }
}

/// The command ends here with its ends of the pipes, so that what is printed ends with the plugin.
fn spawn_with_pipes(mut command: Command) -> io::Result<Child> {
    let (printed, stdout) = pipe::unbroken()?;
    let (complained, stderr) = pipe::unbroken()?;
    let printed = ChildStdout::from_std(printed.into())?;
    let complained = ChildStderr::from_std(complained.into())?;
    let mut child = command.stdin(Stdio::piped()).stdout(stdout).stderr(stderr).spawn()?;
    (child.stdout, child.stderr) = (Some(printed), Some(complained));
    Ok(child)
}

#[derive(Clone, Copy)]
enum Excess {
    Fails,
    Dropped,
}

async fn collect(
    pipe: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
    max: usize,
    excess: Excess,
) -> Result<(), PluginFailure> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = pipe.read(&mut chunk).await.map_err(PluginFailure::Pipe)?;
        let room = max - into.len();
        match (read, excess) {
            (0, _) => return Ok(()),
            (read, Excess::Fails) if read > room => return Err(PluginFailure::TooMuchOutput { max }),
            (read, _) => into.extend_from_slice(&chunk[..read.min(room)]),
        }
    }
}
