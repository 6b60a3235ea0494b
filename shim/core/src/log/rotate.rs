//! Names of rotated logs, which of them are too many, and which are to be compressed.
//!
//! Names and limits are the kubelet's (`pkg/kubelet/logs/container_log_manager.go`): `0.log` becomes
//! `0.log.20261121-010203`. The newest rotated log stays as it is, since collectors may still read it; an older one is
//! compressed to `….tmp`, which becomes `….gz` once it is whole, and then goes.

use std::collections::{BTreeMap, BTreeSet};

use super::time::{parse_suffix, suffix};

const NANOS_PER_SECOND: i64 = 1_000_000_000;
const COMPRESSED: &str = ".gz";
const TEMPORARY: &str = ".tmp";

/// The name to give to the log `name`, given the names in its directory. Later rotations sort behind earlier ones even
/// within one second and when the clock was set back, and no name is used twice.
pub fn rotated_name<'n>(name: &str, unix_ns: i64, present: impl IntoIterator<Item = &'n str>) -> String {
    let newest = rotations(name, present).into_keys().next_back();
    let now = unix_ns.div_euclid(NANOS_PER_SECOND);
    let second = newest.map_or(now, |newest| now.max(newest.saturating_add(1)));
    format!("{name}.{}", suffix(second))
}

/// The names that must go so that at most `files_max` files of the log `name` stay, the live one included, given the names
/// in the directory. Oldest first; a log and its compressed copy count once and go together, with a copy that is being made.
///
/// A name may be that of no file: what is compressed meanwhile is found under whichever name it has by then.
pub fn excess<'n>(name: &str, files_max: usize, present: impl IntoIterator<Item = &'n str>) -> Vec<String> {
    let logs: Vec<i64> =
        rotations(name, present).into_iter().filter(|(_, forms)| is_log(forms)).map(|(at, _)| at).collect();
    let gone = logs.len().saturating_sub(files_max.saturating_sub(1));
    let names = logs.into_iter().take(gone).map(|second| Names::of(name, second));
    names.flat_map(|Names { plain, temporary, compressed }| [plain, temporary, compressed]).collect()
}

/// One step towards compressed logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Remove what an attempt that did not end has left: half a copy, or a log whose copy is whole.
    Remove(String),
    /// Compress a log.
    Compress(Names),
}

/// The names of one rotated log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// As it was written; to be removed once it is compressed. Who finds it gone then removes the copy too: the log was one
    /// too many meanwhile.
    pub plain: String,
    /// While it is being compressed.
    pub temporary: String,
    /// Compressed, and whole.
    pub compressed: String,
}

/// What is to be done so that all rotated logs of `name` but the newest are compressed, in order, given the names in the
/// directory. Nobody else may be at it. Names of others are never returned.
pub fn compression<'n>(name: &str, present: impl IntoIterator<Item = &'n str>) -> Vec<Step> {
    let rotations = rotations(name, present);
    let newest = rotations.iter().filter(|(_, forms)| is_log(forms)).map(|(second, _)| *second).next_back();
    let (mut leftovers, mut wanted) = (Vec::new(), Vec::new());
    for (second, forms) in rotations {
        let names = Names::of(name, second);
        let has = |form| forms.contains(&form);
        if has(Form::Temporary) {
            leftovers.push(Step::Remove(names.temporary.clone()));
        }
        match (has(Form::Plain), has(Form::Compressed)) {
            (true, true) => leftovers.push(Step::Remove(names.plain)),
            (true, false) if Some(second) != newest => wanted.push(Step::Compress(names)),
            (true | false, false) | (false, true) => {}
        }
    }
    leftovers.into_iter().chain(wanted).collect()
}

/// The rotated logs of `name`, oldest first, given the names in the directory. Each is there as it was written, or
/// compressed, or for a moment both.
pub fn rotated<'n>(name: &str, present: impl IntoIterator<Item = &'n str>) -> Vec<Names> {
    let rotations = rotations(name, present).into_iter();
    rotations.filter(|(_, forms)| is_log(forms)).map(|(second, _)| Names::of(name, second)).collect()
}

impl Names {
    fn of(name: &str, second: i64) -> Self {
        let plain = format!("{name}.{}", suffix(second));
        let [temporary, compressed] = [TEMPORARY, COMPRESSED].map(|ending| format!("{plain}{ending}"));
        Self { plain, temporary, compressed }
    }
}

/// A form in which a rotated log is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Plain,
    Temporary,
    Compressed,
}

/// Half a copy alone is no log.
fn is_log(forms: &BTreeSet<Form>) -> bool {
    forms.contains(&Form::Plain) || forms.contains(&Form::Compressed)
}

/// The rotated logs of `name`, by the second in which they were.
fn rotations<'n>(name: &str, present: impl IntoIterator<Item = &'n str>) -> BTreeMap<i64, BTreeSet<Form>> {
    let mut rotations = BTreeMap::<i64, BTreeSet<Form>>::new();
    for other in present {
        let Some(rest) = other.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) else { continue };
        let forms = [(Form::Compressed, COMPRESSED), (Form::Temporary, TEMPORARY)];
        let ended = forms.into_iter().find_map(|(form, ending)| Some((form, rest.strip_suffix(ending)?)));
        let (form, stamp) = ended.unwrap_or((Form::Plain, rest));
        if let Some(second) = parse_suffix(stamp) {
            rotations.entry(second).or_default().insert(form);
        }
    }
    rotations
}
