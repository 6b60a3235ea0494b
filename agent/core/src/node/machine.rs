//! The machine of the node: takes events, hands out effects.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    admission::Occupied,
    collection::Collection,
    index::Index,
    info::{Doubts, NodeInfo},
    inherited::Inherited,
    looks::Looks,
    orphans::Orphans,
    probes::Probes,
    qos::Qos,
    resizes::Resizes,
    sources::{Sources, SourcesHaveSpoken},
};
use crate::{
    cgroup,
    config::NodeConfig,
    effect::{Act, Effect},
    event::{Event, Outcome, Restored},
    failure::Failure,
    id::{OpId, PodUid, SandboxId},
    metrics::ResizeMeasure,
    observation::{Observation, SandboxReport},
    ops::{Ops, Purpose},
    pod::{PodMachine, Shared, fit, outcome::Slot, plan::Network, pulls::Pulls},
    spec::{ObjectKey, Source},
    status::PodStatus,
    time::{Mono, Now},
};

/// The node.
///
/// The shell calls [`handle`](Self::handle) with every event, performs what [`poll_effect`](Self::poll_effect) hands out,
/// and calls [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) has come.
#[derive(Debug)]
pub struct Node {
    pub(super) config: NodeConfig,
    pub(super) boot: Boot,
    pub(super) sources: Sources,
    pub(super) refused: BTreeSet<PodUid>,
    /// What pods are admitted by.
    pub(super) info: NodeInfo,
    /// Pods that wait for the node to be read anew.
    pub(super) doubts: Doubts,
    /// What is taken, as of this comparison.
    pub(super) occupied: Option<Occupied>,
    /// Whether a pod waits for others to be gone, which give way to it.
    pub(super) has_waiting: bool,
    /// Pods of an earlier run of the agent that no source has given since.
    pub(super) not_given: BTreeSet<PodUid>,
    /// Whether pods may be wanted that are not here, or the other way round.
    pub(super) is_uncompared: bool,
    /// Resizes that wait for their turn or for room.
    pub(super) resizes: Resizes,
    pub(super) pods: BTreeMap<PodUid, PodMachine>,
    pub(super) index: Index,
    pub(super) looks: Looks,
    pub(super) probes: Probes,
    pub(super) orphans: Orphans,
    pub(super) network: Network,
    pub(super) pulls: Pulls,
    pub(super) collection: Collection,
    pub(super) qos: Qos,
    pub(super) ops: Ops,
    pub(super) effects: VecDeque<Effect>,
    /// What was measured since somebody asked.
    measured: Vec<ResizeMeasure>,
}

/// How far the node is with what an earlier run of the agent left.
#[derive(Debug)]
pub(super) enum Boot {
    /// Waits for what was found.
    Waiting,
    /// What was found is adopted by pods that are wanted, until every source was read whole.
    Adopting(Box<Inherited>),
    /// What nobody wants was taken in as orphans.
    Done,
}

impl Node {
    /// A node that gets its pods from `sources`. Nothing that it does not know is removed before each of them was read
    /// whole.
    #[must_use]
    pub fn new(config: NodeConfig, sources: BTreeSet<Source>) -> Self {
        let (name, labels) = (config.name.clone(), config.labels.clone());
        let extended = config.allocatable.extended.clone();
        let info = NodeInfo { name, labels, extended, ..NodeInfo::default() };
        Self {
            pulls: Pulls::new(config.pulls),
            collection: Collection::new(config.collection),
            looks: Looks::every(config.sync_frequency),
            config,
            boot: Boot::Waiting,
            sources: Sources::new(sources),
            refused: BTreeSet::new(),
            info,
            doubts: Doubts::default(),
            occupied: None,
            has_waiting: false,
            not_given: BTreeSet::new(),
            is_uncompared: false,
            resizes: Resizes::default(),
            pods: BTreeMap::new(),
            index: Index::default(),
            probes: Probes::default(),
            orphans: Orphans::default(),
            network: Network::Unknown,
            qos: Qos::Unset,
            ops: Ops::default(),
            effects: VecDeque::new(),
            measured: Vec::new(),
        }
    }

    /// Takes an event. What follows from it is handed out by [`poll_effect`](Self::poll_effect).
    pub fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::Restored(restored) => self.restore(*restored, now),
            Event::Desired { source, pods, is_whole } => {
                self.sources.set(source, pods, is_whole);
                self.is_uncompared = true;
            }
            Event::RuntimeUp(observation) => self.observe(observation, now),
            Event::RuntimeDown { why } => tracing::warn!(why, "containerd is away"),
            Event::NodeFacts(mut facts) => {
                if !self.info.ips.is_empty() {
                    facts.ips.clone_from(&self.info.ips);
                }
                self.resizes.room_has_changed();
                if self.config.take(facts) {
                    self.advance_all(now);
                }
            }
            Event::NodeInfo(info) => self.take_info(info, now),
            Event::NetworkReady(ready) => self.set_network(ready, now),
            Event::NetworkUnheard => self.network_unheard(now),
            Event::ObjectChanged { object, pods } => self.object_changed(&object, &pods, now),
            Event::PullSecretsMissing { image, names } => self.pull_secrets_missing(&image, &names, now),
            Event::Sandbox { id, report } => self.report(&id, report, now),
            Event::Done { op, outcome } => self.settle(op, outcome, now),
        }
        self.reconcile(now);
        self.judge_resizes(now);
        self.poll_shared(now);
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What was measured since this was asked last.
    pub fn take_measured(&mut self) -> Vec<ResizeMeasure> {
        std::mem::take(&mut self.measured)
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        let quiet = [self.looks.poll_timeout(), self.probes.poll_timeout(), self.collection.poll_timeout()];
        self.next_work().into_iter().chain(quiet.into_iter().flatten()).min()
    }

    /// Whether something is to be done at a moment for which it counts what the node is. A look at a pod changes nothing, nor
    /// does a probe, nor how full a disk is.
    #[must_use]
    pub fn asks_for_facts(&self, now: Mono) -> bool {
        self.next_work().is_some_and(|at| at <= now)
    }

    fn next_work(&self) -> Option<Mono> {
        let (pulls, qos) = (self.pulls.poll_timeout(), self.qos.poll_timeout());
        let all = [self.index.next_wake(), pulls, qos, self.orphans.poll_timeout()];
        all.into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Now) {
        for uid in self.index.due(now.mono) {
            self.advance(&uid, now);
        }
        self.ask_probes(now);
        for uid in self.looks.take_due(now.mono) {
            self.look(&uid, now);
        }
        self.reconcile(now);
        self.judge_resizes(now);
        self.poll_shared(now);
    }

    /// Whether every source of pods has told what it wants.
    #[must_use]
    pub fn sources_have_spoken(&self) -> Option<SourcesHaveSpoken> {
        self.sources.have_spoken().then_some(SourcesHaveSpoken(()))
    }

    /// The status of a pod that was published last.
    #[must_use]
    pub fn status(&self, uid: &PodUid) -> Option<&Arc<PodStatus>> {
        self.pods.get(uid)?.status()
    }

    /// The pods that are on the node, those that are being removed among them.
    pub fn pods(&self) -> impl Iterator<Item = &PodMachine> {
        self.pods.values()
    }

    fn restore(&mut self, restored: Restored, now: Now) {
        match self.boot {
            Boot::Waiting => {}
            Boot::Adopting(_) | Boot::Done => {
                tracing::error!("restored twice: ignored");
                return;
            }
        }
        for (record, pod) in restored.pods {
            let uid = record.uid.clone();
            self.not_given.insert(uid.clone());
            let pod = PodMachine::restored(record, pod, &restored.observation, now);
            self.pods.insert(uid, pod);
        }
        for (record, pod) in restored.ended {
            let uid = record.uid.clone();
            let pod = PodMachine::ended_before(record, pod, &restored.observation, now);
            self.not_given.insert(uid.clone());
            self.pods.entry(uid).or_insert(pod);
        }
        let orphans = restored.orphans.into_iter().collect();
        self.boot = Boot::Adopting(Box::new(Inherited::new(restored.observation, orphans)));
        self.collection.begin(now.mono);
        self.is_uncompared = true;
        self.advance_all(now);
    }

    fn observe(&mut self, observation: Observation, now: Now) {
        for pod in self.pods.values_mut() {
            pod.observe(&observation, now);
        }
        self.orphans.runtime_is_up(now.mono);
        match &mut self.boot {
            Boot::Waiting => {}
            Boot::Adopting(inherited) => inherited.read(observation),
            Boot::Done => {
                let pods = &self.pods;
                self.orphans.collect(&observation, &BTreeSet::new(), |uid| pods.contains_key(uid));
            }
        }
        self.advance_all(now);
    }

    fn set_network(&mut self, ready: Result<(), String>, now: Now) {
        self.network = match ready {
            Ok(()) => Network::Ready,
            Err(why) => Network::NotReady(why),
        };
        self.advance_all(now);
    }

    /// What was told counts on.
    fn network_unheard(&mut self, now: Now) {
        if self.network == Network::Unknown {
            self.network = Network::Unheard;
            self.advance_all(now);
        }
    }

    fn object_changed(&mut self, object: &ObjectKey, pods: &[PodUid], now: Now) {
        for uid in pods {
            if let Some(pod) = self.pods.get_mut(uid) {
                pod.object_changed(object, now.mono);
                self.advance(uid, now);
            }
        }
    }

    fn report(&mut self, id: &SandboxId, report: SandboxReport, now: Now) {
        let Some(uid) = self.index.owner(id).cloned() else { return };
        if let Some(pod) = self.pods.get_mut(&uid) {
            pod.report(id, report, now);
            self.advance(&uid, now);
        }
    }

    fn settle(&mut self, op: OpId, result: Result<Outcome, Failure>, now: Now) {
        let Some(purpose) = self.ops.close(op) else { return };
        let result = result.map_err(|Failure { kind, message }| Failure::new(kind, message));
        match purpose {
            Purpose::Pod { uid, slot: Slot::Probe(name, kind), .. } => {
                self.probed(&uid, op, (name, kind), result, now);
            }
            Purpose::Pod { uid, slot, tries } => {
                let is_start = matches!(slot, Slot::Start(_));
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.settle(op, slot, tries, result, now);
                    self.advance(&uid, now);
                }
                if is_start {
                    self.ask_due_probes_of(&uid, now);
                }
            }
            Purpose::Orphan { uid, orphan, tries } => {
                self.orphans.settle(&uid, &orphan, tries, result, now.mono);
                self.is_uncompared = true;
            }
            Purpose::OrphanShim { uid, sandbox, tries } => {
                self.orphans.shim_killed(&uid, sandbox, tries, result, now.mono);
            }
            Purpose::Qos { tries } => self.qos.settle(tries, result, now.mono),
            Purpose::NodeObject => self.node_object_read(result, now),
            Purpose::Inspect(image) => self.inspected(&image, fit::image(result), now),
            Purpose::Pull(image) => self.pulled(&image, fit::image(result), now),
            Purpose::MeasureImages => self.collection.measured(result, now.mono),
            Purpose::ListImages => self.collection.listed(result, now),
            Purpose::RemoveImage => self.collection.removed(result, now.mono),
        }
    }

    pub(super) fn advance_all(&mut self, now: Now) {
        let all: Vec<PodUid> = self.pods.keys().cloned().collect();
        for uid in all {
            self.advance(&uid, now);
        }
    }

    fn look(&mut self, uid: &PodUid, now: Now) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.begin_look(&self.config, &mut self.ops);
            self.advance(uid, now);
        }
    }

    pub(super) fn advance(&mut self, uid: &PodUid, now: Now) {
        self.give_ids(uid);
        self.give_level(uid);
        let Some(pod) = self.pods.get_mut(uid) else { return };
        let mut shared = Shared {
            config: &self.config,
            network: &self.network,
            pulls: &mut self.pulls,
            ops: &mut self.ops,
            effects: &mut self.effects,
        };
        pod.advance(&mut shared, now);
        self.measured.append(&mut pod.measured);
        if pod.is_forgotten() {
            if let Boot::Adopting(inherited) = &mut self.boot {
                inherited.forget(&pod.life().record, now.mono);
            }
            self.pods.remove(uid);
            self.index.remove(uid);
            self.looks.remove(uid);
            self.probes.set(uid, None);
            self.not_given.remove(uid);
            self.resizes.gone(uid);
            self.effects.push_back(withdraw(&mut self.ops, uid.clone()));
            self.is_uncompared = true;
        } else {
            self.is_uncompared |= self.has_waiting && !pod.life().remains().is_more_than_directories();
            self.resizes.follow(pod);
            self.index.set(&self.config, pod);
            self.looks.add(uid, now.mono);
            self.probes.set(uid, pod.probe_at());
        }
    }

    /// Begins what pods share: images, QoS cgroups, orphans.
    fn poll_shared(&mut self, now: Now) {
        self.collect_images(now);
        while let Some(effect) = self.pulls.poll_effect(&mut self.ops, now.mono) {
            self.effects.push_back(effect);
        }
        while let Some(effect) = self.orphans.poll_effect(&mut self.ops, now.mono) {
            self.effects.push_back(effect);
        }
        self.effects.extend(self.doubts.poll_effect(&mut self.ops));
        match self.boot {
            Boot::Waiting => return,
            Boot::Adopting(_) | Boot::Done => {}
        }
        let wanted = cgroup::qos_values(&self.config, self.index.qos());
        self.effects.extend(self.qos.poll_effect(wanted, &mut self.ops, now.mono));
    }
}

pub(super) fn withdraw(ops: &mut Ops, pod: PodUid) -> Effect {
    Effect::Pod { op: ops.number(), pod, act: Act::Withdraw }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::fixtures;

    #[test]
    fn what_was_told_of_the_network_outweighs_that_nothing_is_heard() {
        let ready = || Event::NetworkReady(Ok(()));
        let unready = || Event::NetworkReady(Err("no".to_owned()));
        let no = Network::NotReady("no".to_owned());
        let now = Now { mono: Mono(Duration::from_secs(1000)), wall: Timestamp::UNIX_EPOCH };
        for (events, network) in [
            (vec![], Network::Unknown),
            (vec![Event::NetworkUnheard], Network::Unheard),
            (vec![Event::NetworkUnheard, ready()], Network::Ready),
            (vec![Event::NetworkUnheard, unready()], no.clone()),
            (vec![ready(), Event::NetworkUnheard], Network::Ready),
            (vec![unready(), Event::NetworkUnheard], no),
        ] {
            let mut node = Node::new(fixtures::node(), BTreeSet::from([Source::File]));
            node.handle(now, Event::Restored(Box::default()));
            events.into_iter().for_each(|event| node.handle(now, event));
            assert_eq!(node.network, network);
        }
    }
}
