//! The end of a container's control groups, where no runtime ends them, or not all of them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::find::{in_all_hierarchies, mounts};
use super::members::groups_in;
use super::{Cgroup, kill_group};

/// Time between two looks at a group that is being emptied.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Most groups that one pass removes, so that whoever makes it is not held up: each takes the kernel some microseconds.
const REMOVED_MAX: usize = 4096;
/// Links to a directory that has no other in it: its name and its own `.`. Some file systems do not count, and say 1.
const LINKS_ALONE: u64 = 2;

impl Cgroup {
    /// Ends the groups that the container made below its own and has left, as far as that takes no time: an OCI runtime
    /// may be slow with many of them, or give up.
    pub(crate) fn prune(&self) {
        let has_others = |top: &&Path| fs::metadata(top).is_ok_and(|top| top.nlink() != LINKS_ALONE);
        for top in self.directories().into_iter().filter(has_others) {
            kill_group(top);
            for group in groups_in(top) {
                remove_tree(&group);
            }
        }
    }

    /// Kills what an OCI runtime has left in the container's groups, and removes those that are empty by now; whether all
    /// are gone. crun warns of them where nobody listens, and says that all is well.
    pub(crate) fn sweep(&self) -> bool {
        self.left().into_iter().for_each(kill_group);
        self.remove()
    }

    /// Removes what is empty of the container's groups; whether all are gone.
    pub(crate) fn remove(&self) -> bool {
        self.left().into_iter().for_each(remove_tree);
        self.left().is_empty()
    }

    fn left(&self) -> Vec<&Path> {
        self.directories().into_iter().filter(|top| top.is_dir()).collect()
    }

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

/// Removes groups, the lowest first; one that has processes stays, and so do those above it.
fn remove_tree(top: &Path) {
    let mut pending = vec![(top.to_owned(), Look::First)];
    let mut removed = 0;
    while let Some((group, look)) = pending.pop() {
        if fs::remove_dir(&group).is_ok() {
            removed += 1;
        } else if look == Look::First {
            let below = groups_in(&group).map(|group| (group, Look::First));
            let again = std::iter::once((group.clone(), Look::AfterThoseBelow));
            pending.extend(again.chain(below));
        }
        if removed == REMOVED_MAX {
            return;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    First,
    AfterThoseBelow,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directories, in which a file stands for a process.
    fn made(groups: &[&str], processes: &[&str]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for group in groups {
            fs::create_dir_all(top.path().join(group)).unwrap();
        }
        for process in processes {
            fs::write(top.path().join(process), "").unwrap();
        }
        top
    }

    #[test]
    fn groups_go_with_all_below_them_and_stay_with_any_process() {
        let groups = ["c1/a/b/c", "c1/a/d", "c1/e"];
        let empty = made(&groups, &[]);
        remove_tree(&empty.path().join("c1"));
        assert_eq!(groups_in(empty.path()).count(), 0);
        let busy = made(&groups, &["c1/a/b/process"]);
        remove_tree(&busy.path().join("c1"));
        let left = ["c1", "c1/a", "c1/a/b"].map(|group| busy.path().join(group));
        assert!(left.iter().all(|group| group.is_dir()));
        assert!(["c1/a/b/c", "c1/a/d", "c1/e"].iter().all(|group| !busy.path().join(group).exists()));
    }

    #[test]
    fn one_pass_is_bounded() {
        let many: Vec<String> = (0..REMOVED_MAX + 9).map(|number| format!("c1/{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let top = made(&many, &[]);
        let group = top.path().join("c1");
        remove_tree(&group);
        assert_eq!(groups_in(&group).count(), 9);
        assert!(Cgroup::Unified(group.clone()).remove());
        assert!(!group.exists());
    }

    #[test]
    fn only_what_the_container_made_is_pruned() {
        let top = made(&["pids/c1/a/b", "memory/c1"], &["pids/c1/cgroup.procs", "memory/c1/cgroup.procs"]);
        let of = |name: &str| (name.to_owned(), top.path().join(name).join("c1"));
        let split = Cgroup::Split([of("pids"), of("memory")].into());
        split.prune();
        assert_eq!(groups_in(&top.path().join("pids/c1")).count(), 0);
        assert!(top.path().join("pids/c1").is_dir() && top.path().join("memory/c1").is_dir());
        assert!(!split.remove(), "they are not empty");
    }
}
