//! Two versions beside each other: every phase is measured with one and with the other in turn, so that both meet the same
//! machine, and each figure is told as a ratio with its interval.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::command::Command;
use crate::figure::{Figure, Unit, quantile};
use crate::phase::{self, Phase};

/// Half the width of the interval in standard deviations: 95 %.
const DEVIATIONS: f64 = 1.96;

/// A figure of both versions.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Comparison {
    pub(crate) section: String,
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// Median of after / before; `None` where before is 0.
    pub(crate) ratio: Option<Ratio>,
}

/// A median with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) samples: usize,
}

/// Measures the wanted phases with the programs of both directories, in as many rounds as wanted.
pub(crate) fn measure(command: &Command, before: &Path, after: &Path) -> Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    for phase in Phase::all().into_iter().filter(|phase| command.wants(*phase)) {
        let (mut olds, mut news) = (Vec::new(), Vec::new());
        for round in 0..command.rounds {
            crate::report::say(&format!("measuring {phase}, round {} of {}", round + 1, command.rounds));
            // Neither is always the second on a machine that the first has warmed.
            let in_order = [(before, &mut olds), (after, &mut news)];
            let turns: Vec<_> = if round % 2 == 0 {
                in_order.into_iter().collect()
            } else {
                in_order.into_iter().rev().collect()
            };
            for (programs, figures) in turns {
                figures.extend(phase::in_a_lab(phase, command, programs)?);
            }
        }
        comparisons.extend(compare(&olds, &news)?);
    }
    Ok(comparisons)
}

/// Figures of all rounds, by name; a figure without samples is one sample of each round.
fn compare(olds: &[Figure], news: &[Figure]) -> Result<Vec<Comparison>> {
    let mut comparisons: Vec<Comparison> = Vec::new();
    for figure in news {
        let is_same = |other: &&Figure| other.section == figure.section && other.name == figure.name;
        if comparisons.iter().any(|done| done.section == figure.section && done.name == figure.name) {
            continue;
        }
        let samples =
            |figures: &[Figure]| -> Vec<f64> { figures.iter().filter(is_same).flat_map(of).collect() };
        let (before, after) = (samples(olds), samples(news));
        if before.is_empty() {
            continue;
        }
        comparisons.push(Comparison {
            section: figure.section.clone(),
            name: figure.name.clone(),
            unit: figure.unit,
            before: quantile(&before, 0.5)?,
            after: quantile(&after, 0.5)?,
            ratio: ratio(&before, &after)?,
        });
    }
    Ok(comparisons)
}

fn of(figure: &Figure) -> Vec<f64> {
    if figure.samples.is_empty() { vec![figure.value] } else { figure.samples.clone() }
}

/// Ratios of samples that have the same place, and those of them between which their median is in 95 of 100 cases: its
/// rank is that of a coin thrown as often as there are samples.
fn ratio(before: &[f64], after: &[f64]) -> Result<Option<Ratio>> {
    let ratios: Vec<f64> = before.iter().zip(after).map(|(before, after)| after / before).collect();
    if ratios.iter().any(|ratio| !ratio.is_finite()) {
        return Ok(None);
    }
    let count = ratios.len() as f64;
    let distance = DEVIATIONS / (2.0 * count.sqrt()) + 1.0 / count;
    Ok(Some(Ratio {
        median: quantile(&ratios, 0.5)?,
        low: quantile(&ratios, (0.5 - distance).max(0.0))?,
        high: quantile(&ratios, (0.5 + distance).min(1.0))?,
        samples: ratios.len(),
    }))
}
