//! Windows of flow control.

/// Bytes of a window of which nothing was said, of a stream or of the connection.
pub(super) const INITIAL: u32 = 64 << 10;

/// Most bytes of a window.
pub(super) const MAX: u32 = 0x7fff_ffff;

/// A window would be larger than [`MAX`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Overflow;

/// Room at the peer for what this end sends. Below zero when a peer makes its window smaller, or had shown none.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendWindow(i64);

impl SendWindow {
    pub(super) fn new(size: i64) -> SendWindow {
        SendWindow(size)
    }

    pub(super) fn room(self) -> usize {
        usize::try_from(self.0.max(0)).unwrap_or(usize::MAX)
    }

    pub(super) fn used(&mut self, len: usize) {
        self.0 = self.0.saturating_sub(bytes(len));
    }

    /// The peer has changed its window by so much.
    pub(super) fn change(&mut self, by: i64) -> Result<(), Overflow> {
        let size = self.0.saturating_add(by);
        if size > i64::from(MAX) {
            return Err(Overflow);
        }
        self.0 = size;
        Ok(())
    }
}

/// Room here for what the peer sends.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    size: u32,
    /// What the peer may still send. Below zero when it does not keep to the window.
    left: i64,
    /// What was taken and not told the peer yet.
    taken: i64,
}

impl ReceiveWindow {
    pub(super) fn new(size: u32) -> ReceiveWindow {
        let size = size.min(MAX);
        ReceiveWindow { size, left: i64::from(size), taken: 0 }
    }

    /// Notes that the peer has sent something, and says whether it might have.
    pub(super) fn received(&mut self, len: usize) -> bool {
        self.left = self.left.saturating_sub(bytes(len));
        self.left >= 0
    }

    /// Notes that bytes were taken. Returns by how much the peer is to be told that its window has grown, which is so
    /// each time that half of it was taken.
    pub(super) fn consumed(&mut self, len: usize) -> Option<u32> {
        self.taken = self.taken.saturating_add(bytes(len));
        if self.taken == 0 || self.taken < i64::from(self.size / 2) {
            return None;
        }
        let told = u32::try_from(self.taken).unwrap_or(MAX).min(MAX);
        self.taken -= i64::from(told);
        self.left = self.left.saturating_add(i64::from(told));
        Some(told)
    }

    /// Makes the window larger, and returns by how much.
    pub(super) fn enlarge(&mut self, size: u32) -> Option<u32> {
        let by = size.min(MAX).checked_sub(self.size).filter(|by| *by > 0)?;
        self.size += by;
        self.left = self.left.saturating_add(i64::from(by));
        Some(by)
    }

    /// What the peer may send before it must wait.
    #[cfg(test)]
    pub(super) fn left(&self) -> i64 {
        self.left
    }

    /// What came and was not taken.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> i64 {
        i64::from(self.size) - self.left - self.taken
    }
}

fn bytes(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_window_has_an_end_on_both_sides() {
        let mut window = SendWindow::new(10);
        window.used(4);
        assert_eq!(window.room(), 6);
        window.used(10);
        assert_eq!(window.room(), 0, "below zero is no room");
        assert_eq!(window.change(5), Ok(()));
        assert_eq!(window.room(), 1);
        assert_eq!(window.change(i64::from(MAX) - 1), Ok(()));
        assert_eq!(window.change(1), Err(Overflow));
        assert_eq!(window.room(), usize::try_from(MAX).unwrap(), "as before");
    }

    #[test]
    fn a_receive_window_is_told_when_half_was_taken() {
        let mut window = ReceiveWindow::new(10);
        assert!(window.received(10));
        assert_eq!(window.consumed(4), None);
        assert_eq!(window.consumed(1), Some(5));
        assert_eq!(window.left(), 5);
        assert!(window.received(5));
        assert!(!window.received(1));
        assert_eq!(window.consumed(6), Some(6));
        assert_eq!(window.left(), 5);
        assert_eq!(window.consumed(0), None);
        assert_eq!(window.enlarge(15), Some(5));
        assert_eq!(window.left(), 10);
        assert_eq!(window.enlarge(15), None);
        assert_eq!(window.enlarge(1), None);
    }
}
