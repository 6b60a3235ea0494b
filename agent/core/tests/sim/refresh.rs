//! Volumes whose content changes while their pod runs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_core::{
    effect::{Act, Effect},
    event::Event,
    failure::FailureKind,
    id::{OpId, PodUid, VolumeName},
    pod::{
        actual::Life,
        plan::{Network, World, plan},
        port::volume::Refresh,
        resource::Resource,
        step::{PodResource, Step},
    },
    spec::{
        ContentKind, ContentVolume, DownwardFile, DownwardSource, ObjectFiles, ObjectKey, ObjectKind, Pod,
        Projection, QosClass, RestartPolicy, Volume, VolumeSource,
    },
};

use crate::{
    lives::{now, running},
    pods,
    run::Run,
    world::failure,
};

fn volume(name: &str, kind: ContentKind, source: Projection) -> Volume {
    let content = ContentVolume { kind, default_mode: 0o644, sources: vec![source] };
    Volume { name: VolumeName::new(name), source: VolumeSource::Content(content) }
}

/// A pod with a ConfigMap `m`, a Secret `s` and its own labels as volumes.
fn pod() -> Pod {
    let object = |kind, name: &str| {
        Projection::Object(ObjectFiles { kind, name: name.into(), items: vec![], optional: false })
    };
    let labels = DownwardFile {
        path: "labels".into(),
        mode: None,
        source: DownwardSource::Field("metadata.labels".into()),
    };
    let mut pod = pods::pod("web", &["main"]);
    pod.volumes = vec![
        volume("map", ContentKind::ConfigMap, object(ObjectKind::ConfigMap, "m")),
        volume("secret", ContentKind::Secret, object(ObjectKind::Secret, "s")),
        volume("labels", ContentKind::DownwardApi, Projection::Downward(vec![labels])),
    ];
    pods::mount_all(&mut pod, "main");
    pod
}

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

fn makes_a_volume(effect: &Effect) -> bool {
    matches!(effect, Effect::Pod { act: Act::EnsureVolume(_), .. })
}

fn changed(run: &mut Run, kind: ObjectKind, name: &str) {
    let object = ObjectKey { kind, namespace: "default".into(), name: name.into() };
    run.handle(Event::ObjectChanged { object, pods: vec![uid(), PodUid::new("gone")] });
}

/// How often each volume was made: map, secret, labels.
fn made(run: &Run) -> [u32; 3] {
    ["map", "secret", "labels"]
        .map(|name| run.world.contents.made.get(&(uid(), VolumeName::new(name))).copied().unwrap_or(0))
}

fn is_running(run: &Run) -> bool {
    run.world.running(&uid(), "main").is_some()
}

fn begun() -> Run {
    let mut run = Run::new();
    run.settle();
    run.want(pod());
    run.settle();
    run
}

#[test]
fn what_shows_a_changed_object_is_made_anew_and_nothing_else() {
    let mut run = begun();
    assert_eq!((made(&run), is_running(&run)), ([1, 1, 1], true));
    for (kind, name, expected) in [
        (ObjectKind::ConfigMap, "m", [2, 1, 1]),
        (ObjectKind::Secret, "m", [2, 1, 1]),
        (ObjectKind::Secret, "s", [2, 2, 1]),
        (ObjectKind::ConfigMap, "other", [2, 2, 1]),
    ] {
        changed(&mut run, kind, name);
        run.settle();
        assert_eq!(made(&run), expected, "{kind:?} {name}");
    }
    run.advance(Duration::from_secs(600), |_| {});
    run.settle();
    assert_eq!(made(&run), [2, 2, 1], "nothing is made anew for time alone");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// What waits for an object of its environment begins when that comes, and not when it is tried again.
#[test]
fn a_start_that_failed_for_an_object_goes_on_when_that_comes() {
    let is_start = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::StartContainer(_), .. });
    let mut run = Run::new();
    run.settle();
    run.want(pod());
    run.until_asked(is_start);
    let at = run.open.iter().position(is_start).expect("it is asked for");
    let start = run.open.remove(at).unwrap();
    let lacks = failure(FailureKind::Config, "secret \"s\" not found");
    run.handle(Event::Done { op: start.op(), outcome: Err(lacks) });
    run.settle();
    assert!(!is_running(&run), "it waits");
    changed(&mut run, ObjectKind::Secret, "s");
    run.settle();
    assert!(is_running(&run));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

#[test]
fn a_change_of_the_pod_itself_is_shown() {
    let mut run = begun();
    let mut labelled = pod();
    labelled.labels = BTreeMap::from([("a".into(), "b".into())]);
    run.replace(labelled.clone());
    run.settle();
    assert_eq!(made(&run), [1, 1, 2]);
    labelled.manifest = "{\"status\":{}}".into();
    run.replace(labelled);
    run.settle();
    assert_eq!(made(&run), [1, 1, 2], "its status is not shown");
}

/// Files may show what containers ask for.
#[test]
fn what_is_allocated_to_a_pod_anew_is_shown() {
    let version = |generation, milli| {
        let mut pod = pod();
        pods::edit(&mut pod, "main").resources = pods::resources((10, 1 << 20), (milli, 100 << 20));
        Pod { generation: Some(generation), qos: QosClass::Burstable, ..pod }
    };
    let mut run = Run::new();
    run.settle();
    run.want(version(1, 200));
    run.settle();
    assert_eq!(made(&run), [1, 1, 1]);
    run.want(version(2, 300));
    run.settle();
    assert_eq!(made(&run), [1, 1, 2]);
    run.want(version(2, 300));
    run.settle();
    assert_eq!(made(&run), [1, 1, 2]);
}

#[test]
fn a_change_while_one_is_being_made_is_made_after_it() {
    let mut run = Run::new();
    run.settle();
    run.want(pod());
    while made(&run) == [0, 0, 0] {
        changed(&mut run, ObjectKind::ConfigMap, "m");
        assert!(run.settle_one());
    }
    run.settle();
    assert_eq!(made(&run), [2, 1, 1], "once more, however often it was told");

    changed(&mut run, ObjectKind::ConfigMap, "m");
    changed(&mut run, ObjectKind::ConfigMap, "m");
    changed(&mut run, ObjectKind::ConfigMap, "m");
    run.settle();
    assert_eq!(made(&run), [4, 1, 1], "three changes, of which two came while it was being made");
}

#[test]
fn an_object_that_is_gone_stops_nothing_and_its_return_ends_the_wait() {
    let mut run = begun();
    run.world.contents.is_missing = true;
    changed(&mut run, ObjectKind::ConfigMap, "m");
    run.settle();
    run.advance(Duration::from_secs(300), Run::settle);
    assert!(is_running(&run), "what is there stays");
    let tried = made(&run)[0];
    assert!((6..=12).contains(&tried), "it is tried again at growing intervals: {tried}");
    run.world.contents.is_missing = false;
    changed(&mut run, ObjectKind::ConfigMap, "m");
    run.settle();
    let done = made(&run)[0];
    assert_eq!(done, tried + 1);
    run.advance(Duration::from_secs(300), Run::settle);
    assert_eq!(made(&run)[0], done);
}

#[test]
fn a_pod_whose_object_appears_starts_at_once() {
    let mut run = Run::new();
    run.settle();
    run.world.contents.is_missing = true;
    run.want(pod());
    run.settle();
    run.advance(Duration::from_secs(300), Run::settle);
    assert!(!is_running(&run));
    run.world.contents.is_missing = false;
    for (kind, name) in [(ObjectKind::ConfigMap, "m"), (ObjectKind::Secret, "s")] {
        assert!(!is_running(&run));
        changed(&mut run, kind, name);
        run.settle();
    }
    // The labels wait for nobody but themselves.
    run.advance(Duration::from_secs(60), Run::settle);
    assert!(is_running(&run));
}

#[test]
fn a_token_is_renewed_when_it_is_due_whatever_the_wall_clock_does() {
    let mut run = Run::new();
    run.settle();
    run.world.contents.again_in = Some(Duration::from_secs(2880));
    run.want(pod());
    run.settle();
    for (round, step) in [(1, 3600), (2, -3600), (3, 0)] {
        run.now.wall = run.now.wall.checked_add(jiff::SignedDuration::from_secs(step)).unwrap();
        run.advance(Duration::from_secs(2840), Run::settle);
        assert_eq!(made(&run), [round; 3], "not yet");
        run.advance(Duration::from_secs(40), Run::settle);
        assert_eq!(made(&run), [round + 1; 3]);
    }
}

/// What ends a pod.
#[derive(Debug, Clone, Copy)]
enum End {
    Removal,
    Itself,
}

/// What is made late would be left: nobody removes it a second time.
#[test]
fn volumes_are_removed_when_none_of_them_is_made_anew_any_more() {
    let is_removal = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::RemoveVolumes { .. }, .. });
    for end in [End::Removal, End::Itself] {
        let mut run = Run::new();
        run.settle();
        run.want(Pod { restart_policy: RestartPolicy::Never, ..pod() });
        run.settle();
        changed(&mut run, ObjectKind::Secret, "s");
        run.told.clear();
        match end {
            End::Removal => run.unwant("web"),
            End::Itself => {
                let main = run.world.running(&uid(), "main").unwrap();
                let now = run.now;
                run.world.exit(&main, 0, now);
            }
        }
        settle_but(&mut run, makes_a_volume);
        assert_eq!(run.open.len(), 1, "{end:?}: {:?}", run.open);
        assert!(!run.told.iter().any(is_removal), "{end:?}: volumes are removed while one is made");
        run.settle();
        assert!(run.told.iter().any(is_removal), "{end:?}: {:?}", run.told);
        assert!(run.world.volumes.is_empty(), "{end:?}: {:?}", run.world.volumes);
        run.unwant("web");
        run.settle();
        assert!(run.world.dirs.is_empty() && run.world.records.is_empty(), "{end:?}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{end:?}");
    }
}

/// Does all that can be done without time passing, but for some effects.
fn settle_but(run: &mut Run, is_left: impl Fn(&Effect) -> bool) {
    loop {
        while run.world.has_news() {
            run.report();
        }
        let Some(at) = run.open.iter().position(|effect| !is_left(effect)) else { return };
        run.perform(at);
        run.deliver(0);
    }
}

#[test]
fn many_volumes_of_a_pod_are_made_and_made_anew_a_few_at_a_time() {
    let mut many = pod();
    let map = many.volumes[0].source.clone();
    let named = |number| Volume { name: VolumeName::new(format!("v{number}")), source: map.clone() };
    many.volumes = (0..40).map(named).collect();
    pods::edit(&mut many, "main").mounts.clear();
    pods::mount_all(&mut many, "main");
    let mut run = Run::new();
    run.settle();
    run.want(many);
    assert_eq!(most_at_once(&mut run), 16);
    assert_eq!((run.world.volumes.len(), is_running(&run)), (40, true));
    changed(&mut run, ObjectKind::ConfigMap, "m");
    assert_eq!(most_at_once(&mut run), 16);
    assert!(run.world.contents.made.values().all(|made| *made == 2), "{:?}", run.world.contents.made);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Does all that can be done without time passing, and tells how many volumes were to be made at once.
fn most_at_once(run: &mut Run) -> usize {
    let mut most = 0;
    loop {
        most = most.max(run.open.iter().filter(|effect| makes_a_volume(effect)).count());
        if !run.settle_one() {
            return most;
        }
    }
}

#[test]
fn a_volume_that_is_missing_is_made_once_at_a_time() {
    let steps =
        |life: &Life| plan(life, World { config: &pods::node(), network: &Network::Ready }, now()).steps;
    let name = VolumeName::new("data");
    let mut life = running(&["web"], RestartPolicy::Always);
    let spec = Arc::make_mut(&mut life.spec);
    spec.volumes = vec![pods::empty_dir("data")];
    pods::mount_all(spec, "web");
    spec.volumes.push(pods::empty_dir("unused"));
    life.actual.volumes.insert(name.clone(), Resource::Unknown);
    life.actual.refreshes.insert(name.clone(), Refresh::Asked { op: OpId(1), again: false });
    assert_eq!(steps(&life), []);
    life.actual.refreshes.clear();
    assert_eq!(steps(&life), [Step::Ensure(PodResource::Volume(name))]);
}
