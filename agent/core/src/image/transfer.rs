//! When the transfer of an image counts as stalled: something is awaited of its registry, and nothing has moved for too long.
//!
//! What is awaited follows from what is told of the parts of an image: manifests, config, layers.
//! * While all of them are there they are being unpacked, which takes as long as the disk needs and of which containerd need not
//!   tell: nothing is stalled then.
//! * One of which all bytes came is being written through to the disk, or its registry does not end its answer. It has far longer.
//! * One that did not grow may be waiting for its turn, since containerd bounds the downloads of all its clients together
//!   (`max_concurrent_downloads`); the bytes that one has may be those of an earlier try. It counts only while nobody else gets a
//!   byte either, and the less it has, the longer: what it may wait for is to be given up first.
//!
//! Source: containerd, `transferProgressReporter` of `internal/cri/server/images/image_pull.go`, which waits for a first byte
//! for ever.

use std::{collections::BTreeMap, time::Duration};

use crate::time::Mono;

/// How many times as long the last step of a part may take, which the disk takes and not the registry: an hour of five minutes.
const AT_ITS_END: u32 = 12;

/// What is told of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// More of it is to come.
    Awaited {
        /// How much of it is there.
        bytes: u64,
    },
    /// All its bytes came; it is not known to be there.
    Fetched,
    /// All of it is there, whatever is done with it next.
    There,
}

/// How far a transfer has come, and when it last moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    parts: BTreeMap<String, Known>,
    moved: Mono,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    part: Part,
    /// Whether this transfer has fetched of it.
    has_grown: bool,
}

impl Transfer {
    /// One that was asked for just now.
    #[must_use]
    pub fn begun(now: Mono) -> Self {
        Self { parts: BTreeMap::new(), moved: now }
    }

    /// Takes what was told of the whole, which is told once: whom it asks, what it fetches. That is movement.
    pub fn went_on(&mut self, now: Mono) -> bool {
        self.moved = now;
        true
    }

    /// Takes what was told of a part; whether that is movement: the same once more is not.
    pub fn told(&mut self, name: &str, part: Part, now: Mono) -> bool {
        let before = self.parts.get(name).copied();
        let is_news = before.is_none_or(|before| before.part != part);
        if is_news {
            let has_grown = before.is_some_and(|before| matches!(before.part, Part::Awaited { bytes: 1.. }));
            self.parts.insert(name.to_owned(), Known { part, has_grown });
            self.moved = now;
        }
        is_news
    }

    /// When it last moved.
    #[must_use]
    pub fn moved(&self) -> Mono {
        self.moved
    }

    /// When it is stalled if nothing moves until then; `None` while nothing is awaited. `others_moved` is when anybody last got a
    /// byte, `patience` how long nothing may move.
    #[must_use]
    pub fn stalls_at(&self, others_moved: Option<Mono>, patience: Duration) -> Option<Mono> {
        let any = |is_so: fn(&Known) -> bool| self.parts.values().any(is_so);
        let others = self.moved.max(others_moved.unwrap_or_default());
        let (last, length) = if self.parts.is_empty()
            || any(|known| known.has_grown && matches!(known.part, Part::Awaited { .. }))
        {
            (self.moved, patience)
        } else if any(|known| matches!(known.part, Part::Awaited { bytes: 1.. })) {
            (others, patience.saturating_add(patience / 4))
        } else if any(|known| matches!(known.part, Part::Awaited { .. })) {
            (others, patience.saturating_add(patience / 2))
        } else if any(|known| known.part == Part::Fetched) {
            (self.moved, patience.saturating_mul(AT_ITS_END))
        } else {
            return None;
        };
        Some(last + length)
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
        // What was told, when anybody last got a byte, from which second on it is stalled.
        let cases: [(&str, Told, u64, Option<u64>); 19] = [
            ("no answer at all", &[], 0, Some(300)),
            ("no answer, another gets bytes", &[], 200, Some(300)),
            ("no first byte", &[(10, "layer", NONE)], 10, Some(460)),
            ("no first byte, another gets bytes", &[(10, "layer", NONE)], 250, Some(700)),
            ("bytes of an earlier try", &[(10, "layer", NONE), (20, "layer", SOME)], 250, Some(625)),
            ("the middle of a layer", &[(20, "layer", SOME), (30, "layer", MORE)], 30, Some(330)),
            (
                "the middle of a layer, another gets bytes",
                &[(20, "layer", SOME), (30, "layer", MORE)],
                250,
                Some(330),
            ),
            ("the same bytes again", &[(20, "a", SOME), (30, "a", MORE), (200, "a", MORE)], 20, Some(330)),
            ("fewer, from the start", &[(20, "layer", MORE), (200, "layer", SOME)], 200, Some(500)),
            (
                "one layer moves, one does not",
                &[(20, "a", SOME), (30, "b", SOME), (200, "b", MORE)],
                0,
                Some(500),
            ),
            (
                "one that moved and one that waits",
                &[(20, "a", NONE), (30, "b", SOME), (40, "b", MORE)],
                250,
                Some(340),
            ),
            ("one layer is there, one waits", &[(20, "a", NONE), (30, "b", Part::There)], 250, Some(700)),
            (
                "a burst and nothing more, beside one that waits",
                &[(20, "a", SOME), (30, "b", NONE)],
                30,
                Some(405),
            ),
            ("all bytes and no end", &[(20, "a", SOME), (30, "a", Part::Fetched)], 250, Some(3630)),
            ("all bytes, one waits", &[(20, "a", Part::Fetched), (30, "b", NONE)], 30, Some(480)),
            (
                "all bytes, one moves",
                &[(20, "a", Part::Fetched), (30, "b", SOME), (40, "b", MORE)],
                40,
                Some(340),
            ),
            ("all is there and being unpacked", &[(20, "a", SOME), (30, "a", Part::There)], 30, None),
            ("the next part is known", &[(20, "a", Part::There), (30, "b", NONE)], 30, Some(480)),
            ("there and gone again", &[(20, "a", Part::There), (30, "a", NONE)], 30, Some(480)),
        ];
        for (what, told, others_moved, stalls) in cases {
            let found = transfer(told).stalls_at(Some(at(others_moved)), PATIENCE);
            assert_eq!(found, stalls.map(at), "{what}");
        }
    }

    #[test]
    fn a_word_about_the_whole_is_movement() {
        let mut transfer = Transfer::begun(at(0));
        assert!(transfer.went_on(at(100)));
        assert_eq!(transfer.stalls_at(None, PATIENCE), Some(at(400)));
    }
}
