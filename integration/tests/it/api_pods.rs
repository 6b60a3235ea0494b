//! Pods of a real API server on a node of its: run, told and deleted.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, ROOT_DIR, STATE_DIR, Settings, berth, berth_json};
use berth_integration::cluster::{self, AuditEvent, Cluster};
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::wait::{self, Look};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_away::{followed, is_let_go, word};
use crate::canary::{self, Canary};
use crate::kit::{FOR_EVER, SOON, eventually, inside, pod, said_at, shell, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("api_pods::are_run_told_and_deleted", lives),
        test("api_pods::a_completed_one_stays_and_is_not_run_again", completed),
        test("api_pods::of_manifests_have_mirrors", mirrors),
        test("api_pods::show_objects_and_their_changes_and_tell_no_secret", objects),
        test("api_pods::are_ready_when_others_say_so_too", readiness_gates),
        test("api_pods::go_on_without_the_api_server", server_away),
        test("api_pods::are_as_they_were_when_the_agent_is_killed", agent_killed),
    ]
}

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";

pub(crate) fn path(pod: &str) -> String {
    format!("{PODS}/{pod}")
}

/// A control plane without controllers, and a node of it.
pub(crate) fn start(settings: Settings) -> Result<(Cluster, Node)> {
    let (cluster, settings) = in_a_cluster(settings)?;
    let node = Node::start_with(&settings)?;
    Ok((cluster, node))
}

/// A control plane without controllers, and the settings of a node of it.
pub(crate) fn in_a_cluster(settings: Settings) -> Result<(Cluster, Settings)> {
    let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::default())?;
    let kubeconfig = cluster.node_kubeconfig(NODE_NAME)?;
    let mut flags = settings.flags.clone();
    flags.push(format!("--kubeconfig={}", kubeconfig.display()));
    Ok((cluster, Settings { flags, ..settings }))
}

/// A pod that is bound to the node.
pub(crate) fn bound(name: &str, spec: Value) -> Result<Value> {
    Ok(serde_json::from_str(&pod(name, with(json!({ "nodeName": NODE_NAME }), spec)))?)
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready["status"] == "True")
}

pub(crate) fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// What the node has written of a pod's status, in order.
pub(crate) fn patches<'a>(audit: &'a [AuditEvent], pod: &str) -> Vec<&'a Value> {
    let of_pod = |event: &&AuditEvent| event.is("patch", "pods/status") && event.name() == pod;
    audit.iter().filter(of_pod).filter_map(|event| event.request_object.as_ref()).collect()
}

/// The node has asked for nothing that it may not have, has said of each status whose it is, has had each taken, and has written nothing
/// twice.
pub(crate) fn is_well_behaved(cluster: &Cluster) -> Result<Vec<AuditEvent>> {
    let audit = cluster.audit()?;
    let refused = cluster::refused(&audit, NODE_NAME);
    ensure!(refused.is_empty(), "the node was refused: {refused:?}");
    are_taken(&audit)?;
    let is_written = |event: &&AuditEvent| event.is("patch", "pods/status") && event.code() == 200;
    for event in audit.iter().filter(is_written).filter(|event| event.is_by_node(NODE_NAME)) {
        let uid = |object: Option<&Value>| object.map(|object| object["metadata"]["uid"].clone());
        let (said, is) = (uid(event.request_object.as_ref()), uid(event.response_object.as_ref()));
        let is_said = said == is && said.as_ref().is_some_and(Value::is_string);
        ensure!(is_said, "a status of {} for {said:?}, which is {is:?}", event.name());
    }
    let (mut written, mut repeated) = (BTreeMap::<&str, &AuditEvent>::new(), BTreeMap::<&str, usize>::new());
    for event in audit.iter().filter(is_written) {
        let Some(before) = written.insert(event.name(), event) else { continue };
        let is_again = before.request_object == event.request_object;
        if !is_again || looks(&audit).any(|at| is_under_way(before, at)) {
            continue;
        }
        let times = repeated.entry(event.name()).or_default();
        *times += 1;
        ensure!(
            *times <= unheard(event)?,
            "{} was patched twice, with {:?}, at {} and {}; the node looked at its pods at {:?}",
            event.name(),
            event.request_object,
            before.stage_timestamp,
            event.request_received_timestamp,
            looks(&audit).collect::<Vec<_>>(),
        );
    }
    Ok(audit)
}

/// The server has taken each status that the node has told.
pub(crate) fn all_taken(cluster: &Cluster) -> Result<()> {
    are_taken(&cluster.audit()?)
}

fn are_taken(audit: &[AuditEvent]) -> Result<()> {
    let is_refused = |event: &&AuditEvent| event.is("patch", "pods/status") && event.code() == 422;
    let refused: Vec<_> = audit.iter().filter(is_refused).map(|event| &event.request_object).collect();
    ensure!(refused.is_empty(), "the server takes no such status: {refused:?}");
    Ok(())
}

/// How often the agent has said, before this patch of a status arrived, that one of the same pod was not answered: it is sent again,
/// whatever the server made of it. What was answered is not, also where the agent makes nothing of the answer.
fn unheard(patch: &AuditEvent) -> Result<usize> {
    let arrived: Timestamp = patch.request_received_timestamp.parse()?;
    let failed = format!(
        "request to the API server failed pod=default/{} what=\"patch the status of a pod\" \
         error=no answer of the API server",
        patch.name()
    );
    let times = said_at(&World::here()?.root().join("agent/agent.log"), &failed)?;
    Ok(times.iter().filter(|at| **at <= arrived).count())
}

/// When the node began to watch its pods.
fn looks(audit: &[AuditEvent]) -> impl Iterator<Item = &str> {
    let is_look = |event: &&AuditEvent| event.is("watch", "pods") && event.is_by_node(NODE_NAME);
    audit.iter().filter(is_look).map(|event| event.request_received_timestamp.as_str())
}

/// Whether the server had a request then and had not answered it: an agent that was killed after it asked has not heard, and the next one
/// may not see what came of it.
fn is_under_way(request: &AuditEvent, at: &str) -> bool {
    (request.request_received_timestamp.as_str()..=request.stage_timestamp.as_str()).contains(&at)
}

/// The audit log, once it has the request that made a pod what it is: the server answers, and tells watches, before it writes.
pub(crate) fn audit_of(cluster: &Cluster, pod: &Value) -> Result<Vec<AuditEvent>> {
    let version = &pod["metadata"]["resourceVersion"];
    wait::until("the last change of a pod in the audit log", SOON, || {
        let audit = cluster.audit()?;
        let made = |event: &AuditEvent| {
            let object = event.response_object.as_ref().map(|object| &object["metadata"]["resourceVersion"]);
            object == Some(version)
        };
        Ok(if audit.iter().any(made) {
            Look::Ready(audit)
        } else {
            Look::NotYet(format!("{} events", audit.len()))
        })
    })
}

/// The audit log, once it has that the node deleted a pod.
fn audit_of_deletion(cluster: &Cluster, pod: &str) -> Result<Vec<AuditEvent>> {
    let is_deletion =
        |event: &AuditEvent| event.is_by_node(NODE_NAME) && event.is("delete", "pods") && event.name() == pod;
    wait::until("the deletion in the audit log", SOON, || {
        let audit = cluster.audit()?;
        Ok(if audit.iter().any(is_deletion) {
            Look::Ready(audit)
        } else {
            Look::NotYet(format!("{} events", audit.len()))
        })
    })
}

fn lives() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let main = shell("main", &format!("trap 'exit 3' TERM; {FOR_EVER}"), json!({}));
    let made = cluster.create(PODS, &bound("web", json!({ "containers": [main] }))?)?;
    let pod = cluster.wait_for(&path("web"), "ready", is_ready)?;
    let status = &pod["status"];
    same("phase", &status["phase"], &json!("Running"))?;
    same("generation", &status["observedGeneration"], &json!(1))?;
    ensure!(status["podIP"].is_string() && status["hostIP"].is_string(), "{status}");
    let container = &status["containerStatuses"][0];
    ensure!(
        container["containerID"].as_str().is_some_and(|id| id.starts_with("containerd://")),
        "{container}"
    );
    same("started", &container["started"], &json!(true))?;

    cluster.request("DELETE", &path("web"), "application/json", &json!({}))?;
    let uid = &made["metadata"]["uid"];
    gone(&cluster, "web")?;
    audit_of_deletion(&cluster, "web")?;
    // What was answered first need not be written down first.
    let told = ["Running", "Failed"].map(str::to_owned).to_vec();
    eventually("the phases that were told", &told, || {
        let audit = cluster.audit()?;
        let phase = |patch: &&Value| Some(patch["status"]["phase"].as_str()?.to_owned());
        Ok(patches(&audit, "web").iter().filter_map(phase).collect::<Vec<_>>())
    })?;
    let audit = is_well_behaved(&cluster)?;
    let deletes: Vec<_> =
        audit.iter().filter(|event| event.is_by_node(NODE_NAME) && event.is("delete", "pods")).collect();
    ensure!(deletes.len() == 1, "deleted {} times", deletes.len());
    let options = deletes[0].request_object.as_ref().context("no options")?;
    same("grace", &options["gracePeriodSeconds"], &json!(0))?;
    same("of which pod", &options["preconditions"]["uid"], uid)?;
    eprintln_patches(&audit, "web");
    node.end()?;
    cluster.end()
}

/// Shown when a test fails, and with `--nocapture`.
#[expect(clippy::print_stderr, reason = "what a life of a pod is told by")]
fn eprintln_patches(audit: &[AuditEvent], pod: &str) {
    for patch in patches(audit, pod) {
        eprintln!("{patch}");
    }
}

pub(crate) fn gone(cluster: &Cluster, pod: &str) -> Result<()> {
    cluster.wait_gone(&path(pod))
}

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// What must not be seen anywhere but in the volume, the environment and the OCI spec.
const CANARY: &str = "canary-7f3a91";

/// A ConfigMap, a Secret and a token as volumes and variables; changes are seen.
fn objects() -> Result<()> {
    canary::is_found_in_every_form()?;
    canary::allow_core_dumps()?;
    let settings = Settings { flags: vec!["--v=10".to_owned()], ..Settings::default() };
    let (cluster, mut node) = start(settings)?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "web" } });
    cluster.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    let map = |value: &str| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" },
        "data": { "a": value, "b": "kept" } })
    };
    cluster.create(MAPS, &map("one"))?;
    let secret = |value: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" },
        "stringData": { "k": value } })
    };
    cluster.create(SECRETS, &secret(CANARY))?;
    let env = json!([
        { "name": "SECRET", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
        { "name": "BOTH", "value": "$(SECRET) $(M_a)" },
    ]);
    let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
    let from = json!([{ "prefix": "M_", "configMapRef": { "name": "m" } }]);
    let main = shell("main", FOR_EVER, json!({ "env": env, "envFrom": from, "volumeMounts": mounts }));
    let sources = json!([
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } },
        { "configMap": { "name": "m" } },
        { "secret": { "name": "s" } },
        { "configMap": { "name": "later", "optional": true } },
        { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
    ]);
    let volumes = json!([{ "name": "v", "projected": { "sources": sources } }]);
    let spec = json!({ "serviceAccountName": "web", "automountServiceAccountToken": false,
        "containers": [main], "volumes": volumes });
    cluster.create(PODS, &bound("web", spec)?)?;
    cluster.wait_for(&path("web"), "ready", is_ready)?;
    let web = node.ready("web")?;
    same("files", inside(&web, "cat /v/a /v/b /v/k /v/namespace")?, format!("onekept{CANARY}default"))?;
    let token = inside(&web, "cat /v/token")?;
    let parts: Vec<&str> = token.split('.').collect();
    ensure!(parts.len() == 3, "no token");
    same("variables", inside(&web, "echo $SECRET $BOTH $M_b")?, format!("{CANARY} {CANARY} one kept"))?;
    let host = inside(&web, "echo $KUBERNETES_SERVICE_HOST")?;
    ensure!(!host.is_empty(), "no variables of the API server");

    // Pods are looked at once in a minute beside what changes: who waits for that does not see all of these in time.
    for value in ["two", "three", "four"] {
        cluster.request("PUT", &format!("{MAPS}/m"), "application/json", &map(value))?;
        eventually("the change", &value.to_owned(), || inside(&web, "cat /v/a"))?;
    }
    cluster.request("PUT", &format!("{SECRETS}/s"), "application/json", &secret("canary-7f3a92"))?;
    eventually("the change of the secret", &"canary-7f3a92".to_owned(), || inside(&web, "cat /v/k"))?;
    let later = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "later" }, "data": { "c": "here" } });
    cluster.create(MAPS, &later)?;
    eventually("what came later", &"here".to_owned(), || inside(&web, "cat /v/c 2>/dev/null; true"))?;
    cluster.request("DELETE", &format!("{MAPS}/later"), "application/json", &json!({}))?;
    eventually("its end", &"no".to_owned(), || inside(&web, "test -e /v/c || echo no"))?;

    let volume = inside(&web, "cat /v/k /v/token")?;
    // With its signature a token is one; the rest of it is no secret.
    for secret in [CANARY, "canary-7f3a92", parts[2]] {
        let canary = Canary::of(secret)?;
        ensure!(secret == CANARY || canary.is_in(volume.as_bytes()), "it is not even in the volume");
        is_told_nowhere(&cluster, &node, &canary)?;
    }
    canary::is_in_no_core_dump(&mut node)?;
    cluster.request("DELETE", &path("web"), "application/json", &json!({}))?;
    gone(&cluster, "web")?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// Neither the agent nor the API server shows a secret of the pod `web`, and no file of the agent's but those that are for the pod.
fn is_told_nowhere(cluster: &Cluster, node: &Node, canary: &Canary) -> Result<()> {
    let log = files::read(node.agent.log())?;
    ensure!(log.contains("TRACE"), "the log does not tell everything");
    let events = cluster.get_json("/api/v1/namespaces/default/events")?.to_string();
    ensure!(events.contains("Started"), "there are no events");
    let pod = cluster.get_json(&path("web"))?.to_string();
    let shown = [berth(&["inspect", "web"])?, berth_json(&["inspect", "web"])?.to_string()];
    let said = [("log", log), ("events", events), ("pod", pod)];
    for (what, text) in said.into_iter().chain(shown.map(|text| ("inspect", text))) {
        ensure!(!canary.is_in(text.as_bytes()), "a secret is told: {what}");
    }
    same("records that tell it", canary.files(Path::new(STATE_DIR), |_| false)?, Vec::new())?;
    let is_volume = |path: &Path| {
        let below = path.strip_prefix(ROOT_DIR).unwrap_or(path).iter().collect::<Vec<_>>();
        below.len() == 3 && below[0] == "pods" && (below[2] == "volumes" || below[2] == "volume-subpaths")
    };
    same("files that tell it", canary.files(Path::new(ROOT_DIR), is_volume)?, Vec::new())?;
    let agent = node.agent.pid().context("no agent")?;
    same("processes that tell it", canary.processes(agent)?, Vec::new())
}

fn completed() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    cluster.create(SECRETS, &word("s"))?;
    let main = shell("main", "exit 0", json!({ "envFrom": [{ "secretRef": { "name": "s" } }] }));
    cluster.create(PODS, &bound("job", json!({ "restartPolicy": "Never", "containers": [main] }))?)?;
    let done = cluster.wait_for(&path("job"), "done and taken down", |pod| {
        let sandbox = condition(pod, "PodReadyToStartContainers");
        pod["status"]["phase"] == "Succeeded" && sandbox.is_some_and(|sandbox| sandbox["status"] == "False")
    })?;
    eventually("its Secret to be let go", &true, || is_let_go(&cluster, "s"))?;
    node.agent.kill()?;
    node.agent.start()?;
    let main = shell("main", "exec sleep infinity", json!({}));
    cluster.create(PODS, &bound("later", json!({ "containers": [main] }))?)?;
    cluster.wait_for(&path("later"), "ready", is_ready)?;
    same("the status of before", &cluster.get_json(&path("job"))?["status"], &done["status"])?;
    same("how often its Secret was followed", followed(&cluster, "s")?, 1)?;
    for pod in ["job", "later"] {
        cluster.request("DELETE", &path(pod), "application/json", &json!({}))?;
        gone(&cluster, pod)?;
    }
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

fn mirrors() -> Result<()> {
    let (cluster, node) = start(Settings::default())?;
    let name = format!("dns-{NODE_NAME}");
    // The node makes its object itself.
    cluster.wait_for(&format!("/api/v1/nodes/{NODE_NAME}"), "registered", |_| true)?;
    // It waits for no services, and may begin before they are known: then it ends, and was never ready.
    let has_services = "test -n \"$KUBERNETES_SERVICE_HOST\"";
    // However busy the machine is, it is answered in time.
    let exec = json!({ "command": ["sh", "-c", has_services] });
    let probe = json!({ "readinessProbe": { "periodSeconds": 1, "timeoutSeconds": 30, "exec": exec } });
    let main = shell("main", &format!("{has_services} || exit 1; exec sleep infinity"), probe);
    node.apply("dns", &pod("dns", json!({ "containers": [main] })))?;
    let mirror = cluster.wait_for(&path(&name), "ready", is_ready)?;
    let hash = &mirror["metadata"]["annotations"]["kubernetes.io/config.hash"];
    same("hash", &mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"], hash)?;
    same("owner", &mirror["metadata"]["ownerReferences"][0]["kind"], &json!("Node"))?;
    let container = mirror["status"]["containerStatuses"][0]["containerID"].clone();

    cluster.request("DELETE", &path(&name), "application/json", &json!({}))?;
    let uid = mirror["metadata"]["uid"].clone();
    let again =
        cluster.wait_for(&path(&name), "made again", |pod| pod["metadata"]["uid"] != uid && is_ready(pod))?;
    same("the container", &again["status"]["containerStatuses"][0]["containerID"], &container)?;

    node.remove("dns")?;
    gone(&cluster, &name)?;
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

/// What others write stays, and counts at once.
fn readiness_gates() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let gate = "example.com/balanced";
    let main = shell("main", "exec sleep infinity", json!({}));
    let spec = json!({ "readinessGates": [{ "conditionType": gate }], "containers": [main] });
    cluster.create(PODS, &bound("web", spec)?)?;
    let holds = |pod: &Value, kind: &str, status: &str| {
        condition(pod, kind).is_some_and(|condition| condition["status"] == status)
    };
    let closed = cluster
        .wait_for(&path("web"), "with ready containers", |pod| holds(pod, "ContainersReady", "True"))?;
    let ready = condition(&closed, "Ready").context("no condition")?;
    same("ready", &ready["status"], &json!("False"))?;
    same("why", &ready["reason"], &json!("ReadinessGatesNotReady"))?;
    let message = format!("corresponding condition of pod readiness gate \"{gate}\" does not exist.");
    same("its message", &ready["message"], &json!(message))?;

    let say = |status: &str| {
        let condition = json!({ "type": gate, "status": status, "message": "by the balancer" });
        let patch = json!({ "status": { "conditions": [condition] } });
        let path = format!("{}/status", path("web"));
        cluster.request("PATCH", &path, "application/strategic-merge-patch+json", &patch).map(drop)
    };
    say("True")?;
    let open = cluster.wait_for(&path("web"), "ready", is_ready)?;
    say("False")?;
    let shut = cluster.wait_for(&path("web"), "not ready", |pod| holds(pod, "Ready", "False"))?;
    let message = format!("the status of pod readiness gate \"{gate}\" is not \"True\", but False");
    same("its message", &condition(&shut, "Ready").context("no condition")?["message"], &json!(message))?;
    say("True")?;
    let open_again = cluster.wait_for(&path("web"), "ready", is_ready)?;
    same("the container", &open_again["status"]["containerStatuses"], &open["status"]["containerStatuses"])?;

    node.agent.kill()?;
    node.agent.start()?;
    let main = shell("main", "exec sleep infinity", json!({}));
    cluster.create(PODS, &bound("later", json!({ "containers": [main] }))?)?;
    cluster.wait_for(&path("later"), "ready", is_ready)?;
    let after = cluster.get_json(&path("web"))?;
    same("the status of before", &after["status"], &open_again["status"])?;
    let theirs = condition(&after, gate).context("their condition is gone")?;
    same("what they wrote", &theirs["message"], &json!("by the balancer"))?;
    for pod in ["web", "later"] {
        cluster.request("DELETE", &path(pod), "application/json", &json!({}))?;
        gone(&cluster, pod)?;
    }
    is_well_behaved(&cluster)?;
    node.end()?;
    cluster.end()
}

fn server_away() -> Result<()> {
    let (mut cluster, node) = start(Settings::default())?;
    let crashes = shell("main", "sleep 1; exit 1", json!({}));
    let stays = shell("stays", "exec sleep infinity", json!({}));
    cluster.create(PODS, &bound("web", json!({ "containers": [stays, crashes] }))?)?;
    let restarted = cluster.wait_for(&path("web"), "restarted", |pod| restarts(pod, "main") >= 1)?;
    audit_of(&cluster, &restarted)?;
    cluster.kill_api_server()?;
    let patched = patches(&cluster.audit()?, "web").len();
    let here = || Ok::<_, anyhow::Error>(node.pod("web")?.context("no pod")?.0);
    let before = here()?;
    wait::until("another restart without the API server", POD_LIMIT, || {
        let now = here()?;
        Ok(if restarts(&now, "main") > restarts(&before, "main") {
            Look::Ready(())
        } else {
            Look::NotYet(now["status"].to_string())
        })
    })?;
    let known = restarts(&here()?, "main");
    cluster.start_api_server()?;
    let told = cluster.wait_for(&path("web"), "told", |pod| restarts(pod, "main") >= known)?;
    audit_of(&cluster, &told)?;
    let audit = is_well_behaved(&cluster)?;
    // What has happened meanwhile is one backlog, however much it is.
    let first = *patches(&audit, "web").get(patched).context("nothing was told")?;
    ensure!(restarts(first, "main") >= known, "{known} restarts, of which this was told first: {first}");
    let told = counted(&cluster, "web", "BackOff", 2)?;
    // The server forgets events after a while: the next time it is there again, with all that was counted.
    let event = told["metadata"]["name"].as_str().context("no name")?;
    let events = "/api/v1/namespaces/default/events";
    cluster.request("DELETE", &format!("{events}/{event}"), "application/json", &json!({}))?;
    counted(&cluster, "web", "BackOff", 3)?;
    cluster.request("DELETE", &path("web"), "application/json", &json!({}))?;
    gone(&cluster, "web")?;
    node.end()?;
    cluster.end()
}

/// The one event of what happens to a pod again and again, once it tells of so many times at least, and when it was last.
fn counted(cluster: &Cluster, pod: &str, reason: &str, least: u64) -> Result<Value> {
    let of_pod = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={pod}");
    let is_counted = |event: &Value| {
        let [first, last] = ["firstTimestamp", "lastTimestamp"].map(|name| event[name].as_str());
        event["count"].as_u64() >= Some(least) && first.is_some() && last > first
    };
    // Back-offs of a container become longer.
    wait::until(&format!("one event of {reason} of {least} times"), SOON * 3, || {
        let events = cluster.get_json(&of_pod)?;
        let all = events["items"].as_array().into_iter().flatten();
        let told: Vec<&Value> = all.filter(|event| event["reason"] == reason).collect();
        Ok(match told.as_slice() {
            [one] if is_counted(one) => Look::Ready((*one).clone()),
            told => Look::NotYet(format!("{told:?}")),
        })
    })
}

pub(crate) fn restarts(pod: &Value, container: &str) -> u64 {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let status = statuses.into_iter().flatten().find(|status| status["name"] == container);
    status.and_then(|status| status["restartCount"].as_u64()).unwrap_or(0)
}

fn agent_killed() -> Result<()> {
    let (cluster, mut node) = start(Settings::default())?;
    let pods = ["one", "two", "three"];
    for name in pods {
        let main = shell("main", "exec sleep infinity", json!({}));
        cluster.create(PODS, &bound(name, json!({ "containers": [main] }))?)?;
    }
    let mut before = Vec::new();
    for name in pods {
        before.push(cluster.wait_for(&path(name), "ready", is_ready)?);
    }
    for pod in &before {
        audit_of(&cluster, pod)?;
    }
    let patched = is_well_behaved(&cluster)?.iter().filter(|event| event.is("patch", "pods/status")).count();
    node.agent.kill()?;
    let late = shell("main", "exec sleep infinity", json!({}));
    cluster.create(PODS, &bound("late", json!({ "containers": [late] }))?)?;
    node.agent.start()?;
    let late = cluster.wait_for(&path("late"), "ready", is_ready)?;
    audit_of(&cluster, &late)?;
    for (name, before) in pods.iter().zip(&before) {
        let now = cluster.get_json(&path(name))?;
        same(&format!("the status of {name}"), &now["status"], &before["status"])?;
    }
    let audit = is_well_behaved(&cluster)?;
    let of_late = patches(&audit, "late").len();
    let all = audit.iter().filter(|event| event.is("patch", "pods/status")).count();
    same("patches of pods that went on", all - patched - of_late, 0)?;
    for name in pods.iter().chain(&["late"]) {
        cluster.request("DELETE", &path(name), "application/json", &json!({}))?;
        gone(&cluster, name)?;
    }
    node.end()?;
    cluster.end()
}
