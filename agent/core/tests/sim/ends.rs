//! When the end of a container is shown: with its termination message, or without one when that cannot be read.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    failure::FailureKind,
    id::PodUid,
    spec::RestartPolicy,
    status::{ContainerState, Phase},
};

use crate::{pods, run::Run, world::failure};

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
