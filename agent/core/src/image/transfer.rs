//! When the transfer of an image counts as stalled: something is awaited of its registry, and nothing has moved for too long.
//!
//! What is awaited follows from what is told of the parts of an image: manifests, config, layers. While all of them are there
//! they are being unpacked, which takes as long as the disk needs and of which containerd need not tell: nothing is stalled
//! then. A part of which there is no byte may be waiting for its turn, since containerd bounds the downloads of all pulls
//! together (`max_concurrent_downloads`): it counts only while no other pull gets a byte either.
//!
//! Source: containerd, `transferProgressReporter` of `internal/cri/server/images/image_pull.go`, which waits for a first byte
//! for ever.

use std::{collections::BTreeMap, time::Duration};

use crate::time::Mono;

/// What is told of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// More of it is to come.
    Awaited {
        /// How much of it is there.
        bytes: u64,
    },
    /// All of it is there, whatever is done with it next.
    There,
}

/// How far a transfer has come, and when it last moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    parts: BTreeMap<String, Part>,
    moved: Mono,
    fetched: Option<Mono>,
}

impl Transfer {
    /// One that was asked for just now.
    #[must_use]
    pub fn begun(now: Mono) -> Self {
        Self { parts: BTreeMap::new(), moved: now, fetched: None }
    }

    /// Takes what was told of the whole, which is told once: whom it asks, what it fetches. That is movement.
    pub fn went_on(&mut self, now: Mono) -> bool {
        self.moved = now;
        true
    }

    /// Takes what was told of a part; whether that is movement: the same once more is not.
    pub fn told(&mut self, name: &str, part: Part, now: Mono) -> bool {
        let is_news = self.parts.get(name) != Some(&part);
        if is_news {
            self.parts.insert(name.to_owned(), part);
            self.moved = now;
            if part != (Part::Awaited { bytes: 0 }) {
                self.fetched = Some(now);
            }
        }
        is_news
    }

    /// When it last got a byte.
    #[must_use]
    pub fn fetched(&self) -> Option<Mono> {
        self.fetched
    }

    /// When it is stalled if nothing moves until then; `None` while nothing is awaited. `any_fetched` is when any pull of the
    /// node last got a byte, `patience` how long nothing may move.
    #[must_use]
    pub fn stalls_at(&self, any_fetched: Option<Mono>, patience: Duration) -> Option<Mono> {
        let is_under_way = |part: &Part| matches!(part, Part::Awaited { bytes: 1.. });
        let is_there = |part: &Part| *part == Part::There;
        let last = if self.parts.values().any(is_under_way) {
            self.moved
        } else if self.parts.is_empty() || !self.parts.values().all(is_there) {
            self.moved.max(any_fetched.unwrap_or_default())
        } else {
            return None;
        };
        Some(last + patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);
    const NONE: Part = Part::Awaited { bytes: 0 };
    const SOME: Part = Part::Awaited { bytes: 1 };
    const MORE: Part = Part::Awaited { bytes: 2 };

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    /// At which second what was told of which part.
    type Told = &'static [(u64, &'static str, Part)];

    /// A transfer that began at 0.
    fn transfer(told: Told) -> Transfer {
        let mut transfer = Transfer::begun(at(0));
        for (second, name, part) in told {
            let _is_news = transfer.told(name, *part, at(*second));
        }
        transfer
    }

    #[test]
    fn a_transfer_is_stalled_when_what_is_awaited_has_not_moved() {
        // What was told, when any pull last got a byte, from which second on it is stalled.
        let cases: [(&str, Told, u64, Option<u64>); 13] = [
            ("no answer at all", &[], 0, Some(300)),
            ("no answer, another gets bytes", &[], 200, Some(500)),
            ("no first byte", &[(10, "layer", NONE)], 10, Some(310)),
            ("no first byte, another gets bytes", &[(10, "layer", NONE)], 250, Some(550)),
            ("the middle of a layer", &[(10, "layer", NONE), (20, "layer", SOME)], 20, Some(320)),
            ("the middle of a layer, another gets bytes", &[(20, "layer", SOME)], 250, Some(320)),
            ("more bytes", &[(20, "layer", SOME), (200, "layer", MORE)], 200, Some(500)),
            ("the same bytes again", &[(20, "layer", SOME), (200, "layer", SOME)], 20, Some(320)),
            ("fewer, from the start", &[(20, "layer", MORE), (200, "layer", SOME)], 200, Some(500)),
            ("one layer moves, one does not", &[(20, "a", SOME), (200, "b", SOME)], 200, Some(500)),
            ("one layer is there, one is not", &[(20, "a", SOME), (30, "b", Part::There)], 250, Some(330)),
            ("all is there and being unpacked", &[(20, "a", SOME), (30, "a", Part::There)], 30, None),
            ("the next part is known", &[(20, "a", Part::There), (30, "b", NONE)], 30, Some(330)),
        ];
        for (what, told, any_fetched, stalls) in cases {
            let found = transfer(told).stalls_at(Some(at(any_fetched)), PATIENCE);
            assert_eq!(found, stalls.map(at), "{what}");
        }
    }

    #[test]
    fn a_word_about_the_whole_is_movement_of_this_transfer_alone() {
        let mut transfer = Transfer::begun(at(0));
        assert!(transfer.went_on(at(100)));
        assert_eq!(transfer.stalls_at(None, PATIENCE), Some(at(400)));
        assert_eq!(transfer.fetched(), None);
    }

    #[test]
    fn what_others_wait_for_are_bytes() {
        let cases: [(&str, Told, Option<u64>); 4] = [
            ("a part that is known", &[(10, "a", NONE)], None),
            ("a byte", &[(10, "a", NONE), (20, "a", SOME)], Some(20)),
            ("a part that was there", &[(10, "a", Part::There)], Some(10)),
            ("another that is known", &[(10, "a", SOME), (20, "b", NONE)], Some(10)),
        ];
        for (what, told, fetched) in cases {
            assert_eq!(transfer(told).fetched(), fetched.map(at), "{what}");
        }
    }
}
