//! A Service of a cluster, reached by its name through kube-proxy and CoreDNS, whose pods all run on Berth.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use berth_integration::cluster::kubeadm::{Join, Kubelet, Machine, NODE};
use berth_integration::cluster::{Cluster, Settings};
use berth_integration::lab::World;
use berth_integration::node::POD_LIMIT;
use berth_integration::wait::{self, Look};
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, SOON, measured, page, shell};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test("service::answers_by_its_name_while_its_pods_change", answers).within(LONG_LIMIT)]
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";
const PROXY: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy";
const DNS: &str = "/apis/apps/v1/namespaces/kube-system/deployments/coredns";
/// Answers that have to be of the backends that there are now, before a change counts as seen.
const SETTLED: usize = 20;
/// What who asks is told where nobody is: that he is refused, or cannot come there.
const NOBODY: &str = "can't connect";
/// With this file a pod that is to end does.
const MAY_END: &str = "/may-end";

/// Serves its name on port 80, a while after it has begun, and is ready as long as its page is there. When it is to end it goes on until it
/// may, as what wants to lose no request does: others take their time to hear of it.
fn server() -> Value {
    let script = format!(
        "trap 'while ! test -e {MAY_END}; do sleep 0.2; done; exit 0' TERM; \
         mkdir -p /www; hostname >/www/index.html; sleep 3; httpd -p 80 -h /www; {FOR_EVER}"
    );
    let probe = json!({ "httpGet": { "path": "/index.html", "port": 80 }, "periodSeconds": 1, "timeoutSeconds": 10,
        "failureThreshold": 3 });
    shell("main", &script, json!({ "readinessProbe": probe, "imagePullPolicy": "Never" }))
}

/// Asks for the page by the Service's name, five times a second, and writes down who answered, or why nobody did. Debian's static busybox
/// cannot look names up in wget.
const ASKS: &str = "while :; do printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 web.default.svc.cluster.local 80 2>&1 \
    | grep -E '^(web-|nc: )' || echo silent; sleep 0.2; done";

fn objects() -> String {
    let labels = json!({ "app": "web" });
    let web = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": {
        "replicas": 2, "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels },
            "spec": { "terminationGracePeriodSeconds": 600, "containers": [server()] } } } });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": labels, "ports": [{ "port": 80 }] } });
    let main = shell("main", ASKS, json!({ "imagePullPolicy": "Never" }));
    let spec = json!({ "containers": [main], "terminationGracePeriodSeconds": 1 });
    let asks = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "asks" }, "spec": spec });
    json!({ "apiVersion": "v1", "kind": "List", "items": [web, service, asks] }).to_string()
}

fn answers() -> Result<()> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &Settings::whole())?;
    cluster.prepare_for_join()?;
    let machine = Machine::prepare(Kubelet::Berth)?;
    machine.join(&Join::to(cluster.address()))?;
    machine.add_network()?;
    cluster.wait_for(PROXY, "ready", |proxy| proxy["status"]["numberReady"] == 1)?;
    cluster.wait_for(DNS, "ready", |dns| dns["status"]["readyReplicas"] == 2)?;

    cluster.apply(&objects())?;
    cluster.wait_for(WEB, "available", |web| web["status"]["availableReplicas"] == 2)?;
    let log = Log::of(&cluster)?;
    let backends = wait_until_other(&cluster, &[])?;
    log.is_answered_by(&backends)?;

    // One that fails its readiness is asked no more, and asked again when it is ready.
    inside(&backends[0], "mv /www/index.html /www/away")?;
    wait_until_ready(&cluster, &backends[1..])?;
    log.is_answered_by(&backends[1..])?;
    inside(&backends[0], "mv /www/away /www/index.html")?;
    wait_until_ready(&cluster, &backends)?;
    log.is_answered_by(&backends)?;

    let now = are_replaced(&cluster, &log, &backends)?;
    for pod in &now {
        let_end(pod)?;
    }
    cluster.kubectl(&["delete", "deployment/web", "service/web", "pod/asks", "--wait"])?;
    cluster.kubectl(&["drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--force"])?;
    machine.reset()?;
    machine.reset_berth()?;
    machine.end()?;
    cluster.end()
}

/// While these pods are replaced, nobody is sent where nobody is: the new ones serve before they are told to be ready, and those of before
/// until nobody is sent to them any more. Requests that take too long on a busy machine are no matter.
fn are_replaced(cluster: &Cluster, log: &Log, before: &[String]) -> Result<Vec<String>> {
    let mut addresses = Vec::new();
    for pod in before {
        let pod = cluster.get_json(&format!("{PODS}/{pod}"))?;
        let address = pod["status"]["podIP"].as_str().context("no address")?;
        addresses.push(SocketAddr::new(address.parse()?, 80));
    }
    let begun = log.read()?.len();
    let version = json!({ "name": "VERSION", "value": "2" });
    let patch = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "env": [version] }] } } } });
    cluster.request("PATCH", WEB, "application/strategic-merge-patch+json", &patch)?;
    let is_new = |web: &Value| {
        let status = &web["status"];
        status["observedGeneration"] == web["metadata"]["generation"]
            && ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|count| status[count] == 2)
    };
    cluster.wait_for(WEB, "rolled out", is_new)?;
    let now = wait_until_other(cluster, before)?;
    log.is_answered_by(&now)?;
    let said = log.read()?.split_off(begun);
    let others: Vec<&String> = said.iter().filter(|line| !line.starts_with("web-")).collect();
    measured(&format!("{} of {} requests were not answered: {others:?}", others.len(), said.len()));
    ensure!(!others.iter().any(|line| line.contains(NOBODY)), "while pods were replaced: {others:?}");
    ensure!(others.len() * 3 <= said.len(), "most requests were not answered: {others:?}");
    for (pod, at) in before.iter().zip(addresses) {
        same("who serves though it is to end", page(at, "/")?.text().trim(), pod.as_str())?;
        let_end(pod)?;
        cluster.wait_gone(&format!("{PODS}/{pod}"))?;
    }
    Ok(now)
}

fn let_end(pod: &str) -> Result<()> {
    inside(pod, &format!("touch {MAY_END}"))
}

/// The names of the pods that are ready and not ending, in order.
fn ready_pods(cluster: &Cluster) -> Result<Vec<String>> {
    let list = cluster.get_json(&format!("{PODS}?labelSelector=app%3Dweb"))?;
    let is_ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array();
        pod["metadata"]["deletionTimestamp"].is_null()
            && conditions
                .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
    };
    let pods = list["items"].as_array().context("no list of pods")?.iter().filter(is_ready);
    let mut names: Vec<String> =
        pods.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    Ok(names)
}

fn wait_until_ready(cluster: &Cluster, wanted: &[String]) -> Result<()> {
    wait::until("these pods to be the ready ones", POD_LIMIT, || {
        let now = ready_pods(cluster)?;
        Ok(if now == wanted { Look::Ready(()) } else { Look::NotYet(format!("{now:?}")) })
    })
}

/// Two others than before.
fn wait_until_other(cluster: &Cluster, before: &[String]) -> Result<Vec<String>> {
    wait::until("two other pods to be ready", POD_LIMIT, || {
        let now = ready_pods(cluster)?;
        let are_other = now.len() == 2 && now.iter().all(|pod| !before.contains(pod));
        Ok(if are_other { Look::Ready(now) } else { Look::NotYet(format!("{now:?}")) })
    })
}

/// Runs a script in a pod. The node's server is not there yet, so it is asked of Berth.
fn inside(pod: &str, script: &str) -> Result<()> {
    berth_integration::agent::berth(&["exec", pod, "--container", "main", "--", "/bin/sh", "-c", script])
        .map(drop)
}

/// What the pod that asks has written.
struct Log(String);

impl Log {
    fn of(cluster: &Cluster) -> Result<Self> {
        let pod = cluster
            .wait_for(&format!("{PODS}/asks"), "running", |pod| pod["status"]["phase"] == "Running")?;
        let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
        Ok(Self(format!("/var/log/pods/default_asks_{uid}/main/0.log")))
    }

    /// Its lines, without what the log adds.
    fn read(&self) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(&self.0).with_context(|| format!("read {}", self.0))?;
        let stdout = text.lines().filter(|line| line.contains(" stdout "));
        Ok(stdout.filter_map(|line| line.splitn(4, ' ').nth(3)).map(str::to_owned).collect())
    }

    /// Waits until each of these has answered and nobody else has, for a while.
    fn is_answered_by(&self, backends: &[String]) -> Result<()> {
        wait::until("answers of these backends alone", SOON, || {
            let said = self.read()?;
            let last = &said[said.len().saturating_sub(SETTLED)..];
            let only = last.len() == SETTLED && last.iter().all(|line| backends.contains(line));
            let each = backends.iter().all(|backend| last.contains(backend));
            Ok(if only && each { Look::Ready(()) } else { Look::NotYet(format!("{last:?}")) })
        })
    }
}
