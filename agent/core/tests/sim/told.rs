//! What the API server has of a pod that the node did not write, or does not know any more.

use std::time::Duration;

use berth_core::{
    effect::{Act, Effect},
    id::{PodName, PodUid},
    pod::port::status::Remains,
    spec::{Pod, RestartPolicy, Source},
};
use serde_json::{Value, json};

use crate::{pods, run::Run, server::Object};

fn bind(run: &mut Run, pod: Pod) {
    let pod = Pod { source: Source::Api, ..pod };
    run.world.oracle.published(&pod.name);
    run.cluster.as_mut().unwrap().server.bind(pod);
    run.rest();
}

fn object(run: &Run, name: &str) -> Object {
    let name = PodName { namespace: "default".into(), name: name.into() };
    run.cluster.as_ref().unwrap().server.objects[&name].clone()
}

fn status(run: &Run, name: &str) -> Value {
    object(run, name).status
}

fn is_running(run: &Run, name: &str) -> bool {
    run.world.running(&PodUid::new(format!("uid-{name}")), "main").is_some()
}

/// A reboot gives no pod more time than it has.
#[test]
fn a_pod_of_which_no_record_is_left_began_when_it_was_told_to_have() {
    let mut run = Run::in_a_cluster();
    bind(&mut run, Pod { active_deadline: Some(Duration::from_secs(60)), ..pods::pod("web", &["main"]) });
    let began = status(&run, "web")["startTime"].clone();
    assert!(began.is_string() && is_running(&run, "web"));
    run.advance(Duration::from_secs(30), Run::rest);
    let now = run.now;
    run.world.reboot(now);
    run.restart(None);
    run.rest();
    assert!(is_running(&run, "web"));
    assert_eq!(status(&run, "web")["startTime"], began);
    run.advance(Duration::from_secs(31), Run::rest);
    run.rest();
    let over = status(&run, "web");
    assert!(!is_running(&run, "web"));
    assert_eq!((&over["reason"], &over["startTime"]), (&"DeadlineExceeded".into(), &began));
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// Whoever writes that a pod has ended ends it; what its containers come to is told beside that.
#[test]
fn a_pod_that_another_ends_in_the_api_ends_here() {
    for phase in ["Failed", "Succeeded"] {
        let mut run = Run::in_a_cluster();
        bind(&mut run, pods::pod("web", &["main"]));
        assert!(is_running(&run, "web"));
        let written = object(&run, "web");
        run.cluster.as_mut().unwrap().server.change(&written.name, |object| {
            object.status["phase"] = json!(phase);
            object.status["reason"] = json!("NodeLost");
        });
        run.world.oracle.touched(&written);
        run.rest();
        run.advance(Duration::from_secs(1), Run::rest);
        assert!(!is_running(&run, "web"), "{phase}");
        let over = status(&run, "web");
        assert_eq!((&over["phase"], &over["reason"]), (&json!(phase), &json!("NodeLost")));
        assert!(over["containerStatuses"][0]["state"]["terminated"].is_object(), "{over}");
        // The next agent knows.
        run.restart(None);
        run.rest();
        assert!(!is_running(&run, "web") && status(&run, "web")["phase"] == phase);
        assert_eq!(run.world.violations, Vec::<String>::new());
    }
}

/// A mirror is only shown: its pod is as its manifest says.
#[test]
fn a_mirror_that_another_ends_is_made_again_and_its_pod_goes_on() {
    let mut run = Run::in_a_cluster();
    run.want(pods::pod("web", &["main"]));
    run.rest();
    let (mirror, runs) = (object(&run, "web"), run.world.running(&PodUid::new("uid-web"), "main"));
    assert!(mirror.mirrors.is_some() && runs.is_some());
    run.cluster
        .as_mut()
        .unwrap()
        .server
        .change(&mirror.name, |object| object.status["phase"] = json!("Failed"));
    run.world.oracle.touched(&mirror);
    run.rest();
    assert_eq!(run.world.running(&PodUid::new("uid-web"), "main"), runs);
    assert!(object(&run, "web").uid != mirror.uid && status(&run, "web")["phase"] == "Running");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// What the node says of an end comes back to it, and is no news.
#[test]
fn an_end_that_the_node_told_is_nobodys_wish() {
    let mut run = Run::in_a_cluster();
    bind(&mut run, Pod { restart_policy: RestartPolicy::Never, ..pods::pod("job", &["main"]) });
    let id = run.world.running(&PodUid::new("uid-job"), "main").unwrap();
    let now = run.now;
    run.world.exit(&id, 0, now);
    run.rest();
    run.advance(Duration::from_secs(60), Run::rest);
    assert_eq!(status(&run, "job")["phase"], "Succeeded");
    assert!(!run.cluster.as_ref().unwrap().is_untold, "the node is not told what it said");
    let pods = run.all_wanted();
    assert!(pods.len() == 1 && pods[0].ended.is_none(), "{pods:?}");
    assert_eq!(run.world.violations, Vec::<String>::new());
}

/// From then on the node needs nothing of the API server for it.
#[test]
fn a_pod_that_has_ended_is_told_to_be_taken_down_whatever_volumes_it_had() {
    let is_removal = |effect: &Effect| matches!(effect, Effect::Pod { act: Act::RemoveVolumes { .. }, .. });
    let remains = |effect: &Effect| match effect {
        Effect::Pod { act: Act::Publish(published), .. } => Some(published.remains),
        Effect::Pod { .. } | Effect::Node { .. } => None,
    };
    for volumes in [vec![], vec![pods::empty_dir("data")]] {
        let mut run = Run::in_a_cluster();
        let has_volumes = !volumes.is_empty();
        let restart_policy = RestartPolicy::Never;
        let mut pod = Pod { restart_policy, volumes, ..pods::pod("web", &["main"]) };
        pods::mount_all(&mut pod, "main");
        bind(&mut run, pod);
        let main = run.world.running(&PodUid::new("uid-web"), "main").unwrap();
        assert_eq!(run.told.iter().filter_map(remains).next_back(), Some(Remains::Something));
        let now = run.now;
        run.world.exit(&main, 0, now);
        run.rest();
        assert_eq!(run.told.iter().filter_map(remains).next_back(), Some(Remains::Directories));
        assert_eq!(run.told.iter().any(is_removal), has_volumes);
        assert_eq!(run.world.violations, Vec::<String>::new());
    }
}
