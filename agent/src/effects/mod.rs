//! Effects, performed: one file per port, straight lines without policy.
//!
//! Every effect is idempotent at every half-way point: it looks at what is there, makes what is missing, and answers the
//! same as the first time. What to do about a failure is the core's business; here it only gets its kind and its message.

mod accounts;
mod cgroups;
mod end;
mod failure;
mod files;
mod hook;
mod hooks_under_way;
mod host;
mod image_ids;
mod images;
mod kinds;
mod lanes;
mod layers;
mod leases;
mod look;
mod network;
mod node_object;
mod perform;
mod probe;
mod pulls;
mod runtime;
mod unwanted;
mod worker;

pub use accounts::AccountsCache;
pub(crate) use files::{changeable, manifests, measured};
pub use hooks_under_way::HooksUnderWay;
pub use host::Host;
pub use image_ids::KnownIds;
pub use images::{end_left, end_unused, follow_images};
pub use kinds::KINDS;
pub use lanes::Lanes;
pub use layers::FreshLayers;
pub use leases::LeasesInUse;
pub use perform::start;
pub use pulls::PullsUnderWay;
pub use runtime::{SandboxHandlers, SandboxMembers};
pub use unwanted::UnwantedPulls;
pub use worker::perform_work;
