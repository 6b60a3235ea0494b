//! When a pod has ended for good.

use crate::{
    pod::{
        actual::{Life, Run},
        restart::runs_again,
    },
    record::{EndedBy, TerminalRecord},
    spec::{Container, ContainerKind},
    time::{Mono, Now},
};

/// Whether a pod has ended.
pub(in crate::pod) enum Over {
    /// It has.
    Ended(TerminalRecord),
    /// It has not; its time is up then.
    GoesOn(Option<Mono>),
}

/// A pod ends when its time is up, when an init container failed for good, or when no main container will run again.
/// Sidecars and ephemeral containers have no say.
pub(in crate::pod) fn over(life: &Life, now: Now) -> Over {
    let ended = |succeeded, reason: &str, message: &str| {
        Over::Ended(TerminalRecord {
            succeeded,
            reason: reason.into(),
            message: message.into(),
            by: EndedBy::Itself,
        })
    };
    let deadline = deadline(life);
    if deadline.is_some_and(|deadline| deadline <= now.mono) {
        let message = "Pod was active on the node longer than the specified deadline";
        return ended(false, "DeadlineExceeded", message);
    }
    // However its containers end, they begin anew.
    if life.record.restarting.is_some() {
        return Over::GoesOn(deadline);
    }
    let spec = &life.spec;
    if spec.init_containers.iter().any(|one| has_failed_for_good(life, one)) {
        return ended(false, "", "");
    }
    if spec.containers.iter().all(|one| is_over(life, one)) {
        let mut codes = spec.containers.iter().filter_map(|one| exit_code(life, one));
        return ended(codes.all(|code| code == 0), "", "");
    }
    Over::GoesOn(deadline)
}

/// Whether the pod ends as soon as the termination messages of containers that have ended are read: nothing is begun
/// for it any more.
pub(in crate::pod) fn is_ending(life: &Life) -> bool {
    if life.record.restarting.is_some() {
        return false;
    }
    let code = |container: &Container| match life.run(&container.name) {
        Run::Ended(ended) => Some(ended.exit.code),
        Run::Idle | Run::BackingOff | Run::Preparing(_) | Run::Starting(_) | Run::Running(_) => {
            is_over(life, container).then(|| exit_code(life, container)).flatten()
        }
    };
    let has_ended = |container: &Container| {
        let is_stopped_alone =
            life.record.containers.get(&container.name).is_some_and(|run| life.record.is_replaced(run));
        code(container)
            .filter(|code| !is_stopped_alone && !runs_again(container, life.spec.restart_policy, *code))
    };
    let mut init = life.spec.init_containers.iter().filter(|one| one.kind == ContainerKind::Init);
    init.any(|one| has_ended(one).is_some_and(|code| code != 0))
        || life.spec.containers.iter().all(|one| has_ended(one).is_some())
}

/// When the pod has been active for as long as it may. How long it was so when this agent took it in is told by the wall clock;
/// whoever sets that later ends no pod.
fn deadline(life: &Life) -> Option<Mono> {
    let longest = life.spec.active_deadline?;
    let active = life.taken_in.age(life.record.started_at);
    Some(life.taken_in.mono + longest.saturating_sub(active))
}

fn has_failed_for_good(life: &Life, container: &Container) -> bool {
    match container.kind {
        ContainerKind::Init => {
            exit_code(life, container).is_some_and(|code| code != 0) && is_over(life, container)
        }
        ContainerKind::Main | ContainerKind::Sidecar | ContainerKind::Ephemeral => false,
    }
}

/// Whether a container ended and will not run again.
fn is_over(life: &Life, container: &Container) -> bool {
    let Some(record) = life.record.containers.get(&container.name) else { return false };
    let Some(exit) = &record.exit else { return false };
    !life.record.is_replaced(record) && !runs_again(container, life.spec.restart_policy, exit.exit.code)
}

fn exit_code(life: &Life, container: &Container) -> Option<u32> {
    match life.run(&container.name) {
        Run::Idle | Run::BackingOff => {}
        Run::Preparing(_) | Run::Starting(_) | Run::Running(_) | Run::Ended(_) => return None,
    }
    let record = life.record.containers.get(&container.name)?;
    record.exit.as_ref().map(|exit| exit.exit.code)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::{fixtures, pod::machine::PodMachine, spec::Pod};

    /// When a pod began is what somebody wrote into the API: any moment that there is.
    #[test]
    fn the_time_that_a_pod_has_is_counted_from_when_it_began() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let now = Now { mono: Mono(Duration::from_secs(500)), wall: at(1_000_000) };
        let longest = Duration::from_secs(u64::from(u32::MAX >> 1));
        for (began, has, left) in [
            (at(1_000_000), Duration::from_secs(60), Some(60)),
            (at(999_960), Duration::from_secs(60), Some(20)),
            (at(999_940), Duration::from_secs(60), None),
            (at(999_000), Duration::from_secs(60), None),
            (at(1_000_900), Duration::from_secs(60), Some(60)),
            (Timestamp::MIN, Duration::from_secs(60), None),
            (Timestamp::MIN, longest, None),
            (Timestamp::MAX, longest, Some(longest.as_secs())),
        ] {
            let pod = fixtures::pod(vec![fixtures::container("web")]);
            let spec = Pod { started_at: Some(began), active_deadline: Some(has), ..pod };
            let pod = PodMachine::new(spec.into(), now);
            let ends_at = match over(pod.life(), now) {
                Over::Ended(end) => {
                    assert_eq!(end.reason, "DeadlineExceeded");
                    None
                }
                Over::GoesOn(deadline) => deadline.map(|at| at.since(now.mono).as_secs()),
            };
            assert_eq!(ends_at, left, "began {began}, has {has:?}");
        }
    }

    /// The pod is taken in when it has been active for 40 seconds of its 60, and asked about 10 seconds later.
    #[test]
    fn whoever_sets_the_clock_gives_a_pod_no_time_and_takes_none() {
        let wall = Timestamp::from_second(1_000_000).unwrap();
        let now = Now { mono: Mono(Duration::from_secs(500)), wall };
        let spec = Pod {
            started_at: Some(wall - Duration::from_secs(40)),
            active_deadline: Some(Duration::from_secs(60)),
            ..fixtures::pod(vec![fixtures::container("web")])
        };
        let pod = PodMachine::new(spec.into(), now);
        for step in [-3600, -30, 0, 30, 3600] {
            let later = Duration::from_secs(10);
            let later =
                Now { mono: now.mono + later, wall: now.wall + later + SignedDuration::from_secs(step) };
            let Over::GoesOn(Some(deadline)) = over(pod.life(), later) else {
                panic!("{step}: it has ended")
            };
            assert_eq!(deadline.since(later.mono), Duration::from_secs(10), "{step}");
        }
    }
}
