//! One namespace and name in several sources, and what else is told of a pod that has to wait.

use std::{collections::BTreeSet, time::Duration};

use berth_core::{
    effect::{Effect, NodeAct},
    event::{Event, Restored},
    failure::FailureKind,
    id::{ContainerId, PodUid},
    image::WantedImage,
    node::Node,
    spec::{Pod, Source},
    status::ContainerState,
};

use crate::{pods, run::Run, tell, world::failure};

/// A pod of the one name, whose container is named after its source.
fn of(source: Source) -> Pod {
    let pod = pods::pod("web", &[source.as_str()]);
    Pod { source, uid: PodUid::new(format!("uid-{}", source.as_str())), ..pod }
}

fn notes<'a>(run: &'a Run, reason: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    run.notes(reason).map(|(pod, note)| (pod.as_str(), note.event.message.as_str()))
}

fn runs(run: &Run, source: Source) -> bool {
    run.world.containers.values().any(|one| one.name.as_str() == source.as_str() && one.is_running())
}

/// The API server may be a static pod itself, and be heard only once its manifest was mended.
#[test]
fn a_mended_manifest_is_followed_before_the_api_server_was_heard() {
    let mut run = Run::new();
    run.node = Node::new(pods::node(), BTreeSet::from([Source::File, Source::Api]));
    run.handle(Event::Restored(Box::<Restored>::default()));
    run.handle(Event::NetworkReady(Ok(())));
    run.want(of(Source::File));
    run.settle();
    assert!(runs(&run, Source::File));
    let mended =
        Pod { source: Source::File, uid: PodUid::new("uid-mended"), ..pods::pod("web", &["mended"]) };
    run.replace(mended);
    run.settle();
    run.advance(Duration::from_secs(120), Run::settle);
    let running = run.world.containers.values().filter(|one| one.is_running());
    assert_eq!(running.map(|one| one.name.as_str()).collect::<Vec<_>>(), ["mended"]);
}

/// Who is there stays; of two that come at once, files go before URLs and those before the API server. The other is told why it waits,
/// and begins when the first is gone.
#[test]
fn a_name_is_one_pods_and_then_the_others() {
    use Source::{Api, File, Http};
    for (there, comes, wins) in [
        (Some(File), Api, File),
        (Some(Api), File, Api),
        (Some(Http), File, Http),
        (None, Api, File),
        (None, Http, File),
    ] {
        let mut run = Run::new();
        run.node = Node::new(pods::node(), BTreeSet::from([File, Http, Api]));
        for source in [File, Http, Api] {
            run.handle(Event::Desired { source, pods: Vec::new(), is_whole: true });
        }
        let other = there.unwrap_or(File);
        if there.is_none() {
            // Nothing begins before the node knows what there was.
            run.want(of(other));
            run.want(of(comes));
        }
        run.handle(Event::Restored(Box::<Restored>::default()));
        run.handle(Event::NetworkReady(Ok(())));
        if there.is_some() {
            run.want(of(other));
            run.settle();
            run.want(of(comes));
        }
        run.settle();
        let loses = if wins == other { comes } else { other };
        let what = format!("{there:?} there, {comes:?} comes");
        assert!(runs(&run, wins) && !runs(&run, loses), "{what}");
        let (uid, name) = (format!("uid-{}", loses.as_str()), loses.as_str());
        let why = format!(
            "Error validating pod web_default({uid}) from {name} due to duplicate pod name \"web\", ignoring"
        );
        assert_eq!(notes(&run, "FailedValidation").collect::<Vec<_>>(), [(&*uid, &*why)], "{what}");

        run.handle(Event::Desired { source: wins, pods: Vec::new(), is_whole: true });
        run.settle();
        run.advance(Duration::from_secs(120), Run::settle);
        assert!(runs(&run, loses) && !runs(&run, wins), "{what}, and goes");
        assert_eq!(notes(&run, "FailedValidation").count(), 1, "{what}, and goes");
    }
}

/// An agent that was killed before it could write down that a pod was to go finds it beside the one that took its name then.
#[test]
fn of_two_that_have_one_name_the_one_that_began_last_goes_on() {
    let (mut run, _here) = kept_out();
    run.advance(Duration::from_secs(1), Run::settle);

    run.are_writes_slow = true;
    run.unwant("web");
    let written: Vec<_> = run.writes.iter().map(tell::kind_of).collect();
    assert_eq!(written, ["persist", "persist"], "that one goes, and that the other begins");
    run.writes.pop_front();
    run.write();
    run.are_writes_slow = false;
    run.want(of(Source::File));
    run.restart(None);
    run.settle_cluster();
    run.settle();
    run.advance(Duration::from_secs(120), Run::settle);
    assert!(runs(&run, Source::Api) && !runs(&run, Source::File));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// The agent begins again and hears of the API server alone, for minutes.
fn begin_again_without_manifests(run: &mut Run) {
    run.told.clear();
    run.restart_before_manifests(None);
    while run.hear_server() || run.tell_wanted() {}
    run.settle();
    run.advance(Duration::from_secs(120), Run::settle);
}

/// A pod of a manifest that runs, and one of the API that its name keeps out; the container that runs.
fn kept_out() -> (Run, Option<ContainerId>) {
    let mut run = Run::in_a_cluster();
    run.cluster.as_mut().expect("a cluster").server.bind(of(Source::Api));
    run.want(of(Source::File));
    run.settle();
    run.settle_cluster();
    run.settle();
    assert!(runs(&run, Source::File) && !runs(&run, Source::Api));
    let here = container(&run, Source::File);
    (run, here)
}

fn container(run: &Run, source: Source) -> Option<ContainerId> {
    run.world.running(&PodUid::new(format!("uid-{}", source.as_str())), source.as_str())
}

/// What keeps its name waits for the word of its own source, others begin; and nobody is told that it is kept out before that is known.
#[test]
fn a_name_is_not_given_away_before_manifests_are_read() {
    type Manifests = fn(&mut Run);
    let rows: [(&str, Manifests, &str); 3] = [
        ("its manifest is there", |_| {}, "file"),
        ("its manifest is gone", |run| run.take_out("web"), "api"),
        (
            "its manifest is another one",
            |run| {
                run.take_out("web");
                run.want(Pod { uid: PodUid::new("uid-mended"), ..pods::pod("web", &["mended"]) });
            },
            "mended",
        ),
    ];
    for (case, manifests, expected) in rows {
        let (mut run, here) = kept_out();
        let other = Pod { source: Source::Api, ..pods::pod("other", &["other"]) };
        run.cluster.as_mut().expect("a cluster").server.bind(other);
        begin_again_without_manifests(&mut run);
        assert!(here.is_some() && container(&run, Source::File) == here, "{case}: it goes on");
        assert!(!runs(&run, Source::Api), "{case}");
        assert!(run.world.running(&PodUid::new("uid-other"), "other").is_some(), "{case}: others begin");
        assert_eq!(notes(&run, "FailedValidation").count(), 0, "{case}: nothing is known yet");

        manifests(&mut run);
        run.tell_manifests();
        run.settle();
        run.advance(Duration::from_secs(120), Run::settle);
        let running = run.world.containers.values().filter(|one| one.is_running());
        let running: BTreeSet<&str> = running.map(|one| one.name.as_str()).collect();
        assert_eq!(running, BTreeSet::from([expected, "other"]), "{case}");
        let told = notes(&run, "FailedValidation").count();
        assert_eq!(told, usize::from(expected != "api"), "{case}: who is kept out is told");
        assert_eq!(run.world.violations, Vec::<String>::new(), "{case}");
    }
}

/// A manifest that cannot be read when the agent begins again may still be what it was.
#[test]
fn nor_is_it_while_a_manifest_cannot_be_read() {
    let (mut run, here) = kept_out();
    run.unread = BTreeSet::from(["web".to_owned()]);
    run.told.clear();
    run.restart(None);
    run.settle_cluster();
    run.settle();
    run.advance(Duration::from_secs(120), Run::settle);
    assert!(here.is_some() && container(&run, Source::File) == here, "it goes on");
    assert!(!runs(&run, Source::Api));
    assert_eq!(notes(&run, "FailedValidation").count(), 0);

    run.unread = BTreeSet::new();
    run.send_desired();
    run.settle();
    assert!(container(&run, Source::File) == here && !runs(&run, Source::Api));
    assert_eq!(notes(&run, "FailedValidation").count(), 1);
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// A pod of the API that has its name already keeps it, whatever manifests say then.
#[test]
fn what_ran_goes_on_whoever_is_heard_first() {
    let mut run = Run::in_a_cluster();
    run.cluster.as_mut().expect("a cluster").server.bind(of(Source::Api));
    run.settle_cluster();
    run.settle();
    run.want(of(Source::File));
    run.settle();
    let here = container(&run, Source::Api);
    assert!(here.is_some() && !runs(&run, Source::File));
    begin_again_without_manifests(&mut run);
    assert_eq!(container(&run, Source::Api), here);
    run.tell_manifests();
    run.settle();
    run.advance(Duration::from_secs(120), Run::settle);
    assert_eq!(container(&run, Source::Api), here);
    assert!(!runs(&run, Source::File));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Secrets are named in the order of the pod, once for each of its pulls, and to no other pod.
#[test]
fn pull_secrets_that_are_missing_are_told() {
    let mut run = Run::new();
    run.world.images.clear();
    let with_secrets =
        Pod { pull_secrets: vec!["b".into(), "a".into(), "c".into()], ..pods::pod("web", &["web"]) };
    let image = WantedImage::of(&with_secrets, &with_secrets.containers[0].image);
    run.want(with_secrets);
    run.want(pods::pod("open", &["open"]));
    let is_pull = |effect: &Effect| matches!(effect, Effect::Node { act: NodeAct::PullImage(one), .. } if *one == image);
    run.until_asked(is_pull);
    run.handle(Event::PullSecretsMissing { image, names: vec!["a".into(), "b".into()] });
    let expected =
        "Unable to retrieve some image pull secrets (b, a); attempting to pull the image may not succeed.";
    assert_eq!(notes(&run, "FailedToRetrieveImagePullSecret").collect::<Vec<_>>(), [("uid-web", expected)]);
}

/// The image is on the node: nothing is pulled, and what is missing is told all the same, once.
#[test]
fn pull_secrets_of_an_image_that_is_there_are_missed_too() {
    let mut run = Run::new();
    let web = Pod { pull_secrets: vec!["a".into(), "b".into()], ..pods::pod("web", &["web"]) };
    let image = WantedImage::of(&web, &web.containers[0].image);
    run.want(web);
    run.want(pods::pod("open", &["open"]));
    run.settle();
    let missing = |run: &mut Run, names: &[&str]| {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        run.handle(Event::PullSecretsMissing { image: image.clone(), names });
        let told = notes(run, "FailedToRetrieveImagePullSecret");
        told.map(|(pod, text)| (pod.to_owned(), text.to_owned())).collect::<Vec<_>>()
    };
    let text = |names: &str| {
        let text = format!(
            "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
        );
        ("uid-web".to_owned(), text)
    };
    assert_eq!(missing(&mut run, &["a"]), [text("a")]);
    assert_eq!(missing(&mut run, &["a"]), [text("a")]);
    assert_eq!(missing(&mut run, &["a", "b"]), [text("a"), text("a, b")]);
}

/// Nothing is pulled with a secret that cannot be understood. What is wrong with it is why the container waits; it is tried again every ten
/// seconds, without the back-off of pulls.
#[test]
fn a_pull_secret_that_is_malformed_is_why_a_container_waits() {
    let mut run = Run::new();
    run.world.images.clear();
    run.want(Pod { pull_secrets: vec!["a".into()], ..pods::pod("web", &["web"]) });
    let is_pull = |effect: &Effect| matches!(effect, Effect::Node { act: NodeAct::PullImage(_), .. });
    for _ in 0..2 {
        let pull = run.take_asked(is_pull);
        run.finished.push_back((pull.op(), Err(failure(FailureKind::Config, "no accounts"))));
        run.settle();
        let state = run.world.statuses[&PodUid::new("uid-web")].containers[0].state.clone();
        let (reason, message) = ("no accounts".into(), "no accounts".into());
        assert_eq!(state, ContainerState::Waiting { reason, message });
        run.advance(Duration::from_secs(10), |_| {});
    }
    let failed: Vec<&str> = notes(&run, "Failed").map(|(_, message)| message).collect();
    assert_eq!(failed, ["Error: no accounts"; 2]);
    assert_eq!(notes(&run, "BackOff").count(), 0);
}
