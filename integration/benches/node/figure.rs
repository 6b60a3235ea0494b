//! Figures: a value with its unit, what it was aimed at, and the samples behind it.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One line of the report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// What it belongs to.
    pub(crate) section: String,
    /// What was measured.
    pub(crate) name: String,
    /// The value.
    pub(crate) value: f64,
    /// Its unit.
    pub(crate) unit: Unit,
    /// The most that it should be, where the issue says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at_most: Option<f64>,
    /// What it was computed from, in the order of measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) samples: Vec<f64>,
}

/// What a value is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Unit {
    Milliseconds,
    Mebibytes,
    MebibytesPerSecond,
    Millicores,
    Times,
    Count,
}

impl Figure {
    /// A value without an aim.
    pub(crate) fn new(section: &str, name: &str, value: f64, unit: Unit) -> Self {
        let (section, name) = (section.to_owned(), name.to_owned());
        Self { section, name, value, unit, at_most: None, samples: Vec::new() }
    }

    /// With the most that it should be.
    pub(crate) fn at_most(self, most: f64) -> Self {
        Self { at_most: Some(most), ..self }
    }

    /// Whether it is as aimed at; `None` without an aim.
    pub(crate) fn met(&self) -> Option<bool> {
        self.at_most.map(|most| self.value <= most)
    }

    /// Median (with the samples) and 99th percentile of durations.
    pub(crate) fn times(section: &str, name: &str, samples: &[Duration]) -> Result<[Self; 2]> {
        let samples: Vec<f64> = samples.iter().copied().map(milliseconds).collect();
        let median = quantile(&samples, 0.5)?;
        let high = quantile(&samples, 0.99)?;
        let mut first = Self::new(section, &format!("{name}, p50"), median, Unit::Milliseconds);
        first.samples = samples;
        Ok([first, Self::new(section, &format!("{name}, p99"), high, Unit::Milliseconds)])
    }

    /// Median of the ratios of durations that were measured in the same rounds.
    pub(crate) fn ratio(section: &str, name: &str, ones: &[Duration], others: &[Duration]) -> Result<Self> {
        let ratios: Vec<f64> =
            ones.iter().zip(others).map(|(one, other)| one.as_secs_f64() / other.as_secs_f64()).collect();
        Self::median(section, &format!("{name}, median of rounds"), &ratios, Unit::Times)
    }

    /// Median of samples.
    pub(crate) fn median(section: &str, name: &str, samples: &[f64], unit: Unit) -> Result<Self> {
        let mut figure = Self::new(section, name, quantile(samples, 0.5)?, unit);
        figure.samples = samples.to_vec();
        Ok(figure)
    }
}

/// A duration as a figure's value.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The smallest sample that at least this part of all is not above; so p99 of fewer than 100 is the largest.
pub(crate) fn quantile(samples: &[f64], part: f64) -> Result<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let reached = |index: usize| (index + 1) as f64 >= part * samples.len() as f64;
    let index = (0..sorted.len()).find(|index| reached(*index)).context("there are no samples")?;
    Ok(sorted[index])
}

impl fmt::Display for Unit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Milliseconds => "ms",
            Self::Mebibytes => "MiB",
            Self::MebibytesPerSecond => "MiB/s",
            Self::Millicores => "mcpu",
            Self::Times => "x",
            Self::Count => "",
        })
    }
}
