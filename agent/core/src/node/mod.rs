//! The node: all its pods, and what they share.

mod images;
mod index;
mod looks;
mod machine;
mod orphans;
mod probes;
mod qos;
mod sources;
mod unrecorded;
mod wanted;

pub use machine::Node;
pub(crate) use orphans::Orphan;
pub use unrecorded::{Proven, Seen, prove};
