//! What containers answer.

use berth_core::{
    event::Outcome,
    pod::port::{
        hook::{HookAnswer, HookRequest},
        probe::{ProbeAnswer, ProbeRequest},
    },
};

use super::World;

impl World {
    pub(super) fn hook(&mut self, request: &HookRequest) -> Outcome {
        let Some(container) = self.containers.get(&request.id).filter(|one| one.is_running()) else {
            let error = "the container does not run".to_owned();
            return Outcome::Hooked(HookAnswer::Failed { error, output: String::new() });
        };
        let bad = self.hooks.get(&(container.name.clone(), request.moment));
        Outcome::Hooked(bad.cloned().unwrap_or(HookAnswer::Done))
    }

    pub(super) fn probe(&mut self, request: &ProbeRequest) -> Outcome {
        let Some(container) = self.containers.get(&request.id).filter(|one| one.is_running()) else {
            return Outcome::Probed(ProbeAnswer::Failure("connection refused".into()));
        };
        let sick = self.sick.get(&(container.name.clone(), request.kind));
        Outcome::Probed(sick.cloned().unwrap_or(ProbeAnswer::Success))
    }
}
