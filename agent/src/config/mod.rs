//! Settings: the kubelet's configuration files and flags, Berth's own document, and facts of the machine, made into one
//! checked [`Config`].
//!
//! ```text
//!   --config ─▶ --config-dir/*.conf ─▶ flags ─▶ types ─▶ defaults ─▶ checks ─▶ Settings ──facts──▶ Config
//! ```

mod allocatable;
mod berth;
mod cgroups;
mod check;
mod cluster;
mod defaults;
mod duration;
mod facts;
mod files;
mod flags;
mod kubelet;
mod resolve;
mod runtime;
mod settings;
mod validate;

pub use berth::{BerthConfiguration, CniSection, RuntimeSection};
pub use check::{Ignored, ignored};
pub use duration::{DurationError, GoDuration};
pub(crate) use facts::architecture;
pub use facts::{Facts, FactsError, LiveFacts, Swap, addresses, hostname};
pub use files::{Documents, load};
pub use flags::KubeletFlags;
pub use kubelet::KubeletConfiguration;
pub use resolve::Settings;
pub use runtime::{PodRuntime, RuntimeOptions};
pub use settings::{Cluster, Cni, Config, OciRuntime, Rate};

#[cfg(test)]
pub(crate) mod tests;
