//! Events to containerd: one ordered queue whose head is sent until containerd has taken it.
//!
//! Each event arrives, in order, at least once: one whose answer was lost with the connection is sent again, since nobody
//! can tell whether it was taken. While containerd stays away the queue is bounded; then the oldest go, and are counted.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use berth_proto::event_service::{ForwardRequest, events_service};
use berth_proto::ttrpc::{Client, Reply, Request};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use prost::Message;

use crate::conn::would_wait;
use crate::poll::{Interest, Poll, Token};
use crate::sys;

/// Events kept while containerd is away, and the bytes that they may take. The exit records are the truth; when more
/// wait, the oldest go.
const QUEUE_MAX: usize = 2048;
const QUEUE_BYTES_MAX: usize = 512 << 10;
/// A queue that was this long leaves holes in the heap, bytes.
const BACKLOG_BYTES: usize = 32 << 10;
/// First and longest wait between attempts, milliseconds.
const RETRY_MS: u64 = 100;
const RETRY_MS_MAX: u64 = 5_000;
/// Time in which containerd must take an event, before the connection is given up, milliseconds; as long as the runc
/// shim waits.
const ANSWER_MS_MAX: u64 = 5_000;
/// Attempts for one event that containerd answers with an error, before it is dropped so that others may pass.
const REFUSALS_MAX: u32 = 5;

/// The connection to containerd's event service.
pub(crate) struct Publisher {
    address: String,
    queue: VecDeque<ForwardRequest>,
    queued_bytes: usize,
    /// Whether more than [`BACKLOG_BYTES`] have waited since the queue was last empty.
    backlog: bool,
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
        let queue = VecDeque::new();
        Self {
            address,
            queue,
            queued_bytes: 0,
            backlog: false,
            dropped: 0,
            link,
            wait_ms: RETRY_MS,
            refusals: 0,
        }
    }

    pub(crate) fn push(&mut self, event: ForwardRequest) {
        if self.address.is_empty() {
            return;
        }
        self.queued_bytes += event.encoded_len();
        self.queue.push_back(event);
        self.backlog |= self.queued_bytes > BACKLOG_BYTES;
        // Never the head, which may be under way, and never the newest, which says how things stand.
        while self.queue.len() > 2 && (self.queue.len() > QUEUE_MAX || self.queued_bytes > QUEUE_BYTES_MAX) {
            let Some(oldest) = self.queue.remove(1) else { return };
            self.queued_bytes -= oldest.encoded_len();
            self.dropped += 1;
            if self.dropped.is_power_of_two() {
                crate::log::warning!("dropped {} events for containerd, which takes none", self.dropped);
            }
        }
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
        // What came before an end counts: an event that was answered is not sent again.
        let heard = up.read();
        while let Some(reply) = up.client.poll() {
            let Reply::End { stream, result } = reply else { continue };
            if up.sent.is_none_or(|(sent, _)| sent != stream) {
                continue;
            }
            up.sent = None;
            self.refusals = if result.is_err() { self.refusals + 1 } else { 0 };
            if result.is_err() && self.refusals < REFUSALS_MAX {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            }
            if let Some(event) = self.queue.pop_front() {
                self.queued_bytes -= event.encoded_len();
            }
            self.refusals = 0;
            self.wait_ms = RETRY_MS;
        }
        if self.queue.is_empty() && mem::take(&mut self.backlog) {
            self.queue.shrink_to_fit();
            sys::trim();
        }
        heard?;
        if let Some(head) = self.queue.front().filter(|_| up.sent.is_none()) {
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

#[cfg(test)]
mod tests {
    use berth_proto::types::Envelope;

    use super::*;

    fn event(topic: &str) -> ForwardRequest {
        ForwardRequest { envelope: Some(Envelope { topic: topic.to_owned(), ..Envelope::default() }) }
    }

    fn topics(publisher: &Publisher) -> Vec<&str> {
        let envelopes = publisher.queue.iter().filter_map(|event| event.envelope.as_ref());
        envelopes.map(|envelope| envelope.topic.as_str()).collect()
    }

    #[test]
    fn a_queue_that_is_full_loses_the_oldest_and_counts_them() {
        let mut publisher = Publisher::new("/nowhere".to_owned());
        for number in 0..3 * QUEUE_MAX {
            publisher.push(event(&number.to_string()));
        }
        let kept = topics(&publisher);
        assert_eq!((kept.len(), publisher.dropped), (QUEUE_MAX, 2 * QUEUE_MAX as u64));
        assert_eq!(kept[0], "0", "the head may be under way");
        let newest: Vec<String> =
            (2 * QUEUE_MAX + 1..3 * QUEUE_MAX).map(|number| number.to_string()).collect();
        assert_eq!(kept[1..], newest, "the rest is in order and without a gap");
    }

    #[test]
    fn large_events_are_bounded_by_their_bytes() {
        let mut publisher = Publisher::new("/nowhere".to_owned());
        let large = "x".repeat(QUEUE_BYTES_MAX / 4);
        for _ in 0..10 {
            publisher.push(event(&large));
        }
        assert!(publisher.queued_bytes <= QUEUE_BYTES_MAX && publisher.queue.len() == 3);
        let counted: usize = publisher.queue.iter().map(Message::encoded_len).sum();
        assert_eq!(publisher.queued_bytes, counted);
        // One that is larger than all is told all the same.
        publisher.push(event(&"y".repeat(2 * QUEUE_BYTES_MAX)));
        assert_eq!(publisher.queue.len(), 2);
    }

    #[test]
    fn without_an_address_nothing_is_kept() {
        let mut publisher = Publisher::new(String::new());
        publisher.push(event("create"));
        assert!(publisher.is_idle());
    }
}
