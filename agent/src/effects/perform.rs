//! From an effect to its outcome: a place in its lane, a deadline, the executor, and exactly one [`Event::Done`].

use std::sync::Arc;

use berth_core::{
    effect::{Act, Effect, NodeAct},
    event::{Event, Outcome},
    failure::{Failure, FailureKind},
    id::PodUid,
};
use tokio::sync::mpsc;
use tracing::Instrument;

use super::{
    cgroups, end,
    files::{dirs, termination, volumes},
    host::Host,
    images::{inspect, pull, rootfs},
    kinds::{self, Kind},
    look::{look, write_files},
    network,
    runtime::{container, kill, look as look_in, sandbox, signal},
};

/// Begins an effect in a task of its own. Its outcome goes to `events`.
pub fn start(host: &Arc<Host>, effect: Effect, events: &mpsc::Sender<Event>) {
    let Some(kind) = Kind::of(&effect) else { return };
    let (host, events) = (Arc::clone(host), events.clone());
    let pod = match &effect {
        Effect::Pod { pod, .. } => pod.as_str().to_owned(),
        Effect::Node { .. } => String::new(),
    };
    let span = tracing::info_span!("effect", kind = kind.name, op = effect.op().0, pod);
    let task = async move {
        let op = effect.op();
        let outcome = bounded(&host, effect, kind).await;
        if let Err(failure) = &outcome {
            let Failure { kind: sort, message } = failure;
            tracing::debug!(?sort, message, "effect failed");
        }
        // Fails only when the loop has ended, and nobody waits for the outcome.
        drop(events.send(Event::Done { op, outcome }).await);
    };
    tokio::spawn(task.instrument(span));
}

async fn bounded(host: &Arc<Host>, effect: Effect, kind: Kind) -> Result<Outcome, Failure> {
    let began = tokio::time::Instant::now();
    let target = kinds::target(&effect);
    let work = async {
        host.failpoint.before(kind.name);
        Box::pin(perform(host, effect)).await
    };
    let outcome = host.lanes.run(kind, target, work).await;
    tracing::debug!(ms = began.elapsed().as_millis(), ok = outcome.is_ok(), "effect ended");
    host.failpoint.after(kind.name);
    outcome
}

async fn perform(host: &Arc<Host>, effect: Effect) -> Result<Outcome, Failure> {
    match effect {
        Effect::Pod { pod, act, .. } => perform_act(host, &pod, act).await,
        Effect::Node { act, .. } => match act {
            NodeAct::InspectImage(image) => inspect::inspect(host, &image).await,
            NodeAct::PullImage(image) => pull::pull(host, &image).await,
            NodeAct::SetQos(values) => cgroups::set_qos(host, *values).await,
        },
    }
}

async fn perform_act(host: &Arc<Host>, pod: &PodUid, act: Act) -> Result<Outcome, Failure> {
    match act {
        Act::EnsureCgroup(request) => cgroups::ensure(host, pod, request).await,
        Act::EnsureDirs(name) => dirs::ensure(host, pod, name).await,
        Act::EnsureNetns(sandbox) => network::ensure_netns(host, &sandbox).await,
        Act::EnsureNetwork(request) => network::ensure(host, &request).await,
        Act::EnsureSandbox(request) => sandbox::ensure(host, &request).await,
        Act::EnsureVolume(request) => volumes::ensure(host, pod, *request).await,
        Act::EnsureRootfs(request) => rootfs::ensure(host, pod, &request).await,
        Act::StartContainer(request) => container::start(host, &Arc::from(request)).await,
        Act::WriteFiles(files) => write_files(host, pod, &files).await,
        Act::Look(request) => look(host, pod, *request).await,
        Act::KeepEnd(record) => end::keep(host, *record).await,
        Act::LookAtTask(request) => look_in::at_task(host, &request).await,
        Act::Signal(request) => signal::send(host, &request).await,
        Act::ReadTerminationMessage(request) => termination::read(host, pod, *request).await,
        Act::RemoveContainer(request) => container::remove(host, &request.id).await,
        Act::RemoveSandbox(sandbox) => sandbox::remove(host, pod, &sandbox).await,
        Act::KillShim(sandbox) => kill::shim(host, &sandbox).await,
        Act::RemoveNetwork(request) => network::remove(host, &request).await,
        Act::RemoveNetns(sandbox) => network::remove_netns(host, &sandbox).await,
        Act::RemoveVolumes => volumes::remove_all(host, pod).await,
        Act::RemoveCgroup(qos) => cgroups::remove(host, pod, qos).await,
        Act::RemoveDirs(name) => dirs::remove(host, pod, name).await,
        Act::DropEnd => end::drop(host, pod).await,
        Act::Sweep => dirs::sweep(host, pod).await,
        Act::Persist(_) | Act::Forget | Act::Publish(_) | Act::Withdraw | Act::Note(_) => Err(Failure {
            kind: FailureKind::Unknown,
            message: "an effect of the loop was given to a task".to_owned(),
        }),
    }
}
