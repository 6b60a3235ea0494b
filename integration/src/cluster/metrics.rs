//! The real metrics-server: it asks every node for what its pods use, and the API server passes on to it who asks for metrics.
//!
//! It is a process of the lab, and has the rights of its own manifests. A Service without a selector leads to it: the API server has to
//! look endpoints up by itself ([`Settings::asking_nodes`](super::Settings::asking_nodes)), for nobody routes addresses of services.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::serving::role_binding;
use super::{ADDRESS, Cluster, programs};
use crate::components;
use crate::process::Process;

/// The account, the service and the program.
pub const NAME: &str = "metrics-server";
/// What it answers at the API server.
pub const API: &str = "/apis/metrics.k8s.io/v1beta1";
const PORT: u16 = 4443;

/// A running metrics-server. Dropping it kills it.
#[derive(Debug)]
pub struct MetricsServer {
    process: Process,
}

impl MetricsServer {
    /// Starts one that asks all nodes so often, ten seconds at least, with its files in `dir`, and waits until the API server passes
    /// requests on to it. It knows something when it has asked twice.
    ///
    /// # Errors
    /// The component is missing, or does not become ready.
    pub fn start(cluster: &Cluster, dir: &Path, every: Duration) -> Result<Self> {
        cluster.apply(&objects())?;
        let kubeconfig = cluster.account_kubeconfig(NAME)?;
        let mut command = programs::of_a_lab(components::binary(NAME)?);
        for flag in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            command.arg(format!("--{flag}={}", kubeconfig.display()));
        }
        command
            .arg(format!("--bind-address={ADDRESS}"))
            .arg(format!("--secure-port={PORT}"))
            .arg(format!("--cert-dir={}", dir.join(NAME).display()))
            .arg(format!("--metric-resolution={}s", every.as_secs()))
            .arg(format!("--kubelet-request-timeout={}s", every.as_secs() / 2))
            .arg(format!("--kubelet-certificate-authority={}", cluster.ca().display()))
            .args(["--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port"]);
        let process = Process::start(NAME, &mut command, &dir.join(format!("{NAME}.log")))?;
        let metrics = Self { process };
        let service = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io";
        cluster.wait_for(service, "available", is_available).map_err(|failure| metrics.failed(failure))?;
        Ok(metrics)
    }

    /// A failure with the end of its log.
    #[must_use]
    pub fn failed(&self, failure: anyhow::Error) -> anyhow::Error {
        failure.context(format!("log of {NAME}:\n{}", self.process.log_tail()))
    }

    /// Ends it.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn end(self) -> Result<()> {
        self.process.kill()
    }
}

fn is_available(service: &Value) -> bool {
    let conditions = service["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Available" && one["status"] == "True"))
}

/// What its manifests have, but for the Deployment.
fn objects() -> String {
    let meta = json!({ "name": NAME, "namespace": "kube-system" });
    let account = json!({ "kind": "ServiceAccount", "name": NAME, "namespace": "kube-system" });
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "system:metrics-server" },
        "rules": [
            { "apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"] },
        ] });
    let reads = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "metrics-server-auth-reader", "namespace": "kube-system" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
            "name": "extension-apiserver-authentication-reader" },
        "subjects": [account] });
    let items = json!([
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta },
        role,
        reads,
        role_binding("metrics-server:system:auth-delegator", "system:auth-delegator", &account),
        role_binding("system:metrics-server", "system:metrics-server", &account),
        { "apiVersion": "v1", "kind": "Service", "metadata": meta,
            "spec": { "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": PORT }] } },
        { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": { "name": NAME, "namespace": "kube-system",
                "labels": { "kubernetes.io/service-name": NAME } },
            "endpoints": [{ "addresses": [ADDRESS], "conditions": { "ready": true } }],
            "ports": [{ "name": "https", "port": PORT, "protocol": "TCP" }] },
        { "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": "v1beta1.metrics.k8s.io" },
            "spec": { "service": { "name": NAME, "namespace": "kube-system" }, "group": "metrics.k8s.io",
                "version": "v1beta1", "insecureSkipTLSVerify": true, "groupPriorityMinimum": 100,
                "versionPriority": 100 } },
    ]);
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}
