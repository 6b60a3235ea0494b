//! Hooks of containers, and what they come to.

use std::{sync::Arc, time::Duration};

use berth_core::{
    pod::port::hook::HookAnswer,
    spec::{ContainerKind, Hook, HookMoment, HttpGet, Pod, ProbePort},
};

use super::{chaos::Chaos, dice::Dice};

impl Chaos {
    /// Some containers have hooks.
    pub(super) fn add_hooks(&mut self, pod: &mut Pod) {
        let Some(dice) = &mut self.hooks else { return };
        if dice.is_one_in(2) {
            return;
        }
        let all = pod.init_containers.iter_mut().chain(&mut pod.containers);
        for container in all.filter(|one| one.kind != ContainerKind::Init) {
            let lifecycle = &mut Arc::make_mut(container).lifecycle;
            for slot in [&mut lifecycle.post_start, &mut lifecycle.pre_stop] {
                if dice.is_one_in(2) {
                    *slot = Some(hook(dice));
                }
            }
        }
    }

    /// Some hooks end badly from now on.
    pub(super) fn break_hooks(&mut self) {
        let Some(dice) = &mut self.hooks else { return };
        if !dice.is_one_in(12) {
            return;
        }
        let all = &self.run.world.containers;
        let names: Vec<_> = all.values().filter(|one| one.is_running()).map(|one| one.name.clone()).collect();
        let (Some(name), Some(moment)) =
            (dice.pick(&names), dice.pick(&[HookMoment::PostStart, HookMoment::PreStop]))
        else {
            return;
        };
        let answer = HookAnswer::Failed { error: "no luck".into(), output: String::new() };
        self.run.world.hooks.insert((name, moment), answer);
        self.count("hooks that break");
    }
}

fn hook(dice: &mut Dice) -> Hook {
    match dice.below(3) {
        0 => Hook::Exec(vec!["do".into(), "it".into()]),
        1 => Hook::Sleep(Duration::from_secs(dice.next() % 12)),
        _ => Hook::Http(HttpGet {
            tls: false,
            host: None,
            port: ProbePort::Number(80),
            path: "/hook".into(),
            headers: Vec::new(),
        }),
    }
}
