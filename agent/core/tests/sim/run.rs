//! The node and the world together, in virtual time.

mod api;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use berth_core::{
    config::{ImageCollection, NodeConfig},
    effect::{Act, Effect, NodeAct},
    event::{Event, Outcome},
    failure::{Failure, FailureKind},
    id::{ContainerId, OpId, PodUid, SandboxId},
    node::Node,
    observation::{Observation, SandboxReport},
    spec::{Pod, Source},
    status::Note,
    time::{Mono, Now},
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    cluster::Cluster,
    log, pods,
    world::{Container, Report, World},
};

/// How often a node is woken while time passes, at most: it sleeps between two things to do, and looks once a minute.
const WAKES_MAX: u32 = 100_000;

/// A node under test.
pub(crate) struct Run {
    pub(crate) node: Node,
    pub(crate) world: World,
    pub(crate) now: Now,
    /// Effects that were asked for and not begun.
    pub(crate) open: VecDeque<Effect>,
    /// Looks that were asked for. They have a queue of their own, so that the lives of seeds stay what they were without them.
    pub(crate) looks: VecDeque<Effect>,
    /// Probes that were asked for, with a queue of their own for the same reason.
    pub(crate) probes: VecDeque<Effect>,
    /// What was asked for to remove images, with a queue of its own for the same reason.
    pub(crate) collections: VecDeque<Effect>,
    /// Writes and removals of records that were asked for and not begun, where they take their time.
    pub(crate) writes: VecDeque<Effect>,
    /// Those that were performed and whose outcome the agent does not know yet.
    pub(crate) written: VecDeque<(Effect, Result<Outcome, Failure>)>,
    /// Whether records take their time to be written.
    pub(crate) are_writes_slow: bool,
    /// Effects that were performed and whose outcome the agent does not know yet.
    pub(crate) finished: VecDeque<(OpId, Result<Outcome, Failure>)>,
    /// What a shim that has gone wrote down of ends, by the effect that is answered with its loss: it is told before.
    ends: BTreeMap<OpId, (SandboxId, Vec<SandboxReport>)>,
    /// Every effect since it was last taken.
    pub(crate) told: Vec<Effect>,
    /// What was read of the runtime, and not heard yet.
    pub(crate) observed: Option<Observation>,
    desired: BTreeMap<Source, Vec<Arc<Pod>>>,
    /// Where the node is one of a cluster.
    pub(crate) cluster: Option<Cluster>,
    /// Its settings.
    config: NodeConfig,
    /// Names of wanted pods that their source cannot read.
    pub(crate) unread: BTreeSet<String>,
    /// Whether the agent that is up has not heard yet what manifests want.
    pub(crate) are_manifests_untold: bool,
    versions: u32,
}

impl Run {
    /// A node that was just switched on.
    pub(crate) fn new() -> Self {
        Self::with(pods::node())
    }

    /// The same with settings of its own.
    pub(crate) fn with(config: NodeConfig) -> Self {
        Self::begin(None, config)
    }

    /// The same with images that are removed when nothing needs them.
    pub(crate) fn with_collection(collection: ImageCollection) -> Self {
        Self::with(NodeConfig { collection: Some(collection), ..pods::node() })
    }

    /// The same in a cluster, which has no pods yet.
    pub(crate) fn in_a_cluster() -> Self {
        let mut run = Self::begin(Some(Cluster::default()), pods::node());
        run.world.oracle.joins_a_cluster();
        run.settle_cluster();
        run
    }

    fn begin(cluster: Option<Cluster>, config: NodeConfig) -> Self {
        log::fail_on_errors();
        let mono = Mono(Duration::from_secs(1000));
        let wall = Timestamp::from_second(1_800_000_000).unwrap();
        let mut run = Self {
            node: new_node(cluster.is_some(), &config),
            world: World::default(),
            now: Now { mono, wall },
            open: VecDeque::new(),
            looks: VecDeque::new(),
            probes: VecDeque::new(),
            collections: VecDeque::new(),
            finished: VecDeque::new(),
            ends: BTreeMap::new(),
            writes: VecDeque::new(),
            written: VecDeque::new(),
            are_writes_slow: false,
            told: Vec::new(),
            observed: None,
            desired: BTreeMap::from([(Source::File, Vec::new())]),
            cluster,
            config,
            unread: BTreeSet::new(),
            are_manifests_untold: false,
            versions: 0,
        };
        run.world.images.insert(berth_core::id::ImageRef::new("busybox:1"));
        run.boot(None);
        run.send_desired();
        run
    }

    fn boot(&mut self, silent: Option<&SandboxId>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.restarted();
        }
        self.tick();
        let mut restored = self.world.restored(self.now);
        if let Some(id) = silent {
            self.world.silence(id, &mut restored.observation, self.now);
        }
        self.handle(Event::Restored(Box::new(restored)));
        self.handle(Event::NetworkReady(Ok(())));
    }

    /// The agent is killed and begins again, and hears first what manifests want. One shim may not answer at first.
    pub(crate) fn restart(&mut self, silent: Option<&SandboxId>) {
        self.restart_before_manifests(silent);
        self.tell_manifests();
    }

    /// The same, and what manifests want is heard later.
    pub(crate) fn restart_before_manifests(&mut self, silent: Option<&SandboxId>) {
        self.open.clear();
        self.looks.clear();
        self.probes.clear();
        self.collections.clear();
        self.finished.clear();
        self.ends.clear();
        self.writes.clear();
        self.written.clear();
        self.observed = None;
        self.world.oracle.restarted(self.now);
        self.world.oracle.awaits(Source::File);
        self.are_manifests_untold = true;
        self.node = new_node(self.cluster.is_some(), &self.config);
        self.boot(silent);
    }

    /// Events of pods that were told for this reason.
    pub(crate) fn notes<'a>(&'a self, reason: &'a str) -> impl Iterator<Item = (&'a PodUid, &'a Note)> {
        self.told.iter().filter_map(move |effect| match effect {
            Effect::Pod { pod, act: Act::Note(note), .. } => {
                Some((pod, note)).filter(|_| note.event.reason == reason)
            }
            Effect::Pod { .. } | Effect::Node { .. } => None,
        })
    }

    /// The agent hears what manifests want, where it has not since it began; whether there was that to hear.
    pub(crate) fn tell_manifests(&mut self) -> bool {
        let are_untold = self.are_manifests_untold;
        if are_untold {
            self.send_desired();
        }
        are_untold
    }

    /// Gives the node an event and begins what must be done at once.
    pub(crate) fn handle(&mut self, event: Event) {
        self.world.oracle.heard(&event);
        self.node.handle(self.now, event);
        self.drain();
    }

    pub(super) fn drain(&mut self) {
        while let Some(effect) = self.node.poll_effect() {
            self.told.push(effect.clone());
            self.world.check_recorded(&effect);
            let now = self.now;
            self.world.judge(|oracle| oracle.asked(&effect, now));
            let is_write = matches!(&effect, Effect::Pod { act: Act::Persist(_) | Act::Forget, .. });
            let is_at_once = matches!(
                &effect,
                Effect::Pod { act: Act::Publish(_) | Act::Withdraw | Act::Note(_) | Act::GiveUpHook(_), .. }
                    | Effect::Node { act: NodeAct::Note(_) | NodeAct::GiveUpPull(_), .. }
            );
            if is_write {
                self.writes.push_back(effect);
                if !self.are_writes_slow {
                    self.finish_writes();
                }
            } else if is_at_once {
                self.tell_cluster(&effect);
                if let Some(outcome) = self.world.perform(&effect, self.now) {
                    self.node.handle(self.now, Event::Done { op: effect.op(), outcome });
                }
            } else if matches!(effect, Effect::Pod { act: Act::Look(_), .. }) {
                self.looks.push_back(effect);
            } else if matches!(effect, Effect::Pod { act: Act::Probe(_), .. }) {
                self.probes.push_back(effect);
            } else if is_of_collection(&effect) {
                self.collections.push_back(effect);
            } else {
                self.open.push_back(effect);
            }
        }
    }

    /// Writes, or removes, the oldest record; whether there was one.
    pub(crate) fn write(&mut self) -> bool {
        let Some(effect) = self.writes.pop_front() else { return false };
        if let Some(outcome) = self.world.perform(&effect, self.now) {
            self.written.push_back((effect, outcome));
        }
        true
    }

    /// Tells what came of the oldest write; whether there was one.
    pub(crate) fn tell_write(&mut self) -> bool {
        let Some((effect, outcome)) = self.written.pop_front() else { return false };
        self.world.told_write(&effect, outcome.is_ok());
        self.node.handle(self.now, Event::Done { op: effect.op(), outcome });
        self.drain();
        true
    }

    /// Every record is written before anything else happens.
    pub(crate) fn finish_writes(&mut self) {
        while self.write() || self.tell_write() {}
    }

    /// Performs an open effect.
    pub(crate) fn perform(&mut self, at: usize) {
        let Some(effect) = self.open.remove(at) else { return };
        if let Some(outcome) = self.world.perform(&effect, self.now) {
            if let (Some(sandbox), true) = (self.world.sandbox_of(&effect), is_gone(&outcome)) {
                let ends = self.world.recorded_ends(&sandbox).collect();
                self.ends.insert(effect.op(), (sandbox, ends));
            }
            self.finished.push_back((effect.op(), outcome));
        }
    }

    /// Performs the oldest look and tells what it found; whether there was one.
    pub(crate) fn look(&mut self) -> bool {
        let Some(effect) = self.looks.pop_front() else { return false };
        if let Some(outcome) = self.world.perform(&effect, self.now) {
            self.handle(Event::Done { op: effect.op(), outcome });
        }
        true
    }

    /// Does what was asked for to remove images, and tells what came of it; whether there was something.
    pub(crate) fn collect(&mut self) -> bool {
        let Some(effect) = self.collections.pop_front() else { return false };
        if let Some(outcome) = self.world.perform(&effect, self.now) {
            self.handle(Event::Done { op: effect.op(), outcome });
        }
        true
    }

    /// Asks the oldest probe and tells what was answered; whether there was one.
    pub(crate) fn probe(&mut self) -> bool {
        let Some(effect) = self.probes.front().cloned() else { return false };
        if let Some(outcome) = self.world.perform(&effect, self.now) {
            self.answer_probe(0, outcome);
        }
        true
    }

    /// Tells what came of a probe.
    pub(crate) fn answer_probe(&mut self, at: usize, outcome: Result<Outcome, Failure>) {
        let Some(effect) = self.probes.remove(at) else { return };
        self.tick();
        let now = self.now;
        self.world.judge(|oracle| oracle.probed(&effect, &outcome, now));
        self.handle(Event::Done { op: effect.op(), outcome });
        self.tick();
    }

    /// Tells the node the outcome of an effect.
    pub(crate) fn deliver(&mut self, at: usize) {
        let Some((op, outcome)) = self.finished.remove(at) else { return };
        let ends = self.ends.remove(&op).filter(|_| is_gone(&outcome));
        if let Some((id, reports)) = ends {
            reports.into_iter().for_each(|report| self.handle(Event::Sandbox { id: id.clone(), report }));
        }
        self.world.oracle.answered(op, &outcome, self.now);
        self.handle(Event::Done { op, outcome });
    }

    /// Does all that can be done without time passing.
    pub(crate) fn settle(&mut self) {
        while self.settle_one() {}
    }

    /// Does one thing, and tells whether there was one to do.
    pub(crate) fn settle_one(&mut self) -> bool {
        self.settle_one_but_probes() || self.probe()
    }

    /// The same, and nobody who was asked answers.
    pub(crate) fn settle_one_but_probes(&mut self) -> bool {
        if !self.finished.is_empty() {
            self.deliver(0);
        } else if !self.open.is_empty() {
            self.perform(0);
        } else if self.world.has_news() {
            self.report();
        } else {
            return self.look() || self.collect();
        }
        true
    }

    /// Goes on until such an effect is asked for; its place among those that are open.
    #[track_caller]
    pub(crate) fn until_asked(&mut self, is_it: impl Fn(&Effect) -> bool) -> usize {
        loop {
            if let Some(at) = self.open.iter().position(&is_it) {
                return at;
            }
            assert!(self.settle_one(), "it is never asked for");
        }
    }

    /// The same, and nobody performs it but who gets it.
    #[track_caller]
    pub(crate) fn take_asked(&mut self, is_it: impl Fn(&Effect) -> bool) -> Effect {
        let at = self.until_asked(is_it);
        self.open.remove(at).unwrap()
    }

    /// Init containers that run end well.
    pub(crate) fn end_init_containers(&mut self) {
        let is_init = |one: &Container| one.is_running() && one.name.as_str().starts_with("init-");
        let init = self.world.containers.iter().filter(|(_, one)| is_init(one));
        let ids: Vec<ContainerId> = init.map(|(id, _)| id.clone()).collect();
        for id in ids {
            self.world.exit(&id, 0, self.now);
        }
    }

    /// Tells the node the oldest report of a shim.
    pub(crate) fn report(&mut self) {
        let Some((id, report)) = self.world.take_report() else { return };
        let report = match report {
            Report::Told(report) => report,
            Report::State => self.read_shim(&id),
        };
        self.handle(Event::Sandbox { id, report });
    }

    /// What a shim answers now. It comes after all that it told before.
    pub(crate) fn read_shim(&mut self, id: &SandboxId) -> SandboxReport {
        self.tick();
        let report = self.world.resync(id, self.now);
        self.tick();
        report
    }

    /// No two things happen at one time where it counts which came first.
    fn tick(&mut self) {
        self.set_clock(self.now.mono + Duration::from_nanos(1));
    }

    /// Lets time pass; the node is woken whenever it asked for it.
    pub(crate) fn advance(&mut self, length: Duration, mut after: impl FnMut(&mut Self)) {
        // A write is short: what waits for one waits no time.
        self.finish_writes();
        let end = self.now.mono + length;
        let mut wakes = 0;
        while let Some(at) = self.node.poll_timeout().filter(|at| *at <= end) {
            wakes += 1;
            assert!(wakes < WAKES_MAX, "the node never sleeps: {}", self.awake());
            self.set_clock(at.max(self.now.mono));
            self.node.handle_timeout(self.now);
            self.drain();
            self.finish_writes();
            after(self);
        }
        self.set_clock(end);
    }

    /// The pods that are to be woken by now.
    fn awake(&self) -> String {
        let pods = self.node.pods().filter(|pod| pod.wake_at().is_some_and(|at| at <= self.now.mono));
        pods.map(|pod| format!("{:#?}\n", pod.life())).collect()
    }

    pub(crate) fn set_clock(&mut self, mono: Mono) {
        self.now.wall += mono.since(self.now.mono);
        self.now.mono = mono;
    }

    /// Somebody sets the wall clock, and nobody is told.
    pub(crate) fn step_clock(&mut self, by: SignedDuration) {
        self.now.wall += by;
        self.world.oracle.clock_stepped(by);
    }

    /// A pod is added to a source, or replaced.
    pub(crate) fn want(&mut self, mut pod: Pod) {
        self.versions += 1;
        pod.manifest = pods::manifest(&pod, self.versions.into());
        let pod = Arc::new(pod);
        self.world.learn(&pod);
        let pods = self.desired.entry(pod.source).or_default();
        pods.retain(|known| known.uid != pod.uid);
        pods.push(pod);
        self.send_desired();
    }

    /// A pod takes the place of those with its name, in one step.
    pub(crate) fn replace(&mut self, pod: Pod) {
        for pods in self.desired.values_mut() {
            pods.retain(|known| known.name != pod.name);
        }
        self.want(pod);
    }

    /// A pod is taken out of its source.
    pub(crate) fn unwant(&mut self, name: &str) {
        self.take_out(name);
        self.send_desired();
    }

    /// A pod is taken out of its source, and nobody hears of it.
    pub(crate) fn take_out(&mut self, name: &str) {
        let server = self.server();
        for (_, pods) in self.desired.iter_mut().filter(|(source, _)| Some(**source) != server) {
            pods.retain(|pod| pod.name.name != name);
        }
    }

    /// All pods that the node was told to be wanted.
    pub(crate) fn all_wanted(&self) -> Vec<Arc<Pod>> {
        self.desired.values().flatten().cloned().collect()
    }

    pub(crate) fn wanted(&self) -> BTreeSet<String> {
        self.of_manifests().map(|pod| pod.name.name.clone()).collect()
    }

    pub(crate) fn spec(&self, name: &str) -> Option<Arc<Pod>> {
        self.of_manifests().find(|pod| pod.name.name == name).cloned()
    }

    /// What is wanted and not by the API server.
    fn of_manifests(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let server = self.server();
        self.desired.iter().filter(move |(source, _)| Some(**source) != server).flat_map(|(_, pods)| pods)
    }

    /// The source that is the model of the API server, where there is one.
    fn server(&self) -> Option<Source> {
        self.cluster.is_some().then_some(Source::Api)
    }

    pub(crate) fn send_desired(&mut self) {
        self.are_manifests_untold = false;
        self.world.oracle.hears(Source::File);
        self.world.oracle.desired(self.desired.values().flatten(), self.now);
        let is_told = self.cluster.as_ref().is_none_or(|cluster| cluster.was_told);
        let server = self.server();
        for (source, mut pods) in self.desired.clone() {
            if source == Source::Api && !is_told {
                continue;
            }
            // What the API server wants is always read whole.
            let is_whole = Some(source) == server || self.unread.is_empty();
            pods.retain(|pod| is_whole || !self.unread.contains(&pod.name.name));
            self.handle(Event::Desired { source, pods, is_whole });
        }
        self.note_sources();
    }

    /// Containerd goes, or comes back.
    pub(crate) fn set_runtime(&mut self, is_down: bool) {
        self.world.runtime_is_down = is_down;
        if is_down {
            self.observed = None;
            return self.handle(Event::RuntimeDown { why: "connection refused".into() });
        }
        self.read_runtime();
        self.hear_runtime();
    }

    /// Containerd is there again, and read; nobody was told yet.
    pub(crate) fn read_runtime(&mut self) {
        self.world.runtime_is_down = false;
        self.tick();
        self.observed = Some(self.world.observation(self.now));
        self.tick();
    }

    /// What was read of the runtime is heard.
    pub(crate) fn hear_runtime(&mut self) {
        if let Some(observation) = self.observed.take() {
            self.handle(Event::RuntimeUp(observation));
        }
    }
}

/// Whether an effect is answered with the loss of its sandbox.
fn is_gone(outcome: &Result<Outcome, Failure>) -> bool {
    matches!(outcome, Err(Failure { kind: FailureKind::SandboxGone, .. }))
}

fn is_of_collection(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Node { act: NodeAct::MeasureImages | NodeAct::ListImages | NodeAct::RemoveImage(_), .. }
    )
}

fn new_node(is_in_a_cluster: bool, config: &NodeConfig) -> Node {
    let mut sources = BTreeSet::from([Source::File]);
    if is_in_a_cluster {
        sources.insert(Source::Api);
    }
    Node::new(config.clone(), sources)
}
