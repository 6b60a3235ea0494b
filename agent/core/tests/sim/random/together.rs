//! Ends of containers for which all containers of the pod begin anew.

use std::sync::Arc;

use berth_core::{
    id::ContainerId,
    spec::{Pod, RestartAction, RestartRule},
};

use super::chaos::Chaos;

/// The code that calls for it. Nothing else ends with it.
const CODE: u32 = 42;

impl Chaos {
    /// Some containers have a rule; of some of them every failure calls for it.
    pub(super) fn add_rules(&mut self, pod: &mut Pod) {
        let Some(dice) = &mut self.together else { return };
        if !dice.is_one_in(2) {
            return;
        }
        let all = pod.init_containers.iter_mut().chain(&mut pod.containers);
        for container in all {
            let (codes, is_in) = if dice.is_one_in(4) { (vec![0], false) } else { (vec![CODE], true) };
            let rule = RestartRule { codes, is_in, action: RestartAction::RestartAllContainers };
            if dice.is_one_in(2) {
                Arc::make_mut(container).restarts.rules.push(rule);
            }
        }
    }

    /// A container ends so that all are to begin anew.
    pub(super) fn call_for_all(&mut self) {
        let Some(dice) = &mut self.together else { return };
        if !dice.is_one_in(4) {
            return;
        }
        let has_rule = |one: &crate::world::Container| {
            let pod = self.run.world.oracle.spec_of(&one.pod);
            let container = pod.and_then(|pod| pod.fixed_containers().find(|it| it.name == one.name));
            container.is_some_and(|it| !it.restarts.rules.is_empty())
        };
        let all = self.run.world.containers.iter();
        let its = all.filter(|(_, one)| one.is_running() && has_rule(one));
        let its: Vec<ContainerId> = its.map(|(id, _)| id.clone()).collect();
        let Some(id) = dice.pick(&its) else { return };
        let now = self.run.now;
        self.run.world.end(&id, CODE, false, now);
        self.count("ends that call for all to begin anew");
    }
}
