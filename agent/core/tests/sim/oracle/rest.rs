//! What must be true of a pod when nothing happens any more.

use berth_core::{
    id::{ContainerName, PodUid},
    spec::ContainerKind,
    status::{ConditionKind, Phase, PodStatus},
    time::Now,
};

use super::{Oracle, Run, stops::Over};

impl Oracle {
    /// Whether a main container of a pod does not run again, by its policy and its last code.
    pub(crate) fn is_over(&self, pod: &PodUid, name: &ContainerName) -> bool {
        self.pods.get(pod).is_some_and(|account| account.is_over(name))
    }

    /// A wanted pod at rest: what it is shown as is what it is.
    pub(crate) fn check_rest(&mut self, pod: &PodUid, status: &PodStatus, has_ended: bool, now: Now) {
        let account = &self.pods[pod];
        let running = |name: &ContainerName| account.runs_of(name).iter().any(Run::is_running);
        let expected = match account.over(now) {
            Some(Over::Done { succeeded: true }) => Phase::Succeeded,
            Some(Over::Done { succeeded: false } | Over::InitFailed | Over::Deadline) => Phase::Failed,
            None => Phase::Running,
        };
        let phase = account.last_phase.unwrap_or(expected);
        let is_over = phase != Phase::Running;
        let mut broken = Vec::new();
        let mut expect = |rule, is_right: bool| {
            broken.push((
                rule,
                (!is_right).then(|| format!("{pod}: {phase:?} is right: {status:?}\n{:#?}", account.runs)),
            ));
        };
        expect("at rest the phase is right", status.phase == phase);
        expect("at rest a pod has ended when it is over", has_ended == is_over);
        for container in account.spec.all_containers() {
            let is_right = match container.kind {
                ContainerKind::Init => !running(&container.name),
                ContainerKind::Sidecar => running(&container.name) != is_over,
                ContainerKind::Main => {
                    running(&container.name) != (is_over || account.is_over(&container.name))
                }
            };
            expect("at rest what is to run runs", is_right);
        }
        let mains_and_sidecars = account.spec.all_containers().filter(|one| one.kind != ContainerKind::Init);
        let is_ready = mains_and_sidecars.into_iter().all(|one| running(&one.name));
        let ready = status.conditions.iter().find(|one| one.kind == ConditionKind::Ready);
        expect("at rest a pod is ready when all of it runs", ready.is_some_and(|one| one.holds) == is_ready);
        for (rule, broken) in broken {
            self.judge(rule, broken);
        }
    }
}
