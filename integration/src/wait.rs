//! Bounded, level-triggered waits: look at the state again until it is as wanted or time is up.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long the state rests after the first look; each rest is half as long again as the last.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest rest: many looks start a program, and the machine is busy with what is awaited.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What one look at the awaited state found.
#[derive(Debug)]
pub enum Look<T> {
    /// The state is as wanted.
    Ready(T),
    /// Not yet; the text says what was seen and becomes part of the failure message.
    NotYet(String),
}

/// Looks until `look` is ready, at most `limit`. The last look begins when that is over: one that began before, and took long on a busy
/// machine, says nothing of how it is then.
///
/// # Errors
/// `look` failed, or the limit passed; the message then names what was awaited and last seen.
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Look<T>>) -> Result<T> {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let is_last = start.elapsed() >= limit;
        match look()? {
            Look::Ready(value) => return Ok(value),
            Look::NotYet(seen) if is_last => bail!("waited {limit:?} for {what}; last seen: {seen}"),
            Look::NotYet(_) => std::thread::sleep(pause),
        }
        pause = (pause * 3 / 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_names_what_was_awaited_and_last_seen() {
        let failure = until::<()>("the door", Duration::ZERO, || Ok(Look::NotYet("it is shut".to_owned())))
            .unwrap_err();
        assert_eq!(failure.to_string(), "waited 0ns for the door; last seen: it is shut");
    }

    #[test]
    fn a_later_look_counts() {
        let mut looks = 0;
        let value = until("three looks", Duration::from_secs(5), || {
            looks += 1;
            Ok(if looks == 3 { Look::Ready(looks) } else { Look::NotYet(looks.to_string()) })
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn the_last_look_begins_when_the_time_is_up() {
        let limit = Duration::from_millis(10);
        let mut looks = 0;
        let value = until("a look that begins late", limit, || {
            looks += 1;
            if looks == 1 {
                std::thread::sleep(2 * limit);
                return Ok(Look::NotYet("the first takes too long".to_owned()));
            }
            Ok(Look::Ready(looks))
        });
        assert_eq!(value.unwrap(), 2);
    }
}
