//! The node: all its pods, and what they share.

mod index;
mod looks;
mod machine;
mod orphans;
mod qos;
mod sources;

pub use machine::Node;
pub(crate) use orphans::Orphan;
