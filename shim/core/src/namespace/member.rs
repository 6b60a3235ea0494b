//! Which namespaces a member gets.

use super::pod::{Kind, Namespaces};

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

/// Whose namespace a member gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The pod's, whatever the path was.
    Pods,
    /// What the spec says to the runtime. The pod shares nothing of this kind, or the container wants nothing of it.
    AsWritten,
}

impl Namespaces {
    /// Whose namespace a member gets by an entry. Without one it stays in the node's, but for the network: a sandbox that
    /// was given one has it for its members (`CreateSandboxRequest.netns_path`).
    pub fn of_member(&self, kind: Kind, entry: Entry) -> Whose {
        match (entry, kind) {
            (Entry::Path, _) | (Entry::None, Kind::Network) if self.is_pods(kind) => Whose::Pods,
            (Entry::Path | Entry::New | Entry::None, _) => Whose::AsWritten,
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
        const KINDS: [Kind; 4] = [Kind::Network, Kind::Ipc, Kind::Uts, Kind::Pid];
        for mode in [Mode::Container, Mode::Pod, Mode::Node] {
            let pod = Namespaces::new(mode, mode, mode, mode, None).unwrap();
            for kind in KINDS {
                let expected = if mode == Mode::Pod { Whose::Pods } else { Whose::AsWritten };
                assert_eq!(pod.of_member(kind, Entry::Path), expected, "{mode:?} {kind:?}");
                assert_eq!(pod.of_member(kind, Entry::New), Whose::AsWritten, "{mode:?} {kind:?}");
                let silent = if kind == Kind::Network { expected } else { Whose::AsWritten };
                assert_eq!(pod.of_member(kind, Entry::None), silent, "{mode:?} {kind:?}");
            }
            assert_eq!(pod.of_member(Kind::User, Entry::Path), Whose::AsWritten);
        }
        let mapped = Namespaces::new(Mode::Node, Mode::Pod, Mode::Node, Mode::Pod, Some(maps())).unwrap();
        assert_eq!(mapped.of_member(Kind::User, Entry::Path), Whose::Pods);
        assert_eq!(mapped.of_member(Kind::User, Entry::New), Whose::AsWritten);
        assert_eq!(mapped.of_member(Kind::Network, Entry::Path), Whose::AsWritten);
    }
}
