//! A pod as the agent shows it: the Kubernetes object.

use std::fmt;
use std::net::IpAddr;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::agent::NODE_NAME;

/// A pod's object.
#[derive(Debug, Clone)]
pub struct PodState(pub Value);

impl PodState {
    /// Whether it is the pod that a manifest calls `name`: a static pod's name ends with its node's.
    #[must_use]
    pub fn is_of(&self, name: &str) -> bool {
        self.name() == name
            || self.name().strip_suffix(NODE_NAME).and_then(|start| start.strip_suffix('-')) == Some(name)
    }

    /// Its full name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    /// Its UID.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.text("/metadata/uid")
    }

    /// `status.phase`.
    #[must_use]
    pub fn phase(&self) -> &str {
        self.text("/status/phase")
    }

    /// Whether a condition is True.
    #[must_use]
    pub fn holds(&self, condition: &str) -> bool {
        let conditions = self.0.pointer("/status/conditions").and_then(Value::as_array);
        conditions.into_iter().flatten().any(|one| one["type"] == condition && one["status"] == "True")
    }

    /// Whether it is Ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.holds("Ready")
    }

    /// Its address.
    ///
    /// # Errors
    /// It has none.
    pub fn ip(&self) -> Result<IpAddr> {
        self.text("/status/podIP").parse().with_context(|| format!("no address: {self}"))
    }

    /// The status of a container, whatever its role; `Null` when it is not shown.
    #[must_use]
    pub fn container(&self, name: &str) -> &Value {
        let of = |list: &str| self.0.pointer(list).and_then(Value::as_array).into_iter().flatten();
        of("/status/containerStatuses")
            .chain(of("/status/initContainerStatuses"))
            .find(|status| status["name"] == name)
            .unwrap_or(&Value::Null)
    }

    /// How often a container was started again.
    #[must_use]
    pub fn restarts(&self, container: &str) -> u64 {
        self.container(container)["restartCount"].as_u64().unwrap_or_default()
    }

    /// The id of a container's current or last run, without `containerd://`.
    ///
    /// # Errors
    /// It has not run.
    pub fn container_id(&self, container: &str) -> Result<&str> {
        let id = self.container(container)["containerID"].as_str().unwrap_or_default();
        id.strip_prefix("containerd://").with_context(|| format!("no id of {container}: {self}"))
    }

    /// Why a container waits; empty when it does not.
    #[must_use]
    pub fn waits_for(&self, container: &str) -> &str {
        self.container(container)["state"]["waiting"]["reason"].as_str().unwrap_or_default()
    }

    fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }
}

impl fmt::Display for PodState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.name(), self.0["status"])
    }
}
