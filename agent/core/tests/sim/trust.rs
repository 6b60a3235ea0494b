//! What the record alone tells of: a shim that does not answer when the agent begins, and tells later that there is nothing.

use std::{sync::Arc, time::Duration};

use berth_core::{
    effect::{Act, Effect},
    id::{ImageRef, PodUid, SandboxId},
    observation::ObservedTask,
    spec::{Pod, RestartPolicy},
    status::ContainerState,
};

use crate::{pods, run::Run};

fn starts(effect: &Effect, name: &str) -> bool {
    matches!(effect, Effect::Pod { act: Act::StartContainer(request), .. } if request.container.name.as_str() == name)
}

fn until_start(run: &mut Run, name: &str) -> Effect {
    run.take_asked(|effect| starts(effect, name))
}

/// Does all but hear the shim.
fn settle_unheard(run: &mut Run) {
    while !run.finished.is_empty() || !run.open.is_empty() {
        if run.finished.is_empty() {
            run.perform(0);
        } else {
            run.deliver(0);
        }
    }
}

/// The agent is killed when containerd had made the record of a container and nothing more; the next one finds a shim that
/// does not answer.
fn begun_by_record(pod: Pod, name: &str) -> (Run, SandboxId) {
    let mut run = Run::new();
    run.settle();
    run.want(pod);
    let start = until_start(&mut run, name);
    let now = run.now;
    assert!(run.world.perform_half(&start, now));
    for container in run.world.containers.values_mut() {
        container.task = ObservedTask::Absent;
    }
    let sandbox = run.world.sandboxes.keys().next().cloned().unwrap();
    run.restart(Some(&sandbox));
    let status = &run.world.statuses[&PodUid::new("uid-web")];
    let all: Vec<_> = status.init_containers.iter().chain(&status.containers).collect();
    let shown = all.iter().find(|one| one.name.as_str() == name).unwrap();
    assert!(matches!(shown.state, ContainerState::Running { .. }), "it is taken to run");
    (run, sandbox)
}

fn check_first_run(run: &Run, name: &str) {
    let uid = PodUid::new("uid-web");
    assert!(run.world.running(&uid, name).is_some(), "{name} does not run");
    let record = &run.world.records[&uid].containers;
    let (_, record) = record.iter().find(|(known, _)| known.as_str() == name).unwrap();
    assert_eq!((record.attempt, record.exit.as_ref(), record.stopping), (0, None, None), "{name}");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// It never began: its policy has nothing to judge.
#[test]
fn what_was_never_begun_is_started_when_its_shim_does_not_know_it() {
    let pod = Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main"]) };
    let (mut run, _) = begun_by_record(pod, "main");
    run.settle();
    run.advance(Duration::from_secs(60), |_| {});
    run.settle();
    check_first_run(&run, "main");
}

/// The sandbox is found before its shim tells what is in it.
#[test]
fn main_containers_wait_for_a_sidecar_that_is_only_taken_to_run() {
    let (mut run, _) = begun_by_record(pods::pod("web", &["side-a", "main"]), "side-a");
    settle_unheard(&mut run);
    assert!(!run.told.iter().any(|effect| starts(effect, "main")), "main is started before it is known");
    run.settle();
    check_first_run(&run, "side-a");
    check_first_run(&run, "main");
}

/// One that runs opens the way when its shim says so.
#[test]
fn main_containers_start_when_the_shim_tells_that_the_sidecar_runs() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["side-a", "main"]));
    let start = until_start(&mut run, "side-a");
    let now = run.now;
    run.world.perform(&start, now);
    let sandbox = run.world.sandboxes.keys().next().cloned().unwrap();
    run.restart(Some(&sandbox));
    run.settle();
    check_first_run(&run, "side-a");
    check_first_run(&run, "main");
}

/// What was to stop for another version of it is not there: that one has nothing to stop for.
#[test]
fn another_version_takes_the_place_of_what_was_never_begun_and_goes_on() {
    let pod = pods::pod("web", &["main"]);
    let (mut run, _) = begun_by_record(pod.clone(), "main");
    let mut changed = pod;
    Arc::make_mut(&mut changed.containers[0]).hash = 2;
    run.want(changed);
    let is_to_stop = |run: &Run| {
        let mut records = run.world.records.values().flat_map(|record| record.containers.values());
        records.any(|record| record.stopping.is_some())
    };
    assert!(is_to_stop(&run), "it is taken to run, and to stop");
    run.settle();
    run.advance(Duration::from_secs(60), |_| {});
    run.settle();
    check_first_run(&run, "main");
}

/// An agent is killed while the runtime is at a start; what comes of that, the next one's own start does not tell.
#[test]
fn a_start_that_was_found_under_way_may_have_run_when_its_sandbox_goes() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    let Effect::Pod { pod, act: Act::StartContainer(request), .. } = until_start(&mut run, "main") else {
        panic!("a start");
    };
    assert!(run.world.begin_start(&pod, &request));
    run.restart(None);
    let start = until_start(&mut run, "main");
    let now = run.now;
    assert!(run.world.end_start(now), "the runtime is at no start");
    run.world.lose(&request.sandbox, now);
    run.open.push_front(start);
    run.perform(0);
    run.deliver(0);
    run.settle();
    let record = run.world.records[&pod].containers.values().next().unwrap();
    assert_eq!((record.attempt, record.last_exit.as_ref().map(|end| end.exit.code)), (1, Some(137)));
    assert!(run.world.running(&pod, "main").is_some());
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// An agent is killed before it asked for a restart, with another image by then: that one has a back-off of its own.
#[test]
fn another_image_in_the_place_of_a_restart_that_was_never_asked_for_backs_off() {
    let pod = pods::pod("web", &["main"]);
    let uid = pod.uid.clone();
    let mut run = Run::new();
    run.world.images.insert(ImageRef::new("other:1"));
    run.settle();
    run.want(pod.clone());
    run.settle();
    let first = run.world.running(&uid, "main").unwrap();
    run.world.exit(&first, 1, run.now);
    until_start(&mut run, "main");
    let mut changed = pod;
    let container = Arc::make_mut(&mut changed.containers[0]);
    (container.hash, container.image) = (2, ImageRef::new("other:1"));
    run.want(changed);
    run.restart(None);
    run.settle();
    let second = run.world.running(&uid, "main").unwrap();
    run.world.exit(&second, 1, run.now);
    run.settle();
    assert!(run.world.running(&uid, "main").is_none(), "it does not wait");
    run.advance(Duration::from_secs(11), |_| {});
    run.settle();
    assert!(run.world.running(&uid, "main").is_some());
    assert_eq!(run.world.violations, Vec::<String>::new());
}
