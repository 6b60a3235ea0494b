//! The life of a batch of pods on both nodes: their start, a kill, a restart of the agents, their deletion.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::{Value, json};

use super::case::Case;
use super::compare::{Difference, differences};
use super::observe::{self, Containers};
use super::place::{Both, Place, Side};
use super::settle::steady_for;
use crate::cluster::watch::Watch;

/// Between two looks at the pods.
const PAUSE: Duration = Duration::from_millis(500);
/// Whatever a pod does, it is looked at by then.
const SETTLE_LIMIT: Duration = Duration::from_secs(150);
/// After a restart of the agents a kubelet has looked at all of its pods twice.
const AFTER_RESTART: Duration = Duration::from_secs(14);
/// The longest grace period of a case, and what a busy machine takes.
const GONE_LIMIT: Duration = Duration::from_secs(120);
/// Events are told by the way.
const EVENTS_COME: Duration = Duration::from_secs(2);

/// When something was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It has come to what it comes to.
    Start,
    /// The process of its first container was killed.
    Crash,
    /// The agents were ended and started again.
    Restart,
    /// It was deleted.
    Deletion,
    /// Its events over its whole life.
    Events,
}

/// A difference of a case.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The name of the case.
    pub case: String,
    /// When it was seen.
    pub phase: Phase,
    /// What differs.
    #[serde(flatten)]
    pub difference: Difference,
}

/// What both nodes showed of each case, and in what they differ.
#[derive(Debug, Default)]
pub struct Played {
    /// The differences.
    pub findings: Vec<Finding>,
    /// What was seen, by case and phase.
    pub seen: Vec<(String, Phase, Both<Value>)>,
}

impl Played {
    fn find(&mut self, case: &Case, phase: Phase, difference: Difference) {
        self.findings.push(Finding { case: case.name.clone(), phase, difference });
    }

    fn see(&mut self, case: &str, phase: Phase, seen: Both<Value>) {
        let [ours, theirs] = &seen;
        let finding = |difference| Finding { case: case.to_owned(), phase, difference };
        self.findings.extend(differences(ours, theirs).into_iter().map(finding));
        self.seen.push((case.to_owned(), phase, seen));
    }
}

/// Plays a batch; with `restarts` the agents are started anew in the middle of it.
///
/// # Errors
/// A node cannot be looked at.
pub fn batch(place: &mut Place, cases: &[Case], restarts: bool, say: &dyn Fn(&str)) -> Result<Played> {
    let mut played = Played::default();
    let all = create(place, cases, &mut played)?;
    if all.is_empty() {
        return Ok(played);
    }
    let begun = settled(place, &all, &BTreeMap::new(), say)?;
    see(&mut played, Phase::Start, &all, &begun);
    let dying: Vec<&Case> = all.iter().copied().filter(|case| case.dies).collect();
    if !dying.is_empty() {
        let before = kill_first(place, &dying, &mut played)?;
        let dying: Vec<&Case> =
            dying.into_iter().filter(|case| before.contains_key(&(0, case.name.clone()))).collect();
        let after = settled(place, &dying, &before, say)?;
        see(&mut played, Phase::Crash, &dying, &after);
    }
    if restarts {
        restart(place, &all, &mut played)?;
    }
    delete(place, &all, &begun, &mut played)?;
    Ok(played)
}

/// Creates the pods, and gives the cases that there are now: what the API server refuses of one is told of it.
fn create<'a>(place: &Place, cases: &'a [Case], played: &mut Played) -> Result<Vec<&'a Case>> {
    let mut made = Vec::new();
    for case in cases {
        let mut refused = Vec::new();
        for side in &place.sides {
            let object = case.object(side.node, &side.host_dir.display().to_string())?;
            let answer = place.cluster.create(&side.pods(), &object);
            refused.push(answer.err().map(|failure| format!("{failure:#}")));
        }
        match <[Option<String>; 2]>::try_from(refused) {
            Ok([None, None]) => made.push(case),
            Ok(both) => {
                let [ours, theirs] = both.map(|why| why.unwrap_or_else(|| "created".to_owned()));
                played.find(case, Phase::Start, Difference { path: "refused".to_owned(), ours, theirs });
            }
            Err(_) => bail!("there are two nodes"),
        }
    }
    Ok(made)
}

/// What was seen of a pod, and the object at that moment.
#[derive(Debug, Clone)]
struct Look {
    pod: Value,
    seen: Value,
}

type Looks = Both<BTreeMap<String, Look>>;

fn see(played: &mut Played, phase: Phase, cases: &[&Case], [ours, theirs]: &Looks) {
    for case in cases {
        let of = |looks: &BTreeMap<String, Look>| {
            looks.get(&case.name).map_or(Value::Null, |one| one.seen.clone())
        };
        played.see(&case.name, phase, [of(ours), of(theirs)]);
    }
}

/// Looks at each pod when it has come to what it comes to, and not while it shows as it did `before`.
fn settled(
    place: &Place,
    cases: &[&Case],
    before: &BTreeMap<(usize, String), String>,
    say: &dyn Fn(&str),
) -> Result<Looks> {
    let begun = Instant::now();
    let mut looks = Looks::default();
    let mut since: BTreeMap<(usize, String), (String, Instant)> = BTreeMap::new();
    while looks.iter().any(|of| of.len() < cases.len()) {
        thread::sleep(PAUSE);
        let is_over = begun.elapsed() >= SETTLE_LIMIT;
        for (number, side) in place.sides.iter().enumerate() {
            let pods = pods(place, side)?;
            let mut now = Vec::new();
            for case in cases.iter().filter(|case| !looks[number].contains_key(&case.name)) {
                let pod = pods.get(&case.name).with_context(|| format!("pod {} is gone", case.name))?;
                let (key, status) = ((number, case.name.clone()), pod["status"].to_string());
                let steady = since.entry(key.clone()).or_insert_with(|| (status.clone(), Instant::now()));
                if steady.0 != status {
                    *steady = (status, Instant::now());
                }
                let has_changed = before.get(&key).is_none_or(|before| *before != steady.0);
                let is_there = has_changed
                    && case.until.is_none_or(|until| until(pod))
                    && steady.1.elapsed() >= steady_for(pod);
                if is_there || is_over {
                    now.push((case, pod));
                }
            }
            if now.is_empty() {
                continue;
            }
            let containers = Containers::of(side)?;
            for (case, pod) in now {
                if is_over {
                    say(&format!("{} on {}: not steady", case.name, side.node));
                }
                let seen = observe::whole(side, pod, &containers)?;
                if !is_over && !observe::has_told(pod, &seen) {
                    continue;
                }
                looks[number].insert(case.name.clone(), Look { pod: pod.clone(), seen });
            }
        }
    }
    Ok(looks)
}

fn pods(place: &Place, side: &Side) -> Result<BTreeMap<String, Value>> {
    let mut list = place.cluster.get_json(&side.pods())?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Ok(items.into_iter().map(|pod| (name(&pod), pod)).collect())
}

/// Kills the process of the first main container of each that runs on both, and gives the statuses of before.
fn kill_first(
    place: &Place,
    cases: &[&Case],
    played: &mut Played,
) -> Result<BTreeMap<(usize, String), String>> {
    let [ours, theirs] =
        place.sides.each_ref().map(|side| Ok::<_, Error>((pods(place, side)?, Containers::of(side)?)));
    let nodes = [ours?, theirs?];
    let mut before = BTreeMap::new();
    for case in cases {
        let first = |(pods, containers): &(BTreeMap<String, Value>, Containers)| {
            let pod = pods.get(&case.name).with_context(|| format!("pod {} is gone", case.name))?;
            let id = observe::id_of(&pod["status"]["containerStatuses"][0]);
            Ok::<_, Error>((pod["status"].to_string(), id.and_then(|id| containers.process(id))))
        };
        let [ours, theirs] = nodes.each_ref().map(first);
        let found = [ours?, theirs?];
        let runs = found.each_ref().map(|(_, process)| process.is_some());
        if runs != [true; 2] {
            let [ours, theirs] = runs.map(|runs| (if runs { "runs" } else { "does not run" }).to_owned());
            if ours != theirs {
                played.find(case, Phase::Crash, Difference { path: "killed".to_owned(), ours, theirs });
            }
            continue;
        }
        for (number, (status, process)) in found.into_iter().enumerate() {
            before.insert((number, case.name.clone()), status);
            let Some(process) = process else { continue };
            kill(Pid::from_raw(i32::try_from(process)?), Signal::SIGKILL)
                .with_context(|| format!("kill {}", case.name))?;
        }
    }
    Ok(before)
}

/// Nothing begins anew for it: statuses are the same, and so are the runs.
fn restart(place: &mut Place, cases: &[&Case], played: &mut Played) -> Result<()> {
    let before = place.sides.each_ref().map(|side| pods(place, side));
    place.restart_agents()?;
    thread::sleep(AFTER_RESTART);
    for case in cases {
        let mut seen = Vec::new();
        for (side, before) in place.sides.iter().zip(&before) {
            let Ok(before) = before else { continue };
            let (was, is) = (before[&case.name].clone(), place.pod(side, &case.name)?);
            if is_moving(&was) || is_moving(&is) {
                continue;
            }
            let runs = |pod: &Value| {
                let run = |one: &Value| observe::id_of(one).map(str::to_owned);
                observe::containers(pod).map(run).collect::<Vec<_>>()
            };
            let known = side.known(&is);
            let [old, new] = [&was, &is].map(|pod| observe::status(pod, &known));
            seen.push(json!({
                "status": new,
                "beganAnew": runs(&was) != runs(&is),
                "changed": differences(&old, &new).into_iter().map(|one| one.path).collect::<Vec<_>>(),
            }));
        }
        // One that is between two runs is where chance has it.
        if let Ok(both) = Both::try_from(seen) {
            played.see(&case.name, Phase::Restart, both);
        }
    }
    Ok(())
}

/// A container of it runs again and again.
fn is_moving(pod: &Value) -> bool {
    observe::containers(pod).any(|one| {
        let restarts = one["restartCount"].as_u64().unwrap_or(0) > 0;
        restarts && !one["state"]["running"].is_object()
    })
}

/// Deletes all, and looks at what each was when it went, and at what was told of it.
fn delete(place: &Place, cases: &[&Case], begun: &Looks, played: &mut Played) -> Result<()> {
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    let mut last: Both<BTreeMap<String, Value>> = Default::default();
    let [ours, theirs] =
        place.sides.each_ref().map(|side| Watch::start(&place.cluster, "pods", side.namespace));
    let watches = [ours?, theirs?];
    for watch in &watches {
        let mut shown = BTreeSet::new();
        watch.until("every pod to be shown", GONE_LIMIT, |seen| {
            shown.insert(seen.name().to_owned());
            names.iter().all(|name| shown.contains(*name)).then_some(())
        })?;
    }
    for side in &place.sides {
        for name in &names {
            place.delete(side, name)?;
        }
    }
    for (watch, gone) in watches.into_iter().zip(&mut last) {
        let seen = watch.until("every pod to be gone", GONE_LIMIT, |seen| {
            if seen.gone {
                gone.insert(seen.name().to_owned(), seen.object);
            }
            (gone.len() >= names.len()).then_some(())
        });
        seen.with_context(|| {
            format!("left: {:?}", names.iter().filter(|name| !gone.contains_key(**name)).collect::<Vec<_>>())
        })?;
    }
    thread::sleep(EVENTS_COME);
    let events = place.sides.each_ref().map(|side| observe::events(place, side));
    let [ours, theirs] = events;
    let events = [ours?, theirs?];
    let moves = |case: &Case| {
        let shown = begun.iter().map(|of| &of[&case.name].pod).chain(last.iter().map(|of| &of[&case.name]));
        shown.into_iter().any(is_moving)
    };
    for case in cases {
        let mut ends = Vec::new();
        let mut told = Vec::new();
        for (number, side) in place.sides.iter().enumerate() {
            let pod = &last[number][&case.name];
            // Its address is told until it has none any more.
            let known = side.known(&begun[number][&case.name].pod);
            let mut status = observe::status(pod, &known);
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
            let mut events = events[number].get(uid).cloned().unwrap_or_default();
            // In which run it is found is where chance has it.
            if moves(case) {
                observe::without_restarts(&mut status);
                events.retain(|event| event["reason"] != "Killing");
            }
            ends.push(json!({ "status": status }));
            told.push(json!({ "events": observe::told(&events, &known) }));
        }
        for (phase, both) in [(Phase::Deletion, ends), (Phase::Events, told)] {
            if let Ok(both) = Both::try_from(both) {
                played.see(&case.name, phase, both);
            }
        }
    }
    Ok(())
}
