//! The server of a node without a control plane: whoever has a certificate of the authority may do everything, and nobody else is let in.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use berth_core::server::Kind;
use berth_integration::agent::Settings;
use berth_integration::authority::{Authority, Use};
use berth_integration::files;
use berth_integration::https::Client;
use berth_integration::kubelet::{self, Kubelet};
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::wait::{self, Look};
use berth_integration::websocket::{STDIN, WebSocket};
use serde_json::{Value, json};

use super::{PORT, is_of_kubelet};
use crate::kit::{FOR_EVER, SOON, eventually, pod, shell, with};
use crate::suite::same;

/// Whoever asks.
const WHO: Use = Use::Client { name: "somebody", group: "" };
/// The node's address, as the certificate of its server has it.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A node that is alone, its authority, and who may ask it.
pub(super) struct Alone {
    pub(super) node: Node,
    kubelet: Option<Kubelet>,
    pub(super) authority: Authority,
    pub(super) at: SocketAddr,
    pub(super) client: Client,
}

impl Alone {
    pub(super) fn start() -> Result<Self> {
        let root = World::here()?.root().to_owned();
        let authority = Authority::make(&root.join("authority"))?;
        let server = authority.sign("server", Use::Server(ADDRESS))?;
        let configuration = json!({
            "tlsCertFile": server.certificate,
            "tlsPrivateKeyFile": server.key,
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": false },
                "x509": { "clientCAFile": authority.certificate() },
            },
            "authorization": { "mode": "AlwaysAllow" },
        });
        let own = authority.sign("client", WHO)?;
        let (node, kubelet, port) = if is_of_kubelet() {
            let node = Node::start_with(&Settings::with_registry())?;
            let configuration = with(configuration, json!({ "enableServer": true }));
            let settings = kubelet::Settings { kubelet: configuration, ..kubelet::Settings::default() };
            let kubelet = Kubelet::start(&node, settings)?;
            (node, Some(kubelet), kubelet::PORT)
        } else {
            let node = Node::start_with(&Settings { kubelet: configuration, ..Settings::default() })?;
            (node, None, PORT)
        };
        let at = SocketAddr::from((ADDRESS, port));
        let client = Client::new(at, authority.certificate(), Some(&own))?;
        let alone = Self { node, kubelet, authority, at, client };
        eventually("the server to be well", &"ok".to_owned(), || {
            Ok(alone.client.get("/healthz").map_or_else(|failure| format!("{failure:#}"), |it| it.text()))
        })?;
        Ok(alone)
    }

    /// The name of the pod of a manifest.
    pub(super) fn pod(&self, manifest: &str) -> String {
        let node = if self.kubelet.is_some() { kubelet::NODE_NAME } else { "lab" };
        format!("{manifest}-{node}")
    }

    /// Puts a manifest there and waits until the server says that its pod is ready.
    pub(super) fn run(&self, name: &str, manifest: &str) -> Result<()> {
        match &self.kubelet {
            None => self.node.apply(name, manifest)?,
            Some(kubelet) => {
                files::write(kubelet.manifests().join(format!("{name}.yaml")), manifest)?;
            }
        }
        wait::until(&format!("the server to say that {name} is ready"), SOON, || {
            Ok(match self.shown(name)? {
                Some(pod) if crate::api_pods::is_ready(&pod) => Look::Ready(()),
                other => Look::NotYet(format!("{other:?}")),
            })
        })
    }

    /// Takes a manifest away and waits until the server shows no pod of it.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match &self.kubelet {
            None => self.node.remove(name)?,
            Some(kubelet) => files::remove(kubelet.manifests().join(format!("{name}.yaml")))?,
        }
        eventually(&format!("{name} to be gone"), &true, || Ok(self.shown(name)?.is_none()))
    }

    /// The pod of a manifest, as the server shows it.
    fn shown(&self, name: &str) -> Result<Option<Value>> {
        let pods: Value = serde_json::from_slice(&self.client.get("/pods")?.body)?;
        // Go writes nothing of a list as null.
        let mut all = pods["items"].as_array().into_iter().flatten();
        Ok(all.find(|pod| pod["metadata"]["name"] == self.pod(name).as_str()).cloned())
    }

    /// The path of a command in the container `main`.
    pub(super) fn exec(&self, manifest: &str, command: &[&str], more: &str) -> String {
        let words: String = command.iter().map(|word| format!("&command={}", escaped(word))).collect();
        format!("/exec/default/{}/main?output=1&error=1{more}{words}", self.pod(manifest))
    }

    /// Ends it.
    pub(super) fn end(self) -> Result<()> {
        if let Some(kubelet) = self.kubelet {
            for manifest in files::list(kubelet.manifests())? {
                files::remove(manifest)?;
            }
            eventually("their containers to be gone", &0, || Ok(kubelet::containers()?.len()))?;
            kubelet.end(&self.node)?;
        }
        self.node.end()
    }
}

/// As a query has it.
fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

pub(super) fn all() -> Result<()> {
    let alone = Alone::start()?;
    let main = shell("main", &format!("echo well; {FOR_EVER}"), json!({}));
    alone.run("web", &pod("web", json!({ "containers": [main] })))?;
    let (client, name) = (&alone.client, alone.pod("web"));
    eventually("the log", &(200, "well\n".to_owned()), || {
        let answer = client.get(&format!("/containerLogs/default/{name}/main"))?;
        Ok((answer.status, answer.text()))
    })?;
    let answer = client.get(&format!("/containerLogs/default/{name}/main?timestamps=true&tailLines=1"))?;
    ensure!(answer.text().ends_with(" well\n") && answer.text().len() > 30, "{:?}", answer.text());
    for (path, wanted) in [
        ("/containerLogs/default/absent/main".to_owned(), 404),
        (format!("/containerLogs/default/{name}/absent"), 404),
        (format!("/containerLogs/default/{name}/main?tailLines=many"), 400),
        ("/absent".to_owned(), 404),
        ("/runningpods/".to_owned(), 200),
        ("/healthz/syncloop".to_owned(), 200),
    ] {
        same(&path, client.get(&path)?.status, wanted)?;
    }
    streams(&alone)?;
    others(&alone)?;
    alone.end()
}

fn streams(alone: &Alone) -> Result<()> {
    let client = &alone.client;
    let script = ["sh", "-c", "read word; echo heard $word; echo badly >&2; exit 7"];
    let mut socket = WebSocket::open(client, &alone.exec("web", &script, "&input=1"))?;
    socket.send(STDIN, b"hello\n")?;
    let done = socket.finish()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    same("output", text(&done.stdout).as_str(), "heard hello\n")?;
    same("the other output", text(&done.stderr).as_str(), "badly\n")?;
    same("status", &done.status["status"], &json!("Failure"))?;
    same("reason", &done.status["reason"], &json!("NonZeroExitCode"))?;
    let cause = json!([{ "reason": "ExitCode", "message": "7" }]);
    same("code", &done.status["details"]["causes"], &cause)?;

    let path = alone.exec("web", &["true"], "");
    let spdy = [("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v4.channel.k8s.io")];
    let (answer, _stream) = client.upgrade("POST", &path, &spdy)?;
    same("POST with an upgrade", answer.status, 101)?;
    same("upgraded to", answer.header("Upgrade"), Some("SPDY/3.1"))?;
    same("protocol", answer.header("X-Stream-Protocol-Version"), Some("v4.channel.k8s.io"))?;
    let old = [("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", "v9.channel.k8s.io")];
    same("an unknown protocol", client.upgrade("POST", &path, &old)?.0.status, 403)?;
    // Source: `responder.Error` of pkg/kubelet/server/server.go.
    let plain = client.request("POST", &path)?;
    same("without an upgrade", (plain.status, plain.text().trim_end()), (500, "Upgrade request required"))?;
    // Something that is asked for without a stream.
    let run = format!("/run/default/{}/main?cmd=echo%20ran", alone.pod("web"));
    let ran = client.request("POST", &run)?;
    same("run", (ran.status, ran.text().as_str()), (200, "ran\n"))
}

/// Those who are not let in.
fn others(alone: &Alone) -> Result<()> {
    let ca = alone.authority.certificate();
    let elsewhere = Authority::make(&World::here()?.root().join("elsewhere"))?;
    let ended = alone.authority.sign_ended("ended", WHO)?;
    let foreign = elsewhere.sign("foreign", WHO)?;
    let server = alone.authority.sign("no-client", Use::Server(ADDRESS))?;
    for (who, own) in [
        ("nobody", None),
        ("of another authority", Some(&foreign)),
        ("ended", Some(&ended)),
        ("a server", Some(&server)),
    ] {
        let client = Client::new(alone.at, ca, own)?;
        same(&format!("a command as {who}"), client.get(&alone.exec("web", &["true"], ""))?.status, 401)?;
        for (kind, method, path) in Kind::all_examples() {
            // Go's server says where else to ask before it asks who asks.
            let refused = if is_of_kubelet() && path == "/runningpods" { 301 } else { 401 };
            same(&format!("{method} {path} as {who}"), client.request(method, path)?.status, refused)?;
            if kind.is_stream() {
                let upgrade = client.upgrade(method, path, &[("Upgrade", "SPDY/3.1")])?.0;
                same(&format!("{method} {path} as {who}, upgraded"), upgrade.status, 401)?;
            }
        }
    }
    // Nor is a server trusted that is of another authority.
    let trusting = Client::new(alone.at, elsewhere.certificate(), None)?;
    let failure = trusting.get("/healthz").err().context("the server is trusted")?;
    ensure!(format!("{failure:#}").contains("certificate"), "{failure:#}");
    Ok(())
}
