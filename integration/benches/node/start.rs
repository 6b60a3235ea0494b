//! Single starts: from a manifest's arrival to Ready, alternating with the floor.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_integration::agent::Settings;
use berth_integration::control::Control;
use berth_integration::node::Node;
use serde_json::json;

use crate::control;
use crate::figure::{Figure, Unit, milliseconds};
use crate::floor::Floor;

/// Rounds before those that count.
const WARM_UP: usize = 3;
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// The aim: a start takes at most this many times the floor.
const FLOORS: f64 = 2.0;
/// The pod that the floor copies.
const MODEL: &str = "model";

/// Measures with one OCI runtime.
pub(crate) fn measure(oci_runtime: &str, runs: usize) -> Result<Vec<Figure>> {
    let settings =
        Settings { berth: json!({ "runtime": { "ociRuntime": oci_runtime } }), ..Settings::with_registry() };
    let node = Node::start_with(&settings)?;
    let control = Control::new()?;
    node.apply(MODEL, &manifest(MODEL))?;
    control::ready(&control, MODEL, LOOK_EVERY)?;
    let floor = Floor::of(&node, &control.pod(MODEL)?.context("the model is gone")?)?;

    let (mut pods, mut floors) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + runs {
        let (pod, bare) = if round % 2 == 0 {
            let pod = start_pod(&node, &control, round)?;
            (pod, floor.start(round)?)
        } else {
            let bare = floor.start(round)?;
            (start_pod(&node, &control, round)?, bare)
        };
        if round >= WARM_UP {
            pods.push(pod);
            floors.push(bare);
        }
    }
    node.end()?;
    figures(oci_runtime, &pods, &floors)
}

/// A pod of one container that does nothing.
pub(crate) fn manifest(name: &str) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            // It does not hear SIGTERM, as process 1 without a handler.
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": crate::bare::IMAGE,
                "command": ["/bin/sleep", "infinity"],
                "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
            }],
        },
    })
    .to_string()
}

fn start_pod(node: &Node, control: &Control, round: usize) -> Result<Duration> {
    let name = format!("run-{round}");
    let text = manifest(&name);
    let begun = Instant::now();
    node.apply(&name, &text)?;
    let taken = control::ready(control, &name, LOOK_EVERY)? - begun;
    node.remove(&name)?;
    node.gone(&name)?;
    Ok(taken)
}

fn figures(oci_runtime: &str, pods: &[Duration], floors: &[crate::floor::Taken]) -> Result<Vec<Figure>> {
    let section = format!("single start, {oci_runtime}");
    let mut figures = Vec::new();
    figures.extend(Figure::times(&section, "pod: manifest written to Ready", pods)?);
    let whole: Vec<Duration> = floors.iter().map(crate::floor::Taken::whole).collect();
    figures.extend(Figure::times(&section, "floor by hand", &whole)?);
    type Part = fn(&crate::floor::Taken) -> Duration;
    let parts: [(&str, Part); 4] = [
        ("  netns, cgroups, overlay", |taken| taken.prepare),
        ("  CNI ADD", |taken| taken.network),
        ("  create", |taken| taken.create),
        ("  start", |taken| taken.start),
    ];
    for (name, part) in parts {
        let samples: Vec<f64> = floors.iter().map(|taken| milliseconds(part(taken))).collect();
        figures.push(Figure::median(&section, &format!("{name}, p50"), &samples, Unit::Milliseconds)?);
    }
    figures.push(Figure::ratio(&section, "pod / floor", pods, &whole)?.at_most(FLOORS));
    Ok(figures)
}
