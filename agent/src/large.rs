//! Reading what others send, which may be large: that takes a processor for long.

/// Up to so many bytes are read at once: that takes less than a millisecond, and a thread about a tenth of one.
pub(crate) const AT_ONCE_BYTES: usize = 256 << 10;

/// A thread was not begun, since the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent is stopping")]
pub(crate) struct Stopping;

/// Reads so many bytes; many of them on a thread of its own, so that everything else goes on meanwhile.
///
/// # Errors
/// The agent is stopping.
pub(crate) async fn read<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stopping> {
    if bytes <= AT_ONCE_BYTES {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|_cancelled| Stopping)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn what_is_large_is_read_elsewhere() {
        let here = thread::current().id();
        for (bytes, is_here) in [(0, true), (AT_ONCE_BYTES, true), (AT_ONCE_BYTES + 1, false)] {
            let on = read(bytes, || thread::current().id()).await.unwrap();
            assert_eq!(on == here, is_here, "{bytes}");
        }
    }
}
