//! Which log goes when a run is removed.
//!
//! That of the run before, with its rotated parts and the link that collectors follow. Those of the run itself stay until the
//! next one has ended or the pod goes, whatever becomes of the run's record: collectors get its last lines, and `--previous`
//! finds it.
//! Source: `pkg/kubelet/pod_container_deletor.go`, with one dead instance per container (`MaxPerPodContainerCount`).

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_with_a_run_is_the_log_of_the_one_before() {
        let paths = Paths {
            root: "/root".to_owned(),
            pod_logs: "/logs".to_owned(),
            container_logs: "/links".to_owned(),
            run: "/run".to_owned(),
            seccomp: "/seccomp".to_owned(),
        };
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
}
