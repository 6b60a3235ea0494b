//! Fifty pods of a real API server, of every kind, while the agent is killed at random instants and others come and go: each time it is
//! back, the API becomes right; nothing was started again, no pod lost its readiness for a moment, no grace period began anew, and
//! no event was told twice.

mod returns;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::cluster::Cluster;
use berth_integration::cluster::watch::{Seen, Watch};
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::records::Records;
use berth_integration::wait::{self, Look};
use jiff::{SignedDuration, Timestamp};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::{Value, json};

use self::returns::{Return, check_returns, while_looked_at};
use crate::api_pods::{MAPS, PODS, bound, is_ready, is_well_behaved, path, restarts, start};
use crate::chaos::Dice;
use crate::kit::{FOR_EVER, SOON, shell, task_pid, with};
use crate::suite::{Body, LONG_LIMIT, Test, of, same};

/// Seeds when nobody asks for more.
const SEEDS: u64 = 1;
/// Kills of the agent, each with pods that come just before and go just after.
const KILLS: u64 = 6;
/// Pods that come with each kill.
const BURST: u64 = 3;
/// What pods that ignore their stop signal get to end, seconds.
const GRACE: u32 = 20;
/// How long fifty pods may take to be as they stay, on a machine busy with other tests.
const SETTLE_LIMIT: Duration = Duration::from_secs(150);
/// How long after an event of a run the API may lack it. By then the next one is further away.
const RUN_IS_TOLD: Duration = Duration::from_secs(10);
/// Longest time between two kills, and that the agent is away, milliseconds.
const CALM: u64 = 2500;
const AWAY: u64 = 1500;

pub(crate) fn tests() -> Vec<Test> {
    let seeds = env::var("SEEDS").ok().and_then(|number| number.parse().ok()).unwrap_or(SEEDS);
    let with_seed = |seed: u64| {
        of(format!("api_kills::fifty_pods_do_not_notice_seed_{seed}"), Body::Of(fifty_pods, seed.to_string()))
    };
    (1..=seeds).map(|seed| with_seed(seed).long().within(LONG_LIMIT)).collect()
}

/// What a pod does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// It runs, and says by a command that it is ready.
    Asked,
    /// It runs, and is ready when it can be reached.
    Serves,
    /// It runs with a ConfigMap.
    Mapped,
    /// It ends and is started again, for ever.
    Crashes,
    /// It has ended for good.
    Done,
    /// Its image is nowhere.
    Missing,
    /// It is deleted, and ignores that.
    Ends,
    /// It runs until it is killed while the agent is away, one of them each time.
    Falls,
}

/// Fifty in all.
const POPULATION: [(Kind, usize); 8] = [
    (Kind::Asked, 8),
    (Kind::Serves, 7),
    (Kind::Mapped, 7),
    (Kind::Crashes, 7),
    (Kind::Done, 5),
    (Kind::Missing, 4),
    (Kind::Ends, 6),
    (Kind::Falls, 6),
];

impl Kind {
    fn spec(self) -> Value {
        let times = json!({ "periodSeconds": 5, "timeoutSeconds": 30 });
        let probe = |probe: Value| json!({ "readinessProbe": with(times.clone(), probe) });
        let of = |container: Value| json!({ "containers": [container] });
        match self {
            Self::Asked => {
                of(shell("main", FOR_EVER_AT_ONCE, probe(json!({ "exec": { "command": ["true"] } }))))
            }
            Self::Serves => {
                let script = "mkdir /www; httpd -p 80 -h /www; exec sleep infinity";
                of(shell("main", script, probe(json!({ "tcpSocket": { "port": 80 } }))))
            }
            Self::Mapped => {
                let mounts = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
                let volumes = json!({ "volumes": [{ "name": "v", "configMap": { "name": "m" } }] });
                with(of(shell("main", FOR_EVER_AT_ONCE, mounts)), volumes)
            }
            Self::Crashes => of(shell("main", "sleep 1; exit 1", json!({}))),
            Self::Done => with(of(shell("main", "exit 0", json!({}))), json!({ "restartPolicy": "Never" })),
            Self::Falls => {
                with(of(shell("main", FOR_EVER_AT_ONCE, json!({}))), json!({ "restartPolicy": "Never" }))
            }
            Self::Missing => {
                of(json!({ "name": "main", "image": "registry.invalid/nowhere:1", "command": ["true"] }))
            }
            Self::Ends => {
                let script = format!("trap '' TERM; {FOR_EVER}");
                with(of(shell("main", &script, json!({}))), json!({ "terminationGracePeriodSeconds": GRACE }))
            }
        }
    }

    /// Whether a pod is as it will stay.
    fn is_settled(self, pod: &Value) -> bool {
        match self {
            Self::Asked | Self::Serves | Self::Mapped | Self::Ends | Self::Falls => is_ready(pod),
            Self::Crashes => restarts(pod, "main") >= 1,
            Self::Done => pod["status"]["phase"] == "Succeeded",
            Self::Missing => {
                let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
                matches!(waiting.as_str(), Some("ErrImagePull" | "ImagePullBackOff"))
            }
        }
    }

    /// Whether it runs, and nothing is to change about it.
    fn goes_on(self) -> bool {
        matches!(self, Self::Asked | Self::Serves | Self::Mapped)
    }

    fn of(pod: &str) -> Option<Self> {
        let all = POPULATION.into_iter().map(|(kind, _)| kind);
        all.into_iter().find(|kind| pod.starts_with(&kind.prefix()))
    }

    fn prefix(self) -> String {
        format!("{self:?}-").to_lowercase()
    }
}

/// What ends at once when it is asked to.
const FOR_EVER_AT_ONCE: &str = "exec sleep infinity";

fn fifty_pods(seed: &str) -> Result<()> {
    let mut dice = Dice::of(seed)?;
    let (cluster, mut node) = start(Settings::default())?;
    cluster.create(
        MAPS,
        &json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" }, "data": { "a": "b" } }),
    )?;
    for (kind, count) in POPULATION {
        for number in 0..count {
            create(&cluster, &format!("{}{number}", kind.prefix()), kind)?;
        }
    }
    let before = settled(&cluster)?;
    let watch = Watch::start(&cluster, "pods", "default")?;
    // What comes and goes before it has begun is not seen.
    let mut unseen: BTreeSet<String> = before.keys().cloned().collect();
    watch.until("fifty pods", SOON, |seen| {
        unseen.remove(seen.name());
        unseen.is_empty().then_some(())
    })?;
    for pod in before.keys().filter(|pod| Kind::of(pod) == Some(Kind::Ends)) {
        delete(&cluster, pod)?;
    }
    let mut returns = Vec::new();
    for kill in 0..KILLS {
        let victim = before.get(&falls(kill)).context("nobody falls")?;
        let back = killed_once(&cluster, &mut node, &mut dice, (kill, victim))
            .with_context(|| format!("kill {kill} of seed {seed}"))?;
        returns.push(back);
    }
    for number in 0..BURST {
        delete(&cluster, &burst(KILLS - 1, number))?;
    }
    let seen = until_gone(&watch, |pod| pod.starts_with("burst-") || Kind::of(pod) == Some(Kind::Ends))?;

    check_seen(&seen, &before)?;
    check_grace(&seen, &returns)?;
    check_events(&cluster)?;
    let audit = is_well_behaved(&cluster)?;
    check_returns(&audit, &node, &returns)?;
    drop(watch);
    for pod in pods(&cluster)?.keys() {
        delete(&cluster, pod)?;
    }
    wait_for_no("pods that are left", || Ok(pods(&cluster)?.into_keys().collect()))?;
    node.end()?;
    cluster.end()
}

/// Pods come, those of the time before go, and in the middle of it the agent is killed, another pod ends, and the agent comes back.
fn killed_once(
    cluster: &Cluster,
    node: &mut Node,
    dice: &mut Dice,
    (kill, victim): (u64, &Value),
) -> Result<Return> {
    thread::sleep(Duration::from_millis(dice.below(CALM)));
    for number in 0..BURST {
        create(cluster, &burst(kill, number), Kind::Asked)?;
        if kill > 0 {
            delete(cluster, &burst(kill - 1, number))?;
        }
    }
    dice.rest();
    node.agent.kill()?;
    let container = victim["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
    let pid = task_pid(container.strip_prefix("containerd://").context("no container")?)?;
    signal::kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
    thread::sleep(Duration::from_millis(dice.below(AWAY)));
    let falls = falls(kill);
    let begun = Timestamp::now();
    let right_after = while_looked_at(cluster, &falls, || {
        node.agent.start()?;
        let back = Instant::now();
        let is_burst = |pod: &String| pod.starts_with("burst-");
        let wrong_but_bursts =
            || Ok(wrong(cluster, node)?.into_iter().filter(|pod| !is_burst(pod)).collect());
        wait_for_no("pods of which the API is wrong", wrong_but_bursts)?;
        Ok(back.elapsed())
    })?;
    wait_for_no("pods of which the API is wrong", || wrong(cluster, node))?;
    wait_for_no("containers that run in containerd alone or in the API alone", || run_in_one(cluster))?;
    Ok(Return { falls, begun, right_after })
}

/// The pod that ends while the agent is away.
fn falls(kill: u64) -> String {
    format!("{}{kill}", Kind::Falls.prefix())
}

fn burst(kill: u64, number: u64) -> String {
    format!("burst-{kill}-{number}")
}

fn create(cluster: &Cluster, pod: &str, kind: Kind) -> Result<()> {
    // A node without the cluster's name server tells so each time that it prepares a pod which wants it.
    let spec = with(kind.spec(), json!({ "dnsPolicy": "Default" }));
    cluster.create(PODS, &bound(pod, spec)?).map(drop)
}

fn delete(cluster: &Cluster, pod: &str) -> Result<()> {
    cluster.request("DELETE", &path(pod), "application/json", &json!({})).map(drop)
}

fn pods(cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    let list = cluster.get_json(PODS)?;
    let items = list["items"].as_array().context("no list")?;
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Ok(items.iter().map(|pod| (name(pod), pod.clone())).collect())
}

/// Waits until each pod is as it will stay.
fn settled(cluster: &Cluster) -> Result<BTreeMap<String, Value>> {
    wait::until("fifty pods to be as they stay", SETTLE_LIMIT, || {
        let pods = pods(cluster)?;
        let is_settled =
            |(name, pod): (&String, &Value)| Kind::of(name).is_some_and(|kind| kind.is_settled(pod));
        let others: Vec<_> =
            pods.iter().filter(|pod| !is_settled(*pod)).map(|(name, _)| name.clone()).collect();
        Ok(if others.is_empty() { Look::Ready(pods) } else { Look::NotYet(format!("{others:?} are not")) })
    })
}

/// Waits until there is none.
fn wait_for_no(what: &str, mut look: impl FnMut() -> Result<Vec<String>>) -> Result<()> {
    wait::until(&format!("no {what}"), POD_LIMIT, || {
        let found = look()?;
        Ok(if found.is_empty() { Look::Ready(()) } else { Look::NotYet(format!("{found:?}")) })
    })
}

/// Pods that the API shows otherwise than the node, one of them not at all.
fn wrong(cluster: &Cluster, node: &Node) -> Result<Vec<String>> {
    let here = node.pods()?;
    let here: BTreeMap<&str, &Value> = here.iter().map(|pod| (pod.name(), &pod.0)).collect();
    let there = pods(cluster)?;
    let differs = |(name, pod): (&String, &Value)| {
        let shown = here.get(name.as_str()).map(|pod| told(pod));
        (shown.as_ref() != Some(&told(pod))).then(|| format!("{name}: {} {shown:?}", told(pod)))
    };
    let unknown =
        here.keys().filter(|name| !there.contains_key(**name)).map(|name| format!("{name} is gone"));
    Ok(there.iter().filter_map(differs).chain(unknown).collect())
}

/// Containers that run by what containerd says alone, or by what the API says alone.
fn run_in_one(cluster: &Cluster) -> Result<Vec<String>> {
    let tasks = Records::open()?.tasks()?.into_iter().filter(|task| task.runs);
    let in_containerd: BTreeSet<String> = tasks.map(|task| task.id).collect();
    let pods = pods(cluster)?;
    let containers = pods.values().filter_map(|pod| pod["status"]["containerStatuses"].as_array()).flatten();
    let told = containers.filter(|one| one["state"]["running"].is_object());
    let told = told.filter_map(|one| one["containerID"].as_str()?.strip_prefix("containerd://"));
    let told = told.map(ToOwned::to_owned).collect();
    Ok(in_containerd.symmetric_difference(&told).cloned().collect())
}

/// What a status tells of what runs.
fn told(pod: &Value) -> Value {
    let containers = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
    let told = containers.iter().map(|one| {
        let state: Vec<&String> =
            one["state"].as_object().into_iter().flat_map(|state| state.keys()).collect();
        json!([one["containerID"], one["restartCount"], one["ready"], state])
    });
    json!([pod["status"]["phase"], is_ready(pod), told.collect::<Vec<_>>()])
}

/// All that the watch sees until pods are gone.
fn until_gone(watch: &Watch, which: impl Fn(&str) -> bool) -> Result<Vec<Seen>> {
    let (mut all, mut open) = (Vec::new(), BTreeMap::new());
    let ends = POPULATION.iter().find(|(kind, _)| *kind == Kind::Ends).map_or(0, |(_, count)| *count);
    let expected = ends + usize::try_from(KILLS * BURST)?;
    watch.until("the end of what was deleted", POD_LIMIT, |seen| {
        if which(seen.name()) {
            open.insert(seen.name().to_owned(), seen.gone);
        }
        all.push(seen);
        (open.len() == expected && open.values().all(|gone| *gone)).then_some(())
    })?;
    Ok(all)
}

/// Nothing was started again, no readiness was lost for a moment, no end taken back, no restart forgotten.
fn check_seen(seen: &[Seen], before: &BTreeMap<String, Value>) -> Result<()> {
    let mut last: BTreeMap<&str, &Value> = BTreeMap::new();
    for change in seen {
        let (name, pod) = (change.name(), &change.object);
        let earlier = last.insert(name, pod).or_else(|| before.get(name));
        let Some(earlier) = earlier.filter(|earlier| earlier["metadata"]["uid"] == pod["metadata"]["uid"])
        else {
            continue;
        };
        let is_to_go = pod["metadata"]["deletionTimestamp"].is_string();
        let may_end = matches!(Kind::of(name), Some(Kind::Crashes | Kind::Falls));
        if is_ready(earlier) && !is_to_go && !may_end {
            ensure!(is_ready(pod), "{name} was ready: {}", pod["status"]);
        }
        if Kind::of(name).is_some_and(Kind::goes_on) {
            same(&format!("what runs of {name}"), told(pod), told(earlier))?;
        }
        ensure!(restarts(pod, "main") >= restarts(earlier, "main"), "{name}: {}", pod["status"]);
        if ["Succeeded", "Failed"].iter().any(|phase| earlier["status"]["phase"] == *phase) {
            same(&format!("the phase of {name}"), &pod["status"]["phase"], &earlier["status"]["phase"])?;
        }
    }
    Ok(())
}

/// What ignores its stop signal is killed when its first grace period is over, or by the next agent where none was there then; not at
/// the end of a period that this agent began anew. All times of pods are to the second.
fn check_grace(seen: &[Seen], returns: &[Return]) -> Result<()> {
    let (second, grace) = (SignedDuration::from_secs(1), SignedDuration::from_secs(GRACE.into()));
    for end in seen.iter().filter(|seen| seen.gone && Kind::of(seen.name()) == Some(Kind::Ends)) {
        let name = end.name();
        let state = &end.object["status"]["containerStatuses"][0]["state"]["terminated"];
        let ended = time_of(&state["finishedAt"]).with_context(|| format!("the end of {name}"))?;
        let of_pod = seen.iter().filter(|seen| seen.name() == name);
        let mut times = of_pod.filter_map(|seen| time_of(&seen.object["metadata"]["deletionTimestamp"]).ok());
        // The first one is the API's, the last one is when the node had it removed.
        let until = times.next().with_context(|| format!("{name} was not seen to be deleted"))?;
        ensure!(ended + second >= until, "{name} had until {until}, and was killed at {ended}");
        let begun = returns.iter().map(|one| one.begun).filter(|begun| *begun <= ended + second).max();
        let is_right = begun.is_none_or(|begun| is_nearer(ended, until.max(begun), begun + grace));
        ensure!(is_right, "{name} had until {until}, and was killed at {ended} by the agent of {begun:?}");
    }
    Ok(())
}

/// Whether something came when it was due, rather than at a later time, which tells nothing where both are nearly one: a busy machine is
/// late by seconds.
fn is_nearer(at: Timestamp, due: Timestamp, later: Timestamp) -> bool {
    let between = later.duration_since(due);
    between < SignedDuration::from_secs(12) || at < due + between / 2
}

fn time_of(field: &Value) -> Result<Timestamp> {
    field.as_str().with_context(|| format!("no time: {field}"))?.parse().context("a time")
}

/// What happened once is told once, and what is started again is told as often as it was.
fn check_events(cluster: &Cluster) -> Result<()> {
    let list = cluster.get_json("/api/v1/namespaces/default/events")?;
    let mut told: BTreeMap<[String; 4], u64> = BTreeMap::new();
    for event in list["items"].as_array().context("no list")? {
        let object = &event["involvedObject"];
        let key = [&object["name"], &object["fieldPath"], &event["reason"], &event["message"]];
        let key = key.map(|part| part.as_str().unwrap_or_default().to_owned());
        *told.entry(key).or_default() += event["count"].as_u64().unwrap_or(1);
    }
    let known = pods(cluster)?;
    // A run that is being made is told of before the API has it.
    let runs = |name: &str, told: u64| {
        let runs = |pods: &BTreeMap<String, Value>| pods.get(name).map_or(1, |pod| restarts(pod, "main") + 1);
        if told <= runs(&known) {
            return Ok(runs(&known));
        }
        wait::until(&format!("the run of {name} that was told of"), RUN_IS_TOLD, || {
            let runs = runs(&pods(cluster)?);
            Ok(if told <= runs { Look::Ready(runs) } else { Look::NotYet(format!("{runs} runs of {told}")) })
        })
    };
    for ([name, path, reason, message], times) in &told {
        let most = match (Kind::of(name), reason.as_str()) {
            // What goes on for as long as a fault does is told again and again, as by the kubelet.
            (_, "BackOff" | "FailedKillPod" | "Unhealthy") | (Some(Kind::Missing), _) => continue,
            (Some(Kind::Crashes), _) => {
                runs(name, *times).with_context(|| format!("{name} {path}: {reason}"))?
            }
            (Some(_), _) => 1,
            (None, _) if name.starts_with("burst-") => 1,
            (None, _) => continue,
        };
        ensure!(*times <= most, "{name} {path}: {reason} {message:?} was told {times} times, not {most}");
    }
    let started = told.keys().filter(|[_, _, reason, _]| reason == "Started").count();
    ensure!(started >= 40, "only {started} pods are told to have started: {told:?}");
    Ok(())
}
