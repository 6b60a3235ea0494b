//! Which connection carries which request.
//!
//! A server bounds the streams of one HTTP/2 connection, and each watch is a stream for as long as it goes on: what is asked beyond the
//! bound waits until a watch ends. So each request goes to a connection with room, the fullest, so that emptier ones run dry; where none
//! has room another one is made. How many streams a connection takes is known when the server has said it, and until then it carries
//! its first request alone. client-go does the same (`golang.org/x/net/http2/transport.go` `CanTakeNewRequest`).

use std::collections::BTreeMap;

/// Requests that one connection carries at most, whatever the server says: a kube-apiserver takes 100 streams
/// (`k8s.io/apiserver/pkg/server/options/serving.go` `HTTP2MaxStreamsPerConnection`), and counts those that it has not ended yet.
pub const STREAMS_MAX: usize = 80;

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// To this connection.
    On(usize),
    /// To this one, as its first: the connection is made for it.
    First(usize),
    /// It waits: a connection is being made. It is asked again when that has said how many it takes, or something has ended.
    Later,
}

/// Connections by number, and what each carries.
#[derive(Debug, Clone)]
pub struct Spread {
    most: usize,
    all: BTreeMap<usize, Connection>,
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    carried: usize,
    takes: Takes,
}

/// How many requests a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Unknown,
    /// Its first request is on the way.
    Asked,
    Streams(usize),
}

impl Default for Spread {
    fn default() -> Self {
        Self::new(STREAMS_MAX)
    }
}

impl Spread {
    /// With so many requests on each connection at most; one at least.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), all: BTreeMap::new() }
    }

    /// Takes a request in.
    pub fn begin(&mut self) -> Choice {
        let with_room = self.all.iter().filter(|(_, one)| match one.takes {
            Takes::Streams(streams) => one.carried < streams.clamp(1, self.most),
            Takes::Unknown | Takes::Asked => false,
        });
        // Of equals the first one.
        let fullest = with_room.max_by_key(|(number, one)| (one.carried, usize::MAX - **number));
        if let Some(number) = fullest.map(|(number, _)| *number) {
            self.carry(number);
            return Choice::On(number);
        }
        if self.all.values().any(|one| one.takes == Takes::Asked) {
            return Choice::Later;
        }
        let unknown = self.all.iter().find(|(_, one)| one.takes == Takes::Unknown).map(|(number, _)| *number);
        let free = || (0..).find(|number| !self.all.contains_key(number)).unwrap_or_default();
        let number = unknown.unwrap_or_else(free);
        self.carry(number).takes = Takes::Asked;
        Choice::First(number)
    }

    fn carry(&mut self, number: usize) -> &mut Connection {
        let one = self.all.entry(number).or_insert(Connection { carried: 0, takes: Takes::Unknown });
        one.carried += 1;
        one
    }

    /// The server has said how many streams it takes on a connection. One that says none is believed to take one.
    pub fn told(&mut self, number: usize, streams: usize) {
        if let Some(one) = self.all.get_mut(&number) {
            one.takes = Takes::Streams(streams);
        }
    }

    /// A request has ended; whether its connection is to be dropped: it carries none, and neither does another one, which stays for the
    /// next.
    pub fn end(&mut self, number: usize) -> bool {
        let Some(one) = self.all.get_mut(&number) else { return false };
        one.carried = one.carried.saturating_sub(1);
        if one.takes == Takes::Asked {
            one.takes = Takes::Unknown;
        }
        let is_empty = one.carried == 0;
        let is_spare = is_empty && self.all.values().filter(|one| one.carried == 0).count() > 1;
        if is_spare {
            self.all.remove(&number);
        }
        is_spare
    }

    /// How many requests each connection carries, by number.
    pub fn carried(&self) -> impl Iterator<Item = (usize, usize)> {
        self.all.iter().map(|(number, one)| (*number, one.carried))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a spread of three by connection: `+` begins a request (`?` is one that waits, a letter the first one of a
    /// connection), `t02` tells that connection 0 takes 2, a digit ends one of that connection.
    fn lives(script: &str) -> (String, Vec<(usize, usize)>) {
        let mut spread = Spread::new(3);
        let mut told = String::new();
        let digit = |act: char| usize::try_from(act.to_digit(10).unwrap()).unwrap();
        let mut acts = script.chars();
        while let Some(act) = acts.next() {
            match act {
                '+' => told.push(match spread.begin() {
                    Choice::On(number) => char::from_digit(u32::try_from(number).unwrap(), 10).unwrap(),
                    Choice::First(number) => char::from(b'A' + u8::try_from(number).unwrap()),
                    Choice::Later => '?',
                }),
                't' => spread.told(digit(acts.next().unwrap()), digit(acts.next().unwrap())),
                number => told.push(if spread.end(digit(number)) { 'x' } else { '-' }),
            }
        }
        (told, spread.carried().collect())
    }

    #[test]
    fn the_fullest_connection_with_room_takes_the_next_request() {
        for (script, told, carried) in [
            ("", "", vec![]),
            ("+", "A", vec![(0, 1)]),
            // Nobody knows yet how many it takes.
            ("+++", "A??", vec![(0, 1)]),
            ("+t02++", "A0B", vec![(0, 2), (1, 1)]),
            ("+t02+++", "A0B?", vec![(0, 2), (1, 1)]),
            ("+t02++t12++", "A0B1C", vec![(0, 2), (1, 2), (2, 1)]),
            // What ends makes room, also while another connection is made.
            ("+t02++0+", "A0B-0", vec![(0, 2), (1, 1)]),
            // No more than there is a bound for, and one at least.
            ("+t09+++", "A00B", vec![(0, 3), (1, 1)]),
            ("+t00+t10+", "ABC", vec![(0, 1), (1, 1), (2, 1)]),
            // The first one ended before anything was said: the next one is the first.
            ("+0+", "A-A", vec![(0, 1)]),
            ("+t01+1+", "AB-B", vec![(0, 1), (1, 1)]),
            // Another connection of the same number takes fewer.
            ("+t02+t01+", "A0B", vec![(0, 2), (1, 1)]),
            ("+t02+t01t02", "A0", vec![(0, 2)]),
            // One that carries none stays for the next, and no second one.
            ("+t01+t111", "AB-", vec![(0, 1), (1, 0)]),
            ("+t01+t1110", "AB-x", vec![(1, 0)]),
            ("+t01+t11+t21210", "ABC-xx", vec![(2, 0)]),
            ("+t01+t11+t212+", "ABC-2", vec![(0, 1), (1, 1), (2, 1)]),
            // Whoever ends what was never begun ends nothing.
            ("7", "-", vec![]),
            ("t71", "", vec![]),
        ] {
            assert_eq!(lives(script), (told.to_owned(), carried), "{script}");
        }
    }

    #[test]
    fn no_connection_carries_more_than_it_may_and_none_is_more_than_is_needed() {
        let mut spread = Spread::default();
        let begin = |spread: &mut Spread| match spread.begin() {
            Choice::On(number) => number,
            Choice::First(number) => {
                spread.told(number, 250);
                number
            }
            Choice::Later => panic!("nobody is asked"),
        };
        let first: Vec<usize> = (0..300).map(|_| begin(&mut spread)).collect();
        assert_eq!(spread.carried().collect::<Vec<_>>(), [(0, 80), (1, 80), (2, 80), (3, 60)]);
        for number in &first[..290] {
            spread.end(*number);
        }
        assert_eq!(spread.carried().collect::<Vec<_>>(), [(0, 0), (3, 10)]);
        let next: Vec<usize> = (0..70).map(|_| begin(&mut spread)).collect();
        assert_eq!(next, [3; 70]);
        assert_eq!(begin(&mut spread), 0);
    }
}
