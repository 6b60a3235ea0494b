//! One life: everything that can happen, in any order.

use std::{collections::BTreeMap, time::Duration};

use berth_core::{
    effect::{Act, Effect},
    event::Event,
    failure::FailureKind,
    id::{ContainerId, ImageRef},
    observation::ObservedTask,
    pod::port::{
        signal::{SignalRequest, StopSignal},
        start_failure::{Answer, Call, Sandbox},
    },
    spec::Pod,
    time::Mono,
};

use super::{FOUND, FOUND_IN_A_CLUSTER, NAMES, Place, STEPS, WORK_STEPS, dice::Dice, images};
use crate::{
    run::Run,
    world::{Container, Disk, Manner, failure, not_started},
};

/// How UIDs begin that nobody knows.
pub(super) const STRAY: &str = "stray-";

pub(super) struct Chaos {
    pub(super) seed: u64,
    pub(super) dice: Dice,
    pub(super) behind: Dice,
    pub(super) health: Dice,
    pub(super) cluster: Dice,
    pub(super) clock: Dice,
    pub(super) debugging: Dice,
    /// By which images come and go, where they are removed.
    pub(super) images: Option<Dice>,
    /// By which containers have hooks. Lives that found something once are what they were.
    pub(super) hooks: Option<Dice>,
    /// By which ends call for all containers to begin anew. Lives that found something once are what they were.
    pub(super) together: Option<Dice>,
    /// By which resources change. Lives that found something once are what they were.
    pub(super) resizes: Option<Dice>,
    /// By which pods name resources for themselves. Lives that found something once are what they were.
    pub(super) wholes: Option<Dice>,
    /// By which sources speak in another order after a restart. Lives that found something once are what they were.
    pub(super) order: Option<Dice>,
    pub(super) run: Run,
    /// Whether nothing fails or ends by itself.
    pub(super) is_calm: bool,
    /// Whether every effect is printed.
    pub(super) is_told: bool,
    pub(super) versions: u32,
    /// The last pod of each name: it may come back under the same UID.
    pub(super) known: BTreeMap<&'static str, Pod>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// When something was last asked for that is more than a look.
    pub(super) asked_at: Mono,
    /// How often the API server was asked for something.
    pub(super) requests: u64,
}

impl Chaos {
    pub(super) fn new(seed: u64, place: Place) -> Self {
        // In a third of the lives; those that found something once are what they were.
        let has_collection = place == Place::Alone && seed.is_multiple_of(3) && !FOUND.contains(&seed);
        let mut run = match place {
            Place::Alone if has_collection => Run::with_collection(images::settings()),
            Place::Alone => Run::new(),
            Place::Cluster => Run::in_a_cluster(),
        };
        run.world.registry.extend(["busybox:1", "pulled:1"].map(ImageRef::new));
        let found = match place {
            Place::Alone => &FOUND[..],
            Place::Cluster => &FOUND_IN_A_CLUSTER[..],
        };
        let has_an_order = place == Place::Cluster && !FOUND_IN_A_CLUSTER.contains(&seed);
        Self {
            seed,
            dice: Dice(seed),
            behind: Dice(!seed),
            health: Dice(seed.rotate_left(32)),
            cluster: Dice(!seed.rotate_left(32)),
            clock: Dice(seed.rotate_left(16)),
            debugging: Dice(!seed.rotate_left(16)),
            images: has_collection.then(|| Dice(seed.rotate_left(8))),
            hooks: (!found.contains(&seed)).then(|| Dice(!seed.rotate_left(48))),
            together: (!found.contains(&seed)).then(|| Dice(!seed.rotate_left(8))),
            resizes: (place == Place::Alone && !has_collection && !found.contains(&seed))
                .then(|| Dice(seed.rotate_left(40))),
            wholes: (place == Place::Alone && !has_collection && !found.contains(&seed))
                .then(|| Dice(!seed.rotate_left(40))),
            order: has_an_order.then(|| Dice(seed.rotate_left(48))),
            run,
            is_calm: false,
            is_told: false,
            versions: 0,
            known: BTreeMap::new(),
            counts: BTreeMap::new(),
            asked_at: Mono::default(),
            requests: 0,
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Plays it; what happened how often, and which rules were asked.
    pub(super) fn play(mut self) -> impl Iterator<Item = (&'static str, u64)> {
        for _ in 0..STEPS {
            self.step();
            self.check();
        }
        self.rest();
        self.check_arrival();
        self.check_restart_changes_nothing();
        // A pod that goes last may have a shim that never answers.
        if self.dice.is_one_in(2) {
            self.fall_silent();
        }
        self.end_all();
        self.rest();
        self.check_empty();
        self.counts.insert("sweeps", self.run.world.sweeps);
        self.counts.insert("images removed", self.run.world.images_removed);
        self.counts.insert("images mounted", self.run.world.images_mounted);
        self.counts.into_iter().chain(self.run.world.oracle.judged)
    }

    /// Nothing is wanted any more. The agent may be killed while pods end.
    fn end_all(&mut self) {
        for name in NAMES {
            self.run.unwant(name);
        }
        self.delete_all();
        if self.dice.is_one_in(2) {
            self.work();
            self.restart();
        }
    }

    fn step(&mut self) {
        self.behind();
        self.change_health();
        self.change_cluster();
        self.change_debugging();
        self.change_images();
        self.call_for_all();
        self.change_resources();
        self.change_whole();
        if self.clock.is_one_in(20) {
            self.set_clock();
        }
        match self.dice.below(105) {
            0..26 => self.perform(),
            26..50 => self.deliver(),
            50..58 => self.run.report(),
            58..66 => self.pass_time(),
            66..72 => self.work(),
            72..84 => self.exit(),
            84..91 => self.want(),
            91 => self.unwant(),
            92 => self.lose(),
            93 => self.fall_silent(),
            94 => self.restart(),
            95 | 96 => self.resync(),
            97 => self.toggle_runtime(),
            98 => {
                let ready = if self.dice.is_one_in(2) { Ok(()) } else { Err("no config".to_owned()) };
                self.run.handle(Event::NetworkReady(ready));
            }
            99 => self.change(),
            103 => self.run.hear_runtime(),
            104 => self.unrecord(),
            // In a cluster, what is shown and not written down is not judged.
            100 if self.run.cluster.is_none() => {
                self.run.world.disk = self.dice.pick(&[Disk::Full, Disk::Unsure]).unwrap();
            }
            _ => self.run.world.disk = Disk::Works,
        }
    }

    /// Performs an open effect, or fails it: done or not, told or not.
    pub(super) fn perform(&mut self) {
        let open = self.run.open.len();
        if open == 0 {
            return;
        }
        let at = self.dice.below(open);
        if self.is_calm || !self.dice.is_one_in(8) {
            self.count_start(at);
            return self.perform_whole(at);
        }
        let effect = self.run.open[at].clone();
        if is_of_a_stray(&effect) {
            self.count("removals of orphans that failed");
        }
        let kind = match self.dice.below(6) {
            0 | 1 => {
                let now = self.run.now;
                if self.run.world.perform_half(&effect, now) {
                    if is_of_a_stray(&effect) {
                        self.count("orphans half removed");
                    }
                    self.count("effects half done");
                }
                // Of what the runtime is still at, nobody says that it failed.
                let is_unknown = self.dice.is_one_in(2) || self.run.world.is_being_started(&effect);
                if is_unknown { FailureKind::Unknown } else { FailureKind::Transient }
            }
            2 => {
                self.count("outcomes unknown");
                self.perform_whole(at);
                let unknown = Err(failure(FailureKind::Unknown, "timed out"));
                if let Some((_, outcome)) = self.run.finished.back_mut() {
                    *outcome = unknown;
                }
                return;
            }
            3 => FailureKind::Unknown,
            4 if self.may_be_refused(&effect) => FailureKind::StartFailed,
            _ => FailureKind::Transient,
        };
        self.run.open.remove(at);
        let outcome = match kind {
            FailureKind::StartFailed => Ok(not_started(Call::Start, Answer::Failed, Sandbox::Up)),
            kind => Err(failure(kind, "no luck")),
        };
        self.run.finished.push_back((effect.op(), outcome));
    }

    /// Performs an open effect. What is signalled takes that in its own manner; in sleep that cannot be interrupted, also
    /// SIGKILL.
    pub(super) fn perform_whole(&mut self, at: usize) {
        if let Effect::Pod { act: Act::Signal(SignalRequest { id, signal, .. }), .. } = &self.run.open[at] {
            let (id, is_kill) = (id.clone(), *signal == StopSignal::Kill);
            let manner = match (is_kill, self.behind.below(8)) {
                (false, 0..3) => Some(Manner::Ignores),
                (false, 3 | 4) => Some(self.ends_late(25_000, &[0, 0, 3, 143])),
                (true, 0) => Some(Manner::Ignores),
                (true, 1 | 2) => Some(self.ends_late(60_000, &[137])),
                _ => None,
            };
            if let Some(manner) = manner {
                let what =
                    if manner == Manner::Ignores { "signals ignored" } else { "signals that end late" };
                self.run.world.manners.insert(id, manner);
                self.count(what);
            }
        }
        self.run.perform(at);
    }

    fn ends_late(&mut self, longest_ms: usize, codes: &[u32]) -> Manner {
        let millis = u64::try_from(self.behind.below(longest_ms)).unwrap();
        let code = self.behind.pick(codes).unwrap();
        Manner::Ends { at: self.run.now.mono + Duration::from_millis(millis), code }
    }

    /// Whether the OCI runtime may refuse a start: it does not for what it started already, and is not asked in a sandbox that
    /// has gone.
    fn may_be_refused(&self, effect: &Effect) -> bool {
        let Effect::Pod { act: Act::StartContainer(request), .. } = effect else { return false };
        let world = &self.run.world;
        if !world.sandboxes.get(&request.sandbox).is_some_and(|sandbox| sandbox.is_alive) {
            return false;
        }
        let container = world.containers.get(&request.id);
        container.is_none_or(|one| matches!(one.task, ObservedTask::Absent | ObservedTask::Created))
    }

    fn count_start(&mut self, at: usize) {
        if matches!(self.run.open[at], Effect::Pod { act: Act::StartContainer(_), .. }) {
            self.count("containers started");
        }
    }

    /// Nothing hinders the node for a while: pods get as far as to run, end and run again.
    fn work(&mut self) {
        for _ in 0..WORK_STEPS {
            self.run.finish_writes();
            if !self.run.open.is_empty() {
                self.perform();
            }
            if !self.run.finished.is_empty() {
                self.deliver();
            }
            self.run.report();
        }
        self.end_init_container();
        self.pass_time();
    }

    pub(super) fn deliver(&mut self) {
        let finished = self.run.finished.len();
        let at = self.dice.below(finished);
        self.run.deliver(at);
    }

    fn pass_time(&mut self) {
        let millis = u64::try_from(self.dice.below(15_000)).unwrap();
        self.run.advance(Duration::from_millis(millis), |_| {});
    }

    fn exit(&mut self) {
        let running: Vec<ContainerId> = self.running().map(|(id, _)| id.clone()).collect();
        let Some(id) = self.dice.pick(&running) else { return };
        let code = self.dice.pick(&[0, 0, 0, 1, 2, 137, 143]).unwrap();
        let oom_killed = code == 137 && self.dice.is_one_in(2);
        let now = self.run.now;
        self.run.world.end(&id, code, oom_killed, now);
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (&ContainerId, &Container)> {
        self.run.world.containers.iter().filter(|(_, one)| one.is_running())
    }
}

fn is_of_a_stray(effect: &Effect) -> bool {
    matches!(effect, Effect::Pod { pod, .. } if pod.as_str().starts_with(STRAY))
}
