//! containerd is killed inside an operation on a pod: the pod gets where it was to go, nothing is done twice, and the pods
//! beside it do not notice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{Settings, berth_command};
use berth_integration::announced::{Announced, Side};
use berth_integration::components;
use berth_integration::node::{Node, POD_LIMIT, system};
use berth_integration::wait::{self, Look};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::crash;
use crate::kit::{eventually, inside, pod, shell, sleeper, task_pid};
use crate::lives::{Identity, SHIM_KILLED, shim_of, waits_for_a_file};
use crate::suite::{Body, LONG_LIMIT, Test, of, same, test};

/// Labels at which an agent dies that looks what became of a start.
pub(crate) const DEATHS: [&str; 2] = ["look-at-task.before", "look-at-task.after"];

pub(crate) fn tests() -> Vec<Test> {
    let deaths = DEATHS
        .map(|label| of(format!("interrupted::killed_at_{label}"), Body::Of(unanswered, label.to_owned())));
    let mut tests = vec![
        test("interrupted::create_and_start_of_a_pods_container", making),
        test("interrupted::a_creation_that_is_undone_is_no_run", undone),
        test("interrupted::exec_in_a_pod", exec),
        test("interrupted::exit_of_a_pods_container", exit),
        test("interrupted::end_of_a_pod", deleting),
        test("interrupted::a_pod_ends_in_grace_while_containerd_is_down", graceful),
        test("interrupted::a_start_by_the_end_of_the_shim", shimless),
        of(
            "interrupted::a_start_that_nobody_answered_ends_in_grace".to_owned(),
            Body::Of(unanswered, String::new()),
        ),
        test("interrupted::a_shim_that_containerd_has_forgotten_ends_with_its_pod", forgotten),
        test("interrupted::a_shim_that_hangs_holds_up_no_other_pod", hung_shim).long().within(LONG_LIMIT),
    ];
    tests.extend(deaths);
    tests
}

/// A node whose runtime can be held, with one pod that is not to notice anything.
struct Scene {
    node: Node,
    runtime: Announced,
    bystander: Identity,
    dir: PathBuf,
}

impl Scene {
    fn set() -> Result<Self> {
        let runtime = Announced::install(Path::new("/run/announced"), "runc", &components::binary("runc")?)?;
        let node = Node::start_with(&Settings {
            berth: json!({ "runtime": { "ociRuntime": "runc" } }),
            path_first: Some(runtime.dir().to_owned()),
            ..Settings::default()
        })?;
        node.apply("bystander", &sleeper("bystander"))?;
        let bystander = Identity::of(&node.ready("bystander")?)?;
        let dir = node.world.root().join("dir");
        fs::create_dir(&dir)?;
        Ok(Self { node, runtime, bystander, dir })
    }

    /// A manifest of a pod that notes each of its starts, and its end when it is asked to.
    fn noting(&self, name: &str) -> String {
        let script = format!(
            "trap 'echo asked >> /v/{name}.end; exit 0' TERM; echo started >> /v/{name}.starts; sleep 1000 & wait"
        );
        pod(
            name,
            json!({
                "terminationGracePeriodSeconds": 20,
                "containers": [shell("main", &script, json!({
                    "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
                }))],
                "volumes": [{ "name": "v", "hostPath": { "path": self.dir } }],
            }),
        )
    }

    /// From now on there is an agent that dies at a label, if one is given.
    fn doom(&mut self, label: &str) -> Result<()> {
        if label.is_empty() {
            return Ok(());
        }
        self.node.agent.kill()?;
        self.node.agent.start_doomed(label)?;
        wait::until("the doomed agent to answer", POD_LIMIT, || {
            Ok(self.node.pods().map_or_else(|why| Look::NotYet(format!("{why:#}")), |_| Look::Ready(())))
        })
    }

    fn starts(&self, name: &str) -> usize {
        fs::read_to_string(self.dir.join(format!("{name}.starts"))).unwrap_or_default().lines().count()
    }

    fn end(self) -> Result<()> {
        same("the pod beside", Identity::of(&self.node.ready("bystander")?)?, self.bystander)?;
        self.node.end()
    }
}

fn making() -> Result<()> {
    let mut scene = Scene::set()?;
    for (name, command, side) in [
        ("create-early", "create", Side::Before),
        ("create-late", "create", Side::After),
        ("start-early", "start", Side::Before),
        ("start-late", "start", Side::After),
    ] {
        let held = scene.runtime.hold(side, command)?;
        scene.node.apply(name, &scene.noting(name))?;
        held.reached()?;
        scene.node.containerd.kill()?;
        if side == Side::Before {
            scene.node.containerd.start_again()?;
            held.release()?;
        } else {
            held.release()?;
            scene.node.containerd.start_again()?;
        }
        let pod = scene.node.ready(name).with_context(|| name.to_owned())?;
        same(&format!("restarts of {name}"), pod.restarts("main"), 0)?;
        eventually("its start", &1, || Ok(scene.starts(name)))?;
        let id = pod.container_id("main")?;
        ensure!(scene.runtime.calls("start", id)? == 1, "{name} was started more than once");
    }
    for name in ["create-early", "create-late", "start-early", "start-late"] {
        same(&format!("starts of {name}"), scene.starts(name), 1)?;
    }
    scene.end()
}

/// The agent dies inside a creation, which containerd then undoes: the container is killed before it was started. The next agent
/// asks for it again, under the same id.
fn undone() -> Result<()> {
    let mut scene = Scene::set()?;
    for (name, side) in [("early", Side::Before), ("late", Side::After)] {
        let held = scene.runtime.hold(side, "create")?;
        scene.node.apply(name, &scene.noting(name))?;
        held.reached()?;
        scene.node.agent.kill()?;
        scene.node.agent.start()?;
        held.release()?;
        let pod = scene.node.ready(name).with_context(|| name.to_owned())?;
        eventually("its start", &1, || Ok(scene.starts(name)))?;
        same(&format!("restarts of {name}"), pod.restarts("main"), 0)?;
    }
    scene.end()
}

/// An exec by the agent does not need containerd at all.
fn exec() -> Result<()> {
    let mut scene = Scene::set()?;
    scene.node.apply("one", &scene.noting("one"))?;
    let one = scene.node.ready("one")?;
    let before = Identity::of(&one)?;
    for side in [Side::Before, Side::After] {
        let held = scene.runtime.hold(side, "exec")?;
        let command = ["exec", one.name(), "--", "sh", "-c", "echo through; exit 9"];
        let asked = berth_command(&command)?.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        held.reached()?;
        scene.node.containerd.kill()?;
        held.release()?;
        let done = asked.wait_with_output()?;
        same("what it said", String::from_utf8_lossy(&done.stdout).as_ref(), "through\n")?;
        same("its code", done.status.code(), Some(9))?;
        scene.node.containerd.start_again()?;
    }
    same("the pod", Identity::of(&scene.node.ready("one")?)?, before)?;
    scene.end()
}

/// The exit meets a containerd that hangs and dies.
fn exit() -> Result<()> {
    let mut scene = Scene::set()?;
    scene.node.apply("ends", &waits_for_a_file("ends", &scene.dir))?;
    let pid = task_pid(scene.node.ready("ends")?.container_id("main")?)?;
    scene.node.containerd.freeze()?;
    fs::write(scene.dir.join("go"), "")?;
    eventually("the process to end", &false, || Ok(Path::new(&format!("/proc/{pid}")).exists()))?;
    scene.node.containerd.kill()?;
    scene.node.containerd.start_again()?;
    let ended = scene.node.wait("ends", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("code", ended.container("main")["state"]["terminated"]["exitCode"].as_i64(), Some(6))?;
    scene.end()
}

fn deleting() -> Result<()> {
    let mut scene = Scene::set()?;
    for (name, side) in [("early", Side::Before), ("late", Side::After)] {
        scene.node.apply(name, &scene.noting(name))?;
        scene.node.ready(name)?;
        eventually("its start", &1, || Ok(scene.starts(name)))?;
        let held = scene.runtime.hold(side, "delete")?;
        scene.node.remove(name)?;
        held.reached()?;
        scene.node.containerd.kill()?;
        scene.node.containerd.start_again()?;
        held.release()?;
        scene.node.gone(name)?;
        same("asked to end", fs::read_to_string(scene.dir.join(format!("{name}.end")))?.as_str(), "asked\n")?;
    }
    scene.end()
}

/// A pod is asked to end, and ends, with nobody but agent and shim; what containerd keeps goes when it is back.
fn graceful() -> Result<()> {
    let mut scene = Scene::set()?;
    scene.node.apply("one", &scene.noting("one"))?;
    let pid = task_pid(scene.node.ready("one")?.container_id("main")?)?;
    eventually("its start", &1, || Ok(scene.starts("one")))?;
    scene.node.containerd.kill()?;
    scene.node.remove("one")?;
    eventually("the process to end", &false, || Ok(Path::new(&format!("/proc/{pid}")).exists()))?;
    same("asked to end", fs::read_to_string(scene.dir.join("one.end"))?.as_str(), "asked\n")?;
    scene.node.containerd.start_again()?;
    scene.node.gone("one")?;
    scene.end()
}

/// The container runs, and containerd dies before it says so: removed just then, the pod is asked to end, and ends, with nobody
/// but agent and shim. An agent that dies where it looks for the container leaves that to the next one, which needs
/// containerd for it.
fn unanswered(label: &str) -> Result<()> {
    let mut scene = Scene::set()?;
    scene.doom(label)?;
    let start = scene.runtime.hold(Side::After, "start")?;
    scene.node.apply("one", &scene.noting("one"))?;
    start.reached()?;
    eventually("its start", &1, || Ok(scene.starts("one")))?;
    scene.node.containerd.kill()?;
    start.finish()?;
    scene.node.remove("one")?;
    if !label.is_empty() {
        crash::died_at(&mut scene.node, label, POD_LIMIT)?;
        scene.node.containerd.start_again()?;
        // With containerd back, whoever recovers need not look.
        crash::dies_at_once(&mut scene.node, crash::BEGUN, POD_LIMIT).context("while it recovers")?;
        scene.node.agent.start()?;
    }
    let asked = || Ok(fs::read_to_string(scene.dir.join("one.end")).unwrap_or_default());
    eventually("to be asked to end", &"asked\n".to_owned(), asked)?;
    if label.is_empty() {
        scene.node.containerd.start_again()?;
    }
    scene.node.gone("one")?;
    same("its starts", scene.starts("one"), 1)?;
    scene.end()
}

/// The container runs, and its shim dies before anybody hears of it: that run counts, and another follows.
fn shimless() -> Result<()> {
    let scene = Scene::set()?;
    let start = scene.runtime.hold(Side::After, "start")?;
    scene.node.apply("one", &scene.noting("one"))?;
    start.reached()?;
    eventually("its start", &1, || Ok(scene.starts("one")))?;
    let shim = shim_of(&scene.node.pod("one")?.context("no pod")?)?;
    start.lift()?;
    kill(Pid::from_raw(i32::try_from(shim)?), Signal::SIGKILL)?;
    let again = scene.node.ready("one")?;
    same("restarts", again.restarts("main"), 1)?;
    eventually("the second start", &2, || Ok(scene.starts("one")))?;
    scene.end()
}

/// containerd loses the shim's bundle, and so the shim, which lives.
fn forgotten() -> Result<()> {
    let mut scene = Scene::set()?;
    scene.node.apply("one", &sleeper("one"))?;
    let shim = shim_of(&scene.node.ready("one")?)?;
    let shim = Path::new("/proc").join(shim.to_string());
    let bundle = fs::read_link(shim.join("cwd"))?;
    scene.node.containerd.kill()?;
    system("umount", &[&bundle.join("shm").display().to_string()])?;
    fs::remove_dir_all(&bundle)?;
    scene.node.containerd.start_again()?;
    ensure!(shim.exists(), "containerd has ended it");
    scene.node.remove("one")?;
    scene.node.gone("one")?;
    eventually("the end of the shim", &false, || Ok(shim.exists()))?;
    scene.end()
}

/// How long a pod that is removed goes on whose shim hangs: what the core gives its signals (`SILENT_KILL_MAX`) and the
/// removal of its container (10 s), then six questions of ten seconds with 31 s between them, and as much of that again as
/// a busy machine takes.
pub(crate) const HUNG_LIMIT: Duration = Duration::from_secs(37 + 10 + 60 + 31 + 60);

/// Stopped with SIGSTOP, it answers nobody. Its pod goes all the same, and others come meanwhile.
fn hung_shim() -> Result<()> {
    let scene = Scene::set()?;
    scene.node.apply("stuck", &sleeper("stuck"))?;
    let stuck = scene.node.ready("stuck")?;
    let shim = Pid::from_raw(i32::try_from(shim_of(&stuck)?)?);
    kill(shim, Signal::SIGSTOP)?;
    scene.node.remove("stuck")?;
    scene.node.apply("fresh", &sleeper("fresh"))?;
    let fresh = scene.node.ready("fresh")?;
    same("exec", inside(&fresh, "echo works")?.as_str(), "works")?;
    wait::until("the pod to be given up", HUNG_LIMIT, || {
        Ok(match scene.node.pod("stuck")? {
            None => Look::Ready(()),
            Some(pod) => Look::NotYet(pod.to_string()),
        })
    })?;
    ensure!(!Path::new(&format!("/proc/{shim}/exe")).exists(), "the shim is left");
    eventually("it to be told that the shim was killed", &true, || {
        Ok(fs::read_to_string(scene.node.agent.log())?.contains(SHIM_KILLED))
    })?;
    scene.end()
}
