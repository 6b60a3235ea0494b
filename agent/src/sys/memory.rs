//! What the allocator keeps.
#![expect(unsafe_code, reason = "mallopt takes numbers only")]

use nix::libc;

/// Heaps at most. Threads for blocking calls come and go, and a heap of each would keep what the busiest moment of its
/// threads has left in it.
const HEAPS_MAX: libc::c_int = 1;
/// Allocations from this size on are mappings of their own, bytes. Without a wish the bound rises with what is freed, and
/// large buffers come from the heap, which a small allocation behind them keeps from shrinking.
const MAPPED_FROM: libc::c_int = 128 << 10;
/// Free memory at the end of the heap that is kept, bytes.
const KEPT: libc::c_int = 256 << 10;

/// Has the allocator give freed memory back. To be called before there is a second thread.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    let options = [
        (libc::M_ARENA_MAX, HEAPS_MAX),
        (libc::M_MMAP_THRESHOLD, MAPPED_FROM),
        (libc::M_TRIM_THRESHOLD, KEPT),
    ];
    #[cfg(target_env = "gnu")]
    for (option, value) in options {
        // SAFETY: mallopt takes two numbers; a wish that it refuses changes nothing.
        let _refused = unsafe { libc::mallopt(option, value) } == 0;
    }
}
