//! Random lives: everything that can happen in any order, with failures and restarts of the agent at any point; then
//! rest, in which the node must come to what is wanted, and at last nothing wanted, and nothing may be left.
//!
//! Deterministic by seed. `SEED=<n>` plays one and tells its effects, `SEEDS=<n>` that many, `SEEDS=<from>..<to>` a range of
//! them. All that fail are named at the end.

use std::{collections::BTreeMap, ops::Range, panic, sync::Arc, time::Duration};

use berth_core::{
    effect::{Act, Effect},
    event::Event,
    failure::FailureKind,
    id::{ContainerId, ContainerName, ImageRef, PodUid, SandboxId, VolumeName},
    observation::ObservedTask,
    pod::port::{
        look::Finding,
        start_failure::{Answer, Call, Sandbox},
    },
    spec::{ContainerKind, NetworkMode, Pod, RestartPolicy},
    time::Mono,
};

use crate::{
    oracle, pods,
    run::Run,
    tell,
    world::{Container, Disk, Report, failure, not_started},
};

/// Seeds that are played when nobody says which.
const SEEDS: u64 = 200;
/// Seeds beyond those that found something once.
const FOUND: [u64; 1] = [326];
/// How often each thing must happen and each rule be asked in all lives together: what hardly ever comes proves nothing.
const OFTEN: u64 = 50;
/// The same of what needs three chances at once.
const SELDOM: u64 = 10;
/// Things that happen before the rest.
const STEPS: u32 = 250;
/// Effects in a while in which nothing hinders the node.
const WORK_STEPS: u32 = 12;
/// Steps in which a node at rest must arrive.
const REST_STEPS: u32 = 20_000;
/// How long a node asks for nothing but looks when it is at rest.
const QUIET: Duration = Duration::from_secs(3600);
/// Names of pods, few, so that they meet again.
const NAMES: [&str; 3] = ["a", "b", "c"];

#[test]
#[expect(clippy::disallowed_methods, reason = "the seed comes from whoever looks for it")]
fn random_lives() {
    let named = |name| std::env::var(name).ok();
    let seeds = seeds(named("SEED").as_deref(), named("SEEDS").as_deref());
    let is_single = seeds.end - seeds.start == 1;
    let kept = FOUND.into_iter().filter(|_| !is_single);
    let (mut counts, mut failed) = (BTreeMap::new(), Vec::new());
    for seed in seeds.chain(kept) {
        let life = panic::catch_unwind(|| {
            let mut chaos = Chaos::new(seed);
            chaos.is_told = is_single;
            chaos.play();
            chaos.counts.into_iter().chain(chaos.run.world.oracle.judged)
        });
        let Ok(life) = life else {
            failed.push(seed);
            continue;
        };
        for (what, count) in life {
            *counts.entry(what).or_insert(0) += count;
        }
    }
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
    println!("{counts:#?}");
    let must_happen = [
        "pods begun",
        "pods removed",
        "containers started",
        "agent restarts",
        "sandboxes lost",
        "outcomes unknown",
        "arrivals",
        "silent shims",
        "records of sandboxes removed",
        "records unwritten",
        "shims fallen silent",
        "shims killed",
        "restarts that changed nothing",
        "effects half done",
        "states heard late",
        "runtimes heard late",
        "changes behind the agent",
    ];
    let often = must_happen.iter().chain(&oracle::RULES).map(|what| (what, OFTEN));
    for (what, least) in often.chain([(&"starts that ended late", SELDOM)]) {
        let count = counts.get(what).copied().unwrap_or_default();
        assert!(is_single || count >= least, "{count} times only: {what}");
    }
}

/// Which lives are played.
fn seeds(one: Option<&str>, many: Option<&str>) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    match (one, many.map(|many| (many, many.split_once("..")))) {
        (Some(one), _) => number(one)..number(one) + 1,
        (None, Some((_, Some((from, to))))) => number(from)..number(to),
        (None, Some((many, None))) => 0..number(many),
        (None, None) => 0..SEEDS,
    }
}

#[test]
fn seeds_are_named_by_one_by_their_number_or_by_a_range() {
    let cases = [
        (None, None, 0..SEEDS),
        (Some("7"), None, 7..8),
        (None, Some("30"), 0..30),
        (None, Some("30..50"), 30..50),
        (Some("7"), Some("30"), 7..8),
    ];
    for (one, many, expected) in cases {
        assert_eq!(seeds(one, many), expected, "{one:?} {many:?}");
    }
}

/// A generator of numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    fn is_one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Clone>(&mut self, things: &[T]) -> Option<T> {
        (!things.is_empty()).then(|| things[self.below(things.len())].clone())
    }
}

struct Chaos {
    seed: u64,
    dice: Dice,
    behind: Dice,
    run: Run,
    /// Whether nothing fails or ends by itself.
    is_calm: bool,
    /// Whether every effect is printed.
    is_told: bool,
    versions: u32,
    /// The last pod of each name: it may come back under the same UID.
    known: BTreeMap<&'static str, Pod>,
    counts: BTreeMap<&'static str, u64>,
    /// When something was last asked for that is more than a look.
    asked_at: Mono,
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut run = Run::new();
        run.world.registry.insert(ImageRef::new("pulled:1"));
        Self {
            seed,
            dice: Dice(seed),
            behind: Dice(!seed),
            run,
            is_calm: false,
            is_told: false,
            versions: 0,
            known: BTreeMap::new(),
            counts: BTreeMap::new(),
            asked_at: Mono::default(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn play(&mut self) {
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
        for name in NAMES {
            self.run.unwant(name);
        }
        self.rest();
        self.check_empty();
    }

    fn step(&mut self) {
        self.behind();
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
            100 => self.run.world.disk = self.dice.pick(&[Disk::Full, Disk::Unsure]).unwrap(),
            _ => self.run.world.disk = Disk::Works,
        }
    }

    /// Performs an open effect, or fails it: done or not, told or not.
    fn perform(&mut self) {
        let open = self.run.open.len();
        if open == 0 {
            return;
        }
        let at = self.dice.below(open);
        if self.is_calm || !self.dice.is_one_in(8) {
            self.count_start(at);
            return self.run.perform(at);
        }
        let effect = self.run.open[at].clone();
        let kind = match self.dice.below(6) {
            0 | 1 => {
                let now = self.run.now;
                if self.run.world.perform_half(&effect, now) {
                    self.count("effects half done");
                }
                // Of what the runtime is still at, nobody says that it failed.
                let is_unknown = self.dice.is_one_in(2) || self.run.world.is_being_started(&effect);
                if is_unknown { FailureKind::Unknown } else { FailureKind::Transient }
            }
            2 => {
                self.count("outcomes unknown");
                self.run.perform(at);
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

    fn deliver(&mut self) {
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

    fn running(&self) -> impl Iterator<Item = (&ContainerId, &Container)> {
        self.run.world.containers.iter().filter(|(_, one)| one.is_running())
    }

    fn want(&mut self) {
        let wanted = self.run.wanted();
        let free: Vec<&str> = NAMES.into_iter().filter(|name| !wanted.contains(*name)).collect();
        let Some(name) = self.dice.pick(&free) else { return };
        let pod = match self.known.get(name) {
            Some(pod) if self.dice.is_one_in(2) => pod.clone(),
            Some(_) | None => self.random_pod(name),
        };
        self.known.insert(name, pod.clone());
        self.count("pods begun");
        self.run.want(pod);
    }

    fn random_pod(&mut self, name: &str) -> Pod {
        let shapes: [&[&str]; 6] = [
            &["main"],
            &["main", "other"],
            &["init-a", "main"],
            &["side-a", "main"],
            &["init-a", "side-b", "init-c", "main", "other"],
            &["side-a", "side-b", "main"],
        ];
        let shape = self.dice.pick(&shapes).unwrap();
        let mut pod = pods::pod(name, shape);
        self.versions += 1;
        pod.uid = PodUid::new(format!("uid-{name}-{}", self.versions));
        let policies = [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never];
        pod.restart_policy = self.dice.pick(&policies).unwrap();
        pod.grace = Duration::from_secs(self.dice.next() % 20);
        if self.dice.is_one_in(4) {
            pod.network = NetworkMode::Node;
        }
        if self.dice.is_one_in(2) {
            pod.volumes = vec![pods::empty_dir("data"), pods::empty_dir("more")];
        }
        if self.dice.is_one_in(6) {
            pod.active_deadline = Some(Duration::from_secs(60));
        }
        for name in shape {
            if self.dice.is_one_in(3) {
                pods::edit(&mut pod, name).image = ImageRef::new("pulled:1");
            }
        }
        if self.dice.is_one_in(5) {
            self.run.world.deaf.insert(ContainerName::new("main"));
        }
        pod
    }

    fn unwant(&mut self) {
        let wanted: Vec<String> = self.run.wanted().into_iter().collect();
        if let Some(name) = self.dice.pick(&wanted) {
            self.count("pods removed");
            self.run.unwant(&name);
        }
    }

    /// The spec of a container changes under the same UID.
    fn change(&mut self) {
        let wanted: Vec<String> = self.run.wanted().into_iter().collect();
        let Some(name) = self.dice.pick(&wanted) else { return };
        let mut pod = Pod::clone(&self.run.spec(&name).unwrap());
        let image = self.dice.is_one_in(2).then(|| self.dice.pick(&["busybox:1", "pulled:1"]).unwrap());
        let main = pods::edit(&mut pod, "main");
        main.hash += 1;
        main.image = image.map_or(main.image.clone(), ImageRef::new);
        self.run.want(pod);
    }

    fn lose(&mut self) {
        let alive = self.run.world.sandboxes.iter().filter(|(_, one)| one.is_alive);
        let alive: Vec<SandboxId> = alive.map(|(id, _)| id.clone()).collect();
        if let Some(id) = self.dice.pick(&alive) {
            self.count("sandboxes lost");
            let now = self.run.now;
            self.run.world.lose(&id, now);
        }
    }

    /// A shim stops to answer, or answers again.
    fn fall_silent(&mut self) {
        let alive = self.run.world.sandboxes.iter().filter(|(_, one)| one.is_alive);
        let alive: Vec<SandboxId> = alive.map(|(id, _)| id.clone()).collect();
        let Some(id) = self.dice.pick(&alive) else { return };
        if !self.run.world.silent.remove(&id) {
            self.count("shims fallen silent");
            self.run.world.fall_silent(&id);
        }
    }

    /// Somebody removes containerd's record of a sandbox. Only a look at the whole runtime tells.
    fn unrecord(&mut self) {
        let ids: Vec<SandboxId> = self.run.world.sandboxes.keys().cloned().collect();
        let Some(id) = self.dice.pick(&ids) else { return };
        self.count("records of sandboxes removed");
        self.run.world.sandboxes.get_mut(&id).unwrap().is_recorded = false;
        self.run.set_runtime(true);
        self.come_back();
    }

    /// What has dice of its own: looks, which may fail or come late, and what they are for.
    fn behind(&mut self) {
        if self.behind.is_one_in(40) {
            self.change_behind();
        }
        if self.behind.is_one_in(10) {
            self.end_starts();
        }
        if self.behind.is_one_in(4) {
            self.run.look();
        }
        if self.behind.is_one_in(20)
            && let Some(look) = self.run.looks.pop_front()
        {
            let outcome = Err(failure(FailureKind::Unknown, "no end within 60 s"));
            self.run.handle(Event::Done { op: look.op(), outcome });
        }
    }

    /// Somebody changes what the agent made.
    fn change_behind(&mut self) {
        let uids: Vec<PodUid> = self.run.world.records.keys().cloned().collect();
        let Some(uid) = self.behind.pick(&uids) else { return };
        let data = || Finding::Volume(VolumeName::new("data"));
        let findings = [Finding::Netns, Finding::Cgroup, Finding::Dirs, data(), Finding::Files];
        let finding = self.behind.pick(&findings).unwrap();
        if self.run.world.change_behind(&uid, finding) {
            self.count("changes behind the agent");
        }
    }

    fn resync(&mut self) {
        let alive = self.run.world.sandboxes.iter().filter(|(_, one)| one.is_alive);
        let alive: Vec<SandboxId> = alive.map(|(id, _)| id.clone()).collect();
        let Some(id) = self.dice.pick(&alive) else { return };
        // What happened before the connection was made anew is in the state alone.
        self.run.world.reports.retain(|(sandbox, _)| *sandbox != id);
        let report = self.run.read_shim(&id);
        self.run.world.reports.push((id, Report::Told(report)));
        if self.dice.is_one_in(2) {
            return self.count("states heard late");
        }
        while !self.run.world.reports.is_empty() {
            self.run.report();
        }
    }

    /// Containerd goes, or is there again, which the agent may hear later.
    fn toggle_runtime(&mut self) {
        if self.run.observed.is_some() {
            return self.run.hear_runtime();
        }
        if !self.run.world.runtime_is_down {
            return self.run.set_runtime(true);
        }
        self.come_back();
    }

    fn come_back(&mut self) {
        self.run.read_runtime();
        if self.dice.is_one_in(2) {
            return self.run.hear_runtime();
        }
        self.count("runtimes heard late");
    }

    /// The agent is killed. What it had asked for was done, or not.
    fn restart(&mut self) {
        self.count("agent restarts");
        for at in (0..self.run.open.len()).rev() {
            if self.dice.is_one_in(2) {
                self.run.perform(at);
            }
        }
        let was_down = self.run.world.runtime_is_down;
        self.run.world.runtime_is_down = false;
        let alive = self.run.world.sandboxes.iter().filter(|(_, one)| one.is_alive);
        let alive: Vec<SandboxId> = alive.map(|(id, _)| id.clone()).collect();
        // One that does not answer at first is told of below.
        self.run.world.silent.clear();
        let silent = if self.dice.is_one_in(3) { self.dice.pick(&alive) } else { None };
        self.run.restart(silent.as_ref());
        if silent.is_some() {
            self.count("silent shims");
        }
        if was_down {
            self.run.set_runtime(true);
        }
    }

    /// Nothing fails any more and init containers end well: the node must come to rest.
    fn rest(&mut self) {
        self.is_calm = true;
        let began = self.run.now.mono;
        self.run.world.disk = Disk::Works;
        // Those of pods that are to go stay silent, and must not keep them.
        let ending = |run: &Run, id: &SandboxId| {
            let pod = run.world.sandboxes.get(id).map(|one| &one.pod);
            let record = pod.and_then(|pod| run.world.records.get(pod));
            record.is_some_and(|record| record.termination.is_some())
        };
        let speaking: Vec<SandboxId> =
            self.run.world.silent.iter().filter(|id| !ending(&self.run, id)).cloned().collect();
        for id in speaking {
            self.run.world.silent.remove(&id);
        }
        if self.run.world.runtime_is_down {
            self.run.set_runtime(false);
        }
        self.run.hear_runtime();
        self.run.handle(Event::NetworkReady(Ok(())));
        for _ in 0..REST_STEPS {
            self.check();
            self.end_starts();
            if !self.run.open.is_empty() {
                self.perform();
            } else if !self.run.finished.is_empty() {
                self.deliver();
            } else if !self.run.world.reports.is_empty() {
                self.run.report();
            } else if self.run.look() {
            } else if !self.end_init_container() {
                let Some(at) = self.run.node.poll_timeout() else { return };
                if at > self.asked_at.max(began) + QUIET {
                    return;
                }
                let length = at.since(self.run.now.mono);
                self.run.advance(length, |_| {});
            }
        }
        self.fail(&format!("never at rest: {:?}", self.run.told.iter().rev().take(10).collect::<Vec<_>>()));
    }

    /// Starts that the runtime was at come to their end.
    fn end_starts(&mut self) {
        while self.run.world.end_start(self.run.now) {
            self.count("starts that ended late");
        }
    }

    fn end_init_container(&mut self) -> bool {
        let is_init = |one: &Container| one.name.as_str().starts_with("init-");
        let Some(id) = self.running().find(|(_, one)| is_init(one)).map(|(id, _)| id.clone()) else {
            return false;
        };
        let now = self.run.now;
        self.run.world.exit(&id, 0, now);
        true
    }

    fn check(&mut self) {
        if !self.run.world.unwritten.is_empty() {
            self.count("records unwritten");
        }
        self.tell();
        if !self.run.world.violations.is_empty() {
            let violations = self.run.world.violations.join("\n");
            self.fail(&violations);
        }
    }

    fn tell(&mut self) {
        let kills = self.run.told.iter();
        let kills =
            kills.filter(|effect| matches!(effect, Effect::Pod { act: Act::KillShim(_), .. })).count();
        *self.counts.entry("shims killed").or_insert(0) += u64::try_from(kills).unwrap();
        if self.run.told.iter().any(|effect| tell::kind_of(effect) != "look") {
            self.asked_at = self.run.now.mono;
        }
        if self.is_told {
            for effect in &self.run.told {
                println!(
                    "{:.3} {}",
                    self.run.now.mono.0.as_secs_f64(),
                    tell::effect(effect, &BTreeMap::new())
                );
            }
        }
        self.run.told.clear();
    }

    fn lives(&self) -> Vec<&berth_core::pod::actual::Life> {
        self.run.node.pods().map(|pod| pod.life()).collect()
    }

    fn fail(&self, why: &str) -> ! {
        panic!("SEED={}: {why}", self.seed);
    }

    /// Every wanted pod is as it should be, and nothing else is there.
    fn check_arrival(&mut self) {
        for name in self.run.wanted() {
            let pod = self.run.spec(&name).unwrap();
            self.check_pod(&pod);
            self.count("arrivals");
        }
        let wanted: Vec<PodUid> =
            self.run.wanted().iter().filter_map(|name| Some(self.run.spec(name)?.uid.clone())).collect();
        let strangers: Vec<&PodUid> =
            self.run.world.records.keys().filter(|uid| !wanted.contains(uid)).collect();
        if !strangers.is_empty() {
            self.fail(&format!("not removed: {strangers:?}\n{:#?}", self.lives()));
        }
    }

    fn check_pod(&mut self, pod: &Arc<Pod>) {
        let uid = &pod.uid;
        let Some(record) = self.run.world.records.get(uid).cloned() else {
            self.fail(&format!("{uid} has no record"))
        };
        let status = Arc::clone(&self.run.world.statuses[uid]);
        let now = self.run.now;
        self.run.world.judge(|oracle| oracle.check_rest(uid, &status, record.terminal.is_some(), now));
        self.check();
        let world = &self.run.world;
        if record.terminal.is_some() {
            let left = world.left_of(uid);
            if !world.ends.contains_key(uid) {
                self.fail(&format!("{uid} has ended and nothing is kept of that"));
            }
            if left.iter().any(|what| what != "dirs" && what != "end") {
                self.fail(&format!("{uid} has ended and {left:?} is left"));
            }
            return;
        }
        if !world.behind.is_repaired(uid) {
            self.fail(&format!("{uid}: not repaired: {:?}", world.behind));
        }
        if world.sandboxes.values().filter(|one| one.pod == *uid && one.is_alive).count() != 1 {
            self.fail(&format!("{uid}: not one sandbox"));
        }
        for container in pod.all_containers() {
            let runs = world.containers.values().filter(|one| one.pod == *uid && one.name == container.name);
            let runs: Vec<&Container> = runs.collect();
            let is_over = match container.kind {
                ContainerKind::Init => true,
                ContainerKind::Sidecar => false,
                ContainerKind::Main => world.oracle.is_over(uid, &container.name),
            };
            let is_right = match runs.as_slice() {
                [] => is_over,
                [one] => !is_over && one.is_running() && one.hash == container.hash,
                [..] => false,
            };
            if !is_right {
                self.fail(&format!("{uid}/{}: {runs:?}\n{record:#?}", container.name));
            }
        }
    }

    /// An agent that begins again finds everything as it is: no container starts, no status changes.
    fn check_restart_changes_nothing(&mut self) {
        let starts = self.run.world.starts.clone();
        let statuses = self.run.world.statuses.clone();
        let records = self.run.world.records.clone();
        self.run.advance(Duration::from_secs(5), |_| {});
        self.run.restart(None);
        let after_boot = self.run.world.statuses.clone();
        self.rest();
        for (uid, status) in &statuses {
            for now in [&after_boot[uid], &self.run.world.statuses[uid]] {
                if now != status {
                    self.fail(&format!("{uid}: a restart changed\n{status:#?}\ninto\n{now:#?}"));
                }
            }
        }
        if starts != self.run.world.starts {
            self.fail("a restart started containers");
        }
        if records != self.run.world.records {
            self.fail("a restart changed records");
        }
        self.count("restarts that changed nothing");
    }

    fn check_empty(&self) {
        let world = &self.run.world;
        let left = [
            (world.records.len(), "records"),
            (world.dirs.len(), "dirs"),
            (world.ends.len(), "ends"),
            (world.cgroups.len(), "cgroups"),
            (world.volumes.len(), "volumes"),
            (world.netns.len(), "netns"),
            (world.networks.len(), "networks"),
            (world.sandboxes.len(), "sandboxes"),
            (world.snapshots.len(), "snapshots"),
            (world.containers.len(), "containers"),
        ];
        for (count, what) in left {
            if count != 0 {
                self.fail(&format!("{count} {what} left: {world:#?}"));
            }
        }
    }
}
