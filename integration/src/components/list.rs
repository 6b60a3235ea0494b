//! Every component, and which of them belong to a set.

use super::system::Wanted;
use super::{CONTROL_PLANE, Component, E2E, NAMES_OF_KUBERNETES, OLD_API_SERVER, SHARED, Set, TestProgram};

const KUBERNETES_VERSION: (&str, &str) = ("k8s.io/component-base/version.gitVersion", "k8s.io/kubernetes");
const CONTAINERD_TAGS: &str = "no_btrfs no_zfs no_devmapper no_aufs";
const CONTAINERD_VERSION: (&str, &str) =
    ("github.com/containerd/containerd/v2/version.Version", "github.com/containerd/containerd/v2");

/// What a component is that says nothing else.
const PLAIN: Component = Component {
    name: "",
    dir: SHARED,
    binaries: &[],
    names: &[],
    tests: &[],
    cgo: "0",
    tags: "",
    version: None,
    system: Wanted::Nothing,
};

/// What a node consists of.
const NODE: &[Component] = &[
    Component {
        name: "cni",
        binaries: &[
            "bandwidth",
            "bridge",
            "firewall",
            "host-local",
            "loopback",
            "portmap",
            "ptp",
            "static",
            "tuning",
        ],
        system: Wanted::Plugins { specification: "1.0.0" },
        ..PLAIN
    },
    Component {
        name: "containerd",
        binaries: &["containerd", "containerd-shim-runc-v2", "ctr"],
        tags: CONTAINERD_TAGS,
        version: Some(CONTAINERD_VERSION),
        system: Wanted::Programs { at_least: (2, 0) },
        ..PLAIN
    },
    Component {
        name: "runc",
        binaries: &["runc"],
        cgo: "1",
        tags: "seccomp",
        system: Wanted::Programs { at_least: (1, 1) },
        ..PLAIN
    },
    Component {
        name: "registry",
        binaries: &["registry"],
        system: Wanted::Programs { at_least: (3, 0) },
        ..PLAIN
    },
];

/// Of containerd the daemon alone: `ctr` and shims come from the version of reference. And a client of CRI, a kubelet, and a
/// control plane with what it asks nodes for, which the tests have beside Berth.
const FOR_TESTS: &[Component] = &[
    neighbour("containerd-2.1"),
    neighbour("containerd-2.4"),
    Component { name: "cri", binaries: &["cri"], ..PLAIN },
    Component { name: "kubelet", binaries: &["kubelet"], version: Some(KUBERNETES_VERSION), ..PLAIN },
    // About ten minutes on two processors where nothing of it was built before.
    Component {
        name: "kubernetes",
        dir: CONTROL_PLANE,
        binaries: &["kubernetes"],
        names: &NAMES_OF_KUBERNETES,
        version: Some(KUBERNETES_VERSION),
        ..PLAIN
    },
    Component { name: "coredns", dir: CONTROL_PLANE, binaries: &["coredns"], ..PLAIN },
    // Three minutes on two processors: little of it is of the same versions as above.
    Component { name: "metrics-server", dir: CONTROL_PLANE, binaries: &["metrics-server"], ..PLAIN },
];

const FOR_SOAK: &[Component] = &[Component {
    name: OLD_API_SERVER,
    dir: OLD_API_SERVER,
    binaries: &[OLD_API_SERVER],
    version: Some(KUBERNETES_VERSION),
    ..PLAIN
}];

/// The suite for clusters of upstream, who runs it, and the programs of its images: eight minutes on two processors.
const FOR_CONFORMANCE: &[Component] = &[Component {
    name: E2E,
    dir: E2E,
    binaries: &["agnhost", "ginkgo", "nonewprivs"],
    tests: &[TestProgram { name: "e2e.test", package: "k8s.io/kubernetes/test/e2e" }],
    version: Some(KUBERNETES_VERSION),
    ..PLAIN
}];

const fn neighbour(name: &'static str) -> Component {
    Component {
        name,
        dir: name,
        binaries: &["containerd"],
        tags: CONTAINERD_TAGS,
        version: Some(CONTAINERD_VERSION),
        ..PLAIN
    }
}

impl Set {
    /// What there is beside what a node consists of.
    fn beside_the_node(self) -> impl Iterator<Item = &'static Component> {
        let (tests, more) = match self {
            Self::Node | Self::Pinned => (&[][..], &[][..]),
            Self::PinnedForTests => (FOR_TESTS, &[][..]),
            Self::PinnedForSoak => (FOR_TESTS, FOR_SOAK),
            Self::PinnedForConformance => (FOR_TESTS, FOR_CONFORMANCE),
        };
        tests.iter().chain(more)
    }

    /// All that it has.
    pub(super) fn components(self) -> impl Iterator<Item = &'static Component> {
        NODE.iter().chain(self.beside_the_node())
    }
}
