//! When a shim that cannot be reached is taken for gone, and when it is tried again.
//!
//! A shim that is gone takes every container of its pod along, so what is taken for gone must be so. A living shim never
//! refuses a connection: it listens before containerd is told of it, and its queue of callers is longer than its callers are
//! many. Its socket may be missing all the same, when somebody has cleaned the directory: then only its process tells. And
//! what the agent itself lacks to ask, descriptors or memory, says nothing of the shim.
//!
//! A shim that is there and answers nothing is another matter (`berth_core::pod::silence`).

use std::time::Duration;

/// First wait before a lost connection is made anew; doubled with each that follows, up to ten seconds.
pub const RETRY_MIN: Duration = Duration::from_millis(20);

/// Longest wait before the next try at a shim that may be there.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Refused connections in a row after which a shim that is followed is taken for gone.
const REFUSALS_MAX: u32 = 3;

/// Wait for a place in the queue of a shim's callers.
pub const QUEUE_RETRY: Duration = Duration::from_millis(100);

/// Why a connection to a shim was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreached {
    /// Nobody listens at its socket.
    Refused,
    /// It has no socket.
    NoSocket {
        /// Whether a process of it is there.
        is_process_there: bool,
    },
    /// The queue of its callers is full.
    QueueFull,
    /// The agent could not ask.
    NotAsked,
}

/// What is known of a shim that was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is gone.
    Gone,
    /// It is there.
    There,
    /// Nothing.
    Unknown,
}

impl Unreached {
    /// What that says of the shim.
    #[must_use]
    pub fn presence(self) -> Presence {
        match self {
            Self::Refused | Self::NoSocket { is_process_there: false } => Presence::Gone,
            Self::NoSocket { is_process_there: true } | Self::QueueFull => Presence::There,
            Self::NotAsked => Presence::Unknown,
        }
    }
}

/// How a connection to a shim that is followed came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disconnected {
    /// It was made, and lost after an answer.
    Lost,
    /// It was made, and lost before any answer.
    Unanswered,
    /// It was not made.
    Unreached(Unreached),
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The connection is made anew after so long.
    Retry(Duration),
    /// The shim is gone: its sandbox is lost.
    GiveUp,
}

/// The tries to reach a shim since the last connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reconnection {
    /// Refusals in a row.
    refusals: u32,
    delay: Duration,
}

impl Default for Reconnection {
    fn default() -> Self {
        Self { refusals: 0, delay: RETRY_MIN }
    }
}

impl Reconnection {
    /// Takes one more failure.
    pub fn after(&mut self, failure: Disconnected) -> Next {
        match failure {
            Disconnected::Lost => *self = Self::default(),
            // Somebody listens: it is there.
            Disconnected::Unanswered => self.refusals = 0,
            Disconnected::Unreached(why) => match why.presence() {
                Presence::Gone => {
                    // What is gone is known soon, however long it broke connections off before.
                    if self.refusals == 0 {
                        self.delay = RETRY_MIN;
                    }
                    self.refusals += 1;
                }
                Presence::There | Presence::Unknown => self.refusals = 0,
            },
        }
        if self.refusals >= REFUSALS_MAX {
            return Next::GiveUp;
        }
        let delay = self.delay;
        self.delay = (delay * 2).min(RETRY_MAX);
        Next::Retry(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Disconnected = Disconnected::Lost;
    const UNANSWERED: Disconnected = Disconnected::Unanswered;
    const REFUSED: Disconnected = Disconnected::Unreached(Unreached::Refused);
    const NO_SHIM: Disconnected = Disconnected::Unreached(Unreached::NoSocket { is_process_there: false });
    const NO_SOCKET: Disconnected = Disconnected::Unreached(Unreached::NoSocket { is_process_there: true });
    const FULL: Disconnected = Disconnected::Unreached(Unreached::QueueFull);
    const NOT_ASKED: Disconnected = Disconnected::Unreached(Unreached::NotAsked);

    #[test]
    fn only_where_nobody_listens_and_no_process_is_there_is_a_shim_gone() {
        for (why, expected) in [
            (Unreached::Refused, Presence::Gone),
            (Unreached::NoSocket { is_process_there: false }, Presence::Gone),
            (Unreached::NoSocket { is_process_there: true }, Presence::There),
            (Unreached::QueueFull, Presence::There),
            (Unreached::NotAsked, Presence::Unknown),
        ] {
            assert_eq!(why.presence(), expected, "{why:?}");
        }
    }

    #[test]
    fn a_shim_is_gone_after_three_refusals_in_a_row_and_for_nothing_else() {
        for (what, failures, expected) in [
            ("two refusals", vec![REFUSED; 2], false),
            ("three refusals", vec![REFUSED; 3], true),
            ("its socket went with it", vec![REFUSED, NO_SHIM, NO_SHIM], true),
            ("a connection between", vec![REFUSED, REFUSED, LOST, REFUSED, REFUSED], false),
            ("connected before", vec![LOST, REFUSED, REFUSED, REFUSED], true),
            ("a process without a socket between", vec![REFUSED, REFUSED, NO_SOCKET, REFUSED], false),
            ("a full queue between", vec![REFUSED, REFUSED, FULL, REFUSED], false),
            ("out of descriptors between", vec![REFUSED, REFUSED, NOT_ASKED, REFUSED], false),
            ("accepted and broken off between", vec![REFUSED, REFUSED, UNANSWERED, REFUSED], false),
            ("only lost", vec![LOST; 50], false),
            ("only accepted and broken off", vec![UNANSWERED; 50], false),
            ("only a process without a socket", vec![NO_SOCKET; 50], false),
            ("only full queues", vec![FULL; 50], false),
            ("only out of descriptors", vec![NOT_ASKED; 50], false),
        ] {
            let mut reconnection = Reconnection::default();
            let mut is_gone = false;
            for failure in failures {
                assert!(!is_gone, "{what}: given up before the end");
                is_gone = reconnection.after(failure) == Next::GiveUp;
            }
            assert_eq!(is_gone, expected, "{what}");
        }
    }

    #[test]
    fn waits_grow_until_there_was_a_connection() {
        let waits = |failures: &[Disconnected]| {
            let mut reconnection = Reconnection::default();
            let wait = |failure: &Disconnected| match reconnection.after(*failure) {
                Next::Retry(wait) => Some(wait.as_millis()),
                Next::GiveUp => None,
            };
            failures.iter().map(wait).collect::<Vec<_>>()
        };
        assert_eq!(waits(&[REFUSED, REFUSED, REFUSED]), [Some(20), Some(40), None]);
        assert_eq!(waits(&[NOT_ASKED, FULL, REFUSED, NO_SOCKET]), [20, 40, 20, 40].map(Some));
        assert_eq!(
            waits(&[UNANSWERED, UNANSWERED, UNANSWERED, REFUSED, REFUSED]),
            [20, 40, 80, 20, 40].map(Some)
        );
        assert_eq!(waits(&[NOT_ASKED, NOT_ASKED, LOST, REFUSED]), [20, 40, 20, 20].map(Some));
        assert_eq!(waits(&[LOST; 3]), [20; 3].map(Some));
        assert_eq!(
            waits(&[UNANSWERED; 3]),
            [20, 40, 80].map(Some),
            "one that accepts and breaks off is not asked on and on"
        );
        let longest = waits(&[NOT_ASKED; 30]);
        assert_eq!(longest.last(), Some(&Some(RETRY_MAX.as_millis())));
    }
}
