//! Takes the steps of a plan: changes what is known and asks for effects.

use std::sync::Arc;

use super::{
    actual::{
        Asked, Delivery, End, ImageUse, Preparing, Refusal, Removal, Run, Running, Starting, Stop, Words,
    },
    machine::{PodMachine, Shared},
    plan::STOP_MIN,
    request,
    resource::{Resource, Retry},
    restart::{first_back_off, next_back_off},
    runs::KILLS_MAX,
    step::{Step, Thing},
    words::{about, about_pod, pod_text, pull_back_off},
};
use crate::{
    effect::{Act, RootfsRequest, SignalRequest, StopSignal, TaskRequest},
    failure::{Failure, FailureKind},
    id::{ContainerId, ContainerName, ImageRef},
    ops::Slot,
    record::{ContainerRecord, TerminalRecord, TerminationRecord},
    spec::Container,
    status::Severity,
    time::{Mono, Now},
};

use super::actual::Leftover;

impl PodMachine {
    pub(super) fn apply(&mut self, step: Step, shared: &mut Shared<'_>, now: Now) {
        match step {
            Step::End(end) => self.end(end, now.mono),
            Step::Begin(name) => self.begin(&name, shared, now.mono),
            Step::BackOff(name) => self.back_off(&name),
            Step::BackOffPull(image) => self.back_off_pull(&image),
            Step::Discard(name) => self.discard(&name, shared, now),
            Step::ReplaceSandbox => self.lose_sandbox(now.wall, now),
            Step::Stop(name) => self.stop(&name, now.mono),
            Step::Ensure(thing) => self.ensure(thing, shared, now.mono),
            Step::Inspect(name) => self.inspect(&name, shared),
            Step::Pull(name) => self.pull(&name, shared, now.mono),
            Step::Start(name) => self.start(&name, shared, now.mono),
            Step::Look(name) => self.look(&name, shared),
            Step::Term(name) => self.signal(&name, Sent::Term, shared, now),
            Step::Kill(name) => self.signal(&name, Sent::Kill, shared, now),
            Step::ReadWords(name) => self.read_words(&name, shared, now),
            Step::Remove(leftover) => self.remove_leftover(leftover, shared),
            Step::KillShim(sandbox) => self.kill_shim(sandbox, shared),
        }
    }

    fn ensure(&mut self, thing: Thing, shared: &mut Shared<'_>, now: Mono) {
        match thing {
            Thing::Dirs => self.ensure_dirs(shared),
            Thing::Cgroup => self.ensure_cgroup(shared),
            Thing::Netns => self.ensure_netns(shared),
            Thing::Network => self.ensure_network(shared),
            Thing::Sandbox => self.ensure_sandbox(shared, now),
            Thing::Volume(name) => self.ensure_volume(name, shared),
            Thing::Files => self.ensure_files(shared),
            Thing::Rootfs(name) => self.ensure_rootfs(&name, shared),
            Thing::End => self.keep_end(shared),
        }
    }

    pub(super) fn container(&self, name: &ContainerName) -> Option<Arc<Container>> {
        self.life.spec.all_containers().find(|container| container.name == *name).cloned()
    }

    pub(super) fn set_run(&mut self, name: &ContainerName, run: Run) {
        self.life.actual.containers.insert(name.clone(), run);
    }

    fn end(&mut self, end: TerminalRecord, now: Mono) {
        if end.reason == "DeadlineExceeded" {
            self.notes.push(about_pod(Severity::Normal, "DeadlineExceeded", end.message.clone()));
        }
        self.life.record.terminal = Some(end);
        self.terminate(now);
    }

    fn begin(&mut self, name: &ContainerName, shared: &Shared<'_>, now: Mono) {
        let Some(container) = self.container(name) else { return };
        let longest = shared.config.crash_backoff_max;
        let containers = &mut self.life.record.containers;
        let rootfs = match containers.get_mut(name) {
            None => {
                let id = ContainerId::of(&self.life.record.uid, name, 0);
                containers.insert(name.clone(), ContainerRecord::begun(id, 0, now));
                Resource::Absent
            }
            Some(record) => match record.exit.take() {
                Some(exit) => {
                    record.backoff = next_back_off(record, &exit, longest, now);
                    record.attempt = record.attempt.saturating_add(1);
                    record.id = ContainerId::of(&self.life.record.uid, name, record.attempt);
                    record.begun_at = now;
                    record.started_in = None;
                    record.stopping = None;
                    record.last_exit = Some(exit);
                    Resource::Absent
                }
                None => {
                    // Another version takes the place of a restart that was not started.
                    if record.last_exit.is_some() && record.backoff.delay_ms == 0 {
                        record.backoff = first_back_off(longest, now);
                    }
                    Resource::Unknown
                }
            },
        };
        let preparing = Preparing { hash: container.hash, image: ImageUse::Wanted, rootfs, refused: None };
        self.set_run(name, Run::Preparing(preparing));
    }

    fn back_off(&mut self, name: &ContainerName) {
        let text =
            format!("Back-off restarting failed container {name} in pod {}", pod_text(&self.life.record));
        self.notes.push(about(name, Severity::Warning, "BackOff", text));
        self.set_run(name, Run::BackingOff);
    }

    fn back_off_pull(&mut self, image: &ImageRef) {
        let Some(backoff) = self.life.actual.pull_backoffs.get_mut(image) else { return };
        backoff.announced = true;
        let text = pull_back_off(image, &backoff.error);
        let waiting = self.life.spec.all_containers().filter(|container| container.image == *image);
        for container in waiting {
            let is_waiting = matches!(self.life.run(&container.name), Run::Preparing(run) if run.image == ImageUse::Missing);
            if is_waiting {
                self.notes.push(about(&container.name, Severity::Normal, "BackOff", text.clone()));
                self.notes.push(about(
                    &container.name,
                    Severity::Warning,
                    "Failed",
                    "Error: ImagePullBackOff",
                ));
            }
        }
    }

    /// Gives up a run that was not started. One that may have been counts as ended.
    fn discard(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Now) {
        shared.pulls.withdraw(&self.asker(name));
        if self.life.may_have_run(name) {
            return self.ended(name, End::Lost(now.wall), now);
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

    /// The current run of a container is to be removed, when nothing of it is being made any more.
    pub(super) fn leave(&mut self, name: &ContainerName) {
        let id = self.life.container_id(name);
        let making = match self.life.run(name) {
            Run::Preparing(preparing) => preparing.rootfs.op(),
            Run::Idle | Run::BackingOff | Run::Starting(_) | Run::Running(_) | Run::Ended(_) => None,
        };
        let removal = making.map_or(Removal::Due, Removal::After);
        self.life.actual.removals.insert(Leftover::Container(id), removal);
    }

    fn stop(&mut self, name: &ContainerName, now: Mono) {
        let together = self.life.record.termination.or(self.life.record.replacing);
        let text = match together {
            Some(_) => format!("Stopping container {name}"),
            None => format!("Container {name} definition changed, will be restarted"),
        };
        let deadline = match together {
            Some(pod) => pod.deadline.max(now + STOP_MIN),
            None => now + self.life.spec.grace.max(STOP_MIN),
        };
        if let Some(record) = self.life.record.containers.get_mut(name) {
            record.stopping = Some(TerminationRecord { began: now, deadline });
            self.notes.push(about(name, Severity::Normal, "Killing", text));
        }
    }

    fn ensure_rootfs(&mut self, name: &ContainerName, shared: &mut Shared<'_>) {
        let id = self.life.container_id(name);
        let Run::Preparing(preparing) = self.life.run(name).clone() else { return };
        let ImageUse::Ready(image) = &preparing.image else { return };
        let act = Act::EnsureRootfs(RootfsRequest { id, image: Arc::clone(image) });
        let op = self.ask(shared, Slot::Rootfs(name.clone()), preparing.rootfs.tries(), act);
        self.set_run(name, Run::Preparing(Preparing { rootfs: Resource::Ensuring(op), ..preparing }));
    }

    fn set_image(&mut self, name: &ContainerName, image: ImageUse) {
        if let Some(Run::Preparing(preparing)) = self.life.actual.containers.get_mut(name) {
            preparing.image = image;
        }
    }

    fn inspect(&mut self, name: &ContainerName, shared: &mut Shared<'_>) {
        let Some(container) = self.container(name) else { return };
        shared.pulls.inspect(&container.image, self.asker(name));
        self.set_image(name, ImageUse::Inspecting);
    }

    fn pull(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Mono) {
        let Some(container) = self.container(name) else { return };
        shared.pulls.pull(&container.image, self.asker(name), now);
        let text = format!("Pulling image {:?}", container.image.as_str());
        self.notes.push(about(name, Severity::Normal, "Pulling", text));
        self.set_image(name, ImageUse::Pulling);
    }

    fn start(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Mono) {
        let Some(container) = self.container(name) else { return };
        let Run::Preparing(preparing) = self.life.run(name).clone() else { return };
        let request = match request::start(&self.life, &container, &preparing, shared.config) {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(error) => {
                let failure = Failure { kind: FailureKind::Config, message: error.to_string() };
                self.notes.push(about(name, Severity::Warning, "Failed", format!("Error: {error}")));
                let refused = preparing.refused.as_ref().map_or(0, |refusal| refusal.retry.tries);
                let retry = Retry::after(failure, refused, now);
                let refused = Some(Refusal { reason: error.reason(), retry });
                return self.set_run(name, Run::Preparing(Preparing { refused, ..preparing }));
            }
        };
        let sandbox = self.life.record.sandbox;
        if let Some(record) = self.life.record.containers.get_mut(name) {
            record.started_in = Some(sandbox);
            record.image = Some(request::run_image(&request));
        }
        for warning in &request.plan.warnings {
            self.notes.push(about(name, Severity::Warning, "UnknownCapability", warning.clone()));
        }
        let tries = preparing.refused.as_ref().map_or(0, |refusal| refusal.retry.tries);
        let act = Act::StartContainer(Box::new(request));
        let op = self.ask(shared, Slot::Start(name.clone()), tries, act);
        let starting = Starting { op, asked: Asked::Start, prepared: preparing, end: None };
        self.set_run(name, Run::Starting(starting));
    }

    /// Asks what became of a start that nobody answered: the answer is taken like that of a start.
    fn look(&mut self, name: &ContainerName, shared: &mut Shared<'_>) {
        let Run::Preparing(preparing) = self.life.run(name).clone() else { return };
        shared.pulls.withdraw(&self.asker(name));
        let tries = preparing.refused.as_ref().map_or(0, |refusal| refusal.retry.tries);
        let request = TaskRequest {
            pod: Arc::clone(&self.life.spec),
            sandbox: self.life.sandbox_id(),
            id: self.life.container_id(name),
        };
        let op = self.ask(shared, Slot::Start(name.clone()), tries, Act::LookAtTask(Box::new(request)));
        let starting = Starting { op, asked: Asked::Look, prepared: preparing, end: None };
        self.set_run(name, Run::Starting(starting));
    }

    fn signal(&mut self, name: &ContainerName, sent: Sent, shared: &mut Shared<'_>, now: Now) {
        let Run::Running(running) = self.life.run(name).clone() else { return };
        let tries = match (sent, running.stop) {
            (Sent::Term, Stop::Term(delivery)) | (Sent::Kill, Stop::Kill(delivery)) => delivery.tries(),
            (Sent::Term, Stop::No | Stop::Kill(_)) | (Sent::Kill, Stop::No | Stop::Term(_)) => 0,
        };
        if sent == Sent::Kill && tries >= KILLS_MAX {
            return self.ended(name, End::Unseen(now.wall), now);
        }
        let signal = match sent {
            Sent::Term => request::stop_signal(&self.life.record, name),
            Sent::Kill => StopSignal::Kill,
        };
        let (sandbox, id) = (self.life.sandbox_id(), self.life.container_id(name));
        let act = Act::Signal(SignalRequest { sandbox, id, signal });
        let op = self.ask(shared, Slot::Signal(name.clone()), tries, act);
        let delivery = Delivery::Sending { op, tries };
        let stop = match sent {
            Sent::Term => Stop::Term(delivery),
            Sent::Kill => Stop::Kill(delivery),
        };
        self.set_run(name, Run::Running(Running { stop, ..running }));
    }

    fn read_words(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Now) {
        let Some(container) = self.container(name) else { return };
        let Run::Ended(mut ended) = self.life.run(name).clone() else { return };
        let Some(request) = request::last_words(&self.life, &container, &ended.exit, shared.config) else {
            return self.conclude(name, ended.exit, String::new(), None, now);
        };
        let tries = match &ended.words {
            Words::Unread => 0,
            Words::Reading { tries, .. } => *tries,
            Words::Failed(retry) => retry.tries,
        };
        let act = Act::ReadTerminationMessage(Box::new(request));
        let op = self.ask(shared, Slot::Words(name.clone()), tries, act);
        ended.words = Words::Reading { op, tries };
        self.set_run(name, Run::Ended(ended));
    }

    fn remove_leftover(&mut self, leftover: Leftover, shared: &mut Shared<'_>) {
        let tries = match self.life.actual.removals.get(&leftover) {
            Some(Removal::Stuck(retry)) => retry.tries,
            Some(Removal::Due | Removal::After(_) | Removal::Removing { .. }) | None => 0,
        };
        let actual = &mut self.life.actual;
        let current = &self.life.record.sandbox_id;
        match &leftover {
            Leftover::Container(_) => {}
            Leftover::Sandbox(id) if id == current => actual.sandbox = Resource::Absent,
            Leftover::Network(id) if id == current => actual.network = Resource::Absent,
            Leftover::Netns(id) if id == current => actual.netns = Resource::Absent,
            Leftover::Sandbox(_) | Leftover::Network(_) | Leftover::Netns(_) => {}
            Leftover::Volumes => actual.volumes.clear(),
            Leftover::Cgroup => actual.cgroup = Resource::Absent,
            Leftover::Dirs => actual.dirs = Resource::Absent,
            Leftover::End => actual.end = Resource::Absent,
            Leftover::Record => {}
        }
        let act = request::removal(&self.life, &leftover);
        let op = self.ask(shared, Slot::Remove(leftover.clone()), tries, act);
        self.life.actual.removals.insert(leftover, Removal::Removing { op, tries });
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Term,
    Kill,
}

impl Delivery {
    pub(super) fn tries(self) -> u32 {
        match self {
            Self::Sending { tries, .. } | Self::Waiting { tries, .. } => tries,
        }
    }
}
