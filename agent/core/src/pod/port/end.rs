//! How a pod ended for good, kept where a reboot does not reach it.

use crate::{
    effect::Act,
    event::Outcome,
    failure::Failure,
    pod::{
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        resource::{EndedEffect, Resource},
    },
};

impl PodMachine {
    /// Asks for the end to be kept.
    pub(in crate::pod) fn keep_end(&mut self, shared: &mut Shared<'_>) {
        let tries = self.life.actual.end.tries();
        let act = Act::KeepEnd(Box::new(self.life.record.clone()));
        self.life.actual.end = Resource::Ensuring(self.ask(shared, Slot::End, tries, act));
    }

    /// Takes the outcome.
    pub(in crate::pod) fn end_kept(&mut self, ended: EndedEffect, result: Result<Outcome, Failure>) {
        self.complain(&result, "FailedKeepEnd", "error keeping how the pod ended: ");
        self.life.actual.end.settle(ended, fit::done(result));
    }
}
