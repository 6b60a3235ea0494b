//! How many effects of a kind run at once, and what an effect holds while anything that it began goes on.
//!
//! A deadline ends an effect's wait, not the thread that a blocking call of it is stuck on. So the place in the lane and
//! the turn at its target belong to the call: they are free when it has returned, however late, and neither the lane nor
//! the target is given to another before.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_core::failure::{Failure, FailureKind};
use jiff::Timestamp;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use super::{
    failure::unknown,
    kinds::{EffectKind, Lane, Target},
};

/// Threads for calls on the kernel (cgroups, namespaces): short, so that more would only wait for the same locks.
const KERNEL: usize = 12;
/// Threads for small files on the disk of the root directory: each is written in no time, or hangs with the disk.
const DISK: usize = 4;
/// Plugin chains: two cores are busy with four; the rest cover those that wait for a daemon.
const NETWORK: usize = 16;
/// Writable layers being made in containerd, which makes them one after another.
const LAYERS: usize = 12;
/// Shims and runtimes being started: beyond a few per core they only slow each other down, and the first pod of a burst
/// should not start last.
const START: usize = 8;
/// How long one of those counts. What takes longer waits for something else than a processor, such as a file of its image that never
/// answers, and slows nobody down.
const START_COUNTS: Duration = Duration::from_secs(10);
/// Resizes: as many as a full node has pods, each of which has one at a time, so that those that hang hold up no other.
const RESIZES: usize = 128;
/// Looks at images: each is a few calls.
const IMAGES: usize = 8;
/// Unpacks: each is busy with a processor and the disk.
const UNPACKS: usize = 4;
/// Pulls: far above what `maxParallelImagePulls` is ever set to.
const PULLS: usize = 256;
/// Ends: as many as a full node has pods, so that a node being drained is drained at once.
const STOP: usize = 128;
/// Signals: as many as a full node has containers, so that none ever waits for another.
const SIGNALS: usize = 1024;
/// Looks: one after another would do, and a few may hang.
const LOOKS: usize = 4;

/// Probes: more than the pods of a full node may ask at once, so that those that hang hold up no other pod.
const PROBES: usize = 4096;
/// Hooks: more than a full node has containers, so that those that hang hold up no other pod.
const HOOKS: usize = 4096;

/// The bounds. Clones share them.
#[derive(Debug, Clone)]
pub struct Lanes {
    semaphores: Arc<[Arc<Semaphore>; 15]>,
    turns: Turns,
}

/// What is being worked on, and since when.
type Turns = Arc<Mutex<BTreeMap<Target, Timestamp>>>;

tokio::task_local! {
    /// What the effect of this task holds.
    static PLACE: Place;
}

/// A place in a lane, until it is dropped or counts no longer.
#[derive(Debug)]
pub(super) struct Permit(
    #[expect(dead_code, reason = "it is held")] Arc<Mutex<Option<OwnedSemaphorePermit>>>,
);

impl Permit {
    fn of(lane: Lane, permit: OwnedSemaphorePermit) -> Self {
        let permit = Arc::new(Mutex::new(Some(permit)));
        if lane == Lane::Start {
            let counts = Arc::downgrade(&permit);
            tokio::spawn(async move {
                sleep(START_COUNTS).await;
                if let Some(permit) = counts.upgrade() {
                    lock(&permit).take();
                }
            });
        }
        Self(permit)
    }
}

/// A place in a lane and a turn at a target, until the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct Place {
    _permit: Option<Arc<Permit>>,
    _turn: Option<Arc<Turn>>,
}

#[derive(Debug)]
struct Turn {
    turns: Turns,
    target: Target,
}

impl Drop for Turn {
    fn drop(&mut self) {
        lock(&self.turns).remove(&self.target);
    }
}

impl Place {
    /// What the effect of this task holds, for a call that may outlive it.
    pub(super) fn of_this_task() -> Option<Self> {
        PLACE.try_with(Clone::clone).ok()
    }
}

impl Default for Lanes {
    fn default() -> Self {
        let bounds = [
            KERNEL, KERNEL, DISK, NETWORK, LAYERS, START, RESIZES, IMAGES, UNPACKS, PULLS, STOP, SIGNALS,
            LOOKS, PROBES, HOOKS,
        ];
        Self {
            semaphores: Arc::new(bounds.map(|bound| Arc::new(Semaphore::new(bound)))),
            turns: Turns::default(),
        }
    }
}

impl Lanes {
    /// Performs `work` in its lane, if it has one, and within its deadline, which includes the wait for a place.
    ///
    /// # Errors
    /// Those of the work; `Unknown` at the deadline; `Transient` when nothing was begun, since no place was free in time or
    /// earlier work on the same target has not ended.
    pub(super) async fn run<T>(
        &self,
        kind: EffectKind,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let seconds = kind.deadline.as_secs();
        let deadline = tokio::time::Instant::now() + kind.deadline;
        let turn = kind.target.map(|target| self.turn(target)).transpose()?;
        let permit = match kind.lane {
            Some(lane) => Some(self.enter(lane, kind.deadline).await?),
            None => None,
        };
        let place = Place { _permit: permit.map(Arc::new), _turn: turn.map(Arc::new) };
        tokio::time::timeout_at(deadline, PLACE.scope(place, work))
            .await
            .unwrap_or_else(|_elapsed| Err(unknown(format!("no end within {seconds} s"))))
    }

    /// Waits for a place.
    pub(super) async fn enter(&self, lane: Lane, within: Duration) -> Result<Permit, Failure> {
        let [
            kernel,
            kernel_ends,
            disk,
            network,
            layers,
            start,
            resizes,
            images,
            unpacks,
            pulls,
            stop,
            signals,
            looks,
            probes,
            hooks,
        ] = &*self.semaphores;
        let semaphore = match lane {
            Lane::Kernel => kernel,
            Lane::KernelEnds => kernel_ends,
            Lane::Disk => disk,
            Lane::Network => network,
            Lane::Layers => layers,
            Lane::Start => start,
            Lane::Resizes => resizes,
            Lane::Images => images,
            Lane::Unpacks => unpacks,
            Lane::Pulls => pulls,
            Lane::Stop => stop,
            Lane::Signals => signals,
            Lane::Looks => looks,
            Lane::Probes => probes,
            Lane::Hooks => hooks,
        };
        match tokio::time::timeout(within, Arc::clone(semaphore).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Permit::of(lane, permit)),
            // It is closed, which nobody does.
            Ok(Err(_)) => Err(unknown("the agent is stopping")),
            Err(_elapsed) => {
                Err(waits(format!("nothing begun: no place free within {} s", within.as_secs())))
            }
        }
    }

    fn turn(&self, target: Target) -> Result<Turn, Failure> {
        let mut turns = lock(&self.turns);
        if let Some(since) = turns.get(&target) {
            let what = target.what;
            return Err(waits(format!("earlier work on the {what} has not ended since {since:.0}")));
        }
        turns.insert(target.clone(), Timestamp::now());
        drop(turns);
        Ok(Turn { turns: Arc::clone(&self.turns), target })
    }
}

fn waits(message: String) -> Failure {
    Failure { kind: FailureKind::Transient, message }
}

fn lock<K>(turns: &Mutex<K>) -> std::sync::MutexGuard<'_, K> {
    // Nothing that can panic is done under it.
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;
    use crate::effects::host::blocking;

    /// A call that is stuck until its sender is dropped.
    fn stuck(gate: Receiver<()>) -> impl Future<Output = Result<(), Failure>> {
        blocking(move || {
            assert!(gate.recv().is_err(), "nothing is ever sent");
            Ok(())
        })
    }

    fn kind(lane: Lane, deadline: Duration) -> EffectKind {
        EffectKind { name: "signal", lane: Some(lane), deadline, target: None }
    }

    /// One that works on something of a pod.
    fn on(pod: usize, lane: Lane, deadline: Duration) -> EffectKind {
        let target = Target { what: "cgroup", of: format!("pod{pod}") };
        EffectKind { target: Some(target), ..kind(lane, deadline) }
    }

    /// As many pods as the lane has places, each with a stuck thread; the locks end with the senders.
    async fn stick(lanes: &Lanes) -> Vec<SyncSender<()>> {
        let mut gates = Vec::new();
        for pod in 0..KERNEL {
            let (gate, receiver) = sync_channel(0);
            gates.push(gate);
            let short = on(pod, Lane::Kernel, Duration::from_millis(20));
            let failure = lanes.run(short, stuck(receiver)).await.unwrap_err();
            assert_eq!(failure.kind, FailureKind::Unknown, "{failure:?}");
        }
        gates
    }

    const ENOUGH: Duration = Duration::from_secs(10);

    /// A pod whose image has a pipe for `/etc/passwd` is one.
    #[tokio::test(start_paused = true)]
    async fn starts_that_hang_hold_up_no_other_start() {
        let lanes = Lanes::default();
        let mut hanging = Vec::new();
        for _ in 0..START {
            hanging.push(lanes.enter(Lane::Start, ENOUGH).await.unwrap());
        }
        let none = lanes.enter(Lane::Start, START_COUNTS / 2).await.unwrap_err();
        assert_eq!(none.kind, FailureKind::Transient, "{none:?}");
        drop(lanes.enter(Lane::Start, START_COUNTS).await.unwrap());
        drop(hanging);
        // One that ends in time gives its place back once.
        let all: Vec<_> =
            futures::future::join_all((0..=START).map(|_| lanes.enter(Lane::Start, START_COUNTS / 2))).await;
        assert_eq!(all.iter().filter(|one| one.is_ok()).count(), START);
    }

    #[tokio::test]
    async fn stuck_pods_block_no_other_lane() {
        let lanes = Lanes::default();
        let gates = stick(&lanes).await;
        let short = on(99, Lane::Kernel, Duration::from_millis(20));
        let failure = lanes.run(short, async { Ok(()) }).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Transient, "stuck threads keep their places: {failure:?}");
        for lane in [
            Lane::KernelEnds,
            Lane::Disk,
            Lane::Network,
            Lane::Layers,
            Lane::Start,
            Lane::Resizes,
            Lane::Images,
            Lane::Unpacks,
            Lane::Pulls,
            Lane::Stop,
            Lane::Signals,
            Lane::Looks,
            Lane::Probes,
        ] {
            lanes.run(on(99, lane, ENOUGH), blocking(|| Ok(()))).await.unwrap();
        }
        drop(gates);
        lanes.run(on(99, Lane::Kernel, ENOUGH), blocking(|| Ok(()))).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_stuck_is_not_begun_again_until_it_has_ended() {
        let lanes = Lanes::default();
        let (gate, receiver) = sync_channel(0);
        let short = on(1, Lane::Stop, Duration::from_millis(20));
        lanes.run(short, stuck(receiver)).await.unwrap_err();
        let again = || lanes.run(on(1, Lane::Stop, ENOUGH), async { Ok(()) });
        let failure = again().await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Transient);
        assert!(
            failure.message.starts_with("earlier work on the cgroup has not ended since "),
            "{failure:?}"
        );
        lanes.run(on(2, Lane::Stop, ENOUGH), async { Ok(()) }).await.unwrap();
        drop(gate);
        while again().await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_wait_for_a_place_counts_against_the_deadline() {
        let lanes = Lanes::default();
        let gates = stick(&lanes).await;
        let began = std::time::Instant::now();
        let waiting = lanes.run(kind(Lane::Kernel, Duration::from_millis(50)), async { Ok(()) });
        waiting.await.unwrap_err();
        assert!(began.elapsed() < ENOUGH, "waited {:?}", began.elapsed());
        drop(gates);
    }

    #[tokio::test]
    async fn signals_never_wait_behind_removals() {
        let lanes = Lanes::default();
        let mut held = Vec::new();
        for _ in 0..STOP {
            held.push(lanes.enter(Lane::Stop, ENOUGH).await.unwrap());
        }
        let kind = EffectKind::of(&signal()).unwrap();
        lanes.run(EffectKind { deadline: ENOUGH, ..kind }, async { Ok(()) }).await.unwrap();
    }

    fn signal() -> berth_core::effect::Effect {
        use berth_core::{
            effect::{Act, Effect},
            id::{ContainerId, OpId, PodUid, SandboxId},
            pod::port::signal::{SignalRequest, StopSignal},
        };
        let request = SignalRequest {
            sandbox: SandboxId::from_known("s"),
            id: ContainerId::from_known("c"),
            signal: StopSignal::Kill,
        };
        Effect::Pod { op: OpId(1), pod: PodUid::new("u"), act: Act::Signal(request) }
    }
}
