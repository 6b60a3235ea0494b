//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Bound of every wait: far more than any step takes.
pub const WITHIN: Duration = Duration::from_secs(60);

/// Looks again and again until `look` finds something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + WITHIN;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < give_up, "no sign of {what} within {WITHIN:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
