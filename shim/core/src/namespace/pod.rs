//! The namespaces of a pod, as a value.

use thiserror::Error;

use super::user::UserMaps;

/// A type of namespace that members of a pod may share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamespaceType {
    /// Interfaces, routes, ports.
    Network,
    /// System V objects, POSIX message queues, and with them `/dev/shm`.
    Ipc,
    /// Host name.
    Uts,
    /// Process ids.
    Pid,
    /// Users, groups and capabilities.
    User,
}

impl NamespaceType {
    /// The type of a namespace entry of the OCI runtime specification, if members can share it.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "network" => Some(Self::Network),
            "ipc" => Some(Self::Ipc),
            "uts" => Some(Self::Uts),
            "pid" => Some(Self::Pid),
            "user" => Some(Self::User),
            _ => None,
        }
    }

    /// Its file in `/proc/pid/ns`.
    pub fn file(self) -> &'static str {
        match self {
            Self::Network => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
            Self::Pid => "pid",
            Self::User => "user",
        }
    }
}

/// The owner that a pod wants for a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Each container's own, made by the OCI runtime.
    Container,
    /// One of the pod, for those members that ask for it.
    Pod,
    /// The node's.
    Node,
}

/// A combination of namespaces that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ModesError {
    /// The kernel gives a user namespace no rights over the node's processes and queues: neither `/proc` nor
    /// `/dev/mqueue` could be mounted, and the Kubernetes API refuses such pods (KEP-127).
    #[error(
        "give the pod a user namespace: it uses the node's {} namespace, which goes without one only",
        .0.file()
    )]
    NodeUnderUser(NamespaceType),
}

/// Which namespaces a pod has of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespaces {
    network: Mode,
    ipc: Mode,
    uts: Mode,
    pid: Mode,
    user: Option<UserMaps>,
}

impl Namespaces {
    /// `network` is the pod's if it was given one, else the node's.
    pub fn new(
        network: Mode,
        ipc: Mode,
        uts: Mode,
        pid: Mode,
        user: Option<UserMaps>,
    ) -> Result<Self, ModesError> {
        if user.is_some() {
            for (kind, mode) in [(NamespaceType::Ipc, ipc), (NamespaceType::Pid, pid)] {
                if mode == Mode::Node {
                    return Err(ModesError::NodeUnderUser(kind));
                }
            }
        }
        Ok(Self { network, ipc, uts, pid, user })
    }

    /// Whether the pod has one of its own for members to share.
    pub fn is_pods(&self, kind: NamespaceType) -> bool {
        let mode = match kind {
            NamespaceType::Network => self.network,
            NamespaceType::Ipc => self.ipc,
            NamespaceType::Uts => self.uts,
            NamespaceType::Pid => self.pid,
            NamespaceType::User => return self.user.is_some(),
        };
        mode == Mode::Pod
    }

    /// The maps of the pod's user namespace.
    pub fn user(&self) -> Option<&UserMaps> {
        self.user.as_ref()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::user::IdRange;
    use super::*;

    pub(crate) fn maps() -> UserMaps {
        let ids = || vec![IdRange { inside: 0, outside: 100_000, count: 65_536 }];
        UserMaps::new(ids(), ids()).unwrap().unwrap()
    }

    #[test]
    fn a_user_namespace_needs_processes_and_queues_of_its_own() {
        use Mode::{Container, Node, Pod};
        for (network, ipc, uts, pid, refused) in [
            (Pod, Pod, Pod, Container, None),
            (Pod, Pod, Pod, Pod, None),
            (Pod, Container, Container, Container, None),
            // KEP-5607: the node's network and its host name.
            (Node, Pod, Node, Container, None),
            (Pod, Node, Pod, Container, Some(NamespaceType::Ipc)),
            (Pod, Pod, Pod, Node, Some(NamespaceType::Pid)),
        ] {
            let with = Namespaces::new(network, ipc, uts, pid, Some(maps()));
            assert_eq!(with.err(), refused.map(ModesError::NodeUnderUser));
            Namespaces::new(network, ipc, uts, pid, None).unwrap();
        }
    }
}
