//! Waiting for a condition, never for a time.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Bound of every wait: far more than any step takes.
pub const WITHIN: Duration = Duration::from_secs(60);

/// How long the state rests after the first look; each rest is half as long again as the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Looks again and again until `look` finds something.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    until_ok(what, || look().ok_or("nothing"))
}

/// Looks again and again until something is as it should be, and says else what it was last.
pub fn until_ok<T, E: Display>(what: &str, mut look: impl FnMut() -> Result<T, E>) -> T {
    let give_up = Instant::now() + WITHIN;
    let mut pause = FIRST_PAUSE;
    loop {
        let last = match look() {
            Ok(found) => return found,
            Err(last) => last,
        };
        assert!(Instant::now() < give_up, "no sign of {what} within {WITHIN:?}; last seen: {last}");
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}
