//! Nodes whose pods do nothing: memory with none, half and all of them, and processor time.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::daemons;
use super::pair::{Both, Pair, Side};
use super::pods::{self, Probe};
use crate::figure::{Figure, Unit};

/// Time for what starts leave behind.
const SETTLE: Duration = Duration::from_secs(20);
/// Longer than what nodes do seldom, such as to report that nothing has changed.
const WINDOW: Duration = Duration::from_mins(6);
/// Aims beside the kubelet.
const MEMORY_AIM: f64 = 0.30;
const IDLE_AIM: f64 = 0.02;

/// Measures with so many pods on each node.
pub(super) fn measure(pair: &Pair, count: usize) -> Result<Vec<Figure>> {
    let section = format!("daemons of a node with {count} pods of a cluster");
    let mut figures = Vec::new();
    let mut names = Both::<Vec<String>>::default();
    for wanted in [0, count / 2, count] {
        for side in Side::BOTH {
            let more: Vec<String> =
                (names.of(side).len()..wanted).map(|number| format!("idle-{side}-{number}")).collect();
            if !more.is_empty() {
                pods::fill(pair, side, &more, Probe::None)?;
            }
            names.of(side).extend(more);
        }
        thread::sleep(SETTLE);
        figures.extend(memory(pair, &section, wanted)?);
    }
    let used = window(pair, WINDOW, &Side::BOTH)?;
    let seconds = WINDOW.as_secs();
    for side in Side::BOTH {
        let mut used = Both { ..used };
        figures.push(Figure::new(
            &section,
            &format!("{side}: idle CPU, {seconds} s"),
            *used.of(side),
            Unit::Millicores,
        ));
    }
    figures.push(
        Figure::new(&section, "berth / kubelet", used.berth / used.kubelet, Unit::Times).at_most(IDLE_AIM),
    );
    for side in Side::BOTH {
        pods::delete(pair, names.of(side))?;
    }
    Ok(figures)
}

fn memory(pair: &Pair, section: &str, pods: usize) -> Result<Vec<Figure>> {
    let (mut figures, mut all) = (Vec::new(), Both::<f64>::default());
    for side in Side::BOTH {
        let pids = daemons::pids(pair, side)?;
        *all.of(side) = daemons::rss(&pids)?;
        let figure = |name: &str, value| {
            Figure::new(section, &format!("{side}: {name} at {pods}"), value, Unit::Mebibytes)
        };
        figures.push(figure("RSS", *all.of(side)));
        figures.push(figure("PSS", daemons::pss(&pids)?));
    }
    let ratio = Figure::new(
        section,
        &format!("berth / kubelet, RSS at {pods}"),
        all.berth / all.kubelet,
        Unit::Times,
    );
    figures.push(ratio.at_most(MEMORY_AIM));
    Ok(figures)
}

/// The processor time that the daemons of these nodes take meanwhile, in millicores; of the others 0.
pub(super) fn window(pair: &Pair, window: Duration, sides: &[Side]) -> Result<Both<f64>> {
    let mut used = Both::<f64>::default();
    let mut before = Vec::new();
    for side in sides {
        let pids = daemons::pids(pair, *side)?;
        before.push((*side, daemons::cpu(&pids)?, pids, Instant::now()));
    }
    thread::sleep(window);
    for (side, before, pids, begun) in before {
        let taken = daemons::cpu(&pids)? - before;
        *used.of(side) = taken.as_secs_f64() / begun.elapsed().as_secs_f64() * 1e3;
    }
    Ok(used)
}
