//! What must be true of a pod when nothing happens any more.

use berth_core::{
    id::{ContainerName, PodUid},
    spec::{Container, ContainerKind},
    status::{ConditionKind, Phase, PodStatus},
    time::Now,
};

use super::{Account, Oracle, Run, stops::Over};

impl Oracle {
    /// Whether a main container of a pod does not run again, by its policy and its last code.
    pub(crate) fn is_over(&self, pod: &PodUid, name: &ContainerName) -> bool {
        self.pods.get(pod).is_some_and(|account| account.is_over(name))
    }

    /// Whether a container that has begun does not run any more.
    pub(crate) fn has_ended(&self, pod: &PodUid, name: &ContainerName) -> bool {
        self.pods.get(pod).is_some_and(|account| account.has_ended(name))
    }

    /// Whether an ephemeral container has not begun since the one whose processes it is to see does not run.
    pub(crate) fn waits_for_target(&self, pod: &PodUid, container: &Container) -> bool {
        self.pods.get(pod).is_some_and(|account| account.waits_for_target(container))
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
                ContainerKind::Ephemeral => {
                    let is_done = account.has_ended(&container.name) || account.waits_for_target(container);
                    running(&container.name) != (is_over || is_done)
                }
            };
            expect("at rest what is to run runs", is_right);
        }
        let mains_and_sidecars =
            account.spec.fixed_containers().filter(|one| one.kind != ContainerKind::Init);
        let is_ready = mains_and_sidecars.into_iter().all(|one| running(&one.name));
        let ready = status.conditions.iter().find(|one| one.kind == ConditionKind::Ready);
        expect("at rest a pod is ready when all of it runs", ready.is_some_and(|one| one.holds) == is_ready);
        for (rule, broken) in broken {
            self.judge(rule, broken);
        }
    }
}

impl Account {
    fn has_ended(&self, name: &ContainerName) -> bool {
        let last = self.last_run(name);
        last.is_some_and(|last| !last.is_running() && self.code_of(name, last).is_some())
    }

    fn waits_for_target(&self, container: &Container) -> bool {
        let is_running = |name: &ContainerName| self.runs_of(name).iter().any(Run::is_running);
        let has_begun = is_running(&container.name) || self.has_ended(&container.name);
        container.target.as_ref().is_some_and(|target| !has_begun && !is_running(target))
    }
}
