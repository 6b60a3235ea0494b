//! Levels of version 2: made from the top, each handing its controllers down to those below it.
//!
//! Source: Documentation/admin-guide/cgroup-v2.rst of the kernel, "Controlling Controllers". As libcontainer does for the
//! kubelet, every controller is handed down, so that an OCI runtime finds the ones it needs.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{TreeError, level};

/// What no pod can be without. The others are handed down where that works.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

/// Processes that an error names.
const NAMED_MAX: usize = 5;

/// Makes the level at `path` below `root`, and those above it.
pub(super) fn ensure(root: &Path, path: &str) -> Result<(), TreeError> {
    let mut above = root.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        hand_down(&above)?;
        above.push(part);
        match fs::create_dir(&above) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result.map_err(|error| TreeError::Level(above.clone(), error))?,
        }
    }
    Ok(())
}

/// Gives the levels below one all its controllers.
fn hand_down(dir: &Path) -> Result<(), TreeError> {
    let control = dir.join("cgroup.subtree_control");
    let has = names(dir.join("cgroup.controllers"));
    let given = names(control.clone());
    let missing: Vec<String> = has.difference(&given).map(|name| format!("+{name}")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    match level::write(&control, &missing.join(" ")) {
        Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => Err(occupied(dir, &missing)),
        // All or nothing: one that cannot be given, as `cpu` beside real-time processes, has kept back the others.
        Err(_) => missing.iter().try_for_each(|name| hand_down_one(dir, &control, name)),
        Ok(()) => Ok(()),
    }
}

fn hand_down_one(dir: &Path, control: &Path, name: &str) -> Result<(), TreeError> {
    let controller = name.trim_start_matches('+');
    match level::write(control, name) {
        Err(source) if NEEDED.contains(&controller) => {
            Err(TreeError::HandDown { level: dir.to_owned(), controller: controller.to_owned(), source })
        }
        Err(why) => {
            tracing::debug!(level = %dir.display(), controller, %why, "a controller is not handed down");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn occupied(dir: &Path, missing: &[String]) -> TreeError {
    let controllers: Vec<_> = missing.iter().map(|name| name.trim_start_matches('+')).collect();
    TreeError::Occupied {
        level: dir.to_owned(),
        controllers: controllers.join(", "),
        processes: named(&File::open(dir).map(level::processes).unwrap_or_default()),
    }
}

fn named(processes: &[i32]) -> String {
    let first: Vec<_> = processes.iter().take(NAMED_MAX).map(i32::to_string).collect();
    match processes.len().saturating_sub(NAMED_MAX) {
        0 => format!("processes {}", first.join(", ")),
        more => format!("processes {} and {more} more", first.join(", ")),
    }
}

fn names(file: PathBuf) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A level as the kernel would show it.
    fn level(dir: &Path, controllers: &str, given: &str) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("cgroup.controllers"), controllers).unwrap();
        fs::write(dir.join("cgroup.subtree_control"), given).unwrap();
    }

    fn given(dir: &Path) -> String {
        fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap()
    }

    #[test]
    fn every_level_hands_down_what_it_has_and_has_not_given_yet() {
        let root = TempDir::new().unwrap();
        let (kubepods, burstable) = (root.path().join("kubepods"), root.path().join("kubepods/burstable"));
        level(root.path(), "cpuset cpu io memory hugetlb pids\n", "");
        level(&kubepods, "cpuset cpu memory pids\n", "cpu cpuset memory pids\n");
        level(&burstable, "memory pids\n", "");
        ensure(root.path(), "kubepods/burstable/pod1").unwrap();
        assert_eq!(given(root.path()), "+cpu +cpuset +hugetlb +io +memory +pids");
        assert_eq!(given(&kubepods), "cpu cpuset memory pids\n");
        assert_eq!(given(&burstable), "+memory +pids");
        // The last level has no levels below it yet.
        assert!(burstable.join("pod1").is_dir() && !burstable.join("pod1/cgroup.subtree_control").exists());
        ensure(root.path(), "kubepods/burstable/pod1").unwrap();
    }

    #[test]
    fn only_what_pods_need_has_to_be_handed_down() {
        let root = TempDir::new().unwrap();
        for (controllers, expected) in [("cpu io\n", Some("hand cpu down from cgroup ")), ("io\n", None)] {
            level(root.path(), controllers, "");
            fs::remove_file(root.path().join("cgroup.subtree_control")).unwrap();
            let error = ensure(root.path(), "kubepods").err().map(|error| error.to_string());
            match (&error, expected) {
                (Some(error), Some(expected)) => assert!(error.starts_with(expected), "{error}"),
                (None, None) => {}
                _ => panic!("{controllers}: {error:?}"),
            }
        }
    }

    #[test]
    fn who_is_in_the_way_is_named() {
        let root = TempDir::new().unwrap();
        fs::write(root.path().join("cgroup.procs"), "1\n42\n").unwrap();
        let error = occupied(root.path(), &["+cpu".to_owned(), "+memory".to_owned()]).to_string();
        let start = format!("hand cpu, memory down from cgroup {}: ", root.path().display());
        assert!(error.starts_with(&start) && error.contains("processes 1, 42 are in it"), "{error}");
        assert_eq!(named(&[1, 2, 3, 4, 5, 6, 7]), "processes 1, 2, 3, 4, 5 and 2 more");
    }
}
