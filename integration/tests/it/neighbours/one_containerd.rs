//! A second Berth at the containerd of the first: whose a record is, its label tells (decision 0027).

use anyhow::{Context, Result};
use berth_integration::components;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use super::second::Second;
use crate::kit::{IMAGE, inside, sleeper};
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
    inside(&node.ready("ours")?, "echo kept > /kept")?;
    let records = Records::open()?;
    let lives = |node: &Node| -> Result<[Identity; 2]> {
        let ours = node.ready("ours")?;
        same("what ours has written", inside(&ours, "cat /kept")?.as_str(), "kept")?;
        Ok([Identity::of(&node.ready("ours")?)?, Identity::of(&node.ready("twin")?)?])
    };
    let before = lives(&node)?;

    let mut second = Second::start_beside(&node, &components::bin_dir())?;
    second.apply(&sleeper("theirs"))?;
    let theirs = Identity::of(&second.ready()?)?;
    let layers = || -> Result<Vec<String>> {
        let mut layers = records.snapshots_in_use()?;
        layers.sort();
        Ok(layers)
    };
    same("our pods beside a second agent", &lives(&node)?, &before)?;
    second.apply(&format!("{}\n---\n{}", sleeper("theirs"), twin()))?;
    refused(&second)?;
    second.apply(&sleeper("theirs"))?;
    wait::until("the second agent's twin to be gone", POD_LIMIT, || {
        let shown = second.pods()?.len();
        Ok(if shown == 1 { Look::Ready(()) } else { Look::NotYet(format!("{shown} pods")) })
    })?;
    same("our pods when it has given up a pod of the same UID", &lives(&node)?, &before)?;

    let written = layers()?;
    second.kill_agent()?;
    second.start_agent()?;
    same("its own pod after SIGKILL", &Identity::of(&second.ready()?)?, &theirs)?;
    same("our pods after its SIGKILL", &lives(&node)?, &before)?;
    node.agent.kill()?;
    node.agent.start()?;
    same("our pods after ours", &lives(&node)?, &before)?;
    same("layers of containers of both", &layers()?, &written)?;
    same("its pod after ours", &Identity::of(&second.ready()?)?, &theirs)?;
    second.end()?;
    same("our pods without it", &lives(&node)?, &before)?;
    node.end()
}

/// The pod of a UID that is taken says so, and never runs. It has no network of its own, whose name would be taken too.
fn refused(second: &Second) -> Result<()> {
    wait::until("the second agent to refuse the twin", POD_LIMIT, || {
        let events = second.events(TWIN)?;
        let is_refused = events.iter().any(|event| event.message.contains("made by another agent"));
        Ok(if is_refused { Look::Ready(()) } else { Look::NotYet(format!("{events:?}")) })
    })?;
    let shown = second.pods()?;
    let twin = shown.iter().find(|pod| pod.uid() == TWIN).context("the twin is not shown")?;
    let state = &twin.container("main")["state"];
    same("the state of its container", &state["waiting"]["reason"], &json!("ContainerCreating"))
}

fn twin() -> String {
    let container = json!({ "name": "main", "image": IMAGE, "command": ["/bin/sleep", "infinity"] });
    let spec: Value =
        json!({ "terminationGracePeriodSeconds": 1, "hostNetwork": true, "containers": [container] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "twin", "uid": TWIN }, "spec": spec })
        .to_string()
}
