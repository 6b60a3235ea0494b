//! What is counted of a change from one status of a pod to the next.

use crate::{
    spec::ContainerKind,
    status::{ContainerState, ContainerStatus, PodStatus},
};

/// Reasons of waiting that say that a container could not be started for want of its image. Source: `pkg/kubelet/images/types.go`.
const IMAGE_ERRORS: [&str; 5] =
    ["ErrImageNeverPull", "ErrImagePull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName"];

/// What has happened to containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Those that have ended.
    pub ended: Vec<Ended>,
    /// Those whose image could not be had, each with the reason that its status shows.
    pub without_image: Vec<(ContainerKind, &'static str)>,
}

/// A container that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its kind.
    pub kind: ContainerKind,
    /// How it ended.
    pub exit_code: u32,
    /// The same in a word.
    pub reason: String,
}

/// Compares two statuses of a pod. What was so when the agent saw the pod first has happened before: an end is counted once, however often
/// the agent starts. Source: `checkAndRecordTerminations` of `pkg/kubelet/status/status_manager.go`.
#[must_use]
pub fn changes(before: &PodStatus, now: &PodStatus) -> Changes {
    let mut changes = Changes::default();
    for container in now.all_containers() {
        let before = before.all_containers().find(|before| before.name == container.name);
        match &container.state {
            ContainerState::Terminated(end) if !before.is_some_and(has_ended) => {
                let (kind, exit_code, reason) = (container.kind, end.exit_code, end.reason.clone());
                changes.ended.push(Ended { kind, exit_code, reason });
            }
            ContainerState::Waiting { reason, .. } if before.and_then(waits_for) != Some(reason) => {
                let error = IMAGE_ERRORS.into_iter().find(|error| error == reason);
                changes.without_image.extend(error.map(|error| (container.kind, error)));
            }
            ContainerState::Terminated(_)
            | ContainerState::Waiting { .. }
            | ContainerState::Running { .. } => {}
        }
    }
    changes
}

fn has_ended(container: &ContainerStatus) -> bool {
    matches!(container.state, ContainerState::Terminated(_))
}

fn waits_for(container: &ContainerStatus) -> Option<&str> {
    match &container.state {
        ContainerState::Waiting { reason, .. } => Some(reason),
        ContainerState::Running { .. } | ContainerState::Terminated(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::starts::tests::{ended, running, status, waiting};
    use crate::status::Phase;

    fn of(state: ContainerState) -> PodStatus {
        status(Phase::Running, vec![], vec![state])
    }

    fn waits(reason: &str) -> ContainerState {
        ContainerState::Waiting { reason: reason.to_owned(), message: String::new() }
    }

    #[test]
    fn an_end_is_counted_when_it_is_seen_first() {
        let end = Ended { kind: ContainerKind::Main, exit_code: 0, reason: "Completed".to_owned() };
        for (before, now, count) in [
            (running(1), ended(1, 2), 1),
            (waiting(), ended(1, 2), 1),
            (ended(1, 2), ended(1, 2), 0),
            (ended(1, 2), ended(3, 4), 0),
            (ended(1, 2), running(3), 0),
            (running(1), waits("CrashLoopBackOff"), 0),
        ] {
            let found = changes(&of(before.clone()), &of(now.clone()));
            assert_eq!(found.ended, vec![end.clone(); count], "{before:?} {now:?}");
        }
    }

    #[test]
    fn an_image_that_cannot_be_had_is_counted_with_each_reason_that_is_shown() {
        for (before, now, code) in [
            (waiting(), waits("ErrImagePull"), Some("ErrImagePull")),
            (waits("ErrImagePull"), waits("ErrImagePull"), None),
            (waits("ErrImagePull"), waits("ImagePullBackOff"), Some("ImagePullBackOff")),
            (waits("ImagePullBackOff"), waits("ErrImagePull"), Some("ErrImagePull")),
            (running(1), waits("InvalidImageName"), Some("InvalidImageName")),
            (waiting(), waits("CreateContainerError"), None),
            (waits("ErrImagePull"), running(1), None),
        ] {
            let found = changes(&of(before.clone()), &of(now.clone()));
            let codes: Vec<_> = found.without_image.iter().map(|(_, code)| *code).collect();
            assert_eq!(codes, Vec::from_iter(code), "{before:?} {now:?}");
        }
    }
}
