//! Images of containers whose turn has not come: what is done about them early, what is told of it, and what happens in their turn.

use std::{collections::BTreeSet, iter, time::Duration};

use berth_core::{
    effect::{Effect, NodeAct},
    event::Event,
    failure::FailureKind,
    id::{ImageRef, PodUid},
    spec::{ImagePullPolicy, ObjectKey, ObjectKind, Pod},
    status::ContainerState,
};

use crate::{pods, run::Run, world::failure};

/// An image that neither the node nor the registry has at first.
fn late() -> ImageRef {
    ImageRef::new("late:1")
}

/// A pod with an init container, whose main container has that image.
fn with_late(name: &str, policy: ImagePullPolicy) -> Pod {
    let mut pod = pods::pod(name, &["init-a", "main"]);
    let main = pods::edit(&mut pod, "main");
    (main.image, main.pull_policy) = (late(), policy);
    pod
}

fn is_pull(effect: &Effect) -> bool {
    matches!(effect, Effect::Node { act: NodeAct::PullImage(one), .. } if one.image == late())
}

fn pulls(run: &Run) -> usize {
    run.told.iter().filter(|effect| is_pull(effect)).count()
}

/// What was told of failures: `pod/container reason: message`.
fn complaints(run: &Run) -> Vec<String> {
    let mut told = Vec::new();
    for reason in ["InspectFailed", "ErrImageNeverPull", "Failed", "BackOff"] {
        for (pod, note) in run.notes(reason) {
            let container = note.event.container.as_ref().map_or("", |name| name.as_str());
            told.push(format!("{pod}/{container} {reason}: {}", note.event.message));
        }
    }
    told
}

fn uid(name: &str) -> PodUid {
    PodUid::new(format!("uid-{name}"))
}

/// What keeps the main container.
fn waits_for(run: &Run, pod: &str) -> String {
    match &run.world.statuses[&uid(pod)].containers[0].state {
        ContainerState::Waiting { reason, .. } => reason.clone(),
        other @ (ContainerState::Running { .. } | ContainerState::Terminated(_)) => panic!("{other:?}"),
    }
}

fn is_look(effect: &Effect) -> bool {
    matches!(effect, Effect::Node { act: NodeAct::InspectImage(one), .. } if one.image == late())
}

/// Does all that can be done without time passing and without pulls of the image.
fn settle_but_pulls(run: &mut Run) {
    settle_but(run, is_pull);
}

fn settle_but(run: &mut Run, is_held: fn(&Effect) -> bool) {
    loop {
        if let Some(at) = run.open.iter().position(|effect| !is_held(effect)) {
            run.perform(at);
            run.deliver(0);
        } else if run.world.has_news() {
            run.report();
        } else {
            return;
        }
    }
}

/// An init container may fill the registry, make the secret of the pull or load the image.
#[test]
fn what_an_init_container_brings_is_there_in_the_turn_of_the_next() {
    use ImagePullPolicy::{Always, IfNotPresent, Never};
    for (policy, early, in_turn) in [(IfNotPresent, 1, 1), (Never, 0, 0), (Always, 0, 1)] {
        let mut run = Run::new();
        run.want(with_late("web", policy));
        run.settle();
        run.advance(Duration::from_secs(300), Run::settle);
        assert_eq!(pulls(&run), early, "{policy:?}");
        assert_eq!(waits_for(&run, "web"), "PodInitializing", "{policy:?}");
        if policy == Never {
            run.world.images.insert(late());
        } else {
            run.world.registry.insert(late());
        }
        run.end_init_containers();
        run.settle();
        assert!(run.world.running(&uid("web"), "main").is_some(), "{policy:?}: it waits");
        assert_eq!(pulls(&run), early + in_turn, "{policy:?}");
        assert_eq!(complaints(&run), Vec::<String>::new(), "{policy:?}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{policy:?}");
    }
}

/// What failed early does not make the first wait longer.
#[test]
fn what_is_not_there_in_its_turn_either_is_told_then() {
    use ImagePullPolicy::{Always, IfNotPresent, Never};
    let failed = [
        "uid-web/main Failed: Failed to pull image \"late:1\": not found",
        "uid-web/main Failed: Error: ErrImagePull",
    ];
    let refused = [
        "uid-web/main ErrImageNeverPull: Container image \"late:1\" is not present with pull policy of Never",
        "uid-web/main Failed: Error: ErrImageNeverPull",
    ];
    for (policy, told, reason) in [
        (IfNotPresent, failed, "ErrImagePull"),
        (Always, failed, "ErrImagePull"),
        (Never, refused, "ErrImageNeverPull"),
    ] {
        let mut run = Run::new();
        run.want(with_late("web", policy));
        run.settle();
        run.advance(Duration::from_secs(5), Run::settle);
        run.end_init_containers();
        run.settle();
        assert_eq!(complaints(&run), told, "{policy:?}");
        assert_eq!(waits_for(&run, "web"), reason, "{policy:?}");
        let before = pulls(&run);
        run.world.images.insert(late());
        run.world.registry.insert(late());
        run.advance(Duration::from_millis(9_900), Run::settle);
        assert!(run.world.running(&uid("web"), "main").is_none(), "{policy:?}: it does not wait");
        run.advance(Duration::from_millis(200), Run::settle);
        assert!(run.world.running(&uid("web"), "main").is_some(), "{policy:?}: it waits for longer");
        assert_eq!(pulls(&run), before + usize::from(policy == Always), "{policy:?}");
    }
}

/// When pulls began, in seconds after the first.
fn pulled_at(run: &mut Run, within: Duration) -> Vec<u64> {
    let (began, mut times) = (run.now.mono, Vec::new());
    let mut before = pulls(run);
    while run.now.mono.since(began) < within {
        run.advance(Duration::from_secs(1), Run::settle);
        let now = pulls(run);
        times.extend(iter::repeat_n(run.now.mono.since(began).as_secs(), now - before));
        before = now;
    }
    times
}

/// Twice as long each time, up to five minutes, whether one container waits or two; and what has failed counts for ten.
#[test]
fn pulls_that_fail_wait_longer_each_time() {
    for mains in [&["main"][..], &["main", "side"]] {
        let mut run = Run::new();
        let mut pod = pods::pod("web", mains);
        for main in mains {
            pods::edit(&mut pod, main).image = late();
        }
        run.want(pod);
        run.settle();
        assert_eq!(pulls(&run), 1);
        let times = pulled_at(&mut run, Duration::from_secs(1300));
        assert_eq!(times, [10, 30, 70, 150, 310, 610, 910, 1210], "{mains:?}");
    }
    for (pause, expected) in [(600, 20), (601, 10)] {
        let mut run = Run::new();
        let mut web = pods::pod("web", &["main"]);
        let main = pods::edit(&mut web, "main");
        (main.image, main.pull_policy) = (late(), ImagePullPolicy::Always);
        run.want(web);
        run.settle();
        run.world.registry.insert(late());
        run.advance(Duration::from_secs(10), Run::settle);
        let main = run.world.running(&uid("web"), "main").expect("it is pulled");
        run.world.registry.remove(&late());
        run.advance(Duration::from_secs(pause - 10), Run::settle);
        run.world.exit(&main, 0, run.now);
        run.settle();
        let times = pulled_at(&mut run, Duration::from_secs(expected + 5));
        assert_eq!(times.last(), Some(&expected), "{pause} {times:?}");
    }
}

/// As who imports it does. It is looked for once a minute, and at the end of the wait.
#[test]
fn an_image_that_comes_by_another_way_is_not_waited_for() {
    let mut run = Run::new();
    let mut web = pods::pod("web", &["main"]);
    pods::edit(&mut web, "main").image = late();
    run.want(web);
    run.settle();
    run.advance(Duration::from_secs(330), Run::settle);
    let before = pulls(&run);
    assert_eq!(waits_for(&run, "web"), "ImagePullBackOff");
    run.world.images.insert(late());
    run.advance(Duration::from_secs(61), |run| {
        run.settle();
        let running = run.world.running(&uid("web"), "main").is_some();
        assert!(running || waits_for(run, "web") == "ImagePullBackOff", "what is shown stays");
    });
    let main = run.world.running(&uid("web"), "main").expect("it is looked for");
    assert_eq!(pulls(&run), before);

    // What failed is past: a look that takes its time shows nothing of it.
    run.world.exit(&main, 1, run.now);
    settle_but(&mut run, is_look);
    run.advance(Duration::from_secs(11), |run| settle_but(run, is_look));
    assert!(run.open.iter().any(is_look), "{:?}", run.open);
    let state = &run.world.statuses[&uid("web")].containers[0].state;
    assert!(matches!(state, ContainerState::Terminated(_)), "{state:?}");
}

/// containerd says that its call was cancelled, and whoever comes then has no part in that.
#[test]
fn who_comes_after_a_pull_was_given_up_is_not_told_of_it() {
    let mut run = Run::new();
    let with_late = |name: &str| {
        let mut pod = pods::pod(name, &["main"]);
        pods::edit(&mut pod, "main").image = late();
        pod
    };
    run.want(with_late("web"));
    settle_but_pulls(&mut run);
    assert_eq!(pulls(&run), 1);
    run.unwant("web");
    run.want(with_late("next"));
    settle_but_pulls(&mut run);
    let pull = run.open.iter().position(is_pull).and_then(|at| run.open.remove(at)).expect("the pull");
    run.world.registry.insert(late());
    run.finished.push_back((pull.op(), Err(failure(FailureKind::ImagePull, "given up"))));
    run.settle();
    assert_eq!(complaints(&run), Vec::<String>::new());
    assert_eq!(pulls(&run), 2);
    assert!(run.world.running(&uid("next"), "main").is_some());
}

/// The secret is what has to be mended, not the image.
#[test]
fn a_pull_secret_that_is_wrong_is_told_also_where_nothing_may_be_pulled() {
    for policy in [ImagePullPolicy::Never, ImagePullPolicy::IfNotPresent] {
        let [mut pod, _] = with_secret();
        pods::edit(&mut pod, "main").pull_policy = policy;
        let mut run = Run::new();
        run.world.images.insert(late());
        run.want(pod);
        settle_but(&mut run, is_look);
        let look = run.open.iter().position(is_look).and_then(|at| run.open.remove(at)).expect("the look");
        run.finished.push_back((look.op(), Err(failure(FailureKind::Config, "no accounts"))));
        run.settle();
        assert_eq!(complaints(&run), ["uid-web/main Failed: Error: no accounts"], "{policy:?}");
        assert_eq!((waits_for(&run, "web"), pulls(&run)), ("no accounts".to_owned(), 0));
        changed(&mut run, ObjectKind::Secret, "s");
        assert!(run.world.running(&uid("web"), "main").is_some(), "{policy:?}");
    }
}

/// It was asked for with what there was before.
#[test]
fn a_pull_that_began_early_and_fails_in_the_turn_is_repeated_at_once() {
    let mut run = Run::new();
    run.want(with_late("web", ImagePullPolicy::IfNotPresent));
    settle_but_pulls(&mut run);
    run.end_init_containers();
    settle_but_pulls(&mut run);
    assert_eq!((run.open.len(), pulls(&run)), (1, 1));
    let pull = run.open.pop_front().expect("the pull");
    run.world.registry.insert(late());
    run.finished.push_back((pull.op(), Err(failure(FailureKind::ImagePull, "unauthorized"))));
    run.settle();
    assert!(run.world.running(&uid("web"), "main").is_some());
    assert_eq!((pulls(&run), complaints(&run)), (2, Vec::new()));
}

/// One pull is for all, also for those whose turn it is not.
#[test]
fn a_failed_pull_is_told_to_those_whose_turn_it_is() {
    let mut run = Run::new();
    let mut web = with_late("web", ImagePullPolicy::IfNotPresent);
    pods::edit(&mut web, "init-a").image = late();
    run.want(web);
    run.want(with_late("early", ImagePullPolicy::IfNotPresent));
    let mut alone = pods::pod("alone", &["main"]);
    pods::edit(&mut alone, "main").image = late();
    run.want(alone);
    run.settle();
    run.advance(Duration::from_secs(2), Run::settle);
    let told = complaints(&run);
    let who: BTreeSet<&str> = told.iter().filter_map(|one| one.split(' ').next()).collect();
    assert_eq!(who, BTreeSet::from(["uid-alone/main", "uid-web/init-a"]), "{told:?}");
    assert_eq!(run.notes("BackOff").count(), 2);

    run.world.registry.insert(late());
    run.advance(Duration::from_secs(10), Run::settle);
    assert!(run.world.running(&uid("alone"), "main").is_some());
    assert!(run.world.running(&uid("web"), "init-a").is_some());
    run.end_init_containers();
    run.settle();
    for pod in ["web", "early"] {
        assert!(run.world.running(&uid(pod), "main").is_some(), "{pod}");
    }
    assert_eq!(complaints(&run), told);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A sidecar comes before what follows it until it has started.
#[test]
fn an_image_that_is_always_pulled_waits_for_sidecars_too() {
    let mut run = Run::new();
    run.world.registry.insert(late());
    let mut pod = pods::pod("web", &["side-a", "main"]);
    let main = pods::edit(&mut pod, "main");
    (main.image, main.pull_policy) = (late(), ImagePullPolicy::Always);
    pods::edit(&mut pod, "side-a").probes.startup = Some(pods::probe());
    run.want(pod);
    while run.settle_one_but_probes() {}
    assert_eq!(pulls(&run), 0);
    run.settle();
    run.advance(Duration::from_secs(20), Run::settle);
    assert_eq!(pulls(&run), 1);
    assert!(run.world.running(&uid("web"), "main").is_some());
}

/// A pod whose image is pulled with the Secret `s`, and one of a volume's.
fn with_secret() -> [Pod; 2] {
    let pod = Pod { pull_secrets: vec!["s".into()], ..pods::pod("web", &["main"]) };
    let (mut of_container, mut of_volume) = (pod.clone(), pod);
    pods::edit(&mut of_container, "main").image = late();
    pods::add_image_volume(&mut of_volume, Some("main"), "assets", late().as_str());
    [of_container, of_volume]
}

fn tell_changed(run: &mut Run, kind: ObjectKind, name: &str) {
    let object = ObjectKey { kind, namespace: "default".into(), name: name.into() };
    run.handle(Event::ObjectChanged { object, pods: vec![uid("web")] });
}

fn changed(run: &mut Run, kind: ObjectKind, name: &str) {
    tell_changed(run, kind, name);
    run.settle();
}

/// The next wait is none the shorter for that.
#[test]
fn a_pull_that_failed_is_not_waited_for_when_its_secret_comes() {
    for pod in with_secret() {
        let mut run = Run::new();
        run.want(pod);
        run.settle();
        run.advance(Duration::from_secs(5), Run::settle);
        for (kind, name, expected) in
            [(ObjectKind::ConfigMap, "s", 1), (ObjectKind::Secret, "other", 1), (ObjectKind::Secret, "s", 2)]
        {
            changed(&mut run, kind, name);
            assert_eq!(pulls(&run), expected, "{kind:?} {name}");
        }
        run.world.registry.insert(late());
        run.advance(Duration::from_millis(19_900), Run::settle);
        assert_eq!(pulls(&run), 2, "it does not wait");
        run.advance(Duration::from_millis(200), Run::settle);
        assert_eq!(pulls(&run), 3, "it waits for longer");
        assert!(run.world.running(&uid("web"), "main").is_some());
    }
}

#[test]
fn a_pull_secret_that_is_mended_is_used_at_once() {
    for pod in with_secret() {
        let mut run = Run::new();
        run.want(pod);
        settle_but_pulls(&mut run);
        let pull = run.open.pop_front().expect("the pull");
        run.world.registry.insert(late());
        run.finished.push_back((pull.op(), Err(failure(FailureKind::Config, "no accounts"))));
        run.settle();
        assert_eq!((waits_for(&run, "web"), pulls(&run)), ("no accounts".to_owned(), 1));
        changed(&mut run, ObjectKind::Secret, "s");
        assert!(run.world.running(&uid("web"), "main").is_some());
    }
}

/// As when a Secret is made a moment after its pod.
#[test]
fn a_pull_that_fails_is_not_waited_for_when_its_secret_came_meanwhile() {
    let kinds = [FailureKind::ImagePull, FailureKind::Config];
    for (kind, pod) in kinds.into_iter().flat_map(|kind| with_secret().map(|pod| (kind, pod))) {
        let mut run = Run::new();
        run.want(pod);
        settle_but_pulls(&mut run);
        let pull = run.open.pop_front().expect("the pull");
        tell_changed(&mut run, ObjectKind::Secret, "s");
        run.world.registry.insert(late());
        run.finished.push_back((pull.op(), Err(failure(kind, "no accounts"))));
        run.settle();
        assert_eq!(pulls(&run), 2, "{kind:?}");
        assert!(run.world.running(&uid("web"), "main").is_some(), "{kind:?}");
    }
}
