//! Volumes that are images: what is planned and shown of them, who waits, and what is asked of whom over a pod's life.

use std::{sync::Arc, time::Duration};

use berth_core::{
    effect::{Act, Effect, NodeAct},
    failure::{Failure, FailureKind},
    id::{ImageRef, OpId, PodUid, VolumeName},
    pod::{
        actual::Life,
        plan::{Network, World, plan},
        port::{
            image::{ImageFor, ImageUse},
            pull_backoff::PullBackoff,
        },
        resource::{Resource, Retry},
        status,
        step::{PodResource, Step},
    },
    record::VolumeImage,
    spec::{ImagePullPolicy, Pod, VolumeSource},
    status::ContainerState,
    time::Mono,
};

use crate::{
    lives::{NOW, furnished, name, now, prepared},
    pods,
    run::Run,
    tell,
};

fn assets() -> VolumeName {
    VolumeName::new("assets")
}

fn uid() -> PodUid {
    PodUid::new("uid-web")
}

/// Two containers, of which the first mounts an image.
fn pod(image: &str) -> Pod {
    let mut pod = pods::pod("web", &["web", "log"]);
    pods::add_image_volume(&mut pod, Some("web"), "assets", image);
    pod
}

/// That pod with all that it needs but what the volume is made of.
fn life() -> Life {
    let mut life = furnished(pod("data:1"));
    ["web", "log"].into_iter().for_each(|one| prepared(&mut life, one));
    life
}

fn steps(life: &Life) -> Vec<Step> {
    plan(life, World { config: &pods::node(), network: &Network::Ready }, now()).steps
}

fn retry(message: &str) -> Retry {
    let failure = Failure::new(FailureKind::Transient, message.into());
    Retry { failure, at: Mono(NOW) + Duration::from_secs(10), tries: 1 }
}

fn backoff(announced: bool) -> PullBackoff {
    let delay = Duration::from_secs(10);
    let (failed_at, ends_at) = (Mono(NOW), Mono(NOW) + delay);
    PullBackoff { error: Some("not found".into()), failed_at, delay, ends_at, announced }
}

fn resolved(life: &mut Life) {
    let image = VolumeImage { name: "docker.io/library/data:1".into(), chain_id: "sha256:f00d".into() };
    life.record.volume_images.insert(assets(), image);
}

#[test]
fn who_mounts_an_image_waits_for_it_and_nobody_else_for_long() {
    let of = || ImageFor::Volume(assets());
    let other = Step::Start(name("log"));
    type Case = (&'static str, fn(&mut Life), Vec<Step>);
    let cases: [Case; 9] = [
        ("wanted", |_| {}, vec![Step::Inspect(of())]),
        (
            "pulled",
            |life| {
                let pulling = ImageUse::Pulling { is_early: false, secret_changed: false };
                life.actual.volume_images.insert(assets(), pulling);
            },
            vec![],
        ),
        (
            "missing",
            |life| drop(life.actual.volume_images.insert(assets(), ImageUse::Missing)),
            vec![Step::Pull(of())],
        ),
        (
            "in back-off",
            |life| {
                life.actual.volume_images.insert(assets(), ImageUse::Missing);
                life.actual.pull_backoffs.insert(ImageRef::new("data:1"), backoff(true));
            },
            vec![other.clone()],
        ),
        (
            "refused",
            |life| {
                let refused = ImageUse::Refused { reason: "InvalidImageName".into(), retry: retry("no") };
                life.actual.volume_images.insert(assets(), refused);
            },
            vec![other.clone()],
        ),
        ("found", resolved, vec![Step::Ensure(PodResource::Volume(assets()))]),
        (
            "being mounted",
            |life| {
                resolved(life);
                life.actual.volumes.insert(assets(), Resource::Ensuring(OpId(1)));
            },
            vec![],
        ),
        (
            "not mounted",
            |life| {
                resolved(life);
                life.actual.volumes.insert(assets(), Resource::Failed(retry("no")));
            },
            vec![other],
        ),
        (
            "mounted",
            |life| {
                resolved(life);
                life.actual.volumes.insert(assets(), Resource::Ready("/v".into()));
            },
            vec![Step::Start(name("web"))],
        ),
    ];
    for (what, change, expected) in cases {
        let mut life = life();
        change(&mut life);
        assert_eq!(steps(&life), expected, "{what}");
    }
}

#[test]
fn an_image_that_nobody_mounts_is_brought_and_not_mounted() {
    let mut pod = pods::pod("web", &["web"]);
    pods::add_image_volume(&mut pod, None, "assets", "data:1");
    let mut life = furnished(pod);
    prepared(&mut life, "web");
    let start = Step::Start(name("web"));
    assert_eq!(steps(&life), [Step::Inspect(ImageFor::Volume(assets())), start.clone()]);
    resolved(&mut life);
    assert_eq!(steps(&life), [start]);
}

#[test]
fn an_image_is_always_pulled_once_for_its_pod() {
    let mut life = life();
    let spec = Arc::make_mut(&mut life.spec);
    let source = VolumeSource::Image { image: ImageRef::new("data:1"), pull_policy: ImagePullPolicy::Always };
    spec.volumes[0].source = source;
    assert_eq!(steps(&life), [Step::Pull(ImageFor::Volume(assets()))]);
    resolved(&mut life);
    assert_eq!(steps(&life), [Step::Ensure(PodResource::Volume(assets()))]);
}

/// The last of several that are missing is told, before the container's own.
#[test]
fn why_an_image_is_not_mounted_is_what_its_container_waits_for() {
    let mut pod = pod("data:1");
    pods::add_image_volume(&mut pod, Some("web"), "more", "more:1");
    let told = |change: &dyn Fn(&mut Life)| {
        let mut life = furnished(pod.clone());
        ["web", "log"].into_iter().for_each(|one| prepared(&mut life, one));
        change(&mut life);
        let status = status::of(&life, &pods::node(), None, now());
        let of = |name: &str| {
            let container = status.containers.iter().find(|one| one.name.as_str() == name);
            match &container.expect("a container").state {
                ContainerState::Waiting { reason, message } => (reason.clone(), message.clone()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(of("log"), ("ContainerCreating".into(), String::new()));
        of("web")
    };
    let says = |reason: &str, message: &str| (reason.to_owned(), message.to_owned());
    let use_image = |life: &mut Life, volume: &str, state| {
        life.actual.volume_images.insert(VolumeName::new(volume), state);
    };
    let refused = |why: &str| ImageUse::Refused { reason: why.to_owned().into(), retry: retry(why) };
    assert_eq!(told(&|_| {}), says("ContainerCreating", ""));
    assert_eq!(told(&|life| use_image(life, "assets", refused("First"))), says("First", "First"));
    let both = told(&|life| {
        use_image(life, "assets", refused("First"));
        use_image(life, "more", refused("Second"));
    });
    assert_eq!(both, says("Second", "Second"));
    for (announced, expected) in [
        (false, says("ErrImagePull", "not found")),
        (true, says("ImagePullBackOff", "Back-off pulling image \"more:1\": ErrImagePull: not found")),
    ] {
        let waits = told(&|life| {
            use_image(life, "more", ImageUse::Missing);
            life.actual.pull_backoffs.insert(ImageRef::new("more:1"), backoff(announced));
        });
        assert_eq!(waits, expected);
    }
    let unmounted = told(&|life| {
        drop(life.actual.volumes.insert(assets(), Resource::Failed(retry("no such device"))));
    });
    let message = "failed to mount image volume: ImageVolumeMountFailed: no such device";
    assert_eq!(unmounted, says("CreateContainerError", message));
}

fn is_of_image(effect: &Effect) -> bool {
    match effect {
        Effect::Node { act: NodeAct::InspectImage(one) | NodeAct::PullImage(one), .. } => {
            one.image == ImageRef::new("data:1")
        }
        Effect::Node { .. } | Effect::Pod { .. } => false,
    }
}

/// How often a pull or a look was asked for.
fn asked(run: &Run) -> usize {
    run.told.iter().filter(|effect| is_of_image(effect)).count()
}

/// A restart of a container or of the agent asks no registry, and the pod's image stays what it was.
#[test]
fn what_was_found_once_is_what_the_pod_has() {
    let mut run = Run::new();
    run.world.images.insert(ImageRef::new("data:1"));
    run.want(pod("data:1"));
    run.settle();
    assert_eq!(asked(&run), 1);
    let of = run.world.volume_layers.clone();
    run.world.registry.clear();
    run.restart(None);
    run.settle();
    let id = run.world.running(&uid(), "web").expect("it runs");
    let now = run.now;
    run.world.exit(&id, 0, now);
    run.settle();
    run.advance(Duration::from_secs(60), Run::settle);
    assert!(run.world.running(&uid(), "web").is_some_and(|next| next != id), "it runs again");
    assert_eq!((asked(&run), &run.world.volume_layers), (1, &of));
    run.unwant("web");
    run.settle();
    assert_eq!(run.world.left_of(&uid()), Vec::<String>::new());
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Nobody pulls for a pod that goes, and what comes of a look is for nobody.
#[test]
fn a_pod_that_goes_waits_for_no_image() {
    for kind in ["inspect-image", "pull-image"] {
        let mut run = Run::new();
        run.want(pod("data:1"));
        let asked = |effect: &Effect| is_of_image(effect) && tell::kind_of(effect) == kind;
        let effect = run.take_asked(asked);
        run.unwant("web");
        run.settle();
        assert_eq!(run.world.left_of(&uid()), Vec::<String>::new(), "{kind}");
        let now = run.now;
        let outcome = run.world.perform(&effect, now).expect("an outcome");
        run.finished.push_back((effect.op(), outcome));
        run.settle();
        let later = run.told.iter().skip_while(|told| **told != effect).skip(1);
        let pulls = later.filter(|effect| tell::kind_of(effect) == "pull-image").count();
        assert_eq!((pulls, run.world.volume_layers.len()), (0, 0), "{kind}");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{kind}");
    }
}

/// What is mounted of an image goes with the volumes, and a pod without such volumes asks containerd for none.
#[test]
fn layers_are_removed_of_pods_that_may_have_some() {
    for (spec, expected) in [(pod("busybox:1"), true), (pods::pod("web", &["web"]), false)] {
        let mut run = Run::new();
        let mut pod = Pod { volumes: [spec.volumes.clone(), vec![pods::empty_dir("data")]].concat(), ..spec };
        pods::mount_all(&mut pod, "web");
        run.want(pod);
        run.settle();
        run.unwant("web");
        run.settle();
        let removals = run.told.iter().filter_map(|effect| match effect {
            Effect::Pod { act: Act::RemoveVolumes { with_images }, .. } => Some(*with_images),
            Effect::Pod { .. } | Effect::Node { .. } => None,
        });
        assert_eq!(removals.collect::<Vec<_>>(), [expected]);
        assert_eq!(run.world.left_of(&uid()), Vec::<String>::new());
    }
}
