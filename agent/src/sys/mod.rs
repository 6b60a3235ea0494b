//! System calls that no safe crate covers. The only place with unsafe code.

mod fork;
mod memory;
mod mount_owners;

pub(crate) use fork::end_with_this_thread;
pub(crate) use memory::give_memory_back;
pub(crate) use mount_owners::map_owners;
