//! How long a change takes until the API has it.

use super::*;

fn at(seconds: u64) -> Mono {
    Mono(Duration::from_secs(seconds))
}

fn took(version: u64, status: Value) -> Answer {
    Answer::Pod(Box::new(api("web", version, status)))
}

fn told(sync: &mut PodSync, phase: &str, seconds: u64) {
    sync.published(uid("web"), node("web", json!({ "phase": phase })));
    sync.poll_request(at(seconds));
}

#[test]
fn a_change_is_measured_from_its_first_moment_through_all_tries() {
    let mut sync = listed(vec![api("web", 1, json!({"phase": "Pending"}))]);
    sync.published(uid("web"), node("web", json!({"phase": "Running"})));
    let request = only(&mut sync, at(10));
    assert_eq!(sync.answered(request.op, FAILED, at(12), 1.0), None);
    let request = only(&mut sync, at(14));
    // Meanwhile there is another one, which is told of its own.
    sync.published(uid("web"), node("web", json!({"phase": "Failed"})));
    assert_eq!(sync.poll_request(at(15)), None);
    let running = took(2, json!({"phase": "Running"}));
    assert_eq!(sync.answered(request.op, running, at(17), 1.0), Some(Duration::from_secs(7)));
    let request = only(&mut sync, at(17));
    let failed = took(3, json!({"phase": "Failed"}));
    assert_eq!(sync.answered(request.op, failed, at(18), 1.0), Some(Duration::from_secs(3)));
}

#[test]
fn a_change_that_waits_behind_other_pods_is_measured_from_when_it_was_made() {
    let names: Vec<String> = (0..=AT_ONCE).map(|number| format!("pod-{number:02}")).collect();
    let mut sync = listed(names.iter().map(|name| api(name, 1, json!({}))).collect());
    for name in &names {
        sync.published(uid(name), node(name, json!({"phase": "Running"})));
    }
    let open: Vec<Request> = std::iter::from_fn(|| sync.poll_request(at(10))).collect();
    assert_eq!(open.len(), AT_ONCE);
    assert_eq!(sync.answered(open[0].op, FAILED, at(20), 1.0), None);
    let last = sync.poll_request(at(20)).unwrap();
    let answer = Answer::Pod(Box::new(api(&last.name.name, 2, json!({"phase": "Running"}))));
    assert_eq!(sync.answered(last.op, answer, at(21), 1.0), Some(Duration::from_secs(11)));
}

#[test]
fn what_the_api_has_already_is_no_change_that_is_waited_for() {
    let mut sync = listed(vec![api("web", 1, json!({"phase": "Running"}))]);
    told(&mut sync, "Running", 10);
    sync.published(uid("web"), node("web", json!({"phase": "Failed"})));
    let request = only(&mut sync, at(50));
    let failed = took(2, json!({"phase": "Failed"}));
    assert_eq!(sync.answered(request.op, failed, at(51), 1.0), Some(Duration::from_secs(1)));
    assert_eq!(sync.mirrors(), 0);
    sync.applied(mirror("dns", "h1", 3));
    assert_eq!(sync.mirrors(), 1);
}
