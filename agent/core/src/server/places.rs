//! Which connection makes room for another, so that a flood of those who are not let in keeps nobody out who is.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use crate::time::Mono;

/// Who a connection comes from, as far as places are concerned: an address, or of IPv6 the network that one machine may have to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(IpAddr);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Origin {
    /// That of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            // 64 bits are the network.
            IpAddr::V6(address) if !address.is_loopback() => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address @ (IpAddr::V4(_) | IpAddr::V6(_)) => address,
        })
    }

    /// Whether it is the node itself.
    #[must_use]
    pub fn is_loopback(self) -> bool {
        self.0.is_loopback()
    }
}

/// A connection, as far as its place is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which one.
    pub number: u64,
    /// Where it comes from.
    pub from: Origin,
    /// When it has asked something, or was made.
    pub heard: Mono,
    /// Whether something that it has asked was allowed.
    pub is_admitted: bool,
    /// Whether an answer to it is under way of which something was taken lately, or a stream.
    pub is_busy: bool,
}

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// In all.
    pub all: usize,
    /// Of those that were never allowed anything.
    pub not_admitted: usize,
    /// Of these, so many that do not count against an origin that is known.
    pub known: usize,
}

/// What becomes of a further connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// It has a place.
    Free,
    /// It has the place of this one.
    InsteadOf(u64),
    /// There is no place.
    Full,
}

/// How many connections of an origin were let in, and how many were not.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    admitted: usize,
    not_admitted: usize,
}

impl Places {
    /// Those of the server. Each exec and each log that is followed has one. Hundreds may come at once, and none of them is let in yet.
    pub const SERVER: Self = Self { all: 512, not_admitted: 448, known: 224 };
    /// Those of the read-only port, which nobody has to be let in at.
    pub const READ_ONLY: Self = Self { all: 64, not_admitted: 64, known: 32 };
    /// Of those of the server, so many are never taken by what lasts.
    pub const RESERVE: usize = 64;
    /// Of those of the server, so many may be taken by what lasts: sessions and logs go on for hours.
    pub const LASTING: usize = Self::SERVER.all - Self::RESERVE;
    /// Of these, so many may be of one namespace.
    pub const LASTING_OF_NAMESPACE: usize = Self::LASTING / 2;

    /// Looks for a place for a connection from somewhere.
    ///
    /// One that was never let in makes room first: one of the origin that has most of them, so that each has its share. Those that are known,
    /// which are the node itself and whoever has a connection that was let in, have room for many at once beyond that. Then one
    /// makes room that was let in and has nothing under way. Of these the one that has been silent for longest.
    #[must_use]
    pub fn enter(self, from: Origin, connections: &[Place]) -> Entry {
        let mut counts = BTreeMap::from([(from, Count { admitted: 0, not_admitted: 1 })]);
        for place in connections {
            let count = counts.entry(place.from).or_default();
            let of = if place.is_admitted { &mut count.admitted } else { &mut count.not_admitted };
            *of += 1;
        }
        let not_admitted = connections.iter().filter(|place| !place.is_admitted).count();
        if connections.len() < self.all && not_admitted < self.not_admitted {
            return Entry::Free;
        }
        let last = |place: &&Place| {
            let count = counts.get(&place.from).copied().unwrap_or_default();
            let is_known = place.from.is_loopback() || count.admitted > 0;
            let counted = count.not_admitted.saturating_sub(if is_known { self.known } else { 0 });
            (usize::MAX - counted, place.heard, place.number)
        };
        let stranger = connections.iter().filter(|place| !place.is_admitted).min_by_key(last);
        let idle = || {
            let idle = connections.iter().filter(|place| place.is_admitted && !place.is_busy);
            idle.min_by_key(|place| (place.heard, place.number))
        };
        stranger.or_else(idle).map_or(Entry::Full, |place| Entry::InsteadOf(place.number))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use super::*;

    fn origin(last: u8) -> Origin {
        Origin::of(Ipv4Addr::new(10, 0, 0, last).into())
    }

    fn here() -> Origin {
        Origin::of(Ipv4Addr::LOCALHOST.into())
    }

    /// Of what a letter stands for: `a` admitted, `b` busy.
    fn place(number: u64, from: u8, heard: u64, is: &str) -> Place {
        let (is_admitted, is_busy) = (is.contains('a'), is.contains('b'));
        let heard = Mono(Duration::from_secs(heard));
        Place { number, from: origin(from), heard, is_admitted, is_busy }
    }

    #[test]
    fn who_was_never_let_in_makes_room_first() {
        let places = Places { all: 3, not_admitted: 2, known: 0 };
        for (connections, expected) in [
            (&[][..], Entry::Free),
            (&[place(1, 1, 5, "b")], Entry::Free),
            (&[place(1, 1, 5, "b"), place(2, 1, 4, "b")], Entry::InsteadOf(2)),
            (&[place(1, 1, 5, "a"), place(2, 1, 4, "a")], Entry::Free),
            (&[place(1, 1, 1, "a"), place(2, 1, 9, "b"), place(3, 1, 2, "ab")], Entry::InsteadOf(2)),
            (&[place(1, 1, 9, "a"), place(2, 1, 8, "a"), place(3, 1, 1, "ab")], Entry::InsteadOf(2)),
            (&[place(1, 1, 1, "ab"), place(2, 1, 1, "ab"), place(3, 1, 1, "ab")], Entry::Full),
            (&[place(7, 1, 1, ""), place(6, 1, 1, "")], Entry::InsteadOf(6)),
        ] {
            assert_eq!(places.enter(origin(1), connections), expected, "{connections:?}");
        }
    }

    #[test]
    fn who_has_most_strangers_makes_room_and_who_is_known_has_more() {
        let places = Places { all: 9, not_admitted: 4, known: 2 };
        let of = |froms: [u8; 4]| {
            let mut number = 0;
            froms.map(|from| {
                number += 1;
                place(number, from, number, "")
            })
        };
        let with_known = |froms| [of(froms).as_slice(), &[place(5, 2, 0, "a")]].concat();
        for (from, connections, expected) in [
            (3, of([1, 2, 2, 2]).to_vec(), 2),
            // The newcomer counts.
            (1, of([1, 1, 2, 2]).to_vec(), 1),
            (2, of([1, 1, 2, 2]).to_vec(), 3),
            (3, of([2, 1, 1, 2]).to_vec(), 1),
            (3, with_known([2, 2, 1, 1]), 3),
            (3, with_known([2, 2, 2, 1]), 1),
            (3, with_known([2, 2, 2, 2]), 1),
        ] {
            let entry = places.enter(origin(from), &connections);
            assert_eq!(entry, Entry::InsteadOf(expected), "{from} {connections:?}");
        }
        let mut loopback = of([1, 1, 2, 2]);
        loopback[..2].iter_mut().for_each(|place| place.from = here());
        assert_eq!(places.enter(here(), &loopback), Entry::InsteadOf(3));
    }

    /// Takes places one after the other; says who is there in the end, and whose place was taken.
    fn all_enter(places: Places, newcomers: impl Iterator<Item = Place>) -> (Vec<Place>, Vec<u64>) {
        let (mut there, mut gone) = (Vec::<Place>::new(), Vec::new());
        for newcomer in newcomers {
            match places.enter(newcomer.from, &there) {
                Entry::Free => {}
                Entry::InsteadOf(other) => {
                    there.retain(|place| place.number != other);
                    gone.push(other);
                }
                Entry::Full => continue,
            }
            there.push(newcomer);
        }
        (there, gone)
    }

    #[test]
    fn two_hundred_at_once_have_places_whatever_flood_there_is() {
        let places = Places::SERVER;
        let honest = |number| place(number, 1, number, "");
        let (there, gone) = all_enter(places, (0..200).map(honest));
        assert!(there.len() == 200 && gone.is_empty());
        for flood_before in [0, 1000] {
            let flood = |number| place(1000 + number, 2, number, "");
            let before = (0..flood_before).map(flood);
            let after = (1000..5000).map(flood);
            let (there, gone) = all_enter(places, before.chain((0..200).map(honest)).chain(after));
            assert_eq!(there.iter().filter(|place| place.from == origin(1)).count(), 200);
            assert!(gone.iter().all(|number| *number >= 1000), "{flood_before}");
            assert_eq!(there.len(), places.not_admitted);
        }
    }

    #[test]
    fn a_flood_never_takes_the_place_of_who_was_let_in() {
        let places = Places { all: 8, not_admitted: 3, known: 3 };
        let flood = (1..1000).map(|number| {
            place(number, u8::try_from(number % 7).unwrap(), number, if number % 2 == 0 { "b" } else { "" })
        });
        let (there, _) = all_enter(places, std::iter::once(place(0, 1, 0, "a")).chain(flood));
        assert!(there.iter().any(|place| place.number == 0));
        assert_eq!(there.len(), 4);
    }

    #[test]
    fn whatever_lasts_there_is_a_place() {
        let lasting = |number| place(number, 1, number, "ab");
        let idle = |number| place(1000 + number, 2, number, "a");
        let stranger = |number| place(1000 + number, 2, number, "");
        let [lasting_max, reserve] =
            [Places::LASTING, Places::RESERVE].map(|count| u64::try_from(count).unwrap());
        for (idles, strangers, expected) in [
            (0, 0, Entry::Free),
            (0, reserve - 1, Entry::Free),
            (0, reserve, Entry::InsteadOf(1000)),
            (reserve, 0, Entry::InsteadOf(1000)),
            (1, reserve - 1, Entry::InsteadOf(1001)),
        ] {
            let others = (0..idles).map(idle).chain((idles..idles + strangers).map(stranger));
            let there: Vec<_> = (0..lasting_max).map(lasting).chain(others).collect();
            assert_eq!(Places::SERVER.enter(origin(3), &there), expected, "{idles} {strangers}");
        }
    }

    #[test]
    fn a_machine_is_one_origin_whatever_it_writes() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:1:ffff::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert!(of("::1").is_loopback() && of("::ffff:127.0.0.1").is_loopback());
        assert_ne!(of("::1"), of("::2"));
    }
}
