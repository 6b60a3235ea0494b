//! epoll, with a number per source.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Names one source of events. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(u64);

/// What to be told about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Nothing but an error, while the other side must wait for us.
    Nothing,
    /// Bytes to read, or the end.
    Read,
    /// Room to write.
    Write,
    /// Both.
    Both,
}

/// What a source is ready for. An error counts as both, since the next call on the source tells it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) token: Token,
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// Sources looked at per round.
const BATCH: usize = 64;

pub(crate) struct Poll {
    epoll: Epoll,
    last: u64,
}

impl Poll {
    pub(crate) fn new() -> nix::Result<Self> {
        Ok(Self { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, last: 0 })
    }

    pub(crate) fn add(&mut self, source: impl AsFd, interest: Interest) -> nix::Result<Token> {
        self.last += 1;
        self.epoll.add(source, EpollEvent::new(interest.flags(), self.last))?;
        Ok(Token(self.last))
    }

    pub(crate) fn set(&self, source: impl AsFd, token: Token, interest: Interest) -> nix::Result<()> {
        self.epoll.modify(source, &mut EpollEvent::new(interest.flags(), token.0))
    }

    /// Watches a source again that was removed, under the token it had.
    pub(crate) fn add_again(&self, source: impl AsFd, token: Token, interest: Interest) -> nix::Result<()> {
        self.epoll.add(source, EpollEvent::new(interest.flags(), token.0))
    }

    /// A token for a source that is watched later.
    pub(crate) fn reserve(&mut self) -> Token {
        self.last += 1;
        Token(self.last)
    }

    /// Must come before the source is closed when a copy of its descriptor may live on elsewhere.
    pub(crate) fn remove(&self, source: impl AsFd) {
        // A source that was never added has nothing to remove.
        let _absent = self.epoll.delete(source).is_err();
    }

    /// Waits for sources to be ready, at most `timeout_ms`, or without end.
    pub(crate) fn wait(&self, timeout_ms: Option<u64>) -> nix::Result<Vec<Ready>> {
        let timeout = match timeout_ms {
            None => EpollTimeout::NONE,
            Some(ms) => EpollTimeout::from(u16::try_from(ms).unwrap_or(u16::MAX)),
        };
        let mut events = [EpollEvent::empty(); BATCH];
        let count = match self.epoll.wait(&mut events, timeout) {
            Err(Errno::EINTR) => 0,
            other => other?,
        };
        Ok(events.iter().take(count).map(|event| ready(*event)).collect())
    }
}

impl Interest {
    fn flags(self) -> EpollFlags {
        match self {
            Self::Nothing => EpollFlags::empty(),
            Self::Read => EpollFlags::EPOLLIN,
            Self::Write => EpollFlags::EPOLLOUT,
            Self::Both => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
        }
    }
}

fn ready(event: EpollEvent) -> Ready {
    let flags = event.events();
    let broken = flags.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
    Ready {
        token: Token(event.data()),
        read: broken || flags.contains(EpollFlags::EPOLLIN),
        write: broken || flags.contains(EpollFlags::EPOLLOUT),
    }
}
