//! From an effect to its outcome: a place in its lane, a deadline, the executor, and exactly one [`Event::Done`].

use std::sync::Arc;

use berth_core::{
    effect::{Act, Effect, NodeAct},
    event::{Event, Outcome},
    failure::{Failure, FailureKind},
    id::{OpId, PodUid, SandboxId},
    pod::port::start_failure::Sandbox,
};
use tokio::sync::mpsc;
use tracing::Instrument;

use super::{
    cgroups, end,
    files::{dirs, termination, volumes},
    hook,
    host::Host,
    images::{collection, inspect, pull, rootfs, volume},
    kinds::{self, EffectKind},
    look::{look, write_files},
    network, node_object, probe,
    runtime::{container, kill, look as look_in, resize, sandbox, signal},
};
use crate::{metrics::Subject, runtime::Shims};

/// Begins an effect in a task of its own. Its outcome goes to `events`.
pub fn start(host: &Arc<Host>, effect: Effect, events: &mpsc::Sender<Event>) {
    let Some(kind) = EffectKind::of(&effect) else { return };
    let (host, events) = (Arc::clone(host), events.clone());
    let pod = match &effect {
        Effect::Pod { pod, .. } => pod.as_str().to_owned(),
        Effect::Node { .. } => String::new(),
    };
    let sandbox = match &effect {
        Effect::Pod { act, .. } => kinds::sandbox_of(act).cloned(),
        Effect::Node { .. } => None,
    };
    let hook = match &effect {
        Effect::Pod { op, act: Act::RunHook(_), .. } => Some(*op),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    };
    let pull = match &effect {
        Effect::Node { op, act: NodeAct::PullImage(_) } => Some(host.unwanted.begin(*op)),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    };
    let hooks = host.hooks.clone();
    let span = tracing::info_span!("effect", kind = kind.name, op = effect.op().0, pod);
    let task = async move {
        let op = effect.op();
        let outcome = bounded(&host, effect, kind).await;
        drop(pull);
        if let Err(failure) = &outcome {
            let Failure { kind: sort, message } = failure;
            tracing::debug!(?sort, message, "effect failed");
        }
        tell(op, outcome, sandbox.as_ref(), &host.shims, &events).await;
    };
    match hook {
        Some(op) => hooks.begin(op, task.instrument(span)),
        None => drop(tokio::spawn(task.instrument(span))),
    }
}

/// Tells what came of an effect. What the shim of a lost sandbox wrote down of ends comes first: after the loss, all that ran in it
/// counts as killed.
async fn tell(
    op: OpId,
    outcome: Result<Outcome, Failure>,
    sandbox: Option<&SandboxId>,
    shims: &Shims,
    events: &mpsc::Sender<Event>,
) {
    if let Some(sandbox) = sandbox.filter(|_| is_loss(&outcome)) {
        shims.tell_ends(sandbox).await;
    }
    // Fails only when the loop has ended, and nobody waits for the outcome.
    drop(events.send(Event::Done { op, outcome }).await);
}

/// Whether an effect is answered with the loss of its sandbox.
fn is_loss(outcome: &Result<Outcome, Failure>) -> bool {
    match outcome {
        Ok(Outcome::NotStarted(failure)) => failure.sandbox == Sandbox::Gone,
        Ok(_) => false,
        Err(failure) => failure.kind == FailureKind::SandboxGone,
    }
}

async fn bounded(host: &Arc<Host>, effect: Effect, kind: EffectKind) -> Result<Outcome, Failure> {
    let began = tokio::time::Instant::now();
    let (name, subject) = (kind.name, Subject::of(&effect));
    let work = async {
        host.failpoint.before(name);
        Box::pin(perform(host, effect)).await
    };
    let outcome = host.lanes.run(kind, work).await;
    tracing::debug!(ms = began.elapsed().as_millis(), ok = outcome.is_ok(), "effect ended");
    host.metrics.ended(name, &subject, &outcome, began.elapsed());
    host.failpoint.after(name);
    outcome
}

async fn perform(host: &Arc<Host>, effect: Effect) -> Result<Outcome, Failure> {
    match effect {
        Effect::Pod { pod, act, .. } => perform_act(host, &pod, act).await,
        Effect::Node { op, act } => match act {
            NodeAct::InspectImage(image) => inspect::inspect(host, &image).await,
            NodeAct::PullImage(image) => pull::pull(host, op, &image).await,
            NodeAct::MeasureImages => collection::measure(host).await,
            NodeAct::ListImages => collection::list(host).await,
            NodeAct::RemoveImage(removal) => collection::remove(host, &removal).await,
            NodeAct::SetQos(values) => cgroups::set_qos(host, *values).await,
            NodeAct::ReadNodeObject => node_object::read(host).await,
            NodeAct::GiveUpPull(_) | NodeAct::Note(_) => Err(of_the_loop()),
        },
    }
}

async fn perform_act(host: &Arc<Host>, pod: &PodUid, act: Act) -> Result<Outcome, Failure> {
    match act {
        Act::EnsureCgroup(request) => cgroups::ensure(host, pod, request).await,
        Act::EnsureDirs(name) => dirs::ensure(host, pod, name).await,
        Act::EnsureNetns(request) => network::ensure_netns(host, &request).await,
        Act::EnsureNetwork(request) => network::ensure(host, &request).await,
        Act::EnsureSandbox(request) => sandbox::ensure(host, &request).await,
        Act::EnsureVolume(request) => match &request.image {
            Some(image) => volume::ensure(host, pod, &request, image).await,
            None => volumes::ensure(host, pod, *request).await,
        },
        Act::EnsureRootfs(request) => rootfs::ensure(host, pod, &request).await,
        Act::StartContainer(request) => container::start(host, &Arc::from(request)).await,
        Act::WriteFiles(files) => write_files(host, pod, &files).await,
        Act::Look(request) => look(host, pod, *request).await,
        Act::Probe(request) => probe::ask(host, pod, &request).await,
        Act::RunHook(request) => hook::run(host, pod, &request).await,
        Act::KeepEnd(record) => end::keep(host, *record).await,
        Act::LookAtTask(request) => look_in::at_task(host, &request).await,
        Act::ResizeContainer(request) => resize::container(host, pod, *request).await,
        Act::CheckMemory(request) => resize::check_memory(host, pod, request).await,
        Act::Signal(request) => signal::send(host, &request).await,
        Act::ReadTerminationMessage(request) => termination::read(host, pod, *request).await,
        Act::RemoveContainer(request) => container::remove(host, &request.id).await,
        Act::RemoveSandbox(sandbox) => sandbox::remove(host, pod, &sandbox).await,
        Act::KillShim(sandbox) => kill::shim(host, &sandbox).await,
        Act::RemoveNetwork(sandbox) => network::remove(host, &sandbox).await,
        Act::RemoveNetns(sandbox) => network::remove_netns(host, &sandbox).await,
        Act::RemoveVolumes { with_images: true } => volume::remove_all(host, pod).await,
        Act::RemoveVolumes { with_images: false } => volumes::remove_all(host, pod).await,
        Act::RemoveCgroup(qos) => cgroups::remove(host, pod, qos).await,
        Act::RemoveDirs(name) => dirs::remove(host, pod, name).await,
        Act::DropEnd => end::drop(host, pod).await,
        Act::Sweep => sweep(host, pod).await,
        Act::Persist(_)
        | Act::Forget
        | Act::Publish(_)
        | Act::Withdraw
        | Act::Note(_)
        | Act::GiveUpHook(_) => Err(of_the_loop()),
    }
}

/// Removes whatever is left under a UID. What containerd keeps of it comes when all else has gone but the mark, by which it is found again.
async fn sweep(host: &Arc<Host>, pod: &PodUid) -> Result<Outcome, Failure> {
    volumes::remove_all(host, pod).await?;
    dirs::sweep_beside(host, pod).await?;
    volume::remove_all(host, pod).await?;
    dirs::remove_marked(host, pod).await
}

fn of_the_loop() -> Failure {
    Failure { kind: FailureKind::Unknown, message: "an effect of the loop was given to a task".to_owned() }
}

#[cfg(test)]
mod tests {
    use berth_core::{
        id::ContainerId,
        observation::SandboxReport,
        pod::port::start_failure::{Answer, Call, StartFailure},
    };
    use berth_proto::shim::{Exit, Task, TaskStatus};
    use prost::Message;

    use super::*;

    #[tokio::test]
    async fn what_a_lost_shim_wrote_down_of_ends_is_told_before_the_loss_and_with_nothing_else() {
        let (op, sandbox) = (OpId(1), SandboxId::of(&PodUid::new("u"), 0));
        let failed = |kind| Err(Failure { kind, message: "no".into() });
        let not_started = |sandbox| {
            let (call, answer) = (Call::Create, Answer::Failed);
            let (cause, message) = ("no".into(), "no".into());
            Ok(Outcome::NotStarted(Box::new(StartFailure { call, answer, sandbox, cause, message })))
        };
        let cases = [
            (failed(FailureKind::SandboxGone), true),
            (not_started(Sandbox::Gone), true),
            (not_started(Sandbox::Up), false),
            (failed(FailureKind::Unknown), false),
            (Ok(Outcome::Sandbox { pid: 1, recursive_read_only: false }), false),
        ];
        for (outcome, is_told) in cases {
            let dir = tempfile::tempdir().unwrap();
            let (events, mut told) = mpsc::channel(2);
            let shims = Shims::new(dir.path().to_str().unwrap(), dir.path(), events.clone());
            let exits = shims.socket(&sandbox).with_extension("exits");
            std::fs::create_dir_all(&exits).unwrap();
            let exit = Exit { code: 7, exited_at: 2_000_000_000, oom_kills: 0 };
            let status = TaskStatus::Stopped.into();
            let task = Task { id: "c1".into(), status, exit: Some(exit), ..Task::default() };
            std::fs::write(exits.join("c1"), task.encode_to_vec()).unwrap();
            tell(op, outcome.clone(), Some(&sandbox), &shims, &events).await;
            if is_told {
                let Some(Event::Sandbox { id, report: SandboxReport::Exited { id: of, exit } }) =
                    told.recv().await
                else {
                    panic!("{outcome:?}: nothing is told")
                };
                assert_eq!((id, of, exit.code), (sandbox.clone(), ContainerId::from_known("c1"), 7));
            }
            assert_eq!(told.recv().await, Some(Event::Done { op, outcome }));
            assert_eq!(told.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        }
    }
}
