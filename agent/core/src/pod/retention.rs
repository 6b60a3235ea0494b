//! Which log goes when a run is removed, and which `VOLUME`s.
//!
//! That of the run before, with its rotated parts and the link that collectors follow. Those of the run itself stay until the
//! next one has ended or the pod goes, whatever becomes of the run's record: collectors get its last lines, and `--previous`
//! finds it. Directories made for `VOLUME`s of the image go with those of the run before as well: a container that ends again and
//! again fills no disk with them.
//! Source: `pkg/kubelet/pod_container_deletor.go`, with one dead instance per container (`MaxPerPodContainerCount`).

use std::collections::BTreeSet;

use crate::{
    config::Paths,
    id::{Attempt, ContainerId, ContainerName, PodName, PodUid},
    paths,
};

/// A run of a container, as its record in containerd names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunName {
    /// UID of its pod.
    pub uid: PodUid,
    /// Its pod.
    pub pod: PodName,
    /// Which container of the pod.
    pub container: ContainerName,
    /// Which run of it.
    pub attempt: Attempt,
}

/// The log of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLog {
    /// The link that collectors follow.
    pub link: String,
    /// The file. Rotated parts are beside it.
    pub log: String,
}

/// What goes when a run is removed; nothing with the first.
#[must_use]
pub fn log_to_remove(paths: &Paths, run: &RunName) -> Option<RunLog> {
    let RunName { uid, pod, container, attempt } = run;
    let before = attempt.checked_sub(1)?;
    Some(RunLog {
        link: paths::log_link(paths, pod, container, &ContainerId::of(uid, container, before)),
        log: paths::container_log(paths, pod, uid, container, before),
    })
}

/// Which `VOLUME`s go when a run is removed; none with the first.
#[must_use]
pub fn volumes_to_remove(paths: &Paths, run: &RunName) -> Option<RunVolumes> {
    let RunName { uid, container, attempt, .. } = run;
    let last = attempt.checked_sub(1)?;
    Some(RunVolumes {
        uid: uid.clone(),
        container: container.clone(),
        last,
        dir: paths::container_dir(paths, uid, container),
    })
}

/// Directories for `VOLUME`s that go when a run is removed: those of all runs before it, whoever left them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunVolumes {
    /// UID of the pod.
    pub uid: PodUid,
    /// Which container of it.
    pub container: ContainerName,
    /// The last of the runs.
    pub last: Attempt,
    /// The directory they are in.
    pub dir: String,
}

/// Most runs whose directories are looked for at once.
const RUNS_MAX: Attempt = 10_000;

impl RunVolumes {
    /// Which of the names in the directory they have.
    #[must_use]
    pub fn of<'a>(&self, names: &'a BTreeSet<String>) -> Vec<&'a str> {
        if !names.iter().any(|name| paths::is_of_image_volumes(name)) {
            return Vec::new();
        }
        // How often it began again may be what others say.
        let first = self.last.saturating_sub(RUNS_MAX);
        let runs = (first..=self.last).map(|run| ContainerId::of(&self.uid, &self.container, run));
        runs.filter_map(|id| names.get(&paths::image_volumes(&id))).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths_of_node() -> Paths {
        Paths {
            root: "/root".to_owned(),
            pod_logs: "/logs".to_owned(),
            container_logs: "/links".to_owned(),
            run: "/run".to_owned(),
            seccomp: "/seccomp".to_owned(),
        }
    }

    #[test]
    fn what_goes_with_a_run_is_the_log_of_the_one_before() {
        let paths = paths_of_node();
        let (uid, container) = (PodUid::new("1-a"), ContainerName::new("main"));
        for (attempt, goes) in [(0, None), (1, Some(0)), (2, Some(1)), (13, Some(12))] {
            let pod = PodName { namespace: "default".to_owned(), name: "web".to_owned() };
            let run = RunName { uid: uid.clone(), pod, container: container.clone(), attempt };
            let expected = goes.map(|before| RunLog {
                link: format!("/links/web_default_main-{}.log", ContainerId::of(&uid, &container, before)),
                log: format!("/logs/default_web_1-a/main/{before}.log"),
            });
            assert_eq!(log_to_remove(&paths, &run), expected, "run {attempt}");
        }
    }

    #[test]
    fn with_a_run_go_the_volumes_of_all_runs_before_it() {
        let (uid, container) = (PodUid::new("1-a"), ContainerName::new("main"));
        let name = |attempt| paths::image_volumes(&ContainerId::of(&uid, &container, attempt));
        let others = ["0a1b2c3d", "0a1b2c3d-volumes", "-volumes"].map(str::to_owned);
        let names: BTreeSet<String> = (0..5).map(name).chain(others).collect();
        for (attempt, goes) in [(0, None), (1, Some(1)), (3, Some(3)), (4, Some(4)), (9, Some(5))] {
            let pod = PodName { namespace: "default".to_owned(), name: "web".to_owned() };
            let run = RunName { uid: uid.clone(), pod, container: container.clone(), attempt };
            let found = volumes_to_remove(&paths_of_node(), &run);
            let found = found.map(|volumes| volumes.of(&names).into_iter().map(str::to_owned).collect());
            assert_eq!(found, goes.map(|count| (0..count).map(name).collect::<Vec<_>>()), "run {attempt}");
        }
    }
}
