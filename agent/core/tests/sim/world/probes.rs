//! What containers answer.

use berth_core::{
    event::Outcome,
    pod::port::probe::{ProbeAnswer, ProbeRequest},
};

use super::World;

impl World {
    pub(super) fn probe(&mut self, request: &ProbeRequest) -> Outcome {
        let Some(container) = self.containers.get(&request.id).filter(|one| one.is_running()) else {
            return Outcome::Probed(ProbeAnswer::Failure("connection refused".into()));
        };
        let sick = self.sick.get(&(container.name.clone(), request.kind));
        Outcome::Probed(sick.cloned().unwrap_or(ProbeAnswer::Success))
    }
}
