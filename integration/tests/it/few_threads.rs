//! The kernel lets the agent make no thread and no process, as when a pod uses up all of them: the agent goes on, says so, and
//! does its work as soon as it can.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{STATE_DIR, berth};
use berth_integration::cgroup::{Group, is_unified};
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};

use crate::kit::{SOON, eventually, sleeper};
use crate::suite::{Test, same, test};

/// Longer than the agent keeps a thread that has nothing to do.
const LONGER_THAN_KEPT: Duration = Duration::from_secs(3);

/// What the kernel says.
const REFUSED: &str = "Resource temporarily unavailable";

pub(crate) fn tests() -> Vec<Test> {
    vec![test("few_threads::the_agent_goes_on_without_new_ones", goes_on).long()]
}

fn goes_on() -> Result<()> {
    let mut node = Node::start()?;
    node.apply("runs", &sleeper("runs"))?;
    let runs = node.ready("runs")?;
    let agent = node.agent.pid().context("the agent has a process")?;

    // Each worker is a process, and one at rest would do what is to be refused.
    let workers = Path::new(STATE_DIR).join("workers");
    eventually("workers at rest to end", &0, || Ok(fs::read_dir(&workers)?.count()))?;
    let home = group_of(agent)?;
    let bound = Group::new(node.world.cgroup()).below("agent").dir("pids");
    fs::create_dir_all(&bound).with_context(|| format!("make {}", bound.display()))?;
    fs::write(bound.join("cgroup.procs"), agent.to_string())?;
    // Fewer than there are: one that ends makes no room for another.
    fs::write(bound.join("pids.max"), "1")?;

    let bounded = Instant::now();
    node.apply("late", &sleeper("late"))?;
    wait::until("the agent to tell of what it is refused", SOON, || {
        ensure!(!node.agent.ended()?, "the agent ended with {:?}", node.agent.status()?);
        ensure!(berth(&["pods"])?.contains("runs"), "{}", berth(&["pods"])?);
        let is_told = fs::read_to_string(node.agent.log())?.contains(REFUSED);
        let is_over = is_told && bounded.elapsed() > LONGER_THAN_KEPT;
        Ok(if is_over { Look::Ready(()) } else { Look::NotYet(format!("told: {is_told}")) })
    })?;

    fs::write(home.dir("pids").join("cgroup.procs"), agent.to_string())?;
    fs::remove_dir(&bound)?;
    let late = node.ready("late")?;
    same("restarts of what waited", late.restarts("main"), 0)?;
    let still = node.ready("runs")?;
    same("what ran before", still.container_id("main")?, runs.container_id("main")?)?;
    same("the agent's process", node.agent.pid(), Some(agent))?;
    node.end()
}

/// Where the tasks of a process are counted.
fn group_of(process: u32) -> Result<Group> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    let path = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_it = controllers == if is_unified() { "" } else { "pids" };
        is_it.then_some(path)
    });
    Ok(Group::new(path.with_context(|| format!("no controller pids in {text}"))?))
}
