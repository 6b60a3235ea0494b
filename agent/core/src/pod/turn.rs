//! Whose turn it is to start: init containers one after the other, then the main containers; ephemeral containers at any time.

use super::{
    actual::{Follows, Life, Run},
    probe::has_started,
};
use crate::spec::{Container, ContainerKind};

/// Whether something behind a sidecar was begun in this sandbox: then the sidecar has had its turn, and holds up nobody when it runs again
/// (`computeInitContainerActions` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`).
pub(super) fn is_passed(life: &Life, sidecar: &Container) -> bool {
    let mut behind = life.spec.init_containers.iter().skip_while(|one| one.name != sidecar.name).skip(1);
    behind.any(|one| life.record.was_begun_here(&one.name))
}

/// Whether a main container was begun in this sandbox: then init containers do not run again in it.
pub(super) fn is_initialized(life: &Life) -> bool {
    life.spec.containers.iter().any(|main| life.record.was_begun_here(&main.name))
}

/// Whether a main container runs, or may: while one does, sidecars that run again hold up nobody. When none does, the last sidecar comes first
/// (`computeInitContainerActions`). One that was stopped alone ran when that was decided.
pub(super) fn has_main_running(life: &Life) -> bool {
    life.spec.containers.iter().any(|main| match life.run(&main.name) {
        Run::Starting(_) | Run::Running(_) => true,
        Run::Preparing(next) => {
            life.may_have_run(&main.name) || (next.follows == Follows::AStop && next.refused.is_none())
        }
        Run::Idle | Run::BackingOff | Run::Ended(_) => false,
    })
}

/// Whether all init containers before this one have ended well and all sidecars before it have started.
pub(super) fn is_in_turn(life: &Life, container: &Container) -> bool {
    let waits_for_nobody = match container.kind {
        ContainerKind::Ephemeral => true,
        ContainerKind::Init | ContainerKind::Sidecar => is_initialized(life),
        ContainerKind::Main => has_main_running(life),
    };
    if waits_for_nobody {
        return true;
    }
    let before = life.spec.init_containers.iter().take_while(|one| one.name != container.name);
    before.into_iter().all(|one| match one.kind {
        ContainerKind::Sidecar => {
            is_passed(life, one) || (matches!(life.run(&one.name), Run::Running(_)) && has_started(life, one))
        }
        ContainerKind::Init if is_initialized(life) => true,
        ContainerKind::Init | ContainerKind::Main | ContainerKind::Ephemeral => {
            let run = life.record.run_here(&one.name);
            run.is_some_and(|run| run.exit.as_ref().is_some_and(|exit| exit.exit.code == 0))
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::{
        fixtures,
        id::{ContainerId, ContainerName},
        observation::Exit,
        pod::machine::PodMachine,
        record::{ContainerRecord, ExitRecord},
        time::{Mono, Now},
    };

    const NOW: Now = Now { mono: Mono(std::time::Duration::ZERO), wall: Timestamp::UNIX_EPOCH };

    /// A sidecar, an init container behind it with this run, and a main container.
    fn life(run: Option<ContainerRecord>, sandbox: u32) -> Life {
        let of = |kind, name| Container { kind, ..fixtures::container(name) };
        let mut spec = fixtures::pod(vec![fixtures::container("web")]);
        let before = [of(ContainerKind::Sidecar, "proxy"), of(ContainerKind::Init, "first")];
        spec.init_containers = before.map(Into::into).into();
        let mut life = PodMachine::new(Arc::new(spec), NOW).life().clone();
        life.record.sandbox = sandbox;
        life.record.containers.extend(run.map(|run| (ContainerName::new("first"), run)));
        life
    }

    fn begun(sandbox: u32, code: Option<u32>) -> ContainerRecord {
        let id = ContainerId::from_known("first");
        let exit = code.map(|code| ExitRecord {
            id: id.clone(),
            attempt: 0,
            exit: Exit { code, started_at: None, finished_at: NOW.wall, oom_killed: false },
            at: NOW.mono,
            message: String::new(),
            reason: None,
            post_start: None,
        });
        ContainerRecord { started_in: Some(sandbox), exit, ..ContainerRecord::begun(id, 0, NOW.mono) }
    }

    /// Source: `TestComputePodActionsWithRestartableInitContainers` of `pkg/kubelet/kuberuntime/kuberuntime_manager_test.go`, "restart
    /// terminated restartable init container and next init container".
    #[test]
    fn a_sidecar_holds_up_nobody_once_something_behind_it_was_begun_in_this_sandbox() {
        let next = |mut run: ContainerRecord| {
            let Life { spec, .. } = life(None, 0);
            run.renew(&spec.uid, &ContainerName::new("first"));
            run
        };
        let decided = ContainerRecord::begun(ContainerId::from_known("first"), 0, NOW.mono);
        for (what, run, sandbox, passed) in [
            ("nothing ran", None, 0, false),
            ("its first run was decided", Some(decided), 0, false),
            ("it runs", Some(begun(0, None)), 0, true),
            ("it failed", Some(begun(0, Some(1))), 0, true),
            ("its next run was decided", Some(next(begun(0, Some(1)))), 0, true),
            ("that one could not be started", Some(next(next(begun(0, Some(1))))), 0, true),
            ("it ran in the sandbox before", Some(begun(0, Some(1))), 1, false),
            ("its first run in this sandbox was decided", Some(next(begun(0, Some(1)))), 1, false),
        ] {
            let life = life(run, sandbox);
            let [proxy, first] = [0, 1].map(|at| &life.spec.init_containers[at]);
            assert_eq!(is_passed(&life, proxy), passed, "{what}");
            assert_eq!(is_in_turn(&life, first), passed, "{what}");
            assert!(!is_in_turn(&life, &life.spec.containers[0]), "{what}");
        }
    }
}
