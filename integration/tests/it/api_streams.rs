//! How many connections a node has to its API server, what each carries, and what becomes of one that is silent for good.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::proxy::Proxy;
use berth_integration::cluster::{self, Cluster};
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::api_pods::{PODS, bound, gone, is_ready, is_well_behaved, path};
use crate::kit::{FOR_EVER, SOON, beside, inside, shell};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_streams::a_node_with_many_objects_has_streams_for_its_lease", many),
        test("api_streams::a_connection_that_is_silent_for_good_is_found_out", silent)
            .long()
            .within(LONG_LIMIT),
    ]
}

/// Objects of each of two kinds that a pod names.
const EACH: usize = 75;
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// A control plane without controllers, somebody between who counts connections, and a node with a lease of twenty
/// seconds: an API server that a busy machine holds up for less than half of that loses no connection.
fn start(api_server: &[&str]) -> Result<(Cluster, Proxy, Node)> {
    let settings = cluster::Settings {
        api_server: api_server.iter().map(|&flag| flag.to_owned()).collect(),
        ..cluster::Settings::default()
    };
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &settings)?;
    let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), cluster.address())?;
    let kubeconfig = cluster.kubeconfig_through(&cluster.node_kubeconfig(NODE_NAME)?, proxy.at())?;
    let flags = vec![format!("--kubeconfig={}", kubeconfig.display())];
    let kubelet = json!({ "nodeLeaseDurationSeconds": 20 });
    let node = Node::start_with(&Settings { flags, kubelet, ..Settings::default() })?;
    Ok((cluster, proxy, node))
}

fn end(cluster: Cluster, proxy: Proxy, node: Node, pods: &[&str]) -> Result<()> {
    for pod in pods {
        cluster.request("DELETE", &path(pod), "application/json", &json!({}))?;
    }
    for pod in pods {
        gone(&cluster, pod)?;
    }
    is_well_behaved(&cluster)?;
    node.end()?;
    drop(proxy);
    cluster.end()
}

fn make_map(cluster: &Cluster, name: &str, value: &str) -> Result<()> {
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { name: value } });
    cluster.create("/api/v1/namespaces/default/configmaps", &object).map(drop)
}

fn make_secret(cluster: &Cluster, name: &str, value: &str) -> Result<()> {
    let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": { name: value } });
    cluster.create("/api/v1/namespaces/default/secrets", &object).map(drop)
}

/// A pod that shows these in one directory.
fn make_pod(cluster: &Cluster, name: &str, sources: &[Value]) -> Result<()> {
    let mounts = json!({ "volumeMounts": [{ "name": "shown", "mountPath": "/shown" }] });
    let spec = json!({ "containers": [shell("main", FOR_EVER, mounts)],
        "volumes": [{ "name": "shown", "projected": { "sources": sources } }] });
    cluster.create(PODS, &bound(name, spec)?).map(drop)
}

fn map(name: &str) -> Value {
    json!({ "configMap": { "name": name } })
}

fn renewed(cluster: &Cluster) -> Result<String> {
    let lease = cluster.get_json(&format!("{LEASE}/{NODE_NAME}"))?;
    Ok(lease["spec"]["renewTime"].as_str().context("a lease that was never renewed")?.to_owned())
}

/// Waits until the lease is renewed once more, from now on.
fn is_renewed(cluster: &Cluster, within: Duration) -> Result<()> {
    let before = renewed(cluster)?;
    wait::until("the lease to be renewed", within, || {
        let now = renewed(cluster)?;
        Ok(if now == before { Look::NotYet(now) } else { Look::Ready(()) })
    })
}

/// A change of a map is seen in a pod.
fn follows(cluster: &Cluster, node: &Node, pod: &str, name: &str, value: &str) -> Result<()> {
    let change = json!({ "data": { name: value } });
    let at = format!("/api/v1/namespaces/default/configmaps/{name}");
    cluster.request("PATCH", &at, "application/merge-patch+json", &change)?;
    let pod = node.ready(pod)?;
    wait::until(&format!("{name} to be {value}"), SOON, || {
        let shown = inside(&pod, &format!("cat /shown/{name}"))?;
        Ok(if shown == value { Look::Ready(()) } else { Look::NotYet(shown) })
    })
}

/// As many objects as have more watches than a connection may carry streams.
fn many() -> Result<()> {
    let (cluster, proxy, node) = start(&["--http2-max-streams-per-connection=100"])?;
    let mut sources = Vec::new();
    for number in 0..EACH {
        let (a_map, a_secret) = (format!("map-{number}"), format!("secret-{number}"));
        make_map(&cluster, &a_map, "first")?;
        make_secret(&cluster, &a_secret, "hidden")?;
        sources.extend([map(&a_map), json!({ "secret": { "name": a_secret } })]);
    }
    make_pod(&cluster, "many", &sources)?;
    cluster.wait_for(&path("many"), "ready", is_ready)?;
    let pod = node.ready("many")?;
    same("objects", inside(&pod, "cat /shown/map-* | grep -o first | wc -l")?, EACH.to_string())?;
    same("objects", inside(&pod, "cat /shown/secret-* | grep -o hidden | wc -l")?, EACH.to_string())?;
    follows(&cluster, &node, "many", &format!("map-{}", EACH - 1), "second")?;
    // One for everything else, and two for 150 watches and those of services. No other was ever made.
    same("connections", (proxy.connections(), proxy.made()), (3, 3))?;
    for _ in 0..2 {
        is_renewed(&cluster, SOON)?;
    }
    make_pod(&cluster, "beside", &[map("map-0")])?;
    cluster.wait_for(&path("beside"), "ready", is_ready)?;
    for pod in ["many", "beside"] {
        cluster.request("DELETE", &path(pod), "application/json", &json!({}))?;
        gone(&cluster, pod)?;
    }
    // One stays for the next watch.
    wait::until("a connection to go", SOON, || {
        let all = proxy.connections();
        Ok(if all == 2 { Look::Ready(()) } else { Look::NotYet(all.to_string()) })
    })?;
    end(cluster, proxy, node, &[])
}

/// A connection is silent for good, and nobody closes it: the node finds that out, and goes on with others.
fn silent() -> Result<()> {
    // Pings after 30 s without a word, 15 s for their answer, and as long as a pause is at most.
    const FOUND_OUT: Duration = Duration::from_secs(50);
    const TICK: Duration = Duration::from_millis(100);
    // Longer than a pool keeps connections that nobody begins a request on.
    const IDLE: Duration = Duration::from_secs(95);
    let (cluster, proxy, node) = start(&[])?;
    for name in ["one", "two", "three"] {
        make_map(&cluster, name, "first")?;
    }
    make_pod(&cluster, "before", &[map("one")])?;
    cluster.wait_for(&path("before"), "ready", is_ready)?;
    thread::sleep(IDLE);
    make_pod(&cluster, "later", &[map("two")])?;
    cluster.wait_for(&path("later"), "ready", is_ready)?;
    same("connections", (proxy.connections(), proxy.made()), (2, 2))?;

    let mut ticks = Vec::new();
    proxy.silence();
    let others_go_on = || {
        is_renewed(&cluster, FOUND_OUT + SOON)?;
        make_pod(&cluster, "after", &[map("three")])?;
        cluster.wait_for(&path("after"), "ready", is_ready)?;
        follows(&cluster, &node, "before", "one", "second")
    };
    beside(TICK, || ticks.push(Instant::now()), others_go_on)?;
    same("connections that were made", proxy.made(), 4)?;
    // When a connection is begun is the node's doing alone; what is asked on it waits for the server. Both the node and who counts here wait
    // for a processor each time that they have slept.
    for made in &proxy.made_at()[2..] {
        let after = TICK * u32::try_from(ticks.iter().filter(|tick| *tick < made).count())?;
        ensure!(after < FOUND_OUT, "another connection was made {after:?} after those before were silent");
    }
    is_renewed(&cluster, SOON)?;
    end(cluster, proxy, node, &["before", "later", "after"])
}
