//! When the end of a container is shown: with its termination message, or without one when that cannot be read.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    event::{Event, Outcome},
    failure::FailureKind,
    id::PodUid,
    pod::port::look::Finding,
    spec::{Pod, RestartPolicy},
    status::{ContainerState, Phase},
};

use crate::{
    pods,
    run::Run,
    world::{Manner, failure},
};

/// Longer than the waits between three tries.
const WAITS: Duration = Duration::from_secs(10);

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

/// What everybody sees of the pod and of its container.
fn shown(run: &Run) -> (Phase, ContainerState) {
    let status = &run.world.statuses[&uid()];
    (status.phase, status.containers[0].state.clone())
}

/// The next read fails, or is not answered to its end.
fn fail_read(run: &mut Run, kind: FailureKind) {
    let is_read = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::ReadTerminationMessage(_), .. });
    let at = run.open.iter().position(is_read).expect("it is read");
    let read = run.open.remove(at).unwrap();
    run.finished.push_back((read.op(), Err(failure(kind, "no end within 60 s"))));
    run.deliver(0);
}

#[test]
fn an_end_is_shown_once_and_with_its_message_however_often_that_must_be_read() {
    let (hung, failed) = (FailureKind::Unknown, FailureKind::Transient);
    let cases: [(&[FailureKind], &str); 4] =
        [(&[], "bye"), (&[hung], "bye"), (&[failed, hung], "bye"), (&[hung, failed, hung], "")];
    for (failures, expected) in cases {
        let what = format!("{failures:?}");
        let mut run = Run::new();
        run.settle();
        let mut pod = pods::pod("web", &["main"]);
        pod.restart_policy = RestartPolicy::Never;
        run.want(pod);
        run.settle();
        let main = run.world.running(&uid(), "main").expect("it runs");
        let running = shown(&run);
        assert_eq!(running.0, Phase::Running);
        run.world.exit(&main, 3, run.now);
        run.report();
        for kind in failures {
            assert_eq!(shown(&run), running, "{what}: half an end is shown");
            fail_read(&mut run, *kind);
            run.advance(WAITS, |_| {});
        }
        run.settle();
        let (phase, state) = shown(&run);
        let ContainerState::Terminated(end) = state else { panic!("{what}: no end is shown") };
        assert_eq!((phase, end.exit_code, end.message.as_str()), (Phase::Failed, 3, expected), "{what}");
        assert_eq!(run.world.violations, Vec::<String>::new());
    }
}

/// Its next run waits for the sidecar, which crashes: what is known of its end is told, at last too. Source: `convertStatusToAPIStatus` of
/// `pkg/kubelet/kubelet_pods.go`; seen beside a kubelet (`sidecar-and-main-end` of `scripts/differential`).
#[test]
fn what_ended_is_shown_so_while_its_next_run_waits_for_a_sidecar() {
    let mut run = Run::new();
    run.settle();
    let pod = pods::pod("web", &["side-a", "main"]);
    run.want(pod.clone());
    run.settle();
    for (name, code) in [("side-a", 1), ("side-a", 1), ("main", 3)] {
        let id = run.world.running(&uid(), name).expect("it runs");
        run.world.exit(&id, code, run.now);
        run.report();
        run.settle();
    }
    let has_ended = |run: &Run| matches!(shown(run).1, ContainerState::Terminated(end) if end.exit_code == 3);
    assert!(has_ended(&run), "{:?}", shown(&run));
    run.want(Pod { deletion: Some(Duration::from_secs(5)), ..pod });
    run.settle();
    assert!(has_ended(&run), "{:?}", shown(&run));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Records are written whole at each change.
#[test]
fn a_record_has_of_last_words_what_a_status_can_show() {
    let mut run = Run::new();
    run.settle();
    run.want(Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main", "b", "c", "d"]) });
    run.settle();
    let main = run.world.running(&uid(), "main").expect("it runs");
    run.world.exit(&main, 3, run.now);
    run.report();
    let read = take(&mut run, |act| matches!(act, Act::ReadTerminationMessage(_)));
    let words = "x".repeat(4096);
    run.handle(Event::Done { op: read.op(), outcome: Ok(Outcome::TerminationMessage(words)) });
    run.settle();
    let record = &run.world.records[&uid()];
    let kept = record.containers.values().find_map(|run| run.exit.as_ref()).map(|exit| exit.message.len());
    assert_eq!(kept, Some(12 * 1024 / 4));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Its network namespace was removed, so it is to stop with its sandbox, and takes no signal.
#[test]
fn a_pod_has_failed_when_its_last_process_is_given_up() {
    let mut run = Run::new();
    run.settle();
    run.want(once());
    run.settle();
    let main = run.world.running(&uid(), "main").expect("it runs");
    assert!(run.world.change_behind(&uid(), Finding::Netns));
    run.advance(Duration::from_secs(300), |run| {
        run.world.manners.insert(main.clone(), Manner::Ignores);
        run.settle();
    });
    assert_eq!(shown(&run).0, Phase::Failed);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Another spec came while nobody knew of its process, and its network namespace was removed before anybody did.
#[test]
fn what_is_found_to_run_in_a_sandbox_that_is_replaced_is_not_stopped_for_its_spec() {
    let mut run = Run::new();
    run.settle();
    run.want(once());
    let is_start = |act: &Act| matches!(act, Act::StartContainer(_));
    let start = take(&mut run, is_start);
    let now = run.now;
    run.world.perform(&start, now);
    run.handle(Event::Done { op: start.op(), outcome: Err(failure(FailureKind::Unknown, "timed out")) });
    let mut other = once();
    pods::edit(&mut other, "main").hash += 1;
    run.want(other);
    run.advance(Duration::from_secs(2), |_| {});
    let look = take(&mut run, |act| matches!(act, Act::LookAtTask(_)));
    assert!(run.world.change_behind(&uid(), Finding::Netns));
    run.advance(Duration::from_secs(120), |run| while run.look() {});
    run.open.push_back(look);
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(shown(&run).0, Phase::Failed);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A pod whose container runs once.
fn once() -> Pod {
    Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main"]) }
}

/// Waits for an effect of a pod, and takes it out of those that are to be performed.
fn take(run: &mut Run, is_it: impl Fn(&Act) -> bool) -> Effect {
    let is_it = |effect: &Effect| matches!(effect, Effect::Pod { act, .. } if is_it(act));
    loop {
        if let Some(at) = run.open.iter().position(is_it) {
            return run.open.remove(at).unwrap();
        }
        assert!(run.settle_one(), "it is not asked for");
    }
}
