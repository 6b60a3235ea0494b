//! What there is of one pod, as far as is known.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use jiff::Timestamp;

use super::resource::{Resource, Retry};
use crate::{
    cgroup::CgroupValues,
    failure::FailureKind,
    id::{ContainerId, ContainerName, ImageRef, SandboxId, VolumeName},
    observation::Exit,
    oci::Accounts,
    pod::port::{
        hook::Hooking,
        image::ImageUse,
        pull_backoff::PullBackoff,
        removal::{Leftover, Removal},
        sandbox::Up,
        signal::Stop,
        start::Starting,
        status::Remains,
        termination::TerminationMessage,
        volume::Refresh,
    },
    record::{EndedBy, Goal, PodRecord},
    spec::{NetworkMode, Pod, Source, UserMode},
    time::{Mono, Now},
};

/// One pod: what is wanted, what is on disk, what there is.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    /// What is wanted.
    pub spec: Arc<Pod>,
    /// What survives the agent.
    pub record: PodRecord,
    /// What there is.
    pub actual: Actual,
    /// When this agent took it in: from then on its time runs by the clock that nobody sets.
    pub taken_in: Now,
}

impl Life {
    /// Whether the pod runs or is being taken down.
    #[must_use]
    pub fn stage(&self) -> Stage {
        if self.record.goal == Goal::Removed
            || self.record.termination.is_some()
            || self.record.terminal.is_some()
        {
            Stage::Stop
        } else {
            Stage::Run
        }
    }

    /// Whether there were no ids of the node yet for its user namespace, so that nothing of it can be made.
    #[must_use]
    pub fn lacks_ids(&self) -> bool {
        self.spec.users == UserMode::Pod && self.record.ids.is_none() && self.stage() == Stage::Run
    }

    /// Whether it is to have an SELinux level of its own, on a node whose policy has levels, and has none. It needs none where it names one.
    #[must_use]
    pub fn lacks_level(&self) -> bool {
        let names_one = !self.spec.security.se_linux.level.is_empty();
        !names_one && self.record.level.is_none() && self.stage() == Stage::Run
    }

    /// SELinux levels that are its own or that it names.
    pub fn levels(&self) -> impl Iterator<Item = &str> {
        let of_containers = self.spec.all_containers().map(|container| &container.security.se_linux);
        let named = std::iter::once(&self.spec.security.se_linux).chain(of_containers);
        self.record.level.iter().chain(named.map(|options| &options.level)).map(String::as_str)
    }

    /// Whether the pod has a network of its own.
    #[must_use]
    pub fn is_wired(&self) -> bool {
        match self.spec.network {
            NetworkMode::Pod => true,
            NetworkMode::Node => false,
        }
    }

    /// Id of the current sandbox.
    #[must_use]
    pub fn sandbox_id(&self) -> SandboxId {
        self.record.sandbox_id.clone()
    }

    /// Id of the current run of a container.
    #[must_use]
    pub fn container_id(&self, name: &ContainerName) -> ContainerId {
        let record = self.record.containers.get(name);
        record.map_or_else(|| ContainerId::of(&self.record.uid, name, 0), |record| record.id.clone())
    }

    /// Whether a run that is to be started was perhaps started before: its start was asked for in this sandbox, and nobody
    /// said that it failed.
    #[must_use]
    pub fn may_have_run(&self, name: &ContainerName) -> bool {
        let Run::Preparing(preparing) = self.run(name) else { return false };
        let started_in = self.record.containers.get(name).and_then(|record| record.started_in);
        let failed = preparing.refused.as_ref().is_some_and(|refusal| match refusal.retry.failure.kind {
            FailureKind::Unknown | FailureKind::RuntimeDown => false,
            FailureKind::Transient
            | FailureKind::Config
            | FailureKind::InvalidImageName
            | FailureKind::ImagePull
            | FailureKind::LayersGone
            | FailureKind::StartFailed
            | FailureKind::SandboxGone
            | FailureKind::Silent
            | FailureKind::Unrecorded => true,
        });
        started_in == Some(self.record.sandbox) && !failed
    }

    /// Whether a container of the pod may have a process, or its end is not complete.
    #[must_use]
    pub fn may_run(&self) -> bool {
        self.actual.containers.iter().any(|(name, run)| match run {
            Run::Starting(_) | Run::Running(_) | Run::Ended(_) => true,
            Run::Preparing(_) => self.may_have_run(name),
            Run::Idle | Run::BackingOff => false,
        })
    }

    /// Whether the pod is being taken down and no container of it runs any more.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.stage() == Stage::Stop && !self.may_run()
    }

    /// Whether it was never admitted by the node that its source is to be told of: then there is nothing to show but why.
    #[must_use]
    pub fn is_rejected(&self) -> bool {
        self.spec.source == Source::Api
            && self.record.terminal.as_ref().is_some_and(|end| end.by == EndedBy::Admission)
    }

    /// How much of it is left.
    #[must_use]
    pub fn remains(&self) -> Remains {
        let is_idle = self.actual.containers.values().all(|run| matches!(run, Run::Idle | Run::BackingOff));
        let is_more = self.stage() == Stage::Run || !is_idle || !self.actual.has_only_directories();
        let is_to_be_told = self.spec.ended.is_none() || !self.record.containers.is_empty();
        match (is_more, is_to_be_told) {
            (true, true) => Remains::Something,
            (true, false) => Remains::Leftovers,
            (false, true) => Remains::Directories,
            (false, false) => Remains::NothingToTell,
        }
    }

    /// The current run of a container.
    #[must_use]
    pub fn run(&self, name: &ContainerName) -> &Run {
        self.actual.containers.get(name).unwrap_or(&Run::Idle)
    }
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its containers are to run.
    Run,
    /// Its containers are to stop, and what it had is to go.
    Stop,
}

/// What there is of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Actual {
    /// Its directories.
    pub dirs: Resource<()>,
    /// Its cgroup.
    pub cgroup: Resource<()>,
    /// What its cgroup was asked to have last.
    pub cgroup_values: Option<Box<CgroupValues>>,
    /// The cgroup of a container that is to have other resources than it was started with: under way, or failed.
    pub resize: Resource<()>,
    /// Whether what the pod uses was found to fit below its lower limit of memory, which its cgroup is being given.
    pub is_memory_enough: bool,
    /// Network namespace of the current sandbox.
    pub netns: Resource<PathBuf>,
    /// CNI attachment of the current sandbox; its addresses are in the record.
    pub network: Resource<()>,
    /// The current sandbox.
    pub sandbox: Resource<Up>,
    /// Files that every start of a container writes: not ready only while some were found to be missing.
    pub files: Resource<()>,
    /// Volumes: paths on the node.
    pub volumes: BTreeMap<VolumeName, Resource<String>>,
    /// Images of volumes that are not on the node yet, as far as they are: what is not here and not in the record is to be looked for.
    pub volume_images: BTreeMap<VolumeName, ImageUse>,
    /// Volumes whose content is to be made anew, or is being so; they stay ready meanwhile.
    pub refreshes: BTreeMap<VolumeName, Refresh>,
    /// What is kept of the pod's end, for the time after a reboot.
    pub end: Resource<()>,
    /// Current runs of containers.
    pub containers: BTreeMap<ContainerName, Run>,
    /// What is to be removed, until it is gone.
    pub removals: BTreeMap<Leftover, Removal>,
    /// Sandboxes that are being removed and whose shims do not answer: how often in a row.
    pub unanswered: BTreeMap<SandboxId, u32>,
    /// Images that could not be pulled at some time.
    pub pull_backoffs: BTreeMap<ImageRef, PullBackoff>,
    /// Pull secrets that were last told to be missing.
    pub missing_secrets: Vec<String>,
}

impl Actual {
    /// Nothing was done yet.
    #[must_use]
    pub fn fresh() -> Self {
        Self {
            dirs: Resource::Absent,
            cgroup: Resource::Absent,
            cgroup_values: None,
            resize: Resource::Absent,
            is_memory_enough: false,
            netns: Resource::Absent,
            network: Resource::Absent,
            sandbox: Resource::Absent,
            files: Resource::Ready(()),
            volumes: BTreeMap::new(),
            volume_images: BTreeMap::new(),
            refreshes: BTreeMap::new(),
            end: Resource::Absent,
            containers: BTreeMap::new(),
            removals: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            pull_backoffs: BTreeMap::new(),
            missing_secrets: Vec::new(),
        }
    }

    /// Whatever an earlier run of the agent made may be there.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            dirs: Resource::Unknown,
            cgroup: Resource::Unknown,
            netns: Resource::Unknown,
            network: Resource::Unknown,
            sandbox: Resource::Unknown,
            ..Self::fresh()
        }
    }

    /// Lets everything go on that waits because of this kind of failure.
    pub fn end_waits(&mut self, kind: FailureKind, now: Mono) {
        self.dirs.end_wait(kind, now);
        self.cgroup.end_wait(kind, now);
        self.resize.end_wait(kind, now);
        self.netns.end_wait(kind, now);
        self.network.end_wait(kind, now);
        self.sandbox.end_wait(kind, now);
        self.end.end_wait(kind, now);
        self.files.end_wait(kind, now);
        for volume in self.volumes.values_mut() {
            volume.end_wait(kind, now);
        }
        for image in self.volume_images.values_mut() {
            image.end_wait(kind, now);
        }
        for removal in self.removals.values_mut() {
            if let Removal::Stuck(retry) = removal {
                retry.end_wait(kind, now);
            }
        }
        for run in self.containers.values_mut() {
            if let Run::Preparing(preparing) = run {
                preparing.end_waits(kind, now);
            }
        }
    }

    /// Whether something of an earlier sandbox is left: it goes before another is made.
    #[must_use]
    pub fn has_old_sandbox(&self) -> bool {
        self.removals.keys().any(|leftover| match leftover {
            Leftover::Sandbox(_) | Leftover::Network(_) | Leftover::Netns(_) => true,
            Leftover::Container(_)
            | Leftover::Volumes
            | Leftover::Cgroup
            | Leftover::Dirs
            | Leftover::End
            | Leftover::Record => false,
        })
    }

    /// Whether nothing is there but directories, and nothing is being removed.
    fn has_only_directories(&self) -> bool {
        let volumes = self.volumes.values().all(|volume| *volume == Resource::Absent);
        let is_after_them = |leftover: &Leftover| match leftover {
            Leftover::Dirs | Leftover::End | Leftover::Record => true,
            Leftover::Container(_)
            | Leftover::Sandbox(_)
            | Leftover::Network(_)
            | Leftover::Netns(_)
            | Leftover::Volumes
            | Leftover::Cgroup => false,
        };
        volumes
            && self.sandbox == Resource::Absent
            && self.network == Resource::Absent
            && self.netns == Resource::Absent
            && self.cgroup == Resource::Absent
            && self.removals.keys().all(is_after_them)
    }

    /// Whether all that is left of containers waits for a shim that does not answer: the sandbox goes with them then.
    #[must_use]
    pub fn has_only_silent_containers(&self) -> bool {
        let is_silent = |removal: &Removal| match removal {
            Removal::Stuck(retry) => retry.failure.kind == FailureKind::Silent,
            Removal::Due | Removal::After(_) | Removal::Removing { .. } => false,
        };
        let is_container = |leftover: &Leftover| matches!(leftover, Leftover::Container(_));
        self.removals.iter().all(|(leftover, removal)| !is_container(leftover) || is_silent(removal))
    }

    /// Whoever holds the sandbox has told what there was at `asked_at`: what still counts as running does not do so by the
    /// record alone.
    pub fn end_trust(&mut self, asked_at: Mono) {
        for run in self.containers.values_mut() {
            if let Run::Running(running) = run {
                running.is_trusted &= asked_at < running.known_at;
            }
        }
    }

    /// Whether ended containers are still to be removed.
    #[must_use]
    pub fn has_old_containers(&self) -> bool {
        self.removals.keys().any(|leftover| matches!(leftover, Leftover::Container(_)))
    }
}

/// The current run of a container.
#[derive(Debug, Clone, PartialEq)]
pub enum Run {
    /// None: not begun, or over and in the record.
    Idle,
    /// None, and the next one waits for its back-off, which was announced.
    BackingOff,
    /// Being prepared, or its start was refused.
    Preparing(Preparing),
    /// Asked to start, or asked what became of a start that nobody answered.
    Starting(Starting),
    /// Running.
    Running(Running),
    /// Ended; its termination message is being read.
    Ended(EndedRun),
}

/// A run before its start.
#[derive(Debug, Clone, PartialEq)]
pub struct Preparing {
    /// Hash of the container that it is prepared for.
    pub hash: u64,
    /// Its image.
    pub image: ImageUse,
    /// Whether it was told that the image is there, or may have been by an agent before.
    pub is_image_told: bool,
    /// Its writable layer.
    pub rootfs: Resource<Arc<Accounts>>,
    /// Why it was not started.
    pub refused: Option<Refusal>,
    /// Whether the runtime was found to be at its start: one that is asked for now and fails tells nothing of that.
    pub is_under_way: bool,
    /// What it follows on.
    pub follows: Follows,
    /// Its end, when that was reported while its layer was being made: an earlier start had worked.
    pub end: Option<Exit>,
}

/// What a run follows on that is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// Nothing, or the end of a run.
    AnEnd,
    /// At once on a run that was stopped alone: a kubelet ends the one and begins the other in one go.
    AStop,
}

impl Preparing {
    fn end_waits(&mut self, kind: FailureKind, now: Mono) {
        self.rootfs.end_wait(kind, now);
        self.image.end_wait(kind, now);
        if let Some(refusal) = &mut self.refused {
            refusal.retry.end_wait(kind, now);
        }
    }
}

/// A start that was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Reason of the waiting state.
    pub reason: &'static str,
    /// Why, and when it is tried again.
    pub retry: Retry,
}

/// A running container.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// When the agent learned that it runs: what was read earlier may not have seen it.
    pub known_at: Mono,
    /// Process id of its init, once the shim has told it.
    pub pid: Option<u32>,
    /// Since when.
    pub started_at: Timestamp,
    /// Hash of the container that it was made from.
    pub hash: u64,
    /// How far its stop is.
    pub stop: Stop,
    /// A hook that is under way.
    pub hook: Hooking,
    /// Whether the record alone tells that it runs: its shim did not answer when the agent began, and has not told since.
    pub is_trusted: bool,
}

/// An ended run.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedRun {
    /// How it ended.
    pub exit: Exit,
    /// When, for back-off.
    pub at: Mono,
    /// Since when it was shown as running, and still is until its termination message is read.
    pub shown_since: Option<Timestamp>,
    /// Its termination message.
    pub message: TerminationMessage,
}

/// The end of a run, where it is known without termination message.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    /// The shim said how it ended.
    Seen(Exit),
    /// Its sandbox is lost and how it ended is not known.
    Lost(Timestamp),
    /// containerd knows it, and neither a task nor a record of the agent tells of it: the machine was switched off.
    Forgotten(Timestamp),
    /// It was killed, again and again, and no end was reported.
    Unseen(Timestamp),
}
