//! What the loop waits for, and what each of it stands for.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use berth_shim_core::{Id, Process};

use crate::poll::{Interest, Poll, Ready, Token};

/// What a token stands for.
#[derive(Debug, Clone)]
pub(super) enum Source {
    Signals,
    Listener,
    AgentListener,
    Conn(u64),
    Output(Process),
    Input(Process),
    Relay(Process),
    StdinFifo(Process),
    Oom(Id),
    Logger,
    Writers,
}

pub(super) struct Watches {
    poll: Poll,
    sources: BTreeMap<Token, Source>,
}

impl Watches {
    pub(super) fn new() -> nix::Result<Self> {
        Ok(Self { poll: Poll::new()?, sources: BTreeMap::new() })
    }

    pub(super) fn wait(&self, timeout_ms: Option<u64>) -> nix::Result<Vec<Ready>> {
        self.poll.wait(timeout_ms)
    }

    pub(super) fn source(&self, token: Token) -> Option<Source> {
        self.sources.get(&token).cloned()
    }

    /// For who has tokens of its own.
    pub(super) fn poll(&mut self) -> &mut Poll {
        &mut self.poll
    }

    pub(super) fn add(&mut self, fd: impl AsFd, interest: Interest, source: Source) -> nix::Result<Token> {
        let token = self.poll.add(fd, interest)?;
        self.sources.insert(token, source);
        Ok(token)
    }

    /// A token for what is watched later.
    pub(super) fn reserve(&mut self, source: Source) -> Token {
        let token = self.poll.reserve();
        self.sources.insert(token, source);
        token
    }

    pub(super) fn set(&self, fd: impl AsFd, token: Token, interest: Interest) -> nix::Result<()> {
        self.poll.set(fd, token, interest)
    }

    /// Does not watch it for a while.
    pub(super) fn pause(&self, fd: impl AsFd) {
        self.poll.remove(fd);
    }

    pub(super) fn resume(&self, fd: impl AsFd, token: Token, interest: Interest) -> nix::Result<()> {
        self.poll.add_again(fd, token, interest)
    }

    /// Forgets what is about to be closed.
    pub(super) fn end(&mut self, fd: impl AsFd, token: Token) {
        self.poll.remove(fd);
        self.sources.remove(&token);
    }

    /// The same for what is not watched just now.
    pub(super) fn forget(&mut self, token: Token) {
        self.sources.remove(&token);
    }
}
