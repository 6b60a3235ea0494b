//! What the source of a pod says of its runs. Of those of which nothing is known here the machine has forgotten: it was switched off, or what was
//! recorded is lost. None of them begins as if it were the first.

use crate::{
    id::{Attempt, ContainerId, SandboxId},
    observation::Exit,
    record::{ContainerRecord, ExitRecord, PodRecord},
    spec::Pod,
    status::Terminated,
    time::Now,
};

/// How a run has ended that its source has seen running and the node does not know (`convertToAPIContainerStatuses` of
/// `pkg/kubelet/kubelet_pods.go`).
const UNLOCATED: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";

/// Takes what the source says of a pod of which the runtime knows nothing: the sandbox of those runs is gone.
pub(super) fn take_of_another_life(record: &mut PodRecord, spec: &Pod, now: Now) {
    take(record, spec, now);
    if spec.fixed_containers().any(|one| record.containers.contains_key(&one.name)) {
        record.sandbox = record.sandbox.saturating_add(1);
        record.sandbox_id = SandboxId::of(&spec.uid, record.sandbox);
    }
}

/// Takes what the source says beyond what the runtime knows. Of a pod that has ended it says all that there is to tell.
pub(super) fn take(record: &mut PodRecord, spec: &Pod, now: Now) {
    for container in spec.all_containers().filter(|_| spec.ended.is_none()) {
        let Some(told) = spec.have_run.get(&container.name) else { continue };
        let id = |attempt| ContainerId::of(&spec.uid, &container.name, attempt);
        let ended = |attempt, end: &Terminated| end_of(id(attempt), attempt, end, now);
        if let Some(known) = record.containers.get_mut(&container.name) {
            let before = if known.attempt > told.restarts { &told.end } else { &told.before };
            known.last_exit = before.as_ref().map(|end| ended(known.attempt.saturating_sub(1), end));
            // Its end was told, and its record in the runtime is still there.
            let is_it = |end: &&Terminated| end.id.as_ref() == Some(&known.id);
            known.exit = told.end.as_ref().filter(is_it).map(|end| ended(known.attempt, end));
            known.image = told.image.clone().filter(|_| known.attempt == told.restarts);
            continue;
        }
        let end = told.end.clone().unwrap_or_else(|| Terminated::unlocated(UNLOCATED));
        let exit = ended(told.restarts, &end);
        let last_exit = told.before.as_ref().map(|end| ended(told.restarts.saturating_sub(1), end));
        let begun = ContainerRecord::begun(id(told.restarts), told.restarts, now.mono);
        // In which sandbox it ran is not told: none of this pod was initialized by it.
        let run = ContainerRecord { exit: Some(exit), last_exit, image: told.image.clone(), ..begun };
        record.containers.insert(container.name.clone(), run);
    }
}

/// What others say is shown, and nothing of that name is touched.
fn end_of(id: ContainerId, attempt: Attempt, end: &Terminated, now: Now) -> ExitRecord {
    let finished_at = end.finished_at.unwrap_or(now.wall);
    ExitRecord {
        id: end.id.clone().unwrap_or(id),
        attempt,
        exit: Exit { code: end.exit_code, started_at: end.started_at, finished_at, oom_killed: false },
        at: now.mono_of(finished_at),
        message: end.message.clone(),
        reason: Some(end.reason.clone()).filter(|reason| !reason.is_empty()),
        post_start: None,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use jiff::Timestamp;

    use super::*;
    use crate::{
        fixtures,
        id::ContainerName,
        observation::{Observation, ObservedContainer, ObservedTask},
        pod::PodMachine,
        record::RunImage,
        spec::{Container, ContainerKind, Ended, ToldRun},
        time::Mono,
    };

    const NOW: Now = Now { mono: Mono(Duration::from_secs(500)), wall: Timestamp::UNIX_EPOCH };

    fn end(code: u32, id: &str) -> Terminated {
        Terminated {
            exit_code: code,
            reason: "Error".into(),
            message: "m".into(),
            started_at: None,
            finished_at: Some(Timestamp::UNIX_EPOCH),
            id: Some(ContainerId::from_known(id)),
        }
    }

    fn image() -> RunImage {
        RunImage { name: "web:1".into(), id: "sha256:01".into(), stop_signal: None, user: None }
    }

    fn pod(kind: ContainerKind, told: Option<ToldRun>) -> Arc<Pod> {
        let one = Container { kind, ..fixtures::container("one") };
        let have_run = told.map(|run| (one.name.clone(), run)).into_iter().collect();
        let mut pod = fixtures::pod(vec![fixtures::container("web")]);
        match kind {
            ContainerKind::Init | ContainerKind::Sidecar => pod.init_containers = vec![one.into()],
            ContainerKind::Main => pod.containers.push(one.into()),
            ContainerKind::Ephemeral => pod.ephemeral_containers = vec![one.into()],
        }
        Arc::new(Pod { have_run, ..pod })
    }

    /// Codes of its end and of the one before, how often it began again, and the number of the sandbox that is next.
    fn taken(pod: &PodMachine) -> Option<(Option<u32>, Option<u32>, u32, u32)> {
        let record = &pod.life().record;
        let run = record.containers.get(&ContainerName::new("one"))?;
        let code = |end: &Option<ExitRecord>| end.as_ref().map(|end| end.exit.code);
        Some((code(&run.exit), code(&run.last_exit), run.attempt, record.sandbox))
    }

    /// The records of this node went with the machine's memory.
    #[test]
    fn what_has_run_by_the_source_is_not_begun_as_if_it_had_not() {
        use ContainerKind::{Ephemeral, Init, Main, Sidecar};
        let told = |restarts, end, before| Some(ToldRun { restarts, end, before, image: Some(image()) });
        for (kind, sandbox) in [(Main, 1), (Init, 1), (Sidecar, 1), (Ephemeral, 0)] {
            for (told, expected) in [
                (None, None),
                (told(3, None, None), Some((Some(137), None, 3))),
                (told(3, Some(end(0, "a")), None), Some((Some(0), None, 3))),
                (told(3, Some(end(0, "a")), Some(end(7, "b"))), Some((Some(0), Some(7), 3))),
                (told(0, Some(end(1, "a")), None), Some((Some(1), None, 0))),
            ] {
                let new = PodMachine::new(pod(kind, told.clone()), NOW);
                let expected = expected.map(|(end, before, restarts)| (end, before, restarts, sandbox));
                assert_eq!(taken(&new), expected, "{kind:?} {told:?}");
                let id = &new.life().record.sandbox_id;
                assert_eq!(*id, SandboxId::of(&new.life().spec.uid, new.life().record.sandbox));
            }
        }
        let lost = PodMachine::new(pod(Main, told(0, None, None)), NOW);
        let run = &lost.life().record.containers[&ContainerName::new("one")];
        let reason = run.exit.as_ref().and_then(|end| end.reason.clone());
        assert_eq!((reason.as_deref(), &run.image), (Some("ContainerStatusUnknown"), &Some(image())));
    }

    /// What the source has stays as it is.
    #[test]
    fn of_a_pod_that_has_ended_nothing_is_taken() {
        let told = ToldRun { restarts: 3, end: Some(end(0, "a")), before: None, image: Some(image()) };
        let ended = Some(Ended { succeeded: true, reason: String::new(), message: String::new() });
        let spec = Arc::new(Pod { ended, ..Pod::clone(&pod(ContainerKind::Main, Some(told))) });
        let found = PodMachine::found(Arc::clone(&spec), &Observation::default(), NOW);
        for pod in [PodMachine::new(spec, NOW), found] {
            assert_eq!((taken(&pod), pod.life().record.sandbox), (None, 0));
        }
    }

    /// The machine was switched off, or the record of the pod was lost.
    #[test]
    fn what_the_runtime_knows_counts_and_the_source_tells_what_was_before() {
        let seen_id = "seen";
        let told = |end, before| ToldRun { restarts: 3, end, before, image: Some(image()) };
        for (attempt, told, expected) in [
            // The record of the very run that ended is still there.
            (3, told(Some(end(0, seen_id)), Some(end(7, "b"))), (Some(0), Some(7), 3)),
            // It began again since.
            (4, told(Some(end(1, "a")), Some(end(7, "b"))), (Some(255), Some(1), 4)),
            (3, told(None, Some(end(7, "b"))), (Some(255), Some(7), 3)),
            (4, told(None, None), (Some(255), None, 4)),
        ] {
            let spec = pod(ContainerKind::Main, Some(told.clone()));
            let seen = ObservedContainer {
                id: ContainerId::from_known(seen_id),
                pod: spec.uid.clone(),
                name: ContainerName::new("one"),
                attempt,
                sandbox: None,
                hash: 0,
                task: ObservedTask::Absent,
            };
            let observation = Observation { containers: vec![seen], ..Observation::default() };
            let found = PodMachine::found(spec, &observation, NOW);
            let (end, before, restarts, _) = taken(&found).unwrap();
            assert_eq!((end, before, restarts), expected, "{attempt} {told:?}");
            let has_image = found.life().record.containers[&ContainerName::new("one")].image.is_some();
            assert_eq!(has_image, attempt == told.restarts, "{attempt} {told:?}");
        }
    }
}
