mod took;

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::{event::Event, fixtures, node::Node, pod::port::status::Remains, spec::Source, time::Now};

const FAILED: Answer = Answer::Failed { retry_after: Duration::ZERO };
const NOW: Mono = Mono(Duration::from_secs(100));

fn name(name: &str) -> PodName {
    PodName { namespace: "shop".into(), name: name.into() }
}

fn api(pod: &str, version: u64, status: Value) -> ApiPod {
    ApiPod {
        uid: PodUid::new(format!("uid-{pod}")),
        name: name(pod),
        version,
        status: Arc::new(status),
        is_deleted: false,
        mirrors: None,
    }
}

fn node(pod: &str, status: Value) -> NodePod {
    NodePod { name: name(pod), status: Arc::new(status), remains: Remains::Something, mirror: None }
}

fn uid(pod: &str) -> PodUid {
    PodUid::new(format!("uid-{pod}"))
}

/// A machine that knows what the API has.
fn listed(pods: Vec<ApiPod>) -> PodSync {
    let mut sync = PodSync::default();
    let newest = pods.iter().map(|pod| pod.version).max().unwrap_or(0);
    sync.listed(pods, newest);
    sync
}

fn static_pod(pod: &str, hash: &str, status: Value) -> NodePod {
    let mirror = Mirror { hash: hash.into(), manifest: "{}".into() };
    NodePod { mirror: Some(mirror), ..node(pod, status) }
}

fn mirror(pod: &str, hash: &str, version: u64) -> ApiPod {
    let uid = PodUid::new(format!("mirror-{pod}-{version}"));
    ApiPod { uid, mirrors: Some(hash.into()), ..api(pod, version, json!({})) }
}

/// What a node of manifests and the API server says when these have spoken.
fn heard(spoken: &[Source]) -> Option<SourcesHaveSpoken> {
    let mut node = Node::new(fixtures::node(), [Source::File, Source::Api].into());
    for source in spoken {
        let now = Now { mono: NOW, wall: Timestamp::UNIX_EPOCH };
        node.handle(now, Event::Desired { source: *source, pods: Vec::new(), is_whole: true });
    }
    node.sources_have_spoken()
}

/// The one request that there is.
fn only(sync: &mut PodSync, now: Mono) -> Request {
    let request = sync.poll_request(now).unwrap();
    assert_eq!(sync.poll_request(now), None, "one at a time");
    request
}

#[test]
fn a_status_is_patched_once_and_a_foreign_write_is_patched_back_once() {
    let mut sync = listed(vec![api("web", 1, json!({"phase": "Pending"}))]);
    sync.published(uid("web"), node("web", json!({"phase": "Running"})));
    let request = only(&mut sync, NOW);
    assert_eq!(request.call, Call::PatchStatus { uid: uid("web"), patch: json!({"phase": "Running"}) });
    // What comes meanwhile waits, and is one request however often it changed.
    for ip in ["192.0.2.1", "192.0.2.2", "192.0.2.3"] {
        sync.published(uid("web"), node("web", json!({"phase": "Running", "podIP": ip})));
        assert_eq!(sync.poll_request(NOW), None);
    }
    sync.answered(request.op, Answer::Pod(Box::new(api("web", 2, json!({"phase": "Running"})))), NOW, 1.0);
    let request = only(&mut sync, NOW);
    assert_eq!(request.call, Call::PatchStatus { uid: uid("web"), patch: json!({"podIP": "192.0.2.3"}) });
    let now = json!({"phase": "Running", "podIP": "192.0.2.3"});
    sync.answered(request.op, Answer::Pod(Box::new(api("web", 3, now.clone()))), NOW, 1.0);
    // The watch tells the same once more, and something older.
    sync.applied(api("web", 3, now.clone()));
    sync.applied(api("web", 2, json!({"phase": "Running"})));
    assert_eq!(sync.poll_request(NOW), None);

    sync.applied(api("web", 4, json!({"phase": "Running", "podIP": "203.0.113.9"})));
    let request = only(&mut sync, NOW);
    assert_eq!(request.call, Call::PatchStatus { uid: uid("web"), patch: json!({"podIP": "192.0.2.3"}) });
    sync.answered(request.op, Answer::Pod(Box::new(api("web", 5, now))), NOW, 1.0);
    assert_eq!(sync.poll_request(NOW), None);
}

#[test]
fn what_the_api_writes_in_another_form_is_not_sent_again() {
    let mut sync = listed(vec![api("web", 1, json!({}))]);
    sync.published(uid("web"), node("web", json!({"resources": "0.5"})));
    let request = only(&mut sync, NOW);
    let made = json!({"resources": "500m"});
    sync.answered(request.op, Answer::Pod(Box::new(api("web", 2, made.clone()))), NOW, 1.0);
    sync.applied(api("web", 2, made));
    assert_eq!(sync.poll_request(NOW), None);
    sync.applied(api("web", 3, json!({"resources": "600m"})));
    assert!(sync.poll_request(NOW).is_some(), "somebody else wrote that");
}

#[test]
fn a_pod_is_deleted_when_nothing_of_it_is_left_and_the_api_knows_how_it_ended() {
    for (is_deleted, remains, phase, is_to_go) in [
        (true, Remains::Directories, "Failed", true),
        (true, Remains::Directories, "Succeeded", true),
        (true, Remains::Directories, "Running", false),
        (true, Remains::Something, "Failed", false),
        (true, Remains::NothingToTell, "Failed", true),
        (true, Remains::Leftovers, "Failed", false),
        (false, Remains::Directories, "Failed", false),
    ] {
        let mut sync = listed(vec![ApiPod { is_deleted, ..api("web", 1, json!({"phase": phase})) }]);
        sync.published(uid("web"), NodePod { remains, ..node("web", json!({"phase": phase})) });
        let expected = is_to_go.then(|| Call::Delete { uid: uid("web") });
        assert_eq!(sync.poll_request(NOW).map(|request| request.call), expected, "{is_deleted} {phase}");
    }
    // First how it ended, then its end.
    let mut sync = listed(vec![ApiPod { is_deleted: true, ..api("web", 1, json!({"phase": "Running"})) }]);
    let remains = Remains::Directories;
    sync.published(uid("web"), NodePod { remains, ..node("web", json!({"phase": "Failed"})) });
    let request = only(&mut sync, NOW);
    assert!(matches!(request.call, Call::PatchStatus { .. }));
    let ended = ApiPod { is_deleted: true, ..api("web", 2, json!({"phase": "Failed"})) };
    sync.answered(request.op, Answer::Pod(Box::new(ended)), NOW, 1.0);
    let request = only(&mut sync, NOW);
    assert_eq!(request.call, Call::Delete { uid: uid("web") });
    sync.answered(request.op, Answer::Done, NOW, 1.0);
    sync.gone(&name("web"), &uid("web"), 9);
    sync.withdrawn(&uid("web"));
    assert_eq!(sync.poll_request(NOW), None);
    assert!(sync.states.is_empty() && sync.names.is_empty() && sync.open.is_empty(), "{sync:?}");
}

#[test]
fn a_pod_that_the_node_never_ran_keeps_its_status() {
    let mut sync = listed(vec![ApiPod { is_deleted: true, ..api("web", 1, json!({"phase": "Succeeded"})) }]);
    let shown = node("web", json!({"phase": "Failed"}));
    sync.published(uid("web"), NodePod { remains: Remains::Leftovers, ..shown.clone() });
    assert_eq!(sync.poll_request(NOW), None, "what is left of it goes first");
    sync.published(uid("web"), NodePod { remains: Remains::NothingToTell, ..shown });
    assert_eq!(only(&mut sync, NOW).call, Call::Delete { uid: uid("web") });
}

/// What the API has of a pod that the node never ran, what the node shows of it, and what is patched.
#[test]
fn what_nobody_told_of_a_pod_that_others_ended_is_told_once() {
    let conditions =
        |status: &str, reason: &str| json!([{"type": "Ready", "status": status, "reason": reason}]);
    for (phase, conditions_known, reason, patch) in [
        ("Failed", conditions("True", ""), "PodFailed", Some(conditions("False", "PodFailed"))),
        ("Succeeded", conditions("True", ""), "PodCompleted", Some(conditions("False", "PodCompleted"))),
        ("Failed", json!([]), "PodFailed", Some(conditions("False", "PodFailed"))),
        ("Failed", conditions("False", "PodFailed"), "PodFailed", None),
        // It is not so any more.
        ("Running", conditions("True", ""), "PodFailed", None),
    ] {
        let known = json!({"phase": phase, "startTime": "t1", "conditions": conditions_known});
        let mut sync = listed(vec![api("web", 1, known)]);
        let shown = json!({"phase": phase, "startTime": "t9", "conditions": conditions("False", reason)});
        let told = NodePod { remains: Remains::NothingToTell, ..node("web", shown) };
        sync.published(uid("web"), told);
        assert!(!sync.shows_end(&uid("web")), "that it has ended stays the word of others");
        let Some(patch) = patch else {
            assert_eq!(sync.poll_request(NOW), None, "{phase} {conditions_known}");
            continue;
        };
        let request = only(&mut sync, NOW);
        let mut patch = json!({"conditions": patch});
        if conditions_known != json!([]) {
            patch["$setElementOrder/conditions"] = json!([{"type": "Ready"}]);
        }
        assert_eq!(request.call, Call::PatchStatus { uid: uid("web"), patch: patch.clone() });
        let now = json!({"phase": phase, "startTime": "t1", "conditions": patch["conditions"]});
        sync.answered(request.op, Answer::Pod(Box::new(api("web", 2, now))), NOW, 1.0);
        assert_eq!(sync.poll_request(NOW), None, "{phase}: it is told once");
    }
}

#[test]
fn a_request_that_failed_is_tried_again_later_and_with_what_is_wanted_then() {
    let mut sync = listed(vec![api("web", 1, json!({"phase": "Pending"}))]);
    sync.published(uid("web"), node("web", json!({"phase": "Running"})));
    let mut now = NOW;
    for pause in [500, 1000, 2000, 4000, 8000, 10_000, 10_000] {
        let request = only(&mut sync, now);
        sync.answered(request.op, FAILED, now, 1.0);
        assert_eq!(sync.poll_request(now), None);
        let at = now + Duration::from_millis(pause);
        assert_eq!(sync.poll_timeout(), Some(at));
        now = at;
    }
    sync.published(uid("web"), node("web", json!({"phase": "Failed"})));
    let request = only(&mut sync, now);
    assert_eq!(request.call, Call::PatchStatus { uid: uid("web"), patch: json!({"phase": "Failed"}) });
    // A pod of the same name is another one: nothing is waited for.
    sync.answered(request.op, Answer::Gone, now, 1.0);
    let other = ApiPod { uid: uid("other"), ..api("web", 9, json!({})) };
    sync.applied(other);
    sync.published(uid("other"), node("web", json!({"phase": "Pending"})));
    assert!(matches!(only(&mut sync, now).call, Call::PatchStatus { uid: of, .. } if of == uid("other")));
}

/// Upstream patches for the UID alone, and the next look of its status manager comes at once for whatever has changed.
#[test]
fn a_conflict_is_tried_again_at_once_and_later_only_when_it_repeats() {
    let mut sync = listed(vec![api("web", 1, json!({"phase": "Pending"}))]);
    sync.published(uid("web"), node("web", json!({"phase": "Running", "reason": "a"})));
    let mut now = NOW;
    let first = only(&mut sync, now);
    // Somebody else has written what was to be written.
    sync.applied(api("web", 2, json!({"phase": "Running"})));
    sync.answered(first.op, Answer::Conflict, now, 1.0);
    let patch = |request: Request| match request.call {
        Call::PatchStatus { patch, .. } => patch,
        call @ (Call::Delete { .. } | Call::CreateMirror(_)) => panic!("{call:?}"),
    };
    for pause in [500, 1000, 2000, 4000, 8000, 10_000, 10_000] {
        let request = only(&mut sync, now);
        let op = request.op;
        assert_eq!(patch(request), json!({"reason": "a"}), "with what is there now");
        sync.answered(op, Answer::Conflict, now, 1.0);
        assert_eq!(sync.poll_request(now), None);
        now = now + Duration::from_millis(pause);
        assert_eq!(sync.poll_timeout(), Some(now));
    }
    let request = only(&mut sync, now);
    sync.answered(
        request.op,
        Answer::Pod(Box::new(api("web", 3, json!({"phase": "Running", "reason": "a"})))),
        now,
        1.0,
    );
    sync.published(uid("web"), node("web", json!({"phase": "Failed", "reason": "a"})));
    let request = only(&mut sync, now);
    sync.answered(request.op, Answer::Conflict, now, 1.0);
    only(&mut sync, now);
}

#[test]
fn a_pod_that_is_there_and_cannot_be_read_is_not_gone() {
    let mut sync = listed(vec![api("web", 1, json!({"phase": "Running"})), api("db", 2, json!({}))]);
    sync.published(uid("web"), node("web", json!({"phase": "Running"})));
    sync.published(uid("db"), node("db", json!({"phase": "Running"})));
    while let Some(request) = sync.poll_request(NOW) {
        sync.answered(request.op, Answer::Refused, NOW, 1.0);
    }
    let unread = BTreeSet::from([uid("web"), uid("never known")]);
    sync.listed_beside(Vec::new(), 2, &unread);
    sync.published(uid("web"), node("web", json!({"phase": "Failed"})));
    sync.published(uid("db"), node("db", json!({"phase": "Failed"})));
    let request = only(&mut sync, NOW + REFUSED_PAUSE_MAX);
    assert_eq!(request.call, Call::PatchStatus { uid: uid("web"), patch: json!({"phase": "Failed"}) });
}

#[test]
fn pauses_are_as_long_as_chance_and_the_server_say() {
    for (chance, retry_after, pause) in
        [(0.0, 0, 250), (0.5, 0, 375), (1.0, 0, 500), (1.0, 7000, 7000), (7.0, 0, 500)]
    {
        let mut sync = listed(vec![api("web", 1, json!({}))]);
        sync.published(uid("web"), node("web", json!({"phase": "Running"})));
        let request = only(&mut sync, NOW);
        let failed = Answer::Failed { retry_after: Duration::from_millis(retry_after) };
        sync.answered(request.op, failed, NOW, chance);
        assert_eq!(sync.poll_timeout(), Some(NOW + Duration::from_millis(pause)), "{chance} {retry_after}");
    }
}

#[test]
fn pauses_after_refusals_grow_to_a_minute() {
    let mut sync = listed(vec![api("web", 1, json!({}))]);
    sync.published(uid("web"), node("web", json!({"phase": "Running"})));
    let mut now = NOW;
    for expected_ms in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] {
        let request = only(&mut sync, now);
        sync.answered(request.op, Answer::Refused, now, 1.0);
        let at = sync.poll_timeout().unwrap();
        assert_eq!(at.since(now), Duration::from_millis(expected_ms));
        now = at;
    }
}

/// Source: `syncPod` of `pkg/kubelet/status/status_manager.go`, which tries each version at once.
#[test]
fn another_status_than_the_one_that_was_refused_is_tried_at_once() {
    let mut sync = listed(vec![api("web", 1, json!({}))]);
    let mut now = NOW;
    for phase in ["Running", "Failed", "Running"] {
        sync.published(uid("web"), node("web", json!({"phase": phase})));
        for _ in 0..2 {
            let request = only(&mut sync, now);
            sync.answered(request.op, Answer::Refused, now, 1.0);
            assert_eq!(sync.poll_request(now), None, "{phase}: it is tried again later");
            now = sync.poll_timeout().unwrap();
        }
        now = NOW;
    }
    // It was shown while the other one was under way, which is refused then.
    let (mut between, earlier) = {
        let mut sync = listed(vec![api("web", 1, json!({}))]);
        sync.published(uid("web"), node("web", json!({"phase": "Running"})));
        let earlier = only(&mut sync, NOW);
        (sync, earlier)
    };
    between.published(uid("web"), node("web", json!({"phase": "Failed"})));
    between.answered(earlier.op, Answer::Refused, NOW, 1.0);
    only(&mut between, NOW);
    // A server that is busy is left alone whatever there is to tell.
    sync.published(uid("web"), node("web", json!({"phase": "Pending"})));
    let request = only(&mut sync, NOW);
    sync.answered(request.op, Answer::Failed { retry_after: Duration::from_secs(9) }, NOW, 1.0);
    sync.published(uid("web"), node("web", json!({"phase": "Failed"})));
    assert_eq!(sync.poll_request(NOW), None);
    only(&mut sync, NOW + REFUSED_PAUSE_MAX);
}

/// Nobody is woken for what is not to be told any more.
#[test]
fn another_status_that_may_wait_is_told_when_it_is_time_or_not_at_all() {
    let begun = |address: &str| json!({"phase": "Pending", "startTime": "1", "podIP": address});
    for (what, comes) in [("time", 0), ("the pod goes", 1), ("the refused one is back", 2)] {
        let mut sync = listed(vec![api("web", 1, begun("192.0.2.1"))]);
        let mut now = NOW;
        sync.published(uid("web"), node("web", json!({"phase": "Running", "startTime": "1"})));
        for _ in 0..7 {
            now = sync.poll_timeout().unwrap_or(now);
            let request = only(&mut sync, now);
            sync.answered(request.op, Answer::Refused, now, 1.0);
        }
        sync.published(uid("web"), node("web", begun("192.0.2.2")));
        assert_eq!(sync.poll_request(now), None, "it may wait");
        let due = now + urgency::STEP;
        assert_eq!(sync.poll_timeout(), Some(due));
        match comes {
            0 => {}
            1 => sync.gone(&name("web"), &uid("web"), 2),
            _ => sync.published(uid("web"), node("web", json!({"phase": "Running", "startTime": "1"}))),
        }
        let asked = sync.poll_request(if comes == 0 { due } else { now });
        assert_eq!(asked.is_some(), comes != 1, "{what}");
        if let Some(request) = asked {
            sync.answered(request.op, Answer::Refused, due, 1.0);
        }
        assert_eq!(sync.poll_request(due), None, "{what}");
        assert!(sync.poll_timeout().is_none_or(|at| at > due), "{what}");
    }
}

#[test]
fn an_answer_that_comes_late_brings_nothing_back() {
    let running = || json!({"phase": "Running"});
    let asked = || {
        let mut sync = listed(vec![api("web", 1, json!({}))]);
        sync.published(uid("web"), node("web", running()));
        let request = only(&mut sync, NOW);
        (sync, request.op)
    };
    let answer = || Answer::Pod(Box::new(api("web", 2, running())));

    let (mut sync, op) = asked();
    sync.gone(&name("web"), &uid("web"), 3);
    sync.answered(op, answer(), NOW, 1.0);
    sync.published(uid("web"), node("web", json!({"phase": "Failed"})));
    assert_eq!(sync.poll_request(NOW), None, "the pod is gone, and stays so");

    let (mut sync, op) = asked();
    let other = ApiPod { uid: uid("other"), ..api("web", 4, json!({})) };
    sync.gone(&name("web"), &uid("web"), 3);
    sync.applied(other);
    sync.answered(op, answer(), NOW, 1.0);
    sync.published(uid("other"), node("web", running()));
    let call = only(&mut sync, NOW).call;
    assert_eq!(call, Call::PatchStatus { uid: uid("other"), patch: running() }, "another one is there");
}

#[test]
fn versions_that_begin_anew_are_believed() {
    let mut sync = listed(vec![api("web", 100, json!({"phase": "Running"}))]);
    sync.published(uid("web"), node("web", json!({"phase": "Running"})));
    assert_eq!(sync.poll_request(NOW), None);
    sync.listed(vec![api("web", 20, json!({"phase": "Pending"}))], 20);
    let call = only(&mut sync, NOW).call;
    assert_eq!(call, Call::PatchStatus { uid: uid("web"), patch: json!({"phase": "Running"}) });
}

/// Others wrote much before the node listed again, so that only the pod is older.
#[test]
fn versions_that_begin_anew_are_believed_of_each_pod() {
    let running = || json!({"phase": "Running"});
    let mut sync = listed(vec![api("web", 990, running()), api("other", 1000, running())]);
    sync.published(uid("web"), node("web", running()));
    sync.listed(vec![api("web", 880, json!({"phase": "Pending"})), api("new", 1100, json!({}))], 1100);
    let call = only(&mut sync, NOW).call;
    assert_eq!(call, Call::PatchStatus { uid: uid("web"), patch: running() });
}

#[test]
fn a_list_of_the_time_before_an_answer_takes_nothing_back_though_what_was_newest_is_deleted() {
    let pending = || json!({"phase": "Pending"});
    let mut sync = listed(vec![api("web", 1, pending()), api("other", 2, pending())]);
    sync.gone(&name("other"), &uid("other"), 3);
    sync.published(uid("web"), node("web", json!({"phase": "Running"})));
    let op = only(&mut sync, NOW).op;
    sync.answered(op, Answer::Pod(Box::new(api("web", 4, json!({"phase": "Running"})))), NOW, 1.0);
    sync.listed(vec![api("web", 1, pending())], 3);
    assert_eq!(sync.poll_request(NOW), None, "it was told already");
}

#[test]
fn requests_under_way_are_bounded_and_none_is_lost() {
    let pods: Vec<String> = (0..50).map(|number| format!("p{number}")).collect();
    let mut sync = listed(pods.iter().map(|pod| api(pod, 1, json!({}))).collect());
    for pod in &pods {
        sync.published(uid(pod), node(pod, json!({"phase": "Running"})));
    }
    let mut open = VecDeque::new();
    let mut done = BTreeSet::new();
    loop {
        while let Some(request) = sync.poll_request(NOW) {
            assert!(done.insert(request.name.clone()), "twice");
            open.push_back(request);
        }
        assert!(open.len() <= AT_ONCE);
        let Some(Request { op, name: PodName { name, .. }, .. }) = open.pop_front() else { break };
        sync.answered(op, Answer::Pod(Box::new(api(&name, 2, json!({"phase": "Running"})))), NOW, 1.0);
    }
    assert_eq!(done.len(), pods.len());
}

#[test]
fn a_mirror_is_made_when_the_api_is_known_and_shows_its_pod() {
    let mut sync = PodSync::default();
    sync.published(uid("dns"), static_pod("dns", "h1", json!({"phase": "Running"})));
    assert_eq!(sync.poll_request(NOW), None, "it may be there");
    sync.listed(Vec::new(), 0);
    let request = only(&mut sync, NOW);
    assert_eq!(request.call, Call::CreateMirror(Mirror { hash: "h1".into(), manifest: "{}".into() }));
    sync.answered(request.op, Answer::Pod(Box::new(mirror("dns", "h1", 1))), NOW, 1.0);
    assert_eq!(sync.poll_request(NOW), None, "the watch has not told of it");
    sync.applied(mirror("dns", "h1", 1));
    let request = only(&mut sync, NOW);
    let of = PodUid::new("mirror-dns-1");
    assert_eq!(request.call, Call::PatchStatus { uid: of, patch: json!({"phase": "Running"}) });
}

#[test]
fn a_mirror_of_another_pod_or_of_none_is_deleted() {
    for (is_deleted, hash, expected) in
        [(false, "h1", "show"), (true, "h1", "delete"), (false, "h0", "delete")]
    {
        let mut sync = listed(vec![ApiPod { is_deleted, ..mirror("dns", hash, 1) }]);
        // A mirror of no pod goes as soon as it is known that none is to come.
        sync.published(uid("dns"), static_pod("dns", "h1", json!({"phase": "Running"})));
        let call = only(&mut sync, NOW).call;
        let seen = if matches!(call, Call::Delete { .. }) { "delete" } else { "show" };
        assert_eq!(seen, expected, "{is_deleted} {hash}");
    }
}

#[test]
fn an_orphaned_mirror_stays_until_every_source_has_spoken_and_its_pod_is_gone() {
    let all = heard(&[Source::File, Source::Api]).unwrap();
    let mut sync = PodSync::default();
    sync.listed(vec![mirror("dns", "h1", 1)], 1);
    assert_eq!(sync.poll_request(NOW), None, "its pod may come");
    sync.published(uid("dns"), static_pod("dns", "h1", json!({})));
    sync.sources_have_spoken(all);
    assert_eq!(sync.poll_request(NOW), None);
    sync.withdrawn(&uid("dns"));
    assert_eq!(only(&mut sync, NOW).call, Call::Delete { uid: PodUid::new("mirror-dns-1") });

    let mut sync = PodSync::default();
    sync.listed(vec![mirror("dns", "h1", 1)], 1);
    sync.sources_have_spoken(all);
    assert_eq!(only(&mut sync, NOW).call, Call::Delete { uid: PodUid::new("mirror-dns-1") });
}

/// Manifests may be on a disk that answers late: a mirror that an earlier agent has made is nobody's only when they were read.
#[test]
fn a_mirror_of_no_pod_stays_as_long_as_a_source_is_silent() {
    use Source::{Api, File};
    for (spoken, is_deleted) in
        [(&[][..], false), (&[Api], false), (&[File], false), (&[File, Api], true), (&[Api, File], true)]
    {
        let mut sync = listed(vec![mirror("dns", "h1", 1)]);
        if let Some(heard) = heard(spoken) {
            sync.sources_have_spoken(heard);
        }
        let call = sync.poll_request(NOW).map(|request| request.call);
        let expected = is_deleted.then(|| Call::Delete { uid: PodUid::new("mirror-dns-1") });
        assert_eq!(call, expected, "{spoken:?}");
    }
}

#[test]
fn a_mirror_that_went_before_its_creation_was_answered_is_made_again() {
    let mut sync = listed(Vec::new());
    sync.published(uid("dns"), static_pod("dns", "h1", json!({"phase": "Running"})));
    let request = only(&mut sync, NOW);
    // The watch was begun anew meanwhile, and tells nothing of it.
    sync.answered(request.op, Answer::Pod(Box::new(mirror("dns", "h1", 5))), NOW, 1.0);
    assert_eq!(sync.poll_request(NOW), None);
    let later = sync.poll_timeout().expect("it is looked at again");
    assert!(matches!(only(&mut sync, later).call, Call::CreateMirror(_)));
}

#[test]
fn what_is_gone_does_not_come_back_by_a_late_answer_or_a_late_watch() {
    let deletable = || ApiPod { is_deleted: true, ..api("web", 2, json!({"phase": "Failed"})) };
    let ended = || NodePod { remains: Remains::Directories, ..node("web", json!({"phase": "Failed"})) };
    let mut sync = listed(vec![api("web", 1, json!({"phase": "Running"}))]);
    sync.published(uid("web"), ended());
    let request = only(&mut sync, NOW);
    sync.gone(&request.name, &uid("web"), 0);
    sync.answered(request.op, Answer::Pod(Box::new(deletable())), NOW, 1.0);
    assert_eq!(sync.poll_request(NOW), None, "the watch has told that it is gone");

    let mut sync = listed(vec![deletable()]);
    sync.published(uid("web"), ended());
    let request = only(&mut sync, NOW);
    assert_eq!(request.call, Call::Delete { uid: uid("web") });
    sync.answered(request.op, Answer::Done, NOW, 1.0);
    sync.applied(deletable());
    assert_eq!(sync.poll_request(NOW), None, "it is deleted once");
    sync.gone(&request.name, &uid("web"), 0);
    sync.withdrawn(&uid("web"));
    assert_eq!(sync.poll_request(NOW), None);
    assert!(sync.states.is_empty(), "{:?}", sync.states);
}

#[test]
fn an_older_object_of_the_same_name_takes_no_place() {
    let mut sync = listed(vec![mirror("dns", "h1", 7)]);
    sync.published(uid("dns"), static_pod("dns", "h1", json!({"phase": "Running"})));
    let request = only(&mut sync, NOW);
    sync.applied(mirror("dns", "h0", 3));
    sync.answered(request.op, Answer::Failed { retry_after: Duration::ZERO }, NOW, 1.0);
    let later = sync.poll_timeout().expect("it is tried again");
    let again = only(&mut sync, later);
    assert_eq!(again.call, request.call);
}

#[test]
fn what_another_wrote_beside_a_patch_is_patched_back() {
    let mut sync = listed(vec![api("web", 1, json!({"phase": "Pending"}))]);
    sync.published(uid("web"), node("web", json!({"phase": "Running"})));
    let request = only(&mut sync, NOW);
    let made = json!({"phase": "Running", "podIP": "203.0.113.9"});
    sync.answered(request.op, Answer::Pod(Box::new(api("web", 3, made))), NOW, 1.0);
    assert_eq!(
        only(&mut sync, NOW).call,
        Call::PatchStatus { uid: uid("web"), patch: json!({"podIP": null}) }
    );
}

#[test]
fn a_mirror_that_has_ended_shows_no_pod_that_begins_anew() {
    let mut sync =
        listed(vec![ApiPod { status: Arc::new(json!({"phase": "Succeeded"})), ..mirror("dns", "h1", 1) }]);
    sync.published(uid("dns"), static_pod("dns", "h1", json!({"phase": "Running"})));
    assert_eq!(only(&mut sync, NOW).call, Call::Delete { uid: PodUid::new("mirror-dns-1") });
}

#[test]
fn a_step_on_the_way_is_told_with_what_others_act_on_or_soon() {
    let seen = json!({"phase": "Pending", "startTime": "1"});
    let step = json!({"phase": "Pending", "startTime": "1", "podIP": "192.0.2.1"});
    let runs = json!({"phase": "Running", "startTime": "1", "podIP": "192.0.2.1"});
    let at = |ms| NOW + Duration::from_millis(ms);

    let mut sync = listed(vec![api("web", 1, seen.clone())]);
    sync.published(uid("web"), node("web", step.clone()));
    assert_eq!(sync.poll_request(NOW), None);
    assert_eq!(sync.poll_timeout(), Some(NOW + urgency::STEP));
    sync.published(uid("web"), node("web", runs));
    let patch = json!({"phase": "Running", "podIP": "192.0.2.1"});
    assert_eq!(only(&mut sync, at(20)).call, Call::PatchStatus { uid: uid("web"), patch });

    // It waits once, however often it changes, and one that is taken back is not told.
    let mut sync = listed(vec![api("web", 1, seen.clone())]);
    sync.published(uid("web"), node("web", step.clone()));
    assert_eq!(sync.poll_request(NOW), None);
    sync.published(
        uid("web"),
        node("web", json!({"phase": "Pending", "startTime": "1", "podIP": "192.0.2.2"})),
    );
    assert_eq!(sync.poll_request(at(900)), None);
    let patch = json!({"podIP": "192.0.2.2"});
    assert_eq!(only(&mut sync, at(1000)).call, Call::PatchStatus { uid: uid("web"), patch });

    let mut sync = listed(vec![api("web", 1, seen.clone())]);
    sync.published(uid("web"), node("web", step));
    assert_eq!(sync.poll_request(NOW), None);
    sync.published(uid("web"), node("web", seen));
    assert_eq!((sync.poll_request(at(5000)), sync.poll_timeout()), (None, None));
}

/// A pod of which nothing is told, or that is gone, ends by the word of others alone.
#[test]
fn whose_word_an_end_is() {
    let uid = PodUid::new("u1");
    for (status, shows_end) in [
        (json!({"phase": "Pending"}), false),
        (json!({"phase": "Running"}), false),
        (json!({"phase": "Succeeded"}), true),
        (json!({"phase": "Failed"}), true),
        (json!({}), false),
    ] {
        let mut sync = PodSync::default();
        assert!(!sync.shows_end(&uid));
        sync.published(uid.clone(), node("web", status.clone()));
        assert_eq!(sync.shows_end(&uid), shows_end, "{status}");
        sync.published(uid.clone(), NodePod { remains: Remains::NothingToTell, ..node("web", status) });
        assert!(!sync.shows_end(&uid));
        sync.withdrawn(&uid);
        assert!(!sync.shows_end(&uid));
    }
}
