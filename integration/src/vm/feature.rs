//! What a test may need of its machine, and which guests do not have.

use std::env;

use crate::systemd;

/// Says, in a guest, what its kernel does not have; absent outside.
pub(super) const LACKS: &str = "BERTH_VM_LACKS";

/// Something that a machine may be without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Address translation in netfilter: masquerading and host ports.
    Nat,
    /// What criu needs to save processes and bring them back (`CONFIG_CHECKPOINT_RESTORE`).
    Checkpoints,
    /// systemd as process 1.
    Systemd,
}

impl Feature {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Nat, Self::Checkpoints, Self::Systemd];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Checkpoints => "checkpoints",
            Self::Systemd => "systemd",
        }
    }
}

/// The value of [`LACKS`] for a kernel without these.
pub(super) fn list(features: &[Feature]) -> String {
    features.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(",")
}

/// Whether this process is in a guest, to which everything it needs was given.
#[must_use]
pub fn is_guest() -> bool {
    env::var_os(LACKS).is_some()
}

/// Whether this machine is a guest that was declared to do without something. Elsewhere everything is there, or a test
/// fails that needs it; but for systemd, which needs a machine booted with it.
#[must_use]
pub fn lacks(feature: Feature) -> bool {
    if feature == Feature::Systemd {
        return !systemd::is_here();
    }
    env::var(LACKS).is_ok_and(|list| list.split(',').any(|name| name == feature.name()))
}
