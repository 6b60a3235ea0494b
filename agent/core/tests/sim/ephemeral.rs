//! Ephemeral containers: when they start, that they run once, and that they count for nothing.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    failure::FailureKind,
    id::{ContainerName, PodUid},
    pod::port::{signal::SignalRequest, start::StartRequest},
    spec::{PidMode, Pod, RestartPolicy},
    status::{ConditionKind, ContainerState, ContainerStatus, Phase, PodStatus},
};

use crate::{pods, run::Run, world::failure};

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

/// A pod whose containers have begun as far as they can.
fn begin(pod: Pod) -> Run {
    let mut run = Run::new();
    run.want(pod);
    run.settle();
    run
}

fn add(run: &mut Run, name: &str, target: Option<&str>) {
    let mut pod = Pod::clone(&run.spec("web").expect("it is wanted"));
    pods::debug(&mut pod, name, target);
    run.want(pod);
    run.settle();
}

fn runs(run: &Run, name: &str) -> bool {
    run.world.running(&uid(), name).is_some()
}

fn exit(run: &mut Run, name: &str, code: u32) {
    let (id, now) = (run.world.running(&uid(), name).expect("it runs"), run.now);
    run.world.exit(&id, code, now);
    run.settle();
}

fn status(run: &Run) -> &PodStatus {
    &run.world.statuses[&uid()]
}

fn shown<'a>(run: &'a Run, name: &str) -> &'a ContainerStatus {
    let mut all = status(run).all_containers();
    all.find(|one| one.name.as_str() == name).expect("it is shown")
}

fn waits_with(run: &Run, name: &str) -> Option<(String, String)> {
    match &shown(run, name).state {
        ContainerState::Waiting { reason, message } => Some((reason.clone(), message.clone())),
        ContainerState::Running { .. } | ContainerState::Terminated(_) => None,
    }
}

fn starts<'a>(run: &'a Run, name: &'a str) -> impl Iterator<Item = &'a StartRequest> {
    run.told.iter().filter_map(move |effect| match effect {
        Effect::Pod { act: Act::StartContainer(start), .. } => {
            Some(&**start).filter(|start| start.container.name.as_str() == name)
        }
        Effect::Pod { .. } | Effect::Node { .. } => None,
    })
}

#[test]
fn one_starts_while_init_containers_run_and_nobody_waits_for_it() {
    let mut run = begin(pods::pod("web", &["init-a", "main"]));
    add(&mut run, "debug-a", None);
    assert!(runs(&run, "init-a") && runs(&run, "debug-a") && !runs(&run, "main"));
    assert_eq!(status(&run).phase, Phase::Pending);
    let conditions = |run: &Run| {
        let wanted = [ConditionKind::Initialized, ConditionKind::Ready];
        wanted.map(|kind| status(run).conditions.iter().any(|one| one.kind == kind && one.holds))
    };
    assert_eq!(conditions(&run), [false, false]);
    exit(&mut run, "debug-a", 1);
    run.end_init_containers();
    run.settle();
    assert!(runs(&run, "main"));
    assert_eq!((status(&run).phase, conditions(&run)), (Phase::Running, [true, true]));
    let debug = shown(&run, "debug-a");
    assert_eq!((debug.ready, debug.started, debug.restart_count), (false, false, 0));
}

/// Whatever its end, the policy, and who asks.
#[test]
fn one_runs_once() {
    for policy in [RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never] {
        for code in [0, 1] {
            let mut run = begin(Pod { restart_policy: policy, ..pods::pod("web", &["main"]) });
            add(&mut run, "debug-a", Some("main"));
            run.restart(None);
            run.settle();
            assert!(runs(&run, "debug-a"), "the next agent finds it");
            exit(&mut run, "debug-a", code);
            run.advance(Duration::from_secs(3600), Run::settle);
            run.restart(None);
            run.settle();
            add(&mut run, "debug-b", None);
            assert!(!runs(&run, "debug-a") && runs(&run, "debug-b"), "{policy:?} {code}");
            assert_eq!(starts(&run, "debug-a").count(), 1, "{policy:?} {code}");
            assert!(
                matches!(&shown(&run, "debug-a").state, ContainerState::Terminated(end) if end.exit_code == code)
            );
            assert_eq!(status(&run).phase, Phase::Running);
        }
    }
}

#[test]
fn a_pod_is_over_when_its_others_are_and_takes_it_down() {
    for (code, expected) in [(0, Phase::Succeeded), (3, Phase::Failed)] {
        for own in [None, Some(0), Some(1)] {
            let mut run = begin(Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main"]) });
            add(&mut run, "debug-a", None);
            if let Some(own) = own {
                exit(&mut run, "debug-a", own);
            }
            exit(&mut run, "main", code);
            assert!(!runs(&run, "debug-a"));
            assert_eq!(status(&run).phase, expected, "{code} {own:?}");
        }
    }
}

#[test]
fn one_waits_for_its_target_and_is_told_once_to() {
    let mut run = begin(pods::pod("web", &["init-a", "main"]));
    add(&mut run, "debug-a", Some("main"));
    let missing =
        ("CreateContainerConfigError".to_owned(), "unable to find target container main".to_owned());
    assert_eq!(waits_with(&run, "debug-a"), Some(missing.clone()));
    run.advance(Duration::from_secs(600), Run::settle);
    let failed: Vec<String> = run.notes("Failed").map(|(_, note)| note.event.message.clone()).collect();
    assert_eq!(failed, [format!("Error: {}", missing.1)]);
    let paths: Vec<&str> = run.notes("Failed").map(|(_, note)| note.field_path.as_str()).collect();
    assert_eq!(paths, ["spec.ephemeralContainers{debug-a}"]);
    run.end_init_containers();
    run.settle();
    let main = run.world.running(&uid(), "main").expect("it runs");
    let joined = starts(&run, "debug-a").map(|start| start.target.clone().expect("a target").id);
    assert_eq!(joined.collect::<Vec<_>>(), [main]);

    // Its second run ends at once, and the third waits.
    exit(&mut run, "main", 1);
    exit(&mut run, "main", 1);
    add(&mut run, "debug-b", Some("main"));
    let ended = "invalid target container: container \"main\" is not running".to_owned();
    assert_eq!(waits_with(&run, "debug-b"), Some(("CreateContainerError".to_owned(), ended)));
    assert!(runs(&run, "debug-a"), "what sees processes that have gone is nobody's concern");
    run.advance(Duration::from_secs(10), Run::settle);
    assert!(runs(&run, "main") && runs(&run, "debug-b"));
}

/// Where processes are shared there is nothing to join.
#[test]
fn one_needs_no_target_that_runs_where_processes_are_shared() {
    for (pid, is_joined) in [(PidMode::Container, true), (PidMode::Pod, false), (PidMode::Node, false)] {
        let mut run = begin(Pod { pid, ..pods::pod("web", &["main"]) });
        add(&mut run, "debug-a", Some("main"));
        let start = starts(&run, "debug-a").next().expect("it starts");
        assert_eq!(start.target.is_some(), is_joined, "{pid:?}");
        exit(&mut run, "main", 1);
        exit(&mut run, "main", 1);
        add(&mut run, "debug-b", Some("main"));
        assert_eq!(runs(&run, "debug-b"), !is_joined, "{pid:?}");
    }
}

/// The world says of a start that its target has ended meanwhile.
#[test]
fn one_whose_target_ends_while_it_starts_is_tried_again_with_the_next_run() {
    let mut run = begin(pods::pod("web", &["main"]));
    let mut pod = Pod::clone(&run.spec("web").expect("it is wanted"));
    pods::debug(&mut pod, "debug-a", Some("main"));
    run.want(pod);
    let at = run.until_asked(|effect| {
        matches!(effect, Effect::Pod { act: Act::StartContainer(start), .. } if start.target.is_some())
    });
    let (id, now) = (run.world.running(&uid(), "main").expect("it runs"), run.now);
    run.world.exit(&id, 1, now);
    run.perform(at);
    run.settle();
    run.advance(Duration::from_secs(20), Run::settle);
    assert!(runs(&run, "main") && runs(&run, "debug-a"));
    assert_eq!(starts(&run, "debug-a").count(), 2);
}

/// It runs, whatever became of its target since: whoever took it for not begun would start it twice.
#[test]
fn a_start_that_nobody_answered_is_looked_at_though_its_target_has_ended() {
    let mut run = begin(Pod { restart_policy: RestartPolicy::Never, ..pods::pod("web", &["main", "other"]) });
    let mut pod = Pod::clone(&run.spec("web").expect("it is wanted"));
    pods::debug(&mut pod, "debug-a", Some("main"));
    run.want(pod);
    let at = run.until_asked(|effect| {
        matches!(effect, Effect::Pod { act: Act::StartContainer(start), .. } if start.target.is_some())
    });
    run.perform(at);
    run.finished.back_mut().expect("an outcome").1 = Err(failure(FailureKind::Unknown, "timed out"));
    exit(&mut run, "main", 0);
    assert!(runs(&run, "debug-a") && waits_with(&run, "debug-a").is_some(), "nobody knows");
    run.advance(Duration::from_secs(5), Run::settle);
    assert_eq!(waits_with(&run, "debug-a"), None);
    exit(&mut run, "debug-a", 2);
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(starts(&run, "debug-a").count(), 1);
}

/// Its layer is made and its start is looked at, both for one plan.
#[test]
fn one_whose_start_an_agent_did_not_live_to_see_starts_when_its_target_runs_again() {
    let mut run = begin(pods::pod("web", &["main"]));
    let mut pod = Pod::clone(&run.spec("web").expect("it is wanted"));
    pods::debug(&mut pod, "debug-a", Some("main"));
    run.want(pod);
    run.take_asked(|effect| {
        matches!(effect, Effect::Pod { act: Act::StartContainer(start), .. } if start.target.is_some())
    });
    let (main, now) = (run.world.running(&uid(), "main").expect("it runs"), run.now);
    run.world.exit(&main, 1, now);
    run.restart(None);
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert!(runs(&run, "main") && runs(&run, "debug-a"), "{:?}", waits_with(&run, "debug-a"));
}

#[test]
fn one_that_its_source_leaves_out_stays() {
    let mut run = begin(pods::pod("web", &["main"]));
    add(&mut run, "debug-a", None);
    run.want(pods::pod("web", &["main"]));
    run.settle();
    assert_eq!(run.notes("UpdateIgnored").count(), 1);
    assert!(runs(&run, "debug-a"));
    run.unwant("web");
    run.settle();
    assert!(run.world.records.is_empty() && run.world.containers.is_empty(), "{:#?}", run.world.containers);
}

/// Source: `kuberuntime_termination_order.go`, which knows main containers and sidecars alone.
#[test]
fn sidecars_stop_without_waiting_for_it() {
    let mut run = begin(pods::pod("web", &["side-a", "main"]));
    add(&mut run, "debug-a", None);
    run.world.deaf.insert(ContainerName::new("debug-a"));
    let ids = ["debug-a", "main", "side-a"].map(|name| run.world.running(&uid(), name).expect("it runs"));
    run.told.clear();
    run.unwant("web");
    run.settle();
    let signals = run.told.iter().filter_map(|effect| match effect {
        Effect::Pod { act: Act::Signal(SignalRequest { id, .. }), .. } => Some(id),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    });
    let mut told: Vec<_> = signals.cloned().collect();
    assert_eq!(told.pop().as_ref(), Some(&ids[2]), "the sidecar is the last");
    told.sort();
    let mut first = vec![ids[0].clone(), ids[1].clone()];
    first.sort();
    assert_eq!(told, first);
    assert!(runs(&run, "debug-a") && !runs(&run, "side-a"));
    run.advance(Duration::from_secs(40), Run::settle);
    assert!(run.world.records.is_empty());
}
