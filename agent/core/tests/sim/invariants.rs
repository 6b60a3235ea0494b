//! The invariants of ARCHITECTURE.md that the core keeps, one by one. `random` looks for whatever breaks them together.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_core::{
    effect::{Act, Effect, NodeAct},
    event::{Event, Outcome},
    failure::FailureKind,
    id::{ContainerId, ImageRef, OpId, PodUid, SandboxId},
    pod::port::signal::{SIGNAL_DEADLINE, SILENT_KILL_MAX},
    record::PodRecord,
    spec::{Pod, RestartPolicy},
    status::Phase,
};

use crate::{
    pods,
    run::Run,
    tell,
    world::{Disk, failure},
};

const DAY: Duration = Duration::from_secs(86_400);

/// A node on which these pods run.
fn running(names: &[&str]) -> Run {
    let mut run = Run::new();
    run.settle();
    for name in names {
        run.want(pods::pod(name, &["main", "other"]));
    }
    run.settle();
    assert_eq!(run.world.containers.values().filter(|one| one.is_running()).count(), 2 * names.len());
    assert_eq!(run.world.violations, Vec::<String>::new());
    run.told.clear();
    run
}

fn uid(name: &str) -> PodUid {
    PodUid::new(format!("uid-{name}"))
}

fn is_for(effect: &Effect, name: &str) -> bool {
    matches!(effect, Effect::Pod { pod, .. } if *pod == uid(name))
}

#[test]
fn an_outcome_that_nobody_waits_for_changes_nothing() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    let mut outcomes = Vec::new();
    while !run.open.is_empty() {
        run.perform(0);
        outcomes.extend(run.finished.front().cloned());
        run.settle_one();
    }
    run.told.clear();
    assert!(outcomes.len() > 5, "{outcomes:?}");
    for (op, outcome) in outcomes {
        run.handle(Event::Done { op, outcome });
    }
    run.handle(Event::Done { op: OpId(u64::MAX), outcome: Ok(Outcome::Done) });
    assert_eq!(run.told, []);
}

#[test]
fn a_node_at_rest_asks_for_nothing_however_long() {
    let mut run = running(&["web", "db"]);
    run.advance(DAY, Run::settle);
    // A look asks nobody: it is at the kernel and at files.
    let looks = run.told.extract_if(.., |effect| tell::kind_of(effect) == "look").count();
    assert_eq!(looks, 2 * 24 * 60, "once in each period for each pod");
    assert_eq!(run.told, [], "something looks at the runtime periodically");
}

#[test]
fn a_reconnect_finds_all_that_happened_meanwhile() {
    let mut run = running(&["web"]);
    run.set_runtime(true);
    let id = run.world.containers.keys().next().cloned().unwrap();
    let now = run.now;
    run.world.exit(&id, 3, now);
    run.world.reports.clear();
    run.set_runtime(false);
    run.settle();
    run.advance(DAY, Run::settle);
    assert_eq!(run.world.containers.values().filter(|one| one.is_running()).count(), 2);
    assert!(!run.world.containers.contains_key(&id), "the ended run was seen and followed by another");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn a_record_that_is_gone_under_a_living_shim_is_written_again_and_nothing_restarts() {
    for is_agent_new in [false, true] {
        let mut run = running(&["web"]);
        let (before, statuses) = (run.world.starts.clone(), run.world.statuses.clone());
        run.set_runtime(true);
        run.world.sandboxes.values_mut().for_each(|one| one.is_recorded = false);
        if is_agent_new {
            run.world.runtime_is_down = false;
            run.restart(None);
        } else {
            run.set_runtime(false);
        }
        run.settle();
        assert!(run.world.sandboxes.values().all(|one| one.is_recorded), "the record is there again");
        run.advance(DAY, Run::settle);
        assert_eq!(run.world.starts, before, "nothing was started, new agent: {is_agent_new}");
        assert_eq!(run.world.statuses, statuses, "and nothing showed");
        assert_eq!(run.world.sandboxes.values().map(|one| one.attempt).collect::<Vec<_>>(), [0]);
        assert_eq!(run.world.violations, Vec::<String>::new());
    }
}

#[test]
fn an_unknown_outcome_forces_a_fresh_look() {
    for is_performed in [true, false] {
        let mut run = Run::new();
        run.settle();
        run.want(pods::pod("web", &["main"]));
        let is_start = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. });
        let at = run.until_asked(is_start);
        let op = run.open[at].op();
        if is_performed {
            run.perform(at);
            run.finished.clear();
        } else {
            run.open.remove(at);
        }
        run.told.clear();
        let outcome = Err(failure(FailureKind::Unknown, "no end within 240 s"));
        run.handle(Event::Done { op, outcome });
        run.advance(Duration::from_secs(10), Run::settle);
        assert!(run.told.iter().any(is_start), "performed {is_performed}: taken for done, or for failed");
        let starts: Vec<u32> = run.world.starts.values().map(|(_, count)| *count).collect();
        assert_eq!(starts, [1], "performed {is_performed}");
        assert_eq!(run.world.violations, Vec::<String>::new());
    }
}

#[test]
fn a_kill_at_any_point_of_a_life_ends_in_the_same_state() {
    let mut points = 0;
    loop {
        let mut run = Run::new();
        run.settle();
        run.want(pods::pod("web", &["init-a", "side-b", "main"]));
        let is_over = !steps_then_kill(&mut run, points);
        let starts: Vec<u32> = run.world.starts.values().map(|(_, count)| *count).collect();
        assert_eq!(starts, [1, 1, 1], "killed at {points}: each container runs once, and none again");
        run.unwant("web");
        let is_over = !steps_then_kill(&mut run, points) && is_over;
        assert_eq!(run.world.violations, Vec::<String>::new(), "killed at {points}");
        assert_eq!(run.world.left_of(&uid("web")), Vec::<String>::new(), "killed at {points}");
        assert!(run.world.records.is_empty(), "killed at {points}");
        if is_over {
            break;
        }
        points += 1;
    }
    assert!(points > 20, "only {points} points");
}

/// It is being made when the pod goes: nobody removes the pod's volumes before that has ended, however it ends.
#[test]
fn a_volume_that_is_made_late_goes_with_its_pod() {
    for (is_made, is_answered) in [(true, true), (true, false), (false, false)] {
        let what = format!("made {is_made}, answered {is_answered}");
        let mut run = Run::new();
        run.settle();
        let mut pod = Pod { volumes: vec![pods::empty_dir("data")], ..pods::pod("web", &["main"]) };
        pods::mount_all(&mut pod, "main");
        run.want(pod);
        let is_volume = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::EnsureVolume(_), .. });
        let late = run.take_asked(is_volume);
        run.unwant("web");
        run.advance(Duration::from_secs(60), Run::settle);
        let now = run.now;
        let made = is_made.then(|| run.world.perform(&late, now)).flatten();
        let unknown = Err(failure(FailureKind::Unknown, "no end within 300 s"));
        let outcome = made.filter(|_| is_answered).unwrap_or(unknown);
        run.handle(Event::Done { op: late.op(), outcome });
        run.advance(Duration::from_secs(60), Run::settle);
        assert_eq!(run.world.left_of(&uid("web")), Vec::<String>::new(), "{what}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{what}");
        assert!(run.world.records.is_empty(), "{what}");
    }
}

/// Its end was seen and not yet recorded when its sandbox was lost and removed: the next agent does not take it for a run
/// that never began.
#[test]
fn a_run_that_went_with_an_earlier_sandbox_is_not_begun_again() {
    let mut run = running(&["web"]);
    let id = run.world.running(&uid("web"), "main").unwrap();
    let now = run.now;
    run.world.exit(&id, 1, now);
    run.report();
    let sandbox = run.world.sandboxes.keys().next().cloned().unwrap();
    run.world.lose(&sandbox, now);
    run.report();
    let is_words =
        |effect: &Effect| matches!(effect, Effect::Pod { act: Act::ReadTerminationMessage(_), .. });
    while let Some(at) = run.open.iter().position(|effect| !is_words(effect)) {
        run.perform(at);
        run.deliver(0);
    }
    run.restart(None);
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(run.world.violations, Vec::<String>::new());
    assert!(run.world.running(&uid("web"), "main").is_some());
}

/// What had ended before a reboot has ended after it too, with its codes; all else begins again.
#[test]
fn a_pod_that_has_ended_does_not_run_again_after_a_reboot() {
    let mut run = running(&["web"]);
    let mut job = pods::pod("job", &["main"]);
    job.restart_policy = RestartPolicy::Never;
    run.want(job);
    run.settle();
    let id = run.world.running(&uid("job"), "main").unwrap();
    let now = run.now;
    run.world.exit(&id, 3, now);
    run.settle();
    let before = run.world.statuses[&uid("job")].clone();
    assert_eq!(before.phase, Phase::Failed);
    run.world.reboot(now);
    run.told.clear();
    run.restart(None);
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    let is_start = |effect: &&Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. });
    let started: Vec<&Effect> = run.told.iter().filter(is_start).collect();
    assert!(started.len() == 2 && started.iter().all(|effect| is_for(effect, "web")), "{started:?}");
    let after = &run.world.statuses[&uid("job")];
    assert_eq!((after.phase, &after.containers), (before.phase, &before.containers));
    run.unwant("job");
    run.settle();
    assert_eq!(run.world.left_of(&uid("job")), Vec::<String>::new());
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Pods of every kind come and go: nothing in the node grows with their number.
#[test]
fn a_node_keeps_nothing_of_pods_that_came_and_went() {
    let mut run = running(&["web"]);
    let churn = |run: &mut Run, number: u32| {
        let name = format!("churn-{number}");
        let mut pod = pods::pod(&name, &["init-a", "side-b", "main"]);
        pod.volumes = vec![pods::empty_dir("data")];
        pods::mount_all(&mut pod, "main");
        match number % 4 {
            0 => pod.restart_policy = RestartPolicy::Never,
            1 => pods::edit(&mut pod, "main").image = ImageRef::new(format!("churn-{number}:1")),
            2 => {
                // Two files with one pod: the second is refused for its name.
                let mut twin = pod.clone();
                twin.uid = PodUid::new(format!("churn-twin-{number}"));
                run.want(twin);
            }
            _ => run.world.disk = Disk::Full,
        }
        run.want(pod);
        run.settle();
        run.end_init_containers();
        run.settle();
        run.world.disk = Disk::Works;
        let main = run.world.running(&uid(&name), "main");
        let now = run.now;
        if let Some(id) = main {
            run.world.exit(&id, 1, now);
        }
        let sandbox =
            run.world.sandboxes.iter().find(|(_, one)| one.pod == uid(&name)).map(|(id, _)| id.clone());
        if let Some(id) = sandbox.filter(|_| number.is_multiple_of(3)) {
            run.world.lose(&id, now);
        }
        run.settle();
        run.advance(Duration::from_secs(12), Run::settle);
        run.unwant(&name);
        run.settle();
        run.advance(Duration::from_secs(90), Run::settle);
        run.told.clear();
    };
    (0..12).for_each(|number| churn(&mut run, number));
    let size = format!("{:?}", run.node).len();
    (12..1000).for_each(|number| churn(&mut run, number));
    let kept = format!("{:?}", run.node);
    assert!(!kept.contains("churn"), "{kept}");
    // The number of the last effect has more digits.
    assert!(kept.len() < size + 16, "{size} bytes grew to {}: {kept}", kept.len());
    assert_eq!(run.world.records.len(), 1);
}

/// Ids that another agent computed otherwise are in the record: what bears them goes on, and ends under them.
#[test]
fn what_bears_an_id_of_another_formula_is_found_by_its_record() {
    let mut run = running(&["web"]);
    let world = &mut run.world;
    let renamed = |id: &str| format!("other-{id}");
    let mut containers = BTreeMap::new();
    let ids: Vec<ContainerId> = world.containers.keys().cloned().collect();
    let sandbox = world.sandboxes.keys().next().cloned().unwrap();
    let other = SandboxId::from_known(renamed(sandbox.as_str()));
    for id in ids {
        let new = ContainerId::from_known(renamed(id.as_str()));
        let mut container = world.containers.remove(&id).unwrap();
        container.sandbox = other.clone();
        world.containers.insert(new.clone(), container);
        let owner = world.snapshots.remove(&id).unwrap();
        world.snapshots.insert(new.clone(), owner);
        let record = world.records.get_mut(&uid("web")).unwrap();
        record.sandbox_id = other.clone();
        for run in record.containers.values_mut().filter(|run| run.id == id) {
            run.id = new.clone();
        }
        containers.insert(id, new);
    }
    let sandboxes = BTreeMap::from([(sandbox.clone(), other.clone())]);
    world.oracle.renamed(&world.records[&uid("web")], &sandboxes, &containers);
    let moved = world.sandboxes.remove(&sandbox).unwrap();
    world.sandboxes.insert(other.clone(), moved);
    let owner = world.netns.remove(&sandbox).unwrap();
    world.netns.insert(other.clone(), owner);
    let owner = world.networks.remove(&sandbox).unwrap();
    world.networks.insert(other, owner);
    let (containers, statuses) = (world.containers.len(), world.starts.len());
    run.restart(None);
    run.settle();
    assert_eq!(run.world.containers.values().filter(|one| one.is_running()).count(), containers);
    assert_eq!(run.world.starts.len(), statuses, "something was started");
    run.unwant("web");
    run.settle();
    assert_eq!(run.world.left_of(&uid("web")), Vec::<String>::new());
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Kills the agent after so many steps, and lets the next one come to rest. Tells whether there were so many.
fn steps_then_kill(run: &mut Run, steps: usize) -> bool {
    let has_all = (0..steps).all(|_| run.settle_one());
    run.restart(None);
    for _ in 0..20 {
        run.settle();
        run.end_init_containers();
        run.advance(Duration::from_secs(10), Run::settle);
    }
    has_all
}

#[test]
fn nothing_is_begun_before_its_intent_is_recorded() {
    let mut run = Run::new();
    run.settle();
    run.told.clear();
    run.want(pods::pod("web", &["main"]));
    let mut record: Option<PodRecord> = None;
    let mut starts = 0;
    while !run.told.is_empty() || run.settle_one() {
        for effect in std::mem::take(&mut run.told) {
            match effect {
                Effect::Pod { act: Act::Persist(new), .. } => record = Some(*new),
                Effect::Pod { act: Act::StartContainer(start), .. } => {
                    let record = record.as_ref().expect("a record");
                    assert_eq!(record.containers[&start.container.name].started_in, Some(record.sandbox));
                    starts += 1;
                }
                Effect::Pod { act: Act::Publish(_) | Act::Withdraw | Act::Note(_), .. }
                | Effect::Node { .. } => {}
                Effect::Pod { act, .. } => assert!(record.is_some(), "no record before {act:?}"),
            }
        }
    }
    assert_eq!(starts, 1);
}

#[test]
fn a_stuck_pod_blocks_no_other() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("stuck", &["main", "other"]));
    run.want(pods::pod("web", &["main", "other"]));
    // Nothing of the first is ever answered.
    while let Some(at) = run.open.iter().position(|effect| !is_for(effect, "stuck")) {
        run.perform(at);
        while !run.finished.is_empty() {
            run.deliver(0);
        }
    }
    assert!(run.open.iter().any(|effect| is_for(effect, "stuck")));
    let running = run.world.containers.values().filter(|one| one.is_running());
    let pods: BTreeSet<&PodUid> = running.map(|one| &one.pod).collect();
    assert_eq!(pods, BTreeSet::from([&uid("web")]));
    assert_eq!(run.world.containers.len(), 2);
}

#[test]
fn a_hung_shim_is_given_up_in_bounded_time() {
    let mut run = running(&["hung", "web"]);
    run.unwant("hung");
    let deadline = run.now.mono + Duration::from_secs(30);
    let is_removal = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::RemoveContainer(_), .. });
    let mut waiting: Vec<(OpId, berth_core::time::Mono)> = Vec::new();
    let mut kills = 0;
    while !run.open.iter().any(is_removal) {
        // No signal has an outcome but that there is none in time.
        while let Some(effect) = run.open.pop_front() {
            let Effect::Pod { act: Act::Signal(request), .. } = &effect else { panic!("{effect:?}") };
            kills += usize::from(request.signal == berth_core::pod::port::signal::StopSignal::Kill);
            waiting.push((effect.op(), run.now.mono + SIGNAL_DEADLINE));
        }
        let late = waiting.extract_if(.., |(_, at)| *at <= run.now.mono).collect::<Vec<_>>();
        for (op, _) in late {
            run.handle(Event::Done { op, outcome: Err(failure(FailureKind::Unknown, "no answer")) });
        }
        run.advance(Duration::from_millis(100), |_| {});
        assert!(run.now.mono <= deadline + SILENT_KILL_MAX + Duration::from_secs(1), "{kills} kills");
    }
    assert_eq!(kills, 6, "three for each of two containers");
    assert!(run.now.mono >= deadline + 3 * SIGNAL_DEADLINE, "given up early");
    assert_eq!(
        run.world.containers.values().filter(|one| one.pod == uid("web") && one.is_running()).count(),
        2
    );
}

#[test]
fn everything_that_data_allows_starts_at_once() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    let begun: BTreeSet<&str> = run.open.iter().map(tell::kind_of).collect();
    for kind in ["ensure-dirs", "ensure-cgroup", "ensure-netns", "inspect-image"] {
        assert!(begun.contains(kind), "{kind} is not in {begun:?}");
    }
    // The image is known and the network namespace made, and nothing else yet.
    for wanted in [
        (|effect: &Effect| matches!(effect, Effect::Pod { act: Act::EnsureNetns(_), .. }))
            as fn(&Effect) -> bool,
        |effect| matches!(effect, Effect::Node { act: NodeAct::InspectImage(_), .. }),
    ] {
        let at = run.open.iter().position(wanted).unwrap();
        run.perform(at);
        run.deliver(0);
    }
    let begun: BTreeSet<&str> = run.open.iter().map(tell::kind_of).collect();
    for kind in ["ensure-dirs", "ensure-cgroup", "ensure-network", "ensure-sandbox", "ensure-rootfs"] {
        assert!(begun.contains(kind), "{kind} is not in {begun:?}");
    }
}
