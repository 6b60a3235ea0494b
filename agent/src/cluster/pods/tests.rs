use std::{
    convert::Infallible,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use berth_core::{
    cluster::{events::Happened, throttle::Rate},
    pod::port::status::Remains,
    spec::QosClass,
    status::{Phase, PodStatus},
};
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::{Client, client::Body};
use serde_json::json;

use super::*;
use crate::cluster::{Recorder, Reports};

mod gone;
mod soon;

/// Pods, and how often each changes.
const PODS: usize = 100;
const CHANGES: usize = 100;
/// Events that wait for the node loop.
const WAITING: usize = 4;
const LONG: Duration = Duration::from_secs(60);
const UNBOUND: RequestRate = RequestRate(Rate { per_second: 0, burst: 0 });
/// Where the node is.
const HERE: &str = "192.0.2.1";

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

fn pod(number: usize, change: usize) -> Value {
    let version = (1 + number + change * PODS).to_string();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("p{number}"), "namespace": "shop", "uid": format!("u{number}"),
            "resourceVersion": version, "annotations": {"change": change.to_string()}},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "a"}]}})
}

/// A server that has the pods, and then changes of them as fast as they are read.
fn server(has_told: &Arc<AtomicBool>) -> Client {
    let has_told = Arc::clone(has_told);
    Client::new(
        tower::service_fn(move |_: Request<Body>| {
            let has_told = Arc::clone(&has_told);
            let added = (0..PODS).map(|number| line("ADDED", &pod(number, 0)));
            let other = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "other", "containers": []},
                "metadata": {"name": "other", "namespace": "shop", "uid": "other", "resourceVersion": "1"}});
            let added = added.chain([line("ADDED", &other)]);
            let mark = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"resourceVersion": PODS.to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"}}});
            let changes = (1..=CHANGES).flat_map(|change| (0..PODS).map(move |number| (number, change)));
            let changes = changes.map(|(number, change)| line("MODIFIED", &pod(number, change)));
            let end = stream::poll_fn(move |_| {
                has_told.store(true, Ordering::SeqCst);
                std::task::Poll::Pending
            });
            let lines = stream::iter(added.chain([line("BOOKMARK", &mark)]).chain(changes)).chain(end);
            let body = StreamBody::new(lines.map(|line| Ok::<_, Infallible>(Frame::data(line))));
            async move { Ok::<_, Infallible>(Response::new(body.boxed_unsync())) }
        }),
        "default",
    )
}

/// What the node tells of a pod.
fn published(pod: Arc<Pod>, phase: Phase, remains: Remains) -> Published {
    let status = PodStatus {
        uid: pod.uid.clone(),
        name: pod.name.clone(),
        phase,
        reason: String::new(),
        message: String::new(),
        terminating: false,
        conditions: Vec::new(),
        host_ips: vec![HERE.parse().unwrap()],
        pod_ips: Vec::new(),
        start_time: None,
        qos: QosClass::BestEffort,
        recursive_read_only: false,
        resources: None,
        init_containers: Vec::new(),
        ephemeral_containers: Vec::new(),
        containers: Vec::new(),
    };
    Published { pod, status: Arc::new(status), sandbox: None, remains }
}

/// How often each pod has changed, as the node loop is told.
fn told(event: Option<Event>) -> Vec<usize> {
    let Some(Event::Desired { pods, .. }) = event else { panic!("{event:?}") };
    let change = |pod: &Arc<Pod>| pod.annotations.get("change").and_then(|change| change.parse().ok());
    pods.iter().map(|pod| change(pod).unwrap()).collect()
}

/// Pods as the server tells of them, and what the node loop gets.
fn start(has_told: &Arc<AtomicBool>) -> (tokio::task::JoinHandle<()>, mpsc::Receiver<Event>) {
    let clients = Clients::new(server(has_told));
    let (events, node_loop) = mpsc::channel(WAITING);
    let (recorder, _happened) = Recorder::new();
    let sinks = Sinks { reports: Reports::default(), recorder };
    let pods = PodLoop::new("n", clients, UNBOUND, sinks, View::default(), events);
    (tokio::spawn(pods.run()), node_loop)
}

/// A loop that speaks with nobody: what is seen is given to it. Beside it, what it tells of pods.
fn apart() -> (PodLoop, mpsc::Receiver<Happened>) {
    let (recorder, happened) = Recorder::new();
    let sinks = Sinks { reports: Reports::default(), recorder };
    let clients = Clients::new(server(&Arc::default()));
    let (events, _node_loop) = mpsc::channel(WAITING);
    (PodLoop::new("n", clients, UNBOUND, sinks, View::default(), events), happened)
}

/// How many events tell of all changes.
async fn count(node_loop: &mut mpsc::Receiver<Event>) -> usize {
    let (mut before, mut count) = (vec![0; PODS], 0);
    while before != [CHANGES; PODS] {
        let now = told(tokio::time::timeout(LONG, node_loop.recv()).await.unwrap());
        assert!(now.len() == PODS && now.iter().zip(&before).all(|(now, before)| now >= before), "{now:?}");
        (before, count) = (now, count + 1);
    }
    count
}

#[tokio::test]
async fn a_flood_of_changes_is_a_few_events_of_which_the_last_one_has_all() {
    let has_told = Arc::new(AtomicBool::new(false));
    let (running, mut node_loop) = start(&has_told);
    // The node loop does something else as long as the flood lasts.
    let flood = async {
        while !has_told.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, flood).await.unwrap();
    let count = count(&mut node_loop).await;
    assert!(count <= WAITING + 2, "{count} events");
    running.abort();
}

#[tokio::test]
async fn nor_is_it_more_for_a_node_loop_that_waits_for_it() {
    let (running, mut node_loop) = start(&Arc::default());
    let began = std::time::Instant::now();
    let count = count(&mut node_loop).await;
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(count <= seconds + 3, "{count} events in {seconds} s");
    running.abort();
}

#[test]
fn what_volumes_show_of_a_pod_is_told_from_what_it_is_to_do() {
    let read = |pod: Value| serde_json::from_value::<ApiPod>(pod).unwrap();
    let with = |path: &str, value: Value| {
        let mut changed = pod(0, 1);
        let (parent, field) = path.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[field] = value;
        read(changed)
    };
    let before = read(pod(0, 1));
    for (path, value, change) in [
        ("/metadata/resourceVersion", json!("77"), Change::Nothing),
        ("/metadata/managedFields", json!([{"manager": "a"}]), Change::Nothing),
        ("/metadata/annotations", json!({"change": "2"}), Change::Shown),
        ("/metadata/labels", json!({"a": "b"}), Change::Shown),
        ("/metadata/generation", json!(2), Change::Wish),
        ("/metadata/deletionTimestamp", json!("2026-11-01T00:00:00Z"), Change::Wish),
        ("/metadata/deletionGracePeriodSeconds", json!(1), Change::Wish),
        ("/spec/containers", json!([{"name": "main", "image": "b"}]), Change::Wish),
        ("/spec/activeDeadlineSeconds", json!(9), Change::Wish),
    ] {
        assert_eq!(Change::of(&before, &with(path, value)), change, "{path}");
    }
}

/// A pod whose name of an image may be one that there cannot be.
fn version(generation: i64, image: &str, deletion: Option<i64>) -> ApiPod {
    let mut pod = pod(0, 0);
    pod["metadata"]["generation"] = json!(generation);
    pod["spec"]["containers"][0]["image"] = json!(image);
    if let Some(seconds) = deletion {
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(seconds);
    }
    serde_json::from_value(pod).unwrap()
}

/// What runs does not end since the API server took a change that this node cannot read; nor does it when the agent begins anew.
#[tokio::test]
async fn a_pod_whose_later_version_cannot_be_read_goes_on_and_can_be_deleted() {
    for has_record in [false, true] {
        let (mut pods, mut happened) = apart();
        let first = version(1, "a", None);
        if has_record {
            let pod = manifest::api_pod(&first, Timestamp::UNIX_EPOCH).unwrap().pod;
            pods = pods.going_on_with(BTreeMap::from([(pod.uid.clone(), pod)]));
        } else {
            pods.want(first);
            pods.desired();
        }
        for (given, image, generation, deletion, is_told) in [
            (version(2, "", None), "a", 1, None, true),
            (version(3, "", None), "a", 1, None, false),
            (version(4, "b", None), "b", 4, None, false),
            (version(5, " ", None), "b", 4, None, true),
            (version(6, " ", Some(7)), "b", 4, Some(Duration::from_secs(7)), false),
        ] {
            pods.want(given);
            let Event::Desired { pods: wanted, is_whole: true, .. } = pods.desired() else { panic!() };
            let [pod] = wanted.as_slice() else { panic!("{wanted:?}") };
            let is = (pod.containers[0].image.as_str(), pod.generation, pod.deletion);
            assert_eq!(is, (image, Some(generation), deletion), "of a record: {has_record}");
            let told = happened.try_recv().ok().map(|told| told.reason);
            assert_eq!(told.as_deref(), is_told.then_some("FailedValidation"), "{is:?}");
        }
    }
}

/// What happens to a pod is told of the version that this agent saw first, as by the kubelet.
#[tokio::test]
async fn a_pod_keeps_the_version_that_was_seen_first() {
    let (mut pods, mut happened) = apart();
    let of_version = |number: &str, generation: i64, image: &str| {
        let mut given = version(generation, image, None);
        given.metadata.resource_version = Some(number.to_owned());
        given
    };
    // The first is not told of before the second is there; the last cannot be read.
    pods.want(of_version("77", 1, "a"));
    for (number, generation, image) in [("79", 2, "b"), ("83", 3, "c"), ("89", 4, "")] {
        pods.want(of_version(number, generation, image));
        let Event::Desired { pods: wanted, .. } = pods.desired() else { panic!() };
        assert_eq!(wanted[0].version.as_deref(), Some("77"), "{number}");
    }
    let told = happened.try_recv().unwrap();
    assert_eq!((told.reason.as_str(), told.object.version.as_deref()), ("FailedValidation", Some("77")));
}

/// What is not done about a pod is told once for each version that asks for other than the one before.
#[tokio::test]
async fn fields_that_nobody_acts_on_are_told_once() {
    let with = |generation: i64, containers: Value| -> ApiPod {
        let mut pod = pod(0, 0);
        pod["metadata"]["generation"] = json!(generation);
        pod["spec"]["preemptionPolicy"] = json!("PreemptLowerPriority");
        pod["spec"]["containers"] = containers;
        serde_json::from_value(pod).unwrap()
    };
    let plain = |image: &str| json!({"name": "main", "image": image, "resizePolicy": []});
    let labelled = |image: &str| {
        let security = json!({"capabilities": {"add": ["CAP_CHOWN"]}});
        json!({"name": "main", "image": image, "securityContext": security})
    };
    for recorded in [None, Some(1)] {
        let (mut pods, mut happened) = apart();
        if let Some(generation) = recorded {
            let pod = manifest::api_pod(&with(generation, json!([labelled("a")])), Timestamp::UNIX_EPOCH);
            let pod = pod.unwrap().pod;
            pods = pods.going_on_with(BTreeMap::from([(pod.uid.clone(), pod)]));
        }
        for (generation, container, is_told) in [
            (1, labelled("a"), recorded.is_none()),
            (2, labelled("b"), false),
            (3, plain("b"), false),
            (4, labelled("b"), true),
        ] {
            pods.want(with(generation, json!([container])));
            pods.desired();
            let told = happened.try_recv().ok().map(|told| (told.reason, told.message));
            let field = "spec.containers[0].securityContext.capabilities.add[0]";
            let text = format!("This node's agent does not act on {field}: the pod runs without");
            let expected = is_told.then(|| ("UnsupportedField".to_owned(), text));
            assert_eq!(told, expected, "{generation} after {recorded:?}");
        }
    }
}

/// An end that another wrote into the API is a wish, whatever else of the version can be read; what the node wrote itself is not.
#[tokio::test]
async fn an_end_that_the_node_did_not_tell_ends_the_pod() {
    let ended = |phase: &str, image: &str, generation: i64| {
        let mut pod = version(generation, image, None);
        pod.status =
            serde_json::from_value(json!({"phase": phase, "reason": "why", "message": "text"})).unwrap();
        pod
    };
    let uid = PodUid::new("u0");
    let name = PodName { namespace: "shop".into(), name: "p0".into() };
    for (shown, phase, image, is_told, succeeded) in [
        ("Running", "Failed", "a", true, Some(false)),
        ("Running", "Succeeded", "a", true, Some(true)),
        ("Running", "Failed", "", true, Some(false)),
        ("Running", "Running", "a", false, None),
        ("Failed", "Failed", "a", false, None),
        ("Failed", "Failed", "b", true, None),
        ("Failed", "Succeeded", "a", false, None),
    ] {
        let (mut pods, _happened) = apart();
        pods.want(ended("Running", "a", 1));
        pods.desired();
        let status = Arc::new(json!({"phase": shown}));
        let told = NodePod { name: name.clone(), status, remains: Remains::Something, mirror: None };
        pods.sync.published(uid.clone(), told);
        let generation = if image == "a" { 1 } else { 2 };
        pods.want(ended(phase, image, generation));
        let what = format!("{phase} while {shown} is shown, image {image:?}");
        assert_eq!(!pods.unread.is_empty(), is_told, "{what}");
        let Event::Desired { pods: wanted, .. } = pods.desired() else { panic!() };
        let end =
            wanted[0].ended.as_ref().map(|end| (end.succeeded, end.reason.as_str(), end.message.as_str()));
        assert_eq!(end, succeeded.map(|succeeded| (succeeded, "why", "text")), "{what}");
    }
}

/// Who forces a deletion has the pod changed and removed in one moment.
#[tokio::test]
async fn a_pod_that_is_gone_was_deleted_with_its_last_grace() {
    let seconds = |told: Option<i64>| told.map(|told| Duration::from_secs(told.unsigned_abs()));
    for (told, last, is_told) in [
        (None, Some(0), true),
        (Some(30), Some(0), true),
        (Some(0), Some(0), false),
        (Some(30), Some(30), false),
        (None, None, false),
    ] {
        let what = format!("{told:?}, then {last:?}");
        let (mut pods, _happened) = apart();
        let wanted = |pods: &mut PodLoop| -> Vec<Option<Duration>> {
            let Event::Desired { pods, .. } = pods.desired() else { panic!() };
            pods.iter().map(|pod| pod.deletion).collect()
        };
        pods.want(version(1, "a", told));
        assert_eq!(wanted(&mut pods), [seconds(told)], "{what}");
        pods.see(Seen::Gone(version(1, "a", last)));
        if is_told {
            assert_eq!(wanted(&mut pods), [seconds(last)], "{what}");
            assert!(pods.telling.poll_timeout().is_some(), "it is told again, {what}");
        }
        assert_eq!(wanted(&mut pods), [], "{what}");
    }
}
