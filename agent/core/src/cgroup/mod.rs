//! cgroup names and values: arithmetic only, for both versions of the hierarchy.

pub mod cpu;
pub(crate) mod memory;
pub mod names;
mod pod;
mod slice;
mod translate;
mod values;

pub(crate) use memory::swap_max;
pub(crate) use pod::period_us;
pub use pod::{QosShare, QosTotals, memory_max, pod_values, qos_values};
pub use slice::{Property, PropertyValue, SLICE_BASICS, Slice, kept_by, slice, slice_name};
pub use translate::{CgroupFile, Controller, page_size_name, translate};
pub use values::{CgroupValues, QosValues};
