//! Random lives: everything that can happen in any order, with failures and restarts of the agent at any point; then
//! rest, in which the node must come to what is wanted, and at last nothing wanted, and nothing may be left.
//!
//! Deterministic by seed. `SEED=<n>` plays one and tells its effects, `SEEDS=<n>` that many, `SEEDS=<from>..<to>` a range of
//! them. All that fail are named at the end.

mod chaos;
mod cluster;
mod debug;
mod dice;
mod health;
mod hooks;
mod images;
mod mishaps;
mod resizes;
mod rest;
mod together;
mod wishes;

use std::{collections::BTreeMap, ops::Range, panic, time::Duration};

use self::chaos::Chaos;
use crate::oracle;

/// Seeds that are played when nobody says which.
const SEEDS: u64 = 700;
/// The same of lives in a cluster.
const SEEDS_IN_A_CLUSTER: u64 = 60;
/// Seeds beyond those that found something once.
const FOUND: [u64; 4] = [1103, 2077, 2911, 3138];
/// The same in a cluster.
const FOUND_IN_A_CLUSTER: [u64; 19] = [
    170, 203, 290, 425, 556, 595, 846, 1020, 1038, 1158, 1441, 1477, 1849, 2258, 2940, 3627, 3659, 8176, 9014,
];
/// How often each thing must happen and each rule be asked in all lives together: what hardly ever comes proves nothing.
const OFTEN: u64 = 50;
/// The same of what needs three chances at once.
const SELDOM: u64 = 10;
/// Things that happen before the rest.
const STEPS: u32 = 250;
/// Effects in a while in which nothing hinders the node.
const WORK_STEPS: u32 = 12;
/// Steps in which a node at rest must arrive.
const REST_STEPS: u32 = 60_000;
/// How long a node asks for nothing but looks when it is at rest.
const QUIET: Duration = Duration::from_secs(3600);
/// How far the wall clock is set forward or back at most.
const CLOCK_STEP_MAX: Duration = Duration::from_secs(3600);
/// Names of pods, few, so that they meet again.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Where a node lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Pods come from manifests alone.
    Alone,
    /// They come from an API server too, which is told of all of them.
    Cluster,
}

#[test]
fn random_lives() {
    let often = [
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
        "signals ignored",
        "signals that end late",
        "processes that ended late",
        "records written late",
        "strays",
        "sweeps",
        "removals of orphans that failed",
        "probes that failed",
        "probes that could not be asked",
        "containers that failed a probe",
        "steps of the clock",
        "ephemeral containers added",
        "ephemeral containers that ended",
        "images removed",
        "images mounted",
        "ends that call for all to begin anew",
        "resizes asked for",
        "resizes of whole pods asked for",
        "resizes allocated",
        "resizes done",
    ];
    let seldom = [
        "resizes deferred",
        "resizes that wait at rest",
        "resizes in progress when the agent was killed",
        "ephemeral containers that wait for their target at rest",
        "containers that became unready",
        "starts that ended late",
        "orphans half removed",
        "records being written when the agent was killed",
        "a process is removed only when kills have no effect",
        "removals of images that failed",
    ];
    let often: Vec<&str> = often.into_iter().chain(oracle::RULES).collect();
    play(Place::Alone, &often, &seldom);
}

#[test]
fn random_lives_in_a_cluster() {
    let often = [
        "pods bound",
        "pods deleted",
        "pods forced out",
        "requests that failed",
        "requests whose answer was lost",
        "requests that nobody waited for",
        "writes of others",
        "times that the server was away",
        "lists anew",
        "mirrors deleted by others",
        "agent restarts",
        "restarts that changed nothing",
        "arrivals",
        "steps of the clock",
        "ephemeral containers added",
    ];
    let seldom = [
        "restarts before manifests are read",
        "API servers that were heard before manifests",
        "pods ended by others",
        "pods kept out by a name at rest",
        "who is kept out by a name is told",
        "grace periods shortened",
        "pods that do not fit",
        "what is to be deleted ends when the API said",
        "at rest what was to be deleted is gone",
    ];
    let often: Vec<&str> = often.into_iter().chain(oracle::RULES_OF_CLUSTERS).collect();
    play(Place::Cluster, &often, &seldom);
}

/// Plays lives. In all of them together, all of this happens.
#[expect(clippy::disallowed_methods, reason = "the seed comes from whoever looks for it")]
fn play(place: Place, often: &[&str], seldom: &[&str]) {
    let named = |name| std::env::var(name).ok();
    let (many, found) = match place {
        Place::Alone => (SEEDS, &FOUND[..]),
        Place::Cluster => (SEEDS_IN_A_CLUSTER, &FOUND_IN_A_CLUSTER[..]),
    };
    let seeds = seeds(named("SEED").as_deref(), named("SEEDS").as_deref(), many);
    let is_single = seeds.end - seeds.start == 1;
    let kept = found.iter().copied().filter(|_| !is_single);
    let (mut counts, mut failed) = (BTreeMap::new(), Vec::new());
    for seed in seeds.chain(kept) {
        let life = panic::catch_unwind(|| {
            let mut chaos = Chaos::new(seed, place);
            chaos.is_told = is_single;
            chaos.play()
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
    for what in often.iter().chain(seldom) {
        let least = if seldom.contains(what) { SELDOM } else { OFTEN };
        let count = counts.get(what).copied().unwrap_or_default();
        assert!(is_single || count >= least, "{count} times only: {what}");
    }
}

/// Which lives are played.
fn seeds(one: Option<&str>, many: Option<&str>, unless_said: u64) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a number");
    match (one, many.map(|many| (many, many.split_once("..")))) {
        (Some(one), _) => number(one)..number(one) + 1,
        (None, Some((_, Some((from, to))))) => number(from)..number(to),
        (None, Some((many, None))) => 0..number(many),
        (None, None) => 0..unless_said,
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
        assert_eq!(seeds(one, many, SEEDS), expected, "{one:?} {many:?}");
    }
}
