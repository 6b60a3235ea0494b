//! The numbered events for the agent: a ring, and the clients that wait for the next one.

use std::collections::VecDeque;

use crate::event::ReqId;
use crate::id::Id;
use crate::reply::{Reply, TaskView};

/// Events kept. A pod makes about four per container run; a client that is further behind reads everything again.
pub const FEED_EVENTS_MAX: usize = 1024;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeedEvent {
    /// A task was created.
    Created(TaskView),
    /// A task was started.
    Started(TaskView),
    /// A task has exited.
    Exited(TaskView),
    /// A task is paused.
    Paused(TaskView),
    /// A task runs again.
    Resumed(TaskView),
    /// A task was deleted.
    Deleted(Id),
    /// Processes of a task were killed for memory.
    Oom {
        /// The container.
        task: Id,
        /// Kills since it was created.
        kills: u64,
    },
    /// The sandbox has stopped.
    SandboxStopped,
}

/// One numbered event. Numbers start at 1 and have no gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedItem {
    /// Number.
    pub seq: u64,
    /// What happened.
    pub event: FeedEvent,
}

/// The ring and its waiting clients.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    items: VecDeque<FeedItem>,
    last: u64,
    waiting: Vec<ReqId>,
}

impl Feed {
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Adds an event; returns the waiting clients and what they are to be told.
    pub(crate) fn push(&mut self, event: FeedEvent) -> (Vec<ReqId>, Reply) {
        self.last += 1;
        let item = FeedItem { seq: self.last, event };
        if self.items.len() == FEED_EVENTS_MAX {
            self.items.pop_front();
        }
        self.items.push_back(item.clone());
        (std::mem::take(&mut self.waiting), Reply::Events(vec![item]))
    }

    /// The answer for a client that knows everything up to `since`, or `None` when it is kept waiting.
    pub(crate) fn since(&mut self, from: ReqId, since: u64) -> Option<Reply> {
        let first = self.items.front().map_or(self.last + 1, |item| item.seq);
        if since > self.last || since + 1 < first {
            return Some(Reply::Resync);
        }
        if since == self.last {
            self.waiting.push(from);
            return None;
        }
        Some(Reply::Events(self.items.iter().filter(|item| item.seq > since).cloned().collect()))
    }

    pub(crate) fn forget(&mut self, request: ReqId) {
        self.waiting.retain(|waiting| *waiting != request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_behind_gets_the_rest_a_client_ahead_or_too_far_behind_starts_over() {
        let mut feed = Feed::default();
        for _ in 0..FEED_EVENTS_MAX + 2 {
            feed.push(FeedEvent::SandboxStopped);
        }
        let last = feed.last();
        let Some(Reply::Events(items)) = feed.since(ReqId(1), last - 2) else { panic!("expected events") };
        assert_eq!(items.iter().map(|item| item.seq).collect::<Vec<_>>(), [last - 1, last]);
        assert_eq!(feed.since(ReqId(1), last + 1), Some(Reply::Resync));
        assert_eq!(feed.since(ReqId(1), 1), Some(Reply::Resync));
        assert!(
            matches!(feed.since(ReqId(1), 2), Some(Reply::Events(items)) if items.len() == FEED_EVENTS_MAX)
        );
    }

    #[test]
    fn a_client_up_to_date_waits_for_the_next_event() {
        let mut feed = Feed::default();
        assert_eq!(feed.since(ReqId(7), 0), None);
        assert_eq!(feed.since(ReqId(8), 0), None);
        feed.forget(ReqId(8));
        let (waiting, reply) = feed.push(FeedEvent::SandboxStopped);
        assert_eq!(waiting, [ReqId(7)]);
        assert_eq!(reply, Reply::Events(vec![FeedItem { seq: 1, event: FeedEvent::SandboxStopped }]));
    }
}
