//! How long the node takes until it is one of its cluster.
//!
//! Source: `pkg/kubelet/util/node_startup_latency_tracker.go`. Only a node that this agent has made is measured.

use std::time::Duration;

use jiff::Timestamp;

use super::between;

/// What has happened so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStart {
    booted: Option<Timestamp>,
    began: Timestamp,
    tried: Option<Timestamp>,
    made: Option<Timestamp>,
    is_ready: bool,
}

/// What is known once the node has been made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// From the boot of the machine until the agent began.
    pub before_agent: Option<Duration>,
    /// From then until the node was to be made.
    pub before_making: Duration,
    /// How long that took.
    pub making: Duration,
}

/// What is known once the node is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// From its making on.
    pub after_making: Duration,
    /// From the boot of the machine on.
    pub total: Option<Duration>,
}

impl NodeStart {
    /// The agent has begun.
    #[must_use]
    pub fn new(booted: Option<Timestamp>, began: Timestamp) -> Self {
        Self { booted, began, tried: None, made: None, is_ready: false }
    }

    /// The node is to be made.
    pub fn tried(&mut self, now: Timestamp) {
        self.tried.get_or_insert(now);
    }

    /// It was made: told the first time.
    pub fn made(&mut self, now: Timestamp) -> Option<Made> {
        let tried = self.tried.filter(|_| self.made.is_none())?;
        self.made = Some(now);
        Some(Made {
            before_agent: self.booted.map(|booted| between(booted, self.began)),
            before_making: between(self.began, tried),
            making: between(tried, now),
        })
    }

    /// It is ready: told the first time, where it was made.
    pub fn ready(&mut self, now: Timestamp) -> Option<Ready> {
        let made = self.made.filter(|_| !self.is_ready)?;
        self.is_ready = true;
        Some(Ready {
            after_making: between(made, now),
            total: self.booted.map(|booted| between(booted, now)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_told_once_and_nothing_of_a_node_that_was_there() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let of = Duration::from_secs;
        let mut start = NodeStart::new(Some(at(10)), at(15));
        assert_eq!((start.made(at(16)), start.ready(at(16))), (None, None), "others have made it");
        start.tried(at(18));
        start.tried(at(19));
        let made = Made { before_agent: Some(of(5)), before_making: of(3), making: of(4) };
        assert_eq!((start.made(at(22)), start.made(at(23))), (Some(made), None));
        let ready = Ready { after_making: of(8), total: Some(of(20)) };
        assert_eq!((start.ready(at(30)), start.ready(at(31))), (Some(ready), None));
        let mut start = NodeStart::new(None, at(15));
        start.tried(at(18));
        assert_eq!(start.made(at(18)).unwrap().before_agent, None);
        // A clock that was set back.
        assert_eq!(start.ready(at(5)), Some(Ready { after_making: of(0), total: None }));
    }
}
