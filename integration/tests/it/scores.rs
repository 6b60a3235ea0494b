//! Who is killed first when the machine has no memory left: workers, shims and containers have scores of their own,
//! not the agent's. CNI plugins have the agent's, as those of containerd's CRI have containerd's.

use std::fs;

use anyhow::{Context, Result};
use berth_integration::agent::Settings;
use berth_integration::node::Node;
use serde_json::json;

use crate::cgroup_files::{may_lower_scores, score};
use crate::kit::{eventually, pod, shell, sleeper, task_pid};
use crate::lives::shim_of;
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("scores::the_agents_own_is_the_kubelets", own),
        test("scores::workers_shims_and_containers_have_their_own", started),
    ]
}

fn own() -> Result<()> {
    let node = Node::start()?;
    // Without the capability it keeps what it was given by this process, whose child it is.
    let wanted = if may_lower_scores()? { -999 } else { score("self")? };
    same("the agent's", score(&agent(&node)?)?, wanted)?;
    node.end()
}

fn started() -> Result<()> {
    /// Nobody else's, and one that any machine lets the agent have.
    const OF_AGENT: i64 = 500;
    let node =
        Node::start_with(&Settings { kubelet: json!({ "oomScoreAdj": OF_AGENT }), ..Settings::default() })?;
    let agent = agent(&node)?;
    same("the agent's", score(&agent)?, OF_AGENT)?;
    let sure = json!({ "resources": { "limits": { "cpu": "50m", "memory": "24Mi" } } });
    let sure = json!({ "containers": [shell("main", "exec sleep infinity", sure)] });
    node.apply("sure", &pod("sure", sure))?;
    node.apply("best", &sleeper("best"))?;
    let floor = if may_lower_scores()? { -1000 } else { score("self")? };
    for (name, of_container) in [("sure", floor.max(-997)), ("best", 1000)] {
        let pod = node.ready(name)?;
        same(name, score(&task_pid(pod.container_id("main")?)?.to_string())?, of_container)?;
        same("its shim's", score(&shim_of(&pod)?.to_string())?, floor.max(-998))?;
    }
    // A worker stays for a moment after its last work, and is started with the score of who starts it.
    node.apply("next", &sleeper("next"))?;
    eventually("a worker with the score of any process", &true, || {
        let scores: Vec<_> = workers(&node, &agent)?.iter().filter_map(|pid| score(pid).ok()).collect();
        Ok(!scores.is_empty() && scores.iter().all(|score| *score == 0))
    })?;
    same("the agent's", score(&agent)?, OF_AGENT)?;
    node.end()
}

fn agent(node: &Node) -> Result<String> {
    Ok(node.agent.pid().context("no agent")?.to_string())
}

/// The agent's own processes.
fn workers(node: &Node, agent: &str) -> Result<Vec<String>> {
    let is_of_agent = |pid: &String| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent.is_some_and(|parent| parent.trim() == agent) && line.contains("file_worker")
    };
    Ok(node.world.processes()?.iter().map(u32::to_string).filter(is_of_agent).collect())
}
