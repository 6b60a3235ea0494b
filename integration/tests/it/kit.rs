//! Manifests and looks that several tests share.

use std::fs::OpenOptions;
use std::hint;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_integration::agent::{ROOT_DIR, berth, berth_output};
use berth_integration::cgroup::Group;
use berth_integration::files;
use berth_integration::http;
use berth_integration::lab::World;
use berth_integration::node::PodState;
use berth_integration::node::cgroups::{name_of_container, of_class, of_pod};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use jiff::Timestamp;
use nix::libc::{ENXIO, O_NONBLOCK};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

pub(crate) use berth_integration::registry::EXAMPLE as IMAGE;

/// The link in a pod's directory that names the run directory of its agent.
pub(crate) const MARK: &str = "berth-run-dir";

/// For what takes a moment.
pub(crate) const SOON: Duration = Duration::from_secs(40);

/// A manifest: `spec` over a short grace period.
pub(crate) fn pod(name: &str, spec: Value) -> String {
    let spec = with(json!({ "terminationGracePeriodSeconds": 2 }), spec);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec }).to_string()
}

/// A container that runs a shell script; `more` is merged into it.
pub(crate) fn shell(name: &str, script: &str, more: Value) -> Value {
    with(json!({ "name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script] }), more)
}

/// A map with the fields of another added or put in place of its own.
pub(crate) fn with(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

/// A manifest of one container, `main`, that runs a script.
pub(crate) fn script(name: &str, script: &str) -> String {
    pod(name, json!({ "containers": [shell("main", script, json!({}))] }))
}

/// A line of a script that waits for [`go_on`]. Nothing is started meanwhile: a process is what a full cgroup refuses, and what
/// a guest does slowly.
pub(crate) fn wait_at(door: &str) -> String {
    format!("mkfifo /dev/shm/{door}; read _ < /dev/shm/{door}")
}

/// Lets a container go on that waits at a door. Nothing of it takes place in the cgroups of the pod.
pub(crate) fn go_on(pod: &PodState, container: &str, door: &str) -> Result<()> {
    let path = shared_memory(pod, container, door)?;
    eventually(&format!("{container} to wait at {door}"), &true, || {
        match OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(&path) {
            Ok(_) => Ok(true),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(nobody) if nobody.raw_os_error() == Some(ENXIO) => Ok(false),
            Err(other) => Err(other).with_context(|| format!("open {}", path.display())),
        }
    })
}

/// A file of a pod's `/dev/shm` from outside.
pub(crate) fn shared_memory(pod: &PodState, container: &str, file: &str) -> Result<PathBuf> {
    let pid = task_pid(pod.container_id(container)?)?;
    Ok(PathBuf::from(format!("/proc/{pid}/root/dev/shm/{file}")))
}

/// A script that answers a signal at once and waits for ever for the next one.
pub(crate) const FOR_EVER: &str = "sleep infinity & while :; do wait; done";

/// A manifest of one container that sleeps and goes at once.
pub(crate) fn sleeper(name: &str) -> String {
    script(name, "exec sleep infinity")
}

/// What a command in a container printed.
pub(crate) fn exec(pod: &PodState, container: &str, command: &[&str]) -> Result<String> {
    berth(&[&["exec", pod.name(), "--container", container, "--"], command].concat())
}

/// What a shell script in the container `main` printed, without the line end.
pub(crate) fn inside(pod: &PodState, script: &str) -> Result<String> {
    Ok(exec(pod, "main", &["/bin/sh", "-c", script])?.trim_end().to_owned())
}

/// The log of a container as `berth logs` shows it.
pub(crate) fn logs(pod: &PodState, container: &str, more: &[&str]) -> Result<String> {
    berth(&[&["logs", pod.name(), "--container", container], more].concat())
}

/// What the agent tells about a pod, its events among it.
pub(crate) fn events(pod: &PodState) -> Result<String> {
    berth(&["inspect", pod.name()])
}

/// Waits until the log of a container says something.
pub(crate) fn logged(pod: &PodState, container: &str, text: &str) -> Result<String> {
    wait::until(&format!("{text:?} in the log of {container}"), SOON, || {
        let said = logs(pod, container, &[])?;
        Ok(if said.contains(text) { Look::Ready(said) } else { Look::NotYet(said) })
    })
}

/// When an agent has said something, by its log.
pub(crate) fn said_at(log: &Path, text: &str) -> Result<Vec<Timestamp>> {
    let log = files::read(log)?;
    let time = |line: &str| line.split_whitespace().next().unwrap_or_default().parse::<Timestamp>();
    let times = log.lines().filter(|line| line.contains(text)).map(time);
    times.collect::<Result<Vec<_>, _>>().with_context(|| format!("no time beside {text:?}"))
}

/// Waits until an agent has looked at the network since its configuration changed, not just because it was time, and found it so: when it
/// did that, by its log, after a time.
pub(crate) fn saw_network_change(log: &Path, is_ready: bool, after: Timestamp) -> Result<Timestamp> {
    let text = format!("network configuration has changed is_ready={is_ready}");
    wait::until(&format!("the agent to say that the {text}"), SOON, || {
        let all = said_at(log, &text)?;
        let said = all.iter().find(|at| **at >= after).copied();
        Ok(said.map_or_else(|| Look::NotYet(format!("{all:?}, not after {after}")), Look::Ready))
    })
}

/// A page of a pod, whose server listens a moment after its container runs.
pub(crate) fn page(at: SocketAddr, path: &str) -> Result<http::Answer> {
    wait::until(&format!("{at} to answer"), SOON, || {
        Ok(match http::page(at, path) {
            Ok(answer) => Look::Ready(answer),
            Err(failure) => Look::NotYet(format!("{failure:#}")),
        })
    })
}

/// The process of a container's task.
pub(crate) fn task_pid(id: &str) -> Result<u32> {
    let tasks = Records::open()?.tasks()?;
    let task = tasks.iter().find(|task| task.id == id);
    Ok(task.with_context(|| format!("no task {id} in {tasks:?}"))?.pid)
}

/// The cgroup of a pod.
pub(crate) fn group(world: &World, pod: &PodState) -> Result<Group> {
    let class = match pod.0["status"]["qosClass"].as_str() {
        Some("Guaranteed") => "",
        Some("Burstable") => "burstable",
        Some("BestEffort") => "besteffort",
        other => bail!("no class of pods: {other:?}"),
    };
    Ok(pod_group(world, class, pod.uid()))
}

/// The cgroup of a container's current run.
pub(crate) fn container_group(world: &World, pod: &PodState, container: &str) -> Result<Group> {
    Ok(group(world, pod)?.below(&name_of_container(pod.container_id(container)?)))
}

/// The cgroup of a class, of all pods when it is empty.
pub(crate) fn class_group(world: &World, class: &str) -> Group {
    Group::new(of_class(world, class))
}

/// The cgroup of a pod that need not be there; Guaranteed pods are beside the other classes, in an empty one.
pub(crate) fn pod_group(world: &World, class: &str, uid: &str) -> Group {
    Group::new(of_pod(world, class, uid))
}

/// Makes the directory of a pod in the agent's root directory, as an agent of a run directory leaves it when the machine is
/// switched off.
pub(crate) fn pod_dir_of(uid: &str, run_dir: &str) -> Result<PathBuf> {
    let dir = Path::new(ROOT_DIR).join("pods").join(uid);
    files::make_dir(dir.join("volumes/kubernetes.io~empty-dir/v"))?;
    symlink(run_dir, dir.join(MARK))?;
    Ok(dir)
}

/// What a failing `berth` command said.
pub(crate) fn berth_fails(args: &[&str]) -> Result<String> {
    let done = berth_output(args)?;
    ensure!(!done.status.success(), "berth {} did not fail", args.join(" "));
    Ok(String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Waits until a look at the state says what is wanted.
pub(crate) fn eventually<T: PartialEq + std::fmt::Debug>(
    what: &str,
    wanted: &T,
    mut look: impl FnMut() -> Result<T>,
) -> Result<()> {
    wait::until(what, SOON, || {
        let found = look()?;
        Ok(if found == *wanted { Look::Ready(()) } else { Look::NotYet(format!("{found:?}")) })
    })
}

/// Tells another thread to end, however its maker ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something again and again, with a pause after each time, for as long as something else takes.
pub(crate) fn beside<T>(pause: Duration, mut again: impl FnMut() + Send, body: impl FnOnce() -> T) -> T {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&has_ended);
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                again();
                thread::sleep(pause);
            }
        });
        body()
    })
}

/// What something would take on a machine that has nothing else to do. What it waits for by design takes so long on any machine. The rest
/// goes by a thread beside it that never rests: that has as much of its time as others leave to it of a processor, and who is measured as well.
pub(crate) fn busy_time<T>(waits: Duration, body: impl FnOnce() -> T) -> Result<(T, Duration)> {
    let began = Instant::now();
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = Ends(&has_ended);
        let never_rests = scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
            clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        });
        let done = body();
        let took = began.elapsed();
        drop(ends);
        let spent = never_rests.join().ok().context("the thread beside panicked")?;
        let spent = Duration::from(spent.context("ask for the time of a thread")?);
        let share = spent.div_duration_f64(took).min(1.0);
        Ok((done, took.min(waits) + took.saturating_sub(waits).mul_f64(share)))
    })
}

/// A figure, shown when the test fails.
#[expect(clippy::print_stderr, reason = "what was measured")]
pub(crate) fn measured(figure: &str) {
    eprintln!("{figure}");
}

/// What a step took.
pub(crate) fn spent(what: &str, began: Instant) {
    measured(&format!("{what}: {:.2} s", began.elapsed().as_secs_f64()));
}
