//! The control plane, the node and the registry that the suite is run against.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::{self, Cluster};
use berth_integration::kubelet::{self, Kubelet};
use berth_integration::lab::World;
use berth_integration::node::Node;
use berth_integration::registry::{PAUSE, Registry};
use berth_integration::{cri, files};
use serde_json::{Value, json};

use crate::args::Kind;
use crate::images;

/// The port of the registry. The one of examples is a registry's that specs have as a pod of the host's network.
const REGISTRY_PORT: u16 = 5010;
/// The port of a node's server.
const PORT: u16 = 10_250;
/// The address of a cluster's DNS. Nobody answers there: no spec of a node's conformance asks.
const DNS: &str = "10.96.0.10";

/// All of it. It ends with the lab.
#[derive(Debug)]
pub(crate) struct Place {
    cluster: Cluster,
    node: Node,
    kubelet: Option<Kubelet>,
    registry: Registry,
}

impl Place {
    /// Starts it, and waits until pods can be sent to the node.
    pub(crate) fn start(kind: Kind) -> Result<Self> {
        let root = World::here()?.root().clone();
        let registry = Registry::start(&root.join("e2e-registry"), REGISTRY_PORT)?;
        images::push(&registry, &root.join("images"))?;
        let whole = cluster::Settings { checks_nodes: true, ..cluster::Settings::whole() };
        let cluster = Cluster::start(&root.join("cluster"), &whole)?;
        cluster.let_it_ask_nodes()?;
        let (node, kubelet) = match kind {
            Kind::Berth => (of_berth(&cluster)?, None),
            Kind::Kubelet => {
                let (beside, kubelet) = of_kubelet(&cluster)?;
                (beside, Some(kubelet))
            }
        };
        let name = if kubelet.is_some() { kubelet::NODE_NAME } else { NODE_NAME };
        cluster.wait_for(&format!("/api/v1/nodes/{name}"), "ready and without taints", takes_pods)?;
        Ok(Self { cluster, node, kubelet, registry })
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Ends it, and fails when pods or anything of theirs are left on a node of Berth.
    pub(crate) fn end(self) -> Result<()> {
        if let Some(kubelet) = self.kubelet {
            kubelet.end(&self.node)?;
            self.node.close()?;
        } else {
            self.node.end()?;
        }
        self.cluster.end()?;
        self.registry.stop()?;
        Ok(())
    }
}

fn of_berth(cluster: &Cluster) -> Result<Node> {
    let kubeconfig = cluster.node_kubeconfig(NODE_NAME)?;
    let mut node = Node::prepare(&Settings {
        kubelet: configuration(cluster, NODE_NAME)?,
        flags: vec![node_ip(), format!("--kubeconfig={}", kubeconfig.display())],
        ..Settings::default()
    })?;
    redirect(&node)?;
    node.agent.start()?;
    Ok(node)
}

/// The real kubelet, beside the containerd, the network and the registries of a node whose agent is not started.
fn of_kubelet(cluster: &Cluster) -> Result<(Node, Kubelet)> {
    let mut node = Node::prepare(&Settings::with_registry())?;
    redirect(&node)?;
    let mut fields = configuration(cluster, kubelet::NODE_NAME)?;
    // Nobody else has it here, and the suite takes it for granted.
    fields["port"] = json!(PORT);
    let settings = kubelet::Settings {
        kubeconfig: Some(cluster.node_kubeconfig(kubelet::NODE_NAME)?),
        kubelet: fields,
        flags: vec![node_ip()],
        ..kubelet::Settings::default()
    };
    let kubelet = Kubelet::start(&node, settings)?;
    // Its sandboxes are of an image of the examples, whose registry has the port that specs need.
    let image = json!({ "image": { "image": PAUSE } });
    cri::call_at(kubelet::SOCKET, "ImageService/PullImage", &image)?;
    node.registry.take().context("no registry")?.stop()?;
    Ok((node, kubelet))
}

/// Images of upstream come from the registry of the lab, by the names that they have.
fn redirect(node: &Node) -> Result<()> {
    node.containerd.add_registry(images::HOST, &format!("http://localhost:{REGISTRY_PORT}"))
}

fn configuration(cluster: &Cluster, name: &str) -> Result<Value> {
    let mut fields = cluster.server_of_node(name, IpAddr::from(cluster::ADDRESS))?;
    fields["clusterDNS"] = json!([DNS]);
    fields["clusterDomain"] = json!("cluster.local");
    Ok(fields)
}

fn node_ip() -> String {
    format!("--node-ip={}", cluster::ADDRESS)
}

fn takes_pods(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
    let has_taints = node["spec"]["taints"].as_array().is_some_and(|taints| !taints.is_empty());
    conditions.is_some_and(|all| all.iter().any(is_ready)) && !has_taints
}

/// Copies what the programs of this lab have logged; what cannot be copied is said.
pub(crate) fn keep_logs(to: &Path) {
    if let Err(failure) = copy_logs(to) {
        eprintln!("conformance: keep logs: {failure:#}");
    }
}

/// Logs of programs are directly below the directory of each; deeper is what belongs to pods. What the API server was asked is more
/// than anybody reads.
fn copy_logs(to: &Path) -> Result<()> {
    for dir in files::list(World::here()?.root())?.into_iter().filter(|path| path.is_dir()) {
        for log in files::list(&dir)? {
            let (Some(of), Some(name)) = (dir.file_name(), log.file_name()) else { continue };
            if log.extension().is_some_and(|extension| extension == "log") && name != "audit.log" {
                let kept = to.join("logs").join(of);
                files::make_dir(&kept)?;
                fs::copy(&log, kept.join(name)).with_context(|| format!("keep {}", log.display()))?;
            }
        }
    }
    Ok(())
}
