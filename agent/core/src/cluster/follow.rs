//! Where a list of objects and the watch that goes on from it stand: what is asked next, what of the answers is believed, and how long
//! to wait after a failure.
//!
//! Versions of one kind of object are numbers that grow (KEP-5504), so what is older than what was seen is known to be: it comes from a
//! server that is behind. Of the first list there is nothing to compare with: it is asked for as of now, which the server answers as etcd
//! has it and not from a cache that may be behind, as client-go asks for its first stream (`rewatchResourceVersion`; its first list in
//! pages, `relistResourceVersion`, takes whatever version the cache has, ours does not). Sources: `NewReflector` of `k8s.io/client-go/tools/cache/reflector.go`,
//! `k8s.io/apimachinery/pkg/util/resourceversion`.

use std::time::Duration;

use crate::time::{Mono, doubled};

/// Pauses after failures: the first one, and the longest. Each is as much as doubled by chance.
const PAUSE_MIN: Duration = Duration::from_millis(800);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// After so long without a failure the pauses begin anew (`defaultBackoffReset`).
const RESET_AFTER: Duration = Duration::from_secs(120);
/// A watch that told nothing is worth something when it lasted so long.
const WORTH: Duration = Duration::from_secs(10);
/// A watch that told nothing and ended within this has failed (`VeryShortWatchError`).
const VERY_SHORT: Duration = Duration::from_secs(1);

/// What is asked next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// All objects, as of this version or a later one; of now, when it is empty.
    List(String),
    /// What has changed since this version.
    Watch(String),
}

/// Why the server does not begin at the version that was seen last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// It keeps it no more.
    TooOld,
    /// It has not got so far: it is behind, or what it has was restored from an earlier copy.
    TooNew,
}

/// An answer that is older than what was seen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the list is as of version {listed}, and version {seen} was seen before: the server is behind, it is asked again"
)]
pub struct Older {
    /// Of the list.
    pub listed: String,
    /// What was seen.
    pub seen: String,
}

/// Where they stand.
#[derive(Debug, Clone, Default)]
pub struct Follow {
    /// Version of what was seen last; empty before anything was.
    seen: String,
    is_listed: bool,
    /// Why the next list cannot be asked for as of what was seen.
    unavailable: Option<Unavailable>,
    failures: u32,
    failed_at: Mono,
    /// Whether the server answered the last time that something failed.
    was_answered: bool,
}

/// What came of something that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The server did not answer.
    Unanswered,
    /// It answered, and wants to be left alone for so long at least.
    Answered(Duration),
}

impl Follow {
    /// What is asked next.
    #[must_use]
    pub fn next(&self) -> Ask {
        match (self.is_listed, self.unavailable) {
            (true, _) => Ask::Watch(self.seen.clone()),
            (false, None) => Ask::List(self.seen.clone()),
            // Of now, as etcd has it and no cache.
            (false, Some(_)) => Ask::List(String::new()),
        }
    }

    /// A list came, as of this version.
    ///
    /// # Errors
    /// It is older than what was seen: nothing in it is to be believed. Only a server that has said that it never got so far may be back
    /// in time.
    pub fn listed(&mut self, version: &str) -> Result<(), Older> {
        if is_older(version, &self.seen) && self.unavailable != Some(Unavailable::TooNew) {
            return Err(Older { listed: version.to_owned(), seen: self.seen.clone() });
        }
        version.clone_into(&mut self.seen);
        (self.is_listed, self.unavailable) = (true, None);
        Ok(())
    }

    /// A watch told something as of this version; whether it is to be believed.
    pub fn told(&mut self, version: &str) -> bool {
        self.failures = 0;
        if is_older(version, &self.seen) {
            return false;
        }
        if !version.is_empty() {
            version.clone_into(&mut self.seen);
        }
        true
    }

    /// The server does not begin at what was seen: all is listed.
    pub fn is_unavailable(&mut self, why: Unavailable) {
        (self.is_listed, self.unavailable) = (false, Some(why));
    }

    /// What a watch told was no event: something may have been missed, so all is listed.
    pub fn is_broken(&mut self) {
        self.is_listed = false;
    }

    /// A watch has ended without a failure, after so long; whether it is followed by another one at once.
    pub fn ended(&mut self, told_something: bool, lasted: Duration) -> bool {
        if lasted >= WORTH {
            self.failures = 0;
        }
        told_something || lasted >= VERY_SHORT
    }

    /// How long to wait before anything is asked again. A server that answers is back: how long it was away counts no more. `chance` is
    /// within 0 and 1.
    pub fn failed(&mut self, failure: Failure, now: Mono, chance: f64) -> Duration {
        let (asked, is_answered) = match failure {
            Failure::Unanswered => (Duration::ZERO, false),
            Failure::Answered(asked) => (asked, true),
        };
        let is_back = is_answered && !std::mem::replace(&mut self.was_answered, is_answered);
        if is_back || now.since(self.failed_at) >= RESET_AFTER {
            self.failures = 0;
        }
        let pause = doubled(PAUSE_MIN, self.failures, PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        self.failed_at = now;
        pause.mul_f64(1.0 + chance.clamp(0.0, 1.0)).max(asked)
    }
}

/// Whether a version lies before another one. What is no number is not compared.
#[must_use]
pub fn is_older(version: &str, than: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    matches!((number(version), number(than)), (Some(version), Some(than)) if version < than)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(from: &str) -> Ask {
        Ask::List(from.to_owned())
    }

    fn watch(from: &str) -> Ask {
        Ask::Watch(from.to_owned())
    }

    #[test]
    fn a_watch_goes_on_from_what_was_seen_last() {
        let mut follow = Follow::default();
        assert_eq!(follow.next(), list(""), "of now, not of any version");
        follow.listed("7").unwrap();
        assert_eq!(follow.next(), watch("7"));
        for (version, is_believed, then) in
            [("8", true, "8"), ("12", true, "12"), ("12", true, "12"), ("11", false, "12"), ("", true, "12")]
        {
            assert_eq!(follow.told(version), is_believed, "{version}");
            assert_eq!(follow.next(), watch(then));
        }
    }

    #[test]
    fn a_list_that_is_older_than_what_was_seen_is_not_believed() {
        let mut follow = Follow::default();
        follow.listed("100").unwrap();
        for (why, from) in [(None, "100"), (Some(Unavailable::TooOld), "")] {
            match why {
                Some(why) => follow.is_unavailable(why),
                None => follow.is_broken(),
            }
            assert_eq!(follow.next(), list(from));
            let older = follow.listed("99").unwrap_err();
            assert_eq!((older.listed.as_str(), older.seen.as_str()), ("99", "100"));
            assert_eq!(follow.next(), list(from), "{why:?}: it is asked again");
            follow.listed("100").unwrap();
            assert_eq!(follow.next(), watch("100"));
        }
    }

    #[test]
    fn a_server_that_says_that_it_is_back_in_time_is_believed() {
        let mut follow = Follow::default();
        follow.listed("100").unwrap();
        follow.is_unavailable(Unavailable::TooNew);
        assert_eq!(follow.next(), list(""));
        follow.listed("20").unwrap();
        assert_eq!(follow.next(), watch("20"));
        follow.is_broken();
        follow.listed("19").unwrap_err();
    }

    #[test]
    fn versions_are_compared_as_numbers_where_they_are() {
        for (version, than, older) in [
            ("9", "10", true),
            ("10", "10", false),
            ("11", "10", false),
            ("", "10", false),
            ("9", "", false),
            ("a", "b", false),
            ("18446744073709551614", "18446744073709551615", true),
            ("184467440737095516150", "1", false),
            ("-1", "1", false),
        ] {
            assert_eq!(is_older(version, than), older, "{version} {than}");
        }
    }

    #[test]
    fn pauses_grow_are_jittered_and_begin_anew() {
        let at = |seconds| Mono(Duration::from_secs(seconds));
        let mut follow = Follow::default();
        let mut pause = |asked, now, chance| {
            follow.failed(Failure::Answered(Duration::from_millis(asked)), at(now), chance).as_millis()
        };
        let pauses: Vec<u128> = (0..8).map(|second| pause(0, 1000 + second, 0.0)).collect();
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(pause(0, 1127, 1.0), 1600, "two minutes without a failure");
        assert_eq!(pause(0, 1128, 0.5), 2400);
        assert_eq!(pause(10_000, 1129, 0.0), 10_000, "the server asks for more");
        assert_eq!(pause(10_000, 1130, 1.0), 12_800);
        assert!(follow.told("1"));
        assert_eq!(
            follow.failed(Failure::Unanswered, at(1131), 0.0).as_millis(),
            800,
            "it has told something"
        );
    }

    #[test]
    fn a_server_that_was_away_is_asked_soon_once_it_answers() {
        let mut follow = Follow::default();
        let mut pause = |failure| follow.failed(failure, Mono::default(), 0.0).as_millis();
        let away = [(); 7].map(|()| pause(Failure::Unanswered));
        assert_eq!(away, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        // It does not keep what was seen, say, however often.
        let refused = [(); 3].map(|()| pause(Failure::Answered(Duration::ZERO)));
        assert_eq!(refused, [800, 1600, 3200]);
        assert_eq!(pause(Failure::Unanswered), 6400, "away again");
    }

    #[test]
    fn a_watch_that_ends_at_once_and_has_told_nothing_has_failed() {
        for (told, millis, goes_on) in [
            (false, 0, false),
            (false, 999, false),
            (false, 1000, true),
            (true, 0, true),
            (true, 290_000, true),
        ] {
            assert_eq!(
                Follow::default().ended(told, Duration::from_millis(millis)),
                goes_on,
                "{told} {millis}"
            );
        }
        let mut follow = Follow::default();
        let mut pause = |lasted: u64| {
            follow.ended(false, Duration::from_secs(lasted));
            follow.failed(Failure::Unanswered, Mono::default(), 0.0).as_millis()
        };
        assert_eq!([pause(0), pause(9), pause(10)], [800, 1600, 800]);
    }
}
