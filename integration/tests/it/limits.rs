//! Memory and tasks: who goes beyond a bound is stopped, and nobody else.

use anyhow::{Result, ensure};
use berth_integration::agent::{Settings, berth_output};
use berth_integration::cgroup;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use serde_json::{Value, json};

use crate::kit::{
    container_group, eventually, go_on, group, inside, logged, logs, pod, shared_memory, shell, sleeper,
    task_pid, wait_at,
};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("limits::a_container_over_its_memory_is_killed_alone", container_memory),
        test("limits::a_pod_over_its_memory_loses_one_container", pod_memory),
        test("limits::a_child_over_the_memory_takes_its_container_along", child_with_container),
        test("limits::a_child_over_the_memory_is_killed_alone_if_asked_for", child_alone),
        test("limits::a_fork_bomb_stays_within_its_pod", fork_bomb),
    ]
}

/// Takes memory until it is killed.
const EAT: &str = "exec tail /dev/zero";
const KILLED: (Option<&str>, Option<i64>) = (Some("OOMKilled"), Some(137));

fn bound(name: &str, script: &str, memory: &str) -> Value {
    shell(name, script, json!({ "resources": { "limits": { "memory": memory } } }))
}

fn how_it_ended(state: &Value) -> (Option<&str>, Option<i64>) {
    (state["terminated"]["reason"].as_str(), state["terminated"]["exitCode"].as_i64())
}

/// That a container runs on in the process that it had.
fn lives_on(node: &Node, before: &PodState, pod: &str, container: &str) -> Result<()> {
    let now = node.ready(pod)?;
    same("restarts", now.restarts(container), 0)?;
    let pid = |state: &PodState| task_pid(state.container_id(container)?);
    same("id", now.container_id(container)?, before.container_id(container)?)?;
    same(&format!("process of {container}"), pid(&now)?, pid(before)?)
}

/// It begins again, like after any other failure.
fn container_memory() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        ..Settings::default()
    })?;
    node.apply("other", &sleeper("other"))?;
    // The directory stays with the pod: the second run does no harm.
    let once = format!(
        "[ -e /dev/shm/ate ] && exec sleep infinity; {}
        touch /dev/shm/ate; {EAT}",
        wait_at("go")
    );
    let containers = [bound("eater", &once, "24Mi"), bound("beside", "exec sleep infinity", "24Mi")];
    node.apply("pod", &pod("pod", json!({ "containers": containers })))?;
    let (other, before) = (node.ready("other")?, node.ready("pod")?);
    go_on(&before, "eater", "go")?;
    let after =
        node.wait("pod", "restarted", POD_LIMIT, |pod| pod.restarts("eater") == 1 && pod.is_ready())?;
    same("how it ended", how_it_ended(&after.container("eater")["lastState"]), KILLED)?;
    lives_on(&node, &before, "pod", "beside")?;
    lives_on(&node, &other, "other", "main")?;
    same("refusals by the pod's bound", group(&node.world, &after)?.memory_refusals()?, 0)?;
    node.end()
}

/// None of its containers is over a bound of its own.
fn pod_memory() -> Result<()> {
    let node = Node::start()?;
    node.apply("other", &sleeper("other"))?;
    let holds =
        format!("dd if=/dev/zero of=/dev/shm/held bs=1M count=32 2>/dev/null; {}; exit 0", wait_at("end"));
    let eats = format!("{}; {EAT}", wait_at("go"));
    node.apply(
        "pod",
        &pod(
            "pod",
            json!({
                "restartPolicy": "Never",
                "resources": { "limits": { "memory": "56Mi" } },
                "containers": [shell("holder", &holds, json!({})), shell("eater", &eats, json!({}))],
            }),
        ),
    )?;
    let (other, before) = (node.ready("other")?, node.ready("pod")?);
    let level = group(&node.world, &before)?;
    same("bound", level.bounds()?.memory_bytes, Some(56 << 20))?;
    // Whatever else of the pod takes memory while it is short may be killed instead.
    let waits = shared_memory(&before, "holder", "end")?;
    eventually("the holder to be at rest", &true, || Ok(waits.exists()))?;
    go_on(&before, "eater", "go")?;
    let ended =
        |name: &'static str| move |pod: &PodState| pod.container(name)["state"]["terminated"].is_object();
    let after = node.wait("pod", "less one container", POD_LIMIT, ended("eater"))?;
    same("how it ended", how_it_ended(&after.container("eater")["state"]), KILLED)?;
    ensure!(level.memory_refusals()? > 0, "the pod's bound was not met");
    let pid = |pod: &PodState| task_pid(pod.container_id("holder")?);
    same("process of the other container", pid(&after)?, pid(&before)?)?;
    lives_on(&node, &other, "other", "main")?;
    // The kernel tells every container of the pod about the kill, and only one was killed.
    go_on(&after, "holder", "end")?;
    let last = node.wait("pod", "ended", POD_LIMIT, ended("holder"))?;
    same("the other one", how_it_ended(&last.container("holder")["state"]), (Some("Completed"), Some(0)))?;
    same("phase", last.phase(), "Failed")?;
    node.end()
}

/// Version 1 cannot do that.
fn child_with_container() -> Result<()> {
    child_memory(json!({}), cgroup::is_unified())
}

fn child_alone() -> Result<()> {
    child_memory(json!({ "singleProcessOOMKill": true }), false)
}

/// A child of the container's first process is killed for memory.
fn child_memory(kubelet: Value, together: bool) -> Result<()> {
    let node = Node::start_with(&Settings { kubelet, ..Settings::default() })?;
    let parent =
        format!("{}; tail /dev/zero; echo the child ended with $?; exec sleep infinity", wait_at("go"));
    let containers = [bound("parent", &parent, "24Mi"), bound("beside", "exec sleep infinity", "24Mi")];
    node.apply("pod", &pod("pod", json!({ "restartPolicy": "Never", "containers": containers })))?;
    let before = node.ready("pod")?;
    go_on(&before, "parent", "go")?;
    if together {
        let ended = |pod: &PodState| pod.container("parent")["state"]["terminated"].is_object();
        let after = node.wait("pod", "less one container", POD_LIMIT, ended)?;
        same("how it ended", how_it_ended(&after.container("parent")["state"]), KILLED)?;
        same("its log", logs(&after, "parent", &[])?.as_str(), "")?;
        let pid = |pod: &PodState| task_pid(pod.container_id("beside")?);
        same("process of the other container", pid(&after)?, pid(&before)?)?;
    } else {
        logged(&before, "parent", "the child ended with 137\n")?;
        lives_on(&node, &before, "pod", "parent")?;
        lives_on(&node, &before, "pod", "beside")?;
        same("kills", container_group(&node.world, &before, "parent")?.oom_kills()?, 1)?;
    }
    node.end()
}

/// Makes processes for ever: a shell that reads commands goes on after one that is refused.
const BOMB: &str = "yes 'sleep 1000 &' | sh -i > /dev/null 2>&1 & exec sleep infinity";
const TASKS: usize = 48;
/// As many at once as fit beside a shell.
const FORKS: &str = "for i in $(seq 40); do sleep 1 & done; wait; echo forked";

fn fork_bomb() -> Result<()> {
    let node =
        Node::start_with(&Settings { kubelet: json!({ "podPidsLimit": TASKS }), ..Settings::default() })?;
    node.apply("fine", &sleeper("fine"))?;
    // The machine has other work.
    let slow = json!({ "resources": { "limits": { "cpu": "200m" } } });
    let bomb = format!("{}; {BOMB}", wait_at("go"));
    let containers = [shell("main", &bomb, slow.clone()), shell("beside", "exec sleep infinity", slow)];
    node.apply("bomb", &pod("bomb", json!({ "containers": containers })))?;
    let (fine, bomb) = (node.ready("fine")?, node.ready("bomb")?);
    let level = group(&node.world, &bomb)?;
    let own = container_group(&node.world, &bomb, "main")?;
    // Version 1 counts a refusal where the fork was tried, version 2 where the bound is.
    let refusals =
        || -> Result<u64> { Ok(level.count("pids.events", "max")? + own.count("pids.events", "max")?) };
    // Not before all containers run: a runtime puts processes into a full group too.
    go_on(&bomb, "main", "go")?;
    eventually("a fork to be refused", &true, || Ok(refusals()? > 0))?;
    // The kernel's own count is for a moment that of those that are refused too.
    for _ in 0..100 {
        let living = own.members()?.len() + container_group(&node.world, &bomb, "beside")?.members()?.len();
        ensure!(living <= TASKS, "{living} tasks");
    }
    same("forks of another pod", inside(&fine, FORKS)?.as_str(), "forked")?;
    // Whether a command can begin there is up to chance; that it comes to an end is not.
    let _begun = berth_output(&["exec", bomb.name(), "--container", "main", "--", "true"])?;
    node.apply("new", &sleeper("new"))?;
    node.ready("new")?;
    let before = refusals()?;
    eventually("more to be refused", &true, || Ok(refusals()? > before))?;
    lives_on(&node, &bomb, "bomb", "beside")?;
    lives_on(&node, &fine, "fine", "main")?;
    node.remove("bomb")?;
    node.gone("bomb")?;
    same("its groups", level.dirs()?, Vec::new())?;
    node.end()
}
