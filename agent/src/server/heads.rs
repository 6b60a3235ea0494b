//! Heads of requests that are in memory: heads may be long, and those of many strangers fill no memory.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use http::Request;

/// Bytes that there is always room for, for each connection.
const OWN_BYTES: usize = 16 << 10;
/// Bytes beyond that, of all connections together.
pub(super) const ALL_BYTES: usize = 64 << 20;
/// What a header takes beside its bytes, in a table of headers that has grown.
const HEADER_BYTES: usize = 128;

/// Bytes of all connections, beyond those that each has room for. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Heads {
    bytes: Arc<AtomicUsize>,
    most: usize,
}

impl Heads {
    pub(super) fn new(most: usize) -> Self {
        Self { bytes: Arc::default(), most }
    }
}

/// Those of one connection.
#[derive(Debug)]
pub(super) struct Own {
    all: Heads,
    bytes: usize,
}

impl Own {
    pub(super) fn new(all: &Heads) -> Self {
        Self { all: all.clone(), bytes: 0 }
    }

    /// Counts bytes. Whether there is room for them.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        let before = self.beyond();
        self.bytes += bytes;
        let more = self.beyond() - before;
        more == 0 || self.all.bytes.fetch_add(more, Relaxed) + more <= self.all.most
    }

    /// So many of them are in memory no more.
    pub(super) fn remove(&mut self, bytes: usize) {
        let before = self.beyond();
        self.bytes -= bytes;
        self.all.bytes.fetch_sub(before - self.beyond(), Relaxed);
    }

    /// None are.
    pub(super) fn clear(&mut self) {
        self.remove(self.bytes);
    }

    fn beyond(&self) -> usize {
        self.bytes.saturating_sub(OWN_BYTES)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Requests of one connection that wait until somebody has said who asks, and whether they may.
#[derive(Debug)]
pub(super) struct Waiting {
    strangers: Arc<Mutex<Own>>,
    admitted: Arc<Mutex<Own>>,
}

/// A request waits until this is dropped.
#[derive(Debug)]
pub(super) struct Waits {
    among: Arc<Mutex<Own>>,
    bytes: usize,
}

impl Waiting {
    pub(super) fn new(strangers: &Heads, admitted: &Heads) -> Self {
        let own = |all| Arc::new(Mutex::new(Own::new(all)));
        Self { strangers: own(strangers), admitted: own(admitted) }
    }

    /// Has a request wait, of a connection that was let in or was not. `None` where there is no room for it.
    pub(super) fn enter<B>(&self, request: &Request<B>, is_admitted: bool) -> Option<Waits> {
        let among = Arc::clone(if is_admitted { &self.admitted } else { &self.strangers });
        let bytes = size(request);
        let has_room = own(&among).add(bytes);
        let waits = Waits { among, bytes };
        has_room.then_some(waits)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        own(&self.among).remove(self.bytes);
    }
}

fn own(among: &Mutex<Own>) -> MutexGuard<'_, Own> {
    among.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + HEADER_BYTES
    };
    authority + path + request.headers().iter().map(header).sum::<usize>()
}

#[cfg(test)]
impl Heads {
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_counts_with_its_path_and_all_headers() {
        let request = Request::get("https://node/pods?a=b").header("x", "12345").header("x", "6");
        assert_eq!(size(&request.body(()).unwrap()), 4 + 9 + (1 + 5 + 128) + (1 + 1 + 128));
    }

    #[test]
    fn those_that_wait_have_room_of_their_own_and_a_share_of_what_all_have() {
        let (strangers, admitted) = (Heads::new(ALL_BYTES), Heads::new(ALL_BYTES));
        let of = |bytes: usize| {
            Request::get("/").header("x", "y".repeat(bytes - 1 - HEADER_BYTES - 1)).body(()).unwrap()
        };
        let flooding = Waiting::new(&strangers, &admitted);
        let large = of(1 << 20);
        let held: Vec<Waits> = (0..64).filter_map(|_| flooding.enter(&large, false)).collect();
        assert_eq!(held.len(), 64);
        assert_eq!(strangers.bytes(), ALL_BYTES - OWN_BYTES);
        assert!(flooding.enter(&large, false).is_none());
        assert_eq!(strangers.bytes(), ALL_BYTES - OWN_BYTES, "what did not wait does not count");
        assert!(flooding.enter(&large, true).is_some(), "those that were let in have another share");
        let other = Waiting::new(&strangers, &admitted);
        let small = other.enter(&of(OWN_BYTES), false);
        assert!(small.is_some() && other.enter(&of(OWN_BYTES + 1), false).is_none());
        drop(held);
        assert!(other.enter(&of(OWN_BYTES + 1), false).is_some());
        assert_eq!((strangers.bytes(), admitted.bytes()), (0, 0));
    }
}
