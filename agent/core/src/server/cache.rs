//! Answers that are kept for a while.

use std::{collections::BTreeMap, time::Duration};

use crate::time::Mono;

/// So many answers at most: of those that are kept, the one that was used longest ago goes first.
#[derive(Debug, Clone)]
pub struct Cache<K, V> {
    most: usize,
    entries: BTreeMap<K, Entry<V>>,
    /// Keys by when they were used.
    used: BTreeMap<u64, K>,
    uses: u64,
}

#[derive(Debug, Clone)]
struct Entry<V> {
    value: V,
    until: Mono,
    used: u64,
}

impl<K: Ord + Clone, V: Clone> Cache<K, V> {
    /// An empty one.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, entries: BTreeMap::new(), used: BTreeMap::new(), uses: 0 }
    }

    /// What is kept and still holds.
    pub fn get(&mut self, key: &K, now: Mono) -> Option<V> {
        let entry = self.entries.get(key)?;
        if entry.until <= now {
            let used = entry.used;
            self.entries.remove(key);
            self.used.remove(&used);
            return None;
        }
        let (value, before, uses) = (entry.value.clone(), entry.used, self.next_use());
        if let Some(key) = self.used.remove(&before) {
            self.used.insert(uses, key);
        }
        if let Some(entry) = self.entries.get_mut(key) {
            entry.used = uses;
        }
        Some(value)
    }

    /// Keeps an answer from now on for a time; one of no time is not kept.
    pub fn keep(&mut self, key: K, value: V, time: Duration, now: Mono) {
        self.remove(&key);
        if time.is_zero() || self.most == 0 {
            return;
        }
        while self.entries.len() >= self.most {
            let Some((_, oldest)) = self.used.pop_first() else { break };
            self.entries.remove(&oldest);
        }
        let used = self.next_use();
        self.used.insert(used, key.clone());
        self.entries.insert(key, Entry { value, until: now + time, used });
    }

    fn remove(&mut self, key: &K) {
        if let Some(before) = self.entries.remove(key) {
            self.used.remove(&before.used);
        }
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}

/// Answers that let somebody in, and answers that do not: each with a bound of their own, so that no flood of those who are refused
/// takes the place of those who are not.
#[derive(Debug, Clone)]
pub struct Kept<K, V> {
    good: Cache<K, V>,
    bad: Cache<K, V>,
}

impl<K: Ord + Clone, V: Clone> Kept<K, V> {
    /// Nothing yet, and so many of each at most.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { good: Cache::new(most), bad: Cache::new(most) }
    }

    /// What is kept and still holds.
    pub fn get(&mut self, key: &K, now: Mono) -> Option<V> {
        self.good.get(key, now).or_else(|| self.bad.get(key, now))
    }

    /// Keeps an answer that lets somebody in, from now on for a time.
    pub fn keep_good(&mut self, key: K, value: V, time: Duration, now: Mono) {
        self.bad.remove(&key);
        self.good.keep(key, value, time, now);
    }

    /// Keeps one that does not.
    pub fn keep_bad(&mut self, key: K, value: V, time: Duration, now: Mono) {
        self.good.remove(&key);
        self.bad.keep(key, value, time, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    #[test]
    fn an_answer_holds_for_its_time_and_no_longer() {
        let mut cache = Cache::new(4);
        cache.keep("a", 1, Duration::from_secs(10), at(100));
        for (time, expected) in [(100, Some(1)), (109, Some(1)), (110, None), (105, None)] {
            assert_eq!(cache.get(&"a", at(time)), expected, "{time}");
        }
        cache.keep("a", 1, Duration::from_secs(10), at(100));
        cache.keep("a", 2, Duration::from_secs(10), at(105));
        assert_eq!(cache.get(&"a", at(114)), Some(2), "the later one counts");
        cache.keep("a", 3, Duration::ZERO, at(106));
        assert_eq!(cache.get(&"a", at(106)), None);
        assert!(cache.entries.is_empty() && cache.used.is_empty());
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let mut cache = Cache::new(3);
        let long = Duration::from_secs(1000);
        for key in ["a", "b", "c"] {
            cache.keep(key, key, long, at(0));
        }
        assert_eq!(cache.get(&"a", at(1)), Some("a"));
        cache.keep("d", "d", long, at(2));
        let kept = ["a", "b", "c", "d"].map(|key| cache.get(&key, at(3)).is_some());
        assert_eq!(kept, [true, false, true, true]);
    }

    #[test]
    fn a_flood_of_keys_fills_no_memory() {
        let mut cache = Cache::new(8);
        for key in 0..10_000_u32 {
            cache.keep(key, key, Duration::from_secs(60), at(u64::from(key)));
            cache.get(&(key / 2), at(u64::from(key)));
        }
        assert_eq!((cache.entries.len(), cache.used.len()), (8, 8));
        assert!(cache.used.iter().all(|(used, key)| cache.entries[key].used == *used));
    }

    #[test]
    fn a_flood_of_those_who_are_refused_takes_no_place_of_those_who_are_not() {
        let mut kept = Kept::new(8);
        let long = Duration::from_secs(1000);
        kept.keep_good(0, "good", long, at(0));
        for key in 1..1000 {
            kept.keep_bad(key, "bad", long, at(0));
        }
        assert_eq!([0, 1, 999].map(|key| kept.get(&key, at(1))), [Some("good"), None, Some("bad")]);
        kept.keep_bad(0, "bad", long, at(1));
        assert_eq!(kept.get(&0, at(2)), Some("bad"), "the later one counts");
        kept.keep_good(0, "good", Duration::from_secs(1), at(2));
        assert_eq!((kept.get(&0, at(2)), kept.get(&0, at(3))), (Some("good"), None));
    }
}
