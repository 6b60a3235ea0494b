//! The node: all its pods, and what they share.

mod admission;
mod admit;
mod collection;
mod images;
mod index;
mod info;
mod inherited;
mod looks;
mod machine;
mod orphans;
mod probes;
mod qos;
mod resizes;
mod sources;
mod unrecorded;
mod wanted;

pub(crate) use admission::fits_term;
pub use info::{NodeInfo, Taint};
pub use machine::Node;
pub(crate) use orphans::Orphan;
pub use sources::SourcesHaveSpoken;
pub use unrecorded::{Proven, Seen, prove};
