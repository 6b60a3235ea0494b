//! The start of a container, and the look at one that nobody answered.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use crate::{
    config::NodeConfig,
    effect::Act,
    event::Outcome,
    failure::{Failure, FailureKind},
    id::{Attempt, ContainerId, ContainerName, OpId, SandboxId, VolumeName},
    image::ImageInfo,
    observation::{Exit, ObservedTask},
    oci::{Accounts, ConfigError, ContainerInputs, ContainerPlan, ObjectValues, container_plan},
    ops::Purpose,
    pod::{
        actual::{Life, Preparing, Refusal, Run, RunEnd, Running, Stage},
        fit,
        machine::{PodMachine, Shared},
        outcome::Slot,
        port::{
            hook::Hooking,
            image::{ImageFor, ImageUse},
            run_image::{run_image, user},
            signal::Stop,
        },
        resource::{Resource, Retry},
        target::{Target, target},
        text::about,
    },
    record::{Hooked, Probed},
    spec::{Container, CpuMemory, EnvSource, FileKeyRef, Pod},
    status::{NetworkStatus, Severity},
    time::{Mono, Now},
    users::HostIds,
};

/// Texts of events. Source: `startContainer` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
const CREATED: &str = "Container created";
const STARTED: &str = "Container started";

/// Exit code and reason of a run that could not be started, as containerd's CRI reports them (`errorStartExitCode`,
/// `errorStartReason` of `internal/cri/server/container_start.go`).
const START_FAILED: u32 = 128;
pub(in crate::pod) const START_ERROR: &str = "StartError";

/// Reason of the waiting state of a container that could not be made, or was not.
const CREATE_ERROR: &str = "CreateContainerError";

/// A container to start.
#[derive(Debug, Clone, PartialEq)]
pub struct StartRequest {
    /// Its id, also the key of its snapshot.
    pub id: ContainerId,
    /// Which run of the container it is.
    pub attempt: Attempt,
    /// The sandbox it joins.
    pub sandbox: SandboxId,
    /// The pod.
    pub pod: Arc<Pod>,
    /// The container.
    pub container: Arc<Container>,
    /// The container whose processes it sees: it has to run when this one is made, as that process.
    pub target: Option<Target>,
    /// Image it was made from.
    pub image: Arc<ImageInfo>,
    /// Everything that is prepared on the node and written into its OCI spec.
    pub plan: ContainerPlan,
    /// What the plan is made from anew, once what objects and services give its environment is known.
    pub unplanned: Option<Box<Unplanned>>,
}

/// What a plan is made from that is not in its request otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Unplanned {
    /// The node, as it was when the start was asked for.
    node: NodeConfig,
    sandbox_attempt: Attempt,
    accounts: Arc<Accounts>,
    ids: Option<HostIds>,
    level: Option<String>,
    network: Option<NetworkStatus>,
    volumes: BTreeMap<VolumeName, String>,
    recursive_read_only: bool,
}

impl StartRequest {
    /// Variables that files in volumes give: each with its place in `env`, and where its volume is on the node.
    pub fn files_of_environment(&self) -> impl Iterator<Item = (usize, &FileKeyRef, Option<&str>)> {
        let volumes = self.unplanned.as_ref().map(|unplanned| &unplanned.volumes);
        self.container.env.iter().enumerate().filter_map(move |(index, variable)| match &variable.source {
            EnvSource::File(file) => {
                let volume = volumes.and_then(|volumes| volumes.get(&file.volume));
                Some((index, file, volume.map(String::as_str)))
            }
            EnvSource::Value(_) | EnvSource::Field(_) | EnvSource::Resource(_) | EnvSource::Key(_) => None,
        })
    }

    /// The same with a plan that has what objects and services give. Not for anybody to see: it may be secret.
    ///
    /// # Errors
    /// As for any plan.
    pub fn with_values(&self, values: &ObjectValues) -> Result<Self, ConfigError> {
        let Some(unplanned) = &self.unplanned else { return Ok(self.clone()) };
        let plan = container_plan(&ContainerInputs {
            node: &unplanned.node,
            pod: &self.pod,
            container: &self.container,
            attempt: self.attempt,
            id: &self.id,
            sandbox: &self.sandbox,
            sandbox_attempt: unplanned.sandbox_attempt,
            target: self.target.as_ref().map(|target| target.pid),
            image: &self.image,
            accounts: &unplanned.accounts,
            ids: unplanned.ids,
            level: unplanned.level.as_deref(),
            network: unplanned.network.as_ref(),
            volumes: &unplanned.volumes,
            recursive_read_only: unplanned.recursive_read_only,
            values: Some(values),
        })?;
        Ok(Self { plan, unplanned: None, ..self.clone() })
    }
}

/// A task to look at.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRequest {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The sandbox it may run in, whose shim is asked.
    pub sandbox: SandboxId,
    /// Which container.
    pub id: ContainerId,
}

/// A run being started.
#[derive(Debug, Clone, PartialEq)]
pub struct Starting {
    /// The effect.
    pub op: OpId,
    /// What it is.
    pub asked: Asked,
    /// What it was prepared from, should the start be refused.
    pub prepared: Preparing,
    /// Its end, when that was reported before the outcome of the start.
    pub end: Option<RunEnd>,
    /// Whether an earlier try may have worked.
    pub may_have_run: bool,
}

/// What is asked about a run that is to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// To start it.
    Start,
    /// What became of a start that nobody answered.
    Look,
}

impl PodMachine {
    /// Asks to start a container.
    pub(in crate::pod) fn start(&mut self, name: &ContainerName, shared: &mut Shared<'_>, now: Mono) {
        let Some(container) = self.container(name) else { return };
        let Run::Preparing(preparing) = self.life.run(name).clone() else { return };
        let request = match request(&self.life, &container, &preparing, shared.config) {
            Ok(Some(request)) => request,
            Ok(None) => return,
            Err(error) => {
                let failure = Failure::new(FailureKind::Config, error.to_string());
                let text = format!("Error: {}", failure.message);
                self.notes.push(about(name, Severity::Warning, "Failed", text));
                let refused = preparing.refused.as_ref().map_or(0, |refusal| refusal.retry.tries);
                let retry = Retry::after(failure, refused, now);
                let refused = Some(Refusal { reason: error.reason(), retry });
                return self.set_run(name, Run::Preparing(Preparing { refused, ..preparing }));
            }
        };
        let sandbox = self.life.record.sandbox;
        let may_have_run = self.life.may_have_run(name);
        if let Some(record) = self.life.record.containers.get_mut(name) {
            // What an earlier try made has what was allocated then; if it made nothing, this one gives what is allocated now.
            let earlier = record.actuated.filter(|_| record.started_in == Some(sandbox));
            record.actuated = earlier.map(|it| it.perhaps_given(CpuMemory::of(&self.life.spec, &container)));
            record.started_in = Some(sandbox);
            let process = request.plan.spec.process().as_ref();
            record.image = Some(run_image(&request.image, process.map(|process| user(process.user()))));
        }
        for warning in &request.plan.warnings {
            self.notes.push(about(name, Severity::Warning, "UnknownCapability", warning.clone()));
        }
        let tries = preparing.refused.as_ref().map_or(0, |refusal| refusal.retry.tries);
        let act = Act::StartContainer(Box::new(request));
        let op = self.ask(shared, Slot::Start(name.clone()), tries, act);
        let starting = Starting { op, asked: Asked::Start, prepared: preparing, end: None, may_have_run };
        self.set_run(name, Run::Starting(starting));
    }

    /// Takes back what waited for the record, when it was heard meanwhile that the pod ends or that the sandbox goes: nothing
    /// is begun only to be stopped. Whether there was anything.
    pub(in crate::pod) fn take_back_starts(&mut self, shared: &mut Shared<'_>, now: Now) -> bool {
        let life = &self.life;
        let is_emptied = life.record.replacing.is_some() || life.record.restarting.is_some();
        let is_all = life.stage() == Stage::Stop || is_emptied;
        let is_lost =
            |name: &ContainerName| matches!(life.run(name), Run::Starting(Starting { end: Some(_), .. }));
        let is_overtaken = |act: &Act| matches!(act, Act::StartContainer(request) if is_all || is_lost(&request.container.name));
        let ops: Vec<OpId> =
            self.acts.extract_if(.., |(_, act)| is_overtaken(act)).map(|(op, _)| op).collect();
        for op in &ops {
            if let Some(Purpose::Pod { slot: Slot::Start(name), .. }) = shared.ops.close(*op) {
                self.take_back_start(&name, now);
            }
        }
        !ops.is_empty()
    }

    fn take_back_start(&mut self, name: &ContainerName, now: Now) {
        let Run::Starting(Starting { mut prepared, end, may_have_run, .. }) = self.life.run(name).clone()
        else {
            return;
        };
        match end {
            Some(end) if may_have_run => return self.ended(name, end, now),
            // The layer goes with what is removed of the sandbox.
            Some(_) => prepared.rootfs = Resource::Unknown,
            None => {}
        }
        if !may_have_run && let Some(record) = self.life.record.containers.get_mut(name) {
            record.started_in = None;
        }
        self.set_run(name, Run::Preparing(prepared));
    }

    /// Asks what became of a start that nobody answered: the answer is taken like that of a start.
    pub(in crate::pod) fn look_at_task(&mut self, name: &ContainerName, shared: &mut Shared<'_>) {
        let Run::Preparing(mut preparing) = self.life.run(name).clone() else { return };
        // Its layer was asked for by the same plan: the answer to that would be lost on a look.
        if preparing.rootfs.op().is_some() {
            return;
        }
        shared.pulls.withdraw(&self.asker(ImageFor::Container(name.clone())));
        // Nobody answers for the image any more.
        if matches!(preparing.image, ImageUse::Inspecting { .. } | ImageUse::Pulling { .. }) {
            preparing.image = ImageUse::Wanted;
        }
        let tries = preparing.refused.as_ref().map_or(0, |refusal| refusal.retry.tries);
        let request = TaskRequest {
            pod: Arc::clone(&self.life.spec),
            sandbox: self.life.sandbox_id(),
            id: self.life.container_id(name),
        };
        let op = self.ask(shared, Slot::Start(name.clone()), tries, Act::LookAtTask(Box::new(request)));
        let starting =
            Starting { op, asked: Asked::Look, prepared: preparing, end: None, may_have_run: true };
        self.set_run(name, Run::Starting(starting));
    }

    /// A sandbox without a process of its own tells nothing of runs that went with their shim.
    pub(in crate::pod) fn remember_run(&mut self, name: &ContainerName) {
        let has_process = self.life.actual.sandbox.ready().is_none_or(|up| up.pid != 0);
        if let Some(record) = self.life.record.containers.get_mut(name).filter(|_| !has_process) {
            record.has_run = true;
        }
    }

    /// Takes the outcome of a start, or of a look at one.
    pub(in crate::pod) fn started(
        &mut self,
        op: OpId,
        name: &ContainerName,
        tries: u32,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        let Run::Starting(starting) = self.life.run(name).clone() else { return };
        if starting.op != op {
            return;
        }
        let failure = match result {
            Ok(
                Outcome::Started(ObservedTask::Running { pid, started_at })
                | Outcome::Task(ObservedTask::Running { pid, started_at }),
            ) => {
                self.tell_started(name);
                let (hash, known_at) = (starting.prepared.hash, now.mono);
                return match starting.end {
                    None => {
                        self.sandbox_answered(known_at);
                        self.remember_run(name);
                        let (pid, stop, hook) = (Some(pid), Stop::No, Hooking::No);
                        let is_trusted = false;
                        self.runs(name, Running { pid, started_at, known_at, hash, stop, hook, is_trusted });
                    }
                    Some(end) => self.ended(name, end, now),
                };
            }
            Ok(Outcome::Started(ObservedTask::Exited(exit)) | Outcome::Task(ObservedTask::Exited(exit))) => {
                self.tell_started(name);
                return self.ended(name, RunEnd::Seen(exit), now);
            }
            Ok(Outcome::Task(ObservedTask::Absent | ObservedTask::Created)) if starting.end.is_none() => {
                return self.never_began(name, starting.prepared, tries, now.mono);
            }
            Ok(Outcome::Started(task) | Outcome::Task(task)) => unclear(&task),
            Ok(Outcome::NotStarted(failure)) => failure.judged(&self.life.container_id(name)),
            Ok(other) => fit::unfitting(&other),
            Err(failure) => failure,
        };
        // It was not asked for.
        let is_unasked = failure.kind == FailureKind::Unrecorded && !starting.may_have_run;
        let is_to_begin = match starting.end.clone() {
            Some(end) if !tells_more(&failure, &starting, &end) => return self.ended(name, end, now),
            // Nobody takes it for one that went with this sandbox.
            Some(_) => true,
            None => is_unasked,
        };
        if is_to_begin && let Some(record) = self.life.record.containers.get_mut(name) {
            record.started_in = None;
        }
        if failure.kind == FailureKind::StartFailed {
            self.notes.push(about(name, Severity::Normal, "Created", CREATED));
        }
        self.complain_about(name, &failure);
        self.not_started(name, starting, tries, failure, now);
    }

    fn not_started(
        &mut self,
        name: &ContainerName,
        starting: Starting,
        tries: u32,
        failure: Failure,
        now: Now,
    ) {
        let reason = match failure.kind {
            FailureKind::StartFailed => {
                // A run that never started has the time that is none in containerd's CRI.
                let started_at = Some(Timestamp::UNIX_EPOCH);
                let exit = Exit { code: START_FAILED, started_at, finished_at: now.wall, oom_killed: false };
                return self.conclude(name, exit, failure.message, Some(START_ERROR.into()), now.mono);
            }
            FailureKind::Config => "CreateContainerConfigError",
            FailureKind::Transient
            | FailureKind::Unknown
            | FailureKind::RuntimeDown
            | FailureKind::InvalidImageName
            | FailureKind::ImagePull
            | FailureKind::LayersGone
            | FailureKind::SandboxGone
            | FailureKind::Silent
            | FailureKind::Unrecorded => CREATE_ERROR,
        };
        let gone = failure.kind == FailureKind::SandboxGone;
        let retry = Retry::after(still_unknown(starting.asked, &starting.prepared, failure), tries, now.mono);
        let refused = Some(Refusal { reason, retry });
        self.set_run(name, Run::Preparing(Preparing { refused, ..starting.prepared }));
        if gone {
            self.lose_sandbox(now.wall, now);
        }
    }

    /// A start that nobody had answered came to nothing.
    fn never_began(&mut self, name: &ContainerName, prepared: Preparing, tries: u32, now: Mono) {
        if let Some(record) = self.life.record.containers.get_mut(name) {
            // So there is nothing to stop, and what is begun in its place is not it.
            record.stopping = None;
            record.probed = Probed::default();
            record.hooked = Hooked::default();
        }
        let failure = Failure { kind: FailureKind::Transient, message: "it was not started".into() };
        let retry = Retry::after(failure, tries, now);
        let refused = Some(Refusal { reason: CREATE_ERROR, retry });
        self.set_run(name, Run::Preparing(Preparing { refused, is_under_way: false, ..prepared }));
    }

    /// A run whose start nobody had answered was begun, and has ended.
    pub(in crate::pod) fn ended_unanswered(&mut self, name: &ContainerName, exit: Exit, now: Now) {
        self.tell_started(name);
        self.ended(name, RunEnd::Seen(exit), now);
    }

    fn tell_started(&mut self, name: &ContainerName) {
        self.notes.push(about(name, Severity::Normal, "Created", CREATED));
        self.notes.push(about(name, Severity::Normal, "Started", STARTED));
    }
}

/// `None` while something that it is made from is missing.
fn request(
    life: &Life,
    container: &Arc<Container>,
    preparing: &Preparing,
    config: &NodeConfig,
) -> Result<Option<StartRequest>, ConfigError> {
    let (ImageUse::Ready(image), Some(accounts), Some(record)) =
        (&preparing.image, preparing.rootfs.ready(), life.record.containers.get(&container.name))
    else {
        return Ok(None);
    };
    let target = target(life, container)?;
    let id = life.container_id(&container.name);
    let sandbox = life.sandbox_id();
    let volumes = life.actual.volumes.iter();
    let volumes = volumes.filter_map(|(name, state)| Some((name.clone(), state.ready()?.clone()))).collect();
    let plan = container_plan(&ContainerInputs {
        node: config,
        pod: &life.spec,
        container,
        attempt: record.attempt,
        id: &id,
        sandbox: &sandbox,
        sandbox_attempt: life.record.sandbox,
        target: target.as_ref().map(|target| target.pid),
        image,
        accounts,
        ids: life.record.ids,
        level: life.record.level.as_deref(),
        network: life.record.network.as_ref(),
        volumes: &volumes,
        recursive_read_only: life.record.recursive_read_only,
        values: None,
    })?;
    let unplanned = Unplanned {
        node: config.clone(),
        sandbox_attempt: life.record.sandbox,
        accounts: Arc::clone(accounts),
        ids: life.record.ids,
        level: life.record.level.clone(),
        network: life.record.network.clone(),
        volumes,
        recursive_read_only: life.record.recursive_read_only,
    };
    Ok(Some(StartRequest {
        id,
        attempt: record.attempt,
        sandbox,
        pod: Arc::clone(&life.spec),
        container: Arc::clone(container),
        target,
        image: Arc::clone(image),
        plan,
        unplanned: Some(Box::new(unplanned)),
    }))
}

/// The failure of a start whose earlier try may have worked: a later one that failed for sure does not tell of that, nor does
/// a look that failed.
fn still_unknown(asked: Asked, prepared: &Preparing, failure: Failure) -> Failure {
    if (was_unanswered(prepared) || asked == Asked::Look) && !is_no_answer(failure.kind) {
        return Failure { kind: FailureKind::Unknown, ..failure };
    }
    failure
}

/// Whether why a start failed tells more than the end that was reported before: that its sandbox was lost is no news of a
/// run which never began. An earlier try may have worked.
fn tells_more(failure: &Failure, starting: &Starting, end: &RunEnd) -> bool {
    match end {
        RunEnd::Seen(_) => false,
        RunEnd::Lost(_) | RunEnd::Forgotten(_) | RunEnd::Unseen(_) => {
            matches!(failure.kind, FailureKind::StartFailed | FailureKind::Unrecorded)
                && !was_unanswered(&starting.prepared)
        }
    }
}

/// What is found of a run that tells neither that it runs nor that it does not.
fn unclear(task: &ObservedTask) -> Failure {
    let message = match task {
        ObservedTask::Starting => "it is still being started",
        ObservedTask::Unknown => "the shim does not answer",
        ObservedTask::Absent
        | ObservedTask::Created
        | ObservedTask::Running { .. }
        | ObservedTask::Exited(_) => "it was started, and is not found to run",
    };
    Failure { kind: FailureKind::Unknown, message: message.into() }
}

fn was_unanswered(prepared: &Preparing) -> bool {
    let refused = prepared.refused.as_ref();
    prepared.is_under_way || refused.is_some_and(|refusal| is_no_answer(refusal.retry.failure.kind))
}

fn is_no_answer(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Unknown | FailureKind::RuntimeDown)
}
