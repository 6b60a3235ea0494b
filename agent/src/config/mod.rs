//! Settings: the kubelet's configuration files and flags, Berth's own document, and facts of the machine, made into one
//! checked [`Config`].
//!
//! ```text
//!   --config ─▶ --config-dir/*.conf ─▶ flags ─▶ types ─▶ defaults ─▶ checks ─▶ Settings ──facts──▶ Config
//!                                   containerd's own configuration ─▶ Section ────┘
//! ```

mod allocatable;
mod berth;
mod cgroups;
mod check;
mod cluster;
mod containerd;
mod credential_providers;
mod defaults;
mod duration;
mod facts;
mod files;
mod flags;
mod gates;
mod kubelet;
mod resolve;
mod runtime;
mod runtime_settings;
mod server;
mod settings;
mod tls;
mod validate;
mod verification;

pub use berth::{BerthConfiguration, CniSection, RuntimeSection};
pub use check::{Ignored, ignored};
pub use containerd::{Loaded, Said, Section, Shim};
pub use duration::{DurationError, GoDuration};
pub(crate) use facts::architecture;
pub use facts::{Facts, FactsError, LiveFacts, Swap, addresses, hostname};
pub use files::{Documents, load};
pub use flags::KubeletFlags;
pub use kubelet::KubeletConfiguration;
pub use resolve::Settings;
pub use runtime::{BERTH_RUNTIME, Handler, PodRuntime, RuntimeOptions};
pub use runtime_settings::{CurrentRuntime, Origin, RuntimeSettings, RuntimeSource};
pub use server::{AuthenticationSettings, AuthorizationSettings, ServerSettings};
pub use settings::{
    Cluster, Cni, Config, CredentialProvider, EventRate, FeatureGate, LogRequests, NodeLogAccess, OciRuntime,
    RegistryAccounts, RequestRate, ServingCertificate, StatsSettings,
};

pub use tls::{TlsSettings, TlsVersion};

#[cfg(test)]
pub(crate) mod tests;
