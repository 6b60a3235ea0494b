//! The look: whether what was made for a pod is still there, and as it was made.
//!
//! Every `syncFrequency`, without a question to containerd. What is missing or changed is made again by the plan, as after
//! a restart of the agent: a finding only takes away the certainty that the resource is there. A network namespace cannot be
//! made again under those who are in it: the pod's containers are stopped with its grace period, then its sandbox is replaced
//! (`computePodActions` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go` does so when containerd's CRI finds it closed).
//!
//! A path of the node (`hostPath`) is not looked at: it is the administrator's, who may take it away.

use std::collections::BTreeSet;

use crate::{
    config::NodeConfig,
    effect::Act,
    event::Outcome,
    failure::Failure,
    id::{Attempt, OpId, PodName, SandboxId, VolumeName},
    ops::Ops,
    paths,
    pod::{
        actual::{Life, Stage},
        machine::PodMachine,
        outcome::Slot,
        plan::is_ending,
        port::{
            cgroup::{self, CgroupRequest},
            files::files,
        },
        resource::Resource,
        text::about_pod,
    },
    record::TerminationRecord,
    spec::{Volume, VolumeSource},
    status::Severity,
    time::{Mono, Now},
};

/// What is to be there of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LookRequest {
    /// The sandbox that has a network namespace.
    pub netns: Option<SandboxId>,
    /// The cgroup with its values.
    pub cgroup: Option<CgroupRequest>,
    /// The directories of the pod of this name.
    pub dirs: Option<PodName>,
    /// Volumes below the pod's directory.
    pub volumes: Vec<Volume>,
    /// Where volumes of claims are bound there.
    pub bound: Vec<(VolumeName, String)>,
    /// Absolute paths of files that containers mount.
    pub files: Vec<String>,
}

/// Something that is missing, or not as it was made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// The network namespace of the sandbox.
    Netns,
    /// The cgroup or one of its values.
    Cgroup,
    /// One of the directories.
    Dirs,
    /// A volume.
    Volume(VolumeName),
    /// One of the files.
    Files,
}

/// How far the look at a pod is.
#[derive(Debug, Default)]
pub(in crate::pod) struct Looking {
    /// The effect, while it is under way.
    op: Option<OpId>,
    /// What was found last: told once, however often it comes back.
    found: BTreeSet<Finding>,
}

impl PodMachine {
    /// Asks for a look, unless one is under way or there is nothing to look at.
    pub fn begin_look(&mut self, config: &NodeConfig, ops: &mut Ops) {
        if self.looking.op.is_some() {
            return;
        }
        if let Some(request) = request(&self.life, config) {
            let slot = Slot::Look(self.life.record.sandbox);
            self.looking.op = Some(self.ask_with(ops, slot, 0, Act::Look(Box::new(request))));
        }
    }

    /// Takes the outcome of a look. One that failed tells nothing, and the next one comes anyway.
    pub(in crate::pod) fn looked(
        &mut self,
        op: OpId,
        sandbox: Attempt,
        result: Result<Outcome, Failure>,
        now: Now,
    ) {
        if self.looking.op != Some(op) {
            return;
        }
        self.looking.op = None;
        let Ok(Outcome::Looked(found)) = result else { return };
        let is_new = found.iter().any(|finding| !self.looking.found.contains(finding));
        let doubted: Vec<String> =
            found.iter().filter(|finding| self.doubt(finding, sandbox, now.mono)).map(text).collect();
        if is_new && !doubted.is_empty() {
            let message = format!("Changed behind the agent, to be made again: {}", doubted.join(", "));
            self.notes.push(about_pod(Severity::Warning, "ChangedOutside", message));
        }
        self.looking.found = found;
    }

    /// Counts a resource as not there; whether it was thought to be.
    fn doubt(&mut self, finding: &Finding, sandbox: Attempt, now: Mono) -> bool {
        if self.life.stage() == Stage::Stop {
            return false;
        }
        let actual = &mut self.life.actual;
        match finding {
            Finding::Netns => {
                let record = &mut self.life.record;
                let is_current = sandbox == record.sandbox && actual.netns.ready().is_some();
                let is_new = is_current && record.replacing.is_none();
                if is_new {
                    let deadline = now + self.life.spec.grace;
                    record.replacing = Some(TerminationRecord { began: now, deadline });
                }
                is_new
            }
            Finding::Cgroup => doubt(&mut actual.cgroup),
            Finding::Dirs => doubt(&mut actual.dirs),
            Finding::Volume(name) => actual.volumes.get_mut(name).is_some_and(doubt),
            Finding::Files => doubt(&mut actual.files),
        }
    }
}

fn doubt<T>(resource: &mut Resource<T>) -> bool {
    let was_ready = resource.ready().is_some();
    if was_ready {
        *resource = Resource::Unknown;
    }
    was_ready
}

fn text(finding: &Finding) -> String {
    match finding {
        Finding::Netns => "network namespace".to_owned(),
        Finding::Cgroup => "cgroup".to_owned(),
        Finding::Dirs => "directories".to_owned(),
        Finding::Volume(name) => format!("volume {name}"),
        Finding::Files => "files".to_owned(),
    }
}

/// What to look at: what is thought to be there, while the pod runs.
fn request(life: &Life, config: &NodeConfig) -> Option<LookRequest> {
    match life.stage() {
        Stage::Run if !is_ending(life) => {}
        Stage::Run | Stage::Stop => return None,
    }
    let (record, actual) = (&life.record, &life.actual);
    let is_own = |volume: &&Volume| match volume.source {
        VolumeSource::EmptyDir { .. } | VolumeSource::Content(_) | VolumeSource::Image { .. } => {
            actual.volumes.get(&volume.name).is_some_and(|volume| volume.ready().is_some())
        }
        VolumeSource::HostPath { .. } | VolumeSource::Claim(_) => false,
    };
    let is_to_stay = record.replacing.is_none();
    let request = LookRequest {
        netns: is_to_stay.then(|| actual.netns.ready().map(|_| record.sandbox_id.clone())).flatten(),
        cgroup: actual.cgroup.ready().map(|()| cgroup::request(life, config)),
        dirs: actual.dirs.ready().map(|()| record.name.clone()),
        volumes: life.spec.volumes.iter().filter(is_own).cloned().collect(),
        bound: bound(life, config),
        files: files(life, config).into_iter().map(|file| file.path).collect(),
    };
    (request != LookRequest::default()).then_some(request)
}

/// What claims have brought is looked at where it is bound for the pod; a path or a device of the node is not.
fn bound(life: &Life, config: &NodeConfig) -> Vec<(VolumeName, String)> {
    let dir = format!("{}/", paths::pod_dir(&config.paths, &life.spec.uid));
    let place = |volume: &Volume| match volume.source {
        VolumeSource::Claim(_) => {
            let place = life.actual.volumes.get(&volume.name)?.ready()?;
            place.starts_with(&dir).then(|| (volume.name.clone(), place.clone()))
        }
        VolumeSource::EmptyDir { .. }
        | VolumeSource::Content(_)
        | VolumeSource::HostPath { .. }
        | VolumeSource::Image { .. } => None,
    };
    life.spec.volumes.iter().filter_map(place).collect()
}
