//! The lab in the background: started, entered, ended from outside.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_integration::wait::{self, Look};
use berth_integration::{binaries, components, lab};

use crate::state::{self, Running};

/// Pulling and starting, on a slow machine.
const UP_LIMIT: Duration = Duration::from_secs(360);
/// The administrator's kubeconfig in a cluster that kubeadm made.
const ADMIN: &str = "/etc/kubernetes/admin.conf";
/// What the demo itself gives to clearing up, and the ends of its processes.
const DOWN_LIMIT: Duration = Duration::from_secs(150);
/// The end of the lab's namespaces, and the removal of its cgroups.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Starts the demo, of a node or of `what`, and copies what it says until it is ready.
pub(crate) fn up(what: &[&str]) -> Result<()> {
    if let Some(running) = Running::find() {
        println!("the demo is running (process {}); `scripts/demo down` ends it", running.supervisor);
        return Ok(());
    }
    // Before a build, which may replace this program.
    let mut lab = lab::command(what.iter().copied())?;
    binaries::build()?;
    if state::forget()? {
        println!("cleared up after a demo that did not end by itself");
    }
    let began = Instant::now();
    let output = state::begin()?;
    let mut supervisor = lab
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        // Not ended by an interruption typed at this terminal.
        .process_group(0)
        .spawn()
        .context("start the lab")?;
    state::set_supervisor(supervisor.id())?;
    let mut said = File::open(state::output_file())?;
    let shown = wait::until("the demo to be ready", UP_LIMIT, || {
        copy_new(&mut said)?;
        if let Some(status) = supervisor.try_wait()? {
            copy_new(&mut said)?;
            bail!("it ended with {status}");
        }
        let ready = Running::find().is_some_and(|running| running.is_ready());
        Ok(if ready { Look::Ready(()) } else { Look::NotYet("see above".to_owned()) })
    });
    copy_new(&mut said)?;
    if let Err(failure) = shown {
        if let Some(running) = Running::find() {
            running.end()?;
            supervisor.wait()?;
        }
        state::forget()?;
        return Err(failure);
    }
    println!("\nUp after {} s. It goes on in the background:", began.elapsed().as_secs());
    if !what.is_empty() {
        println!("  scripts/demo run kubectl get pods --all-namespaces");
    }
    println!("  scripts/demo run berth pods     runs a command beside it (berth, ctr, curl, …)");
    println!("  scripts/demo shell              opens a shell there");
    println!("  scripts/demo down               removes it");
    Ok(())
}

/// Becomes a command inside the demo.
pub(crate) fn enter(command: &[String]) -> Result<()> {
    let running = Running::find().context("the demo is not running: scripts/demo starts it")?;
    let mut entered = running.inside(command);
    if running.is_cluster() {
        let kubectl = components::binary("kubectl")?;
        entered.env("PATH", binaries::search_path(kubectl.parent())?).env("KUBECONFIG", ADMIN);
    } else {
        entered.env("PATH", binaries::search_path(None)?);
    }
    let failure = entered.exec();
    Err(failure).context("start nsenter")
}

/// Ends the demo and checks that nothing is left of it.
pub(crate) fn down() -> Result<()> {
    let Some(running) = Running::find() else {
        let was_there = state::forget()?;
        println!("{}", if was_there { "the demo had ended; nothing is left of it" } else { NOT_RUNNING });
        return Ok(());
    };
    let mut said = File::open(state::output_file())?;
    io::copy(&mut said, &mut io::sink())?;
    println!("removing the pods and everything around them");
    let is_whole = running.is_ready();
    running.ask_to_end()?;
    let ended = ended(&running, DOWN_LIMIT, &mut said);
    if let Err(failure) = &ended {
        println!("{failure:#}; ending the lab with everything in it");
        running.end()?;
        self::ended(&running, END_LIMIT, &mut said)?;
    }
    copy_new(&mut said)?;
    // One that was still starting had no chance to end well.
    let is_well = !is_whole || state::ended_well();
    state::forget()?;
    ensure!(ended.is_ok() && is_well, "the demo did not end well: see above");
    println!("nothing is left of it");
    Ok(())
}

const NOT_RUNNING: &str = "the demo is not running";

fn ended(running: &Running, limit: Duration, said: &mut File) -> Result<()> {
    wait::until("the demo to end", limit, || {
        copy_new(said)?;
        Ok(if running.is_alive() { Look::NotYet("still there".to_owned()) } else { Look::Ready(()) })
    })
}

/// Prints what was added to a file since the last call.
fn copy_new(said: &mut File) -> Result<()> {
    let mut new = Vec::new();
    said.read_to_end(&mut new)?;
    io::stdout().write_all(&new)?;
    io::stdout().flush()?;
    Ok(())
}
