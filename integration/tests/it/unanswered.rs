//! The agent's own directories do not answer: the agent says what it waits for, and it can be stopped and started.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_integration::agent::{Settings, berth};
use berth_integration::node::Node;
use serde_json::json;

use crate::dead_fs::{DeadFs, Server};
use crate::kit::eventually;
use crate::suite::{Test, test};

/// How long the agent may take to end.
const STOP: Duration = Duration::from_secs(2);

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("unanswered::manifests_whose_server_never_answers", dead_manifests),
    ]
}

fn dead_manifests() -> Result<()> {
    let dir = PathBuf::from("/run/dead");
    let settings = Settings {
        kubelet: json!({ "staticPodPath": dir, "fileCheckFrequency": "1s" }),
        ..Settings::default()
    };
    let mut node = Node::start_with(&settings)?;
    let dead = DeadFs::mount(&dir, Server::Reads)?;
    eventually("the manifests to be named", &true, || Ok(berth(&["pods"])?.contains("still waiting since")))?;
    stop(&mut node)?;
    node.agent.start()?;
    stop(&mut node)?;
    dead.release()?;
    node.agent.start()?;
    eventually("the manifests to be read", &false, || Ok(berth(&["pods"])?.contains("still waiting since")))?;
    node.end()
}

fn stop(node: &mut Node) -> Result<()> {
    let began = Instant::now();
    node.agent.stop()?;
    ensure!(began.elapsed() < STOP, "the agent took {:?} to end", began.elapsed());
    Ok(())
}
