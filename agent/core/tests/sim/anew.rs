//! What an agent that begins again makes of what it finds, where more than a record is to be believed.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect, NodeAct},
    failure::FailureKind,
    id::{ContainerName, PodUid, SandboxId},
    status::ContainerState,
};

use crate::{
    pods,
    run::Run,
    world::{Disk, Sandbox, World, failure},
};

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

fn is_start(effect: &Effect) -> bool {
    matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. })
}

fn sandbox(world: &World) -> SandboxId {
    world.sandboxes.keys().next().cloned().expect("a sandbox")
}

/// A node that is asked to start the one container of a pod, and by which effect.
fn being_started() -> (Run, Effect) {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    let effect = run.take_asked(is_start);
    (run, effect)
}

/// Its record does not tell of it any more: a run that had a layer, or even a container, was given up since the spec
/// changed, and the agent was killed before that was removed.
#[test]
fn what_was_made_for_a_run_that_was_given_up_is_never_started() {
    for has_container in [false, true] {
        let (mut run, effect) = being_started();
        let now = run.now;
        assert!(!has_container || run.world.perform_half(&effect, now));
        run.finished
            .push_back((effect.op(), Err(failure(FailureKind::Transient, "no space left on device"))));
        run.deliver(0);
        let mut changed = pods::pod("web", &["main"]);
        pods::edit(&mut changed, "main").hash = 2;
        run.want(changed);
        let is_removal = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::RemoveContainer(_), .. });
        let is_rootfs = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::EnsureRootfs(_), .. });
        assert!(run.open.iter().any(is_removal), "{:?}", run.open);
        run.told.clear();
        run.restart(None);
        run.settle();
        let first = run.told.iter().find(|effect| is_removal(effect) || is_rootfs(effect));
        assert!(first.is_some_and(is_removal), "the old layer is used, container {has_container}");
        let running = run.world.running(&uid(), "main").expect("it runs");
        assert_eq!(run.world.containers[&running].hash, 2, "what runs was made from the old spec");
        assert_eq!(run.world.violations, Vec::<String>::new());
    }
}

/// What is wrong with a pod's DNS is told when its sandbox is made, of the pod and of the node, and the next agent finds
/// that one.
#[test]
fn that_there_is_no_dns_of_the_cluster_is_told_once() {
    let mut run = Run::new();
    run.settle();
    run.want(berth_core::spec::Pod {
        dns_policy: berth_core::spec::DnsPolicy::ClusterFirst,
        ..pods::pod("web", &["main"])
    });
    run.settle();
    for _ in 0..2 {
        assert_eq!(run.notes("MissingClusterDNS").count(), 1);
        let is_of_node = |effect: &&Effect| match effect {
            Effect::Node { act: NodeAct::Note(note), .. } => note.reason == "MissingClusterDNS",
            Effect::Node { .. } | Effect::Pod { .. } => false,
        };
        assert_eq!(run.told.iter().filter(is_of_node).count(), 1);
        run.restart(None);
        run.settle();
    }
    assert!(run.world.running(&uid(), "main").is_some());
}

/// A shim that does not answer a new agent is taken to hold what its record says, until it is known to be gone.
#[test]
fn what_was_taken_to_run_ends_with_a_shim_that_never_answered() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let (sandbox, now) = (sandbox(&run.world), run.now);
    let end = |run: &Run| run.world.records[&uid()].containers.values().next().unwrap().exit.clone();
    run.restart(Some(&sandbox));
    assert_eq!(end(&run), None, "it is taken to run");
    // The sandbox is looked for, in vain, and not again for a second.
    let is_look = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::EnsureSandbox(_), .. });
    let at = run.open.iter().position(is_look).expect("it is looked for");
    let look = run.open.remove(at).unwrap();
    run.finished.push_back((look.op(), Err(failure(FailureKind::Unknown, "the shim does not answer"))));
    run.deliver(0);
    run.world.lose(&sandbox, now);
    run.report();
    run.settle();
    let record = &run.world.records[&uid()].containers.values().next().unwrap();
    assert_eq!(record.last_exit.as_ref().or(record.exit.as_ref()).map(|end| end.exit.code), Some(137));
    assert!(run.world.running(&uid(), "main").is_some());
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A shim that did not answer a new agent tells that a container is still being started. Should that come to nothing, nobody
/// tells the agent, who did not ask for it.
#[test]
fn what_was_taken_to_run_and_is_being_started_is_asked_for_again() {
    let (mut run, effect) = being_started();
    let Effect::Pod { act: Act::StartContainer(request), .. } = effect else { panic!("{effect:?}") };
    assert!(run.world.begin_start(&uid(), &request));
    let sandbox = sandbox(&run.world);
    run.world.fall_silent(&sandbox);
    run.restart(None);
    run.world.speak(&sandbox);
    run.report();
    let shown = run.world.statuses[&uid()].containers[0].state.clone();
    assert!(!matches!(shown, ContainerState::Running { .. }), "{shown:?}");
    run.world.fail_starts();
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert!(run.world.running(&uid(), "main").is_some(), "it is taken to run, and does not");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A sandbox that only the runtime knows is removed like one that the record tells of: its attachment is undone first.
#[test]
fn an_earlier_sandbox_that_no_record_tells_of_goes_with_its_network() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let other = SandboxId::of(&uid(), 7);
    let left = Sandbox { pod: uid(), attempt: 7, is_alive: true, is_recorded: true };
    run.world.sandboxes.insert(other.clone(), left);
    run.world.netns.insert(other.clone(), uid());
    run.world.networks.insert(other.clone(), uid());
    run.told.clear();
    run.restart(None);
    run.settle();
    let undone = run
        .told
        .iter()
        .any(|effect| matches!(effect, Effect::Pod { act: Act::RemoveNetwork(id), .. } if *id == other));
    assert!(undone, "the attachment was never undone: {:?}", run.told);
    let world = &run.world;
    let is_left = [world.sandboxes.contains_key(&other), world.netns.contains_key(&other)];
    assert_eq!(is_left, [false, false]);
    assert!(world.running(&uid(), "main").is_some());
    assert_eq!(world.violations, Vec::<String>::new());
}

/// An agent that finds the sandbox and an old record takes the attachment for there. So it stays as long as the sandbox where
/// nothing can be written, and goes right after it.
#[test]
fn without_a_record_a_network_stays_as_long_as_its_sandbox() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    run.world.disk = Disk::Full;
    run.unwant("web");
    let is_sandbox = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::RemoveSandbox(_), .. });
    run.until_asked(is_sandbox);
    while let Some(at) = run.open.iter().position(|effect| !is_sandbox(effect)) {
        run.perform(at);
        run.deliver(0);
    }
    assert_eq!((run.world.sandboxes.len(), run.world.networks.len()), (1, 1));
    run.settle();
    assert_eq!((run.world.sandboxes.len(), run.world.networks.len()), (0, 0));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A pod is taken down by its old record where nothing can be written. Should the agent be killed just then and the manifest be
/// back, a run that had ended is begun again (decision 0022), and is what becomes of it then.
#[test]
fn a_run_that_was_taken_down_without_a_record_is_begun_again_and_may_be_refused() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let main = run.world.running(&uid(), "main").expect("it runs");
    run.world.disk = Disk::Full;
    let now = run.now;
    run.world.exit(&main, 1, now);
    run.settle();
    run.unwant("web");
    while run.world.containers.contains_key(&main) {
        assert!(run.settle_one(), "it is never removed");
    }
    run.world.disk = Disk::Works;
    run.want(pods::pod("web", &["main"]));
    run.restart(None);
    let effect = run.take_asked(is_start);
    run.finished.push_back((effect.op(), Err(failure(FailureKind::StartFailed, "no such command"))));
    run.deliver(0);
    let end = run.world.records[&uid()].containers.values().next().unwrap().exit.clone();
    assert_eq!(end.map(|end| (end.id, end.exit.code)), Some((main, 128)));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// The same where it went with its sandbox, since its shim did not answer when it was to be removed alone.
#[test]
fn a_run_that_was_taken_down_with_its_sandbox_and_without_a_record_is_begun_again() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let main = run.world.running(&uid(), "main").expect("it runs");
    let (sandbox, now) = (sandbox(&run.world), run.now);
    run.world.disk = Disk::Full;
    run.world.exit(&main, 1, now);
    run.settle();
    run.world.fall_silent(&sandbox);
    run.unwant("web");
    let is_sandbox = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::RemoveSandbox(_), .. });
    run.until_asked(is_sandbox);
    assert!(run.world.containers.contains_key(&main), "it was removed alone");
    run.world.speak(&sandbox);
    let at = run.open.iter().position(is_sandbox).unwrap();
    run.perform(at);
    run.world.disk = Disk::Works;
    run.want(pods::pod("web", &["main"]));
    run.restart(None);
    run.settle();
    assert_eq!(run.world.running(&uid(), "main"), Some(main), "it is not begun again");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// The same where it was to stop, by the record: what is begun again is not.
#[test]
fn a_run_that_was_to_stop_and_was_taken_down_without_a_record_is_begun_again_and_goes_on() {
    let mut run = Run::new();
    run.settle();
    run.world.deaf.insert(ContainerName::new("main"));
    run.want(pods::pod("web", &["main"]));
    run.settle();
    let main = run.world.running(&uid(), "main").expect("it runs");
    let mut changed = pods::pod("web", &["main"]);
    pods::edit(&mut changed, "main").hash = 2;
    run.want(changed.clone());
    run.settle();
    assert!(run.world.records[&uid()].containers.values().all(|one| one.stopping.is_some()));
    run.world.disk = Disk::Full;
    run.unwant("web");
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((run.world.sandboxes.len(), run.world.records.len()), (0, 1));
    run.world.disk = Disk::Works;
    run.want(changed);
    run.restart(None);
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(run.world.running(&uid(), "main"), Some(main), "it was stopped");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A record that is older than the removal of a network tells of one that is not there, also when its sandbox is made again.
#[test]
fn a_network_that_an_old_record_tells_of_is_made_again_with_its_sandbox() {
    let mut run = Run::new();
    run.settle();
    run.want(pods::pod("web", &["main"]));
    while run.world.records.get(&uid()).is_none_or(|record| record.network.is_none()) {
        assert!(run.settle_one(), "it is never wired");
    }
    run.world.disk = Disk::Full;
    run.unwant("web");
    run.settle();
    assert_eq!((run.world.networks.len(), run.world.records.len()), (0, 1));
    run.world.disk = Disk::Works;
    run.want(pods::pod("web", &["main"]));
    run.restart(None);
    let is_network = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::EnsureNetwork(_), .. });
    while run.world.sandboxes.is_empty() {
        let at = run.open.iter().position(|effect| !is_network(effect)).expect("its sandbox is made");
        run.perform(at);
        run.deliver(0);
    }
    run.restart(None);
    run.settle();
    assert!(run.world.running(&uid(), "main").is_some());
    assert_eq!(run.world.violations, Vec::<String>::new());
}
