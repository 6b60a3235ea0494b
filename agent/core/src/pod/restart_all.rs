//! All containers of a pod begin anew, in the sandbox that they have, since one of them ended with a code for which its rules ask
//! for that.
//!
//! ```text
//! an end that a rule matches ──▶ restarting ──▶ all are stopped and removed ──▶ all begin again, init containers first
//! ```
//!
//! Both steps are in the record before anything follows, so the next agent goes on where this one ended. When all begin, each gets
//! its next run at once, whatever the one before ended with: so no end calls for it twice, and none is a reason to wait.
//!
//! Source: KEP-5532, `ShouldAllContainersRestart` of `pkg/kubelet/container/helpers.go`, `computePodActions` of
//! `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, `convertToAPIContainerStatuses` of `pkg/kubelet/kubelet_pods.go`.

use std::time::Duration;

use super::{
    actual::{Life, Run},
    grace,
    machine::PodMachine,
    restart::ruled,
};
use crate::{
    id::ContainerName,
    spec::{Container, Pod, RestartAction},
    time::Mono,
};

/// Reason and message of the end of a run that was stopped so that all begin anew (`RestartingAllContainers` of
/// `pkg/kubelet/kubelet_pods.go`).
const REASON: &str = "RestartingAllContainers";
const MESSAGE: &str = "The container is removed because RestartAllContainers in place";

/// Whether an end of a container of this pod may call for all to begin anew. Source: `AllContainersCouldRestart` of
/// `pkg/api/v1/pod/util.go`.
#[must_use]
pub(super) fn has_rule_for_all(pod: &Pod) -> bool {
    let mut rules = pod.fixed_containers().flat_map(|one| &one.restarts.rules);
    rules.any(|rule| rule.action == RestartAction::RestartAllContainers)
}

/// Whether a container has ended with a code for which all begin anew. One that was stopped alone, to follow its spec or since a probe
/// failed, had not ended by itself.
#[must_use]
pub(super) fn calls_for_all(life: &Life) -> bool {
    let calls = |container: &Container| {
        let record = life.record.containers.get(&container.name);
        let exit = record.and_then(|record| record.exit.as_ref());
        let action = exit.and_then(|exit| ruled(&container.restarts, exit.exit.code));
        action == Some(RestartAction::RestartAllContainers)
            && record.is_some_and(|record| !life.record.is_replaced(record))
    };
    life.spec.fixed_containers().any(|one| calls(one))
}

/// Message and reason of a run that was stopped so that all begin anew.
#[must_use]
pub(super) fn removed(message: String, reason: Option<String>) -> (String, Option<String>) {
    let message = if message.is_empty() { MESSAGE.to_owned() } else { message };
    (message, reason.or_else(|| Some(REASON.to_owned())))
}

impl PodMachine {
    /// All containers are to begin anew: what runs is stopped first.
    pub(super) fn restart_all(&mut self, now: Mono) {
        self.life.record.restarting = Some(grace::stop_container(Duration::ZERO, now));
    }

    /// All containers get their next run, as if none had been in this sandbox. Those that never ran go on to their first.
    pub(super) fn begin_all(&mut self, now: Mono) {
        self.life.record.restarting = None;
        let names: Vec<ContainerName> =
            self.life.spec.fixed_containers().map(|one| one.name.clone()).collect();
        for name in names {
            let uid = &self.life.record.uid;
            let Some(record) = self.life.record.containers.get_mut(&name) else { continue };
            record.renew(uid, &name);
            record.last_in = None;
            record.begun_at = now;
            record.anew = true;
            self.set_run(&name, Run::Idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::{
        fixtures,
        id::ContainerId,
        observation::Exit,
        pod::plan::STOP_MIN,
        record::{Afterwards, ContainerRecord, ExitRecord, TerminationRecord},
        spec::{ContainerKind, RestartRule},
        time::Now,
    };

    const ALL: RestartAction = RestartAction::RestartAllContainers;
    const ONE: RestartAction = RestartAction::Restart;

    fn rule(codes: &[u32], is_in: bool, action: RestartAction) -> RestartRule {
        RestartRule { codes: codes.to_vec(), is_in, action }
    }

    /// A pod of one container of this role with these rules, which was started, and ended with this code if any.
    fn life(kind: ContainerKind, rules: &[RestartRule], code: Option<u32>) -> Life {
        let now = Now { mono: Mono(Duration::from_secs(500)), wall: Timestamp::UNIX_EPOCH };
        let mut container = Container { kind, ..fixtures::container("one") };
        container.restarts.rules = rules.to_vec();
        let (name, container) = (container.name.clone(), Arc::new(container));
        let mut pod = fixtures::pod(vec![fixtures::container("main")]);
        match kind {
            ContainerKind::Init | ContainerKind::Sidecar => pod.init_containers.push(container),
            ContainerKind::Main => pod.containers.push(container),
            ContainerKind::Ephemeral => pod.ephemeral_containers.push(container),
        }
        let mut pod = PodMachine::new(pod.into(), now);
        let id = ContainerId::of(pod.uid(), &name, 0);
        let exit = code.map(|code| ExitRecord {
            id: id.clone(),
            attempt: 0,
            exit: Exit { code, started_at: None, finished_at: now.wall, oom_killed: false },
            at: now.mono,
            message: String::new(),
            reason: None,
            post_start: None,
        });
        let begun = ContainerRecord::begun(id, 0, now.mono);
        pod.life.record.containers.insert(name, ContainerRecord { started_in: Some(0), exit, ..begun });
        pod.life
    }

    #[test]
    fn the_first_rule_that_matches_an_end_calls_for_all() {
        use ContainerKind::{Ephemeral, Init, Main, Sidecar};
        let on_42 = [rule(&[42], true, ALL)];
        let but_on_0 = [rule(&[0], false, ALL)];
        let first_one = [rule(&[42], true, ONE), rule(&[42, 43], true, ALL)];
        for (kind, rules, code, expected) in [
            (Main, &[][..], Some(42), false),
            (Main, &on_42, None, false),
            (Main, &on_42, Some(42), true),
            (Main, &on_42, Some(1), false),
            (Main, &on_42, Some(0), false),
            (Init, &on_42, Some(42), true),
            (Sidecar, &on_42, Some(42), true),
            (Sidecar, &on_42, Some(137), false),
            (Ephemeral, &on_42, Some(42), false),
            (Main, &but_on_0, Some(0), false),
            (Main, &but_on_0, Some(137), true),
            (Init, &[rule(&[0], true, ALL)], Some(0), true),
            (Main, &first_one, Some(42), false),
            (Main, &first_one, Some(43), true),
        ] {
            let mut life = life(kind, rules, code);
            assert_eq!(calls_for_all(&life), expected, "{kind:?} {rules:?} {code:?}");
            // What was stopped alone did not end by itself, unless that was to be its last run.
            let now = Mono(Duration::from_secs(500));
            let record = life.record.containers.get_mut(&ContainerName::new("one")).unwrap();
            record.stopping = Some(TerminationRecord { began: now, deadline: now });
            assert!(!calls_for_all(&life), "{kind:?} {rules:?} {code:?}: stopped");
            let record = life.record.containers.get_mut(&ContainerName::new("one")).unwrap();
            record.probed.afterwards = Afterwards::Never;
            assert_eq!(calls_for_all(&life), expected, "{kind:?} {rules:?} {code:?}: stopped for good");
        }
    }

    #[test]
    fn a_pod_may_begin_anew_when_a_container_that_stays_has_a_rule_for_it() {
        use ContainerKind::{Ephemeral, Init, Main, Sidecar};
        for (kind, rules, expected) in [
            (Main, &[][..], false),
            (Main, &[rule(&[42], true, ONE)], false),
            (Main, &[rule(&[42], true, ONE), rule(&[], true, ALL)], true),
            (Init, &[rule(&[42], true, ALL)], true),
            (Sidecar, &[rule(&[42], true, ALL)], true),
            (Ephemeral, &[rule(&[42], true, ALL)], false),
        ] {
            assert_eq!(has_rule_for_all(&life(kind, rules, None).spec), expected, "{kind:?} {rules:?}");
        }
    }

    /// Whatever it ended with, and whatever it waited for.
    #[test]
    fn all_get_their_next_run_at_once_and_those_that_never_ran_their_first() {
        let now = Now { mono: Mono(Duration::from_secs(600)), wall: Timestamp::UNIX_EPOCH };
        let mut pod = PodMachine::new(Arc::clone(&life(ContainerKind::Init, &[], None).spec), now);
        pod.life.record = life(ContainerKind::Init, &[rule(&[42], true, ALL)], Some(42)).record;
        let one = ContainerName::new("one");
        let backoff = crate::record::RestartBackoff { delay_ms: 20_000, since: now.mono };
        let run = pod.life.record.containers.get_mut(&one).unwrap();
        (run.backoff, run.has_run) = (backoff, true);
        pod.restart_all(now.mono);
        assert_eq!(pod.life.record.restarting.unwrap().deadline, now.mono + STOP_MIN);
        pod.begin_all(now.mono);
        assert_eq!(pod.life.record.restarting, None);
        assert_eq!(pod.life.record.containers.keys().collect::<Vec<_>>(), [&one]);
        let record = &pod.life.record.containers[&one];
        assert_eq!((record.attempt, record.anew, record.started_in, record.last_in), (1, true, None, None));
        assert_eq!((record.begun_at, record.has_run), (now.mono, false));
        assert_eq!(record.id, ContainerId::of(pod.uid(), &one, 1));
        assert_eq!(record.last_exit.as_ref().map(|exit| exit.exit.code), Some(42));
        assert_eq!((&record.exit, record.backoff), (&None, backoff));
        assert!(!crate::pod::restart::is_of_another(record), "it waits");
        assert!(!calls_for_all(&pod.life), "its end calls for it twice");
    }

    #[test]
    fn what_was_stopped_for_it_says_so_unless_more_is_known() {
        let known = "ContainerStatusUnknown".to_owned();
        for (message, reason, expected) in [
            ("", None, (MESSAGE, REASON)),
            ("bye", None, ("bye", REASON)),
            ("gone", Some(known), ("gone", "ContainerStatusUnknown")),
        ] {
            let (message, reason) = removed(message.to_owned(), reason);
            assert_eq!((message.as_str(), reason.as_deref()), (expected.0, Some(expected.1)));
        }
    }
}
