//! A second Berth at the containerd of the first: whose a record is, its label tells (decision 0027).

use anyhow::{Result, ensure};
use berth_integration::components;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use super::second::Second;
use crate::kit::{IMAGE, sleeper};
use crate::lives::Identity;
use crate::suite::{Test, same, test};

/// The same pod, down to its UID, for both agents.
const TWIN: &str = "0f5cf9a3-3e14-4d0d-8d3c-3a3a5f1b6c11";

pub(crate) fn tests() -> Vec<Test> {
    vec![test("neighbours::a_second_agent_at_the_same_containerd", live_on)]
}

fn live_on() -> Result<()> {
    let mut node = Node::start()?;
    node.apply("ours", &sleeper("ours"))?;
    node.apply("twin", &twin())?;
    let lives = |node: &Node| -> Result<[Identity; 2]> {
        Ok([Identity::of(&node.ready("ours")?)?, Identity::of(&node.ready("twin")?)?])
    };
    let before = lives(&node)?;

    let mut second = Second::start_beside(&node, &components::bin_dir())?;
    second.apply(&sleeper("theirs"))?;
    let theirs = Identity::of(&second.ready()?)?;
    same("our pods beside a second agent", &lives(&node)?, &before)?;
    second.apply(&format!("{}\n---\n{}", sleeper("theirs"), twin()))?;
    refused(&second)?;
    second.apply(&sleeper("theirs"))?;
    wait::until("the second agent's twin to be gone", POD_LIMIT, || {
        let shown = second.pods()?.len();
        Ok(if shown == 1 { Look::Ready(()) } else { Look::NotYet(format!("{shown} pods")) })
    })?;
    same("our pods when it has given up a pod of the same UID", &lives(&node)?, &before)?;

    second.kill_agent()?;
    second.start_agent()?;
    same("its own pod after SIGKILL", &Identity::of(&second.ready()?)?, &theirs)?;
    same("our pods after its SIGKILL", &lives(&node)?, &before)?;
    node.agent.kill()?;
    node.agent.start()?;
    same("our pods after ours", &lives(&node)?, &before)?;
    same("its pod after ours", &Identity::of(&second.ready()?)?, &theirs)?;
    second.end()?;
    same("our pods without it", &lives(&node)?, &before)?;
    node.end()
}

/// The pod of a UID that is taken says so, and never runs.
fn refused(second: &Second) -> Result<()> {
    let said = wait::until("the second agent to refuse the twin", POD_LIMIT, || {
        let shown = second.pods()?;
        let twin = shown.iter().find(|pod| pod.uid() == TWIN);
        let said = twin.map(|pod: &PodState| pod.0["status"].to_string()).unwrap_or_default();
        Ok(if said.contains("made by another agent") { Look::Ready(said) } else { Look::NotYet(said) })
    })?;
    ensure!(!said.contains("\"running\""), "it runs: {said}");
    Ok(())
}

fn twin() -> String {
    let container = json!({ "name": "main", "image": IMAGE, "command": ["/bin/sleep", "infinity"] });
    let spec: Value = json!({ "terminationGracePeriodSeconds": 1, "containers": [container] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "twin", "uid": TWIN }, "spec": spec })
        .to_string()
}
