//! What to do for a pod: one pure function of what is wanted, what there is and the time.
//!
//! Level-triggered: the same life gives the same plan, however it came about. Everything that data allows is planned at
//! once (dirs ∥ cgroup ∥ netns, then network ∥ sandbox ∥ volumes ∥ image, then rootfs); the start of the first container
//! joins them.
//!
//! Source of the rules: `pkg/kubelet/kuberuntime/kuberuntime_manager.go` `computePodActions`,
//! `kuberuntime_container.go` `computeInitContainerActions`, KEP-753 (sidecars).

mod over;
mod prepare;
mod resize;
mod restart_all;
mod start;
mod stop;

use std::time::Duration;

use super::{
    actual::{Life, Stage},
    port::removal::{Leftover, Removal},
    resource::Resource,
    restart_all::calls_for_all,
    silence::is_given_up,
    step::{Plan, Step},
};
use crate::{config::NodeConfig, id::SandboxId, time::Now};

pub(super) use over::{Over, is_ending, over};
pub(crate) use resize::is_resizable;
pub use stop::STOP_MIN;

/// How long `ErrImagePull` is shown before `ImagePullBackOff`, and `RunContainerError` before `CrashLoopBackOff`: the tick
/// in which the kubelet looks at a failed pod again (`syncLoop` of `pkg/kubelet/kubelet.go`).
pub const ERROR_SHOWN: Duration = Duration::from_secs(1);

/// What a plan depends on beside the pod.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    /// The node.
    pub config: &'a NodeConfig,
    /// Whether pods can be wired.
    pub network: &'a Network,
}

/// Whether pods can be wired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Network {
    /// Not told yet.
    Unknown,
    /// Not told for longer than pods wait: an attachment is tried, which has a time of its own.
    Unheard,
    /// They can.
    Ready,
    /// They cannot.
    NotReady(String),
}

/// What to do for a pod now.
#[must_use]
pub fn plan(life: &Life, world: World<'_>, now: Now) -> Plan {
    let mut planner = Planner { life, world, now, plan: Plan::default() };
    match life.stage() {
        Stage::Run => planner.run(),
        Stage::Stop => planner.stop(),
    }
    planner.plan
}

struct Planner<'a> {
    life: &'a Life,
    world: World<'a>,
    now: Now,
    plan: Plan,
}

impl Planner<'_> {
    fn run(&mut self) {
        match over(self.life, self.now) {
            Over::Ended(end) => return self.push(Step::End(end)),
            Over::GoesOn(deadline) => self.plan.wake_at = deadline,
        }
        self.removals();
        if self.life.record.replacing.is_some() {
            return self.empty_sandbox();
        }
        if let Some(restarting) = self.life.record.restarting {
            return self.restart_all(restarting.began);
        }
        if calls_for_all(self.life) {
            return self.push(Step::RestartAll);
        }
        self.running_containers();
        if is_ending(self.life) {
            return;
        }
        self.resources();
        self.resize();
        self.volume_images();
        self.prepare_containers();
        self.start_containers();
    }

    fn push(&mut self, step: Step) {
        self.plan.steps.push(step);
    }

    /// Whether to make a resource now; sets the alarm when it is to be made later.
    fn is_due<T>(&mut self, resource: &Resource<T>) -> bool {
        match resource {
            Resource::Absent | Resource::Unknown => true,
            Resource::Failed(retry) => self.has_come(retry.at),
            Resource::Ensuring(_) | Resource::Ready(_) => false,
        }
    }

    /// Whether `at` has come; sets the alarm when not.
    fn has_come(&mut self, at: crate::time::Mono) -> bool {
        let come = at <= self.now.mono;
        if !come {
            self.plan.wake(at);
        }
        come
    }

    /// Removes what is left and in nobody's way.
    fn removals(&mut self) {
        for (leftover, removal) in &self.life.actual.removals {
            let due = match removal {
                Removal::Due => true,
                Removal::Stuck(retry) => self.has_come(retry.at),
                Removal::After(_) | Removal::Removing { .. } => false,
            };
            if !due || self.is_in_use(leftover) {
                continue;
            }
            if let Leftover::Sandbox(sandbox) = leftover
                && self.is_given_up(sandbox)
            {
                self.push(Step::KillShim(sandbox.clone()));
            } else {
                self.push(Step::Remove(leftover.clone()));
            }
        }
    }

    fn is_given_up(&self, sandbox: &SandboxId) -> bool {
        self.life.actual.unanswered.get(sandbox).is_some_and(|count| is_given_up(*count))
    }

    /// Whether something that is still to be removed needs `leftover`: the attachment and the sandbox need the netns, all
    /// need the cgroup and the directories. A sandbox that is replaced may still run what it was asked for last, which needs the
    /// attachment: its shim may have hung for a while only.
    fn is_in_use(&self, leftover: &Leftover) -> bool {
        let removals = &self.life.actual.removals;
        match leftover {
            Leftover::Container(_) | Leftover::Sandbox(_) => false,
            Leftover::Network(id) => {
                *id != self.life.record.sandbox_id && removals.contains_key(&Leftover::Sandbox(id.clone()))
            }
            Leftover::Netns(id) => {
                removals.contains_key(&Leftover::Network(id.clone()))
                    || removals.contains_key(&Leftover::Sandbox(id.clone()))
            }
            Leftover::Volumes => self.life.actual.has_old_containers(),
            Leftover::Cgroup => removals.keys().any(|other| match other {
                Leftover::Cgroup | Leftover::Dirs | Leftover::End | Leftover::Record => false,
                Leftover::Container(_)
                | Leftover::Sandbox(_)
                | Leftover::Network(_)
                | Leftover::Netns(_)
                | Leftover::Volumes => true,
            }),
            Leftover::Dirs => {
                let later = [Leftover::Dirs, Leftover::End, Leftover::Record];
                removals.keys().any(|other| !later.contains(other))
            }
            Leftover::End => false,
            Leftover::Record => removals.keys().any(|other| *other != Leftover::Record),
        }
    }
}
