//! Who the node is: the certificate of its server, and kubeconfigs that others keep.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::proxy::Proxy;
use berth_integration::cluster::{self, AuditEvent, Cluster};
use berth_integration::files;
use berth_integration::lab::World;
use berth_integration::node::{Node, system};
use berth_integration::wait::{self, Look};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kit::SOON;
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("certificates::the_cluster_signs_that_of_the_server_for_its_addresses", serving).long(),
        test("certificates::a_node_joins_by_a_credential_plugin_and_its_kubeconfig_is_read_again", plugin),
    ]
}

const SERVING: &str = "kubernetes.io/kubelet-serving";
/// How long a certificate is in use at least before another one is asked for, however soon it ends.
const IN_USE_FOR: SignedDuration = SignedDuration::from_secs(10);
const STATUS: &str = "/api/v1/nodes/lab/status";

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True")
}

fn path() -> String {
    format!("/api/v1/nodes/{NODE_NAME}")
}

/// Nothing that the node asked was refused.
fn none_refused(cluster: &Cluster) -> Result<()> {
    let audit = cluster.audit()?;
    let refused = cluster::refused(&audit, NODE_NAME);
    ensure!(refused.is_empty(), "refused: {refused:#?}");
    Ok(())
}

/// Requests for certificates, of whatever signer.
pub(crate) fn requests(cluster: &Cluster) -> Result<Vec<Value>> {
    let all = cluster.get_json("/apis/certificates.k8s.io/v1/certificatesigningrequests")?;
    Ok(all["items"].as_array().cloned().unwrap_or_default())
}

/// Checks what the node asks in requests for certificates of its server that nobody has decided on, approves them, and says how many.
pub(crate) fn approve_open(cluster: &Cluster) -> Result<usize> {
    let is_open = |it: &Value| it["spec"]["signerName"] == SERVING && it["status"]["conditions"].is_null();
    let open: Vec<Value> = requests(cluster)?.into_iter().filter(is_open).collect();
    for one in &open {
        same("who asks", &one["spec"]["username"], &json!(format!("system:node:{NODE_NAME}")))?;
        same("for what", &one["spec"]["usages"], &json!(["digital signature", "server auth"]))?;
        let name = one["metadata"]["name"].as_str().context("a name")?;
        ensure!(name.starts_with("csr-"), "{name}");
        cluster.kubectl(&["certificate", "approve", name])?;
    }
    Ok(open.len())
}

/// When the node asked for a certificate, after some time: the server answers before it writes the request down.
fn asked_after(cluster: &Cluster, after: Timestamp) -> Result<Timestamp> {
    let is_asked =
        |event: &&AuditEvent| event.is_by_node(NODE_NAME) && event.is("create", "certificatesigningrequests");
    wait::until("the request for a certificate in the audit log", SOON, || {
        let audit = cluster.audit()?;
        let last = audit.iter().rev().find(is_asked).context("it asked for none")?;
        let at: Timestamp = last.request_received_timestamp.parse()?;
        Ok(if at > after { Look::Ready(at) } else { Look::NotYet(format!("the last is of {at}")) })
    })
}

/// Waits until the current certificate is another one than before, and says all of these: what is held, and what it says. What the node asks
/// for meanwhile is approved. It may have asked before there was so much to say, and an agent that was killed may have left a request open
/// beside that of the next. Two certificates of one second have one name.
fn held(cluster: &Cluster, pki: &Path, after: Option<&str>, says: &[&str]) -> Result<(String, String)> {
    let current = pki.join("kubelet-server-current.pem");
    wait::until("another certificate of the server", SOON * 2, || {
        let approved = approve_open(cluster)?;
        let Ok(file) = fs::read_link(&current) else {
            return Ok(Look::NotYet(format!("none; {approved} were approved")));
        };
        let shown = file.display().to_string();
        let pair = files::read(&file)?;
        if Some(pair.as_str()) == after {
            return Ok(Look::NotYet("the one before".to_owned()));
        }
        let mode = fs::metadata(&file).with_context(|| format!("look at {shown}"))?.permissions().mode();
        ensure!(mode & 0o777 == 0o600, "{shown} has mode {mode:o}");
        let text = system("openssl", &["x509", "-noout", "-text", "-in", &shown])?;
        let is_it = says.iter().all(|part| text.contains(part));
        Ok(if is_it { Look::Ready((pair, text)) } else { Look::NotYet(text) })
    })
}

fn serving() -> Result<()> {
    let settings = cluster::Settings::with_brief_certificates();
    let root = World::here()?.root().to_owned();
    let cluster = Cluster::start(&root.join("cluster"), &settings)?;
    let kubelet = json!({
        "serverTLSBootstrap": true, "nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "1s",
    });
    let mut node = Node::prepare(&Settings { kubelet, ..Settings::default() })?;
    let pki = root.join("pki");
    node.agent.set_flags(&[
        format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display()),
        format!("--cert-dir={}", pki.display()),
        "--cloud-provider=external".to_owned(),
    ]);
    node.agent.start()?;
    cluster.wait_for(&path(), "registered", |_| true)?;
    // The cloud has not said yet how the node is reached, so nothing can be asked for; then it does.
    let addresses = |more: &[Value]| {
        let mut all = vec![json!({ "type": "InternalIP", "address": "10.99.0.7" })];
        all.extend_from_slice(more);
        json!({ "status": { "addresses": all } })
    };
    let patch = "application/strategic-merge-patch+json";
    cluster.request("PATCH", STATUS, patch, &addresses(&[]))?;
    let (first, text) = held(&cluster, &pki, None, &[])?;
    for expected in
        ["O = system:nodes", "CN = system:node:lab", "IP Address:10.99.0.7", "TLS Web Server Authentication"]
    {
        ensure!(text.contains(expected), "no `{expected}` in {text}");
    }
    // It is reached by another name.
    let name = json!({ "type": "ExternalDNS", "address": "lab.example" });
    cluster.request("PATCH", STATUS, patch, &addresses(&[name]))?;
    let both = ["DNS:lab.example", "IP Address:10.99.0.7"];
    let (second, _) = held(&cluster, &pki, Some(&first), &both)?;
    // It is nearly over, and replaced; an agent that begins anew goes on with the last one, which is not replaced before it was in
    // use for a while.
    let (third, text) = held(&cluster, &pki, Some(&second), &[])?;
    ensure!(both.iter().all(|part| text.contains(part)), "{text}");
    node.agent.kill()?;
    let begun = Timestamp::now();
    node.agent.start()?;
    let asked = asked_after(&cluster, begun)?.duration_since(begun);
    ensure!(asked >= IN_USE_FOR, "another certificate was asked for {asked} after the agent began anew");
    held(&cluster, &pki, Some(&third), &both)?;
    none_refused(&cluster)?;
    node.end()?;
    cluster.end()
}

/// A kubeconfig with a plugin in place of the certificate that another one holds; the plugin says that certificate.
fn with_plugin(cluster: &Cluster, root: &Path) -> Result<PathBuf> {
    let held = cluster.node_kubeconfig(NODE_NAME)?;
    let shown = cluster.kubectl_as(&held, &["config", "view", "--raw", "--output=json"], "")?;
    let mut config: Value = serde_json::from_str(&shown)?;
    let user = config["users"][0]["user"].take();
    for name in ["client-certificate-data", "client-key-data"] {
        files::write(root.join(name), user[name].as_str().context("a certificate")?)?;
    }
    let plugin = root.join("plugin");
    let script = r#"#!/bin/sh
here=$(dirname "$0")
echo "$KUBERNETES_EXEC_INFO" >> "$here/info"
text() { base64 -d "$here/$1" | awk '{ printf "%s\\n", $0 }'; }
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{' 
printf '"clientCertificateData":"%s","clientKeyData":"%s"}}' "$(text client-certificate-data)" "$(text client-key-data)"
"#;
    files::write_program(&plugin, script)?;
    config["users"][0]["user"] = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "./plugin", "provideClusterInfo": true,
    } });
    let path = root.join("kubelet.conf");
    files::write(&path, config.to_string())?;
    Ok(path)
}

fn plugin() -> Result<()> {
    let root = World::here()?.root().to_owned();
    let cluster = Cluster::start(&root.join("cluster"), &cluster::Settings::default())?;
    let kubelet = json!({ "nodeLeaseDurationSeconds": 4, "nodeStatusUpdateFrequency": "1s" });
    let mut node = Node::prepare(&Settings { kubelet, ..Settings::default() })?;
    let kubeconfig = with_plugin(&cluster, &root)?;
    node.agent.set_flags(&[format!("--kubeconfig={}", kubeconfig.display())]);
    node.agent.start()?;
    let before = cluster.wait_for(&path(), "ready", is_ready)?;
    let info = files::read(root.join("info"))?;
    let info: Vec<Value> = info.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    same("runs of the plugin", info.len(), 1)?;
    let server = info[0]["spec"]["cluster"]["server"].as_str().unwrap_or_default().to_owned();
    ensure!(server.starts_with("https://"), "{info:?}");

    // The server is reached otherwise from now on, and nobody restarts the agent.
    let proxy = Proxy::start((Ipv4Addr::LOCALHOST, 0).into(), cluster.address())?;
    let text = files::read(&kubeconfig)?.replace(&server, &format!("https://{}", proxy.at()));
    let part = root.join("part");
    files::write(&part, text)?;
    fs::rename(&part, &kubeconfig)?;
    wait::until("connections through the proxy", SOON * 2, || {
        Ok(if proxy.connections() > 0 { Look::Ready(()) } else { Look::NotYet("none".to_owned()) })
    })?;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}");
    let time = |lease: &Value| lease["spec"]["renewTime"].clone();
    let renewed = cluster.get_json(&lease)?;
    cluster.wait_for(&lease, "renewed", |lease| time(lease) != time(&renewed))?;
    let since = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
        conditions
            .filter(|one| one["type"] == "Ready")
            .map(|one| one["lastTransitionTime"].clone())
            .collect::<Vec<_>>()
    };
    same("ready since", since(&cluster.get_json(&path())?), since(&before))?;
    none_refused(&cluster)?;
    node.end()?;
    cluster.end()
}
