//! How a pod is taken down.
//!
//! All containers begin to stop at once, with their preStop hooks. Then main, init and ephemeral containers get their stop signal, sidecars
//! in reverse order after all main containers have ended; what runs at the deadline is killed. Then everything goes: what needs a resource before the resource.
//! Source: `pkg/kubelet/kuberuntime/kuberuntime_container.go` `killContainersWithSyncResult`, `killContainer`,
//! `kuberuntime_termination_order.go`.

use std::time::Duration;

use super::Planner;
use crate::{
    pod::{
        actual::{Preparing, Run, Running},
        port::{
            hook::Hooking,
            removal::Leftover,
            signal::{Delivery, Stop, may_wait},
            volume::Refresh,
        },
        resource::Resource,
        step::{PodResource, Step},
    },
    record::{ContainerRecord, Goal},
    spec::{Container, ContainerKind, Hook, HookMoment, Source},
    time::Mono,
};

/// What a container gets at least between its stop signal and SIGKILL (`minimumGracePeriodInSeconds` of
/// `kuberuntime_container.go`).
pub const STOP_MIN: Duration = Duration::from_secs(2);

impl<'a> Planner<'a> {
    /// Stops what is in a sandbox that cannot go on. It is replaced when nothing is.
    pub(super) fn empty_sandbox(&mut self) {
        self.stop_containers();
        // One that is removed with its sandbox at the same time is deleted twice.
        if self.is_idle() && self.life.actual.has_only_silent_containers() {
            self.push(Step::ReplaceSandbox);
        }
    }

    fn stop_containers(&mut self) {
        for (container, turn) in self.stop_order() {
            self.stop_container(container, turn);
        }
    }

    fn is_idle(&self) -> bool {
        self.life.actual.containers.values().all(|run| matches!(run, Run::Idle | Run::BackingOff))
    }

    pub(super) fn stop(&mut self) {
        for volume in self.life.actual.volume_images.keys() {
            self.push(Step::GiveUpImage(volume.clone()));
        }
        self.stop_containers();
        self.removals();
        let idle = self.is_idle();
        let actual = &self.life.actual;
        if idle && !actual.has_old_containers() {
            self.take_down();
        } else if idle && actual.has_only_silent_containers() {
            self.take(Leftover::Sandbox(self.life.sandbox_id()), [kept(&actual.sandbox)]);
        }
    }

    /// Every container, and whether its turn to stop has come: sidecars wait for main containers, and for the sidecars after them.
    /// Nobody waits for init and ephemeral containers.
    fn stop_order(&self) -> Vec<(&'a Container, Turn)> {
        let spec = &self.life.spec;
        let mut turn = Turn::Now;
        let mut order = Vec::new();
        for container in &spec.containers {
            order.push((&**container, Turn::Now));
            if self.has_task(container) {
                turn = Turn::Later;
            }
        }
        for container in spec.init_containers.iter().rev() {
            if container.kind != ContainerKind::Sidecar {
                order.push((&**container, Turn::Now));
                continue;
            }
            order.push((&**container, turn));
            if self.has_task(container) {
                turn = Turn::Later;
            }
        }
        order.extend(spec.ephemeral_containers.iter().map(|container| (&**container, Turn::Now)));
        order
    }

    fn has_task(&self, container: &Container) -> bool {
        match self.life.run(&container.name) {
            Run::Starting(_) | Run::Running(_) => true,
            Run::Preparing(_) => self.life.may_have_run(&container.name),
            Run::Idle | Run::BackingOff | Run::Ended(_) => false,
        }
    }

    pub(super) fn stop_container(&mut self, container: &Container, turn: Turn) {
        match self.life.run(&container.name) {
            Run::Idle | Run::BackingOff | Run::Starting(_) => {}
            Run::Preparing(preparing) => {
                let has_time = !self.has_come(self.pod_deadline());
                self.give_up(container, preparing, has_time);
            }
            Run::Running(running) => match self.life.record.containers.get(&container.name) {
                Some(record) if record.stopping.is_some() => self.stop_running(container, running, turn),
                Some(_) | None => self.push(Step::Stop(container.name.clone())),
            },
            Run::Ended(ended) => self.termination_message(container, &ended.message),
        }
    }

    /// Gives up a run that was not started. One that may have been is looked at first, while there is time: what runs gets
    /// its stop signal.
    pub(super) fn give_up(&mut self, container: &Container, preparing: &Preparing, has_time: bool) {
        if matches!(preparing.rootfs, Resource::Ensuring(_)) {
            return;
        }
        if !has_time || !self.life.may_have_run(&container.name) {
            return self.push(Step::Discard(container.name.clone()));
        }
        self.look(container, preparing);
    }

    /// Looks at a run that may have been started.
    pub(super) fn look(&mut self, container: &Container, preparing: &Preparing) {
        let at = preparing.refused.as_ref().map(|refusal| refusal.retry.at);
        if !matches!(preparing.rootfs, Resource::Ensuring(_)) && at.is_none_or(|at| self.has_come(at)) {
            self.push(Step::Look(container.name.clone()));
        }
    }

    fn pod_deadline(&self) -> Mono {
        let record = &self.life.record;
        let stop = record.termination.or(record.replacing).or(record.restarting);
        stop.map_or(self.now.mono, |termination| termination.deadline)
    }

    /// Sees the stop of a running container through: its preStop hook and its turn, its stop signal, SIGKILL when its time is up.
    pub(super) fn stop_running(&mut self, container: &Container, running: &Running, turn: Turn) {
        let name = &container.name;
        let Some(record) = self.life.record.containers.get(name) else { return };
        let Some(stopping) = record.stopping else { return };
        // Containers that begin anew together have neither hooks nor an order. What is stopped with its pod has the pod's time.
        let termination = self.life.record.termination;
        let is_with_pod = termination.is_some_and(|pod| pod.began <= stopping.began);
        let all = self.life.record.restarting.filter(|_| !is_with_pod);
        let pod = termination.into_iter().chain(all).map(|pod| pod.deadline).min();
        let ends = pod.map_or(stopping.deadline, |pod| stopping.deadline.min(pod));
        let waits = running.stop == Stop::No && record.hooked.signalled.is_none() && may_wait(container);
        if waits {
            // No hook is begun when its time is over.
            let is_held = !self.has_come(ends)
                && all.is_none()
                && (self.pre_stop(container, running, record) == Turn::Later || turn == Turn::Later);
            if !is_held {
                self.push(Step::Term(name.clone()));
            }
            return;
        }
        let kill_at = ends.max(record.hooked.signalled.unwrap_or(stopping.began) + STOP_MIN);
        if self.has_come(kill_at) {
            match running.stop {
                Stop::No | Stop::Term(_) => self.push(Step::Kill(name.clone())),
                Stop::Kill(delivery) => {
                    if self.is_to_be_sent(delivery) {
                        self.push(Step::Kill(name.clone()));
                    }
                }
            }
            return;
        }
        match running.stop {
            Stop::No => self.push(Step::Term(name.clone())),
            Stop::Term(delivery) => {
                if self.is_to_be_sent(delivery) {
                    self.push(Step::Term(name.clone()));
                }
            }
            Stop::Kill(_) => {}
        }
    }

    /// Whether the preStop hook is over, which is run when it is due. Without a grace period there is none.
    fn pre_stop(&mut self, container: &Container, running: &Running, record: &ContainerRecord) -> Turn {
        let (Some(hook), Some(stopping)) = (&container.lifecycle.pre_stop, record.stopping) else {
            return Turn::Now;
        };
        // A probe may give more time than its pod has.
        let is_long = stopping.deadline.since(stopping.began) > STOP_MIN;
        let has_time = self.life.record.termination.is_some() || !self.life.spec.grace.is_zero() || is_long;
        if record.hooked.pre_stop || !has_time {
            return Turn::Now;
        }
        match hook {
            Hook::Sleep(time) if self.has_come(stopping.began + *time) => return Turn::Now,
            Hook::Sleep(_) => {}
            Hook::Exec(_) | Hook::Http(_) | Hook::Tcp => {
                self.hook_when_due(container, running, HookMoment::PreStop);
            }
        }
        Turn::Later
    }

    /// Runs a hook that is asked of somebody, unless it is under way.
    pub(super) fn hook_when_due(&mut self, container: &Container, running: &Running, moment: HookMoment) {
        let is_due = match running.hook {
            Hooking::No => true,
            Hooking::Asked { moment: asked, shown_at, .. } if asked == moment => {
                if shown_at.is_some_and(|at| self.has_come(at)) {
                    self.push(Step::ShowHook(container.name.clone()));
                }
                false
            }
            Hooking::Asked { .. } => true,
            Hooking::Again { moment: asked, at, .. } => asked != moment || self.has_come(at),
        };
        if is_due {
            self.push(Step::RunHook(container.name.clone(), moment));
        }
    }

    fn is_to_be_sent(&mut self, delivery: Delivery) -> bool {
        match delivery {
            Delivery::Sending { .. } | Delivery::Waiting { again: None, .. } => false,
            Delivery::Waiting { again: Some(at), .. } => self.has_come(at),
        }
    }

    /// Removes all that is left once no container is: sandbox ∥ network ∥ volumes, then the netns, the cgroup, the
    /// directories and the record of a pod that nobody wants any more.
    fn take_down(&mut self) {
        let actual = &self.life.actual;
        let id = &self.life.record.sandbox_id;
        let volumes = actual.volumes.values().map(kept).chain(actual.refreshes.values().map(refreshed));
        let mut left = Left::Nothing;
        left |= self.take(Leftover::Sandbox(id.clone()), [kept(&actual.sandbox)]);
        left |= self.take(Leftover::Network(id.clone()), [kept(&actual.network)]);
        left |= self.take(Leftover::Volumes, volumes);
        if left == Left::Nothing {
            left |= self.take(Leftover::Netns(id.clone()), [kept(&actual.netns)]);
        }
        if left == Left::Nothing {
            left |= self.take(Leftover::Cgroup, [kept(&actual.cgroup)]);
        }
        match self.life.record.goal {
            Goal::Wanted => return self.keep_end(left),
            Goal::Removed => {}
        }
        if left == Left::Nothing {
            // Files are written into directories, which are made where they are missing.
            let written = actual.files.op().map(|_| Kept::InTheMaking);
            left |= self.take(Leftover::Dirs, [kept(&actual.dirs)].into_iter().chain(written));
            left |= self.take(Leftover::End, [kept(&actual.end)]);
        }
        if left == Left::Nothing && actual.removals.is_empty() {
            self.push(Step::Remove(Leftover::Record));
        }
    }

    /// A pod that has ended and is kept does not run again after a reboot either. What the API has ended, the API keeps.
    fn keep_end(&mut self, left: Left) {
        let is_over = self.life.record.terminal.is_some() && self.life.record.source != Source::Api;
        let is_gone = left == Left::Nothing && self.life.actual.removals.is_empty();
        if is_over && is_gone && self.is_due(&self.life.actual.end) {
            self.push(Step::Ensure(PodResource::End));
        }
    }

    /// Plans the removal of a resource, unless it is still being made or something that goes first needs it.
    fn take(&mut self, leftover: Leftover, parts: impl IntoIterator<Item = Kept>) -> Left {
        let mut found = Kept::Absent;
        for part in parts {
            found = found.max(part);
        }
        match found {
            Kept::Absent => Left::Nothing,
            Kept::Perhaps => {
                if !self.is_in_use(&leftover) {
                    self.push(Step::Remove(leftover));
                }
                Left::Something
            }
            Kept::InTheMaking => Left::Something,
        }
    }
}

/// Whether a container's turn to stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    Later,
}

/// Whether anything has to go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Something,
}

impl std::ops::BitOrAssign for Left {
    fn bitor_assign(&mut self, other: Self) {
        if other == Self::Something {
            *self = Self::Something;
        }
    }
}

/// Whether a resource is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kept {
    Absent,
    Perhaps,
    InTheMaking,
}

fn kept<T>(resource: &Resource<T>) -> Kept {
    match resource {
        Resource::Absent => Kept::Absent,
        Resource::Unknown | Resource::Ready(_) | Resource::Failed(_) => Kept::Perhaps,
        Resource::Ensuring(_) => Kept::InTheMaking,
    }
}

/// A volume whose content is made anew is mounted again by that.
fn refreshed(refresh: &Refresh) -> Kept {
    match refresh {
        Refresh::At { .. } => Kept::Absent,
        Refresh::Asked { .. } => Kept::InTheMaking,
    }
}
