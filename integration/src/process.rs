//! A started component: its process, its log, and its end; and commands that are run to their end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::{self, Look};

/// How long a component may take to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(20);
/// How much of a log a failure message shows.
const LOG_TAIL: usize = 16384;

/// Runs a command to its end and gives what it printed.
///
/// # Errors
/// It cannot be started, or failed; the failure has what it said.
pub fn printed(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("start {command:?}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{command:?} ended with {}: {said}", done.status);
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// A running component. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with both outputs appended to `log`.
    ///
    /// # Errors
    /// The log cannot be opened or the program not started.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `look` is ready, and fails early, with the log's end, when the process ended.
    ///
    /// # Errors
    /// The process ended, `look` failed, or the limit passed.
    pub fn ready<T>(&mut self, limit: Duration, mut look: impl FnMut() -> Result<Look<T>>) -> Result<T> {
        let what = format!("{} to be ready", self.name);
        let found = wait::until(&what, limit, || {
            if let Some(status) = look_at(&mut self.child)? {
                bail!("{} ended with {status}", self.name);
            }
            look()
        });
        found.with_context(|| format!("log of {}:\n{}", self.name, self.log_tail()))
    }

    /// Whether it has ended by itself.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn ended(&mut self) -> Result<bool> {
        Ok(look_at(&mut self.child)?.is_some())
    }

    /// How it has ended by itself, if it has.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        look_at(&mut self.child)
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop(self) -> Result<()> {
        self.stop_with(Signal::SIGTERM).map(drop)
    }

    /// Asks it to end with a signal and waits.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn stop_with(mut self, signal: Signal) -> Result<ExitStatus> {
        self.signal(signal)?;
        wait::until(&format!("{} to end", self.name), END_LIMIT, || {
            Ok(match look_at(&mut self.child)? {
                Some(status) => Look::Ready(status),
                None => Look::NotYet("still running".to_owned()),
            })
        })
        .with_context(|| format!("log of {}:\n{}", self.name, self.log_tail()))
    }

    /// Ends it with SIGKILL, as a crash would.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("kill {}", self.name))?;
        self.child.wait().with_context(|| format!("wait for {}", self.name))?;
        Ok(())
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("signal {}", self.name))
    }
}

/// How a process has ended, if it has.
fn look_at(child: &mut Child) -> Result<Option<ExitStatus>> {
    child.try_wait().with_context(|| format!("look whether process {} has ended", child.id()))
}

/// The end of a log; empty when it cannot be read.
#[must_use]
pub fn tail(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL)..]).into_owned()
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a process that ended already, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
