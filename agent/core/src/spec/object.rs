//! Objects of the API server that pods name. The core knows their names alone: what is in them stays in the shell.

/// The kinds of object whose content pods use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl ObjectKind {
    /// As the kubelet names it in what it says of one (`corev1.Resource` in `pkg/kubelet/configmap`, `pkg/kubelet/secret`).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }
}

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its namespace: that of the pods that name it.
    pub namespace: String,
    /// Its name.
    pub name: String,
}
