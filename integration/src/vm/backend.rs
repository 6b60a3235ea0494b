//! The two kinds of machines, and which of them this host can run.

use std::env;
use std::path::Path;

use anyhow::{Result, bail};

use super::world::{Machine, Plan};
use super::{Feature, qemu, uml};

/// Names the kind to take, instead of the one that works.
const CHOICE: &str = "BERTH_VM";

/// A kind of machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// QEMU with KVM: Debian's usual kernel, all processors.
    Qemu,
    /// User-Mode Linux: a process, which runs everywhere.
    Uml,
}

impl Backend {
    const ALL: [Self; 2] = [Self::Qemu, Self::Uml];

    /// QEMU where it is installed and a guest of it runs, else User-Mode Linux.
    ///
    /// # Errors
    /// Something else was asked for.
    pub fn choose() -> Result<Self> {
        match env::var(CHOICE) {
            Ok(name) => Self::named(&name),
            Err(_) if qemu::works()? => Ok(Self::Qemu),
            Err(_) => Ok(Self::Uml),
        }
    }

    /// The kind of this name.
    pub(super) fn named(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|backend| backend.name() == name) {
            Some(backend) => Ok(backend),
            None => bail!("there is no kind of machine {name:?}: {CHOICE} may be qemu or uml"),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Uml => "uml",
        }
    }

    /// What its kernel does not have.
    pub(super) const fn lacks(self) -> &'static [Feature] {
        match self {
            Self::Qemu => &[],
            Self::Uml => uml::LACKS,
        }
    }

    /// Debian packages that bring its kernel.
    pub(super) const fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Qemu => &[],
            Self::Uml => uml::PACKAGES,
        }
    }

    /// Those that can be installed only into a tree that is whole.
    pub(super) const fn later_packages(self) -> &'static [&'static str] {
        match self {
            Self::Qemu => qemu::PACKAGES,
            Self::Uml => &[],
        }
    }

    /// Copies its kernel out of a tree and puts the tree in order for it.
    pub(super) fn keep_kernel(self, tree: &Path, kernel: &Path) -> Result<()> {
        match self {
            Self::Qemu => qemu::keep_kernel(tree, kernel),
            Self::Uml => uml::keep_kernel(tree, kernel),
        }
    }

    pub(super) fn start(self, plan: &Plan) -> Result<Machine> {
        match self {
            Self::Qemu => qemu::start(plan),
            Self::Uml => uml::start(plan),
        }
    }
}
