//! Logs that were rotated: copies of the shim compress what is older than the last rotated file, one at a time for each log.
//!
//! Nothing waits for such a copy but the next one of that log, and at its end the shim's process, for which nobody waits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::Streams;
use super::writers::Leaving;
use crate::io::Log;

/// Copies at a time. The shim of a pod whose containers all rotate at once is one of many on its node.
const COPIES_MAX: usize = 2;

/// What is to be compressed.
#[derive(Debug, Default)]
pub(super) struct Rotations {
    /// Logs that were rotated since somebody looked for what is to be compressed.
    due: BTreeSet<PathBuf>,
    /// Logs whose files are being compressed, by the pid of the copy that does.
    under_way: BTreeMap<u32, PathBuf>,
}

impl Rotations {
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.under_way.is_empty()
    }

    /// The next log whose turn it is.
    fn next(&mut self) -> Option<PathBuf> {
        if self.under_way.len() >= COPIES_MAX {
            return None;
        }
        let is_free = |path: &&PathBuf| !self.under_way.values().any(|other| other == *path);
        let path = self.due.iter().find(is_free)?.clone();
        self.due.take(&path)
    }
}

impl Streams {
    /// Notes which logs were rotated, those among them that have just ended.
    pub(in crate::shim) fn note_rotated(&mut self, ended: &[Leaving]) {
        let leaving = self.leaving.iter().chain(ended).filter_map(|leaving| match leaving {
            Leaving::Log(log) => Some(log),
            Leaving::File(_) => None,
        });
        let logs = self.ios.values().filter_map(|io| io.log.as_ref()).chain(leaving);
        let rotated = logs.filter(|log| log.writer.take_rotated()).map(|Log { path, .. }| path.clone());
        self.rotations.due.extend(rotated);
    }

    /// The next log whose rotated files are to be compressed.
    pub(in crate::shim) fn next_rotated(&mut self) -> Option<PathBuf> {
        self.rotations.next()
    }

    /// A copy of the shim compresses them.
    pub(in crate::shim) fn compression_began(&mut self, pid: u32, path: PathBuf) {
        self.rotations.under_way.insert(pid, path);
    }

    /// A child has ended; returns whether it was one that compressed.
    pub(in crate::shim) fn compression_ended(&mut self, pid: u32) -> bool {
        self.rotations.under_way.remove(&pid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_copy_at_a_time_for_each_log_and_few_for_all() {
        let mut rotations = Rotations::default();
        let paths = ["/a", "/b", "/c"].map(PathBuf::from);
        rotations.due.extend(paths);
        for pid in 0..u32::try_from(COPIES_MAX).unwrap() {
            let path = rotations.next().unwrap();
            rotations.under_way.insert(pid, path);
        }
        assert_eq!(rotations.next(), None, "all places are taken");
        rotations.under_way.remove(&1);
        rotations.due.insert("/a".into());
        assert_eq!(rotations.next(), Some("/c".into()), "the first one's log waits for it");
        assert_eq!(rotations.next(), None);
        rotations.under_way.remove(&0);
        assert_eq!(rotations.next(), Some("/a".into()));
        assert!(rotations.is_empty());
    }
}
