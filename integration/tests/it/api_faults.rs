//! An API server that refuses, fails, dawdles, breaks off and lies, and what its node makes of that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::faults::{Asked, Fault, Faults, NOW, Of, Rule, Verb};
use berth_integration::cluster::{self, Cluster};
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::api_pods::{PODS, bound, gone, is_ready, is_well_behaved, path, restarts};
use crate::kit::{SOON, eventually, inside, measured, shell, sleeper};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_faults::what_is_refused_comes_again_when_it_may", refused),
        test("api_faults::a_slow_server_that_breaks_off_holds_up_no_pod", slow),
        test("api_faults::watches_that_end_expire_and_break_miss_nothing", watches),
        test("api_faults::a_server_that_is_behind_ends_no_pod", behind),
        test("api_faults::a_flood_of_changes_holds_up_no_pod_and_fills_no_memory", flood).within(LONG_LIMIT),
    ]
}

/// Requests about the pods of the node.
const OF_PODS: &str = "/api/v1/pods";
/// Requests about single pods.
const OF_A_POD: &str = "/api/v1/namespaces/default/pods/";

/// A control plane without controllers, a node of it, and somebody between.
fn start() -> Result<(Cluster, Faults, Node)> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let kubeconfig = cluster.node_kubeconfig(NODE_NAME)?;
    let faults = Faults::start(&cluster, &kubeconfig)?;
    let through = cluster.kubeconfig_through(&kubeconfig, faults.at())?;
    let flags = vec![format!("--kubeconfig={}", through.display()), "--v=4".to_owned()];
    let node = Node::start_with(&Settings { flags, ..Settings::default() })?;
    Ok((cluster, faults, node))
}

fn end(cluster: Cluster, faults: Faults, node: Node) -> Result<()> {
    faults.set(&[]);
    let pods = cluster.get_json(PODS)?;
    for pod in pods["items"].as_array().into_iter().flatten() {
        let is_mirror = pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string();
        let name = pod["metadata"]["name"].as_str().context("a pod without name")?;
        if !is_mirror {
            cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        }
    }
    node.remove_manifests()?;
    for pod in pods["items"].as_array().into_iter().flatten() {
        gone(&cluster, pod["metadata"]["name"].as_str().context("a pod without name")?)?;
    }
    is_well_behaved(&cluster)?;
    node.end()?;
    drop(faults);
    cluster.end()
}

fn make(cluster: &Cluster, name: &str) -> Result<()> {
    let main = shell("main", "exec sleep infinity", json!({}));
    cluster.create(PODS, &bound(name, json!({ "containers": [main] }))?).map(drop)
}

/// What pods run, by container and number of restarts.
fn running(node: &Node) -> Result<Vec<String>> {
    let pods = node.pods()?;
    let shown =
        |pod: &PodState| Ok(format!("{} {} {}", pod.name(), pod.container_id("main")?, pod.restarts("main")));
    let mut all = pods.iter().map(shown).collect::<Result<Vec<_>>>()?;
    all.sort();
    Ok(all)
}

/// How long a static pod takes from its manifest to its container.
fn static_start(node: &Node, name: &str) -> Result<Duration> {
    let began = Instant::now();
    node.apply(name, &sleeper(name))?;
    node.ready(name)?;
    Ok(began.elapsed())
}

fn asked(faults: &Faults, of: &Of, count: usize) -> Result<Vec<Asked>> {
    wait::until(&format!("{count} requests of {of:?}"), SOON, || {
        let all = faults.asked(of);
        Ok(if all.len() >= count { Look::Ready(all) } else { Look::NotYet(format!("{all:?}")) })
    })
}

/// Requests that are refused for now are sent again no sooner than they may be, with what is to be said then.
fn refused() -> Result<()> {
    const SECONDS: u32 = 2;
    let (cluster, faults, node) = start()?;
    let status = Of::new(&[Verb::Patch], &format!("{OF_A_POD}web/status"));
    let events = Of::new(&[Verb::Create], "/api/v1/namespaces/default/events");
    faults.set(&[
        Rule::times(&status, Fault::Refuse(429, Some(SECONDS)), 2),
        Rule::times(&status, Fault::Refuse(500, None), 2),
        Rule::times(&status, Fault::Refuse(409, None), 1),
        Rule::times(&events, Fault::Refuse(429, Some(1)), 1),
    ]);
    let began = Instant::now();
    let crashes = shell("main", "sleep 1; exit 1", json!({}));
    cluster.create(PODS, &bound("web", json!({ "containers": [crashes] }))?)?;
    // The pod goes on meanwhile.
    node.wait("web", "restarted", POD_LIMIT, |pod| pod.restarts("main") >= 1)?;
    let told = cluster.wait_for(&path("web"), "told", |pod| restarts(pod, "main") >= 1)?;
    ensure!(told["status"]["startTime"].is_string(), "{told}");

    let times: Vec<Instant> = faults.asked(&status).iter().map(|asked| asked.at).collect();
    let took = began.elapsed();
    ensure!(times.len() >= 6, "only {} requests", times.len());
    for pair in times[..3].windows(2) {
        let pause = pair[1] - pair[0];
        ensure!(pause >= Duration::from_secs(SECONDS.into()), "it came again after {pause:?}");
    }
    // Else two in a second, as long as it changes.
    let most = 7 + usize::try_from(took.as_secs())? * 2;
    ensure!(times.len() <= most, "{} requests in {took:?}", times.len());
    let sent = |reason: &'static str| {
        move |events: &Value| {
            let mut all = events["items"].as_array().into_iter().flatten();
            all.any(|event| event["reason"] == reason && event["involvedObject"]["name"] == "web")
        }
    };
    for reason in ["Pulled", "Created", "Started"] {
        cluster.wait_for("/api/v1/namespaces/default/events", reason, sent(reason))?;
    }
    end(cluster, faults, node)
}

/// Answers that take their time, or break off, are waited for by nobody but who asked.
fn slow() -> Result<()> {
    const DELAY: Duration = Duration::from_secs(4);
    let (cluster, faults, node) = start()?;
    make(&cluster, "before")?;
    cluster.wait_for(&path("before"), "ready", is_ready)?;

    faults.set(&[Rule::always(&Of::default(), Fault::Held)]);
    make(&cluster, "web")?;
    node.apply("beside", &sleeper("beside"))?;
    // The watch goes on, and no request about them is answered.
    for name in ["web", "beside"] {
        node.ready(name)?;
    }
    faults.set(&[Rule::always(&Of::default(), Fault::Delay(DELAY))]);
    cluster.wait_for(&path("web"), "told late", is_ready)?;
    let all = Of::new(&[], OF_PODS);
    // A server that says nothing for long has the agent watch anew.
    eventually("a watch of pods", &1, || Ok(faults.watches(&all)))?;
    // A list that is slow is not begun again and again while pods of the node change.
    let lists = Of::new(&Verb::LISTS, OF_PODS);
    faults.set(&[
        Rule::times(&Of::new(&[Verb::Watch], OF_PODS), Fault::Refuse(410, None), 1),
        Rule::always(&Of::default(), Fault::Delay(DELAY)),
    ]);
    faults.forget();
    faults.end_watches(&all);
    asked(&faults, &lists, 1)?;
    make(&cluster, "listed")?;
    node.apply("crashes", &crate::kit::script("crashes", "sleep 0.3; exit 1"))?;
    node.ready("listed")?;
    same("lists", faults.asked(&lists).len(), 1)?;
    node.remove("crashes")?;

    let before = {
        node.gone("crashes")?;
        running(&node)?
    };
    // Who writes sees by the watch what came of it.
    faults.set(&[Rule::times(&Of::new(&Verb::WRITES, "/"), Fault::Reset(30), 10)]);
    make(&cluster, "written")?;
    cluster.wait_for(&path("written"), "ready", is_ready)?;
    faults.set(&[
        Rule::times(&Of::new(&[Verb::Watch], OF_PODS), Fault::Refuse(410, None), 1),
        Rule::times(&lists, Fault::Reset(700), 2),
    ]);
    faults.forget();
    faults.end_watches(&all);
    make(&cluster, "after")?;
    cluster.wait_for(&path("after"), "ready", is_ready)?;
    ensure!(faults.asked(&lists).len() >= 3, "lists did not break off: {:?}", faults.asked(&lists));
    let now = running(&node)?;
    ensure!(before.iter().all(|pod| now.contains(pod)), "{before:?} became {now:?}");
    end(cluster, faults, node)
}

/// What the agent says of the watch of pods when it fails, and of any whose server is behind.
const FAILED: [&str; 2] =
    ["the API server does not tell which pods are wanted", "the API server is behind what was seen of it"];

/// Lines of the agent's log from a place on that say of the watch of pods that it failed. What else may be wrong on a busy machine is in
/// none.
fn failures(node: &Node, from: usize) -> Result<Vec<String>> {
    let log = files::read(node.agent.log())?;
    let says = |line: &&str| FAILED.iter().any(|words| line.contains(words));
    Ok(log[from..].lines().filter(says).map(str::to_owned).collect())
}

/// However a watch ends, what happens afterwards is seen; all is listed anew only where something may have been missed.
fn watches() -> Result<()> {
    let (cluster, faults, node) = start()?;
    let watch = Of::new(&[Verb::Watch], OF_PODS);
    let all = Of::new(&[], OF_PODS);
    make(&cluster, "first")?;
    cluster.wait_for(&path("first"), "ready", is_ready)?;
    let expired = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version" });
    let broken = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
        "reason": "InternalError", "message": "etcd event received with PrevKv=nil" });
    let error = |status: &Value| json!({ "type": "ERROR", "object": status }).to_string();
    let old = || Fault::Ends(0, vec![error(&expired)]);
    let lists = |fault| vec![Rule::times(&Of::new(&[Verb::StreamedList], OF_PODS), fault, 1)];
    let cases = [
        ("ended", vec![], vec![Verb::Watch]),
        (
            "expired",
            vec![Rule::times(&watch, Fault::Refuse(410, None), 1)],
            vec![Verb::Watch, Verb::StreamedList],
        ),
        ("told-expired", vec![Rule::times(&watch, old(), 1)], vec![Verb::Watch, Verb::StreamedList]),
        (
            "unstreamed",
            [vec![Rule::times(&watch, old(), 1)], lists(Fault::Refuse(400, None))].concat(),
            vec![Verb::Watch, Verb::StreamedList, Verb::List, Verb::Watch],
        ),
        (
            "broken",
            vec![Rule::times(&watch, Fault::Ends(0, vec![error(&broken)]), 1)],
            vec![Verb::Watch, Verb::Watch],
        ),
        (
            "garbage",
            vec![Rule::times(&watch, Fault::Ends(0, vec!["{\"type\":\"MODIFIED\",\"obj".to_owned()]), 1)],
            vec![Verb::Watch, Verb::StreamedList],
        ),
        ("busy", vec![Rule::times(&watch, Fault::Refuse(429, Some(1)), 1)], vec![Verb::Watch, Verb::Watch]),
        ("reset", vec![Rule::times(&watch, Fault::Reset(0), 1)], vec![Verb::Watch, Verb::Watch]),
        ("endless", vec![Rule::times(&watch, Fault::Endless, 1)], vec![Verb::Watch, Verb::Watch]),
        (
            "endless-list",
            [vec![Rule::times(&watch, old(), 1)], lists(Fault::Endless)].concat(),
            vec![Verb::Watch, Verb::StreamedList, Verb::StreamedList],
        ),
    ];
    for (name, rules, verbs) in cases {
        let is_silent = ["ended", "expired", "told-expired", "unstreamed"].contains(&name);
        let from = files::read(node.agent.log())?.len();
        faults.set(&rules);
        faults.forget();
        ensure!(faults.end_watches(&all) == 1, "{name}: no watch of pods");
        asked(&faults, &all, verbs.len()).with_context(|| name.to_owned())?;
        make(&cluster, name)?;
        node.ready(name).with_context(|| name.to_owned())?;
        let found: Vec<Verb> = faults.asked(&all).iter().map(|asked| asked.verb).collect();
        same(name, found, verbs)?;
        if is_silent {
            same(name, failures(&node, from)?, Vec::new())?;
        } else {
            // Whoever says it does not wait for the log.
            eventually(&format!("words about {name}"), &true, || Ok(!failures(&node, from)?.is_empty()))?;
        }
    }
    let peak = memory(&node, "VmHWM")?;
    ensure!(peak < 128 << 10, "answers without end took {peak} KiB");
    end(cluster, faults, node)
}

/// A line of the agent's own state, in kibibytes.
fn memory(node: &Node, field: &str) -> Result<u64> {
    let pid = node.agent.pid().context("no agent")?;
    let status = files::read(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(line.and_then(|line| line.split_whitespace().next()).context("no such field")?.parse()?)
}

fn list(cluster: &Cluster) -> Result<Value> {
    cluster.get_json(&format!("{OF_PODS}?fieldSelector=spec.nodeName%3D{NODE_NAME}"))
}

/// What a server says that is behind removes no pod that it does not know yet, and brings none back.
fn behind() -> Result<()> {
    let (cluster, faults, node) = start()?;
    make(&cluster, "old")?;
    cluster.wait_for(&path("old"), "ready", is_ready)?;
    let then = list(&cluster)?;
    cluster.request("DELETE", &path("old"), "application/json", &json!({}))?;
    gone(&cluster, "old")?;
    for name in ["one", "two"] {
        make(&cluster, name)?;
        cluster.wait_for(&path(name), "ready", is_ready)?;
    }
    let before = running(&node)?;

    let lists = Of::new(&Verb::LISTS, OF_PODS);
    let unstreamed = Rule::times(&Of::new(&[Verb::StreamedList], OF_PODS), Fault::Refuse(400, None), 1);
    let broken = Rule::times(&Of::new(&[Verb::Watch], OF_PODS), Fault::Ends(0, vec!["x".to_owned()]), 1);
    let stale = Rule::always(&Of::new(&[], OF_PODS), Fault::Stale(then));
    // In both forms.
    for (next, rules) in
        [("three", vec![broken.clone(), unstreamed, stale.clone()]), ("four", vec![broken, stale])]
    {
        faults.set(&rules);
        faults.forget();
        faults.end_watches(&Of::new(&[], OF_PODS));
        let all = asked(&faults, &lists, 3)?;
        let has_from = |asked: &Asked| {
            !asked.query.ends_with("resourceVersion=") && asked.query.contains("NotOlderThan")
        };
        ensure!(all.iter().all(has_from), "it asks for any version: {all:?}");
        let now = running(&node)?;
        ensure!(before.iter().all(|pod| now.contains(pod)), "{before:?} became {now:?}");
        ensure!(node.pod("old")?.is_none(), "a pod came back");
        // A server that has caught up is believed.
        faults.set(&[]);
        make(&cluster, next)?;
        cluster.wait_for(&path(next), "ready", is_ready)?;
    }
    let log = files::read(node.agent.log())?;
    ensure!(log.contains("the server is behind"), "nobody is told");
    let now = running(&node)?;
    ensure!(before.iter().all(|pod| now.contains(pod)) && now.len() == 4, "{before:?} became {now:?}");
    end(cluster, faults, node)
}

/// Pods that change, and how often each does.
const FLOODED: usize = 20;
const CHANGES: usize = 500;
/// By how much the agent's memory may grow: what waits is bounded by the windows of one stream and of its buffers, some mebibytes.
const GROWTH_KIB: u64 = 24 << 10;
/// So many pods start meanwhile at most, one after another: all of them are removed at the end. And so many at least: the flood goes on
/// until then.
const STARTED_MAX: usize = 40;
const STARTED_MIN: usize = 5;

/// Ten thousand changes and more, as fast as they are read.
fn flood() -> Result<()> {
    let (cluster, faults, node) = start()?;
    let mount = json!({ "volumeMounts": [{ "name": "self", "mountPath": "/self" }] });
    let main = shell("main", "exec sleep infinity", mount);
    let items = json!([{ "path": "change", "fieldRef": { "fieldPath": "metadata.annotations['change']" } }]);
    let volume = json!([{ "name": "self", "downwardAPI": { "items": items } }]);
    let names: Vec<String> = (0..FLOODED).map(|number| format!("p{number}")).collect();
    for name in &names {
        let mut pod = bound(name, json!({ "containers": [main.clone()], "volumes": volume }))?;
        pod["metadata"]["annotations"] = json!({ "change": "0" });
        cluster.create(PODS, &pod)?;
    }
    for name in &names {
        cluster.wait_for(&path(name), "ready", is_ready)?;
    }
    let mut usual = Duration::ZERO;
    for name in ["usual-0", "usual-1", "usual-2"] {
        usual = usual.max(static_start(&node, name)?);
    }
    let before = running(&node)?;
    let rss = memory(&node, "VmRSS")?;
    let pods = list(&cluster)?["items"].as_array().context("no pods")?.clone();
    let pods: Vec<Value> =
        pods.into_iter().filter(|pod| pod["metadata"]["annotations"]["change"].is_string()).collect();
    same("pods", pods.len(), FLOODED)?;
    let lines = changes(&pods);
    let began = Instant::now();
    let (told, during) = flooded(&node, || faults.tell(&Of::new(&[], OF_PODS), lines.iter().cloned()))?;
    for name in &names {
        let pod = node.ready(name)?;
        eventually(&format!("the last change of {name}"), &CHANGES.to_string(), || {
            inside(&pod, "cat /self/change")
        })?;
    }
    let all = began.elapsed();
    let peak = memory(&node, "VmHWM")?;
    measured(&format!(
        "flood: told in {told:?}, done after {all:?}; static pods took {usual:?} before and {during:?} meanwhile; \
         {rss} KiB before and {peak} KiB at most"
    ));
    // A flood that holds pods up is felt by most of them. Any of them may take long for reasons of the machine: starts wait for the kernel,
    // which has other labs to end.
    let most = usual * 4 + Duration::from_secs(1);
    let late = during.iter().filter(|took| **took > most).count();
    ensure!(late * 2 < during.len(), "{late} static pods took longer: {during:?}, and {usual:?} before");
    ensure!(peak < rss + GROWTH_KIB, "{rss} KiB grew to {peak} KiB");
    let now = running(&node)?;
    ensure!(before.iter().all(|pod| now.contains(pod)), "{before:?} became {now:?}");
    end(cluster, faults, node)
}

/// Tells all changes, again until enough pods were started meanwhile, one after another: how long that took, and how long each of them did.
fn flooded(node: &Node, tell: impl Fn() -> Result<()> + Sync) -> Result<(Duration, Vec<Duration>)> {
    let is_enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let began = Instant::now();
            tell()?;
            while !is_enough.load(Ordering::Relaxed) {
                tell()?;
            }
            Ok::<_, anyhow::Error>(began.elapsed())
        });
        let starts = || {
            let mut during = Vec::new();
            while during.len() < STARTED_MIN || during.len() < STARTED_MAX && !flood.is_finished() {
                during.push(static_start(node, &format!("during-{}", during.len()))?);
                is_enough.store(during.len() >= STARTED_MIN, Ordering::Relaxed);
            }
            Ok::<_, anyhow::Error>(during)
        };
        let during = starts();
        is_enough.store(true, Ordering::Relaxed);
        let told = flood.join().ok().context("the flood")??;
        Ok((told, during?))
    })
}

/// All changes of these pods, in the order in which a watch tells them.
fn changes(pods: &[Value]) -> Vec<String> {
    let all = (1..=CHANGES).flat_map(|change| pods.iter().map(move |pod| (change, pod)));
    let line = |(change, pod): (usize, &Value)| {
        let mut pod = pod.clone();
        pod["kind"] = json!("Pod");
        pod["apiVersion"] = json!("v1");
        pod["metadata"]["resourceVersion"] = json!(NOW);
        pod["metadata"]["annotations"]["change"] = json!(change.to_string());
        json!({ "type": "MODIFIED", "object": pod }).to_string()
    };
    all.map(line).collect()
}
