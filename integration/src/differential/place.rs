//! The cluster and its two nodes.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::case::Case;
use super::plain::Known;
use super::settle;
use crate::agent::{self, NODE_NAME, Settings};
use crate::cluster::{self, Cluster};
use crate::kubelet::{self, Kubelet};
use crate::lab::World;
use crate::node::Node;
use crate::{containerd, files};

/// A node and what is its own. Pods have the same names on both, and namespaces of the same length.
#[derive(Debug, Clone)]
pub struct Side {
    /// The node.
    pub node: &'static str,
    /// The namespace of its pods.
    pub namespace: &'static str,
    /// The socket of its containerd.
    pub socket: &'static str,
    /// The address of the service that its pods are told of.
    service: &'static str,
    /// The directory of its pods' logs.
    pub logs: &'static str,
    /// Its root directory.
    pub root: &'static str,
    /// The parent of its pods' cgroups.
    cgroups: String,
    /// What its pods mount of the node.
    pub host_dir: PathBuf,
    /// The cgroup of the lab, and of containerd's root and state.
    own: Vec<(String, &'static str)>,
}

impl Side {
    /// The path of the pods.
    #[must_use]
    pub fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.namespace)
    }

    /// What is known of one of its pods.
    #[must_use]
    pub fn known(&self, pod: &Value) -> Known {
        let text = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let own = self.own.iter().fold(Known::default(), |known, &(ref text, by)| known.text(text, by));
        own.text(&self.host_dir.display().to_string(), "HOST")
            .text(&self.cgroups, "CGROUPS")
            .text(self.logs, "LOGS")
            .text(self.root, "ROOT")
            .text(self.service, "SERVICE")
            .text(text("/metadata/uid"), "UID")
            .text(self.namespace, "NS")
            .word(text("/status/podIP"), "IP")
            .word(self.node, "NODE")
    }
}

/// Berth first, the kubelet second.
pub type Both<T> = [T; 2];

/// All of it. It ends with the lab.
#[derive(Debug)]
pub struct Place {
    /// The control plane.
    pub cluster: Cluster,
    /// Both nodes.
    pub sides: Both<Side>,
    node: Node,
    kubelet: Kubelet,
}

impl Place {
    /// Starts it, gives both nodes the image and the objects that cases use, and waits until pods can be sent there.
    ///
    /// # Errors
    /// A part did not become ready.
    pub fn start() -> Result<Self> {
        let world = World::here()?;
        let cluster = Cluster::start(&world.root().join("cluster"), &cluster::Settings::default())?;
        let configuration = json!({
            "clusterDNS": ["192.0.2.53"],
            "clusterDomain": "cluster.local",
            // Absent images are asked for by many pods at once.
            "registryPullQPS": 0,
            "eventRecordQPS": 500,
            "eventBurst": 500,
            // The size of a volume in memory follows from it.
            "evictionHard": { "memory.available": "1Mi" },
        });
        let flags = vec![format!("--node-ip={}", cluster::ADDRESS)];
        let mut node = Node::prepare(&Settings {
            kubelet: configuration.clone(),
            berth: json!({ "runtime": { "ociRuntime": "runc" } }),
            ..Settings::with_registry()
        })?;
        let kubeconfig = format!("--kubeconfig={}", cluster.node_kubeconfig(NODE_NAME)?.display());
        node.agent.set_flags(&[flags.as_slice(), &[kubeconfig]].concat());
        node.agent.start()?;
        let kubeconfig = Some(cluster.node_kubeconfig(kubelet::NODE_NAME)?);
        let settings =
            kubelet::Settings { kubeconfig, kubelet: configuration, flags, ..kubelet::Settings::default() };
        let kubelet = Kubelet::start(&node, settings)?;
        let sides = sides(&world);
        let place = Self { cluster, sides, node, kubelet };
        for side in &place.sides {
            place.prepare(side)?;
        }
        Ok(place)
    }

    fn prepare(&self, side: &Side) -> Result<()> {
        let cluster = &self.cluster;
        cluster.wait_for(&format!("/api/v1/nodes/{}", side.node), "ready", is_ready)?;
        cluster.create(
            "/api/v1/namespaces",
            &json!({ "metadata": { "name": side.namespace, "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } }),
        )?;
        for (path, object) in objects(side.service) {
            cluster.create(&format!("/api/v1/namespaces/{}/{path}", side.namespace), &object)?;
        }
        files::make_dir(side.host_dir.join("dir"))?;
        files::write(side.host_dir.join("file"), "of the node\n")?;
        let profiles = PathBuf::from(side.root).join("seccomp/profiles");
        files::make_dir(&profiles)?;
        files::write(profiles.join("no-chmod.json"), SECCOMP)?;
        let first = Case::scripted("first", "true", json!({}), json!({ "restartPolicy": "Never" }));
        cluster.create(&side.pods(), &first.object(side.node, "")?)?;
        let path = format!("{}/first", side.pods());
        cluster.wait_for(&path, "over", |pod| {
            pod["status"]["phase"] == "Succeeded"
                && settle::steady_for(pod) < std::time::Duration::from_secs(10)
        })?;
        self.delete(side, "first")?;
        cluster.wait_gone(&path)
    }

    /// Asks for the end of a pod.
    ///
    /// # Errors
    /// It is not there.
    pub fn delete(&self, side: &Side, name: &str) -> Result<()> {
        let path = format!("{}/{name}", side.pods());
        self.cluster.request("DELETE", &path, "application/json", &json!({})).map(drop)
    }

    /// Ends both agents and starts them again.
    ///
    /// # Errors
    /// One does not end, or does not become ready.
    pub fn restart_agents(&mut self) -> Result<()> {
        self.node.agent.stop()?;
        self.kubelet.stop_kubelet()?;
        self.kubelet.start_kubelet()?;
        self.node.agent.start()
    }

    /// Ends it, and fails when anything of a pod is left on the node of Berth.
    ///
    /// # Errors
    /// Something is left, or does not end.
    pub fn end(self) -> Result<()> {
        self.kubelet.end(&self.node)?;
        self.node.end()?;
        self.cluster.end()
    }
}

fn sides(world: &World) -> Both<Side> {
    let root = world.root();
    let of_containerd = |dir: &str| root.join(dir).display().to_string();
    let ours = Side {
        node: NODE_NAME,
        namespace: "node-a",
        socket: containerd::SOCKET,
        service: "10.96.0.50",
        logs: "/var/log/pods",
        root: agent::ROOT_DIR,
        cgroups: world.cgroup_root(),
        host_dir: root.join("host/a"),
        own: vec![
            (of_containerd("containerd/root"), "CONTAINERD"),
            ("/run/containerd".to_owned(), "STATE"),
            (agent::STATE_DIR.to_owned(), "RUN"),
        ],
    };
    let theirs = Side {
        node: kubelet::NODE_NAME,
        namespace: "node-b",
        socket: kubelet::SOCKET,
        service: "10.96.0.51",
        logs: kubelet::LOGS,
        root: kubelet::ROOT_DIR,
        cgroups: format!("{}/theirs", world.cgroup_root()),
        host_dir: root.join("host/b"),
        own: vec![
            (of_containerd("theirs/containerd"), "CONTAINERD"),
            ("/run/theirs/containerd".to_owned(), "STATE"),
        ],
    };
    [ours, theirs]
}

/// Forbids `chmod` and its kin.
const SECCOMP: &str = r#"{ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
    { "names": ["chmod", "fchmod", "fchmodat"], "action": "SCMP_ACT_ERRNO" }] }"#;

/// What cases refer to, by the paths of their kinds.
fn objects(service: &str) -> Vec<(&'static str, Value)> {
    let named = |name: &str| json!({ "name": name });
    let map = json!({
        "metadata": named("map"),
        "data": { "a": "1", "b": "two\nlines\n", "with.dot": "3", "UPPER_1": "4", "1st": "5" },
        "binaryData": { "bytes": STANDARD.encode([0_u8, 255, 10, 65]) },
    });
    let secret = json!({
        "metadata": named("secret"),
        "data": { "password": STANDARD.encode("pirate"), "key": STANDARD.encode("k=v\n") },
    });
    vec![
        ("configmaps", map),
        ("configmaps", json!({ "metadata": named("fixed"), "data": { "x": "fixed" }, "immutable": true })),
        ("configmaps", json!({ "metadata": named("empty") })),
        ("secrets", secret),
        (
            "secrets",
            json!({ "metadata": named("fixed"), "data": { "x": STANDARD.encode("f") }, "immutable": true }),
        ),
        ("serviceaccounts", json!({ "metadata": named("default") })),
        (
            "services",
            json!({ "metadata": named("web"), "spec": { "selector": { "app": "nobody" },
                "clusterIP": service, "ports": [{ "name": "http", "port": 80 }, { "name": "dns", "port": 53, "protocol": "UDP" }] } }),
        ),
    ]
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

impl Place {
    /// A pod as the API server has it.
    ///
    /// # Errors
    /// It is not there.
    pub fn pod(&self, side: &Side, name: &str) -> Result<Value> {
        self.cluster.get_json(&format!("{}/{name}", side.pods())).with_context(|| format!("pod {name}"))
    }
}
