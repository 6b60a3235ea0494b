//! Whose turn it is to start: init containers one after the other, then the main containers; ephemeral containers at any time.

use super::{
    actual::{Life, Run},
    probe::has_started,
};
use crate::spec::{Container, ContainerKind};

/// Whether something behind a sidecar was begun in this sandbox: then the sidecar has had its turn, and holds up nobody when it runs again
/// (`computeInitContainerActions` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`).
pub(super) fn is_passed(life: &Life, sidecar: &Container) -> bool {
    let mut behind = life.spec.init_containers.iter().skip_while(|one| one.name != sidecar.name).skip(1);
    behind.any(|one| life.record.run_here(&one.name).is_some())
}

/// Whether all init containers before this one have ended well and all sidecars before it have started.
pub(super) fn is_in_turn(life: &Life, container: &Container) -> bool {
    if container.kind == ContainerKind::Ephemeral {
        return true;
    }
    if life.spec.containers.iter().any(|main| life.record.run_here(&main.name).is_some()) {
        return true;
    }
    let before = life.spec.init_containers.iter().take_while(|one| one.name != container.name);
    before.into_iter().all(|one| match one.kind {
        ContainerKind::Sidecar => {
            is_passed(life, one) || (matches!(life.run(&one.name), Run::Running(_)) && has_started(life, one))
        }
        ContainerKind::Init | ContainerKind::Main | ContainerKind::Ephemeral => {
            let run = life.record.run_here(&one.name);
            run.is_some_and(|run| run.exit.as_ref().is_some_and(|exit| exit.exit.code == 0))
        }
    })
}
