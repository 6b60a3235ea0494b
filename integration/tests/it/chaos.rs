//! containerd or shims are killed at random instants while tasks and pods are made, used and removed. Every instant follows
//! from a seed, which the test's name tells; `SEEDS=n` asks for n of each.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use anyhow::{Context as _, Result, anyhow, ensure};
use berth_integration::agent::{Settings, berth_output};
use berth_integration::containerd::{Containerd, ctr_command, ctr_rows};
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::wait::{self, Look};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::kit::{SOON, eventually, pod, shell};
use crate::stock::{Stock, agreed, agreed_on, begin, detached, remove, shims};
use crate::suite::{Body, Test, of};

/// Seeds of each test when nobody asks for more.
const SEEDS: u64 = 1;
/// Kills of containerd in one test.
const KILLS: usize = 8;
/// Kills of shims in one test.
const SHIM_KILLS: usize = 24;
/// Longest time from one kill to the next.
const CALM: u64 = 250;
/// Longest time that all kills of shims of one turn may take.
const KILL_LIMIT: Duration = Duration::from_secs(150);
/// Kills of shims between one pod's coming and the next's.
const KILLS_A_TURN: usize = 3;
const WORKERS: u64 = 2;
/// Containers of each worker that run, at most.
const RUNS_MAX: usize = 60;
/// Between two tries while nobody answers.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// Containers that must have run all the same.
const RUNS_MIN: usize = 4;
const PODS: usize = 5;

pub(crate) fn tests() -> Vec<Test> {
    let seeds = env::var("SEEDS").ok().and_then(|number| number.parse().ok()).unwrap_or(SEEDS);
    let of = |name: &str, body: fn(&str) -> Result<()>, seed: u64| {
        of(format!("chaos::{name}_seed_{seed}"), Body::Of(body, seed.to_string()))
    };
    (1..=seeds)
        .flat_map(|seed| {
            [
                of("containerd_under_tasks", containerd_under_tasks, seed),
                of("containerd_under_pods", containerd_under_pods, seed),
                of("shims_of_tasks", shims_of_tasks, seed),
                of("shims_of_pods", shims_of_pods, seed),
            ]
        })
        .collect()
}

/// Numbers that follow from a seed (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn of(seed: &str) -> Result<Self> {
        Ok(Self(seed.parse()?))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Lets things happen until the next instant. Nothing is waited for: any instant will do.
    pub(crate) fn rest(&mut self) {
        thread::sleep(Duration::from_millis(self.below(CALM)));
    }
}

/// What a worker did with its containers.
#[derive(Debug, Default)]
struct Done {
    /// `ctr run` said that it runs, and nobody asked it to end.
    must_run: BTreeSet<String>,
    all: BTreeSet<String>,
}

/// Runs, execs and removes containers until it is told to stop. What fails, fails: the other side may just have died.
fn work(world: &World, worker: u64, seed: &str, stop: &AtomicBool, ran: &AtomicUsize) -> Result<Done> {
    let mut dice = Dice(Dice::of(seed)?.0 ^ (worker << 32));
    let mut done = Done::default();
    let succeeds = |command: &mut Command| -> Result<bool> { Ok(begin(command)?.wait()?.success()) };
    let mut ran_here = 0;
    for round in 0.. {
        if stop.load(Ordering::Relaxed) || ran_here == RUNS_MAX {
            break;
        }
        let id = format!("w{worker}-{round}");
        let runs = succeeds(&mut detached(world, &[], &id, "echo up; exec sleep 1000")?)?;
        if runs {
            ran_here += 1;
            ran.fetch_add(1, Ordering::Relaxed);
        } else {
            thread::sleep(AGAIN_AFTER);
        }
        if dice.below(2) == 0 {
            succeeds(ctr_command()?.args(["tasks", "exec", "--exec-id", "e", &id, "true"]))?;
        }
        let removes = dice.below(3) > 0;
        if runs && (done.must_run.is_empty() || !removes) {
            done.must_run.insert(id.clone());
        } else if removes {
            succeeds(ctr_command()?.args(["tasks", "rm", "--force", &id]))?;
        }
        done.all.insert(id);
    }
    Ok(done)
}

/// Lets workers go while `trouble` does its part, and gives what they did. It is told how many containers `ctr run` said of that
/// they run.
fn under_work(world: &World, seed: &str, trouble: impl FnOnce(&AtomicUsize) -> Result<()>) -> Result<Done> {
    let (stop, ran) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (stop, ran) = (&stop, &ran);
        let workers = (0..WORKERS).map(|worker| scope.spawn(move || work(world, worker, seed, stop, ran)));
        let workers: Vec<_> = workers.collect();
        let ended = trouble(ran);
        stop.store(true, Ordering::Relaxed);
        let mut all = Done::default();
        for worker in workers {
            let one = worker.join().map_err(|_panic| anyhow!("a worker panicked"))??;
            all.must_run.extend(one.must_run);
            all.all.extend(one.all);
        }
        ended?;
        let ran = ran.load(Ordering::Relaxed);
        ensure!(ran >= RUNS_MIN, "{ran} of {} containers ran: nothing was in trouble", all.all.len());
        Ok(all)
    })
}

/// Kills containerd now and then, in no life before a container has run, and starts it again.
fn kill_containerd(containerd: &mut Containerd, dice: &mut Dice, ran: &AtomicUsize) -> Result<()> {
    for _kill in 0..KILLS {
        has_run(ran, ran.load(Ordering::Relaxed) + 1)?;
        dice.rest();
        containerd.kill()?;
        dice.rest();
        containerd.start_again()?;
    }
    Ok(())
}

/// Waits until so many containers have run.
fn has_run(ran: &AtomicUsize, wanted: usize) -> Result<()> {
    wait::until("a container to run", KILL_LIMIT, || {
        let ran = ran.load(Ordering::Relaxed);
        Ok(if ran >= wanted { Look::Ready(()) } else { Look::NotYet(format!("{ran} ran")) })
    })
}

/// Kills shims now and then, any of those that are there and may be killed.
pub(crate) fn kill_shims(dice: &mut Dice, count: usize, may: fn(i32) -> bool) -> Result<()> {
    let mut killed = 0;
    wait::until("shims to be killed", KILL_LIMIT, || {
        dice.rest();
        let victims: Vec<i32> = shims()?.into_iter().map(|(pid, _)| pid).filter(|pid| may(*pid)).collect();
        if let Some(bound) = u64::try_from(victims.len()).ok().filter(|count| *count > 0) {
            let victim = victims[usize::try_from(dice.below(bound))?];
            // It may have ended by itself between the two looks.
            killed += usize::from(kill(Pid::from_raw(victim), Signal::SIGKILL).is_ok());
        }
        Ok(if killed == count { Look::Ready(()) } else { Look::NotYet(format!("{killed} killed")) })
    })
}

/// Whether containerd has connected to a shim. Until then it cleans up after none, whosever it is: its socket stays until
/// the same id comes again (`startShim` in `core/runtime/v2/shim_manager.go`).
fn is_reached(shim: i32) -> bool {
    let sockets = fs::read_to_string(format!("/proc/{shim}/cwd/shim.sockets")).unwrap_or_default();
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.any(|row| {
        row.get(5) == Some(&"03") && row.get(7).is_some_and(|path| sockets.lines().any(|one| one == *path))
    })
}

/// Everybody agrees on every task, none was started twice, and all of them can be removed.
fn settle(stock: Stock, done: &Done) -> Result<()> {
    for id in &done.all {
        agreed(id)?;
        let log = fs::read_to_string(stock.log(id)).unwrap_or_default();
        ensure!(log.lines().count() <= 1, "{id} was started more than once: {log:?}");
    }
    for id in ctr_rows(&["containers", "ls"])?.iter().map(|row| &row[0]) {
        remove(id).with_context(|| format!("remove {id}"))?;
    }
    stock.end()
}

fn containerd_under_tasks(seed: &str) -> Result<()> {
    let mut stock = Stock::start()?;
    let mut dice = Dice::of(seed)?;
    let done = under_work(&stock.world, seed, |ran| kill_containerd(&mut stock.containerd, &mut dice, ran))?;
    ensure!(!done.must_run.is_empty(), "no container was to go on running");
    for id in &done.must_run {
        agreed_on(id, "RUNNING")?;
        let log = || Ok(fs::read_to_string(stock.log(id)).unwrap_or_default());
        eventually(&format!("what {id} says at its only start"), &"up\n".to_owned(), log)?;
    }
    settle(stock, &done)
}

fn shims_of_tasks(seed: &str) -> Result<()> {
    let stock = Stock::start()?;
    let mut dice = Dice::of(seed)?;
    let done = under_work(&stock.world, seed, |ran| {
        // On a busy machine shims die faster than containers come to run: each turn waits for one that does.
        (1..=RUNS_MIN).try_for_each(|turn| {
            kill_shims(&mut dice, SHIM_KILLS / RUNS_MIN, is_reached)?;
            has_run(ran, turn)
        })
    })?;
    settle(stock, &done)
}

/// Pods that come and go.
pub(crate) struct Churn {
    pub(crate) node: Node,
    dir: PathBuf,
    wanted: BTreeSet<String>,
    pub(crate) made: usize,
}

impl Churn {
    pub(crate) fn start() -> Result<Self> {
        let node = Node::start_with(&Settings {
            kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
            ..Settings::with_registry()
        })?;
        let dir = node.world.root().join("dir");
        files::make_dir(&dir)?;
        let mut churn = Self { node, dir, wanted: BTreeSet::new(), made: 0 };
        for _pod in 0..PODS {
            churn.add()?;
        }
        // A pull that is cut off leaves a layer half unpacked, which containerd removes a day later.
        for name in &churn.wanted {
            churn.node.ready(name)?;
        }
        Ok(churn)
    }

    /// Every pod goes, and nothing of any is left; then there are as many as at first.
    pub(crate) fn begin_anew(&mut self) -> Result<()> {
        self.node.clear()?;
        self.wanted.clear();
        (0..PODS).try_for_each(|_pod| self.add())
    }

    /// One pod more, which notes each of its starts.
    fn add(&mut self) -> Result<()> {
        let name = format!("pod-{}", self.made);
        let script = format!("echo started >> /v/{name}; exec sleep infinity");
        let main = shell("main", &script, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }));
        let spec = json!({
            "terminationGracePeriodSeconds": 0,
            "containers": [main],
            "volumes": [{ "name": "v", "hostPath": { "path": self.dir } }],
        });
        self.node.apply(&name, &pod(&name, spec))?;
        self.made += 1;
        self.wanted.insert(name);
        Ok(())
    }

    /// One pod goes, another comes, and one is used.
    pub(crate) fn turn(&mut self, dice: &mut Dice) -> Result<()> {
        let any = |dice: &mut Dice, from: &BTreeSet<String>| -> Result<String> {
            let number = usize::try_from(dice.below(u64::try_from(from.len())?))?;
            from.iter().nth(number).cloned().context("no pod")
        };
        let goes = any(dice, &self.wanted)?;
        self.node.remove(&goes)?;
        self.wanted.remove(&goes);
        self.add()?;
        // Whether it is there yet is left to chance.
        berth_output(&["exec", &any(dice, &self.wanted)?, "--", "true"])?;
        Ok(())
    }

    /// How many restarts the pods that are wanted tell of together.
    fn restarts(&self) -> Result<u64> {
        let pods = self.node.pods()?;
        let wanted = pods.iter().filter(|pod| self.wanted.iter().any(|name| pod.is_of(name)));
        Ok(wanted.map(|pod| pod.restarts("main")).sum())
    }

    /// Every pod that is wanted is Ready, with as many starts as it tells of. How many restarts they tell of together.
    pub(crate) fn settled(&self, may_restart: bool) -> Result<u64> {
        let mut all = 0;
        for name in &self.wanted {
            self.node.ready(name)?;
            let restarts = wait::until(&format!("the starts of {name}"), SOON, || {
                // What was killed last may not have been seen yet, and be started again between two looks.
                let pod = self.node.pod(name)?.filter(PodState::is_ready);
                let Some(restarts) = pod.map(|pod| pod.restarts("main")) else {
                    return Ok(Look::NotYet("it is not ready".to_owned()));
                };
                let wanted = usize::try_from(restarts)? + 1;
                let starts = fs::read_to_string(self.dir.join(name)).unwrap_or_default().lines().count();
                // One that was killed before its first command did not note it.
                let right = if may_restart { (1..=wanted).contains(&starts) } else { starts == wanted };
                Ok(if right { Look::Ready(restarts) } else { Look::NotYet(format!("{starts} of {wanted}")) })
            })?;
            all += restarts;
            ensure!(may_restart || restarts == 0, "{name} was restarted {restarts} times");
        }
        Ok(all)
    }
}

fn containerd_under_pods(seed: &str) -> Result<()> {
    let mut churn = Churn::start()?;
    let mut dice = Dice::of(seed)?;
    for _kill in 0..KILLS {
        dice.rest();
        churn.turn(&mut dice)?;
        dice.rest();
        churn.node.containerd.kill()?;
        churn.turn(&mut dice)?;
        dice.rest();
        churn.node.containerd.start_again()?;
    }
    churn.settled(false)?;
    churn.node.end()
}

fn shims_of_pods(seed: &str) -> Result<()> {
    let mut churn = Churn::start()?;
    let mut dice = Dice::of(seed)?;
    for _turn in 0..SHIM_KILLS / KILLS_A_TURN {
        churn.turn(&mut dice)?;
        kill_shims(&mut dice, KILLS_A_TURN, |_| true)?;
    }
    let before = churn.settled(true)?;
    // Pods that went may have had all of it, and others before anything ran in them: one more, when all run and nothing else is there.
    wait::until("one shim for each pod", POD_LIMIT, || {
        let shims = shims()?;
        Ok(if shims.len() == PODS { Look::Ready(()) } else { Look::NotYet(format!("{shims:?}")) })
    })?;
    kill_shims(&mut dice, 1, |_| true)?;
    wait::until("a pod to have lost its shim", POD_LIMIT, || {
        let restarts = churn.restarts()?;
        Ok(if restarts > before { Look::Ready(()) } else { Look::NotYet(format!("{before} before")) })
    })?;
    churn.settled(true)?;
    churn.node.end()
}
