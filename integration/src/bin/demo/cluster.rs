//! `scripts/demo --cluster`: kubeadm makes a cluster of one machine, on which Berth is the kubelet.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::cluster::kubeadm::{Kubelet, Machine, NODE};
use berth_integration::cluster::{Client, network};
use serde_json::{Value, json};

use crate::CLUSTER;
use crate::state::{READY, STOP};

/// Between two looks at the parts.
const PAUSE: Duration = Duration::from_secs(1);
const WEB: &str = "/apis/apps/v1/namespaces/default/deployments/web";
const ASKS: &str = "/api/v1/namespaces/default/pods/asks";
const IMAGE: &str = "localhost:5000/busybox:1";

/// In the lab: the cluster, from its start to the request to stop.
pub(crate) fn run() -> Result<()> {
    let told = Told(Instant::now());
    told.step("a machine: containerd, the images of Kubernetes, and Berth as /usr/bin/kubelet");
    let mut machine = Machine::prepare(Kubelet::Berth)?;
    let shown = show(&machine, &told);
    let client =
        shown.inspect_err(|_| println!("the kubelet's log ends with:\n{}", machine.kubelet_log()))?;
    fs::write(READY, CLUSTER).context("say that the cluster is ready")?;
    while !Path::new(STOP).exists() {
        match machine.keep() {
            Ok(None) => {}
            Ok(Some(part)) => println!("{part} had ended: it was started again, as an init system would"),
            Err(failure) => println!("a part did not start: {failure:#}"),
        }
        thread::sleep(PAUSE);
    }
    client.end()?;
    told.step("kubeadm reset");
    machine.reset()?;
    told.step("berth reset: every pod ends");
    machine.reset_berth()?;
    machine.end()
}

fn show(machine: &Machine, told: &Told) -> Result<Client> {
    told.step("kubeadm init: the control plane as static pods of Berth");
    let client = machine.init()?;
    told.step(
        "a network, by a DaemonSet: plugins and a configuration of the addresses that the node was given",
    );
    client.apply(&network::objects())?;
    client.wait_for(&format!("/api/v1/nodes/{NODE}"), "Ready", |node| is(node, "Ready"))?;
    let late = fs::metadata(network::FILE)?.modified()?.elapsed()?;
    told.step(&format!(
        "the node is Ready, {} ms after its network was there; CoreDNS starts",
        late.as_millis()
    ));
    let dns = "/apis/apps/v1/namespaces/kube-system/deployments/coredns";
    client.wait_for(dns, "ready", |dns| dns["status"]["readyReplicas"] == 2)?;
    told.step("a Deployment with a Service, rolled out");
    client.apply(&web("one"))?;
    client.wait_for(WEB, "rolled out", |web| is_rolled_out(web, 1))?;
    client.apply(&web("two"))?;
    client.wait_for(WEB, "rolled out again", |web| is_rolled_out(web, 2))?;
    told.step("a pod asks the Service by its name");
    client.apply(&asks().to_string())?;
    client.wait_for(ASKS, "at its end", |pod| pod["status"]["phase"] == "Succeeded")?;
    for args in [
        &["get", "nodes", "--output", "wide"][..],
        &["get", "pods", "--all-namespaces", "--output", "wide"],
        &["get", "services", "--all-namespaces"],
        &["rollout", "history", "deployment/web"],
    ] {
        println!("\n$ kubectl {}\n{}", args.join(" "), client.kubectl(args)?.trim_end());
    }
    let said = said_by_asks()?;
    println!("\nthe pod `asks`, which asked for http://web.default.svc.cluster.local/:\n{said}");
    ensure!(said.contains("hello from two"), "the Service answered {said:?}");
    Ok(client)
}

/// What was done, and when.
struct Told(Instant);

impl Told {
    fn step(&self, what: &str) {
        println!("{:5.1} s  {what}", self.0.elapsed().as_secs_f64());
    }
}

fn is(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == kind && one["status"] == "True")
}

fn is_rolled_out(deployment: &Value, generation: u64) -> bool {
    let status = &deployment["status"];
    let all = deployment["spec"]["replicas"].as_u64();
    let has_all = |count: &str| status[count].as_u64() == all;
    status["observedGeneration"].as_u64() >= Some(generation)
        && ["replicas", "updatedReplicas", "readyReplicas"].into_iter().all(has_all)
}

/// Three pods that say the same to whoever asks, and the Service of them.
fn web(word: &str) -> String {
    let labels = json!({ "app": "web" });
    let serve = format!(
        "mkdir -p /tmp/www; echo \"hello from {word}, of $HOSTNAME\" >/tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www"
    );
    let container = json!({ "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", serve],
        "readinessProbe": { "httpGet": { "path": "/", "port": 80 }, "periodSeconds": 1 } });
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": { "replicas": 3, "selector": { "matchLabels": labels }, "template": {
            "metadata": { "labels": labels },
            "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 } } } });
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": labels, "ports": [{ "port": 80 }] } });
    json!({ "apiVersion": "v1", "kind": "List", "items": [deployment, service] }).to_string()
}

fn asks() -> Value {
    // Debian's static busybox cannot look names up in wget. kube-proxy may lead to a pod of before for a moment.
    let ask = "until printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 web.default.svc.cluster.local 80 | grep 'hello from two'; do sleep 0.2; done";
    let container = json!({ "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", ask] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "asks" },
        "spec": { "restartPolicy": "Never", "containers": [container] } })
}

/// From the file, since the kubelet serves no logs yet.
fn said_by_asks() -> Result<String> {
    let logs = fs::read_dir("/var/log/containers").context("list the logs")?;
    let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let log =
        logs.flatten().find(|entry| name(entry).starts_with("asks_default_")).context("no log of asks")?;
    let text = fs::read_to_string(log.path())?;
    Ok(text.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).collect::<Vec<_>>().join("\n"))
}
