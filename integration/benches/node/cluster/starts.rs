//! Single starts: from the request that makes a pod until a watch sees it Ready.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use super::pair::{Both, Pair, Side};
use super::pods::{self, Life, Probe};
use crate::figure::{Figure, Unit, milliseconds};

/// Rounds before those that count.
const WARM_UP: usize = 2;
/// Ends of which the kubelet tells are a second apart: so many are enough.
const ENDS_MAX: usize = 30;
/// Aims of a start beside the kubelet's, by OCI runtime.
const AIMS: [(&str, f64); 2] = [("crun", 0.22), ("runc", 0.30)];

/// Measures so many of each.
pub(super) fn measure(pair: &Pair, oci_runtime: &str, runs: usize) -> Result<Vec<Figure>> {
    let mut lives = Both::<Vec<Life>>::default();
    for round in 0..WARM_UP + runs {
        for side in Side::in_turn(round) {
            let name = format!("start-{side}-{round}");
            let made = pods::create(pair, side, &name, Probe::Http)?;
            let life = pods::ready(pair, BTreeMap::from([(name.clone(), made)]))?;
            pods::delete(pair, &[name])?;
            if round >= WARM_UP {
                lives.of(side).extend(life);
            }
        }
    }
    let mut figures = figures(oci_runtime, &mut lives)?;
    figures.extend(patches(pair, oci_runtime)?);
    figures.extend(ends(pair, oci_runtime, runs.min(ENDS_MAX))?);
    Ok(figures)
}

/// From a container's last instruction until the API has it.
fn ends(pair: &Pair, oci_runtime: &str, runs: usize) -> Result<Vec<Figure>> {
    let section = format!("a pod of a cluster, {oci_runtime}");
    let mut told = Both::<Vec<Duration>>::default();
    for round in 0..runs {
        for side in Side::in_turn(round) {
            let name = format!("end-{side}-{round}");
            let took = pods::ends(pair, side, &name)?;
            pods::delete(pair, &[name])?;
            told.of(side).push(took);
        }
    }
    let mut figures = Vec::new();
    for side in Side::BOTH {
        figures.extend(Figure::times(&section, &format!("{side}: last instruction to told"), told.of(side))?);
    }
    figures.push(Figure::ratio(&section, "berth / kubelet, told", &told.berth, &told.kubelet)?);
    Ok(figures)
}

fn figures(oci_runtime: &str, lives: &mut Both<Vec<Life>>) -> Result<Vec<Figure>> {
    let section = format!("a pod of a cluster, {oci_runtime}");
    let mut figures = Vec::new();
    let mut wholes = Both::<Vec<Duration>>::default();
    type Part = fn(&Life) -> Duration;
    let parts: [(&str, Part); 3] = [
        ("  created to bound", Life::scheduled),
        ("  bound to first instruction", Life::begun),
        ("  first instruction to Ready", Life::told),
    ];
    for side in Side::BOTH {
        let lives = lives.of(side);
        let whole: Vec<Duration> = lives.iter().map(Life::whole).collect();
        figures.extend(Figure::times(&section, &format!("{side}: created to Ready"), &whole)?);
        for (name, part) in parts {
            let samples: Vec<f64> = lives.iter().map(|life| milliseconds(part(life))).collect();
            figures.push(Figure::median(&section, &format!("{name}, p50"), &samples, Unit::Milliseconds)?);
        }
        *wholes.of(side) = whole;
    }
    let ratio = Figure::ratio(&section, "berth / kubelet", &wholes.berth, &wholes.kubelet)?;
    let aim = AIMS.iter().find(|(name, _)| *name == oci_runtime).map(|(_, aim)| *aim);
    figures.push(match aim {
        Some(aim) => ratio.at_most(aim),
        None => ratio,
    });
    Ok(figures)
}

/// How often each node told of a pod, from its first status to its end.
fn patches(pair: &Pair, oci_runtime: &str) -> Result<Vec<Figure>> {
    let section = format!("a pod of a cluster, {oci_runtime}");
    let audit = pair.cluster.audit()?;
    let mut figures = Vec::new();
    for side in Side::BOTH {
        let mut each = BTreeMap::<&str, u32>::new();
        let of_side = |name: &str| name.starts_with(&format!("start-{side}-"));
        for event in
            audit.iter().filter(|event| event.is_by_node(side.node()) && event.is("patch", "pods/status"))
        {
            if of_side(event.name()) {
                *each.entry(event.name()).or_default() += 1;
            }
        }
        let counts: Vec<f64> = each.values().copied().map(f64::from).collect();
        figures.push(Figure::median(
            &section,
            &format!("{side}: patches of a pod's life, p50"),
            &counts,
            Unit::Count,
        )?);
    }
    Ok(figures)
}
