//! Names of rotated logs, and which of them are too many.
//!
//! Names and limits are the kubelet's (`pkg/kubelet/logs/container_log_manager.go`): `0.log` becomes
//! `0.log.20261121-010203`, later compressed to `0.log.20261121-010203.gz`.

use std::collections::BTreeMap;

use super::time::{parse_suffix, suffix};

const NANOS_PER_SECOND: i64 = 1_000_000_000;
const COMPRESSED: &str = ".gz";

/// The name to give to the log `name`, given the names in its directory. Later rotations sort behind earlier ones even
/// within one second and when the clock was set back, and no name is used twice.
pub fn rotated_name<'n>(name: &str, unix_ns: i64, present: impl IntoIterator<Item = &'n str>) -> String {
    let newest = present.into_iter().filter_map(|other| generation(name, other)).max();
    let now = unix_ns.div_euclid(NANOS_PER_SECOND);
    let second = newest.map_or(now, |newest| now.max(newest.saturating_add(1)));
    format!("{name}.{}", suffix(second))
}

/// The names in the directory that must go so that at most `files_max` files of the log `name` stay, the live one
/// included. Oldest first; a log and its compressed copy count once and go together. Other names are never returned.
pub fn excess<'n>(name: &str, files_max: usize, present: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
    let mut generations = BTreeMap::<i64, Vec<&str>>::new();
    for other in present {
        if let Some(second) = generation(name, other) {
            generations.entry(second).or_default().push(other);
        }
    }
    let kept = files_max.saturating_sub(1);
    let gone = generations.len().saturating_sub(kept);
    generations.into_values().take(gone).flatten().collect()
}

/// The second in which `other` was rotated, if it is a rotated log of `name`.
fn generation(name: &str, other: &str) -> Option<i64> {
    let stamp = other.strip_prefix(name)?.strip_prefix('.')?;
    parse_suffix(stamp.strip_suffix(COMPRESSED).unwrap_or(stamp))
}
