//! The lab in the background: started, entered, ended from outside.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_integration::wait::{self, Look};
use berth_integration::{binaries, lab};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// In the lab: holds the pid of the body, as seen there, once everything runs.
pub(crate) const READY: &str = "/run/demo.pid";
/// Outside: knows the running demo.
const STATE: &str = "/run/berth-demo";

/// Building, pulling and starting, on a slow machine.
const UP_LIMIT: Duration = Duration::from_secs(180);
/// Grace periods of the examples, and what comes after.
const DOWN_LIMIT: Duration = Duration::from_secs(90);

/// Starts the demo and copies what it says until it is ready.
pub(crate) fn up() -> Result<()> {
    if let Some(running) = Running::find() {
        println!("the demo is running (process {}); `scripts/demo down` ends it", running.supervisor);
        return Ok(());
    }
    // Before a build, which may replace this program.
    let mut lab = lab::command([])?;
    println!("building Berth");
    binaries::build()?;
    fs::create_dir_all(STATE).with_context(|| format!("make {STATE}"))?;
    let output = File::create(output_file()).context("open the demo's output")?;
    let mut supervisor = lab
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        // Not ended by an interruption typed at this terminal.
        .process_group(0)
        .spawn()
        .context("start the lab")?;
    fs::write(pid_file(), supervisor.id().to_string())?;
    let mut said = File::open(output_file())?;
    let shown = wait::until("the demo to be ready", UP_LIMIT, || {
        copy_new(&mut said)?;
        if let Some(status) = supervisor.try_wait()? {
            copy_new(&mut said)?;
            bail!("it ended with {status}");
        }
        let ready = Running::find().is_some_and(|running| running.in_lab(READY).exists());
        Ok(if ready { Look::Ready(()) } else { Look::NotYet("see above".to_owned()) })
    });
    copy_new(&mut said)?;
    if let Err(failure) = shown {
        forget()?;
        return Err(failure);
    }
    println!("\nIt goes on in the background:");
    println!("  scripts/demo run berth pods     runs a command beside it (berth, ctr, curl, …)");
    println!("  scripts/demo shell              opens a shell there");
    println!("  scripts/demo down               removes it");
    Ok(())
}

/// Becomes a command inside the demo.
pub(crate) fn enter(command: &[String]) -> Result<()> {
    let running = Running::find().context("the demo is not running: scripts/demo starts it")?;
    let failure = running.inside(command).env("PATH", binaries::search_path(None)?).exec();
    Err(failure).context("start nsenter")
}

/// Ends the demo and checks that nothing is left of it.
pub(crate) fn down() -> Result<()> {
    let Some(running) = Running::find() else {
        println!("the demo is not running");
        return Ok(());
    };
    let mut said = File::open(output_file())?;
    io::copy(&mut said, &mut io::sink())?;
    println!("removing the pods and everything around them");
    running.ask_to_end()?;
    wait::until("the demo to end", DOWN_LIMIT, || {
        let alive = Path::new("/proc").join(&running.supervisor).exists();
        Ok(if alive { Look::NotYet("still there".to_owned()) } else { Look::Ready(()) })
    })?;
    // It ends silently unless something was left.
    let failures = copy_new(&mut said)?;
    forget()?;
    ensure!(failures == 0, "the demo did not end well");
    println!("nothing is left of it");
    Ok(())
}

/// A demo that is there.
struct Running {
    supervisor: String,
    init: String,
}

impl Running {
    fn find() -> Option<Self> {
        let supervisor = fs::read_to_string(pid_file()).ok()?;
        // A pid of an earlier boot may be another process by now.
        let program = fs::read_link(Path::new("/proc").join(&supervisor).join("exe")).ok()?;
        program.file_name().filter(|name| name.to_string_lossy().starts_with("demo"))?;
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).ok()?;
        let init = children.split_whitespace().next()?.to_owned();
        Some(Self { supervisor, init })
    }

    /// Tells the body to clear up; one that is not ready yet is ended with its lab.
    fn ask_to_end(&self) -> Result<()> {
        if let Ok(body) = fs::read_to_string(self.in_lab(READY)) {
            let kill = ["sh".into(), "-c".into(), format!("kill -TERM {body}")];
            let asked = self.inside(&kill).status().context("start nsenter")?;
            ensure!(asked.success(), "asking the demo to stop ended with {asked}");
        } else {
            kill(Pid::from_raw(self.supervisor.parse()?), Signal::SIGTERM)?;
        }
        Ok(())
    }

    /// A path of the lab, seen from outside.
    fn in_lab(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    fn inside(&self, command: &[String]) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--target", &self.init, "--mount", "--net", "--ipc", "--pid", "--"]).args(command);
        nsenter.current_dir("/");
        nsenter
    }
}

fn pid_file() -> PathBuf {
    Path::new(STATE).join("pid")
}

fn output_file() -> PathBuf {
    Path::new(STATE).join("output")
}

fn forget() -> Result<()> {
    fs::remove_dir_all(STATE).with_context(|| format!("remove {STATE}"))
}

/// Prints what was added to a file since the last call, and says how much that was.
fn copy_new(said: &mut File) -> Result<usize> {
    let mut new = Vec::new();
    said.read_to_end(&mut new)?;
    io::stdout().write_all(&new)?;
    io::stdout().flush()?;
    Ok(new.len())
}
