//! The one loop: an event goes into the core, effects come out.
//!
//! It waits for nothing but the next event. Records are written as their effects come, before what follows them begins;
//! everything else that takes time runs in tasks, each of which reports exactly one event (invariants 2, 6 and 8).

use std::{collections::BTreeMap, sync::Arc};

use berth_core::{
    effect::{Act, Effect},
    event::{Event, Failure, FailureKind},
    id::PodUid,
    node::Node,
    spec::Pod,
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    chain::chain,
    clock,
    effects::{self, Host},
    store::{Store, StoreError},
    view::View,
};

/// Events that may wait for the loop. Effects wait with their outcome when it is full, so it only has to cover a burst:
/// every container of a full node ending at once.
pub const EVENTS_MAX: usize = 1024;

/// The loop and what it owns.
#[derive(Debug)]
pub struct NodeLoop {
    node: Node,
    host: Arc<Host>,
    store: Store,
    view: View,
    /// The pods that were wanted, to be shown with their status.
    pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Pods whose record could not be written: nothing is done for them until it can.
    unrecorded: BTreeMap<PodUid, String>,
    sender: mpsc::Sender<Event>,
}

impl NodeLoop {
    /// A loop whose effects report to `sender`.
    #[must_use]
    pub fn new(node: Node, host: Arc<Host>, store: Store, view: View, sender: mpsc::Sender<Event>) -> Self {
        Self { node, host, store, view, pods: BTreeMap::new(), unrecorded: BTreeMap::new(), sender }
    }

    /// Runs until it is cancelled. Pods go on.
    pub async fn run(mut self, mut events: mpsc::Receiver<Event>, cancel: CancellationToken) {
        loop {
            while let Some(effect) = self.node.poll_effect() {
                self.begin(effect);
            }
            let wake = self.node.poll_timeout().map(|at| Instant::now() + at.since(clock::mono()));
            tokio::select! {
                // Cancel safe: an event that is not taken stays in the channel.
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                // Cancel safe: the deadline is computed anew each time.
                () = until(wake) => self.node.handle_timeout(clock::now()),
                // Cancel safe by contract.
                () = cancel.cancelled() => return,
            }
        }
    }

    fn take(&mut self, event: Event) {
        match &event {
            Event::Restored(restored) => self.know(restored.pods.iter().map(|(_, pod)| pod)),
            Event::Desired { pods, .. } => self.know(pods),
            Event::RuntimeUp(_)
            | Event::RuntimeDown { .. }
            | Event::NetworkReady(_)
            | Event::Sandbox { .. }
            | Event::Done { .. } => {}
        }
        tracing::trace!(?event, "event");
        self.node.handle(clock::now(), event);
    }

    fn know<'a>(&mut self, pods: impl IntoIterator<Item = &'a Arc<Pod>>) {
        self.pods.extend(pods.into_iter().map(|pod| (pod.uid.clone(), Arc::clone(pod))));
    }

    fn begin(&mut self, effect: Effect) {
        let Effect::Pod { op, pod, act } = effect else {
            return effects::start(&self.host, effect, &self.sender);
        };
        match act {
            Act::Persist(record) => {
                self.host.failpoint.reach("persist.before");
                let saved = self.store.save(&record);
                self.recorded(&pod, saved);
                self.host.failpoint.reach("persist.after");
            }
            Act::Forget => {
                let removed = self.store.remove(&pod);
                self.recorded(&pod, removed);
                self.view.remove(&pod);
                self.pods.remove(&pod);
            }
            Act::Publish(status) => {
                if let Some(spec) = self.pods.get(&pod) {
                    self.view.publish(Arc::clone(spec), status);
                }
            }
            Act::Note(event) => {
                tracing::info!(%pod, reason = event.reason, message = event.message, "pod event");
                self.view.note(&pod, event);
            }
            act => match self.unrecorded.get(&pod) {
                None => {
                    if let Act::EnsureSandbox(request) = &act {
                        self.view.set_sandbox(&pod, request.id.clone());
                    }
                    effects::start(&self.host, Effect::Pod { op, pod, act }, &self.sender);
                }
                Some(why) => {
                    let failure = Failure { kind: FailureKind::Transient, message: why.clone() };
                    self.node.handle(clock::now(), Event::Done { op, outcome: Err(failure) });
                }
            },
        }
    }

    fn recorded(&mut self, pod: &PodUid, result: Result<(), StoreError>) {
        match result {
            Ok(()) => drop(self.unrecorded.remove(pod)),
            Err(error) => {
                let why = chain(&error);
                tracing::error!(%pod, why, "the record of a pod could not be written");
                self.unrecorded.insert(pod.clone(), why);
            }
        }
    }
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
