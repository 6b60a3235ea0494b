//! How containers are, and what they say of it when they are asked.

use std::{sync::Arc, time::Duration};

use berth_core::{
    effect::{Act, Effect},
    event::Outcome,
    failure::FailureKind,
    pod::port::probe::ProbeAnswer,
    spec::{ContainerKind, Pod, Probe, ProbeKind},
};

use super::chaos::Chaos;
use crate::{pods, world::failure};

impl Chaos {
    /// Some containers have probes.
    pub(super) fn add_probes(&mut self, pod: &mut Pod) {
        let all = pod.init_containers.iter_mut().chain(&mut pod.containers);
        for container in all.filter(|one| one.kind != ContainerKind::Init) {
            let container = Arc::make_mut(container);
            let probes = &mut container.probes;
            for (slot, successes) in
                [(&mut probes.startup, 1), (&mut probes.readiness, 2), (&mut probes.liveness, 1)]
            {
                if !self.health.is_one_in(2) {
                    continue;
                }
                let mut below = |bound: usize| u64::try_from(self.health.below(bound)).unwrap();
                let (delay, period, failures) =
                    (below(2) * 5, [3, 15, 120][usize::try_from(below(3)).unwrap()], below(2) + 1);
                let grace = (below(3) == 0 && successes == 1).then(|| Duration::from_secs(below(30) + 1));
                *slot = Some(Probe {
                    initial_delay: Duration::from_secs(delay),
                    period: Duration::from_secs(period),
                    failures: u32::try_from(failures).unwrap(),
                    successes,
                    grace,
                    ..pods::probe()
                });
            }
        }
    }

    /// Something becomes sick or well, and some of those who were asked answer.
    pub(super) fn change_health(&mut self) {
        self.break_hooks();
        if self.health.is_one_in(4) {
            self.become_sick();
        }
        if self.health.is_one_in(40) {
            self.run.world.sick.clear();
            self.run.world.hooks.clear();
        }
        for _ in 0..self.health.below(6) {
            let asked = self.run.probes.len();
            if asked > 0 {
                let at = self.health.below(asked);
                self.answer(at);
            }
        }
    }

    fn become_sick(&mut self) {
        let names: Vec<_> = self.running().map(|(_, one)| one.name.clone()).collect();
        let Some(name) = self.health.pick(&names) else { return };
        let kind = self.health.pick(&ProbeKind::ALL).unwrap();
        let answer = match self.health.below(6) {
            0 => ProbeAnswer::Warning("moved".into()),
            1 => ProbeAnswer::Errored { state: "unknown", message: "no luck".into() },
            _ => ProbeAnswer::Failure("sick".into()),
        };
        self.run.world.sick.insert((name, kind), answer);
    }

    fn answer(&mut self, at: usize) {
        let effect = self.run.probes[at].clone();
        let outcome = if self.health.is_one_in(10) {
            Err(failure(FailureKind::Unknown, "no end within 16 s"))
        } else {
            let now = self.run.now;
            self.run.world.perform(&effect, now).expect("a probe is answered")
        };
        match &outcome {
            Ok(Outcome::Probed(ProbeAnswer::Failure(_))) => self.count("probes that failed"),
            Ok(Outcome::Probed(ProbeAnswer::Errored { .. })) | Err(_) => {
                self.count("probes that could not be asked");
            }
            Ok(_) => {}
        }
        self.run.answer_probe(at, outcome);
        for effect in &self.run.told {
            let Effect::Pod { act: Act::Note(note), .. } = effect else { continue };
            if note.event.reason == "Killing" && note.event.message.contains(" probe") {
                *self.counts.entry("containers that failed a probe").or_default() += 1;
            }
        }
        *self.counts.entry("containers that became unready").or_default() +=
            self.run.world.oracle.take_unready();
    }
}
