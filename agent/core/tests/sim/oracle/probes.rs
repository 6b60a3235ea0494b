//! Probes: what they said, counted once more, and what follows from it.

use berth_core::{
    effect::Effect,
    event::Outcome,
    failure::Failure,
    time::Now,
};

use super::Oracle;

impl Oracle {
    /// A probe was answered, and the agent hears it.
    pub(crate) fn probed(&mut self, _effect: &Effect, _outcome: &Result<Outcome, Failure>, _now: Now) {}
}
