//! The size of a pod's `/dev/shm`.

use thiserror::Error;

/// The kubelet's and containerd's size.
const BYTES_DEFAULT: u64 = 64 << 20;
/// The kernel counts in pages and would make more of less.
const BYTES_MIN: u64 = 4096;
/// File sizes are signed.
const BYTES_MAX: u64 = i64::MAX.unsigned_abs();

/// A size that a file system cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("size the pod's /dev/shm: {0} bytes are not between {BYTES_MIN} and {BYTES_MAX}")]
pub struct ShmSizeError(u64);

/// Bytes of a pod's `/dev/shm`; 0 asks for what pods usually have.
pub fn shm_bytes(asked: u64) -> Result<u64, ShmSizeError> {
    match asked {
        0 => Ok(BYTES_DEFAULT),
        BYTES_MIN..=BYTES_MAX => Ok(asked),
        _ => Err(ShmSizeError(asked)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_the_default_or_what_the_kernel_can_keep() {
        assert_eq!(shm_bytes(0), Ok(64 << 20));
        for bytes in [4096, 1 << 30, i64::MAX.unsigned_abs()] {
            assert_eq!(shm_bytes(bytes), Ok(bytes));
        }
        // tmpfs would take the first for a page, and the last for no limit at all.
        for bytes in [1, 4095, 1 << 63, u64::MAX] {
            assert_eq!(shm_bytes(bytes), Err(ShmSizeError(bytes)));
        }
    }
}
