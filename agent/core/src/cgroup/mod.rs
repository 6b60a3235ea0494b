//! cgroup names and values: arithmetic only, for both versions of the hierarchy.

mod values;

pub use values::{CgroupValues, QosValues};
