//! The end of a container's control groups when no runtime ends them.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::find::{in_all_hierarchies, mounts};
use super::members::groups;
use super::{Cgroup, kill_group};

/// Time between two looks at a group that is being emptied.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Cgroup {
    /// Kills what is left in the container's groups and removes them, in every hierarchy; whether they are gone.
    pub(crate) fn destroy(&self, deadline: Instant) -> bool {
        loop {
            let places = self.places();
            if places.is_empty() {
                return true;
            }
            places.iter().for_each(|place| kill_group(place));
            places.iter().for_each(|place| remove_tree(place));
            if self.places().is_empty() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// The directories that are still there.
    fn places(&self) -> Vec<PathBuf> {
        let all = match self {
            Self::Unified(path) => vec![path.clone()],
            Self::Split(paths) => {
                let table = mounts().unwrap_or_default();
                let mut all = self.tree().map(|tree| in_all_hierarchies(&table, tree)).unwrap_or_default();
                all.extend(paths.values().cloned());
                all.sort_unstable();
                all.dedup();
                all
            }
        };
        all.into_iter().filter(|path| path.is_dir()).collect()
    }
}

/// Removes empty groups, the lowest first; one that has processes stays.
fn remove_tree(top: &Path) {
    for group in groups(top).iter().rev() {
        let _busy = fs::remove_dir(group).is_err();
    }
}
