//! Both nodes and their cluster.

use std::fmt;

use anyhow::{Context, Result};
use berth_integration::agent::{NODE_NAME, Settings};
use berth_integration::cluster::watch::Watch;
use berth_integration::cluster::{self, Cluster};
use berth_integration::kubelet::{self, Kubelet};
use berth_integration::lab::World;
use berth_integration::node::Node;
use serde_json::{Value, json};

use super::pods::LABEL;

/// More than a measurement has.
const PODS_MAX: u32 = 250;

/// Whose node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Berth,
    Kubelet,
}

impl Side {
    /// In the order of the report.
    pub(super) const BOTH: [Self; 2] = [Self::Berth, Self::Kubelet];

    /// Both, in an order that changes with each round.
    pub(super) fn in_turn(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) { Self::BOTH } else { [Self::Kubelet, Self::Berth] }
    }

    /// The name of its node.
    pub(super) fn node(self) -> &'static str {
        match self {
            Self::Berth => NODE_NAME,
            Self::Kubelet => kubelet::NODE_NAME,
        }
    }

    /// The value of the label by which pods choose it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Berth => "berth",
            Self::Kubelet => "kubelet",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// What was measured of each.
#[derive(Debug, Default)]
pub(super) struct Both<T> {
    pub(super) berth: T,
    pub(super) kubelet: T,
}

impl<T> Both<T> {
    /// That of one.
    pub(super) fn of(&mut self, side: Side) -> &mut T {
        match side {
            Side::Berth => &mut self.berth,
            Side::Kubelet => &mut self.kubelet,
        }
    }
}

/// A cluster of two nodes.
pub(super) struct Pair {
    pub(super) cluster: Cluster,
    pub(super) node: Node,
    pub(super) kubelet: Kubelet,
    pub(super) watch: Watch,
}

impl Pair {
    /// Starts everything and waits until both nodes are ready.
    pub(super) fn start(oci_runtime: &'static str) -> Result<Self> {
        let cluster = Cluster::start(&World::here()?.root().join("cluster"), &cluster::Settings::whole())?;
        Self::of(cluster, oci_runtime, Both { berth: json!({}), kubelet: json!({}) })
    }

    /// The same, with servers of the nodes that let in whom the API server knows and lets.
    pub(super) fn start_asked(oci_runtime: &'static str) -> Result<Self> {
        let settings = cluster::Settings {
            parts: cluster::Settings::whole().parts,
            ..cluster::Settings::asking_nodes()
        };
        let cluster = Cluster::start(&World::here()?.root().join("cluster"), &settings)?;
        cluster.let_it_ask_nodes()?;
        let server = |side: Side| cluster.server_of_node(side.node(), cluster::ADDRESS.into());
        let servers = Both { berth: server(Side::Berth)?, kubelet: server(Side::Kubelet)? };
        Self::of(cluster, oci_runtime, servers)
    }

    /// The nodes of a cluster, each with fields of `KubeletConfiguration`.
    fn of(cluster: Cluster, oci_runtime: &'static str, mut kubelet: Both<Value>) -> Result<Self> {
        for side in Side::BOTH {
            kubelet.of(side)["maxPods"] = json!(PODS_MAX);
        }
        // Without its address a kubelet looks its name up, twice for ten seconds where no server answers.
        let flags = |side: Side| {
            vec![format!("--node-labels={LABEL}={side}"), format!("--node-ip={}", cluster::ADDRESS)]
        };
        let mut node = Node::prepare(&Settings {
            kubelet: kubelet.berth,
            berth: json!({ "runtime": { "ociRuntime": oci_runtime } }),
            ..Settings::with_registry()
        })?;
        let mut ours = flags(Side::Berth);
        ours.push(format!("--kubeconfig={}", cluster.node_kubeconfig(Side::Berth.node())?.display()));
        node.agent.set_flags(&ours);
        node.agent.start()?;
        let kubeconfig = Some(cluster.node_kubeconfig(Side::Kubelet.node())?);
        let (kubelet, flags) = (kubelet.kubelet, flags(Side::Kubelet));
        let settings = kubelet::Settings { kubeconfig, kubelet, flags, oci_runtime };
        let kubelet = Kubelet::start(&node, settings)?;
        for side in Side::BOTH {
            cluster
                .wait_for(&format!("/api/v1/nodes/{}", side.node()), "ready and without taints", takes_pods)
                .with_context(|| kubelet.log_tail())?;
        }
        let watch = Watch::start(&cluster, "pods", "default")?;
        Ok(Self { cluster, node, kubelet, watch })
    }

    /// Ends everything; there are no pods any more.
    pub(super) fn end(self) -> Result<()> {
        drop(self.watch);
        self.kubelet.end(&self.node)?;
        self.node.end()?;
        self.cluster.end()
    }
}

fn takes_pods(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let is_ready =
        conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"));
    is_ready && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
}
