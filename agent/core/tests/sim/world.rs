//! A model of the node beneath the agent: it does what effects ask for, keeps what is truly there, and notes whatever
//! must never happen.

mod behind;
mod checks;
mod given;
mod half;
mod images;
mod making;
mod probes;
mod processes;
mod records;
mod removal;
mod seen;
mod shims;
mod strays;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    effect::{Act, Effect, NodeAct},
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{Attempt, ContainerId, ContainerName, ImageRef, PodUid, SandboxId, VolumeName},
    image::{ImageConfig, ImageInfo},
    node::NodeInfo,
    observation::{ObservedTask, SandboxReport},
    pod::port::{
        hook::HookAnswer,
        probe::ProbeAnswer,
        start::StartRequest,
        start_failure::{self, Answer, Call, StartFailure},
    },
    record::PodRecord,
    spec::{HookMoment, Pod, ProbeKind, QosClass},
    status::PodStatus,
    time::{Mono, Now},
    users::HostIds,
};

pub(crate) use self::{
    given::{Bound, Given},
    processes::Manner,
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
    /// What the cgroups of pods bound.
    pub(crate) levels: BTreeMap<PodUid, Given>,
    /// Bytes of memory that a pod uses, where that counts.
    pub(crate) used: BTreeMap<PodUid, u64>,
    /// The lowest memory limit of a pod that was found to be enough for what it uses, since its cgroup grew.
    pub(crate) found_enough: BTreeMap<PodUid, u64>,
    pub(crate) volumes: BTreeSet<(PodUid, VolumeName)>,
    pub(crate) contents: Contents,
    pub(crate) netns: BTreeMap<SandboxId, PodUid>,
    /// Ids of user namespaces that own network namespaces.
    ids: BTreeMap<SandboxId, HostIds>,
    pub(crate) networks: BTreeMap<SandboxId, PodUid>,
    pub(crate) sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub(crate) snapshots: BTreeMap<ContainerId, PodUid>,
    pub(crate) containers: BTreeMap<ContainerId, Container>,
    pub(crate) images: BTreeSet<ImageRef>,
    pub(crate) registry: BTreeSet<ImageRef>,
    /// What else is on the disk of images.
    pub(crate) files_beside_images: u64,
    /// How many images the agent has removed.
    pub(crate) images_removed: u64,
    /// Of which images layers of containers were made.
    layers: BTreeMap<ContainerId, ImageRef>,
    /// How many images were mounted as volumes.
    pub(crate) images_mounted: u64,
    /// Of which images volumes have layers.
    pub(crate) volume_layers: BTreeMap<(PodUid, VolumeName), ImageRef>,
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
    /// What probes say, where it is not that all is well; by the container's name.
    pub(crate) sick: BTreeMap<(ContainerName, ProbeKind), ProbeAnswer>,
    /// Hooks that do not end well, by the container's name.
    pub(crate) hooks: BTreeMap<(ContainerName, HookMoment), HookAnswer>,
    /// Containers that ignore their stop signal.
    pub(crate) deaf: BTreeSet<ContainerName>,
    /// How processes take their next signal, where not at once.
    pub(crate) manners: BTreeMap<ContainerId, Manner>,
    /// Processes that a signal ends, later.
    ending: BTreeMap<ContainerId, (Mono, u32)>,
    /// What ended while its shim answered nothing: nobody has seen it.
    unseen: BTreeSet<ContainerId>,
    /// Sandboxes whose shims answered nothing when the agent began.
    unheard: BTreeSet<SandboxId>,
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
    /// The Node object; without one the API server is away.
    pub(crate) node_object: Option<NodeInfo>,
    /// What really happened.
    pub(crate) oracle: Oracle,
    /// How often something was swept.
    pub(crate) sweeps: u64,
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
    /// What its cgroup has, or is to have.
    pub(crate) given: Given,
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
            given: Given::made(&request.plan.spec),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.task, ObservedTask::Running { .. })
    }
}

/// What is in volumes with content.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// How often each volume was made.
    pub(crate) made: BTreeMap<(PodUid, VolumeName), u32>,
    /// When a token in one is to be renewed.
    pub(crate) again_in: Option<Duration>,
    /// Whether an object is not there.
    pub(crate) is_missing: bool,
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
            Effect::Node { act, .. } => return self.perform_for_node(act),
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
            Act::Probe(request) => Some(Ok(self.probe(request))),
            Act::RunHook(request) => Some(Ok(self.hook(request))),
            Act::GiveUpHook(_) | Act::Note(_) => None,
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
            Act::ResizeContainer(request) => Some(self.resize(pod, request)),
            Act::CheckMemory(request) => Some(self.check_memory(pod, request)),
            Act::Signal(request) => {
                self.judge(|oracle| oracle.signal_sent(pod, &request.id, &request.signal));
                self.signal(request, now);
                Some(Ok(Outcome::Done))
            }
            Act::ReadTerminationMessage(request) => Some(Ok(self.termination_message(&request.id))),
            Act::RemoveContainer(_)
            | Act::RemoveSandbox(_)
            | Act::RemoveNetwork(_)
            | Act::RemoveNetns(_)
            | Act::RemoveVolumes { .. }
            | Act::RemoveCgroup(_)
            | Act::RemoveDirs(_)
            | Act::Sweep => {
                self.remove(pod, act, now);
                Some(Ok(Outcome::Done))
            }
        }
    }

    fn perform_for_node(&mut self, act: &NodeAct) -> Option<Result<Outcome, Failure>> {
        Some(match act {
            NodeAct::GiveUpPull(_) | NodeAct::Note(_) => return None,
            NodeAct::SetQos(_) => Ok(Outcome::Done),
            NodeAct::ReadNodeObject => match &self.node_object {
                Some(info) => Ok(Outcome::NodeObject(Box::new(info.clone()))),
                None => Err(failure(FailureKind::Transient, "the API server is away")),
            },
            NodeAct::InspectImage(_)
            | NodeAct::PullImage(_)
            | NodeAct::MeasureImages
            | NodeAct::ListImages
            | NodeAct::RemoveImage(_) => self.perform_on_images(act),
        })
    }
}

/// Whether containerd performs an act.
fn needs_runtime(act: &Act) -> bool {
    match act {
        Act::EnsureVolume(request) => request.image.is_some(),
        Act::RemoveVolumes { with_images } => *with_images,
        Act::EnsureSandbox(_)
        | Act::EnsureRootfs(_)
        | Act::StartContainer(_)
        | Act::ResizeContainer(_)
        | Act::RemoveContainer(_)
        | Act::RemoveSandbox(_)
        | Act::Sweep => true,
        _ => false,
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
        tag: Some(format!("docker.io/library/{image}")),
        repo_digest: Some("docker.io/library/busybox@sha256:beef".into()),
        chain_id: "sha256:f00d".into(),
        size_bytes: 4096,
        config: ImageConfig::default(),
    })
}
