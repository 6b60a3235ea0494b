//! One client connection: bytes in and out of the ttrpc codec, never waiting.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use berth_proto::ttrpc::{Event, Server};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use crate::poll::{Interest, Token};

/// Unwritten bytes above which a client is not read from: it must take its answers first.
const PENDING_BYTES_MAX: usize = 1 << 20;
/// Unwritten bytes above which the output of a process that exists for this client is not read.
pub(crate) const STREAM_PENDING_BYTES_MAX: usize = 256 << 10;

pub(crate) struct Conn {
    pub(crate) token: Token,
    pub(crate) server: Server,
    socket: UnixStream,
    interest: Interest,
    /// A process must take its input first.
    pub(crate) held: bool,
    /// What has arrived waits until the client has taken its answers.
    pub(crate) behind: bool,
}

/// What a read brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Perhaps something.
    Bytes,
    /// The client is gone.
    End,
}

impl Conn {
    pub(crate) fn new(socket: UnixStream, token: Token) -> Self {
        Self {
            token,
            server: Server::default(),
            socket,
            interest: Interest::Read,
            held: false,
            behind: false,
        }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Heard {
        match self.socket.read(buffer) {
            Ok(0) => Heard::End,
            Ok(count) => {
                self.server.feed(buffer.get(..count).unwrap_or_default());
                Heard::Bytes
            }
            Err(error) if would_wait(&error) => Heard::Bytes,
            Err(_broken) => Heard::End,
        }
    }

    /// The next thing that has arrived whole. Few bytes can ask for many, so that answers are not made without end for a
    /// client that does not take them.
    pub(crate) fn next(&mut self) -> Option<Event> {
        self.behind = self.pending() > PENDING_BYTES_MAX;
        if self.behind { None } else { self.server.poll() }
    }

    /// Writes what the socket takes; returns whether the client is still there.
    pub(crate) fn write(&mut self) -> bool {
        loop {
            let pending = self.server.output().pending();
            if pending.is_empty() {
                return true;
            }
            match self.socket.write(pending) {
                Ok(0) => return false,
                Ok(count) => self.server.output().written(count),
                Err(error) if would_wait(&error) => return true,
                Err(_broken) => return false,
            }
        }
    }

    pub(crate) fn pending(&mut self) -> usize {
        self.server.output().pending().len()
    }

    /// What to watch for now, when it differs from before.
    pub(crate) fn new_interest(&mut self) -> Option<Interest> {
        let pending = self.pending();
        let reads = !self.held && pending <= PENDING_BYTES_MAX;
        let interest = match (reads, pending > 0) {
            (true, false) => Interest::Read,
            (true, true) => Interest::Both,
            (false, true) => Interest::Write,
            (false, false) => Interest::Nothing,
        };
        let changed = interest != self.interest;
        self.interest = interest;
        changed.then_some(interest)
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether the process at the other end is root or of the shim's own user. A socket that someone else could reach, by a
/// mount or a copied descriptor, is still not theirs (CVE-2020-15257).
pub(crate) fn is_trusted(socket: &UnixStream) -> bool {
    getsockopt(socket, PeerCredentials).is_ok_and(|peer| is_trusted_user(peer.uid()))
}

fn is_trusted_user(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

pub(crate) fn would_wait(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cve_2020_15257_other_users_are_not_served() {
        assert!(is_trusted_user(0));
        assert!(is_trusted_user(geteuid().as_raw()));
        assert!(!is_trusted_user(geteuid().as_raw() + 1000));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(is_trusted(&ours));
    }
}
