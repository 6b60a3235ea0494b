//! Events for the API server: which of them are sent, and which are counted.
//!
//! What happens again is counted in the event that tells of it; what differs in its text alone is one event when there is much of it; and
//! an object of which there is too much to tell is told of less often. Source:
//! `staging/src/k8s.io/client-go/tools/record/events_cache.go`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::{
    status::Severity,
    time::{Mono, Now},
};

/// Longest name of an object in the API (`DNS1123SubdomainMaxLength`).
const NAME_BYTES_MAX: usize = 253;
/// Entries of each cache (`maxLruCacheEntries`).
const KEPT: usize = 4096;
/// Texts for one reason that are told each by itself (`defaultAggregateMaxEvents`).
const TEXTS_MAX: usize = 10;
/// How long after the last of them they count together (`defaultAggregateIntervalInSeconds`).
const TOGETHER: Duration = Duration::from_secs(600);
/// Events about one object at once (`defaultSpamBurst`), and how long one more takes (`defaultSpamQPS`).
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// Such as `Pod`; of version `v1`.
    pub kind: &'static str,
    /// Empty for a node.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; of a pod that the API server did not give, its own.
    pub uid: String,
    /// `resourceVersion` of the object, where it is known. What is told of several versions counts together.
    pub version: Option<String>,
    /// Such as `spec.containers{web}`; empty when all of it is meant.
    pub field_path: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened {
    /// When: however long it waits until it is sent.
    pub at: Timestamp,
    /// To what.
    pub object: Object,
    /// Whether somebody should look.
    pub severity: Severity,
    /// Reason, such as `Pulled`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// Annotations of the event.
    pub annotations: BTreeMap<String, String>,
}

/// One event of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name, which no other has.
    pub name: String,
    /// What it tells.
    pub happened: Happened,
    /// How often.
    pub count: u32,
    /// First time.
    pub first: Timestamp,
    /// Last time.
    pub last: Timestamp,
}

/// What is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sending {
    /// A new event.
    Create(Event),
    /// An event that was sent: its count, text and last time are other ones. Made anew when it is gone.
    Count(Event),
}

/// The machine.
#[derive(Debug, Default)]
pub struct Correlator {
    texts: Kept<Texts>,
    sent: Kept<Sent>,
    spam: Kept<Tokens>,
}

/// Stands in the caches for texts, which may be long.
type Key = [u8; 32];

#[derive(Debug, Clone, Default)]
struct Texts {
    messages: BTreeSet<Key>,
    last: Mono,
}

#[derive(Debug, Clone)]
struct Sent {
    name: String,
    count: u32,
    first: Timestamp,
}

/// When the bucket will be full again.
#[derive(Debug, Clone, Copy)]
struct Tokens {
    full_at: Mono,
}

impl Correlator {
    /// What is to be sent now of something that happened; nothing when there is too much.
    pub fn take(&mut self, happened: Happened, now: Now) -> Option<Sending> {
        let spam_key = key(&happened, &[]);
        let (happened, key) = self.aggregate(happened, now);
        let sending = self.observe(happened, key);
        self.may_send(spam_key, now.mono).then_some(sending)
    }

    /// Many texts for one reason become one event, of the time at which they do (`EventAggregate`).
    fn aggregate(&mut self, mut happened: Happened, now: Now) -> (Happened, Key) {
        let message: Key = Sha256::digest(&happened.message).into();
        let (path, reason) = (happened.object.field_path.as_bytes(), happened.reason.as_bytes());
        let whole = key(&happened, &[path, reason, &message]);
        let alike = key(&happened, &[b"\x01", reason]);
        let mut texts = self.texts.get(&alike).cloned().unwrap_or_default();
        if now.mono.since(texts.last) > TOGETHER {
            texts.messages.clear();
        }
        texts.messages.insert(message);
        texts.last = now.mono;
        let is_much = texts.messages.len() >= TEXTS_MAX;
        if is_much {
            texts.messages.pop_first();
        }
        self.texts.put(alike, texts);
        if !is_much {
            return (happened, whole);
        }
        happened.at = now.wall;
        happened.message = format!("(combined from similar events): {}", happened.message);
        (happened, alike)
    }

    fn observe(&mut self, happened: Happened, key: Key) -> Sending {
        let at = happened.at;
        let known = self.sent.get(&key).cloned();
        let is_known = known.is_some();
        let Sent { name, count, first } =
            known.unwrap_or_else(|| Sent { name: name(&happened.object, &key, at), count: 0, first: at });
        let count = count.saturating_add(1);
        self.sent.put(key, Sent { name: name.clone(), count, first });
        let event = Event { name, happened, count, first, last: at };
        if is_known { Sending::Count(event) } else { Sending::Create(event) }
    }

    fn may_send(&mut self, key: Key, now: Mono) -> bool {
        let full_at = self.spam.get(&key).map_or(now, |tokens| tokens.full_at.max(now));
        let after = full_at + REFILL;
        let may = after.since(now) <= REFILL * BURST;
        self.spam.put(key, Tokens { full_at: if may { after } else { full_at } });
        may
    }
}

/// The name of an event: that of its object with the time, or where that is too long, a digest of what it tells and the time
/// (`GenerateEventName` of `staging/src/k8s.io/client-go/tools/record/util/util.go`, which takes a UUID).
fn name(object: &Object, key: &Key, wall: Timestamp) -> String {
    let name = format!("{}.{:x}", object.name, wall.as_nanosecond());
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(wall.as_nanosecond().to_be_bytes());
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// What events have in common, with `more` of it.
fn key(happened: &Happened, more: &[&[u8]]) -> Key {
    let Object { kind, namespace, name, uid, version: _, field_path: _ } = &happened.object;
    let severity = match happened.severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    let mut hash = Sha256::new();
    for part in [*kind, namespace, name, uid, severity].map(str::as_bytes).iter().chain(more) {
        hash.update(part);
        hash.update([0]);
    }
    hash.finalize().into()
}

/// The entries that were used last.
#[derive(Debug)]
struct Kept<V> {
    entries: BTreeMap<Key, (u64, V)>,
    used: BTreeMap<u64, Key>,
    next: u64,
}

impl<V> Default for Kept<V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), used: BTreeMap::new(), next: 0 }
    }
}

impl<V> Kept<V> {
    fn get(&self, key: &Key) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    fn put(&mut self, key: Key, value: V) {
        self.next += 1;
        self.used.insert(self.next, key);
        if let Some((before, _)) = self.entries.insert(key, (self.next, value)) {
            self.used.remove(&before);
        }
        if self.entries.len() > KEPT
            && let Some((_, oldest)) = self.used.pop_first()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::short::EVENT_BYTES_MAX;

    const WALL: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(seconds: u64) -> Now {
        Now { mono: Mono(Duration::from_secs(1000 + seconds)), wall: WALL + Duration::from_secs(seconds) }
    }

    fn happened(pod: &str, reason: &str, message: &str) -> Happened {
        let object = Object {
            kind: "Pod",
            namespace: "shop".into(),
            name: pod.into(),
            uid: "1-a".into(),
            version: Some("7".into()),
            field_path: "spec.containers{web}".into(),
        };
        let severity = Severity::Normal;
        let (reason, message) = (reason.into(), message.into());
        Happened { at: WALL, object, severity, reason, message, annotations: BTreeMap::new() }
    }

    fn text(sending: Option<Sending>) -> String {
        match sending {
            None => "nothing".into(),
            Some(Sending::Create(event)) => format!("new {} x{}", event.happened.message, event.count),
            Some(Sending::Count(event)) => format!("{} x{}", event.happened.message, event.count),
        }
    }

    #[test]
    fn what_happens_again_is_counted() {
        let mut correlator = Correlator::default();
        let first = correlator.take(happened("web", "Pulled", "a"), at(0)).unwrap();
        let Sending::Create(first) = first else { panic!("{first:?}") };
        let later = Happened { at: at(9).wall, ..happened("web", "Pulled", "a") };
        let again = correlator.take(later.clone(), at(9)).unwrap();
        let expected = Event { count: 2, last: later.at, happened: later.clone(), ..first };
        assert_eq!(again, Sending::Count(expected.clone()));
        let mut of_another_version = later;
        of_another_version.object.version = None;
        let again = correlator.take(of_another_version.clone(), at(9)).unwrap();
        assert_eq!(again, Sending::Count(Event { count: 3, happened: of_another_version, ..expected }));
        for other in
            [happened("web", "Pulled", "b"), happened("web", "Started", "a"), happened("db", "Pulled", "a")]
        {
            assert!(matches!(correlator.take(other, at(9)), Some(Sending::Create(_))));
        }
    }

    /// As where the API server was away.
    #[test]
    fn an_event_that_waited_bears_the_time_when_it_happened() {
        let mut correlator = Correlator::default();
        let mut take = |happened: Happened, seconds| match correlator.take(happened, at(seconds)) {
            Some(Sending::Create(event) | Sending::Count(event)) => event,
            None => panic!("there is too much"),
        };
        let seconds = |event: &Event| [event.first, event.last].map(|time| time.as_second());
        let happened_at = |second: u64, message: &str| Happened {
            at: at(second).wall,
            ..happened("web", "Failed", message)
        };
        let first = take(happened_at(1, "a"), 61);
        assert_eq!((first.name.as_str(), seconds(&first)), ("web.3b9aca00", [1, 1]));
        let again = take(happened_at(5, "a"), 62);
        assert_eq!((again.name.as_str(), seconds(&again)), ("web.3b9aca00", [1, 5]));
        for number in 0..8 {
            take(happened_at(6, &format!("m{number}")), 63);
        }
        let combined = take(happened_at(7, "last"), 64);
        assert_eq!((combined.count, seconds(&combined)), (1, [64, 64]), "several are one event from then on");
    }

    #[test]
    fn names_are_no_longer_than_the_api_takes_and_each_is_another_one() {
        let nanosecond = |nanosecond| Timestamp::from_nanosecond(nanosecond).unwrap();
        let now = nanosecond(0x18a1_b2c3_d4e5_f607);
        let name = |pod: &str, reason: &str, at_wall| {
            let happened = Happened { at: at_wall, ..happened(pod, reason, "a") };
            let sending = Correlator::default().take(happened, at(0));
            let Some(Sending::Create(event)) = sending else { panic!("{sending:?}") };
            event.name
        };
        assert_eq!(name("web", "Pulled", now), "web.18a1b2c3d4e5f607");
        let longest = "p".repeat(NAME_BYTES_MAX - 17);
        assert_eq!(name(&longest, "Pulled", now), format!("{longest}.18a1b2c3d4e5f607"));
        let (long, other) = ("p".repeat(NAME_BYTES_MAX), "q".repeat(NAME_BYTES_MAX));
        let later = nanosecond(0x18a1_b2c3_d4e5_f608);
        let names = [
            name(&format!("{longest}p"), "Pulled", now),
            name(&long, "Pulled", now),
            name(&long, "Pulled", later),
            name(&long, "Started", now),
            name(&other, "Pulled", now),
        ];
        for name in &names {
            assert!(
                name.len() == 32 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')),
                "{name}"
            );
        }
        assert_eq!(BTreeSet::from(names.clone()).len(), names.len(), "{names:?}");
    }

    #[test]
    fn many_texts_for_one_reason_become_one_event() {
        let mut correlator = Correlator::default();
        let mut take = |message: String, seconds| {
            text(correlator.take(happened("web", "Failed", &message), at(seconds)))
        };
        for number in 0..9 {
            assert_eq!(take(format!("m{number}"), 0), format!("new m{number} x1"));
        }
        assert_eq!(take("m9".into(), 0), "new (combined from similar events): m9 x1");
        assert_eq!(take("m10".into(), 600), "(combined from similar events): m10 x2");
        assert_eq!(take("m11".into(), 1201), "new m11 x1", "the interval is over");
    }

    #[test]
    fn an_object_of_which_there_is_too_much_to_tell_is_told_of_less_often() {
        let mut correlator = Correlator::default();
        let mut take = |pod: &str, seconds| correlator.take(happened(pod, "BackOff", "x"), at(seconds));
        for _ in 0..25 {
            assert!(take("web", 0).is_some());
        }
        assert!(take("web", 0).is_none() && take("web", 299).is_none());
        assert!(take("db", 0).is_some(), "of another pod is told");
        let Some(Sending::Count(event)) = take("web", 300) else { panic!() };
        assert_eq!(event.count, 28, "what is not told is counted");
        assert!(take("web", 300).is_none());
    }

    #[test]
    fn caches_keep_no_texts() {
        let mut correlator = Correlator::default();
        for number in 0..5000 {
            let message = format!("{number}{}", "x".repeat(EVENT_BYTES_MAX));
            correlator.take(happened(&format!("p{number}"), "Failed", &message), at(0));
        }
        let told = format!("{correlator:?}").len();
        assert!(told < 8 << 20, "{told} bytes for 80 MiB of texts");
    }

    #[test]
    fn caches_are_bounded() {
        let mut correlator = Correlator::default();
        for number in 0..2 * KEPT {
            correlator.take(happened(&format!("p{number}"), "Pulled", "a"), at(0));
        }
        for kept in [
            correlator.texts.entries.len(),
            correlator.texts.used.len(),
            correlator.sent.entries.len(),
            correlator.spam.entries.len(),
        ] {
            assert_eq!(kept, KEPT);
        }
        let last = happened(&format!("p{}", 2 * KEPT - 1), "Pulled", "a");
        assert_eq!(text(correlator.take(last, at(0))), "a x2");
        assert_eq!(text(correlator.take(happened("p0", "Pulled", "a"), at(0))), "new a x1");
    }
}
