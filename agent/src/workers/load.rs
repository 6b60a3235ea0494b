//! What a worker is given, which is made when its turn has come: what waits takes no memory.

use std::fmt;

use super::frame::MESSAGE_MAX;

/// What is no longer than this waits for no room: as many of a sort as there may be at once are 64 MiB.
pub(super) const SMALL_MAX: usize = 256 << 10;

/// Room for what is larger: two of the largest messages.
pub(super) const ROOM: usize = 2 * MESSAGE_MAX;

/// Room is counted in these.
const UNIT: usize = 1 << 10;

/// How many of them there are.
pub(super) const UNITS: usize = ROOM / UNIT;

/// A message to a worker.
pub struct Load {
    bytes: usize,
    make: Box<dyn FnOnce() -> Vec<u8> + Send>,
}

impl Load {
    /// One of about so many bytes, made when there is room for it.
    pub fn later(bytes: usize, make: impl FnOnce() -> Vec<u8> + Send + 'static) -> Self {
        Self { bytes, make: Box::new(make) }
    }

    /// What it takes of the room; nothing when it is small.
    pub(super) fn units(&self) -> Option<u32> {
        let units = self.bytes.div_ceil(UNIT).min(UNITS);
        u32::try_from(units).ok().filter(|_| self.bytes > SMALL_MAX)
    }

    /// The message. What is large is made by a thread of its own.
    pub(super) async fn make(self) -> Vec<u8> {
        if self.bytes <= SMALL_MAX {
            return (self.make)();
        }
        // Fails only when the agent is stopping. A worker refuses what is empty.
        tokio::task::spawn_blocking(self.make).await.unwrap_or_default()
    }
}

impl From<Vec<u8>> for Load {
    fn from(message: Vec<u8>) -> Self {
        Self::later(message.len(), move || message)
    }
}

impl fmt::Debug for Load {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "({} bytes)", self.bytes)
    }
}
