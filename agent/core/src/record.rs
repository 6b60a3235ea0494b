//! What of a pod must survive the agent: one value per pod, written before the first act for it.
//!
//! It names everything that bears one of the pod's ids, so it is the intent for all of it, also when ids come to be
//! computed otherwise; see decisions 0003 and 0022.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use crate::{
    id::{Attempt, ContainerId, ContainerName, PodName, PodUid, SandboxId, VolumeName},
    observation::Exit,
    spec::{CpuMemory, Pod, Resizable, Resize, Source},
    status::{ConditionKind, NetworkStatus, RunUser},
    time::Mono,
    users::HostIds,
};

/// The record of one pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodRecord {
    /// UID of the pod.
    pub uid: PodUid,
    /// Its name.
    pub name: PodName,
    /// Where it came from.
    pub source: Source,
    /// The manifest as JSON.
    pub manifest: Arc<str>,
    /// Set while its resources are those of an earlier manifest.
    pub resize: Option<Resize>,
    /// Set while resources that were allocated to it are not in force everywhere.
    pub resizing: Option<Resizing>,
    /// When the pod began: when the agent first saw it, unless its source knew (`status.startTime`).
    pub started_at: Timestamp,
    /// What the pod is to become.
    pub goal: Goal,
    /// Which sandbox of the pod the current one is; earlier ones are removed.
    pub sandbox: Attempt,
    /// Id of the current sandbox.
    pub sandbox_id: SandboxId,
    /// Id of the sandbox before, of which something may be left.
    pub earlier_sandbox: Option<SandboxId>,
    /// Ids of the node that are its own, where it has a user namespace. They stay as long as it is there.
    pub ids: Option<HostIds>,
    /// SELinux level of what is its own, where the node's policy has levels. It stays as long as the pod is there, as its files do.
    pub level: Option<String>,
    /// Whether the runtime of the sandbox that was made last makes mounts read-only with all that is mounted below them.
    pub recursive_read_only: bool,
    /// Addresses, once wired.
    pub network: Option<NetworkStatus>,
    /// The images that its volumes are made of, once they are on the node: whatever their names mean later, and whoever asks the
    /// registry, the pod keeps these.
    pub volume_images: BTreeMap<VolumeName, VolumeImage>,
    /// Runs of its containers.
    pub containers: BTreeMap<ContainerName, ContainerRecord>,
    /// What the pod's conditions were when they were last seen to change, so that a restart of the agent moves no
    /// `lastTransitionTime`.
    pub conditions: BTreeMap<ConditionKind, Transition>,
    /// Set when the current sandbox cannot go on: its containers are being stopped, then it is replaced.
    pub replacing: Option<TerminationRecord>,
    /// Set when all containers are to begin anew: those that run are being stopped (KEP-5532).
    pub restarting: Option<TerminationRecord>,
    /// Set when the pod is being stopped.
    pub termination: Option<TerminationRecord>,
    /// Set when the pod has ended for good.
    pub terminal: Option<TerminalRecord>,
}

impl PodRecord {
    /// The first one of a pod that is seen now.
    #[must_use]
    pub fn first(spec: &Pod, now: Timestamp) -> Self {
        Self {
            uid: spec.uid.clone(),
            name: spec.name.clone(),
            source: spec.source,
            manifest: Arc::clone(&spec.manifest),
            resize: spec.resize.clone(),
            resizing: None,
            started_at: spec.started_at.unwrap_or(now),
            goal: Goal::Wanted,
            sandbox: 0,
            sandbox_id: SandboxId::of(&spec.uid, 0),
            earlier_sandbox: None,
            ids: None,
            level: None,
            recursive_read_only: false,
            network: None,
            volume_images: BTreeMap::new(),
            containers: BTreeMap::new(),
            conditions: BTreeMap::new(),
            replacing: None,
            restarting: None,
            termination: None,
            terminal: None,
        }
    }

    /// The run of a container, where it was begun in the current sandbox.
    #[must_use]
    pub fn run_here(&self, name: &ContainerName) -> Option<&ContainerRecord> {
        self.containers.get(name).filter(|run| run.started_in == Some(self.sandbox))
    }

    /// Whether any run of a container was begun in the current sandbox since all were to begin anew; those whose start failed are none.
    #[must_use]
    pub fn was_begun_here(&self, name: &ContainerName) -> bool {
        let run = self.containers.get(name);
        run.is_some_and(|run| [run.started_in, run.last_in].contains(&Some(self.sandbox)))
    }

    /// Whether the run was stopped alone, to follow its spec or since a probe failed: then it runs again however it ends. One
    /// that was stopped with its sandbox does what the policy says, as does one whose policy is never to run again, and one whose
    /// postStart hook failed.
    #[must_use]
    pub fn is_replaced(&self, run: &ContainerRecord) -> bool {
        let runs_again = match run.probed.afterwards {
            Afterwards::Again => true,
            Afterwards::Never => false,
        };
        let has_begun = match run.hooked.post_start {
            PostStart::Due | PostStart::Over => true,
            PostStart::Failed(_) => false,
        };
        runs_again && has_begun && run.stopping.is_some_and(|stopping| !self.is_with_sandbox(stopping))
    }

    /// Whether a container is stopped because its sandbox is replaced.
    fn is_with_sandbox(&self, stopping: TerminationRecord) -> bool {
        self.replacing.is_some_and(|sandbox| stopping.began >= sandbox.began)
    }

    /// The current sandbox is an earlier one from now on, and the next one is not made yet.
    pub(crate) fn replace_sandbox(&mut self) {
        if self.replacing.is_some() {
            let mut runs = std::mem::take(&mut self.containers);
            for run in runs.values_mut() {
                run.stopping = run.stopping.filter(|stopping| !self.is_with_sandbox(*stopping));
            }
            self.containers = runs;
        }
        self.replacing = None;
        self.sandbox = self.sandbox.saturating_add(1);
        let next = SandboxId::of(&self.uid, self.sandbox);
        self.earlier_sandbox = Some(std::mem::replace(&mut self.sandbox_id, next));
        self.network = None;
    }
}

/// The image that a volume is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeImage {
    /// Name of its record in containerd.
    pub name: String,
    /// Chain id of its layers.
    pub chain_id: String,
}

/// A resize that is allocated and not done: what the condition `PodResizeInProgress` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resizing {
    /// The generation that asked for it.
    pub generation: Option<i64>,
    /// Why the last try has failed.
    pub error: Option<String>,
    /// What the pod as a whole has at most, where it named something else for itself before and its cgroup may still go by that.
    pub whole: Option<CpuMemory>,
    /// Bytes of memory that its cgroup may have, where it had more than is allocated; 0 is no limit. It becomes lower when what the pod uses
    /// fits, whatever of its containers ended or began meanwhile.
    pub memory: Option<u64>,
}

/// What a run has of the resources that can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actuated {
    /// What it was given last, as far as was told.
    pub has: CpuMemory,
    /// What it was to be given since, where it is not known whether it was.
    pub perhaps: Option<Perhaps>,
}

/// Between what a run may have been given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Perhaps {
    /// The least of each.
    pub least: CpuMemory,
    /// The most of each.
    pub most: CpuMemory,
}

impl Actuated {
    /// What it has at most.
    #[must_use]
    pub fn most(self) -> CpuMemory {
        self.perhaps.map_or(self.has, |perhaps| perhaps.most.max(self.has))
    }

    /// What it has at least.
    #[must_use]
    pub fn least(self) -> CpuMemory {
        self.perhaps.map_or(self.has, |perhaps| perhaps.least.min(self.has))
    }

    /// Whether it has this of a resource, for sure.
    #[must_use]
    pub fn is(self, resource: Resizable, wanted: CpuMemory) -> bool {
        [self.least(), self.most()].iter().all(|one| one.amounts(resource) == wanted.amounts(resource))
    }

    /// It was given this of a resource.
    #[must_use]
    pub fn given(self, resource: Resizable, given: CpuMemory) -> Self {
        let has = self.has.with(resource, given);
        let perhaps = self.perhaps.map(|perhaps| Perhaps {
            least: perhaps.least.with(resource, given),
            most: perhaps.most.with(resource, given),
        });
        Self { has, perhaps: perhaps.filter(|perhaps| *perhaps != Perhaps { least: has, most: has }) }
    }

    /// It may have been given this.
    #[must_use]
    pub fn perhaps_given(self, given: CpuMemory) -> Self {
        let Perhaps { least, most } = self.perhaps.unwrap_or(Perhaps { least: given, most: given });
        Self { perhaps: Some(Perhaps { least: least.min(given), most: most.max(given) }), ..self }
    }
}

/// What a pod is to become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// Its source has it: it is to run.
    Wanted,
    /// Its source no longer has it: everything goes, the record last.
    Removed,
}

/// Runs of one container.
#[derive(Debug, Clone, PartialEq)]
pub struct ContainerRecord {
    /// Id of the current run.
    pub id: ContainerId,
    /// Which run of the container the current one is.
    pub attempt: Attempt,
    /// When the current run was decided: a run that lasted long enough resets the back-off.
    pub begun_at: Mono,
    /// Whether the current run was decided for all containers of the pod at once, whose ends before that count for nothing.
    pub anew: bool,
    /// The sandbox that the current run was asked to start in; absent until then.
    pub started_in: Option<Attempt>,
    /// The sandbox that a run before it was in, the last one that was begun; absent when all containers begin anew.
    pub last_in: Option<Attempt>,
    /// Whether the current run was seen to run under a shim of others: when that dies, nothing is left by which it could be told from one
    /// that was never begun.
    pub has_run: bool,
    /// What the run that was last asked to start was made from.
    pub image: Option<RunImage>,
    /// Set when this run alone is stopped because its spec changed or a probe failed, or with the pod.
    pub stopping: Option<TerminationRecord>,
    /// What the current run has, where that was allocated to it before, and perhaps not what is now.
    pub actuated: Option<Actuated>,
    /// What the probes of the current run have decided.
    pub probed: Probed,
    /// How far the hooks of the current run are.
    pub hooked: Hooked,
    /// How the current run ended, when it has.
    pub exit: Option<ExitRecord>,
    /// How the run before ended.
    pub last_exit: Option<ExitRecord>,
    /// Restart back-off of the container as it is wanted.
    pub backoff: RestartBackoff,
    /// Those of what it was wanted as before, by [`key`](crate::pod::restart::back_off_key): one that comes back goes on
    /// where it was.
    pub other_backoffs: BTreeMap<String, RestartBackoff>,
}

/// What probes have decided of a run: it is written only when one of it changes, and a restart of the agent flips nothing.
/// Source: `ChangeContainerStatusOnKubeletRestart`, off since 1.35.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Probed {
    /// Its startup probe has succeeded.
    pub started: bool,
    /// What its readiness probe said last.
    pub ready: bool,
    /// What follows it, when it is stopped alone.
    pub afterwards: Afterwards,
}

/// How far the hooks of a run are. Each runs at least once: one that was not over when the agent ended is run by the next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hooked {
    /// Its postStart hook, where it has one.
    pub post_start: PostStart,
    /// Whether its preStop hook is over.
    pub pre_stop: bool,
    /// Since when its stop signal was due, where it had to wait for it: since then it has some time at least.
    pub signalled: Option<Mono>,
}

/// How far a postStart hook is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PostStart {
    /// It is to run, or runs.
    #[default]
    Due,
    /// It is over.
    Over,
    /// It failed, and the run is stopped; why.
    Failed(String),
}

/// What follows a run that is stopped alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Afterwards {
    /// The next one, however it ends.
    #[default]
    Again,
    /// None: a probe's failure ends it, and its pod runs nothing again.
    Never,
}

/// How long the next run of a container waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RestartBackoff {
    /// After the end of the run before, in milliseconds; 0 before the first restart.
    pub delay_ms: u64,
    /// When a restart last set it: long after that it is forgiven.
    pub since: Mono,
}

impl ContainerRecord {
    /// Its next run is to come, for which nothing of the one before counts. How that ended is kept, where it has.
    pub(crate) fn renew(&mut self, uid: &PodUid, name: &ContainerName) {
        if let Some(exit) = self.exit.take() {
            self.attempt = self.attempt.saturating_add(1);
            self.id = ContainerId::of(uid, name, self.attempt);
            self.last_exit = Some(exit);
        }
        self.last_in = self.started_in.take().or(self.last_in);
        self.has_run = false;
        self.stopping = None;
        self.actuated = None;
        self.probed = Probed::default();
        self.hooked = Hooked::default();
    }

    /// A run that was decided, and nothing more.
    #[must_use]
    pub fn begun(id: ContainerId, attempt: Attempt, begun_at: Mono) -> Self {
        Self {
            id,
            attempt,
            begun_at,
            anew: false,
            started_in: None,
            last_in: None,
            has_run: false,
            image: None,
            stopping: None,
            actuated: None,
            probed: Probed::default(),
            hooked: Hooked::default(),
            exit: None,
            last_exit: None,
            backoff: RestartBackoff::default(),
            other_backoffs: BTreeMap::new(),
        }
    }
}

/// What a running container still tells of its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunImage {
    /// `image`: a tag of it, or the image id.
    pub name: String,
    /// `imageID`: `repository@digest`, or the image id.
    pub id: String,
    /// `STOPSIGNAL`.
    pub stop_signal: Option<String>,
    /// The user that its first process began as; absent in records of versions before.
    pub user: Option<RunUser>,
}

/// The last change of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// Whether it holds since then.
    pub holds: bool,
    /// Since when.
    pub since: Timestamp,
}

/// How a run ended, with its termination message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitRecord {
    /// Id of the run.
    pub id: ContainerId,
    /// Which run.
    pub attempt: Attempt,
    /// How.
    pub exit: Exit,
    /// When, for back-off.
    pub at: Mono,
    /// Termination message.
    pub message: String,
    /// Reason that overrides the one derived from the exit, such as `ContainerStatusUnknown`.
    pub reason: Option<String>,
    /// Why its postStart hook failed, when it was stopped since it did.
    pub post_start: Option<String>,
}

/// A pod or a container being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminationRecord {
    /// When it began: the grace period counts from here, also after a restart of the agent.
    pub began: Mono,
    /// When everything left is killed. A later request can only bring it forward.
    pub deadline: Mono,
}

/// A pod that has ended for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalRecord {
    /// Whether all containers succeeded.
    pub succeeded: bool,
    /// `status.reason`, such as `DeadlineExceeded`; empty for a pod that ended by itself.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// Who ended it.
    pub by: EndedBy,
}

/// Who ended a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum EndedBy {
    /// Its containers, or its deadline.
    #[default]
    Itself,
    /// It was never admitted: nothing of it was begun.
    Admission,
    /// The node, for the sake of others: the message of its condition `DisruptionTarget`.
    Node(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(limit: u64) -> CpuMemory {
        CpuMemory { cpu_limit: limit, memory_limit: 7, ..CpuMemory::default() }
    }

    #[test]
    fn what_was_perhaps_given_is_known_again_only_when_it_was_given() {
        let has = Actuated { has: cpu(250), perhaps: None };
        // Limits that it was perhaps given since; whether it has 250 for sure; what it has at least and at most.
        for (perhaps, is_known, least, most) in [
            (&[][..], true, 250, 250),
            (&[250], true, 250, 250),
            (&[200], false, 200, 250),
            (&[300], false, 250, 300),
            (&[200, 250], false, 200, 250),
            (&[0], false, 250, 0),
            (&[0, 250], false, 250, 0),
        ] {
            let run = perhaps.iter().fold(has, |run, limit| run.perhaps_given(cpu(*limit)));
            let is_known_of = |resource| run.is(resource, cpu(250));
            assert_eq!(is_known_of(Resizable::Cpu), is_known, "{perhaps:?}");
            assert!(is_known_of(Resizable::Memory), "{perhaps:?}");
            assert_eq!((run.least().cpu_limit, run.most().cpu_limit), (least, most), "{perhaps:?}");
            let given = run.given(Resizable::Cpu, cpu(100));
            assert_eq!(given, Actuated { has: cpu(100), perhaps: None }, "{perhaps:?}");
        }
    }
}
