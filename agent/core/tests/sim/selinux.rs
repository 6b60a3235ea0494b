//! Levels by which SELinux keeps pods apart.

use std::time::Duration;

use berth_core::{
    config::NodeConfig,
    effect::{Act, Effect},
    id::PodUid,
    oci::ObjectValues,
    pod::port::start::StartRequest,
    selinux::SeLinux,
    spec::Pod,
};

use crate::{pods, run::Run};

/// A node whose pods have levels of so many categories.
fn node(categories: u32) -> NodeConfig {
    let contexts =
        "process = system_u:system_r:container_t:s0\nfile = system_u:object_r:container_file_t:s0\n";
    NodeConfig { se_linux: Some(SeLinux::of(contexts, categories)), ..pods::node() }
}

fn uid(name: &str) -> PodUid {
    PodUid::new(format!("uid-{name}"))
}

/// A pod whose containers have this level.
fn named(name: &str, level: &str) -> Pod {
    let mut pod = pods::pod(name, &["main"]);
    pod.security.se_linux.level = level.to_owned();
    pod
}

/// Levels that runs of a pod's containers were started with, in order: of their processes and of their files alike.
fn levels(run: &Run, name: &str) -> Vec<String> {
    let uid = uid(name);
    let starts = run.told.iter().filter_map(|effect| match effect {
        Effect::Pod { pod, act: Act::StartContainer(request), .. } if *pod == uid => Some(request),
        _ => None,
    });
    let level = |request: &StartRequest| {
        let plan = request.with_values(&ObjectValues::default()).unwrap().plan;
        let process = plan.spec.process().clone().unwrap().selinux_label().clone().unwrap();
        let level = process.strip_prefix("system_u:system_r:container_t:").unwrap().to_owned();
        let relabel = plan.relabel.unwrap();
        assert_eq!(relabel.label, format!("system_u:object_r:container_file_t:{level}"));
        assert!(!relabel.places.is_empty());
        level
    };
    starts.map(|request| level(request)).collect()
}

#[test]
fn a_pods_containers_have_one_level_that_no_other_pod_has() {
    let mut run = Run::with(node(3));
    run.settle();
    run.want(pods::pod("one", &["main", "side"]));
    run.want(pods::pod("two", &["main"]));
    run.settle();
    let one = levels(&run, "one");
    assert_eq!(one.len(), 2, "{one:?}");
    assert_eq!(one[0], one[1]);
    let two = levels(&run, "two");
    assert!(two.len() == 1 && one[0] != two[0], "{one:?} {two:?}");

    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// By its UID it would have another one once that is free: what its files have is in its record.
#[test]
fn a_level_outlives_the_agent() {
    let mut run = Run::with(node(3));
    run.settle();
    run.want(named("named", "s0:c1,c2"));
    run.settle();
    run.want(pods::pod("one", &["main", "side"]));
    run.settle();
    assert_eq!(levels(&run, "one"), ["s0:c0,c1"; 2]);
    run.unwant("named");
    run.advance(Duration::from_secs(60), Run::settle);
    run.restart(None);
    run.settle();
    for name in ["main", "side"] {
        let id = run.world.running(&uid("one"), name).unwrap();
        run.world.exit(&id, 1, run.now);
    }
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!(levels(&run, "one"), ["s0:c0,c1"; 4]);
    for name in ["alone", "beside", "late"] {
        run.want(pods::pod(name, &["main"]));
        run.settle();
    }
    let mut others = [levels(&run, "alone"), levels(&run, "beside")].concat();
    others.sort();
    assert_eq!(others, ["s0:c0,c2", "s0:c1,c2"]);
    assert_eq!(levels(&run, "late"), Vec::<String>::new());
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// It could reach what is the other's.
#[test]
fn a_pod_for_which_there_is_no_level_waits_until_another_has_gone() {
    let mut run = Run::with(node(2));
    run.settle();
    run.want(pods::pod("one", &["main"]));
    run.settle();
    run.want(pods::pod("two", &["main"]));
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert_eq!((levels(&run, "one"), levels(&run, "two")), (vec!["s0:c0,c1".to_owned()], vec![]));
    let told = run.notes("FailedCreatePodSandBox").find(|(pod, _)| **pod == uid("two"));
    let message = &told.expect("it is told").1.event.message;
    let expected = "failed to init selinux options: every level of 2 categories is another pod's";
    assert!(message.contains(expected), "{message}");
    run.unwant("one");
    run.settle();
    run.advance(Duration::from_secs(600), Run::settle);
    assert_eq!(levels(&run, "two"), ["s0:c0,c1"]);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Its pod has one of its own beside it.
#[test]
fn what_a_container_names_is_given_to_no_other_pod() {
    let mut run = Run::with(node(3));
    run.settle();
    let mut named = pods::pod("named", &["main", "side"]);
    pods::edit(&mut named, "main").security.se_linux.level = "s0:c0,c1".to_owned();
    run.want(named);
    run.settle();
    let mut own = levels(&run, "named");
    own.retain(|level| level != "s0:c0,c1");
    assert_eq!(own.len(), 1, "the other container has the pod's: {own:?}");
    // By its UID it would have the one that is named.
    run.want(pods::pod("b", &["main"]));
    run.want(pods::pod("a", &["main"]));
    run.settle();
    let others = [levels(&run, "b"), levels(&run, "a")].concat();
    assert!(others.len() == 1 && others[0] != "s0:c0,c1" && others != own, "{others:?} {own:?}");
}

#[test]
fn what_a_pod_names_is_given_to_no_other_and_a_level_of_another_form_makes_no_sandbox() {
    let mut run = Run::with(node(3));
    run.settle();
    run.want(named("named", "s0:c0,c1"));
    run.settle();
    // By its UID alone it would have the one that is named.
    for name in ["b", "a"] {
        run.want(pods::pod(name, &["main"]));
        run.settle();
    }
    assert_eq!(levels(&run, "named"), ["s0:c0,c1"]);
    assert_eq!(
        (levels(&run, "b"), levels(&run, "a")),
        (vec!["s0:c0,c2".to_owned()], vec!["s0:c1,c2".to_owned()])
    );

    run.want(named("wrong", "top secret"));
    run.settle();
    let told = run.notes("FailedCreatePodSandBox").find(|(pod, _)| **pod == uid("wrong"));
    let message = &told.expect("it is told").1.event.message;
    assert!(message.contains("the format of 'level' \"top secret\" is not correct"), "{message}");
    assert_eq!(run.world.violations, Vec::<String>::new());
}
