//! An account of what really happened on the node, kept beside the core and without asking it, and judged by rules that
//! are written from the documentation of Kubernetes: "Pod Lifecycle", "Init Containers", "Sidecar Containers" and
//! "Termination of Pods" of its concepts.
//!
//! The world tells what happened to processes, the run what is wanted and what was asked for. Of the core the account
//! knows its effects alone: what it decided must be right by what happened, not by what it wrote down.

mod anew;
mod api;
mod happened;
mod hooks;
mod probes;
mod resizes;
mod rest;
mod run;
mod shown;
mod starts;
mod stops;
mod together;

pub(crate) use self::api::Carried;
use self::{
    api::Told,
    resizes::{Amounts, Requests},
    run::{Answer, Meant, Process, Run, Termed, Trust},
};

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    effect::{Act, Effect},
    id::{ContainerId, ContainerName, OpId, PodUid, SandboxId},
    pod::port::signal::StopSignal,
    record::PodRecord,
    spec::{ContainerKind, HookMoment, Pod, ProbeKind, Source},
    status::Phase,
    time::{Mono, Now},
};
use jiff::SignedDuration;

/// What happened to every pod, and what was wrong with it.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// What is wanted now.
    wanted: BTreeMap<PodUid, Arc<Pod>>,
    /// Since when.
    wanted_since: BTreeMap<PodUid, Mono>,
    /// When the agent began.
    agent_since: Mono,
    pods: BTreeMap<PodUid, Account>,
    /// Starts that are not answered yet.
    starts: BTreeMap<OpId, (PodUid, ContainerId)>,
    /// Sandboxes whose shim did not answer when the agent began: what is in them is taken to run until it tells, itself, what
    /// there is. A reading of the whole runtime tells of ends alone while the sandbox is looked for.
    silent: BTreeSet<SandboxId>,
    /// Sandboxes of which the agent knows that they are up, and since when. Any other is looked for: then a reading of the whole
    /// runtime tells of ends alone.
    up: BTreeMap<SandboxId, Mono>,
    /// Probes that are not answered yet, and when they were asked.
    probes: BTreeMap<OpId, (Question, Mono)>,
    /// Hooks that are not answered yet.
    hooks: BTreeMap<OpId, (PodUid, (ContainerId, HookMoment))>,
    /// Looks for sandboxes that are not answered yet.
    looks: BTreeMap<OpId, (PodUid, SandboxId)>,
    /// The most that pods ever asked for.
    asked: BTreeMap<PodUid, Requests>,
    /// What the API server was told.
    told: Told,
    /// Whether the API server is one of the sources.
    is_in_a_cluster: bool,
    /// Sources of which the agent that is up has not heard what they want.
    unheard: BTreeSet<Source>,
    /// How often each rule was asked: one that never was proves nothing.
    pub(crate) judged: BTreeMap<&'static str, u64>,
    /// How often something became unready.
    unready: u64,
    /// Rules that were broken.
    pub(crate) violations: Vec<String>,
}

/// What is asked of which container.
type Question = (PodUid, ContainerName, ProbeKind);

/// One pod from its first record to the last.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Account {
    spec: Arc<Pod>,
    /// When it was first here, and when it began by the word of its source.
    began: Now,
    /// When the agent that is up took it in.
    taken_in: Now,
    /// When its time was up, where an earlier agent wrote down that it has ended.
    overdue: Option<Mono>,
    /// Since when its source does not have it any more. It never comes back from that.
    unwanted: Option<Mono>,
    runs: BTreeMap<ContainerName, Vec<Run>>,
    /// The record as it was last asked to be written.
    intended: Option<PodRecord>,
    /// The record as it was last written.
    stored: Option<PodRecord>,
    /// Whether it is being written, as far as the agent knows.
    is_being_written: bool,
    /// Whether the last try to write it is said to have failed.
    is_unwritten: bool,
    /// The phase that ended it, once shown.
    last_phase: Option<Phase>,
    /// When what is to be deleted, or is gone, has to have ended.
    ends_by: Option<Mono>,
    /// Whether it was last shown to be ready.
    was_ready: bool,
    /// With what runs were made first, as far as records tell.
    made_first: BTreeMap<(ContainerId, SandboxId), Amounts>,
    /// How often a run of a container was taken down by an old record, or refused without a new one, and may begin again under its id.
    begun_again: BTreeMap<ContainerName, usize>,
    /// Main containers that might begin when that was to be written down.
    decided: BTreeSet<ContainerId>,
    /// How often all its containers began anew.
    round: u32,
    /// What was told to have happened to its containers: how often, by container and reason.
    events: BTreeMap<(String, String), usize>,
}

impl Account {
    fn new(spec: Arc<Pod>, now: Now) -> Self {
        let began = Now { mono: now.mono, wall: spec.started_at.unwrap_or(now.wall) };
        Self {
            spec,
            began,
            taken_in: now,
            overdue: None,
            unwanted: None,
            runs: BTreeMap::new(),
            intended: None,
            stored: None,
            is_being_written: false,
            is_unwritten: false,
            last_phase: None,
            ends_by: None,
            was_ready: false,
            made_first: BTreeMap::new(),
            begun_again: BTreeMap::new(),
            round: 0,
            decided: BTreeSet::new(),
            events: BTreeMap::new(),
        }
    }

    /// Takes out a run that was intended and is asked for only now, or never began.
    fn take_intended(&mut self, name: &ContainerName, id: &ContainerId) {
        if let Some(runs) = self.runs.get_mut(name) {
            runs.retain(|run| run.answer != Answer::Unasked || run.id != *id);
        }
    }

    fn runs_of(&self, name: &ContainerName) -> &[Run] {
        self.runs.get(name).map_or(&[], Vec::as_slice)
    }

    fn last_run(&self, name: &ContainerName) -> Option<&Run> {
        self.runs_of(name).last()
    }

    fn find(&self, id: &ContainerId) -> Option<(&ContainerName, &Run)> {
        self.runs.iter().find_map(|(name, runs)| Some((name, runs.iter().find(|run| run.id == *id)?)))
    }

    fn find_mut(&mut self, id: &ContainerId) -> Option<&mut Run> {
        self.runs.values_mut().flatten().find(|run| run.id == *id)
    }

    fn kind(&self, name: &ContainerName) -> Option<ContainerKind> {
        self.spec.all_containers().find(|one| one.name == *name).map(|one| one.kind)
    }

    /// Whether anything of this role has a process.
    fn any_running(&self, kinds: &[ContainerKind]) -> Option<&ContainerName> {
        let mut all = self.spec.all_containers().filter(|one| kinds.contains(&one.kind));
        all.find(|one| self.runs_of(&one.name).iter().any(Run::is_running)).map(|one| &one.name)
    }

    /// What the pod's processes get at least between the beginning of its end and SIGKILL.
    fn grace(&self) -> Duration {
        self.spec.grace.max(Duration::from_secs(1))
    }

    /// The code that counts for the policy: that of the process, or a failure when nobody could see it. Where both would be
    /// right, what was written down first, or shown while it could not be.
    fn code_of(&self, name: &ContainerName, run: &Run) -> Option<u32> {
        let written = self.written_code(name, run).or(run.shown_code);
        match run.end() {
            Some((exit, _)) if !run.may_be_unknown() => Some(exit.code),
            Some((exit, _)) => Some(written.unwrap_or(exit.code)),
            // What was given up ended when somebody said so.
            None if run.process.is_some() && !run.is_lost => written.filter(|_| run.may_be_unknown()),
            // What never had a process ended when somebody said so.
            None => written.or((run.answer == Answer::Refused || run.process.is_some()).then_some(LOST)),
        }
    }

    /// The runs whose end is in the record, or was.
    fn written(&self) -> BTreeSet<ContainerId> {
        self.ended_in(self.believed())
    }

    /// The runs whose end a record tells, or told.
    fn ended_in(&self, record: Option<&PodRecord>) -> BTreeSet<ContainerId> {
        let runs = self.runs.iter().flat_map(|(name, runs)| runs.iter().map(move |run| (name, run)));
        let ended = runs.filter(|(name, run)| {
            let is_last = self.last_run(name).is_some_and(|last| last.id == run.id);
            !is_last || record.is_some_and(|record| code_in(record, name, run).is_some())
        });
        ended.map(|(_, run)| run.id.clone()).collect()
    }

    fn written_code(&self, name: &ContainerName, run: &Run) -> Option<u32> {
        code_in(self.believed()?, name, run)
    }

    /// What cannot be written down is decided all the same.
    fn believed(&self) -> Option<&PodRecord> {
        if self.is_unwritten { self.intended.as_ref() } else { self.stored.as_ref() }
    }
}

fn code_in(record: &PodRecord, name: &ContainerName, run: &Run) -> Option<u32> {
    let record = record.containers.get(name)?;
    let ends = [&record.exit, &record.last_exit];
    ends.into_iter().flatten().find(|end| end.attempt == run.attempt).map(|end| end.exit.code)
}

/// Kills without effect after which a process is removed as it is.
const KILLS_BEFORE_REMOVAL: u32 = 3;

/// What stands for the code of an end that nobody saw.
const LOST: u32 = 137;
/// The same, found after the machine was switched off.
const FORGOTTEN: u32 = 255;

/// Every rule about a node.
pub(crate) const RULES: [&str; 41] = [
    "SIGKILL comes after the stop signal and the grace period",
    "a container is given what was allocated to it",
    "a container is made from its image",
    "a container starts when those before it have begun",
    "a crashing container waits before it runs again",
    "a hook is run when it is its time, once at a time",
    "a pod is forgotten when none of its processes is left",
    "a pod that has ended ended so",
    "a pod's cgroup is enough for what runs in it",
    "a pod's memory limit becomes lower when what it uses was looked at",
    "a probe asks what runs, one question at a time",
    "a probe's verdict is on disk before it is shown",
    "a process is removed only when kills have no effect",
    "a run is on disk before it starts",
    "a signal has a reason",
    "a verdict is on disk before it is shown",
    "all containers begin anew when none of them runs",
    "an ephemeral container runs once",
    "at rest a container has what is allocated to it",
    "at rest a pod has ended when it is over",
    "at rest a pod has what it names for itself",
    "at rest a pod is ready when all of it runs",
    "at rest a resize waits where it does not fit",
    "at rest the phase is right",
    "at rest what is to run runs",
    "init containers and sidecars come first, in order",
    "nothing starts in a pod that ends",
    "phases that end a pod stay",
    "ready and started are what the probes said",
    "restart policy",
    "restarts are counted",
    "restarts are on disk before they are shown",
    "sidecars stop after all others, the last first",
    "signals go to what was started",
    "the intent to stop is on disk before a signal",
    "the intent to stop is recorded before a signal",
    "the record of an end is what happened",
    "the status of an end is what happened",
    "the stop signal waits for the hook before it",
    "what does not end by its stop signal is killed when its time is up",
    "what is shown to run was started",
];

/// Every rule about what a node is in its cluster.
pub(crate) const RULES_OF_CLUSTERS: [&str; 15] = [
    "a patch follows a change and makes one",
    "a pod is deleted when none of its processes is left",
    "a pod that does not fit is rejected, and no other",
    "an event is told once for what happened",
    "at rest each pod of a manifest has its mirror, and nothing else has",
    "at rest the API has what the node shows",
    "at rest what was to be deleted is gone",
    "mirrors are of pods that the API did not give",
    "of one name one pod is here, the first that came",
    "readiness is lost for a reason",
    "requests about a pod wait for each other, and none is sent again",
    "what has ended stays so in the API",
    "what is to be deleted ends when the API said",
    "what the API has of a pod never goes back",
    "who is kept out by a name is told",
];

impl Oracle {
    fn judge(&mut self, rule: &'static str, broken: Option<String>) {
        *self.judged.entry(rule).or_default() += 1;
        self.violations.extend(broken.map(|text| format!("{rule}: {text}")));
    }

    /// The API server is one of the sources.
    pub(crate) fn joins_a_cluster(&mut self) {
        self.is_in_a_cluster = true;
        self.awaits(Source::Api);
    }

    /// The agent that is up has not heard yet what a source wants.
    pub(crate) fn awaits(&mut self, source: Source) {
        self.unheard.insert(source);
    }

    /// The agent has heard what a source wants.
    pub(crate) fn hears(&mut self, source: Source) {
        self.unheard.remove(&source);
    }

    /// All that is wanted now.
    pub(crate) fn desired<'a>(&mut self, pods: impl Iterator<Item = &'a Arc<Pod>>, now: Now) {
        self.wanted = pods.map(|pod| (pod.uid.clone(), Arc::clone(pod))).collect();
        self.wanted_since.retain(|uid, _| self.wanted.contains_key(uid));
        for (uid, pod) in &self.wanted {
            self.wanted_since.entry(uid.clone()).or_insert(now.mono);
            let asked = self.asked.entry(uid.clone()).or_default();
            *asked = asked.max(Requests::of(pod));
        }
        let passed_over = self.passed_over();
        // Before every source has spoken, nobody knows what is not wanted.
        let are_all_heard = self.unheard.is_empty();
        for (uid, account) in &mut self.pods {
            let source = account.spec.source;
            let is_heard = !self.unheard.contains(&source);
            let Some(spec) = self.wanted.get(uid) else {
                // Its own source has another one in its place, which is known at once.
                let has_its_name = |pod: &Arc<Pod>| pod.source == source && pod.name == account.spec.name;
                let is_replaced = is_heard && self.wanted.values().any(has_its_name);
                if !are_all_heard && !is_replaced {
                    continue;
                }
                let spec = Arc::clone(&account.spec);
                account.is_to_end(&spec, now);
                continue;
            };
            if account.unwanted.is_none() {
                account.spec = Arc::clone(spec);
            }
            let is_over = account.is_over_by(spec) && is_heard;
            if is_over || (passed_over.contains(uid) && are_all_heard) {
                account.is_to_end(spec, now);
            }
            for container in spec.all_containers() {
                let runs = account.runs.entry(container.name.clone()).or_default();
                let open = runs.iter_mut().filter(|run| run.is_another(spec, container) && !run.is_told);
                open.for_each(|run| {
                    run.changed.get_or_insert(now.mono);
                    run.waits_for_room |= run.container.hash == container.hash;
                });
            }
        }
    }

    /// The core asks for an effect. It is judged as it is asked: what an executor does with it comes later.
    pub(crate) fn asked(&mut self, effect: &Effect, now: Now) {
        let Effect::Pod { op, pod, act } = effect else { return };
        if let Act::Persist(record) = act {
            self.intended(record, now);
        }
        if !self.pods.contains_key(pod) {
            return;
        }
        match act {
            Act::RunHook(request) => self.hook_asked(pod, *op, request, now),
            Act::GiveUpHook(op) => self.hook_given_up(*op),
            Act::Probe(request) => self.probe_asked(pod, *op, request, now),
            Act::EnsureSandbox(request) => {
                self.up.remove(&request.id);
                self.looks.insert(*op, (pod.clone(), request.id.clone()));
            }
            Act::StartContainer(request) => {
                self.starts.insert(*op, (pod.clone(), request.id.clone()));
                self.start_asked(pod, request, now);
            }
            Act::LookAtTask(request) => {
                self.starts.insert(*op, (pod.clone(), request.id.clone()));
            }
            Act::Signal(request) => {
                self.signal_asked(pod, &request.id, &request.signal, now);
                let run = self.pods.get_mut(pod).and_then(|account| account.find_mut(&request.id));
                let Some(run) = run else { return };
                match request.signal {
                    StopSignal::Stop(_) => {
                        run.term.get_or_insert(now.mono);
                        run.termed = run.termed.max(Termed::Asked);
                    }
                    StopSignal::Kill => run.kills += 1,
                }
            }
            Act::ReadTerminationMessage(request) => {
                let run = self.pods.get_mut(pod).and_then(|account| account.find_mut(&request.id));
                if let Some(run) = run.filter(|run| run.trust == Trust::Taken) {
                    run.trust = Trust::Ending;
                }
            }
            _ => {}
        }
    }

    fn intended(&mut self, record: &PodRecord, now: Now) {
        if !self.pods.contains_key(&record.uid) {
            self.begun(record);
        }
        let account = self.pods.entry(record.uid.clone()).or_insert_with(|| {
            let spec = self.wanted.get(&record.uid).expect("a record of what nobody wants");
            let mut account = Account::new(Arc::clone(spec), now);
            if account.is_over_by(spec) && !self.unheard.contains(&spec.source) {
                account.is_to_end(spec, now);
            }
            account
        });
        account.intended = Some(record.clone());
        account.is_being_written = true;
        account.decide(record);
        for container in record.containers.values() {
            if let Some(run) = account.find_mut(&container.id) {
                run.stopped = container.stopping.map(|stopping| stopping.began);
            }
        }
    }

    /// A record is on disk.
    pub(crate) fn stored(&mut self, record: &PodRecord) {
        if let Some(account) = self.pods.get_mut(&record.uid) {
            account.stored = Some(record.clone());
            let stopping = record.containers.values().filter(|one| one.stopping.is_some());
            for stopping in stopping {
                if let Some(run) = account.find_mut(&stopping.id) {
                    run.meant = Meant::ToStop;
                }
            }
            self.check_record(record);
        }
    }

    /// The wall clock is set. When something ended is told by it, until the agent has that on disk: so its wait may be as much shorter.
    pub(crate) fn clock_stepped(&mut self, by: SignedDuration) {
        for account in self.pods.values_mut() {
            let written = account.ended_in(account.stored.as_ref());
            for run in account.runs.values_mut().flatten() {
                if run.end().is_some() && !written.contains(&run.id) {
                    run.stepped += by;
                    run.ahead = run.ahead.max(Duration::try_from(run.stepped).unwrap_or_default());
                }
            }
        }
    }

    /// Whether a pod was wanted when the agent began and ever since, and nothing kept it out meanwhile.
    pub(crate) fn was_always_wanted(&self, pod: &PodUid) -> bool {
        self.wanted_since.get(pod).is_some_and(|since| *since <= self.agent_since)
    }

    /// Whether the source of a pod does not have it any more.
    pub(crate) fn is_unwanted(&self, pod: &PodUid) -> bool {
        self.pods.get(pod).is_some_and(|account| account.unwanted.is_some())
    }

    /// What is wanted of a pod that is here.
    pub(crate) fn spec_of(&self, pod: &PodUid) -> Option<&Arc<Pod>> {
        self.pods.get(pod).map(|account| &account.spec)
    }

    /// What the agent was told of the last write of a record.
    pub(crate) fn written(&mut self, pod: &PodUid, is_written: bool) {
        if let Some(account) = self.pods.get_mut(pod) {
            account.is_being_written = false;
            account.is_unwritten = !is_written;
        }
    }

    /// The record is gone: nothing of the pod is left, and one that comes back begins anew.
    pub(crate) fn forgotten(&mut self, pod: &PodUid) {
        self.told.forget(pod.clone());
        self.wanted_since.remove(pod);
        let Some(account) = self.pods.remove(pod) else { return };
        let all =
            [ContainerKind::Main, ContainerKind::Init, ContainerKind::Sidecar, ContainerKind::Ephemeral];
        let running = account.any_running(&all).map(|name| format!("{pod}/{name} still runs"));
        self.judge("a pod is forgotten when none of its processes is left", running);
    }
}
