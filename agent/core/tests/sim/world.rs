//! A model of the node beneath the agent: it does what effects ask for, keeps what is truly there, and notes whatever
//! must never happen.

mod behind;
mod checks;
mod half;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_core::{
    effect::{Act, Effect, NodeAct},
    event::{Outcome, Restored},
    failure::{Failure, FailureKind},
    id::{Attempt, ContainerId, ContainerName, ImageRef, PodUid, SandboxId, VolumeName},
    image::{ImageConfig, ImageInfo},
    observation::{Exit, Observation, ObservedContainer, ObservedSandbox, ObservedTask, SandboxReport},
    oci::Accounts,
    pod::{
        port::{
            signal::{SignalRequest, StopSignal},
            start::{StartRequest, TaskRequest},
            start_failure::{self, Answer, Call, StartFailure},
        },
        silence::SILENT_QUESTIONS_MAX,
    },
    record::PodRecord,
    spec::{NetworkMode, Pod, QosClass},
    status::{NetworkStatus, PodStatus},
    time::Now,
};

use crate::oracle::Oracle;

/// What is on the node.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) records: BTreeMap<PodUid, PodRecord>,
    /// What is kept of pods that have ended.
    pub(crate) ends: BTreeMap<PodUid, PodRecord>,
    pub(crate) dirs: BTreeSet<PodUid>,
    pub(crate) cgroups: BTreeMap<PodUid, QosClass>,
    pub(crate) volumes: BTreeSet<(PodUid, VolumeName)>,
    pub(crate) netns: BTreeMap<SandboxId, PodUid>,
    pub(crate) networks: BTreeMap<SandboxId, PodUid>,
    pub(crate) sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub(crate) snapshots: BTreeMap<ContainerId, PodUid>,
    pub(crate) containers: BTreeMap<ContainerId, Container>,
    pub(crate) images: BTreeSet<ImageRef>,
    pub(crate) registry: BTreeSet<ImageRef>,
    pub(crate) statuses: BTreeMap<PodUid, Arc<PodStatus>>,
    /// How writes of records end.
    pub(crate) disk: Disk,
    /// Pods whose last record was not written, as far as the node was told.
    pub(crate) unwritten: BTreeSet<PodUid>,
    /// Whether containerd answers.
    pub(crate) runtime_is_down: bool,
    /// Sandboxes whose shims answered nothing for a while: what runs in them goes with them.
    pub(crate) was_silent: BTreeSet<SandboxId>,
    /// Sandboxes whose shims answer nothing.
    pub(crate) silent: BTreeSet<SandboxId>,
    /// What is not as the agent made it.
    pub(crate) behind: behind::Behind,
    /// How often in a row the agent that is up asked for their removal and was not answered.
    unanswered: BTreeMap<SandboxId, u32>,
    /// Containers that ignore their stop signal.
    pub(crate) deaf: BTreeSet<ContainerName>,
    /// What the runtime is asked to start, and is still at.
    starting: Vec<StartRequest>,
    /// Processes made, per run.
    pub(crate) starts: BTreeMap<ContainerId, (PodUid, u32)>,
    /// What must never happen and did.
    pub(crate) violations: Vec<String>,
    /// What shims have to tell and have not told yet, in order.
    pub(crate) reports: Vec<(SandboxId, Report)>,
    /// Pods by manifest, to read records back with.
    specs: BTreeMap<Arc<str>, Arc<Pod>>,
    /// What really happened.
    pub(crate) oracle: Oracle,
    addresses: u8,
}

/// What becomes of a record that is written, or removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Disk {
    /// It is.
    #[default]
    Works,
    /// It is not, and the old one is kept.
    Full,
    /// It is, and said not to be.
    Unsure,
}

/// What a shim has to tell.
#[derive(Debug, Clone)]
pub(crate) enum Report {
    /// This, whenever it is heard.
    Told(SandboxReport),
    /// What there is when it is asked: it does not answer yet.
    State,
}

impl Report {
    fn is_exit_of(&self, container: &ContainerId) -> bool {
        matches!(self, Self::Told(SandboxReport::Exited { id, .. }) if id == container)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    pub(crate) pod: PodUid,
    pub(crate) attempt: Attempt,
    pub(crate) is_alive: bool,
    /// Whether containerd knows of it.
    pub(crate) is_recorded: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Container {
    pub(crate) pod: PodUid,
    pub(crate) name: ContainerName,
    pub(crate) attempt: Attempt,
    pub(crate) hash: u64,
    pub(crate) sandbox: SandboxId,
    pub(crate) task: ObservedTask,
}

impl Container {
    fn of(pod: &PodUid, request: &StartRequest, task: ObservedTask) -> Self {
        Self {
            pod: pod.clone(),
            name: request.container.name.clone(),
            attempt: request.attempt,
            hash: request.container.hash,
            sandbox: request.sandbox.clone(),
            task,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.task, ObservedTask::Running { .. })
    }
}

impl World {
    /// Remembers the spec of a pod, which a record is read back with.
    pub(crate) fn learn(&mut self, pod: &Arc<Pod>) {
        self.specs.insert(Arc::clone(&pod.manifest), Arc::clone(pod));
    }

    fn violate(&mut self, text: String) {
        self.violations.push(text);
    }

    /// Tells the oracle what happened, or asks it about it.
    pub(crate) fn judge(&mut self, ask: impl FnOnce(&mut Oracle)) {
        ask(&mut self.oracle);
        self.violations.append(&mut self.oracle.violations);
    }

    /// Does what an effect asks for; `None` when it has no outcome.
    pub(crate) fn perform(&mut self, effect: &Effect, now: Now) -> Option<Result<Outcome, Failure>> {
        let (pod, act) = match effect {
            Effect::Node { act, .. } => return Some(self.perform_for_node(act)),
            Effect::Pod { pod, act, .. } => (pod, act),
        };
        if self.runtime_is_down && needs_runtime(act) {
            return Some(Err(failure(FailureKind::RuntimeDown, "containerd is away")));
        }
        if let Some(silent) = self.silent_for(act) {
            return Some(silent);
        }
        self.behind.performed(pod, act);
        match act {
            Act::Look(request) => Some(Ok(Outcome::Looked(self.look(pod, request, now)))),
            Act::WriteFiles(_) => Some(Ok(Outcome::Done)),
            Act::KillShim(id) => {
                self.kill_shim(pod, id, now);
                Some(Ok(Outcome::Done))
            }
            Act::Persist(record) => Some(self.persist(record)),
            Act::Forget => Some(self.forget(pod)),
            Act::Publish(published) => {
                self.check_ends(&published.status);
                self.judge(|oracle| oracle.shown(pod, &published.status, now));
                self.statuses.insert(pod.clone(), Arc::clone(&published.status));
                Some(if self.disk == Disk::Works { Ok(Outcome::Done) } else { Err(disk_is_full()) })
            }
            Act::Withdraw => {
                self.statuses.remove(pod);
                None
            }
            Act::Note(_) => None,
            Act::EnsureCgroup(_)
            | Act::EnsureDirs(_)
            | Act::EnsureNetns(_)
            | Act::EnsureNetwork(_)
            | Act::EnsureSandbox(_)
            | Act::EnsureVolume(_)
            | Act::EnsureRootfs(_) => Some(self.ensure(pod, act)),
            Act::KeepEnd(record) => {
                self.ends.insert(pod.clone(), (**record).clone());
                Some(Ok(Outcome::Done))
            }
            Act::DropEnd => {
                self.ends.remove(pod);
                Some(Ok(Outcome::Done))
            }
            Act::StartContainer(request) => Some(self.start(pod, request, now)),
            Act::LookAtTask(request) => Some(self.look_at_task(request)),
            Act::Signal(request) => {
                self.judge(|oracle| oracle.signal_sent(pod, &request.id));
                self.signal(request, now);
                Some(Ok(Outcome::Done))
            }
            Act::ReadTerminationMessage(request) => Some(Ok(self.last_words(&request.id))),
            Act::RemoveContainer(_)
            | Act::RemoveSandbox(_)
            | Act::RemoveNetwork(_)
            | Act::RemoveNetns(_)
            | Act::RemoveVolumes
            | Act::RemoveCgroup(_)
            | Act::RemoveDirs(_)
            | Act::Sweep => {
                self.remove(pod, act, now);
                Some(Ok(Outcome::Done))
            }
        }
    }

    fn look_at_task(&self, request: &TaskRequest) -> Result<Outcome, Failure> {
        let task = self.containers.get(&request.id).map_or(ObservedTask::Absent, |one| one.task.clone());
        let is_alive = self.sandboxes.get(&request.sandbox).is_some_and(|sandbox| sandbox.is_alive);
        if is_alive || matches!(task, ObservedTask::Exited(_)) {
            return Ok(Outcome::Task(task));
        }
        Err(failure(FailureKind::SandboxGone, "the sandbox has gone"))
    }

    fn perform_for_node(&mut self, act: &NodeAct) -> Result<Outcome, Failure> {
        match act {
            NodeAct::SetQos(_) => Ok(Outcome::Done),
            NodeAct::InspectImage(_) | NodeAct::PullImage(_) if self.runtime_is_down => {
                Err(failure(FailureKind::RuntimeDown, "containerd is away"))
            }
            NodeAct::InspectImage(image) => {
                Ok(Outcome::Image(self.images.contains(image).then(|| image_info(image))))
            }
            NodeAct::PullImage(image) if self.registry.contains(image) => {
                self.images.insert(image.clone());
                Ok(Outcome::Image(Some(image_info(image))))
            }
            NodeAct::PullImage(_) => Err(failure(FailureKind::ImagePull, "not found")),
        }
    }

    fn persist(&mut self, record: &PodRecord) -> Result<Outcome, Failure> {
        if self.disk != Disk::Full {
            self.check_record(record);
            self.records.insert(record.uid.clone(), record.clone());
            self.judge(|oracle| oracle.stored(record));
        }
        self.oracle.written(&record.uid, self.disk == Disk::Works);
        if self.disk == Disk::Works {
            self.unwritten.remove(&record.uid);
            return Ok(Outcome::Done);
        }
        self.unwritten.insert(record.uid.clone());
        Err(disk_is_full())
    }

    fn forget(&mut self, pod: &PodUid) -> Result<Outcome, Failure> {
        let left = self.left_of(pod);
        if !left.is_empty() {
            self.violate(format!("{pod}: forgotten with {left:?} left"));
        }
        if self.disk != Disk::Full {
            self.judge(|oracle| oracle.forgotten(pod));
            self.records.remove(pod);
            self.starts.retain(|_, (owner, _)| owner != pod);
        }
        if self.disk != Disk::Works {
            self.unwritten.insert(pod.clone());
            return Err(disk_is_full());
        }
        self.unwritten.remove(pod);
        Ok(Outcome::Done)
    }

    /// Everything on the node that a pod has.
    pub(crate) fn left_of(&self, pod: &PodUid) -> Vec<String> {
        let mut left = Vec::new();
        let mut add = |is_there: bool, what: &str| {
            if is_there {
                left.push(what.to_owned());
            }
        };
        add(self.dirs.contains(pod), "dirs");
        add(self.ends.contains_key(pod), "end");
        add(self.cgroups.contains_key(pod), "cgroup");
        add(self.volumes.iter().any(|(owner, _)| owner == pod), "volume");
        add(self.netns.values().any(|owner| owner == pod), "netns");
        add(self.networks.values().any(|owner| owner == pod), "network");
        add(self.sandboxes.values().any(|sandbox| sandbox.pod == *pod), "sandbox");
        add(self.snapshots.values().any(|owner| owner == pod), "snapshot");
        add(self.containers.values().any(|container| container.pod == *pod), "container");
        left
    }

    fn ensure(&mut self, pod: &PodUid, act: &Act) -> Result<Outcome, Failure> {
        match act {
            Act::EnsureDirs(_) => {
                self.dirs.insert(pod.clone());
                Ok(Outcome::Done)
            }
            Act::EnsureCgroup(request) => {
                self.cgroups.insert(pod.clone(), request.qos);
                Ok(Outcome::Done)
            }
            Act::EnsureNetns(id) => {
                self.netns.insert(id.clone(), pod.clone());
                Ok(Outcome::Netns(format!("/run/netns/{id}").into()))
            }
            Act::EnsureNetwork(request) => {
                if !self.netns.contains_key(&request.sandbox) {
                    self.violate(format!("{pod}: network before netns"));
                }
                self.networks.insert(request.sandbox.clone(), pod.clone());
                self.addresses = self.addresses.wrapping_add(1);
                let ip = std::net::Ipv4Addr::new(10, 0, 0, self.addresses);
                Ok(Outcome::Network(NetworkStatus { ips: vec![ip.into()] }))
            }
            Act::EnsureSandbox(request) => {
                if request.pod.network == NetworkMode::Pod && !self.netns.contains_key(&request.id) {
                    self.violate(format!("{pod}: sandbox before netns"));
                }
                if self.sandboxes.values().any(|one| one.pod == *pod && one.attempt != request.attempt) {
                    self.violate(format!("{pod}: two sandboxes"));
                }
                let new =
                    Sandbox { pod: pod.clone(), attempt: request.attempt, is_alive: true, is_recorded: true };
                let sandbox = self.sandboxes.entry(request.id.clone()).or_insert(new);
                sandbox.is_recorded = true;
                if sandbox.is_alive {
                    Ok(Outcome::Sandbox { pid: 100 })
                } else {
                    Err(failure(FailureKind::SandboxGone, "the sandbox has ended"))
                }
            }
            Act::EnsureVolume(request) => {
                if !self.dirs.contains(pod) {
                    self.violate(format!("{pod}: volume before dirs"));
                }
                self.volumes.insert((pod.clone(), request.volume.name.clone()));
                Ok(Outcome::Volume { path: format!("/volumes/{}", request.volume.name) })
            }
            Act::EnsureRootfs(request) => {
                self.snapshots.insert(request.id.clone(), pod.clone());
                Ok(Outcome::Rootfs(Arc::new(Accounts::default())))
            }
            other => panic!("not to be made: {}", name_of(other)),
        }
    }

    fn start(&mut self, pod: &PodUid, request: &StartRequest, now: Now) -> Result<Outcome, Failure> {
        // A start that was asked for before its sandbox went finds nothing any more.
        if self.sandboxes.contains_key(&request.sandbox) && !self.snapshots.contains_key(&request.id) {
            self.violate(format!("{pod}: start without rootfs"));
        }
        let is_alive = self.sandboxes.get(&request.sandbox).is_some_and(|sandbox| sandbox.is_alive);
        if is_alive {
            self.check_start(pod, request);
        }
        // The record is made first, and is there also when nothing comes of it.
        let new = || Container::of(pod, request, ObservedTask::Absent);
        let container = self.containers.entry(request.id.clone()).or_insert_with(new);
        if !is_alive {
            return Err(failure(FailureKind::SandboxGone, "the sandbox has gone"));
        }
        match container.task {
            ObservedTask::Absent | ObservedTask::Created => self.process_began(pod, request, now),
            ObservedTask::Starting
            | ObservedTask::Running { .. }
            | ObservedTask::Exited(_)
            | ObservedTask::Unknown => {}
        }
        Ok(Outcome::Started(self.containers[&request.id].task.clone()))
    }

    fn process_began(&mut self, pod: &PodUid, request: &StartRequest, now: Now) {
        if let Some(container) = self.containers.get_mut(&request.id) {
            container.task = ObservedTask::Running { pid: 200, started_at: now.wall };
        }
        let starts = self.starts.entry(request.id.clone()).or_insert((pod.clone(), 0));
        starts.1 += 1;
        if starts.1 > 1 {
            let text = format!("{pod}/{}: attempt {} ran twice", request.container.name, request.attempt);
            self.violations.push(text);
        }
        self.oracle.process_began(request, now);
    }

    /// They are in the pod's directory, also when the container has gone with its sandbox.
    fn last_words(&mut self, id: &ContainerId) -> Outcome {
        if self.containers.get(id).is_some_and(Container::is_running) {
            self.violate(format!("termination message of {} before its end", short(id)));
        }
        Outcome::TerminationMessage("bye".into())
    }

    fn signal(&mut self, request: &SignalRequest, now: Now) {
        let SignalRequest { sandbox, id, signal } = request;
        let Some(container) = self.containers.get(id) else { return };
        if container.sandbox != *sandbox {
            let text = format!("{} is signalled in another sandbox", short(id));
            self.violations.push(text);
        }
        let code = match signal {
            StopSignal::Stop(_) if self.deaf.contains(&container.name) => return,
            StopSignal::Stop(_) => 143,
            StopSignal::Kill => 137,
        };
        self.exit(&id.clone(), code, now);
    }

    /// A container's process ends.
    pub(crate) fn exit(&mut self, id: &ContainerId, code: u32, now: Now) {
        self.end(id, code, false, now);
    }

    /// A container's process ends, perhaps since the kernel killed something in it for memory.
    pub(crate) fn end(&mut self, id: &ContainerId, code: u32, oom_killed: bool, now: Now) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let ObservedTask::Running { started_at, .. } = container.task else { return };
        let exit = Exit { code, started_at: Some(started_at), finished_at: now.wall, oom_killed };
        container.task = ObservedTask::Exited(exit);
        let report = SandboxReport::Exited { id: id.clone(), exit };
        self.reports.push((container.sandbox.clone(), Report::Told(report)));
        let pod = container.pod.clone();
        self.oracle.process_ended(&pod, id, exit, now);
    }

    /// The running container of a pod with this name.
    pub(crate) fn running(&self, pod: &PodUid, name: &str) -> Option<ContainerId> {
        let mut all = self.containers.iter();
        let found = all.find(|(_, one)| one.pod == *pod && one.name.as_str() == name && one.is_running());
        found.map(|(id, _)| id.clone())
    }

    /// A shim dies, and with it everything in its pod. Ends that it has seen are on disk, and told from there.
    pub(crate) fn lose(&mut self, id: &SandboxId, now: Now) {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        if !sandbox.is_alive {
            return;
        }
        sandbox.is_alive = false;
        self.starting.retain(|request| request.sandbox != *id);
        self.oracle.sandbox_lost(&sandbox.pod, id, now);
        for container in self.containers.values_mut().filter(|container| container.sandbox == *id) {
            if !matches!(container.task, ObservedTask::Exited(_)) {
                container.task = ObservedTask::Absent;
            }
        }
        // What the agent has read already comes first.
        self.reports.retain(|(sandbox, report)| sandbox != id || matches!(report, Report::Told(_)));
        let inside = self.containers.iter().filter(|(_, one)| one.sandbox == *id);
        let ends = inside.filter_map(|(member, one)| match one.task {
            ObservedTask::Exited(exit) => Some(SandboxReport::Exited { id: member.clone(), exit }),
            _ => None,
        });
        let all: Vec<_> = ends.chain([SandboxReport::Lost { at: now.wall }]).collect();
        self.reports.extend(all.into_iter().map(|report| (id.clone(), Report::Told(report))));
    }

    /// The outcome of an effect that needs an answer of a shim which gives none.
    fn silent_for(&mut self, act: &Act) -> Option<Result<Outcome, Failure>> {
        let sandbox = match act {
            Act::RemoveSandbox(id) => {
                if self.silent.contains(id) {
                    *self.unanswered.entry(id.clone()).or_default() += 1;
                }
                id
            }
            Act::Signal(request) => &request.sandbox,
            Act::LookAtTask(request) => &request.sandbox,
            Act::RemoveContainer(request) => &self.containers.get(&request.id)?.sandbox,
            _ => return None,
        };
        let kind = match act {
            Act::Signal(_) | Act::LookAtTask(_) => FailureKind::Unknown,
            _ => FailureKind::Silent,
        };
        self.silent.contains(sandbox).then(|| Err(failure(kind, "the shim does not answer")))
    }

    /// A shim answers nothing from now on.
    pub(crate) fn fall_silent(&mut self, id: &SandboxId) {
        self.silent.insert(id.clone());
        self.was_silent.insert(id.clone());
    }

    /// A shim may be killed only after it was given every chance, and with a sandbox that is to go.
    fn kill_shim(&mut self, pod: &PodUid, id: &SandboxId, now: Now) {
        if self.unanswered.get(id).is_none_or(|asked| *asked < SILENT_QUESTIONS_MAX) {
            self.violate(format!("{pod}: a shim is killed that may only be slow"));
        }
        let is_wanted = self.records.get(pod).is_some_and(|record| {
            record.termination.is_none() && record.terminal.is_none() && record.sandbox_id == *id
        });
        if is_wanted && !self.oracle.is_unwanted(pod) {
            self.violate(format!("{pod}: the shim of a living pod is killed"));
        }
        self.silent.remove(id);
        self.lose(id, now);
    }

    fn remove_container(&mut self, pod: &PodUid, removed: &ContainerId, now: Now) {
        self.judge(|oracle| oracle.removed(pod, removed, now));
        self.exit(removed, 137, now);
        // What is taken down while its record cannot be written may be begun again, should its manifest be back for another
        // agent, which goes by the old record.
        if self.unwritten.contains(pod) && self.oracle.is_unwanted(pod) {
            self.starts.remove(removed);
        }
        self.starting.retain(|request| request.id != *removed);
        self.reports.retain(|(_, report)| !report.is_exit_of(removed));
        self.containers.remove(removed);
        self.snapshots.remove(removed);
    }

    fn remove(&mut self, pod: &PodUid, act: &Act, now: Now) {
        match act {
            Act::RemoveContainer(request) => self.remove_container(pod, &request.id, now),
            Act::RemoveSandbox(id) => {
                let running = self.containers.values().any(|one| one.sandbox == *id && one.is_running());
                if running && !self.was_silent.contains(id) {
                    self.violate(format!("{pod}: sandbox removed under a running container"));
                }
                self.oracle.sandbox_lost(pod, id, now);
                self.starting.retain(|request| request.sandbox != *id);
                self.sandboxes.remove(id);
                for (member, _) in self.containers.extract_if(.., |_, one| one.sandbox == *id) {
                    self.snapshots.remove(&member);
                }
                self.reports.retain(|(sandbox, _)| sandbox != id);
            }
            Act::RemoveNetwork(request) => {
                self.networks.remove(&request.sandbox);
            }
            Act::RemoveNetns(id) => {
                if self.networks.contains_key(id) && self.records.contains_key(pod) {
                    self.violate(format!("{pod}: netns removed before its network"));
                }
                self.netns.remove(id);
                self.networks.remove(id);
            }
            Act::RemoveVolumes => {
                if self.containers.values().any(|one| one.pod == *pod && one.is_running()) {
                    self.violate(format!("{pod}: volumes removed under a running container"));
                }
                self.volumes.retain(|(owner, _)| owner != pod);
            }
            Act::RemoveCgroup(qos) => {
                if self.containers.values().any(|one| one.pod == *pod) {
                    self.violate(format!("{pod}: cgroup removed before its containers"));
                }
                if self.cgroups.get(pod) == Some(qos) {
                    self.cgroups.remove(pod);
                }
            }
            Act::RemoveDirs(_) => {
                let left = self.left_of(pod);
                if left.iter().any(|what| what != "dirs" && what != "end") {
                    self.violate(format!("{pod}: directories removed before {left:?}"));
                }
                self.dirs.remove(pod);
            }
            Act::Sweep => {
                self.volumes.retain(|(owner, _)| owner != pod);
                self.cgroups.remove(pod);
                self.dirs.remove(pod);
            }
            other => panic!("not to be removed: {}", name_of(other)),
        }
    }

    /// What the runtime would tell.
    pub(crate) fn observation(&self, now: Now) -> Observation {
        let recorded = self.sandboxes.iter().filter(|(_, one)| one.is_recorded);
        let sandboxes = recorded.map(|(id, one)| ObservedSandbox {
            id: id.clone(),
            pod: one.pod.clone(),
            attempt: one.attempt,
            ready: one.is_alive,
            pid: if one.is_alive { 100 } else { 0 },
        });
        let containers = self.containers.iter().map(|(id, one)| ObservedContainer {
            id: id.clone(),
            pod: one.pod.clone(),
            name: one.name.clone(),
            attempt: one.attempt,
            hash: one.hash,
            task: one.task.clone(),
        });
        let unrecorded = self.sandboxes.iter().filter(|(_, one)| one.is_alive && !one.is_recorded);
        Observation {
            asked_at: now.mono,
            sandboxes: sandboxes.collect(),
            containers: containers.collect(),
            unrecorded: unrecorded.map(|(id, _)| id.clone()).collect(),
        }
    }

    /// What a shim tells when the connection to it was made anew.
    pub(crate) fn resync(&self, id: &SandboxId, now: Now) -> SandboxReport {
        let tasks = self.containers.iter().filter(|(_, one)| one.sandbox == *id);
        // One that was recorded and not begun, the shim does not know.
        let tasks = tasks.filter(|(_, one)| one.task != ObservedTask::Absent);
        let tasks = tasks.map(|(id, one)| (id.clone(), one.task.clone())).collect();
        SandboxReport::Resync { asked_at: now.mono, tasks }
    }

    /// Takes a shim's answers out of an observation; it answers later.
    pub(crate) fn silence(&mut self, id: &SandboxId, observation: &mut Observation, now: Now) {
        for sandbox in observation.sandboxes.iter_mut().filter(|sandbox| sandbox.id == *id) {
            sandbox.ready = false;
            sandbox.pid = 0;
        }
        let inside = |seen: &&mut ObservedContainer| {
            self.containers.get(&seen.id).is_some_and(|container| container.sandbox == *id)
        };
        for container in observation.containers.iter_mut().filter(inside) {
            container.task = ObservedTask::Unknown;
        }
        self.oracle.silenced(id, now);
        self.reports.push((id.clone(), Report::State));
    }

    /// The machine is switched off and on: what was in memory is gone, and nothing runs.
    pub(crate) fn reboot(&mut self, now: Now) {
        self.oracle.rebooted(&self.ends, now);
        self.reports.clear();
        self.silent.clear();
        self.starting.clear();
        self.records.clear();
        self.cgroups.clear();
        self.netns.clear();
        self.networks.clear();
        self.unwritten.clear();
        for sandbox in self.sandboxes.values_mut() {
            sandbox.is_alive = false;
        }
        for container in self.containers.values_mut() {
            container.task = ObservedTask::Absent;
        }
    }

    /// What an agent that begins would find. Reports are not kept for it: it sees the exits themselves.
    pub(crate) fn restored(&mut self, now: Now) -> Restored {
        self.reports.clear();
        self.unanswered.clear();
        // What was shown of them was known to the agent alone, which said so.
        for uid in std::mem::take(&mut self.unwritten) {
            self.statuses.remove(&uid);
        }
        let read_back = |record: &PodRecord| (record.clone(), Arc::clone(&self.specs[&record.manifest]));
        let ended = self.ends.iter().filter(|(uid, _)| !self.records.contains_key(*uid));
        let ended = ended.map(|(_, record)| read_back(record)).collect();
        let pods = self.records.values().map(read_back).collect();
        let known = |uid: &PodUid| self.records.contains_key(uid) || self.ends.contains_key(uid);
        // Their marks are in the directories: a cgroup alone proves nothing.
        let orphans: BTreeSet<PodUid> = self.dirs.iter().filter(|uid| !known(uid)).cloned().collect();
        Restored { pods, ended, observation: self.observation(now), orphans: orphans.into_iter().collect() }
    }
}

pub(crate) fn failure(kind: FailureKind, message: &str) -> Failure {
    Failure { kind, message: message.into() }
}

/// A start that containerd says did not work.
pub(crate) fn not_started(call: Call, answer: Answer, sandbox: start_failure::Sandbox) -> Outcome {
    let (cause, message) = ("no such command".into(), "start c1: no such command".into());
    Outcome::NotStarted(Box::new(StartFailure { call, answer, sandbox, cause, message }))
}

fn disk_is_full() -> Failure {
    failure(FailureKind::Transient, "no space left on device")
}

pub(crate) fn short(id: &ContainerId) -> &str {
    &id.as_str()[..8]
}

pub(crate) fn image_info(image: &ImageRef) -> Arc<ImageInfo> {
    Arc::new(ImageInfo {
        name: format!("docker.io/library/{image}"),
        id: "sha256:cafe".into(),
        repo_digest: Some("docker.io/library/busybox@sha256:beef".into()),
        chain_id: "sha256:f00d".into(),
        size_bytes: 4096,
        config: ImageConfig::default(),
    })
}

fn needs_runtime(act: &Act) -> bool {
    matches!(
        act,
        Act::EnsureSandbox(_)
            | Act::EnsureRootfs(_)
            | Act::StartContainer(_)
            | Act::RemoveContainer(_)
            | Act::RemoveSandbox(_)
    )
}

/// The act in a word.
pub(crate) fn name_of(act: &Act) -> &'static str {
    match act {
        Act::Persist(_) => "persist",
        Act::Forget => "forget",
        Act::Publish(_) => "publish",
        Act::Withdraw => "withdraw",
        Act::Note(_) => "note",
        Act::EnsureCgroup(_) => "ensure-cgroup",
        Act::EnsureDirs(_) => "ensure-dirs",
        Act::EnsureNetns(_) => "ensure-netns",
        Act::EnsureNetwork(_) => "ensure-network",
        Act::EnsureSandbox(_) => "ensure-sandbox",
        Act::EnsureVolume(_) => "ensure-volume",
        Act::EnsureRootfs(_) => "ensure-rootfs",
        Act::KeepEnd(_) => "keep-end",
        Act::DropEnd => "drop-end",
        Act::StartContainer(_) => "start",
        Act::LookAtTask(_) => "look-at-task",
        Act::Signal(_) => "signal",
        Act::WriteFiles(_) => "write-files",
        Act::Look(_) => "look",
        Act::ReadTerminationMessage(_) => "read-words",
        Act::RemoveContainer(_) => "remove-container",
        Act::RemoveSandbox(_) => "remove-sandbox",
        Act::KillShim(_) => "kill-shim",
        Act::RemoveNetwork(_) => "remove-network",
        Act::RemoveNetns(_) => "remove-netns",
        Act::RemoveVolumes => "remove-volumes",
        Act::RemoveCgroup(_) => "remove-cgroup",
        Act::RemoveDirs(_) => "remove-dirs",
        Act::Sweep => "sweep",
    }
}
