//! Many pods at once: until all are Ready, and what they and the agent cost then.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::control::Control;
use berth_integration::node::Node;

use crate::control;
use crate::figure::{Figure, Unit, milliseconds};
use crate::programs::SHIM;
use crate::{processes, start};

/// Time between two looks at one pod.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Each pod more makes the looks rarer: an answer about all of them costs the agent time that is counted as theirs, and
/// their starts take longer, too.
const LOOK_RARER: Duration = Duration::from_millis(2);
/// Time for what starts leave behind: closed streams, timers of first restarts.
const SETTLE: Duration = Duration::from_secs(5);
/// Idle time that is measured.
const WINDOW: Duration = Duration::from_secs(30);
/// Aims for 50 pods.
const SHIM_PSS: f64 = 1.0;
const AGENT_RSS: f64 = 25.0;
const AGENT_MILLICORES: f64 = 2.0;

/// Measures with this many pods of one container.
pub(crate) fn measure(pods: usize) -> Result<Vec<Figure>> {
    let section = format!("{pods} pods");
    let node = Node::start_with(&Settings::with_registry())?;
    let control = Control::new()?;
    // The image is there, as on a node that has run for a while.
    node.apply("first", &start::manifest("first"))?;
    control::ready(&control, "first", LOOK_EVERY)?;
    node.remove("first")?;
    node.gone("first")?;
    let agent = processes::only("berth", "run")?;
    let empty = processes::rss(agent)?;

    let work =
        || -> Result<[Duration; 2]> { Ok([processes::cpu(agent)?, processes::cpu_of_children(agent)?]) };
    let work_before = work()?;
    let names: Vec<String> = (0..pods).map(|number| format!("pod-{number}")).collect();
    let begun = Instant::now();
    for name in &names {
        node.apply(name, &start::manifest(name))?;
    }
    let taken = control::all_ready(&control, pods, LOOK_EVERY + LOOK_RARER * u32::try_from(pods)?)? - begun;
    let [of_agent, of_children] = work()?;
    let per_pod = |after: Duration, before: Duration| milliseconds(after - before) / pods as f64;
    let of_agent = per_pod(of_agent, work_before[0]);
    let of_children = per_pod(of_children, work_before[1]);

    let shims = processes::of_program(SHIM, "serve")?;
    ensure!(shims.len() == pods, "{} shims serve {pods} pods", shims.len());
    let containerd = processes::only("containerd", "--config")?;
    thread::sleep(SETTLE);
    let used = |pids: &[u32]| pids.iter().map(|pid| processes::cpu(*pid)).sum::<Result<Duration>>();
    let groups = [&[agent][..], &shims, &[containerd]];
    let (before, begun) = (groups.map(used), Instant::now());
    thread::sleep(WINDOW);
    let (after, window) = (groups.map(used), begun.elapsed());
    let mut idle = Vec::new();
    for (before, after) in before.into_iter().zip(after) {
        idle.push((after? - before?).as_secs_f64() / window.as_secs_f64() * 1e3);
    }
    let of_shims = shims.iter().map(|pid| processes::pss(*pid)).collect::<Result<Vec<_>>>()?;

    let figure = |name: &str, value, unit| Figure::new(&section, name, value, unit);
    let figures = vec![
        figure("all at once: manifests written to Ready", milliseconds(taken), Unit::Milliseconds),
        figure("CPU of the agent per pod until then", of_agent, Unit::Milliseconds),
        figure("CPU of its workers and plugins per pod", of_children, Unit::Milliseconds),
        Figure::median(&section, "PSS per shim", &of_shims, Unit::Mebibytes)?.at_most(SHIM_PSS),
        figure("RSS of the agent", processes::rss(agent)?, Unit::Mebibytes).at_most(AGENT_RSS),
        figure("RSS of the agent before", empty, Unit::Mebibytes),
        figure("RSS of containerd", processes::rss(containerd)?, Unit::Mebibytes),
        figure("idle CPU of the agent, 30 s", idle[0], Unit::Millicores).at_most(AGENT_MILLICORES),
        figure("idle CPU of all shims", idle[1], Unit::Millicores),
        figure("idle CPU of containerd", idle[2], Unit::Millicores),
    ];
    node.end()?;
    Ok(figures)
}
