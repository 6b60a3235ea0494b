//! Images that nothing needs are removed, and what pods need is never taken from under their feet.

use std::{collections::BTreeSet, time::Duration};

use berth_core::{
    config::{ImageCollection, NodeConfig},
    effect::{Effect, NodeAct},
    event::{Event, Restored},
    id::{ImageRef, PodUid},
    node::Node,
    spec::{Pod, RestartPolicy, Source},
};

use crate::{lives::now, pods, run::Run, tell};

const PERIOD: Duration = Duration::from_secs(300);

fn settings() -> ImageCollection {
    ImageCollection { high_percent: 50, low_percent: 0, age_min: Duration::from_secs(120), age_max: None }
}

/// A node with a disk that is full, and these images.
fn full(images: &[&str]) -> Run {
    let mut run = Run::with_collection(settings());
    run.world.files_beside_images = 900;
    run.world.images.extend(images.iter().map(|image| ImageRef::new(*image)));
    run
}

/// A pod of one container.
fn of_image(name: &str, image: &str) -> Pod {
    let mut pod = pods::pod(name, &["main"]);
    pods::edit(&mut pod, "main").image = ImageRef::new(image);
    pod
}

fn images(run: &Run) -> Vec<&str> {
    run.world.images.iter().map(ImageRef::as_str).collect()
}

fn is_running(run: &Run, name: &str) -> bool {
    run.world.running(&PodUid::new(format!("uid-{name}")), "main").is_some()
}

fn is_removal(effect: &Effect) -> bool {
    matches!(effect, Effect::Node { act: NodeAct::RemoveImage(_), .. })
}

fn asked(run: &Run, kind: &str) -> usize {
    run.told.iter().filter(|effect| tell::kind_of(effect) == kind).count()
}

#[test]
fn what_no_pod_needs_goes_and_comes_back_with_the_next_pod() {
    let mut run = full(&["old:1", "web:1"]);
    run.world.registry.insert(ImageRef::new("web:1"));
    run.want(of_image("web", "web:1"));
    run.settle();
    run.advance(PERIOD, Run::settle);
    assert_eq!(images(&run), ["web:1"]);
    assert!(is_running(&run, "web"));
    run.unwant("web");
    run.settle();
    run.advance(2 * PERIOD, Run::settle);
    assert_eq!(images(&run), [""; 0]);
    run.want(of_image("again", "web:1"));
    run.settle();
    assert!(is_running(&run, "again"));
    assert_eq!(asked(&run, "pull-image"), 1);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Its manifest may stay for ever.
#[test]
fn a_pod_that_has_ended_keeps_no_image() {
    let mut run = full(&["web:1"]);
    run.want(Pod { restart_policy: RestartPolicy::Never, ..of_image("web", "web:1") });
    run.settle();
    let (id, now) = (run.world.running(&PodUid::new("uid-web"), "main").expect("it runs"), run.now);
    run.advance(PERIOD, Run::settle);
    assert_eq!(images(&run), ["web:1"], "it runs");
    run.world.exit(&id, 0, now);
    run.settle();
    assert_eq!(images(&run), ["web:1"], "nobody has looked");
    run.advance(PERIOD, Run::settle);
    assert_eq!(images(&run), [""; 0]);
    assert!(run.spec("web").is_some());
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// One that nothing has ever used goes before the image of a pod that came and went before anybody looked at the disk.
#[test]
fn what_a_pod_used_between_two_looks_goes_last() {
    let mut run = Run::with_collection(ImageCollection { high_percent: 80, low_percent: 70, ..settings() });
    run.world.files_beside_images = 600;
    run.world.images = ["a:1", "b:1"].map(ImageRef::new).into();
    run.want(of_image("web", "a:1"));
    run.settle();
    assert!(is_running(&run, "web"));
    run.unwant("web");
    run.settle();
    assert_eq!(asked(&run, "measure-images"), 0);
    run.advance(PERIOD, Run::settle);
    assert_eq!(images(&run), ["a:1"]);
}

/// A source that has not spoken may want pods whose images nothing uses yet.
#[test]
fn no_image_goes_before_every_source_has_spoken() {
    let config = NodeConfig { collection: Some(settings()), ..pods::node() };
    let mut node = Node::new(config, BTreeSet::from([Source::Api, Source::File]));
    let mut now = now();
    node.handle(now, Event::Restored(Box::<Restored>::default()));
    let speaks = |source| Event::Desired { source, pods: Vec::new(), is_whole: true };
    let looks = |node: &mut Node| {
        let effects = std::iter::from_fn(|| node.poll_effect());
        effects.filter(|effect| tell::kind_of(effect) == "measure-images").count()
    };
    node.handle(now, speaks(Source::Api));
    for _ in 0..10 {
        now.mono = now.mono + Duration::from_secs(60);
        node.handle_timeout(now);
        assert_eq!(looks(&mut node), 0, "{now:?}");
    }
    node.handle(now, speaks(Source::File));
    now.mono = now.mono + Duration::from_secs(60);
    node.handle_timeout(now);
    assert_eq!(looks(&mut node), 1);
}

#[test]
fn a_pod_that_waits_keeps_its_images() {
    let mut run = full(&["web:1"]);
    let mut pod = of_image("web", "missing:1");
    pod.init_containers = vec![std::sync::Arc::new(pods::container("init-a"))];
    run.want(pod);
    run.settle();
    run.advance(2 * PERIOD, Run::settle);
    assert_eq!(images(&run), ["busybox:1"], "the init container waits for its end");
}

#[test]
fn an_image_of_which_only_a_volume_is_made_stays_as_long_as_its_pod() {
    let mut run = full(&["data:1", "old:1"]);
    let mut pod = of_image("web", "busybox:1");
    pods::add_image_volume(&mut pod, Some("main"), "assets", "data:1");
    run.want(pod);
    run.settle();
    run.advance(2 * PERIOD, Run::settle);
    assert!(is_running(&run, "web"));
    assert_eq!(images(&run), ["busybox:1", "data:1"]);
    run.restart(None);
    run.settle();
    run.advance(2 * PERIOD, Run::settle);
    assert_eq!(images(&run), ["busybox:1", "data:1"]);
    run.unwant("web");
    run.settle();
    run.advance(2 * PERIOD, Run::settle);
    assert_eq!(images(&run), [""; 0]);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn a_pod_that_comes_while_its_image_is_being_removed_pulls_it_anew() {
    let mut run = full(&["web:1"]);
    run.world.registry.insert(ImageRef::new("web:1"));
    run.world.images.remove(&ImageRef::new("busybox:1"));
    run.settle();
    run.advance(
        Duration::from_secs(120),
        |run| while !run.collections.iter().any(is_removal) && run.collect() {},
    );
    assert!(run.collections.iter().any(is_removal), "a removal is under way");
    run.want(of_image("web", "web:1"));
    while !run.open.is_empty() {
        run.perform(0);
        run.deliver(0);
    }
    assert_eq!(asked(&run, "inspect-image"), 0, "it would be found, and be gone when its layer is made");
    run.settle();
    assert!(is_running(&run, "web"));
    assert_eq!((asked(&run, "inspect-image"), asked(&run, "pull-image")), (1, 1));
    assert_eq!(run.notes("Failed").count(), 0);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn a_node_with_room_asks_containerd_for_nothing() {
    let mut run = Run::with_collection(settings());
    run.settle();
    run.told.clear();
    run.advance(Duration::from_secs(3600), Run::settle);
    assert!(asked(&run, "measure-images") > 10);
    assert_eq!(run.told.iter().map(tell::kind_of).find(|kind| *kind != "measure-images"), None);
}
