//! Steps that a pod applies to itself: they change its record and what is known of it, and ask for no effect.

use std::sync::Arc;

use super::{
    actual::{Follows, Preparing, Run, RunEnd},
    grace,
    machine::{PodMachine, Shared},
    port::{
        hook::{Hooking, hook_has_failed},
        image::{ImageFor, ImageUse},
    },
    resource::Resource,
    restart::{Stopped, due_after_a_stop, is_of_another, next_back_off},
    text::{about, about_pod, pod_text},
};
use crate::{
    id::{ContainerId, ContainerName},
    record::{ContainerRecord, ExitRecord, Hooked, Probed, TerminalRecord},
    spec::{Container, ContainerKind, HookMoment},
    status::Severity,
    time::{Mono, Now},
};

impl PodMachine {
    pub(super) fn container(&self, name: &ContainerName) -> Option<Arc<Container>> {
        self.life.spec.all_containers().find(|container| container.name == *name).cloned()
    }

    /// What the run before still has under way of a hook is given up with it. A preStop hook has failed by that: it did not end before its
    /// container.
    pub(super) fn set_run(&mut self, name: &ContainerName, run: Run) {
        let under_way = |run: &Run| match run {
            Run::Running(running) => running.hook.under_way(),
            Run::Idle | Run::BackingOff | Run::Preparing(_) | Run::Starting(_) | Run::Ended(_) => None,
        };
        let goes_on = under_way(&run);
        let before = self.life.actual.containers.insert(name.clone(), run);
        let Some((op, moment)) = before.as_ref().and_then(under_way) else { return };
        if goes_on.is_some_and(|(goes_on, _)| goes_on == op) {
            return;
        }
        self.given_up.push(op);
        if moment == HookMoment::PreStop {
            self.notes.push(hook_has_failed(name, moment));
        }
    }

    pub(super) fn end(&mut self, end: TerminalRecord, now: Mono) {
        if end.reason == "DeadlineExceeded" {
            self.notes.push(about_pod(Severity::Normal, "DeadlineExceeded", end.message.clone()));
        }
        self.life.record.terminal = Some(end);
        self.terminate(now);
    }

    pub(super) fn begin(&mut self, name: &ContainerName, shared: &Shared<'_>, now: Mono) {
        let Some(container) = self.container(name) else { return };
        let longest = shared.config.crash_backoff_max;
        let stopped = self.how_it_stopped(name);
        let mut follows = Follows::AnEnd;
        let containers = &mut self.life.record.containers;
        let rootfs = match containers.get_mut(name) {
            None => {
                let id = ContainerId::of(&self.life.record.uid, name, 0);
                containers.insert(name.clone(), ContainerRecord::begun(id, 0, now));
                Resource::Absent
            }
            Some(record) if record.exit.is_some() => {
                let waits = |exit: &ExitRecord| due_after_a_stop(record, exit) > exit.at;
                if stopped == Stopped::Alone && !record.exit.as_ref().is_some_and(waits) {
                    follows = Follows::AStop;
                }
                record.backoff = next_back_off(record, stopped, longest, now);
                record.renew(&self.life.record.uid, name);
                record.begun_at = now;
                record.anew = false;
                Resource::Absent
            }
            Some(record) if record.anew && record.started_in.is_none() => Resource::Absent,
            Some(record) => {
                // What was to stop never ran.
                record.stopping = None;
                record.probed = Probed::default();
                record.hooked = Hooked::default();
                if is_of_another(record) {
                    record.backoff = next_back_off(record, Stopped::No, longest, now);
                    record.begun_at = now;
                }
                Resource::Unknown
            }
        };
        let preparing = Preparing {
            hash: container.hash,
            image: ImageUse::Wanted,
            is_image_told: rootfs == Resource::Unknown,
            rootfs,
            refused: None,
            is_under_way: false,
            follows,
            end: None,
        };
        self.set_run(name, Run::Preparing(preparing));
    }

    fn how_it_stopped(&self, name: &ContainerName) -> Stopped {
        let record = &self.life.record;
        let is_replaced = record.containers.get(name).is_some_and(|run| record.is_replaced(run));
        if is_replaced { Stopped::Alone } else { Stopped::No }
    }

    pub(super) fn back_off(&mut self, name: &ContainerName) {
        let text =
            format!("Back-off restarting failed container {name} in pod {}", pod_text(&self.life.record));
        self.notes.push(about(name, Severity::Warning, "BackOff", text));
        self.set_run(name, Run::BackingOff);
    }

    /// Gives up a run that was not started. One that may have been counts as ended.
    pub(super) fn discard(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Now) {
        shared.pulls.withdraw(&self.asker(ImageFor::Container(name.clone())));
        if self.life.may_have_run(name) {
            return self.ended(name, RunEnd::Lost(now.wall), now);
        }
        let record = self.life.record.containers.get_mut(name);
        let was_asked = record.and_then(|record| record.started_in.take()).is_some();
        if let Run::Preparing(preparing) = self.life.run(name)
            && (was_asked || preparing.rootfs != Resource::Absent)
        {
            self.leave(name);
        }
        self.set_run(name, Run::Idle);
    }

    fn is_sidecar(&self, name: &ContainerName) -> bool {
        self.container(name).is_some_and(|container| container.kind == ContainerKind::Sidecar)
    }

    pub(super) fn stop(&mut self, name: &ContainerName, now: Mono) {
        let record = &self.life.record;
        let together = record.termination.or(record.replacing).or(record.restarting);
        let text = match together {
            Some(all) if record.restarting == Some(all) => "killing".to_owned(),
            Some(_) => format!("Stopping container {name}"),
            None if self.is_to_restart_for_a_resize(name) => {
                format!("Container {name} resize requires restart")
            }
            None if self.is_sidecar(name) => format!("Init container {name} definition changed"),
            None => format!("Container {name} definition changed, will be restarted"),
        };
        let left = match together {
            Some(pod) => pod.deadline.since(now),
            None => self.life.spec.grace,
        };
        if let Some(record) = self.life.record.containers.get_mut(name) {
            record.stopping = Some(grace::stop_container(left, now));
            self.notes.push(about(name, Severity::Normal, "Killing", text));
        }
        self.take_back_post_start(name);
    }

    /// A hook after the start that still waits for the record is not run: its container is to stop.
    fn take_back_post_start(&mut self, name: &ContainerName) {
        let Some(Run::Running(running)) = self.life.actual.containers.get_mut(name) else { return };
        if let Hooking::Asked { op, moment: HookMoment::PostStart, .. } = running.hook
            && self.acts.iter().any(|(asked, _)| *asked == op)
        {
            running.hook = Hooking::No;
            self.given_up.push(op);
        }
    }
}
