//! Which connection makes room for another, so that a flood of those who are not let in keeps nobody out who is.

use crate::time::Mono;

/// A connection, as far as its place is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which one.
    pub number: u64,
    /// When it has asked something, or was made.
    pub heard: Mono,
    /// Whether something that it has asked was allowed.
    pub is_admitted: bool,
    /// Whether an answer to it is under way, or a stream.
    pub is_busy: bool,
}

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// In all.
    pub all: usize,
    /// Of those that were never allowed anything.
    pub not_admitted: usize,
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

impl Places {
    /// Looks for a place. Who was never let in, and has been silent for longest, goes first; then who was, and has nothing under way.
    #[must_use]
    pub fn enter(self, connections: &[Place]) -> Entry {
        let silent = |of: fn(&Place) -> bool| {
            connections.iter().copied().filter(of).min_by_key(|place| (place.heard, place.number))
        };
        let not_admitted = connections.iter().filter(|place| !place.is_admitted).count();
        if connections.len() < self.all && not_admitted < self.not_admitted {
            return Entry::Free;
        }
        silent(|place| !place.is_admitted)
            .or_else(|| silent(|place| !place.is_busy))
            .map_or(Entry::Full, |place| Entry::InsteadOf(place.number))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Of what a letter stands for: `a` admitted, `b` busy.
    fn place(number: u64, heard: u64, is: &str) -> Place {
        let (is_admitted, is_busy) = (is.contains('a'), is.contains('b'));
        Place { number, heard: Mono(Duration::from_secs(heard)), is_admitted, is_busy }
    }

    #[test]
    fn who_was_never_let_in_makes_room_first() {
        let places = Places { all: 3, not_admitted: 2 };
        for (connections, expected) in [
            (&[][..], Entry::Free),
            (&[place(1, 5, "b")], Entry::Free),
            (&[place(1, 5, "b"), place(2, 4, "b")], Entry::InsteadOf(2)),
            (&[place(1, 5, "a"), place(2, 4, "a")], Entry::Free),
            (&[place(1, 1, "a"), place(2, 9, "b"), place(3, 2, "ab")], Entry::InsteadOf(2)),
            (&[place(1, 9, "a"), place(2, 8, "a"), place(3, 1, "ab")], Entry::InsteadOf(2)),
            (&[place(1, 1, "ab"), place(2, 1, "ab"), place(3, 1, "ab")], Entry::Full),
            (&[place(7, 1, ""), place(6, 1, "")], Entry::InsteadOf(6)),
        ] {
            assert_eq!(places.enter(connections), expected, "{connections:?}");
        }
    }

    #[test]
    fn a_flood_never_takes_the_place_of_who_was_let_in() {
        let places = Places { all: 8, not_admitted: 3 };
        let mut there = vec![place(0, 0, "a")];
        for number in 1..1000 {
            match places.enter(&there) {
                Entry::Free => {}
                Entry::InsteadOf(other) => there.retain(|place| place.number != other),
                Entry::Full => continue,
            }
            there.push(place(number, number, if number % 2 == 0 { "b" } else { "" }));
        }
        assert!(there.iter().any(|place| place.number == 0));
        assert_eq!(there.len(), 4);
    }
}
