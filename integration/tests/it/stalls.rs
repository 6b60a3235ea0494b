//! One hung thing costs one pod: while a file system, a disk or containerd does not answer, all others go on, the agent can
//! be stopped and started, and everything heals by itself. A log of the agent that nobody takes costs none.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{ROOT_DIR, STATE_DIR, Settings, berth, berth_command, berth_json};
use berth_integration::files;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::wait::{self, Look};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};

use crate::dead_fs::{DeadFs, Disk, Server};
use crate::kit::{SOON, busy_time, events, eventually, pod, shell, sleeper};
use crate::suite::{Test, same, test};

/// How long each of them hangs at least.
const STALL: Duration = Duration::from_secs(30);
/// How long the agent may take to end, on a machine that has nothing else to do.
const STOP: Duration = Duration::from_secs(2);
/// How much of that it waits at most, for work that hangs and for its log (`STOP_WITHIN` and `END_WITHIN` of the agent).
const WAITS: Duration = Duration::from_millis(1500);
/// How many processes may hang for one pod (`PER_POD` of the agent).
const PER_POD: usize = 4;
/// Processor time of an agent that waits, in clock ticks of a hundredth of a second, over [`AT_REST`].
const TICKS_AT_REST: u64 = 30;
const AT_REST: Duration = Duration::from_secs(3);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("stalls::a_file_system_whose_server_never_answers", || dead_paths(Server::Reads)).long(),
        test("stalls::a_file_system_whose_server_never_reads", || dead_paths(Server::Sleeps)).long(),
        test("stalls::a_frozen_disk_under_the_logs", frozen_logs).long(),
        test("stalls::a_containerd_that_never_answers", silent_containerd).long(),
        test("stalls::a_root_directory_that_hangs_while_it_is_read", root_hangs),
        test("stalls::a_log_that_nobody_takes", unread_log),
    ]
}

/// A pod with volumes on a directory of the node. The first container notes each signal in `notes`.
fn with_volumes(name: &str, notes: &Path, volumes: &[Value], mounts: &[Value]) -> String {
    let script = format!("trap 'echo asked > /notes/{name}; exit 7' TERM; sleep infinity & wait");
    let mut all = vec![json!({ "name": "notes", "hostPath": { "path": notes } })];
    all.extend_from_slice(volumes);
    let mut mounted = vec![json!({ "name": "notes", "mountPath": "/notes" })];
    mounted.extend_from_slice(mounts);
    pod(
        name,
        json!({
            "terminationGracePeriodSeconds": 20,
            "containers": [shell("main", &script, json!({ "volumeMounts": mounted }))],
            "volumes": all,
        }),
    )
}

/// A pod whose volumes all are on `dead`.
fn stuck(name: &str, notes: &Path, dead: &Path, volumes: usize) -> String {
    let volume = |number: usize| {
        let path = dead.join(number.to_string());
        json!({ "name": format!("v{number}"), "hostPath": { "path": path, "type": "DirectoryOrCreate" } })
    };
    let mount = |number| json!({ "name": format!("v{number}"), "mountPath": format!("/v{number}") });
    let mounts: Vec<Value> = (0..volumes).map(mount).collect();
    with_volumes(name, notes, &(0..volumes).map(volume).collect::<Vec<_>>(), &mounts)
}

/// What `berth inspect` tells to hang of a pod, once it is as wanted.
fn hanging(node: &Node, name: &str, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
    wait::until(&format!("{what} to hang of {name}"), STALL, || {
        if node.pod(name)?.is_none() {
            return Ok(Look::NotYet("no such pod".to_owned()));
        }
        let shown = berth_json(&["inspect", &format!("{name}-lab")])?;
        let all = shown["berth"]["hanging"].as_array().context("nothing told")?.clone();
        Ok(if wanted(&all) { Look::Ready(all) } else { Look::NotYet(format!("{all:?}")) })
    })
}

fn processes(hanging: &[Value]) -> BTreeSet<u64> {
    hanging.iter().filter_map(|one| one["process"].as_u64()).collect()
}

/// Stops the agent, which has to be quick about it.
pub(crate) fn stop(node: &mut Node) -> Result<()> {
    in_time(|| node.agent.stop())
}

/// Waits for the end of an agent, which has to be quick about it.
pub(crate) fn in_time<T>(end: impl FnOnce() -> Result<T>) -> Result<T> {
    let (ended, took) = busy_time(WAITS, end)?;
    let ended = ended?;
    ensure!(took < STOP, "the agent took {took:?} to end");
    Ok(ended)
}

/// Clock ticks that the agent has used.
fn ticks(node: &Node) -> Result<u64> {
    let path = format!("/proc/{}/stat", node.agent.pid().context("no agent")?);
    let stat = files::read(path)?;
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let numbers: Vec<u64> =
        fields.split_ascii_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(numbers.iter().sum())
}

/// The agent comes to rest, though nothing has come about that it waits for: it uses next to nothing of the processor. What it was at
/// before, as the end of another pod, it may still be at.
fn is_quiet(node: &Node) -> Result<()> {
    wait::until("the agent to rest", SOON, || {
        let before = ticks(node)?;
        thread::sleep(AT_REST);
        let used = ticks(node)? - before;
        let is_at_rest = used <= TICKS_AT_REST;
        Ok(if is_at_rest { Look::Ready(()) } else { Look::NotYet(format!("{used} ticks in {AT_REST:?}")) })
    })
}

/// The container of a pod that was removed was asked to end, and ended, before what hangs is given up (a minute), let alone goes on.
fn ends(node: &Node, name: &str, pod: &PodState, notes: &Path) -> Result<()> {
    node.remove(name)?;
    eventually("the signal", &true, || Ok(notes.join(name).exists()))?;
    eventually("the exit to be seen", &true, || {
        let seen = node.pod(name)?;
        let code = |pod: &PodState| pod.container("main")["state"]["terminated"]["exitCode"].as_u64();
        Ok(seen.is_none_or(|seen| seen.uid() != pod.uid() || code(&seen) == Some(7)))
    })
}

fn notes(node: &Node) -> Result<PathBuf> {
    let notes = node.world.root().join("notes");
    fs::create_dir(&notes)?;
    Ok(notes)
}

fn dead_paths(server: Server) -> Result<()> {
    let mut node = Node::start()?;
    let notes = notes(&node)?;
    // Nothing of the test looks there.
    let dir = PathBuf::from("/run/dead");
    node.apply("bystander", &with_volumes("bystander", &notes, &[], &[]))?;
    let bystander = node.ready("bystander")?;
    let dead = DeadFs::mount(&dir, server)?;
    let began = Instant::now();

    // Twelve would take every place, and retries every thread.
    node.apply("stuck", &stuck("stuck", &notes, &dir, 12))?;
    node.apply("heals", &stuck("heals", &notes, &dir, 1))?;
    let part = with_volumes(
        "part",
        &notes,
        &[json!({ "name": "dead", "hostPath": { "path": dir } })],
        &[json!({ "name": "dead", "mountPath": "/part", "subPath": "part" })],
    );
    node.apply("part", &part)?;
    let first = hanging(&node, "stuck", "as many as may", |all| all.len() == PER_POD)?;
    hanging(&node, "part", "the files of its container", |all| {
        all.iter()
            .any(|one| one["what"] == "files of container main" && one["path"] == dir.display().to_string())
    })?;

    let fine = node.world.root().join("fine");
    let volumes = [
        json!({ "name": "fine", "hostPath": { "path": fine, "type": "DirectoryOrCreate" } }),
        json!({ "name": "empty", "emptyDir": {} }),
    ];
    let mounts = [json!({ "name": "empty", "mountPath": "/part", "subPath": "part" })];
    node.apply("innocent", &with_volumes("innocent", &notes, &volumes, &mounts))?;
    // Before what hangs is given up.
    node.wait("innocent", "Ready", SOON, PodState::is_ready)?;
    ends(&node, "bystander", &bystander, &notes)?;
    node.gone("bystander")?;

    let refused = node.wait("stuck", "refused with FailedMount", POD_LIMIT, |pod| {
        let told = events(pod).unwrap_or_default();
        told.contains("FailedMount") && told.contains("still waiting since")
    })?;
    same("why it waits", refused.waits_for("main"), "ContainerCreating")?;
    is_quiet(&node)?;
    berth(&["pods"])?;
    wait::until("the stall to last", STALL * 2, || {
        Ok(if began.elapsed() >= STALL { Look::Ready(()) } else { Look::NotYet("short yet".to_owned()) })
    })?;
    if server == Server::Reads {
        let later = hanging(&node, "stuck", "the same", |all| all.len() == PER_POD)?;
        same("who hangs after retries", processes(&later), processes(&first))?;
    }

    stop(&mut node)?;
    node.agent.start()?;
    if server == Server::Reads {
        let found = hanging(&node, "stuck", "what did before", |all| all.len() == PER_POD)?;
        ensure!(processes(&first).is_subset(&processes(&found)), "found {found:?}, there was {first:?}");
    }
    // A pod that hangs can be deleted.
    node.remove("stuck")?;
    node.gone("stuck")?;

    dead.release()?;
    node.ready("heals")?;
    node.ready("part")?;
    for name in ["heals", "part"] {
        hanging(&node, name, "nothing", <[Value]>::is_empty)?;
    }
    stop(&mut node)?;
    node.agent.start()?;
    let workers = Path::new(STATE_DIR).join("workers");
    eventually("workers at rest to end", &0, || Ok(files::list(&workers)?.len()))?;
    node.end()
}

fn frozen_logs() -> Result<()> {
    let logs = Path::new("/var/log");
    let image = Path::new("/run/var-log.ext4");
    let disk = Disk::mount(logs, image)?;
    let mut node = Node::start()?;
    let notes = notes(&node)?;
    for name in ["bystander", "leaves"] {
        node.apply(name, &with_volumes(name, &notes, &[], &[]))?;
    }
    let count = "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.1; done";
    node.apply("logging", &pod("logging", json!({ "containers": [shell("main", count, json!({}))] })))?;
    let leaves = node.ready("leaves")?;
    let logging = node.ready("logging")?;
    node.ready("bystander")?;

    let stalled_logs =
        || -> Result<Value> { Ok(berth_json(&["inspect", "logging-lab"])?["berth"]["stalledLogs"].clone()) };
    same("stalled logs", stalled_logs()?, json!([]))?;
    let frozen = disk.freeze()?;
    let began = Instant::now();
    eventually(
        "the stalled log to be shown",
        &json!("main"),
        || Ok(stalled_logs()?[0]["container"].clone()),
    )?;
    node.apply("waits", &with_volumes("waits", &notes, &[], &[]))?;
    let stuck =
        hanging(&node, "waits", "its directories", |all| all.iter().any(|one| one["what"] == "directories"))?;
    ends(&node, "leaves", &leaves, &notes)?;
    is_quiet(&node)?;
    berth(&["pods"])?;
    stop(&mut node)?;
    node.agent.start()?;
    let found =
        hanging(&node, "waits", "its directories", |all| all.iter().any(|one| one["what"] == "directories"))?;
    ensure!(!processes(&found).is_disjoint(&processes(&stuck)), "found {found:?}, there was {stuck:?}");
    wait::until("the stall to last", STALL * 2, || {
        Ok(if began.elapsed() >= STALL { Look::Ready(()) } else { Look::NotYet("short yet".to_owned()) })
    })?;
    drop(frozen);

    node.ready("waits")?;
    node.gone("leaves")?;
    eventually("no stalled log to be shown", &json!([]), stalled_logs)?;
    let after = node.ready("logging")?;
    same("restarts", after.restarts("main"), 0)?;
    same("container", after.container_id("main")?, logging.container_id("main")?)?;
    node.end()?;
    disk.unmount()
}

fn silent_containerd() -> Result<()> {
    let mut node = Node::start()?;
    let notes = notes(&node)?;
    for name in ["bystander", "leaves"] {
        node.apply(name, &with_volumes(name, &notes, &[], &[]))?;
    }
    let leaves = node.ready("leaves")?;
    let bystander = node.ready("bystander")?;

    // Stopped, it accepts connections and answers nothing.
    node.containerd.freeze()?;
    let began = Instant::now();
    node.apply("waits", &with_volumes("waits", &notes, &[], &[]))?;
    ends(&node, "leaves", &leaves, &notes)?;
    is_quiet(&node)?;
    let shown = berth(&["pods"])?;
    ensure!(shown.contains("bystander-lab"), "{shown}");
    wait::until("the stall to last", STALL * 2, || {
        Ok(if began.elapsed() >= STALL { Look::Ready(()) } else { Look::NotYet("short yet".to_owned()) })
    })?;
    stop(&mut node)?;
    node.containerd.thaw()?;
    node.agent.start()?;

    node.ready("waits")?;
    node.gone("leaves")?;
    same("the bystander", node.ready("bystander")?.container_id("main")?, bystander.container_id("main")?)?;
    node.end()
}

/// The agent can be stopped although what is kept of an ended pod cannot be read to its end.
fn root_hangs() -> Result<()> {
    let mut node = Node::prepare(&Settings::default())?;
    let ended = Path::new(ROOT_DIR).join("berth/ended");
    fs::create_dir_all(&ended)?;
    let hangs = ended.join("hangs.state");
    mkfifo(&hangs, Mode::S_IRUSR | Mode::S_IWUSR)?;
    // It would abort there, and is not to come so far.
    node.agent.start_doomed("agent.restored")?;
    let written = wait::until("the agent to read", POD_LIMIT, || {
        let opened = OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&hangs);
        Ok(match opened {
            Ok(file) => Look::Ready(file),
            Err(failure) => Look::NotYet(failure.to_string()),
        })
    })?;
    stop(&mut node)?;
    drop(written);
    fs::remove_file(&hangs)?;

    // The same of a pod's directory, whose mark is looked for, as far as the kernel lets go of who waits.
    fs::create_dir_all(Path::new(ROOT_DIR).join("pods"))?;
    let dead = DeadFs::mount(&Path::new(ROOT_DIR).join("pods/unknown"), Server::Sleeps)?;
    node.agent.start_doomed("agent.restored")?;
    let pid = node.agent.pid().context("no agent")?;
    eventually("a thread of the agent to hang", &true, || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("list the threads of the agent")?;
        let waits = |task: fs::DirEntry| fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
        Ok(tasks.filter_map(Result::ok).any(|task| waits(task) == "request_wait_answer"))
    })?;
    stop(&mut node)?;
    dead.release()?;
    fs::remove_dir(Path::new(ROOT_DIR).join("pods/unknown"))?;
    node.agent.start()?;
    node.end()
}

/// At this level all that a source wants is a line.
const TELLS_ALL: u32 = 6;
/// Three lines of this length are more than the agent keeps of its log (`WAITING_MAX` of the agent).
const LONG_LINE: usize = 400 << 10;

/// The agent works while nobody takes its log, ends in time also when it has something to say, and goes on with its log, with the
/// number of the lines that were lost, as soon as somebody takes it.
fn unread_log() -> Result<()> {
    let kubelet = json!({ "logging": { "verbosity": TELLS_ALL } });
    let mut node = Node::prepare(&Settings { kubelet, ..Settings::default() })?;
    let (mut refused, unread) = untaken(berth_command(&["run", "--config", "/nowhere"])?)?;
    ensure!(!ends_soon(&mut refused)?.success(), "it ran without a configuration");
    drop(unread);

    let (mut agent, unread) = untaken(node.agent.command()?)?;
    eventually("the agent to answer", &true, || Ok(node.pods().is_ok()))?;
    let mut long: Value = serde_json::from_str(&sleeper("long"))?;
    long["metadata"]["annotations"] = json!({ "note": "x".repeat(LONG_LINE) });
    node.apply("long", &long.to_string())?;
    node.ready("long")?;
    for name in ["second", "third"] {
        node.apply(name, &sleeper(name))?;
        node.ready(name)?;
    }
    let log = node.world.root().join("taken.log");
    let said =
        |text: &str| eventually(text, &true, || Ok(String::from_utf8_lossy(&fs::read(&log)?).contains(text)));
    take(unread, File::create(&log)?);
    said("lines of it are lost lines=")?;
    terminate(&mut agent)?;
    said("stopping; pods go on")?;

    let (mut agent, _unread) = untaken(node.agent.command()?)?;
    eventually("the next agent to answer", &true, || Ok(node.pods().is_ok()))?;
    terminate(&mut agent)?;
    node.agent.start()?;
    node.end()
}

/// Starts an agent whose log is a pipe that is full, with the end at which nobody reads.
fn untaken(mut command: Command) -> Result<(Child, PipeReader)> {
    let (reader, mut full) = io::pipe()?;
    let capacity = usize::try_from(fcntl(&full, FcntlArg::F_GETPIPE_SZ)?)?;
    full.write_all(&vec![b'\n'; capacity])?;
    let agent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).spawn()?;
    Ok((agent, reader))
}

/// Takes from now on what is in a pipe.
fn take(mut pipe: PipeReader, mut file: File) {
    thread::spawn(move || io::copy(&mut pipe, &mut file));
}

fn terminate(agent: &mut Child) -> Result<()> {
    kill(Pid::from_raw(i32::try_from(agent.id())?), Signal::SIGTERM)?;
    let status = ends_soon(agent)?;
    ensure!(status.success(), "the agent ended with {status}");
    Ok(())
}

fn ends_soon(agent: &mut Child) -> Result<ExitStatus> {
    in_time(|| {
        wait::until("the agent to end", POD_LIMIT, || {
            Ok(agent.try_wait()?.map_or_else(|| Look::NotYet("it runs".to_owned()), Look::Ready))
        })
    })
}
