//! Which namespaces a member gets.

use super::pod::{NamespaceType, Namespaces};

/// What a member's OCI spec says about a kind of namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// An entry with a path: a wish to share, whatever the path is (`docs/sandbox-api.md` of containerd).
    Path,
    /// An entry without one: a namespace of the container's own.
    New,
    /// No entry.
    None,
}

/// The owner of the namespace that a member gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The pod's, whatever the path was.
    Pod,
    /// What the spec says to the runtime. The pod shares nothing of this kind, or the container wants nothing of it.
    AsWritten,
}

impl Namespaces {
    /// The owner of the namespace that a member gets by an entry. Without one it stays in the node's, but for the network:
    /// a sandbox that was given one has it for its members (`CreateSandboxRequest.netns_path`).
    pub fn owner(&self, kind: NamespaceType, entry: Entry) -> Owner {
        match (entry, kind) {
            (Entry::Path, _) | (Entry::None, NamespaceType::Network) if self.is_pods(kind) => Owner::Pod,
            (Entry::Path | Entry::New | Entry::None, _) => Owner::AsWritten,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pod::Mode;
    use super::super::pod::tests::maps;
    use super::*;

    #[test]
    fn a_path_leads_to_what_the_pod_has_and_the_network_does_without() {
        const KINDS: [NamespaceType; 4] =
            [NamespaceType::Network, NamespaceType::Ipc, NamespaceType::Uts, NamespaceType::Pid];
        for mode in [Mode::Container, Mode::Pod, Mode::Node] {
            let pod = Namespaces::new(mode, mode, mode, mode, None).unwrap();
            for kind in KINDS {
                let expected = if mode == Mode::Pod { Owner::Pod } else { Owner::AsWritten };
                assert_eq!(pod.owner(kind, Entry::Path), expected, "{mode:?} {kind:?}");
                assert_eq!(pod.owner(kind, Entry::New), Owner::AsWritten, "{mode:?} {kind:?}");
                let silent = if kind == NamespaceType::Network { expected } else { Owner::AsWritten };
                assert_eq!(pod.owner(kind, Entry::None), silent, "{mode:?} {kind:?}");
            }
            assert_eq!(pod.owner(NamespaceType::User, Entry::Path), Owner::AsWritten);
        }
        let mapped = Namespaces::new(Mode::Node, Mode::Pod, Mode::Node, Mode::Pod, Some(maps())).unwrap();
        assert_eq!(mapped.owner(NamespaceType::User, Entry::Path), Owner::Pod);
        assert_eq!(mapped.owner(NamespaceType::User, Entry::New), Owner::AsWritten);
        assert_eq!(mapped.owner(NamespaceType::Network, Entry::Path), Owner::AsWritten);
    }
}
