//! System calls that no safe crate covers. The only place with unsafe code.

mod memory;

pub(crate) use memory::give_memory_back;
