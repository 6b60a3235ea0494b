//! Pods of which the API tells that they ran, and of which the node knows nothing: the machine was switched off since; and runs that are followed by
//! others though their pod would not have it.

use std::{collections::BTreeMap, time::Duration};

use berth_core::{
    effect::{Act, Effect},
    id::{ContainerName, PodUid},
    spec::{Pod, RestartPolicy, ToldRun},
    status::{ContainerState, ContainerStatus, Phase, Terminated},
};

use crate::{pods, run::Run};

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

fn ended(code: u32) -> Terminated {
    let reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
    Terminated {
        exit_code: code,
        reason,
        message: String::new(),
        started_at: None,
        finished_at: None,
        id: None,
    }
}

fn shown(run: &Run, name: &str) -> ContainerStatus {
    let status = &run.world.statuses[&uid()];
    status.containers.iter().find(|one| one.name.as_str() == name).cloned().expect("a status")
}

fn code(status: &ContainerStatus) -> Option<u32> {
    match &status.state {
        ContainerState::Terminated(end) => Some(end.exit_code),
        ContainerState::Waiting { .. } | ContainerState::Running { .. } => None,
    }
}

/// Two containers: one that has ended, and one that ran until the machine went.
#[test]
fn what_ended_for_good_does_not_run_again_after_a_reboot() {
    let told = |end| ToldRun { restarts: 2, end, before: None, image: None };
    for (policy, end, import, serve, phase) in [
        (RestartPolicy::Never, 0, (Some(0), 2), (Some(137), 2), Phase::Failed),
        (RestartPolicy::OnFailure, 0, (Some(0), 2), (None, 3), Phase::Running),
        (RestartPolicy::OnFailure, 5, (None, 3), (None, 3), Phase::Running),
        (RestartPolicy::Always, 0, (None, 3), (None, 3), Phase::Running),
    ] {
        let have_run = BTreeMap::from([
            (ContainerName::new("import"), told(Some(ended(end)))),
            (ContainerName::new("serve"), told(None)),
        ]);
        let pod = Pod { restart_policy: policy, have_run, ..pods::pod("web", &["import", "serve"]) };
        let mut run = Run::new();
        run.settle();
        run.want(pod);
        run.advance(Duration::from_secs(600), Run::settle);
        for (name, expected) in [("import", import), ("serve", serve)] {
            let status = shown(&run, name);
            assert_eq!(
                (code(&status), status.restart_count),
                expected,
                "{policy:?} {end} {name}: {status:?}"
            );
            let last = status.last_state.map(|last| last.exit_code);
            let is_again = expected.0.is_none();
            assert_eq!(last.is_some(), is_again, "{policy:?} {end} {name}");
        }
        // The oracle knows nothing of runs on another day.
        assert_eq!(run.world.statuses[&uid()].phase, phase, "{policy:?} {end}");
    }
}

/// The API server takes nothing of a container that is told to have ended for good and then to be in another state.
#[test]
fn a_run_that_is_followed_by_another_against_its_policy_is_never_told_to_have_ended() {
    let version = |hash| {
        let mut pod = Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main"]) };
        pods::edit(&mut pod, "main").hash = hash;
        pod
    };
    let mut run = Run::new();
    run.settle();
    run.want(version(1));
    run.settle();
    run.told.clear();
    run.want(version(2));
    run.advance(Duration::from_secs(60), Run::settle);
    let statuses = run.told.iter().filter_map(|effect| match effect {
        Effect::Pod { act: Act::Publish(published), .. } => Some(&published.status),
        _ => None,
    });
    let ends = statuses.flat_map(|status| &status.containers).filter_map(code).count();
    assert_eq!(ends, 0, "{:?}", run.told);
    let status = shown(&run, "main");
    assert!(matches!(status.state, ContainerState::Running { .. }), "{status:?}");
    assert_eq!((status.restart_count, status.last_state.is_some()), (1, true));
    assert_eq!(run.world.violations, Vec::<String>::new());
}
