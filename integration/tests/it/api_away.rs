//! An API server that is away for long, and a node that is cut off from one that is not.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::proxy::{Network, Proxy};
use berth_integration::cluster::{self, AuditEvent, Cluster, Part};
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::api_pods::{
    PODS, SECRETS, audit_of, bound, gone, is_ready, is_well_behaved, patches, path, restarts, start,
};
use crate::kit::{FOR_EVER, beside, eventually, go_on, inside, script, shell, wait_at, with};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_away::a_server_that_is_away_for_two_minutes_changes_nothing", two_minutes)
            .long()
            .within(LONG_LIMIT),
        test("api_away::a_node_that_was_cut_off_ends_what_was_evicted", cut_off).long(),
        test("api_away::what_an_earlier_agent_began_has_its_objects_when_it_restarts", begun_earlier),
    ]
}

/// Between two looks at what must not change.
const LOOK_EVERY: Duration = Duration::from_secs(2);

fn two_minutes() -> Result<()> {
    server_away(Duration::from_secs(120))
}

/// The API server is away for so long.
pub(crate) fn server_away(long: Duration) -> Result<()> {
    let (mut cluster, node) = start(Settings::default())?;
    let main = |script: &str| shell("main", script, json!({}));
    let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 30 });
    let probed = shell("main", FOR_EVER, json!({ "readinessProbe": probe }));
    cluster.create(PODS, &bound("stays", json!({ "containers": [probed] }))?)?;
    cluster.create(PODS, &bound("crashes", json!({ "containers": [main("sleep 1; exit 1")] }))?)?;
    let once = json!({ "restartPolicy": "Never", "containers": [main("sleep 20; exit 7")] });
    cluster.create(PODS, &bound("ends", once)?)?;
    node.apply("static", &script("static", "sleep 1; exit 1"))?;
    cluster.wait_for(&path("stays"), "ready", is_ready)?;
    cluster.wait_for(&path("crashes"), "restarted", |pod| restarts(pod, "main") >= 1)?;
    node.wait("static", "restarted", POD_LIMIT, |pod| pod.restarts("main") >= 1)?;
    let before = node.ready("stays")?;
    let id = before.container_id("main")?.to_owned();
    let count = |name: &str| Ok::<_, anyhow::Error>(node.pod(name)?.context("no pod")?.restarts("main"));
    let restarted = (count("static")?, count("crashes")?);
    cluster.kill_api_server()?;
    let patched = counts(&cluster.audit()?);

    let began = Instant::now();
    while began.elapsed() < long {
        thread::sleep(LOOK_EVERY);
        let now = node.pod("stays")?.context("the pod is gone")?;
        ensure!(now.is_ready() && now.container_id("main")? == id, "after {:?}: {now}", began.elapsed());
    }
    let now = (count("static")?, count("crashes")?);
    ensure!(now.0 > restarted.0 && now.1 > restarted.1, "restarts were {restarted:?}, and are {now:?}");

    cluster.start_api_server()?;
    let told = cluster.wait_for(&path("ends"), "told", |pod| pod["status"]["phase"] == "Failed")?;
    same("exit code", exit_code(&told), &json!(7))?;
    cluster.wait_for(&path("crashes"), "told", |pod| restarts(pod, "main") >= now.1)?;
    cluster.wait_for(&path(&format!("static-{NODE_NAME}")), "told", |pod| restarts(pod, "main") >= now.0)?;
    let audit = is_well_behaved(&cluster)?;
    let before = |name: &str| patched.get(name).copied().unwrap_or(0);
    for (name, most) in [("stays", 0), ("ends", 1)] {
        let sent = patches(&audit, name).len() - before(name);
        ensure!(sent <= most, "{sent} patches of {name}");
    }
    for (name, known) in [("crashes", now.1), (&format!("static-{NODE_NAME}"), now.0)] {
        is_one_backlog(&patches(&audit, name)[before(name)..], known)
            .with_context(|| format!("patches of {name}"))?;
    }
    for name in counts(&audit).keys() {
        never_back(&audit, name)?;
    }
    let stays = cluster.get_json(&path("stays"))?;
    same("restarts", restarts(&stays, "main"), 0)?;
    for name in ["stays", "crashes", "ends"] {
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        gone(&cluster, name)?;
    }
    node.end()?;
    cluster.end()
}

fn exit_code(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
}

/// How often the status of each pod was patched.
fn counts(audit: &[AuditEvent]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in audit.iter().filter(|event| event.is("patch", "pods/status")) {
        *counts.entry(event.name().to_owned()).or_default() += 1;
    }
    counts
}

/// What has happened to a pod that crashes while nobody could be told is told at once, up to a number of restarts that was known by then.
/// After that it goes on crashing: each run begins, ends and is waited for.
fn is_one_backlog(sent: &[&Value], known: u64) -> Result<()> {
    const OF_A_RUN: u64 = 3;
    let told: Vec<u64> = told_restarts(sent).collect();
    let (Some(first), Some(last)) = (told.first(), told.last()) else { bail!("nothing was told") };
    ensure!(*first >= known, "{first} restarts were told first, and {known} were known");
    let most = (last.saturating_sub(*first) + 1) * OF_A_RUN;
    ensure!(u64::try_from(sent.len())? <= most, "{} from {first} to {last} restarts: {sent:?}", sent.len());
    Ok(())
}

/// The restarts that each patch tells of, as far as it tells of containers.
fn told_restarts(sent: &[&Value]) -> impl Iterator<Item = u64> {
    let tells = sent.iter().filter(|patch| patch["status"]["containerStatuses"].is_array());
    tells.map(|patch| restarts(patch, "main"))
}

/// No patch of a status tells of fewer restarts than one before.
fn never_back(audit: &[AuditEvent], name: &str) -> Result<()> {
    let told: Vec<u64> = told_restarts(&patches(audit, name)).collect();
    ensure!(told.is_sorted(), "restarts of {name} as they were told: {told:?}");
    Ok(())
}

/// A Secret that makes its name the variable `WORD`.
pub(crate) fn word(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": { "WORD": name } })
}

/// How often the node began to follow a Secret.
pub(crate) fn followed(cluster: &Cluster, secret: &str) -> Result<usize> {
    watches(cluster, secret, "ResponseStarted")
}

/// Whether the node followed a Secret and has let it go.
pub(crate) fn is_let_go(cluster: &Cluster, secret: &str) -> Result<bool> {
    Ok(watches(cluster, secret, "ResponseComplete")? > 0)
}

fn watches(cluster: &Cluster, secret: &str, stage: &str) -> Result<usize> {
    let is_one = |event: &&AuditEvent| {
        event.is_by_node(NODE_NAME)
            && event.is("watch", "secrets")
            && event.name() == secret
            && event.stage == stage
            && !event.is_refused()
    };
    Ok(cluster.audit()?.iter().filter(is_one).count())
}

/// The agent has heard of services, which each start of a container needs, and of what it asked for before: a pod that was made later runs.
fn services_are_heard(cluster: &Cluster) -> Result<()> {
    let main = shell("main", "exec sleep infinity", json!({}));
    cluster.create(PODS, &bound("later", json!({ "containers": [main] }))?)?;
    cluster.wait_for(&path("later"), "ready", is_ready).map(drop)
}

/// A container of an earlier agent ends while the server is away. Of another one, which never runs again, nothing is asked.
fn begun_earlier() -> Result<()> {
    let (mut cluster, mut node) = start(Settings::default())?;
    for (name, policy) in [("again", "Always"), ("once", "Never")] {
        cluster.create(SECRETS, &word(name))?;
        let from = json!({ "envFrom": [{ "secretRef": { "name": name } }] });
        let main = shell("main", &format!("{}; exit 1", wait_at("door")), from);
        let spec = json!({ "restartPolicy": policy, "containers": [main] });
        cluster.create(PODS, &bound(name, spec)?)?;
        cluster.wait_for(&path(name), "ready", is_ready)?;
    }
    node.agent.kill()?;
    node.agent.start()?;
    eventually("the secret to be followed once more", &2, || followed(&cluster, "again"))?;
    let again = node.ready("again")?;
    services_are_heard(&cluster)?;
    cluster.kill_api_server()?;
    go_on(&again, "main", "door")?;
    let again =
        node.wait("again", "restarted", POD_LIMIT, |pod| pod.restarts("main") == 1 && pod.is_ready())?;
    same("its variable", inside(&again, "echo $WORD")?, "again".to_owned())?;

    cluster.start_api_server()?;
    let is_told = |pod: &Value| restarts(pod, "main") == 1 && is_ready(pod);
    cluster.wait_for(&path("again"), "told", is_told)?;
    // A server that begins may not know yet which objects the node's pods have, and refuses: the node asks again while there is the pod.
    eventually(
        "the secret to be followed at the new server",
        &true,
        || Ok(followed(&cluster, "again")? > 2),
    )?;
    same("how often the other's secret was followed", followed(&cluster, "once")?, 1)?;
    for name in ["again", "once", "later"] {
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        gone(&cluster, name)?;
    }
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

fn cut_off() -> Result<()> {
    let quick = ["--node-monitor-grace-period=10s", "--node-monitor-period=1s"].map(str::to_owned);
    node_cut_off(&quick, 2, Duration::ZERO)
}

/// A node is cut off for as long as it takes until its pods are evicted, and so much longer. Pods tolerate that for so many seconds.
pub(crate) fn node_cut_off(controllers: &[String], tolerated: u32, longer: Duration) -> Result<()> {
    let settings = cluster::Settings { controllers: controllers.to_vec(), ..cluster::Settings::whole() };
    let mut cluster = Cluster::start(&World::here()?.root().join("cluster"), &settings)?;
    // Pods have it as a volume.
    let authority = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt";
    cluster.wait_for(authority, "there", |_| true)?;
    // Who judges nodes begins anew when this one is cut off: before, a node that a busy machine holds up would be taken for one that is gone.
    cluster.kill_part(Part::Controllers)?;
    let network = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), cluster.address())?;
    let kubeconfig = cluster.kubeconfig_through(&cluster.node_kubeconfig(NODE_NAME)?, network.at())?;
    let flags = vec![format!("--kubeconfig={}", kubeconfig.display())];
    let kubelet = json!({ "nodeLeaseDurationSeconds": 4 });
    let node = Node::start_with(&Settings { flags, kubelet, ..Settings::default() })?;
    beside_another(&cluster, || evicted(&cluster, &network, &node, tolerated, longer))?;
    node.end()?;
    drop(network);
    cluster.end()
}

/// A pod that tells in a directory that it was asked to end, and that it has, and tolerates that its node is gone for so many seconds; and
/// one that stays. Their containers, in this order.
fn goes_and_stays(cluster: &Cluster, node: &Node, out: &Path, tolerated: u32) -> Result<[String; 2]> {
    fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
    let stops = format!("trap 'echo >/out/asked; sleep 2; echo >/out/ended; exit 0' TERM; {FOR_EVER}");
    let mounts = json!({ "volumeMounts": [{ "name": "out", "mountPath": "/out" }] });
    let tolerates = |seconds: Option<u32>| {
        let of = |key: &str| {
            let seconds = seconds.map_or(json!({}), |seconds| json!({ "tolerationSeconds": seconds }));
            with(json!({ "key": key, "operator": "Exists", "effect": "NoExecute" }), seconds)
        };
        json!([of("node.kubernetes.io/unreachable"), of("node.kubernetes.io/not-ready")])
    };
    let goes = json!({ "containers": [shell("main", &stops, mounts)], "tolerations": tolerates(Some(tolerated)),
        "volumes": [{ "name": "out", "hostPath": { "path": out } }], "terminationGracePeriodSeconds": 20 });
    cluster.create(PODS, &bound("goes", goes)?)?;
    let stays = json!({ "containers": [shell("main", FOR_EVER, json!({}))], "tolerations": tolerates(None) });
    cluster.create(PODS, &bound("stays", stays)?)?;
    let container = |name: &str| {
        cluster.wait_for(&path(name), "ready", is_ready)?;
        Ok::<_, anyhow::Error>(node.ready(name)?.container_id("main")?.to_owned())
    };
    Ok([container("goes")?, container("stays")?])
}

fn evicted(cluster: &Cluster, network: &Proxy, node: &Node, tolerated: u32, longer: Duration) -> Result<()> {
    let out = node.world.root().join("out");
    let ids = goes_and_stays(cluster, node, &out, tolerated)?;
    let before = audit_of(cluster, &cluster.get_json(&path("stays"))?)?.len();

    network.set(Network::SILENT);
    let controllers = cluster.begin_part(Part::Controllers)?;
    let deadline = Duration::from_secs(u64::from(tolerated) + 90);
    wait::until("the eviction", deadline, || {
        let pod = cluster.get_json(&path("goes"))?;
        Ok(match &pod["metadata"]["deletionTimestamp"] {
            Value::Null => Look::NotYet(pod["status"].to_string()),
            _evicted => Look::Ready(()),
        })
    })
    .with_context(|| cluster.situation())?;
    thread::sleep(longer);
    for (name, id) in ["goes", "stays"].iter().zip(&ids) {
        let runs = |pod: PodState| Ok::<_, anyhow::Error>(pod.is_ready() && pod.container_id("main")? == id);
        ensure!(runs(node.pod(name)?.context("a pod is gone")?)?, "{name} does not run as before");
    }
    ensure!(!out.join("asked").exists(), "who cannot be asked has asked the pod to end");

    network.set(Network::default());
    gone(cluster, "goes")?;
    ensure!(out.join("asked").exists() && out.join("ended").exists(), "the pod had no time to end");
    // Controllers have said that it is not ready, since they could not know.
    let stays = cluster.wait_for(&path("stays"), "ready again", is_ready)?;
    same("restarts", restarts(&stays, "main"), 0)?;
    same("its container", node.ready("stays")?.container_id("main")?, ids[1].as_str())?;
    says_no_more_than_asked(&is_well_behaved(cluster)?[before..], "stays")?;
    let is_back = |node: &Value| {
        let taints = node["spec"]["taints"].as_array();
        taints.is_none_or(|all| all.iter().all(|taint| taint["effect"] != "NoExecute"))
    };
    cluster.wait_for(&format!("/api/v1/nodes/{NODE_NAME}"), "reachable", is_back)?;
    cluster.request("DELETE", &path("stays"), "application/json", &json!({}))?;
    gone(cluster, "stays")?;
    controllers.kill()
}

/// The node has written the status of a pod no more often than others have: each time that they had said something else.
fn says_no_more_than_asked(audit: &[AuditEvent], pod: &str) -> Result<()> {
    let is_word = |event: &&AuditEvent| {
        event.name() == pod && ["patch", "update"].iter().any(|verb| event.is(verb, "pods/status"))
    };
    let words: Vec<&AuditEvent> = audit.iter().filter(is_word).collect();
    let by_node = words.iter().filter(|event| event.is_by_node(NODE_NAME)).count();
    let by_others = words.len() - by_node;
    ensure!(by_node <= by_others, "{by_node} words of the node, and {by_others} of others: {words:?}");
    Ok(())
}

/// Does something while there is another node that is well: where all nodes are silent, controllers evict nobody.
fn beside_another(cluster: &Cluster, body: impl FnOnce() -> Result<()>) -> Result<()> {
    const OTHER: &str = "other";
    let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": OTHER },
        "spec": { "unschedulable": true },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] } });
    cluster.create("/api/v1/nodes", &object)?;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = || {
        let now =
            jiff::Timestamp::try_from(SystemTime::now())?.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        Ok::<_, anyhow::Error>(json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": OTHER },
            "spec": { "holderIdentity": OTHER, "leaseDurationSeconds": 40, "renewTime": now } }))
    };
    cluster.create(leases, &lease()?)?;
    // A lease is not replaced without saying which version of it.
    let renew = || {
        let renewed = json!({ "spec": lease()?["spec"] });
        cluster.request("PATCH", &format!("{leases}/{OTHER}"), "application/merge-patch+json", &renewed)
    };
    renew().context("renew the lease of the other node")?;
    // One that is late is followed by the next.
    beside(Duration::from_secs(1), || drop(renew()), body)
}
