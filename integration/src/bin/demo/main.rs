//! `scripts/demo`: a node in a private world, with the example pods on it.
//!
//! * `up` builds what is missing, starts the lab in the background and shows what runs in it;
//! * `--cluster` does so with a cluster that kubeadm makes of one machine, on which Berth is the kubelet;
//! * `run` and `shell` enter it;
//! * `down` removes the pods, ends the lab and fails when anything was left.
//!
//! Who looks around in it ends things: the agent, containerd and the registry are started again, as an init system would.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod background;
mod cluster;
mod keeper;
mod state;
mod tour;

use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use berth_integration::agent::Settings;
use berth_integration::node::Node;
use berth_integration::{lab, process::tail};

use crate::keeper::Keeper;

const USAGE: &str = "usage: scripts/demo [up | --cluster | down | shell | run COMMAND…]";
/// A cluster of one machine instead of a node alone.
const CLUSTER: &str = "--cluster";

fn main() -> ExitCode {
    if lab::inside() {
        let is_outermost = lab::supervises();
        let body = if env::args().any(|arg| arg == CLUSTER) { cluster::run } else { node };
        let code = lab::run(|| ended(body()));
        if is_outermost {
            state::tell_end(code == ExitCode::SUCCESS);
        }
        return code;
    }
    let args: Vec<String> = env::args().skip(1).collect();
    let (verb, rest) = args.split_first().map_or(("up", &args[..]), |(verb, rest)| (verb.as_str(), rest));
    ended(match (verb, rest) {
        ("up", []) => background::up(&[]),
        (CLUSTER, []) => background::up(&[CLUSTER]),
        ("down", []) => background::down(),
        ("shell", []) => background::enter(&["sh".to_owned()]),
        ("run", [_, ..]) => background::enter(rest),
        _ => Err(anyhow::anyhow!(USAGE)),
    })
}

fn ended(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("demo: {failure:#}");
            ExitCode::FAILURE
        }
    }
}

/// In the lab: the node, from its start to the request to stop.
fn node() -> Result<()> {
    println!("starting a registry, containerd and the agent");
    let mut node = Node::prepare(&Settings::with_registry())?;
    if let Err(failure) = node.agent.start().and_then(|()| tour::show(&node)) {
        println!("the agent's log ends with:\n{}", tail(node.agent.log()));
        bail!(failure);
    }
    fs::write(state::READY, "").context("say that the node is ready")?;
    let mut keeper = Keeper::default();
    keeper.keep(&mut node)?;
    keeper.clear(&mut node)?;
    node.close()
}
