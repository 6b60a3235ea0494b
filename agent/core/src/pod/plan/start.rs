//! Which containers start now.
//!
//! Ephemeral containers as soon as the pod has all it needs: they wait for nobody, and nobody waits for them. Init containers one after
//! the other, each when the one before has ended well; sidecars among them when they have
//! started; then the main containers in the order of the spec, each when the start of the one before has come back and its postStart hook
//! is over. A container whose image, layer or start failed and waits does not hold up those after it; one that is still on its way does.
//! So it is with an image that is mounted: who does not mount it starts without it.

use super::{Planner, stop::Turn};
use crate::{
    id::{ContainerName, ImageRef},
    pod::{
        actual::{Life, Preparing, Run, Running},
        image_need::{mounts, of_volume},
        port::{image::ImageUse, termination::TerminationMessage},
        probe::{has_begun, has_started},
        resize::restarts_to_resize,
        resource::Resource,
        step::Step,
        target::target,
        turn::{has_main_running, is_initialized, is_passed},
    },
    spec::{Container, ContainerKind, Hook, HookMoment, Volume},
};

/// Ephemeral containers of a pod that are being started at once: two, so that one that hangs holds up no other.
const EPHEMERAL_AT_ONCE: usize = 2;

impl Planner<'_> {
    /// Starts what is in turn, once the pod has all it needs.
    pub(super) fn start_containers(&mut self) {
        if !self.is_furnished() {
            return;
        }
        self.ephemeral_containers();
        if self.init_containers() == Gate::Closed {
            return;
        }
        for container in &self.life.spec.containers {
            match self.life.run(&container.name) {
                Run::Preparing(preparing) => match self.readiness(container, preparing) {
                    Readiness::Ready => return self.push(Step::Start(container.name.clone())),
                    Readiness::OnItsWay => return,
                    Readiness::Waits => {}
                },
                Run::Starting(_) => return,
                Run::Running(_) if !has_begun(self.life, container) => return,
                Run::Idle | Run::BackingOff | Run::Running(_) | Run::Ended(_) => {}
            }
        }
    }

    /// Whether everything that the containers share is there. Volumes that are images are there for those who mount them, and others that
    /// nobody uses are not made.
    fn is_furnished(&self) -> bool {
        let Life { spec, actual, .. } = self.life;
        let are_volumes_there = || {
            let is_there = |volume: &Volume| {
                actual.volumes.get(&volume.name).is_some_and(|state| state.ready().is_some())
            };
            let used = spec.used_volumes();
            let is_needed = |volume: &&Volume| volume.image().is_none() && used.contains(&volume.name);
            spec.volumes.iter().filter(is_needed).all(is_there)
        };
        actual.dirs.ready().is_some()
            && self.has_fitting_cgroup()
            && actual.sandbox.ready().is_some()
            && (!self.life.is_wired() || actual.network.ready().is_some())
            && are_volumes_there()
    }

    /// Few at a time: there may be hundreds, each with a place among all starts of the node. A kubelet starts one after another. Those that were
    /// tried least come first: the others may hang each time.
    fn ephemeral_containers(&mut self) {
        let all = &self.life.spec.ephemeral_containers;
        let is_starting = |name: &ContainerName| matches!(self.life.run(name), Run::Starting(_));
        let starting = all.iter().filter(|one| is_starting(&one.name)).count();
        let room = EPHEMERAL_AT_ONCE.saturating_sub(starting);
        let mut ready = Vec::new();
        for container in all {
            let Run::Preparing(preparing) = self.life.run(&container.name) else { continue };
            let has_target = target(self.life, container).is_ok();
            if !has_target && self.life.may_have_run(&container.name) {
                self.look(container, preparing);
            } else if self.readiness(container, preparing) == Readiness::Ready {
                let tries = preparing.refused.as_ref().map_or(0, |refusal| refusal.retry.tries);
                match (has_target, &preparing.refused) {
                    (true, _) => ready.push((tries, container)),
                    // That its target does not run is told once, at once: then it waits until that does, however long.
                    (false, None) => self.push(Step::Start(container.name.clone())),
                    (false, Some(_)) => {}
                }
            }
        }
        ready.sort_by_key(|(tries, _)| *tries);
        for (_, container) in ready.into_iter().take(room) {
            self.push(Step::Start(container.name.clone()));
        }
    }

    /// Starts what is in turn of the init containers and sidecars; open when main containers may start.
    fn init_containers(&mut self) -> Gate {
        let initialized = is_initialized(self.life);
        let mut gate = Gate::Open;
        for container in &self.life.spec.init_containers {
            gate = match container.kind {
                ContainerKind::Init if initialized => Gate::Open,
                ContainerKind::Init => self.init_container(container),
                ContainerKind::Sidecar | ContainerKind::Main | ContainerKind::Ephemeral => {
                    self.sidecar(container)
                }
            };
            if gate == Gate::Closed && !initialized {
                return Gate::Closed;
            }
        }
        // That of the last one: those before it are passed.
        if has_main_running(self.life) { Gate::Open } else { gate }
    }

    fn init_container(&mut self, container: &Container) -> Gate {
        match self.life.run(&container.name) {
            Run::Idle if self.has_ended_well_here(container) => Gate::Open,
            Run::Preparing(preparing) => self.start_when_ready(container, preparing),
            Run::Idle | Run::BackingOff | Run::Starting(_) | Run::Running(_) | Run::Ended(_) => Gate::Closed,
        }
    }

    fn has_ended_well_here(&self, container: &Container) -> bool {
        let run = self.life.record.run_here(&container.name);
        run.is_some_and(|run| run.exit.as_ref().is_some_and(|exit| exit.exit.code == 0))
    }

    fn sidecar(&mut self, container: &Container) -> Gate {
        let gate = match self.life.run(&container.name) {
            // One that only the record tells of may never have begun.
            Run::Running(running) if !running.is_trusted && has_started(self.life, container) => Gate::Open,
            Run::Preparing(preparing) => self.start_when_ready(container, preparing),
            Run::Running(_) | Run::Idle | Run::BackingOff | Run::Starting(_) | Run::Ended(_) => Gate::Closed,
        };
        if is_passed(self.life, container) { Gate::Open } else { gate }
    }

    /// Starts one when it can be; who waits for it waits on.
    fn start_when_ready(&mut self, container: &Container, preparing: &Preparing) -> Gate {
        if self.readiness(container, preparing) == Readiness::Ready {
            self.push(Step::Start(container.name.clone()));
        }
        Gate::Closed
    }

    fn readiness(&mut self, container: &Container, preparing: &Preparing) -> Readiness {
        if preparing.hash != container.hash {
            return Readiness::OnItsWay;
        }
        let parts = [
            self.mounted_images(container),
            self.image(&container.image, &preparing.image),
            made(&preparing.rootfs),
        ];
        for part in parts {
            match part {
                Readiness::Ready => {}
                Readiness::OnItsWay | Readiness::Waits => return part,
            }
        }
        match &preparing.refused {
            Some(refusal) if !self.has_come(refusal.retry.at) => Readiness::Waits,
            Some(_) | None => Readiness::Ready,
        }
    }

    /// How far the images are that a container mounts: while one waits, so does the container.
    fn mounted_images(&self, container: &Container) -> Readiness {
        let actual = &self.life.actual;
        let volumes = self.life.spec.volumes.iter().filter(|volume| mounts(container, &volume.name));
        let of = |volume: &Volume| match of_volume(self.life, volume) {
            Some(need) => self.image(need.image, need.state),
            None => made(actual.volumes.get(&volume.name).unwrap_or(&Resource::Absent)),
        };
        let images = volumes.filter(|volume| volume.image().is_some());
        images.map(of).max().unwrap_or(Readiness::Ready)
    }

    fn image(&self, image: &ImageRef, state: &ImageUse) -> Readiness {
        match state {
            ImageUse::Wanted | ImageUse::Postponed | ImageUse::Pulling { .. } => Readiness::OnItsWay,
            ImageUse::Inspecting { .. } | ImageUse::Missing | ImageUse::Failed { .. } => {
                let backoff = self.life.actual.pull_backoffs.get(image);
                let waits = backoff.is_some_and(|backoff| backoff.ends_at > self.now.mono);
                if waits { Readiness::Waits } else { Readiness::OnItsWay }
            }
            ImageUse::Refused { .. } => Readiness::Waits,
            ImageUse::Ready(_) => Readiness::Ready,
        }
    }

    /// Stops containers whose spec changed, sees stops through, reads termination messages.
    pub(super) fn running_containers(&mut self) {
        for container in self.life.spec.all_containers() {
            self.running_container(container);
        }
    }

    pub(super) fn running_container(&mut self, container: &Container) {
        match self.life.run(&container.name) {
            Run::Running(running) => {
                let is_replaceable = match container.kind {
                    ContainerKind::Main | ContainerKind::Sidecar => true,
                    ContainerKind::Init | ContainerKind::Ephemeral => false,
                };
                let changed = running.hash != container.hash && is_replaceable;
                let stopping = self.life.record.containers.get(&container.name).and_then(|run| run.stopping);
                if stopping.is_some() {
                    self.stop_running(container, running, Turn::Now);
                } else if changed || restarts_to_resize(self.life, container) {
                    self.push(Step::Stop(container.name.clone()));
                } else if !has_begun(self.life, container) {
                    self.post_start(container, running);
                }
            }
            Run::Ended(ended) => self.termination_message(container, &ended.message),
            Run::Idle | Run::BackingOff | Run::Preparing(_) | Run::Starting(_) => {}
        }
    }

    /// Runs the postStart hook. One that lets time pass began with the container, which the runtime tells by a time of day.
    fn post_start(&mut self, container: &Container, running: &Running) {
        // What only the record tells of may never have begun.
        if running.is_trusted {
            return;
        }
        match &container.lifecycle.post_start {
            None => {}
            Some(Hook::Sleep(time)) => {
                let record = self.life.record.containers.get(&container.name);
                let begun_at =
                    record.map_or(running.known_at, |record| record.begun_at).min(running.known_at);
                let began = self.now.mono_of(running.started_at).clamp(begun_at, running.known_at);
                if self.has_come(began + *time) {
                    self.push(Step::Begun(container.name.clone()));
                }
            }
            Some(Hook::Exec(_) | Hook::Http(_) | Hook::Tcp) => {
                self.hook_when_due(container, running, HookMoment::PostStart);
            }
        }
    }

    pub(super) fn termination_message(&mut self, container: &Container, message: &TerminationMessage) {
        let due = match message {
            TerminationMessage::Unread => true,
            TerminationMessage::Reading { .. } => false,
            TerminationMessage::Failed(retry) => self.has_come(retry.at),
        };
        if due {
            self.push(Step::ReadTerminationMessage(container.name.clone()));
        }
    }
}

/// Whether what comes after may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Closed,
}

/// How far a run is before its start, or something that it needs: the later one counts for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Readiness {
    Ready,
    OnItsWay,
    Waits,
}

fn made<T>(resource: &Resource<T>) -> Readiness {
    match resource {
        Resource::Absent | Resource::Unknown | Resource::Ensuring(_) => Readiness::OnItsWay,
        Resource::Failed(_) => Readiness::Waits,
        Resource::Ready(_) => Readiness::Ready,
    }
}
