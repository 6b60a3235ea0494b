//! What a node asks of the API server: all that it needs, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::AuditEvent;
use serde_json::{Value, json};

use crate::api_pods::{MAPS, PODS, SECRETS, bound, gone, is_ready, is_well_behaved, path, start};
use crate::kit::{FOR_EVER, shell};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![test("api_rights::a_node_asks_for_what_its_pods_need_and_for_nothing_else", needed)]
}

/// What was asked, without what differs from life to life: the name of what the server or the node names anew each time.
fn shape(event: &AuditEvent) -> String {
    let Some(about) = &event.object_ref else {
        let path = event.request_uri.split('?').next().unwrap_or_default();
        return format!("{} {path}", event.verb);
    };
    let kind = if about.subresource.is_empty() {
        about.resource.clone()
    } else {
        format!("{}/{}", about.resource, about.subresource)
    };
    let name = if about.resource == "events" { "" } else { &about.name };
    format!("{} {kind} {}/{name}", event.verb, about.namespace)
}

/// Whether this counts as a request: a watch when it begins, everything else when it is answered. What is asked too early is asked
/// again, and [`is_well_behaved`] has looked at it.
fn counts(event: &AuditEvent) -> bool {
    let stage = if event.verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
    event.stage == stage && !event.is_refused()
}

/// Whether the server has no time for it: it is asked again.
fn is_put_off(event: &AuditEvent) -> bool {
    event.code() == 429 || event.code() >= 500
}

fn needed() -> Result<()> {
    // It is renewed every ten seconds, which is as long as its answer may take.
    let kubelet = json!({ "nodeLeaseDurationSeconds": 40 });
    let (cluster, node) = start(Settings { kubelet, ..Settings::default() })?;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "web" } });
    cluster.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    for (name, text) in [("m", "asked for"), ("other", "of nobody")] {
        let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "a": text } });
        cluster.create(MAPS, &map)?;
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": { "k": text } });
        cluster.create(SECRETS, &secret)?;
    }
    let sources = json!([
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } },
        { "configMap": { "name": "m" } }, { "secret": { "name": "m" } },
    ]);
    let main = shell("main", FOR_EVER, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }));
    let spec = json!({ "serviceAccountName": "web", "automountServiceAccountToken": false, "containers": [main],
        "volumes": [{ "name": "v", "projected": { "sources": sources } }] });
    cluster.create(PODS, &bound("web", spec)?)?;
    cluster.wait_for(&path("web"), "ready", is_ready)?;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}");
    let time = |lease: &Value| lease["spec"]["renewTime"].clone();
    let first = cluster.wait_for(&lease, "made", |lease| time(lease).is_string())?;
    cluster.wait_for(&lease, "renewed", |lease| time(lease) != time(&first))?;
    cluster.request("DELETE", &path("web"), "application/json", &json!({}))?;
    gone(&cluster, "web")?;
    node.end()?;
    let audit = is_well_behaved(&cluster)?;
    let (mut asked, mut put_off) = (BTreeMap::<String, usize>::new(), BTreeSet::new());
    for event in audit.iter().filter(|event| event.is_by_node(NODE_NAME) && counts(event)) {
        if is_put_off(event) {
            put_off.insert(shape(event));
        } else {
            *asked.entry(shape(event)).or_default() += 1;
        }
    }
    // Each of these is asked for as often as something of it has changed, or for a time.
    let often =
        ["create events default/", "patch pods/status default/web", "update leases kube-node-lease/lab"];
    for what in often {
        ensure!(asked.remove(what).is_some(), "no {what}");
    }
    let status = format!("patch nodes/status /{NODE_NAME}");
    asked.remove(&status);
    let once = [
        "create csinodes /lab",
        "create leases kube-node-lease/lab",
        "create nodes /lab",
        "create serviceaccounts/token default/web",
        "delete pods default/web",
        "get leases kube-node-lease/lab",
        "watch configmaps default/m",
        "watch nodes /lab",
        "watch pods /",
        "watch secrets default/m",
        "watch services /",
    ];
    same("what was asked once", asked, once.map(|what| (what.to_owned(), 1)).into())?;
    put_off.retain(|what| *what != status && !often.into_iter().chain(once).any(|known| known == what));
    same("what else the server had no time for", put_off, BTreeSet::new())?;
    // Of pods those alone that are bound to it.
    let of_pods = audit.iter().filter(|event| event.is_by_node(NODE_NAME) && event.is("watch", "pods"));
    for event in of_pods {
        ensure!(event.request_uri.contains(&format!("spec.nodeName%3D{NODE_NAME}")), "{}", event.request_uri);
    }
    cluster.end()
}
