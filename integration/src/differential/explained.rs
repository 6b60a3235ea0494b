//! Differences that are known, each with the place that explains it.

use super::play::{Finding, Phase};

/// A difference that is explained.
#[derive(Debug)]
pub struct Explained {
    /// What it is, in a few words.
    pub what: &'static str,
    /// Where it is explained: a section of docs/differences.md, or a decision.
    pub at: &'static str,
    /// Whether a finding is one of it.
    is: fn(&Finding) -> bool,
}

/// All of them.
pub const EXPLAINED: &[Explained] = &[];

/// The first that explains a finding.
#[must_use]
pub fn of(finding: &Finding) -> Option<usize> {
    EXPLAINED.iter().position(|one| (one.is)(finding))
}

#[expect(dead_code, reason = "until the first is explained")]
fn is_event(finding: &Finding) -> bool {
    finding.phase == Phase::Events
}
