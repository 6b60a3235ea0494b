//! The same pods on a node of Berth and on one of the real kubelet, in one cluster: what the API says of them is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::watch::Watch;
use berth_integration::cluster::{self, AuditEvent, Cluster};
use berth_integration::differential::case::Case as Alone;
use berth_integration::differential::place::Place;
use berth_integration::differential::report::Report;
use berth_integration::differential::{catalogue, play};
use berth_integration::kubelet::{self, Kubelet};
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::vm::Feature;
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, IMAGE, measured, pod, shell, with};
use crate::suite::{LONG_LIMIT, Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("as_kubelet::statuses_events_and_patches_are_its", everything)
            .long()
            .within(LONG_LIMIT)
            .needs(Feature::Nat),
        test("as_kubelet::each_field_alone", each_field_alone).long().within(LONG_LIMIT).needs(Feature::Nat),
    ]
}

const PODS: &str = "/api/v1/namespaces/default/pods";
/// A kubelet looks at a pod that waits every 10 to 15 s.
const SETTLE_LIMIT: Duration = Duration::from_secs(180);
/// Seconds: whatever else the machine does, the pod runs by then.
const DEADLINE: u64 = 45;
const NODES: [&str; 2] = [NODE_NAME, kubelet::NODE_NAME];

/// A pod, and what it comes to.
struct Case {
    name: &'static str,
    spec: Value,
    settled: fn(&Value) -> bool,
}

impl Case {
    fn of(name: &'static str, spec: Value, settled: fn(&Value) -> bool) -> Self {
        Self { name, spec, settled }
    }

    /// The pod's name on a node.
    fn on(&self, node: &str) -> String {
        format!("{}-{node}", self.name)
    }

    fn path(&self, node: &str) -> String {
        format!("{PODS}/{}", self.on(node))
    }

    fn create(&self, cluster: &Cluster, node: &str) -> Result<()> {
        let spec = with(json!({ "nodeName": node, "terminationGracePeriodSeconds": 1 }), self.spec.clone());
        cluster.create(PODS, &serde_json::from_str(&pod(&self.on(node), spec))?).map(drop)
    }
}

/// A pod of one container, `main`, that runs a script.
fn main(script: &str, more: Value) -> Value {
    json!({ "containers": [shell("main", script, more)] })
}

fn never(spec: Value) -> Value {
    with(spec, json!({ "restartPolicy": "Never" }))
}

/// A probe by a script, each second. However busy the machine is, it answers in time.
fn probe(script: &str, more: Value) -> Value {
    let exec = json!({ "command": ["sh", "-c", script] });
    with(json!({ "exec": exec, "periodSeconds": 1, "timeoutSeconds": 60 }), more)
}

/// A container whose first run fails its probe twice, and whose second never does.
fn ill_once() -> Value {
    let script =
        "n=$(cat /v/n 2>/dev/null || echo 0); echo $((n + 1)) >/v/n; [ $n -ge 2 ] || { echo ill; exit 1; }";
    let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
    let probe = probe(script, json!({ "failureThreshold": 2 }));
    let polite = format!("trap 'exit 4' TERM; {FOR_EVER}");
    let spec = main(&polite, json!({ "livenessProbe": probe, "volumeMounts": mounts }));
    with(spec, json!({ "volumes": [{ "name": "v", "emptyDir": {} }] }))
}

/// A pod of one container that mounts a part of an image that the image does not have.
fn of_no_part() -> Value {
    let mount = json!([{ "name": "v", "mountPath": "/v", "subPath": "none/deeper" }]);
    let volume = json!([{ "name": "v", "image": { "reference": IMAGE, "pullPolicy": "IfNotPresent" } }]);
    with(main("true", json!({ "volumeMounts": mount })), json!({ "volumes": volume }))
}

/// A pod of one container that mounts an image at `/v`.
fn of_image_volume(image: &str, policy: &str, script: &str) -> Value {
    let spec = main(script, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }));
    let image = json!({ "reference": image, "pullPolicy": policy });
    with(spec, json!({ "volumes": [{ "name": "v", "image": image }] }))
}

/// Those that run.
fn running() -> Vec<Case> {
    let sidecar = with(shell("beside", FOR_EVER, json!({})), json!({ "restartPolicy": "Always" }));
    let init = json!({ "initContainers": [shell("first", "true", json!({})), sidecar] });
    let two = json!([shell("main", "true", json!({})), shell("other", FOR_EVER, json!({}))]);
    let uses = format!("[ -x /v/bin/sh ] || exit 1; {FOR_EVER}");
    vec![
        Case::of("runs", main(FOR_EVER, json!({ "readinessProbe": probe("true", json!({})) })), is_ready),
        Case::of("unhealthy", ill_once(), |pod| restarts(pod) == 1 && is_ready(pod)),
        Case::of("unready", main(FOR_EVER, json!({ "readinessProbe": probe("exit 1", json!({})) })), |pod| {
            is_running(pod, 0)
        }),
        Case::of("init", with(main(FOR_EVER, json!({})), init), is_ready),
        Case::of("two", json!({ "restartPolicy": "OnFailure", "containers": two }), |pod| {
            pod["status"]["containerStatuses"][0]["state"]["terminated"].is_object() && is_running(pod, 1)
        }),
        Case::of("image-volume", of_image_volume(IMAGE, "IfNotPresent", &uses), is_ready),
    ]
}

/// Those that end.
fn ending() -> Vec<Case> {
    let init_fails = json!({ "initContainers": [shell("first", "exit 5", json!({}))] });
    vec![
        Case::of("succeeds", never(main("echo well >/dev/termination-log", json!({}))), is_over),
        Case::of("fails", never(main("echo badly >/dev/termination-log; exit 3", json!({}))), is_over),
        Case::of("no-command", never(main("true", json!({ "command": ["/absent"] }))), is_over),
        Case::of("init-fails", never(with(main("true", json!({})), init_fails)), is_over),
        Case::of(
            "deadline",
            with(main(FOR_EVER, json!({})), json!({ "activeDeadlineSeconds": DEADLINE })),
            is_over,
        ),
    ]
}

/// Those that wait for something.
fn waiting() -> Vec<Case> {
    let image = |name: &str| json!({ "containers": [{ "name": "main", "image": name }] });
    let never_pulled = json!({ "image": "localhost:5000/absent:2", "imagePullPolicy": "Never" });
    let from_map =
        json!([{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "absent", "key": "a" } } }]);
    let no_root = json!({ "securityContext": { "runAsNonRoot": true } });
    let of_image = |image: &str, policy: &str| of_image_volume(image, policy, "true");
    let unconfigured = |pod: &Value| waits(pod, "CreateContainerConfigError") && has_address(pod);
    vec![
        Case::of("crashes", main("exit 1", json!({})), |pod| {
            restarts(pod) == 1 && waits(pod, "CrashLoopBackOff")
        }),
        Case::of("no-image", image("localhost:5000/absent:1"), |pod| {
            waits(pod, "ImagePullBackOff") && has_address(pod)
        }),
        Case::of("bad-image-name", image("UPPER"), |pod| waits(pod, "InvalidImageName") && has_address(pod)),
        Case::of("never-pulled", main("true", never_pulled), |pod| {
            waits(pod, "ErrImageNeverPull") && has_address(pod)
        }),
        Case::of("no-image-volume", of_image("localhost:5000/absent:3", "IfNotPresent"), |pod| {
            waits(pod, "ImagePullBackOff") && has_address(pod)
        }),
        Case::of("bad-name-volume", of_image("UPPER", "Always"), |pod| {
            waits(pod, "InvalidImageName") && has_address(pod)
        }),
        Case::of("never-pulled-volume", of_image("localhost:5000/absent:4", "Never"), |pod| {
            waits(pod, "ErrImageNeverPull") && has_address(pod)
        }),
        Case::of("no-part-of-volume", of_no_part(), |pod| {
            waits(pod, "CreateContainerError") && has_address(pod)
        }),
        Case::of("no-map", main("true", json!({ "env": from_map })), unconfigured),
        Case::of("root", main("true", no_root), unconfigured),
    ]
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// It has ended, and its sandbox is gone, which is what is told last.
fn is_over(pod: &Value) -> bool {
    let over = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
    let conditions = pod["status"]["conditions"].as_array();
    let down = |one: &Value| one["type"] == "PodReadyToStartContainers" && one["status"] == "False";
    over && conditions.is_some_and(|all| all.iter().any(down))
}

fn is_running(pod: &Value, container: usize) -> bool {
    pod["status"]["containerStatuses"][container]["state"]["running"].is_object()
}

fn waits(pod: &Value, reason: &str) -> bool {
    pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
}

/// Images are looked at while the network is made, and may be told of first.
fn has_address(pod: &Value) -> bool {
    pod["status"]["podIP"].is_string()
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0)
}

/// A node of each in one cluster, both with runc and with the image of the examples.
fn start() -> Result<(Cluster, Node, Kubelet)> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let dns = json!({ "clusterDNS": ["192.0.2.53"], "clusterDomain": "cluster.local" });
    let mut node = Node::prepare(&Settings {
        kubelet: dns.clone(),
        berth: json!({ "runtime": { "ociRuntime": "runc" } }),
        ..Settings::with_registry()
    })?;
    node.agent.set_flags(&[format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display())]);
    node.agent.start()?;
    let kubeconfig = Some(cluster.node_kubeconfig(kubelet::NODE_NAME)?);
    // Else it asks for its name in vain, for about as long as it waits for its Node object before it gives up its CSINode.
    let flags = vec![format!("--node-ip={}", cluster::ADDRESS)];
    let settings = kubelet::Settings { kubeconfig, kubelet: dns, flags, ..kubelet::Settings::default() };
    let kubelet = Kubelet::start(&node, settings)?;
    let pulls = Case::of("pulls", never(main("true", json!({}))), is_over);
    for name in NODES {
        cluster.wait_for(&format!("/api/v1/nodes/{name}"), "ready", is_ready)?;
        pulls.create(&cluster, name)?;
        cluster.wait_for(&pulls.path(name), "over", is_over)?;
        cluster.request("DELETE", &pulls.path(name), "application/json", &json!({}))?;
        cluster.wait_gone(&pulls.path(name))?;
    }
    let [ours, theirs] = NODES.map(|name| csi_node(&cluster, name));
    same("the CSINode", ours?, theirs?)?;
    Ok((cluster, node, kubelet))
}

/// The CSINode of a node, without what differs from one node to the next.
fn csi_node(cluster: &Cluster, node: &str) -> Result<Value> {
    let mut object = cluster.get_json(&format!("/apis/storage.k8s.io/v1/csinodes/{node}"))?;
    for of in ["/metadata", "/metadata/ownerReferences/0"] {
        let fields = object.pointer_mut(of).and_then(Value::as_object_mut);
        let fields = fields.with_context(|| format!("the CSINode of {node} has no {of}"))?;
        for name in ["name", "uid", "resourceVersion", "creationTimestamp", "managedFields"] {
            fields.remove(name);
        }
    }
    Ok(object)
}

/// Makes all of them, and gives each as it was when it had come to what it comes to.
fn settle(cluster: &Cluster, cases: &[Case]) -> Result<BTreeMap<String, Value>> {
    let watch = Watch::start(cluster, "pods", "default")?;
    let mut settled = BTreeMap::new();
    for case in cases {
        for node in NODES {
            case.create(cluster, node)?;
        }
    }
    let all: BTreeMap<String, &Case> =
        cases.iter().flat_map(|case| NODES.map(|node| (case.on(node), case))).collect();
    let seen = watch.until("every pod to come to what it comes to", SETTLE_LIMIT, |seen| {
        let is_wanted = all.get(seen.name()).is_some_and(|case| (case.settled)(&seen.object));
        if is_wanted && !settled.contains_key(seen.name()) {
            settled.insert(seen.name().to_owned(), seen.object);
        }
        (settled.len() == all.len()).then_some(())
    });
    seen.with_context(|| format!("not there: {:?}", all.keys().filter(|name| !settled.contains_key(*name))))
        .with_context(|| cluster.situation())?;
    Ok(settled)
}

fn everything() -> Result<()> {
    let (cluster, node, kubelet) = start()?;
    let cases: Vec<Case> = running().into_iter().chain(ending()).chain(waiting()).collect();
    let settled = settle(&cluster, &cases)?;
    for path in cases.iter().flat_map(|case| NODES.map(|node| case.path(node))) {
        cluster.request("DELETE", &path, "application/json", &json!({}))?;
    }
    for path in cases.iter().flat_map(|case| NODES.map(|node| case.path(node))) {
        cluster.wait_gone(&path)?;
    }
    let events = cluster.get_json("/api/v1/namespaces/default/events?limit=5000")?;
    let audit = cluster.audit()?;
    let (mut differences, mut longer, mut counts) = (Vec::new(), Vec::new(), (0, 0));
    for case in &cases {
        let name = case.name;
        let [ours, theirs] = NODES.map(|node| &settled[&case.on(node)]);
        let status = |pod: &Value| format!("{:#}", plain(&without_pods_resources(&pod["status"]), pod));
        differences.extend(differ(&format!("{name}: status"), &status(ours), &status(theirs)));
        differences.extend(differ(&format!("{name}: events"), &told(&events, ours), &told(&events, theirs)));
        let [ours, theirs] = NODES.map(|node| patches(&audit, &case.on(node)));
        counts = (counts.0 + ours.len(), counts.1 + theirs.len());
        if ours.len() > theirs.len() {
            let (more, less) = (ours.join("\n  "), theirs.join("\n  "));
            longer.push(format!("{name}: more patches of its status\n  {more}\nthan the kubelet\n  {less}"));
        }
    }
    measured(&format!("patches of statuses: {} and {} of the kubelet", counts.0, counts.1));
    // Of one life the moments count, and on a busy machine neither node has the same twice.
    if counts.0 > counts.1 {
        differences.extend(longer);
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n\n"));
    kubelet.end(&node)?;
    node.end()?;
    cluster.end()
}

/// Some of what `scripts/differential` plays, which plays all of it.
fn each_field_alone() -> Result<()> {
    let is_quick = |case: &Alone| catalogue::QUICK.contains(&case.name.as_str());
    let cases: Vec<Alone> = catalogue::all().into_iter().filter(is_quick).collect();
    let mut place = Place::start()?;
    let played = play::batch(&mut place, &cases, false, &measured)?;
    let mut report = Report::default();
    report.add(cases.len(), played.findings);
    ensure!(report.unexplained().next().is_none(), "{report}");
    place.end()
}

/// The kubelet shows the resources of the pod's own cgroup as it finds them: nothing, or the largest number of the kernel where no
/// limit is set (decision 0033).
fn without_pods_resources(status: &Value) -> Value {
    let mut status = status.clone();
    status.as_object_mut().and_then(|fields| fields.remove("resources"));
    status
}

/// The lines that only one of them has.
fn differ(what: &str, ours: &str, theirs: &str) -> Option<String> {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (one, other) = (lines(ours), lines(theirs));
    let only = |of: &BTreeSet<String>, but: &BTreeSet<String>, mark| {
        of.difference(but).map(|line| format!("\n  {mark} {line}")).collect::<String>()
    };
    (ours != theirs)
        .then(|| format!("{what}{}{}", only(&one, &other, "ours:  "), only(&other, &one, "theirs:")))
}

/// The patches of a pod's status, in order.
fn patches(audit: &[AuditEvent], name: &str) -> Vec<String> {
    let of_pod = audit.iter().filter(|event| event.is("patch", "pods/status") && event.name() == name);
    of_pod.filter_map(|event| event.request_object.as_ref()).map(Value::to_string).collect()
}

/// The events of a pod: severity, reason, field, who tells it, message, and whether they are of a version of the pod. How often is not
/// compared.
fn told(events: &Value, pod: &Value) -> String {
    let all = events["items"].as_array().into_iter().flatten();
    let of_pod = all.filter(|event| event["involvedObject"]["uid"] == pod["metadata"]["uid"]);
    // A probe that asks just when its pod is deleted, of the one whose probe never fails; one that the kubelet itself cancels;
    // the image of a main container that never has its turn, which Berth looks at while init containers run (decision 0033), or of one
    // whose volume's image is missing; and images of volumes, of which a kubelet tells whenever it looks at the pod, and Berth once
    // (decision 0041).
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let is_of = |case: &str| name.starts_with(case);
    let has_no_turn = ["init-fails-", "no-image-volume-", "bad-name-volume-", "never-pulled-volume-"];
    let is_other = |event: &&Value| {
        let message = event["message"].as_str().unwrap_or_default();
        let is_of_volume = event["involvedObject"]["fieldPath"].is_null() && event["reason"] == "Pulled";
        let is_of_main = event["involvedObject"]["fieldPath"] == "spec.containers{main}";
        (is_of("runs-") && event["reason"] == "Unhealthy")
            || message.ends_with("context canceled")
            || (is_of_volume && message.contains("already present on machine"))
            || (has_no_turn.into_iter().any(is_of) && event["reason"] == "Pulled" && is_of_main)
    };
    of_pod
        .filter(|event| !is_other(event))
        .map(|event| {
            let parts = [
                &event["type"],
                &event["reason"],
                &event["involvedObject"]["fieldPath"],
                &event["source"]["component"],
                &event["reportingComponent"],
                &event["message"],
            ];
            let text = parts.map(|part| part.as_str().unwrap_or("-")).join(" | ");
            let is_versioned = event["involvedObject"]["resourceVersion"].is_string();
            plain_text(&format!("{text} | {}", if is_versioned { "versioned" } else { "-" }), pod)
        })
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join("\n")
}

/// What does not depend on the node, the moment and the ids.
fn plain(value: &Value, pod: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let times = ["startTime", "startedAt", "finishedAt", "lastTransitionTime", "lastProbeTime"];
            let plain_entry = |(key, value): (&String, &Value)| {
                let is_time = times.contains(&key.as_str()) && value.is_string();
                (key.clone(), if is_time { json!("TIME") } else { plain(value, pod) })
            };
            Value::Object(map.iter().map(plain_entry).collect())
        }
        Value::Array(all) => {
            let mut all: Vec<Value> = all.iter().map(|one| plain(one, pod)).collect();
            // Conditions are a map by their type.
            all.sort_by_key(|one| one["type"].as_str().map(str::to_owned));
            Value::Array(all)
        }
        Value::String(text) => json!(plain_text(text, pod)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn plain_text(text: &str, pod: &Value) -> String {
    let mut text = text.to_owned();
    let known = [
        (&pod["metadata"]["uid"], "UID"),
        (&pod["metadata"]["name"], "NAME"),
        (&pod["status"]["podIP"], "IP"),
    ];
    for (value, by) in known {
        if let Some(value) = value.as_str() {
            text = text.replace(value, by);
        }
    }
    let text = without_place(text);
    let words = text.split(' ').map(|word| if is_varying(word) { "VARIES" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Where the image is of which a part is missing: containerd says its path on the node, Berth the name of the volume.
fn without_place(text: String) -> String {
    let Some((before, rest)) = text.split_once("failed to ensure image subpath") else { return text };
    let parts = rest.split_once(" in ").and_then(|(part, rest)| Some((part, rest.split_once(": ")?.1)));
    let Some((part, why)) = parts else { return text };
    format!("{before}failed to ensure image subpath{part} in PLACE: {why}")
}

/// An id of a container, or a length of time as a pull has one.
fn is_varying(word: &str) -> bool {
    let id = word.trim_start_matches("containerd://").trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let time = word.trim_matches(['(', ')', '.']);
    let is_time = time
        .strip_suffix("ms")
        .or(time.strip_suffix('s'))
        .is_some_and(|number| number.parse::<f64>().is_ok());
    is_id || (is_time && (time.ends_with("ms") || time.contains('.')))
}
