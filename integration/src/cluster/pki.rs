//! Certificates, kubeconfigs and tokens of a cluster, made by kubeadm: what a node has of them is what it has in a real one.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::kubeadm::{kube_proxy_configuration, kubelet_configuration};
use super::programs::{pods, services};
use crate::components;
use crate::files;
use crate::lab::World;
use crate::node::system;

/// The version of Kubernetes of which the components are.
pub const VERSION: &str = "v1.36.3";
/// The token with which nodes may ask for their first certificate.
pub const TOKEN: &str = "abcdef.0123456789abcdef";

/// The files of a cluster below a directory.
#[derive(Debug)]
pub(super) struct Pki {
    dir: PathBuf,
}

impl Pki {
    /// Makes them, for an API server at an address and at loopback.
    pub(super) fn make(dir: &Path, address: IpAddr, port: u16) -> Result<Self> {
        let pki = Self { dir: dir.to_owned() };
        files::make_dir(dir)?;
        files::write(pki.config(), pki.documents(address, port))?;
        pki.kubeadm(&["init", "phase", "certs", "all"])?;
        let dir = dir.to_str().context("the directory has no name in UTF-8")?;
        pki.kubeadm(&["init", "phase", "kubeconfig", "all", "--kubeconfig-dir", dir])?;
        Ok(pki)
    }

    /// A certificate or key.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join("pki").join(name)
    }

    /// A kubeconfig of the control plane.
    pub(super) fn kubeconfig(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The kubeconfig of who may do everything whatever the roles are.
    pub(super) fn admin(&self) -> PathBuf {
        self.kubeconfig("super-admin.conf")
    }

    /// The kubeconfig of a node, as kubeadm makes it.
    pub(super) fn of_node(&self, name: &str) -> Result<PathBuf> {
        let client = format!("system:node:{name}");
        let made =
            self.kubeadm(&["kubeconfig", "user", "--client-name", &client, "--org", "system:nodes"])?;
        self.keep(&format!("node-{name}.conf"), &made)
    }

    /// The kubeconfig of a node that has a token and no certificate yet. It has a context of kubeadm's name.
    pub(super) fn of_bootstrap(&self) -> Result<PathBuf> {
        let client = "tls-bootstrap-token-user";
        let made = self.kubeadm(&["kubeconfig", "user", "--client-name", client, "--token", TOKEN])?;
        self.keep("bootstrap-kubelet.conf", &made)
    }

    /// The kubeconfig of a service account, with a token of its.
    pub(super) fn of_account(&self, account: &str, token: &str) -> Result<PathBuf> {
        let made = self.kubeadm(&["kubeconfig", "user", "--client-name", account, "--token", token])?;
        self.keep(&format!("account-{account}.conf"), &made)
    }

    /// A copy of a kubeconfig that leads elsewhere.
    pub(super) fn through(&self, kubeconfig: &Path, to: SocketAddr) -> Result<PathBuf> {
        let text = files::read(kubeconfig)?;
        let lines = text.lines().map(|line| match line.split_once("server: ") {
            Some((indent, _)) => format!("{indent}server: https://{to}\n"),
            None => format!("{line}\n"),
        });
        let name = kubeconfig.file_stem().and_then(|name| name.to_str()).unwrap_or("kubeconfig");
        self.keep(&format!("{name}-{}.conf", to.port()), &lines.collect::<String>())
    }

    /// Runs kubeadm with the configuration of this cluster.
    pub(super) fn kubeadm(&self, args: &[&str]) -> Result<String> {
        let program = components::binary("kubeadm")?.display().to_string();
        let config = self.config().display().to_string();
        system(&program, &[args, &["--config", &config]].concat())
    }

    fn config(&self) -> PathBuf {
        self.dir.join("kubeadm.yaml")
    }

    fn keep(&self, name: &str, text: &str) -> Result<PathBuf> {
        ensure!(text.contains("server: "), "{name} is no kubeconfig: {text}");
        let path = self.dir.join(name);
        files::write(&path, text)?;
        Ok(path)
    }

    /// All documents; JSON is YAML. Keys of elliptic curves are made and checked faster.
    fn documents(&self, address: IpAddr, port: u16) -> String {
        let init = json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "InitConfiguration",
            "localAPIEndpoint": { "advertiseAddress": address, "bindPort": port },
            "nodeRegistration": { "name": "lab", "criSocket": "unix:///run/containerd/containerd.sock" },
            "bootstrapTokens": [{
                "token": TOKEN,
                "usages": ["signing", "authentication"],
                "groups": ["system:bootstrappers:kubeadm:default-node-token"],
            }],
        });
        let cluster = json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "kubernetesVersion": VERSION,
            "certificatesDir": self.dir.join("pki"),
            "encryptionAlgorithm": "ECDSA-P256",
            "networking": { "serviceSubnet": services(address), "podSubnet": pods(address) },
            "apiServer": { "certSANs": ["127.0.0.1", "::1", "localhost"] },
        });
        let world = World::here().ok();
        let (kubelet, proxy) = (kubelet_configuration(world.as_ref()), kube_proxy_configuration());
        format!("{init}\n---\n{cluster}\n---\n{kubelet}\n---\n{proxy}\n")
    }
}
