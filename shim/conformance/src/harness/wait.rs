//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Bound of every wait: far more than any step takes.
pub const WITHIN: Duration = Duration::from_secs(60);

/// How long the state rests after the first look; each rest is half as long again as the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Looks again and again until `look` finds something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + WITHIN;
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < give_up, "no sign of {what} within {WITHIN:?}");
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}
