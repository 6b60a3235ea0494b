//! Many pods at once, and their end.

use std::time::Duration;

use anyhow::{Context, Result};

use super::pair::{Both, Pair, Side};
use super::pods::{self, Life, Probe};
use crate::figure::Figure;

/// The aim beside the kubelet, of starts and of ends.
const AIM: f64 = 0.35;

/// Measures them on each node so often, in turn.
pub(super) fn measure(pair: &Pair, oci_runtime: &str, count: usize, rounds: usize) -> Result<Vec<Figure>> {
    let (mut starts, mut ends) = (Both::<Vec<Duration>>::default(), Both::<Vec<Duration>>::default());
    for round in 0..rounds {
        for side in Side::in_turn(round) {
            let names: Vec<String> =
                (0..count).map(|number| format!("burst-{side}-{round}-{number}")).collect();
            let lives = pods::fill(pair, side, &names, Probe::Http)?;
            starts.of(side).push(lives.iter().map(Life::whole).max().context("no pods")?);
            ends.of(side).push(pods::delete(pair, &names)?);
        }
    }
    let section = format!("{count} pods of a cluster at once, {oci_runtime}");
    let mut figures = Vec::new();
    for (what, times) in
        [("until the last is Ready", &mut starts), ("deleted until the last is gone", &mut ends)]
    {
        for side in Side::BOTH {
            let [median, _] = Figure::times(&section, &format!("{side}: {what}"), times.of(side))?;
            figures.push(median);
        }
        let ratio = Figure::ratio(&section, "berth / kubelet", &times.berth, &times.kubelet)?;
        figures.push(ratio.at_most(AIM));
    }
    Ok(figures)
}
