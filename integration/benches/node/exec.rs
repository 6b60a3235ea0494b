//! `/bin/true` in a container: through the agent and the shim, and with the OCI runtime alone, alternately.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings, berth_command};
use berth_integration::containerd::NAMESPACE;
use berth_integration::control::Control;
use berth_integration::node::Node;
use serde_json::{Value, json};

use crate::control::{self, container_id};
use crate::figure::Figure;
use crate::start;

const WARM_UP: usize = 3;
/// The aim: an exec takes at most this many times the OCI runtime's own.
const ALONE: f64 = 1.3;
const POD: &str = "exec";
const PROGRAM: &str = "/bin/true";
const SECTION: &str = "exec of /bin/true, crun";
const BUNDLES: &str = "/run/containerd/io.containerd.runtime.v2.task";

/// Measures both, and the command `berth exec`.
pub(crate) fn measure(runs: usize) -> Result<Vec<Figure>> {
    let settings =
        Settings { berth: json!({ "runtime": { "ociRuntime": "crun" } }), ..Settings::with_registry() };
    let node = Node::start_with(&settings)?;
    let control = Control::new()?;
    node.apply(POD, &start::manifest(POD))?;
    control::ready(&control, POD, Duration::from_millis(1))?;
    let id = container_id(&control.pod(POD)?.context("the pod is gone")?)?;
    let record = fs::read(Path::new(BUNDLES).join(NAMESPACE).join(&id).join("berth.json"))?;
    let record: Value = serde_json::from_slice(&record)?;
    let full = format!("{POD}-{NODE_NAME}");

    let mut taken = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..WARM_UP + runs {
        let mut order = [0, 1, 2];
        order.rotate_left(round % 3);
        for which in order {
            let begun = Instant::now();
            match which {
                0 => control.exec(POD, &[PROGRAM])?,
                1 => ended_well(&mut by_hand(&record, &id)?)?,
                _ => ended_well(&mut berth_command(&["exec", &full, "--", PROGRAM])?)?,
            }
            if round >= WARM_UP {
                taken[which].push(begun.elapsed());
            }
        }
    }
    node.end()?;
    let [agent, alone, command] = taken;
    let mut figures = Vec::new();
    figures.extend(Figure::times(SECTION, "agent and shim", &agent)?);
    figures.extend(Figure::times(SECTION, "crun exec alone", &alone)?);
    figures.extend(Figure::times(SECTION, "command berth exec", &command)?);
    figures.push(Figure::ratio(SECTION, "agent and shim / alone", &agent, &alone)?.at_most(ALONE));
    Ok(figures)
}

/// The runtime as the shim calls it.
fn by_hand(record: &Value, id: &str) -> Result<Command> {
    let mut command = Command::new(record["binary"].as_str().context("no runtime in the record")?);
    command.args(record["args"].as_array().into_iter().flatten().filter_map(Value::as_str));
    command.arg("--root").arg(record["root"].as_str().context("no root in the record")?);
    command.args(["exec", id, PROGRAM]);
    Ok(command)
}

fn ended_well(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
