//! What is said to the API server, and is not so or not to be said.

use std::collections::BTreeMap;

use berth_core::{
    cluster::sync::{Answer, Call, Mirror, Request},
    id::PodName,
    spec::Source,
    status::{Condition, ConditionKind, Note, Phase, PodEvent, PodStatus, Severity},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::shown,
    lives,
    oracle::{Carried, RULES_OF_CLUSTERS},
    server::Object,
};

#[test]
fn every_rule_of_clusters_tells_what_breaks_it_and_no_other_does() {
    let table: &[(&str, Wrong)] = &[
        ("a patch follows a change and makes one", patched_again_and_again),
        ("a patch follows a change and makes one", patched_after_what_was_shown_before),
        ("a patch follows a change and makes one", patched_with_what_is_there),
        ("a pod is deleted when none of its processes is left", deleted_while_it_is_there),
        ("a pod is deleted when none of its processes is left", deleted_unasked),
        ("a pod is deleted when none of its processes is left", deleted_before_its_end_is_told),
        ("a pod that does not fit is rejected, and no other", taken_though_it_does_not_fit),
        ("an event is told once for what happened", told_twice_to_have_started),
        ("at rest each pod of a manifest has its mirror, and nothing else has", without_its_mirror),
        ("at rest each pod of a manifest has its mirror, and nothing else has", with_a_mirror_of_nobody),
        ("at rest the API has what the node shows", another_phase_in_the_api),
        ("at rest the API has what the node shows", another_condition_in_the_api),
        ("at rest what was to be deleted is gone", never_deleted),
        ("mirrors are of pods that the API did not give", mirror_of_nobody),
        ("mirrors are of pods that the API did not give", mirror_deleted),
        ("of one name one pod is here, the first that came", begun_beside_another),
        ("of one name one pod is here, the first that came", begun_beside_one_whose_manifest_is_not_read),
        ("of one name one pod is here, the first that came", begun_before_a_manifests),
        ("readiness is lost for a reason", unready_for_nothing),
        ("requests about a pod wait for each other, and none is sent again", two_requests),
        ("requests about a pod wait for each other, and none is sent again", deleted_twice),
        ("requests about a pod wait for each other, and none is sent again", patched_twice),
        ("requests about a pod wait for each other, and none is sent again", patched_again_by_the_next_agent),
        ("what has ended stays so in the API", runs_again_in_the_api),
        ("what is to be deleted ends when the API said", never_killed_in_time),
        ("what the API has of a pod never goes back", fewer_restarts),
        ("what the API has of a pod never goes back", fewer_restarts_of_an_init_container),
        ("what the API has of a pod never goes back", runs_after_its_end),
        ("what the API has of a pod never goes back", waits_after_its_last_end),
        ("what the API has of a pod never goes back", told_of_no_more),
        ("what the API has of a pod never goes back", began_anew),
        ("what the API has of a pod never goes back", began_anew_by_the_next_agent),
        ("what the API has of a pod never goes back", taken_back_twice),
        ("who is kept out by a name is told", kept_out_and_not_told),
    ];
    check(table, Run::in_a_cluster, &RULES_OF_CLUSTERS);
}

fn name() -> PodName {
    PodName { namespace: "default".into(), name: "web".into() }
}

/// A pod of the API at rest, all of whose containers run; its object.
fn bound(run: &mut Run) -> Object {
    let pod = Pod { source: Source::Api, ..pods::pod("web", &["main"]) };
    run.cluster.as_mut().expect("a cluster").server.bind(pod.clone());
    run.world.oracle.published(&pod.name);
    run.rest();
    assert!(run.world.running(&uid(), "main").is_some());
    object(run)
}

/// A pod of a manifest at rest; its mirror.
fn mirrored(run: &mut Run) -> Object {
    run.want(pods::pod("web", &["main"]));
    run.rest();
    object(run)
}

fn objects(run: &Run) -> BTreeMap<PodName, Object> {
    run.cluster.as_ref().expect("a cluster").server.objects.clone()
}

fn object(run: &Run) -> Object {
    objects(run).remove(&name()).expect("it is in the API")
}

fn request(op: u64, call: Call) -> Request {
    Request { op: OpId(op), name: name(), call }
}

fn patch(op: u64, patch: Value) -> Request {
    request(op, Call::PatchStatus { uid: uid(), patch })
}

fn carried(run: &mut Run, call: Call, (before, after): (Option<Object>, Option<Object>), left: &[&str]) {
    let left = left.iter().map(|what| (*what).to_owned()).collect();
    lie(run, |oracle, _| oracle.carried_out(&Carried { request: &request(900, call), before, after, left }));
}

fn ended(object: Object) -> Object {
    Object { grace: Some(GRACE), status: json!({ "phase": "Failed" }), ..object }
}

fn deleted_while_it_is_there(run: &mut Run) {
    let object = ended(bound(run));
    carried(run, Call::Delete { uid: uid() }, (Some(object), None), &["container", "dirs"]);
}

fn deleted_unasked(run: &mut Run) {
    let object = Object { grace: None, ..ended(bound(run)) };
    carried(run, Call::Delete { uid: uid() }, (Some(object), None), &["dirs"]);
}

fn deleted_before_its_end_is_told(run: &mut Run) {
    let object = Object { grace: Some(GRACE), ..bound(run) };
    carried(run, Call::Delete { uid: uid() }, (Some(object), None), &["dirs"]);
}

fn taken_though_it_does_not_fit(run: &mut Run) {
    bound(run);
    let mut pod = Pod { uid: PodUid::new("uid-other"), source: Source::Api, ..pods::pod("other", &["main"]) };
    pod.scheduling.selector.insert("disk".into(), "ssd".into());
    let uid = pod.uid.clone();
    let record = lives::furnished(pod.clone()).record;
    let pending = PodStatus { phase: Phase::Pending, containers: Vec::new(), ..status(run) };
    lie(run, |oracle, now| {
        oracle.desired(iter::once(&Arc::new(pod)), now);
        oracle.asked(
            &Effect::Pod { op: OpId(900), pod: uid.clone(), act: Act::Persist(Box::new(record)) },
            now,
        );
        oracle.shown(&uid, &pending, now);
    });
}

fn told_twice_to_have_started(run: &mut Run) {
    bound(run);
    let event = PodEvent {
        container: Some(ContainerName::new("main")),
        severity: Severity::Normal,
        reason: "Started".into(),
        message: "Container started".into(),
    };
    let note = Note { name: name(), version: None, field_path: "spec.containers{main}".into(), event };
    lie(run, |oracle, _| oracle.noted(&uid(), &note));
}

fn without_its_mirror(run: &mut Run) {
    mirrored(run);
    lie(run, |oracle, _| oracle.check_objects(&BTreeMap::new()));
}

fn with_a_mirror_of_nobody(run: &mut Run) {
    let mirror = mirrored(run);
    let other = PodName { namespace: "default".into(), name: "other".into() };
    let stray = Object { name: other.clone(), mirrors: Some("nobody".into()), ..mirror };
    let mut objects = objects(run);
    objects.insert(other, stray);
    lie(run, |oracle, _| oracle.check_objects(&objects));
}

fn another_phase_in_the_api(run: &mut Run) {
    let object = bound(run);
    let shown = shown(&PodStatus { phase: Phase::Pending, ..status(run) });
    lie(run, |oracle, _| oracle.check_told(&object, &shown));
}

fn another_condition_in_the_api(run: &mut Run) {
    let object = bound(run);
    let shown = shown(&unready(status(run)));
    lie(run, |oracle, _| oracle.check_told(&object, &shown));
}

fn unready(mut status: PodStatus) -> PodStatus {
    let is_ready = |one: &&mut Condition| one.kind == ConditionKind::Ready;
    status.conditions.iter_mut().find(is_ready).expect("a condition").holds = false;
    status
}

fn never_deleted(run: &mut Run) {
    let object = Object { grace: Some(GRACE), ..bound(run) };
    lie(run, |oracle, _| oracle.check_objects(&BTreeMap::from([(name(), object)])));
}

fn mirror_of_nobody(run: &mut Run) {
    bound(run);
    let mirror = Mirror { hash: "nobody".into(), manifest: "{}".into() };
    lie(run, |oracle, _| oracle.request_asked(&request(900, Call::CreateMirror(mirror)), None));
}

fn mirror_deleted(run: &mut Run) {
    let mirror = mirrored(run);
    let call = Call::Delete { uid: mirror.uid.clone() };
    lie(run, |oracle, _| oracle.request_asked(&request(900, call), Some(&mirror)));
}

fn deleted_twice(run: &mut Run) {
    bound(run);
    lie(run, |oracle, _| {
        oracle.request_asked(&request(900, Call::Delete { uid: uid() }), None);
        oracle.request_answered(OpId(900), &Answer::Done);
        oracle.request_asked(&request(901, Call::Delete { uid: uid() }), None);
    });
}

/// Another pod of the same name.
fn namesake(source: Source, number: u32) -> Arc<Pod> {
    let uid = PodUid::new(format!("uid-namesake-{number}"));
    Arc::new(Pod { uid, source, ..pods::pod("web", &["main"]) })
}

fn begin_record(oracle: &mut Oracle, pod: &Pod, now: Now) {
    let record = Box::new(lives::furnished(pod.clone()).record);
    oracle.asked(&Effect::Pod { op: OpId(900), pod: pod.uid.clone(), act: Act::Persist(record) }, now);
}

fn begun_beside_another(run: &mut Run) {
    mirrored(run);
    let (here, other) = (run.spec("web").expect("wanted"), namesake(Source::Api, 1));
    lie(run, |oracle, now| {
        oracle.desired([&here, &other].into_iter(), now);
        begin_record(oracle, &other, now);
    });
}

fn begun_beside_one_whose_manifest_is_not_read(run: &mut Run) {
    mirrored(run);
    let (here, other) = (run.spec("web").expect("wanted"), namesake(Source::Api, 1));
    lie(run, |oracle, now| {
        oracle.awaits(Source::File);
        oracle.desired([&here, &other].into_iter(), now);
        begin_record(oracle, &other, now);
    });
}

fn begun_before_a_manifests(run: &mut Run) {
    let (first, other) = (namesake(Source::File, 1), namesake(Source::Api, 2));
    lie(run, |oracle, now| {
        oracle.desired([&first, &other].into_iter(), now);
        begin_record(oracle, &other, now);
    });
}

fn patched_again_and_again(run: &mut Run) {
    let answer = Answer::Pod(Box::new(bound(run).known()));
    lie(run, |oracle, _| {
        for number in 0..50 {
            oracle.request_asked(&patch(900 + number, json!({ "message": number.to_string() })), None);
            oracle.request_answered(OpId(900 + number), &answer);
        }
    });
}

fn patched_after_what_was_shown_before(run: &mut Run) {
    let object = bound(run);
    let answer = Answer::Pod(Box::new(object.known()));
    let (pod, shown) = (object.spec.expect("it is of the API"), shown(&status(run)));
    lie(run, |oracle, _| {
        oracle.is_shown(&pod, shown.clone());
        // What of the last real one is left.
        oracle.published(&name());
        oracle.request_asked(&patch(900, json!({ "message": "one" })), None);
        oracle.request_answered(OpId(900), &answer);
        oracle.is_shown(&pod, shown);
        oracle.request_asked(&patch(901, json!({ "message": "two" })), None);
    });
}

fn patched_with_what_is_there(run: &mut Run) {
    let object = bound(run);
    lie(run, |oracle, _| {
        oracle.published(&name());
        oracle.request_asked(&patch(900, json!({ "phase": object.status["phase"] })), Some(&object));
    });
}

fn unready_for_nothing(run: &mut Run) {
    bound(run);
    let shown = unready(status(run));
    lie(run, |oracle, now| oracle.shown(&uid(), &shown, now));
}

fn two_requests(run: &mut Run) {
    bound(run);
    lie(run, |oracle, _| {
        oracle.published(&name());
        oracle.request_asked(&request(900, Call::Delete { uid: uid() }), None);
        oracle.request_asked(&patch(901, json!({ "message": "one" })), None);
    });
}

fn patched_twice(run: &mut Run) {
    let answer = Answer::Pod(Box::new(bound(run).known()));
    lie(run, |oracle, _| {
        oracle.published(&name());
        oracle.request_asked(&patch(900, json!({ "message": "one" })), None);
        oracle.request_answered(OpId(900), &answer);
        oracle.published(&name());
        oracle.request_asked(&patch(901, json!({ "message": "one" })), None);
    });
}

fn patched_again_by_the_next_agent(run: &mut Run) {
    let answer = Answer::Pod(Box::new(bound(run).known()));
    lie(run, |oracle, now| {
        oracle.published(&name());
        oracle.request_asked(&patch(900, json!({ "message": "one" })), None);
        oracle.request_answered(OpId(900), &answer);
        oracle.restarted(now);
        oracle.published(&name());
        oracle.request_asked(&patch(1, json!({ "message": "one" })), None);
    });
}

fn status_of(object: &Object, version: u64, status: Value) -> Object {
    Object { version, status, ..object.clone() }
}

fn patched(run: &mut Run, before: Value, after: Value) {
    let object = bound(run);
    let (before, after) = (status_of(&object, 900, before), status_of(&object, 901, after));
    let (before, after) = (Some(before), Some(after));
    carried(run, Call::PatchStatus { uid: uid(), patch: json!({}) }, (before, after), &[]);
}

fn runs_again_in_the_api(run: &mut Run) {
    patched(run, json!({ "phase": "Succeeded" }), json!({ "phase": "Running" }));
}

fn never_killed_in_time(run: &mut Run) {
    run.world.deaf.insert(ContainerName::new("main"));
    bound(run);
    run.cluster.as_mut().expect("a cluster").server.delete(&name(), Duration::from_secs(5));
    run.rest();
    lie(run, |oracle, now| oracle.check_overdue(|_| false, later(now, Duration::from_secs(6))));
}

fn containers(restarts: u32, state: &Value) -> Value {
    json!({ "containerStatuses": [{ "name": "main", "containerID": "c", "restartCount": restarts, "state": state }] })
}

fn fewer_restarts(run: &mut Run) {
    patched(run, containers(2, &json!({})), containers(1, &json!({})));
}

fn fewer_restarts_of_an_init_container(run: &mut Run) {
    let statuses =
        |restarts| json!({ "initContainerStatuses": containers(restarts, &json!({}))["containerStatuses"] });
    patched(run, statuses(2), statuses(1));
}

fn told_of_no_more(run: &mut Run) {
    patched(run, containers(0, &json!({})), json!({ "containerStatuses": [] }));
}

fn began_anew(run: &mut Run) {
    patched(run, json!({ "startTime": "1" }), json!({ "startTime": "2" }));
}

/// Also an agent that knows nothing of a pod leaves when it began.
fn began_anew_by_the_next_agent(run: &mut Run) {
    let object = bound(run);
    let request = patch(900, json!({ "message": "one" }));
    lie(run, |oracle, now| {
        oracle.written(&uid(), false);
        oracle.restarted(now);
        oracle.published(&name());
        oracle.request_asked(&request, Some(&object));
        let [before, after] = [(900, "1"), (901, "2")]
            .map(|(version, at)| Some(status_of(&object, version, json!({ "startTime": at }))));
        oracle.carried_out(&Carried { request: &request, before, after, left: Vec::new() });
    });
}

/// Of what an agent knew alone the next one takes back what was told; once.
fn taken_back_twice(run: &mut Run) {
    let object = bound(run);
    let answer = Answer::Pod(Box::new(object.known()));
    let restarts = |version, count| Some(status_of(&object, version, containers(count, &json!({}))));
    for op in [900, 901] {
        let request = patch(op, json!({ "message": op.to_string() }));
        lie(run, |oracle, now| {
            if op == 900 {
                oracle.written(&uid(), false);
                oracle.restarted(now);
            }
            oracle.published(&name());
            oracle.request_asked(&request, Some(&object));
            let (before, after) = (restarts(op, 2), restarts(op + 1, 1));
            oracle.carried_out(&Carried { request: &request, before, after, left: Vec::new() });
            oracle.request_answered(OpId(op), &answer);
        });
    }
}

fn runs_after_its_end(run: &mut Run) {
    let ended = json!({ "terminated": { "exitCode": 1 } });
    patched(run, containers(0, &ended), containers(0, &json!({ "running": {} })));
}

/// With another run of it on its way, which its policy would not have.
fn waits_after_its_last_end(run: &mut Run) {
    let object = bound(run);
    let spec = object.spec.as_deref().cloned().expect("wanted");
    let spec = Some(Arc::new(Pod { restart_policy: RestartPolicy::Never, ..spec }));
    let (ended, waits) = (json!({ "terminated": { "exitCode": 1 } }), json!({ "waiting": {} }));
    let of = |version, state| {
        let status = status_of(&object, version, containers(0, state));
        Some(Object { spec: spec.clone(), ..status })
    };
    let call = Call::PatchStatus { uid: uid(), patch: json!({}) };
    carried(run, call, (of(900, &ended), of(901, &waits)), &[]);
}

fn kept_out_and_not_told(run: &mut Run) {
    mirrored(run);
    let (here, other, objects) = (run.spec("web").expect("wanted"), namesake(Source::Api, 1), objects(run));
    lie(run, |oracle, now| {
        oracle.desired([&here, &other].into_iter(), now);
        oracle.check_objects(&objects);
    });
}
