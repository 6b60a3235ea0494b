//! What may be sent, and what may still come.

use super::count;

/// Bytes that the other end of a stream still takes. Nothing until it grants some.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Credit(u64);

impl Credit {
    /// The other end takes so many more.
    pub fn grant(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Whether it takes any.
    pub fn is_left(self) -> bool {
        self.0 > 0
    }

    /// Uses as many of `wanted` bytes as there are, and tells how many.
    pub fn take(&mut self, wanted: usize) -> usize {
        let taken = usize::try_from(self.0).unwrap_or(usize::MAX).min(wanted);
        self.0 -= count(taken);
        taken
    }
}

/// More came than was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{beyond} bytes came beyond those that were granted")]
pub struct Overrun {
    beyond: u64,
}

/// What this end of a stream has granted. It keeps `size` bytes of the other's at most.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    size: u64,
    /// Granted, and not come.
    open: u64,
}

impl Window {
    /// Nothing is granted yet.
    pub fn new(size: u64) -> Self {
        Self { size, open: 0 }
    }

    /// So much has come.
    ///
    /// # Errors
    /// When it is more than was granted.
    pub fn receive(&mut self, bytes: usize) -> Result<(), Overrun> {
        let left = self.open.checked_sub(count(bytes));
        self.open = left.ok_or_else(|| Overrun { beyond: count(bytes) - self.open })?;
        Ok(())
    }

    /// What to grant now, when `kept` bytes of what has come are still here.
    pub fn refill(&mut self, kept: usize) -> Option<u64> {
        let due = self.due(kept)?;
        self.open += due;
        Some(due)
    }

    /// What is to be granted. Nothing below half of the window: a grant costs a message.
    pub(super) fn due(self, kept: usize) -> Option<u64> {
        let due = self.size.saturating_sub(self.open).saturating_sub(count(kept));
        (due > 0 && due >= self.size / 2).then_some(due)
    }
}
