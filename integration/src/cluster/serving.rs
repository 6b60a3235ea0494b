//! What API server and nodes need to ask each other: certificates of one authority, and rights.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::Cluster;
use crate::authority::{Authority, Pair, Use};

/// Answers about rights are asked for again after this: a test changes rights.
const REMEMBERED: &str = "1s";

impl Cluster {
    /// The authority of everything in it.
    #[must_use]
    pub fn authority(&self) -> Authority {
        let own = Pair { certificate: self.ca(), key: self.pki("ca.key") };
        Authority::of(&self.dir.join("signed"), own)
    }

    /// Fields of `KubeletConfiguration` with which the server of a node has a certificate for its address, asks the API server who asks
    /// and whether they may, and lets nobody in whom nobody knows.
    ///
    /// # Errors
    /// The certificate cannot be made.
    pub fn server_of_node(&self, node: &str, address: IpAddr) -> Result<Value> {
        let pair = self.authority().sign(&format!("server-{node}"), Use::Server(address))?;
        Ok(json!({
            "tlsCertFile": pair.certificate,
            "tlsPrivateKeyFile": pair.key,
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true, "cacheTTL": REMEMBERED },
                "x509": { "clientCAFile": self.ca() },
            },
            "authorization": {
                "mode": "Webhook",
                "webhook": { "cacheAuthorizedTTL": REMEMBERED, "cacheUnauthorizedTTL": REMEMBERED },
            },
        }))
    }

    /// Gives the API server the right to ask nodes for everything, as `kubeadm init` does.
    ///
    /// # Errors
    /// It was refused.
    pub fn let_it_ask_nodes(&self) -> Result<()> {
        let subject = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User",
            "name": "kube-apiserver-kubelet-client" });
        let binding = role_binding("lab:api-server", "system:kubelet-api-admin", &subject);
        self.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).map(drop)
    }

    /// A token of a service account of `kube-system`, for an hour.
    ///
    /// # Errors
    /// There is no such account.
    pub fn token_of(&self, account: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{account}/token");
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let made = self.create(&path, &request)?;
        Ok(made["status"]["token"].as_str().context("no token was made")?.to_owned())
    }

    /// The kubeconfig of a service account of `kube-system`.
    ///
    /// # Errors
    /// As of [`Self::token_of`].
    pub fn account_kubeconfig(&self, account: &str) -> Result<PathBuf> {
        self.pki.of_account(account, &self.token_of(account)?)
    }
}

/// A cluster role for somebody.
pub(super) fn role_binding(name: &str, role: &str, subject: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [subject],
    })
}
