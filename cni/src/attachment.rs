//! One container on one network: what ADD, CHECK and DEL are asked about.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::capability::CapabilityArgs;
use crate::name::{ContainerId, InterfaceName, NameError};

/// A container's attachment to a network, as given to plugins.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The container; for pods, the sandbox.
    pub container_id: ContainerId,
    /// The path of its network namespace. For DEL it may be empty, or no longer exist.
    pub netns: PathBuf,
    /// The interface to make in it.
    pub ifname: InterfaceName,
    /// The `CNI_ARGS`.
    pub args: CniArgs,
    /// The capability arguments.
    pub capability_args: CapabilityArgs,
    /// The trace that the plugins' spans belong to.
    pub trace: TraceContext,
}

/// The pairs of `CNI_ARGS`, none of which can break out of its place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(String, String)>", into = "Vec<(String, String)>")]
pub struct CniArgs(Vec<(String, String)>);

/// W3C trace context, passed to plugins in their environment (libcni ≥ 1.4).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// `TRACEPARENT`.
    pub traceparent: Option<String>,
    /// `TRACESTATE`.
    pub tracestate: Option<String>,
    /// `BAGGAGE`.
    pub baggage: Option<String>,
}

/// The identity of a pod, as Kubernetes knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodIdentity<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// Why an attachment was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachmentError {
    /// A name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A `CNI_ARGS` pair holds a separator, or its key is empty.
    #[error(
        "the CNI_ARGS pair {key:?}={value:?} is not allowed: no ';', '=' in the key, or control characters"
    )]
    Arg {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
    },
}

impl Attachment {
    /// An attachment without arguments.
    #[must_use]
    pub fn new(container_id: ContainerId, netns: impl Into<PathBuf>, ifname: InterfaceName) -> Self {
        Self {
            container_id,
            netns: netns.into(),
            ifname,
            args: CniArgs::default(),
            capability_args: CapabilityArgs::new(),
            trace: TraceContext::default(),
        }
    }

    /// The attachment of a pod to its `index`-th network, on `eth<index>`, with the `CNI_ARGS` that network plugins
    /// know from containerd's CRI (internal/cri/server/sandbox_run.go).
    ///
    /// # Errors
    /// The sandbox id is not a valid container id, or a name of the pod does not fit into `CNI_ARGS`.
    pub fn for_pod(
        pod: PodIdentity<'_>,
        sandbox_id: &str,
        netns: impl Into<PathBuf>,
        index: usize,
    ) -> Result<Self, AttachmentError> {
        let container_id = ContainerId::new(sandbox_id)?;
        let ifname = InterfaceName::new(format!("eth{index}"))?;
        let args = CniArgs::new([
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", pod.namespace),
            ("K8S_POD_NAME", pod.name),
            ("K8S_POD_INFRA_CONTAINER_ID", sandbox_id),
            ("K8S_POD_UID", pod.uid),
        ])?;
        Ok(Self { args, ..Self::new(container_id, netns, ifname) })
    }

    /// The same, with capability arguments.
    #[must_use]
    pub fn with_capabilities(self, capability_args: CapabilityArgs) -> Self {
        Self { capability_args, ..self }
    }
}

impl CniArgs {
    /// Takes the pairs in order.
    ///
    /// # Errors
    /// A pair holds a separator, or its key is empty.
    pub fn new<K: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, AttachmentError> {
        let pairs: Vec<(String, String)> = pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        let separates = |c: char| c == ';' || c.is_control();
        match pairs
            .iter()
            .find(|(k, v)| k.is_empty() || k.contains('=') || k.contains(separates) || v.contains(separates))
        {
            Some((key, value)) => Err(AttachmentError::Arg { key: key.clone(), value: value.clone() }),
            None => Ok(Self(pairs)),
        }
    }

    /// The value of `CNI_ARGS`.
    #[must_use]
    pub fn to_env(&self) -> String {
        self.0.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";")
    }

    /// There is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<Vec<(String, String)>> for CniArgs {
    type Error = AttachmentError;

    fn try_from(pairs: Vec<(String, String)>) -> Result<Self, AttachmentError> {
        Self::new(pairs)
    }
}

impl From<CniArgs> for Vec<(String, String)> {
    fn from(args: CniArgs) -> Self {
        args.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_arguments_are_those_of_containerd() {
        let pod = PodIdentity { namespace: "default", name: "web-0", uid: "u-1" };
        let attachment = Attachment::for_pod(pod, "sb1", "/run/netns/x", 1).unwrap();
        assert_eq!(attachment.ifname.as_str(), "eth1");
        assert_eq!(
            attachment.args.to_env(),
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=sb1;K8S_POD_UID=u-1"
        );
    }

    #[test]
    fn no_argument_breaks_out_of_its_place() {
        for (key, value) in
            [("", "v"), ("a;b", "v"), ("a=b", "v"), ("a", "v;K8S_POD_NAME=x"), ("a", "v\n"), ("a\0", "v")]
        {
            assert!(
                matches!(CniArgs::new([(key, value)]), Err(AttachmentError::Arg { .. })),
                "{key:?}={value:?}"
            );
        }
        assert_eq!(CniArgs::new([("a", "b=c"), ("d", "")]).unwrap().to_env(), "a=b=c;d=");
    }
}
