//! What a node is told of the control plane that it is to join.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde_json::Value;

use super::documents;
use crate::cluster::TOKEN;

/// What `kubeadm join` is told.
#[derive(Debug, Clone)]
pub struct Join {
    /// Address and port of the API server.
    pub(super) api_server: String,
    pub(super) token: String,
    /// Of the key of the control plane's authority. Without it whoever answers is believed.
    pub(super) ca_hash: Option<String>,
    /// `nodeRegistration.kubeletExtraArgs`.
    pub(super) kubelet_args: Vec<(&'static str, &'static str)>,
}

impl Join {
    /// The control plane at an address, with the token of tests.
    #[must_use]
    pub fn to(api_server: SocketAddr) -> Self {
        let (api_server, token) = (api_server.to_string(), TOKEN.to_owned());
        Self { api_server, token, ca_hash: None, kubelet_args: Vec::new() }
    }

    /// As a command line says it, which `kubeadm token create --print-join-command` gives.
    ///
    /// # Errors
    /// It is no such command.
    pub fn of_command(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word: &str| {
            let at = words.iter().position(|one| *one == word);
            at.and_then(|at| words.get(at + 1)).map(|word| (*word).to_owned())
        };
        let said = |word: &str| after(word).with_context(|| format!("no {word} in {line:?}"));
        Ok(Self {
            api_server: said("join")?,
            token: said("--token")?,
            ca_hash: Some(said("--discovery-token-ca-cert-hash")?),
            kubelet_args: Vec::new(),
        })
    }

    /// What kubeadm is told on a node of this name.
    #[must_use]
    pub fn document(&self, node: &str) -> Value {
        documents::join(self, node)
    }

    /// The same, with flags for the kubelet.
    #[must_use]
    pub fn with_kubelet_args(self, kubelet_args: &[(&'static str, &'static str)]) -> Self {
        Self { kubelet_args: kubelet_args.to_vec(), ..self }
    }
}
