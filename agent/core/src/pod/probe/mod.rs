//! Probes: when a container is asked, and what its answers add up to. Values alone; what is asked and what becomes of a
//! verdict is in [`port/probe.rs`](crate::pod::port::probe).
//!
//! ```text
//!            ┌────────── tick, or tried early ──────────┐
//!            ▼                                          │
//! (none) ──▶ Due ──asked──▶ Asking ──answer──▶ thresholds ──verdict──▶ the pod's record
//!   ▲                         │ not wanted any more
//!   └───────answer────── Ending ◀┘
//! ```
//!
//! A container has a worker per probe while the probe is wanted: that is a function of the pod ([`is_wanted`]), so what the
//! kubelet keeps in flags (on hold after a verdict, disabled until started) needs no state here. A question that hangs keeps
//! its worker until it has ended, also when the run it was about is over: nothing is ever asked twice at once.
//!
//! Source: `pkg/kubelet/prober/worker.go`, `prober.go`, `prober_manager.go`.

mod dial;
mod rhythm;
mod worker;

pub use dial::{Dial, redial_after};
pub(in crate::pod) use rhythm::{Rhythm, Try};
pub(in crate::pod) use worker::{State, Worker};

use super::actual::{Life, Run, Stage};
use crate::{
    record::PostStart,
    spec::{Container, ContainerKind, ProbeKind},
};

/// Whether a container that runs has begun: its postStart hook is over.
#[must_use]
pub(in crate::pod) fn has_begun(life: &Life, container: &Container) -> bool {
    container.lifecycle.post_start.is_none()
        || life
            .record
            .containers
            .get(&container.name)
            .is_some_and(|run| run.hooked.post_start == PostStart::Over)
}

/// Whether a container that runs is shown as running. In a pod that ends everything that runs is.
#[must_use]
pub(in crate::pod) fn is_shown_running(life: &Life, container: &Container) -> bool {
    has_begun(life, container) || life.stage() == Stage::Stop
}

/// Whether a container has started: it runs, its postStart hook is over, and its startup probe has succeeded.
#[must_use]
pub(in crate::pod) fn has_started(life: &Life, container: &Container) -> bool {
    has_begun(life, container) && has_passed_startup(life, container)
}

/// Whether its startup probe has succeeded, where it has one.
#[must_use]
pub(in crate::pod) fn has_passed_startup(life: &Life, container: &Container) -> bool {
    container.probes.startup.is_none()
        || life.record.containers.get(&container.name).is_some_and(|run| run.probed.started)
}

/// Whether a container that has started can serve.
#[must_use]
pub(in crate::pod) fn is_ready(life: &Life, container: &Container) -> bool {
    container.probes.readiness.is_none()
        || life.record.containers.get(&container.name).is_some_and(|run| run.probed.ready)
}

/// Whether a probe is to ask now: not before the postStart hook is over. Readiness is asked for as long as the container runs, also
/// while the pod is taken down; the others only while their failure would change something.
#[must_use]
pub(in crate::pod) fn is_wanted(life: &Life, container: &Container, kind: ProbeKind) -> bool {
    let is_running = matches!(life.run(&container.name), Run::Running(_));
    let is_asked = match container.kind {
        ContainerKind::Main | ContainerKind::Sidecar => true,
        ContainerKind::Init | ContainerKind::Ephemeral => false,
    };
    let is_there = is_asked && container.probes.of(kind).is_some();
    if !is_running || !is_there || !has_begun(life, container) {
        return false;
    }
    let is_stopping = life.record.containers.get(&container.name).is_none_or(|run| run.stopping.is_some());
    let is_kept = life.record.replacing.is_none() && life.record.restarting.is_none();
    let goes_on = life.stage() == Stage::Run && is_kept && !is_stopping;
    match kind {
        ProbeKind::Startup => goes_on && !has_started(life, container),
        ProbeKind::Liveness => goes_on && has_started(life, container),
        ProbeKind::Readiness => has_started(life, container),
    }
}
