//! System calls of a pod start, and of them durable commits (the fsync family), counted with strace, which slows
//! everything and therefore has a phase of its own.
//!
//! The agent's own count of commits has to be 0: what has to survive a power loss lives elsewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_integration::agent::Settings;
use berth_integration::control::Control;
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::control;
use crate::figure::{Figure, Unit};
use crate::{processes, start};

const ALL: &str = "system calls per pod start";
const DURABLE: &str = "durable commits per pod start";
/// Pods that are counted.
const PODS: u32 = 5;
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Calls that wait for a disk.
const COMMITS: [&str; 6] = ["fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "sync"];
const ATTACH_LIMIT: Duration = Duration::from_secs(20);

/// strace at work on one process and all that it starts.
struct Trace {
    child: Child,
    output: PathBuf,
}

/// Calls of a process, and of the programs that it started.
#[derive(Debug, Default, PartialEq, Eq)]
struct Calls {
    own: Count,
    started: Count,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    all: u32,
    durable: u32,
}

/// Measures starts alone, one after the other.
pub(crate) fn measure() -> Result<Vec<Figure>> {
    let node = Node::start_with(&Settings::with_registry())?;
    let control = Control::new()?;
    node.apply("first", &start::manifest("first"))?;
    control::ready(&control, "first", LOOK_EVERY)?;
    let root = node.world.root();
    let agent = Trace::attach(processes::only("berth", "run")?, root.join("agent.trace"))?;
    let containerd =
        Trace::attach(processes::only("containerd", "--config")?, root.join("containerd.trace"))?;
    for pod in 0..PODS {
        let name = format!("counted-{pod}");
        node.apply(&name, &start::manifest(&name))?;
        control::ready(&control, &name, LOOK_EVERY)?;
    }
    let (agent, containerd) = (agent.end()?, containerd.end()?);
    node.end()?;
    let per_pod = |section: &str, name: &str, calls: u32| {
        Figure::new(section, name, f64::from(calls) / f64::from(PODS), Unit::Count)
    };
    let of = [
        ("the agent itself", agent.own),
        ("its workers and CNI plugins", agent.started),
        ("containerd itself", containerd.own),
        ("shims and OCI runtime", containerd.started),
    ];
    let all = of.iter().map(|(name, calls)| per_pod(ALL, name, calls.all));
    let durable = of.iter().map(|(name, calls)| per_pod(DURABLE, name, calls.durable));
    let mut figures: Vec<Figure> = all.chain(durable).collect();
    let agents = &mut figures[of.len()];
    *agents = agents.clone().at_most(0.0);
    Ok(figures)
}

impl Trace {
    fn attach(pid: u32, output: PathBuf) -> Result<Self> {
        let mut child = Command::new("strace")
            .args(["-f", "-q", "-e", "signal=none", "-o"])
            .arg(&output)
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .context("start strace (package strace)")?;
        wait::until("strace to be attached", ATTACH_LIMIT, || {
            if let Some(status) = child.try_wait()? {
                bail!("strace ended with {status}");
            }
            let tracer = format!("TracerPid:\t{}", child.id());
            let all = threads(pid)?.iter().all(|status| status.lines().any(|line| line == tracer));
            Ok(if all { Look::Ready(()) } else { Look::NotYet("not every thread".to_owned()) })
        })?;
        Ok(Self { child, output })
    }

    fn end(mut self) -> Result<Calls> {
        // It lets go of what it traces, and does not end it.
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGINT)?;
        self.child.wait()?;
        Ok(count(&read(&self.output)?))
    }
}

fn threads(pid: u32) -> Result<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    // One may end between the two looks.
    Ok(tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("status")).ok()).collect())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Of lines `pid call(…) = result`. A thread that ran a program is none of the traced process's own; the second half of
/// a call that was interrupted by another line is not a call.
fn count(trace: &str) -> Calls {
    let lines: Vec<(&str, &str)> = trace
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(pid, call)| (pid, call.trim_start()))
        .collect();
    let programs: BTreeSet<&str> =
        lines.iter().filter(|(_, call)| call.starts_with("execve(")).map(|(pid, _)| *pid).collect();
    let mut calls = Calls::default();
    for (pid, call) in &lines {
        let Some((name, _)) = call.split_once('(') else { continue };
        // A thread's end and the second half of a call have no name here.
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        let count = if programs.contains(pid) { &mut calls.started } else { &mut calls.own };
        count.all += 1;
        count.durable += u32::from(COMMITS.contains(&name));
    }
    calls
}
