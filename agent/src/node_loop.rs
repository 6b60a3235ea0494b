//! The one loop: an event goes into the core, effects come out.
//!
//! It waits for nothing but the next event. Records are written and removed as their effects come, in memory file systems
//! that never wait, and their outcomes are told at once; everything else that takes time runs in tasks, each of which
//! reports exactly one event (invariants 2, 6 and 8).

mod facts;
mod turns;

use std::{sync::Arc, time::Duration};

use berth_core::{
    effect::{Act, Effect, NodeAct},
    event::{Event, Outcome},
    failure::{Failure, FailureKind},
    id::OpId,
    node::Node,
    time::Mono,
};
use jiff::Timestamp;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use self::facts::Facts;
pub use self::turns::Turns;
use crate::{
    causes::with_causes,
    clock,
    cluster::{Sinks, node::Notes},
    effects::{self, Host},
    store::{Store, StoreError},
    view::View,
};

/// Events that may wait for the loop. Effects wait with their outcome when it is full, so it only has to cover a burst:
/// every container of a full node ending at once.
pub const EVENTS_MAX: usize = 1024;

/// How old what was read of the node may be where an outcome is all that has come: what it waited for may have taken hours.
const FACTS_KEPT: Duration = Duration::from_secs(5);

/// The loop and what it owns.
#[derive(Debug)]
pub struct NodeLoop {
    node: Node,
    host: Arc<Host>,
    store: Store,
    view: View,
    /// Who tells the API server.
    sinks: Option<Sinks>,
    notes: Notes,
    /// Whether what changes on the node could be read when it was last looked at.
    facts: Option<Facts>,
    looked_at: Option<Instant>,
    reader: facts::Reader,
    turns: Turns,
    /// When the turn began that lasts.
    turn_began: Option<Mono>,
    sender: mpsc::Sender<Event>,
}

impl NodeLoop {
    /// A loop whose effects report to `sender`.
    #[must_use]
    pub fn new(
        node: Node,
        host: Arc<Host>,
        store: Store,
        view: View,
        sinks: Option<Sinks>,
        sender: mpsc::Sender<Event>,
    ) -> Self {
        let reader = facts::Reader::of(host.config.live.clone());
        let recorder = sinks.as_ref().map(|sinks| sinks.recorder.clone());
        let notes = Notes::of(&host.config.node.name, recorder);
        Self {
            node,
            host,
            store,
            view,
            sinks,
            notes,
            facts: None,
            looked_at: None,
            reader,
            turns: Turns::default(),
            turn_began: None,
            sender,
        }
    }

    /// Where it tells since when it is busy.
    #[must_use]
    pub fn turns(&self) -> Turns {
        self.turns.clone()
    }

    /// Runs until it is cancelled. Pods go on.
    pub async fn run(mut self, mut events: mpsc::Receiver<Event>, cancel: CancellationToken) {
        let mut are_sources_told = false;
        loop {
            while let Some(effect) = self.node.poll_effect() {
                self.begin(effect);
            }
            // After the pods of the last one, whichever that is: a mirror of no pod of the node is nobody's from then on.
            if !are_sources_told
                && let Some(heard) = self.node.sources_have_spoken()
                && let Some(sinks) = &self.sinks
            {
                sinks.reports.sources_have_spoken(heard);
                are_sources_told = true;
            }
            // What was begun has its turn, and what the runtime, shims and plugins have answered is read, before the next event: however
            // many events wait, an effect goes on after one of them.
            tokio::task::yield_now().await;
            self.end_turn();
            let wake = self.node.poll_timeout().map(|at| Instant::now() + at.since(clock::mono()));
            tokio::select! {
                // Cancel safe: an event that is not taken stays in the channel.
                event = events.recv() => match event {
                    Some(event) => {
                        self.begin_turn(clock::mono());
                        let is_fresh = self.looked_at.is_some_and(|at| at.elapsed() < FACTS_KEPT);
                        if !(is_fresh && matches!(event, Event::Done { .. })) {
                            self.look_at_node();
                        }
                        self.take(event);
                    }
                    None => return,
                },
                // Cancel safe: the deadline is computed anew each time.
                () = until(wake) => {
                    let now = clock::now();
                    self.begin_turn(now.mono);
                    if self.node.asks_for_facts(now.mono) {
                        self.look_at_node();
                    }
                    self.node.handle_timeout(now);
                }
                // Cancel safe by contract.
                () = cancel.cancelled() => return,
            }
        }
    }

    fn begin_turn(&mut self, now: Mono) {
        self.turns.begin(now);
        self.turn_began = Some(now);
        self.host.metrics.turn_begins(now);
    }

    /// The loop waits for what happens next.
    fn end_turn(&mut self) {
        self.host.metrics.resizes(&self.node.take_measured());
        if let Some(since) = self.turn_began.take() {
            self.host.metrics.turn_ended(clock::mono().since(since));
        }
        self.turns.end();
    }

    /// Gives an event to the core. What pods need of the API server as a whole is asked for before they begin.
    fn take(&mut self, event: Event) {
        tracing::trace!(?event, "event");
        let told = if let Event::Desired { source, .. } = &event { Some(*source) } else { None };
        self.node.handle(clock::now(), event);
        if let Some(source) = told {
            self.host.objects.expect(source, self.node.to_start(source));
        }
    }

    /// Tells the core what changed on the node since the last look; what cannot be read stays as it was.
    fn look_at_node(&mut self) {
        let facts = self.reader.read();
        self.looked_at = Some(Instant::now());
        if self.facts.as_ref() == Some(&facts) {
            return;
        }
        match &facts {
            Ok(facts) => self.node.handle(clock::now(), Event::NodeFacts(facts.clone())),
            Err(why) => tracing::warn!(why, "pods are prepared from what the node was before"),
        }
        self.facts = Some(facts);
    }

    fn begin(&mut self, effect: Effect) {
        let (op, pod, act) = match effect {
            Effect::Node { act: NodeAct::Note(note), .. } => return self.notes.tell(note),
            Effect::Node { act: NodeAct::GiveUpPull(pull), .. } => return self.host.unwanted.give_up(pull),
            Effect::Node { .. } => return effects::start(&self.host, effect, &self.sender),
            Effect::Pod { op, pod, act } => (op, pod, act),
        };
        match act {
            Act::Persist(record) => {
                self.host.failpoint.reach("persist.before");
                let saved = self.store.save(&record);
                self.host.failpoint.reach("persist.after");
                self.answer(op, saved.map_err(|error| failure(&error)));
            }
            Act::Forget => {
                self.host.failpoint.reach("forget.before");
                let removed = self.store.remove(&pod);
                self.host.failpoint.reach("forget.after");
                self.host.objects.release(&pod);
                self.answer(op, removed.map_err(|error| failure(&error)));
            }
            Act::Publish(published) => {
                // Nothing is left that an object is for (`SyncTerminatedPod` of `pkg/kubelet/kubelet.go`).
                if !published.remains.is_more_than_directories() {
                    self.host.objects.release(&pod);
                }
                if let Some(sinks) = &self.sinks {
                    sinks.publish(&published);
                }
                self.host.metrics.publishes(&published, Timestamp::now());
                let is_over = published.status.phase.is_final();
                self.view.publish(published);
                if is_over {
                    self.host.metrics.unprobed(&pod);
                }
                self.answer(op, Ok(()));
            }
            Act::Withdraw => {
                if let Some(sinks) = &self.sinks {
                    sinks.withdraw(&pod);
                }
                self.host.metrics.withdrawn(&pod, Timestamp::now());
                self.view.remove(&pod);
                self.host.metrics.unprobed(&pod);
            }
            Act::Note(note) => {
                let event = &note.event;
                tracing::info!(%pod, reason = %event.reason, message = event.message, "pod event");
                if let Some(sinks) = &self.sinks {
                    sinks.note(&pod, &note);
                }
                self.host.metrics.noted(&pod, event, Timestamp::now());
                self.view.note(&pod, note.event);
            }
            Act::GiveUpHook(hook) => self.host.hooks.give_up(hook),
            act => effects::start(&self.host, Effect::Pod { op, pod, act }, &self.sender),
        }
    }

    /// Tells the outcome of an effect that the loop performed itself, before anything else happens.
    fn answer(&mut self, op: OpId, result: Result<(), Failure>) {
        let outcome = result.map(|()| Outcome::Done);
        self.node.handle(clock::now(), Event::Done { op, outcome });
    }
}

fn failure(error: &StoreError) -> Failure {
    Failure { kind: FailureKind::Transient, message: with_causes(error) }
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
