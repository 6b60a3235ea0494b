//! Events to containerd: one ordered queue whose head is sent until containerd has taken it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use berth_proto::event_service::{ForwardRequest, events_service};
use berth_proto::ttrpc::{Client, Reply, Request};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::conn::would_wait;
use crate::poll::{Interest, Poll, Token};

/// Events kept while containerd is away. The exit records are the truth; when this many wait, the oldest goes.
const QUEUE_MAX: usize = 4096;
/// First and longest wait between attempts, milliseconds.
const RETRY_MS: u64 = 100;
const RETRY_MS_MAX: u64 = 5_000;
/// Time in which containerd must take an event, before the connection is given up, milliseconds.
const ANSWER_MS_MAX: u64 = 10_000;
/// Attempts for one event that containerd answers with an error, before it is dropped so that others may pass.
const REFUSALS_MAX: u32 = 5;

/// The connection to containerd's event service.
pub(crate) struct Publisher {
    address: String,
    queue: VecDeque<ForwardRequest>,
    dropped: u64,
    link: Link,
    wait_ms: u64,
    refusals: u32,
}

enum Link {
    /// Not connected; the next attempt may be made at this time.
    Down {
        retry_at_ms: u64,
    },
    Up(Up),
}

struct Up {
    socket: UnixStream,
    token: Token,
    client: Client,
    /// The stream of the head of the queue, and when it must be answered.
    sent: Option<(u32, u64)>,
    writing: bool,
}

impl Publisher {
    /// Events go to the socket at `address`; without one they go nowhere.
    pub(crate) fn new(address: String) -> Self {
        let link = Link::Down { retry_at_ms: 0 };
        Self { address, queue: VecDeque::new(), dropped: 0, link, wait_ms: RETRY_MS, refusals: 0 }
    }

    pub(crate) fn push(&mut self, event: ForwardRequest) {
        if self.address.is_empty() {
            return;
        }
        if self.queue.len() == QUEUE_MAX {
            // Never the head, which may be under way.
            self.queue.remove(1);
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                crate::log::warning!("dropped {} events for containerd, which takes none", self.dropped);
            }
        }
        self.queue.push_back(event);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match &self.link {
            Link::Down { .. } => None,
            Link::Up(up) => Some(up.token),
        }
    }

    /// When [`drive`](Self::drive) has something to do without being woken.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        match &self.link {
            Link::Down { retry_at_ms } => (!self.queue.is_empty()).then_some(*retry_at_ms),
            Link::Up(up) => up.sent.map(|(_, at)| at),
        }
    }

    /// Does what can be done without waiting.
    pub(crate) fn drive(&mut self, now_ms: u64, poll: &mut Poll) {
        if let Link::Down { retry_at_ms } = self.link {
            if self.queue.is_empty() || now_ms < retry_at_ms {
                return;
            }
            match self.connect(poll) {
                Ok(up) => self.link = Link::Up(up),
                Err(_absent) => return self.back_off(now_ms),
            }
        }
        if self.exchange(now_ms, poll).is_err() {
            if let Link::Up(up) = &self.link {
                poll.remove(&up.socket);
            }
            self.back_off(now_ms);
        }
    }

    fn back_off(&mut self, now_ms: u64) {
        self.link = Link::Down { retry_at_ms: now_ms + self.wait_ms };
        self.wait_ms = (self.wait_ms * 2).min(RETRY_MS_MAX);
    }

    fn connect(&self, poll: &mut Poll) -> io::Result<Up> {
        let path = self.address.strip_prefix("unix://").unwrap_or(&self.address);
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        match connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &UnixAddr::new(path)?) {
            // EAGAIN: containerd's backlog is full, and unlike EINPROGRESS nothing is under way.
            Err(error) if error != Errno::EINPROGRESS => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let socket = UnixStream::from(fd);
        let token = poll.add(socket.as_fd(), Interest::Read)?;
        Ok(Up { socket, token, client: Client::default(), sent: None, writing: false })
    }

    fn exchange(&mut self, now_ms: u64, poll: &Poll) -> io::Result<()> {
        let Link::Up(up) = &mut self.link else { return Ok(()) };
        up.read()?;
        loop {
            while let Some(reply) = up.client.poll() {
                let Reply::End { stream, result } = reply else { continue };
                if up.sent.is_none_or(|(sent, _)| sent != stream) {
                    continue;
                }
                up.sent = None;
                self.refusals = if result.is_err() { self.refusals + 1 } else { 0 };
                if result.is_ok() || self.refusals >= REFUSALS_MAX {
                    self.queue.pop_front();
                    self.refusals = 0;
                    self.wait_ms = RETRY_MS;
                } else {
                    return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
                }
            }
            let Some(head) = self.queue.front().filter(|_| up.sent.is_none()) else { break };
            let timeout = Duration::from_millis(ANSWER_MS_MAX);
            let request = Request::of(events_service::NAME, events_service::FORWARD, head, timeout);
            let stream = up.client.call(&request).map_err(io::Error::other)?;
            up.sent = Some((stream, now_ms + ANSWER_MS_MAX));
        }
        if up.sent.is_some_and(|(_, at)| at <= now_ms) {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        up.write(poll)
    }
}

impl Up {
    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(count) => self.client.feed(buffer.get(..count).unwrap_or_default()),
                Err(error) if would_wait(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&mut self, poll: &Poll) -> io::Result<()> {
        while !self.client.output().pending().is_empty() {
            match self.socket.write(self.client.output().pending()) {
                Ok(count) => self.client.output().written(count),
                Err(error) if would_wait(&error) => break,
                Err(error) => return Err(error),
            }
        }
        let writing = !self.client.output().pending().is_empty();
        if writing != self.writing {
            self.writing = writing;
            let interest = if writing { Interest::Both } else { Interest::Read };
            poll.set(&self.socket, self.token, interest)?;
        }
        Ok(())
    }
}
