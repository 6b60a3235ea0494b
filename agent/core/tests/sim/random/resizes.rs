//! Resources that change while pods run.

use berth_core::{
    record::{Goal, PodRecord},
    spec::{ContainerKind, Pod, QosClass, ResizePolicy, Resources},
};

use super::chaos::Chaos;
use crate::pods;

const MIB: u64 = 1 << 20;

impl Chaos {
    /// Every container has limits, so that cgroups of pods have too; what is requested is little, so that no pod is kept out.
    pub(super) fn add_resources(&mut self, pod: &mut Pod) {
        let Some(mut dice) = self.resizes.take() else { return };
        if !dice.is_one_in(4) {
            pod.qos = QosClass::Burstable;
            let names: Vec<String> = pod.fixed_containers().map(|one| one.name.to_string()).collect();
            for name in names {
                let container = pods::edit(pod, &name);
                container.resources = pods::resources((10, MIB), (100, 64 * MIB));
                let memory_restarts = container.kind != ContainerKind::Init && dice.is_one_in(4);
                container.resize_policy = ResizePolicy { memory_restarts, cpu_restarts: false };
            }
        }
        self.resizes = Some(dice);
    }

    /// Some name resources for themselves, and some of their containers none then: they share those of their pod.
    pub(super) fn add_whole(&mut self, pod: &mut Pod) {
        let Some(mut dice) = self.wholes.take() else { return };
        if pod.qos == QosClass::Burstable && dice.is_one_in(3) {
            pod.resources = Some(pods::resources((100, 64 * MIB), (1000, 256 * MIB)));
            let names: Vec<String> = pod.fixed_containers().map(|one| one.name.to_string()).collect();
            for name in names {
                if dice.is_one_in(2) {
                    pods::edit(pod, &name).resources = Resources::default();
                }
            }
        }
        self.wholes = Some(dice);
    }

    /// Some fit beside each other, and some do not.
    pub(super) fn change_whole(&mut self) {
        let Some(mut dice) = self.wholes.take() else { return };
        if dice.is_one_in(2) {
            let wanted: Vec<String> = self.run.wanted().into_iter().collect();
            let wanted = dice.pick(&wanted).and_then(|name| self.run.spec(&name));
            if let Some(wanted) = wanted.filter(|pod| pod.resources.is_some() && self.is_here(pod)) {
                let mut pod = Pod::clone(&wanted);
                let (milli, used) =
                    (dice.pick(&[500, 1000, 2000]).unwrap(), dice.pick(&[0, 150 * MIB]).unwrap());
                let bytes = if dice.is_one_in(4) { 64 * MIB } else { 3072 * MIB };
                pod.resources = Some(pods::resources((milli / 10, bytes), (milli, bytes.max(128 * MIB))));
                self.run.world.used.insert(pod.uid.clone(), used);
                self.count("resizes of whole pods asked for");
                self.run.want(pod);
            }
        }
        self.wholes = Some(dice);
    }

    /// One that is not begun yet would be refused where it asks for too much.
    fn is_here(&self, pod: &Pod) -> bool {
        let is_to_run = |record: &PodRecord| {
            record.goal == Goal::Wanted && record.termination.is_none() && record.terminal.is_none()
        };
        self.run.world.records.get(&pod.uid).is_some_and(is_to_run)
    }

    /// Some fit beside each other, and some do not.
    pub(super) fn change_resources(&mut self) {
        let Some(mut dice) = self.resizes.take() else { return };
        if dice.is_one_in(4) {
            let wanted: Vec<String> = self.run.wanted().into_iter().collect();
            let wanted = dice.pick(&wanted).and_then(|name| self.run.spec(&name));
            let has_its_own = |pod: &Pod| pod.qos == QosClass::Burstable && pod.resources.is_none();
            if let Some(wanted) = wanted.filter(|pod| has_its_own(pod) && self.is_here(pod)) {
                let mut pod = Pod::clone(&wanted);
                let names: Vec<String> = pod.fixed_containers().map(|one| one.name.to_string()).collect();
                let name = dice.pick(&names).unwrap();
                let milli = dice.pick(&[10, 20, 50]).unwrap();
                let bytes = dice.pick(&[MIB, 16 * MIB]).unwrap();
                let large = dice.pick(&[bytes, 3072 * MIB, 3072 * MIB, 3072 * MIB]).unwrap();
                let request = if name == "main" { large } else { bytes };
                let limits = (milli * dice.pick(&[5, 10]).unwrap(), request.max(32 * MIB));
                pods::edit(&mut pod, &name).resources = pods::resources((milli, request), limits);
                let used = dice.pick(&[0, 0, 40 * MIB]).unwrap();
                self.run.world.used.insert(pod.uid.clone(), used);
                self.count("resizes asked for");
                self.run.want(pod);
            }
        }
        self.resizes = Some(dice);
    }
}
