//! Containers under our shim and under containerd's own, started alternately: a start, and what a shim keeps.

use std::time::Duration;

use anyhow::Result;

use crate::bare::{Bare, Container, Shim};
use crate::figure::{Figure, Unit};
use crate::processes;

/// The aim: proportional memory of a shim with one container, MiB.
const PSS: f64 = 1.0;

/// Measures with this many containers under each shim.
pub(crate) fn measure(containers: usize) -> Result<Vec<Figure>> {
    let section = format!("{containers} containers under each shim, runc");
    let bare = Bare::start()?;
    let mut running: [Vec<Container>; 2] = [Vec::new(), Vec::new()];
    for number in 0..containers {
        for shim in Shim::in_turn(number) {
            running[shim as usize].push(bare.sleeper(shim, number)?);
        }
    }
    let mut figures = Vec::new();
    for shim in Shim::BOTH {
        let taken: Vec<Duration> = running[shim as usize].iter().map(|container| container.taken).collect();
        figures.extend(Figure::times(&section, &format!("ctr run --detach, {shim}"), &taken)?);
    }
    let taken = |shim: Shim| running[shim as usize].iter().map(|container| container.taken);
    let (ours, stock): (Vec<_>, Vec<_>) = (taken(Shim::Ours).collect(), taken(Shim::Stock).collect());
    figures.push(Figure::ratio(&section, "ctr run --detach: ours / stock", &ours, &stock)?);
    for shim in Shim::BOTH {
        let (mut pss, mut rss) = (Vec::new(), Vec::new());
        for container in &running[shim as usize] {
            let pid = container.shim(shim)?;
            pss.push(processes::pss(pid)?);
            rss.push(processes::rss(pid)?);
        }
        let figure = Figure::median(&section, &format!("PSS, {shim}"), &pss, Unit::Mebibytes)?;
        figures.push(if shim == Shim::Ours { figure.at_most(PSS) } else { figure });
        figures.push(Figure::median(&section, &format!("RSS, {shim}"), &rss, Unit::Mebibytes)?);
    }
    bare.end(&running.into_iter().flatten().collect::<Vec<_>>())?;
    Ok(figures)
}
