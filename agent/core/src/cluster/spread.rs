//! Which connection carries which watch.
//!
//! A server bounds the streams of one HTTP/2 connection, and each watch is a stream for as long as it goes on. Those of objects are as
//! many as pods name, so they are spread: the fullest connection with room takes the next one, so that emptier ones run dry. What must
//! not wait for a stream (the lease, the node, patches, tokens, pods) is on a connection of its own, which is not counted here.
//! client-go opens another connection by itself when one is full (`golang.org/x/net/http2/transport.go` `CanTakeNewRequest`).

use std::collections::BTreeMap;

/// Watches that one connection carries at most: a kube-apiserver takes 100 streams
/// (`k8s.io/apiserver/pkg/server/options/serving.go` `HTTP2MaxStreamsPerConnection`), and lists that come in pages need one too.
pub const STREAMS_MAX: usize = 80;

/// Connections by number, and how many watches each carries.
#[derive(Debug, Clone)]
pub struct Spread {
    most: usize,
    carried: BTreeMap<usize, usize>,
}

impl Default for Spread {
    fn default() -> Self {
        Self::new(STREAMS_MAX)
    }
}

impl Spread {
    /// With so many watches on each connection at most; one at least.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), carried: BTreeMap::new() }
    }

    /// Takes a watch in; the number of the connection that carries it, a new one where no other has room.
    pub fn begin(&mut self) -> usize {
        let with_room = self.carried.iter().filter(|(_, carried)| **carried < self.most);
        // Of equals the first one.
        let fullest = with_room.max_by_key(|(number, carried)| (**carried, usize::MAX - **number));
        let free = || (0..).find(|number| !self.carried.contains_key(number)).unwrap_or_default();
        let number = fullest.map_or_else(free, |(number, _)| *number);
        *self.carried.entry(number).or_default() += 1;
        number
    }

    /// A watch has ended; whether its connection is to be dropped: it carries none, and another one is there for the next.
    pub fn end(&mut self, number: usize) -> bool {
        let Some(carried) = self.carried.get_mut(&number) else { return false };
        *carried = carried.saturating_sub(1);
        let is_needed = *carried > 0 || self.carried.len() == 1;
        if !is_needed {
            self.carried.remove(&number);
        }
        !is_needed
    }

    /// How many watches each connection carries, by number.
    pub fn carried(&self) -> impl Iterator<Item = (usize, usize)> {
        self.carried.iter().map(|(number, carried)| (*number, *carried))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a spread of two by connection: `+` begins a watch, a digit ends one of that connection.
    fn lives(script: &str) -> (String, Vec<(usize, usize)>) {
        let mut spread = Spread::new(2);
        let told = script.chars().map(|act| match act.to_digit(10) {
            None => spread.begin().to_string(),
            Some(number) => if spread.end(usize::try_from(number).unwrap()) { "x" } else { "-" }.to_owned(),
        });
        (told.collect(), spread.carried().collect())
    }

    #[test]
    fn the_fullest_connection_with_room_takes_the_next_watch() {
        for (script, told, carried) in [
            ("", "", vec![]),
            ("+", "0", vec![(0, 1)]),
            ("+++++", "00112", vec![(0, 2), (1, 2), (2, 1)]),
            // One place is free in the first, and one in the third: the first takes it.
            ("+++++0+", "00112-0", vec![(0, 2), (1, 2), (2, 1)]),
            // The second has run dry: it is dropped, and its number is used again.
            ("+++++11++", "00112-x21", vec![(0, 2), (1, 1), (2, 2)]),
            ("++++00+", "0011-x0", vec![(0, 1), (1, 2)]),
            // The last one stays for the next watch.
            ("+0", "0-", vec![(0, 0)]),
            ("+0+", "0-0", vec![(0, 1)]),
            ("+++00", "001-x", vec![(1, 1)]),
            ("+++001", "001-x-", vec![(1, 0)]),
            // Whoever ends what was never begun ends nothing.
            ("7", "-", vec![]),
            ("+00", "0--", vec![(0, 0)]),
        ] {
            assert_eq!(lives(script), (told.to_owned(), carried), "{script}");
        }
    }

    #[test]
    fn no_connection_carries_more_than_it_may_and_none_is_more_than_is_needed() {
        let mut spread = Spread::default();
        let first: Vec<usize> = (0..300).map(|_| spread.begin()).collect();
        assert_eq!(spread.carried().collect::<Vec<_>>(), [(0, 80), (1, 80), (2, 80), (3, 60)]);
        for number in &first[..290] {
            spread.end(*number);
        }
        assert_eq!(spread.carried().collect::<Vec<_>>(), [(3, 10)]);
        let next: Vec<usize> = (0..70).map(|_| spread.begin()).collect();
        assert_eq!(next, [3; 70]);
        assert_eq!(spread.begin(), 0);
        assert_eq!(Spread::new(0).begin(), 0, "one at least");
    }
}
