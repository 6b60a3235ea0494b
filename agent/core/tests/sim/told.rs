//! What the API server has of a pod that the node did not write, or does not know any more.

use std::time::Duration;

use berth_core::{
    id::{PodName, PodUid},
    spec::{Pod, Source},
};
use serde_json::Value;

use crate::{pods, run::Run, server::Object};

fn bind(run: &mut Run, pod: Pod) {
    let pod = Pod { source: Source::Api, ..pod };
    run.world.oracle.published(&pod.name);
    run.cluster.as_mut().unwrap().server.bind(pod);
    rest(run);
}

fn rest(run: &mut Run) {
    loop {
        run.settle();
        run.settle_cluster();
        if !run.settle_one() {
            return;
        }
    }
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
    run.advance(Duration::from_secs(30), rest);
    let now = run.now;
    run.world.reboot(now);
    run.restart(None);
    rest(&mut run);
    assert!(is_running(&run, "web"));
    assert_eq!(status(&run, "web")["startTime"], began);
    run.advance(Duration::from_secs(31), rest);
    rest(&mut run);
    let over = status(&run, "web");
    assert!(!is_running(&run, "web"));
    assert_eq!((&over["reason"], &over["startTime"]), (&"DeadlineExceeded".into(), &began));
    assert_eq!(run.world.violations, Vec::<String>::new());
}
