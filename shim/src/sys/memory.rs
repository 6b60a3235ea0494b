//! What the allocator keeps.
#![expect(unsafe_code, reason = "mallopt and malloc_trim take numbers only")]

use nix::libc;

/// Allocations from this size on are mappings of their own, bytes.
const MAPPED_FROM: libc::c_int = 64 << 10;
/// Free memory at the end of the heap that is kept, bytes.
const KEPT: libc::c_int = 64 << 10;

/// Has the allocator give freed memory back. By itself it takes large buffers from the heap once some were freed, where
/// a small allocation behind them keeps all of it.
pub(crate) fn give_memory_back() {
    // One heap for all threads: another one for each would be touched in parts.
    #[cfg(target_env = "gnu")]
    let options =
        [(libc::M_MMAP_THRESHOLD, MAPPED_FROM), (libc::M_TRIM_THRESHOLD, KEPT), (libc::M_ARENA_MAX, 1)];
    #[cfg(target_env = "gnu")]
    for (option, value) in options {
        // SAFETY: mallopt takes two numbers; a wish that it refuses changes nothing.
        let _refused = unsafe { libc::mallopt(option, value) } == 0;
    }
}

/// Gives back what is free now, also between what is in use: for the end of a time in which much was kept.
pub(crate) fn trim() {
    // SAFETY: malloc_trim takes a number, and touches what is free only.
    #[cfg(target_env = "gnu")]
    let _nothing_to_give = unsafe { libc::malloc_trim(0) } == 0;
}
