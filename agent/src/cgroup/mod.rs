//! The cgroup tree of pods, in either version of the hierarchy. Names and values come from `berth_core::cgroup`; here
//! they are made, written and removed.

mod tree;

pub use tree::{Tree, TreeError};
