//! Which namespaces a pod has, which of them a member gets, and what may be set in them.

mod member;
mod pod;
mod shm;
mod sysctl;
mod user;

pub use member::{Entry, Owner};
pub use pod::{Mode, ModesError, NamespaceType, Namespaces};
pub use shm::{ShmSizeError, shm_bytes};
pub use sysctl::{Sysctl, SysctlError};
pub use user::{IdMap, IdMapError, IdRange, UserMaps};
