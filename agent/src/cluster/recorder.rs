//! Events for the API server. Source: `staging/src/k8s.io/client-go/tools/record/event.go`.

use std::{collections::BTreeMap, time::Duration};

use berth_core::{
    cluster::{
        events::{Correlator, Event, Happened, Object, Sending},
        node,
        throttle::Throttle,
    },
    id::PodUid,
    status::{Note, PodEvent, Severity},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event as ApiEvent, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    ApiError, Clients,
    client::{turn, within},
    requests::SEND_EVENT,
};
use crate::{clock, config::EventRate, failpoint::Failpoint};

/// Events that may wait to be sent (`maxQueuedEvents`); what comes beyond that is lost, and said so.
const WAITING_MAX: usize = 1000;
/// How often an event is sent that nobody takes yet, and the pause after a request that is not answered (`maxTriesPerEvent`,
/// `defaultSleepDuration`).
const TRIES: u32 = 12;
const PAUSE: Duration = Duration::from_secs(10);
/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(30);
/// Who tells.
const COMPONENT: &str = "kubelet";

/// Where events are handed in. Never waits.
#[derive(Debug, Clone)]
pub struct Recorder(mpsc::Sender<Happened>);

impl Recorder {
    /// One, and what is handed in to it.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Happened>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Something happened to a pod.
    pub fn pod(&self, uid: &PodUid, note: &Note) {
        let object = Object {
            kind: "Pod",
            namespace: note.name.namespace.clone(),
            name: note.name.name.clone(),
            uid: uid.as_str().to_owned(),
            version: note.version.clone(),
            field_path: note.field_path.clone(),
        };
        let PodEvent { severity, reason, message, container: _ } = &note.event;
        self.record(object, *severity, reason.to_string(), message.clone());
    }

    /// Something happened to the node of this name. Neither a UID nor a version is in it, as in the kubelet's (`nodeRef` of
    /// `pkg/kubelet/kubelet.go`).
    pub fn node(&self, name: &str, note: node::Note) {
        let node::Note { severity, reason, message } = note;
        let object = Object {
            kind: "Node",
            namespace: String::new(),
            name: name.to_owned(),
            uid: String::new(),
            version: None,
            field_path: String::new(),
        };
        self.record(object, severity, reason, message);
    }

    /// Something happened just now (`makeEvent`).
    fn record(&self, object: Object, severity: Severity, reason: String, message: String) {
        let (at, annotations) = (Timestamp::now(), BTreeMap::new());
        let happened = Happened { at, object, severity, reason, message, annotations };
        if let Err(mpsc::error::TrySendError::Full(lost)) = self.0.try_send(happened) {
            tracing::warn!(
                reason = lost.reason,
                object = lost.object.name,
                "too many events wait: one is not sent"
            );
        }
    }
}

/// Sends events for as long as they come, one after the other.
pub async fn send_events(
    clients: Clients,
    node: String,
    EventRate(rate): EventRate,
    mut happened: mpsc::Receiver<Happened>,
    failpoint: Failpoint,
) {
    let (mut correlator, mut throttle) = (Correlator::default(), Throttle::new(rate));
    while let Some(happened) = happened.recv().await {
        let Some(sending) = correlator.take(happened, clock::now()) else { continue };
        for _ in 0..TRIES {
            turn(throttle.take(clock::mono())).await;
            failpoint.before(SEND_EVENT);
            let answer = send(&clients, &node, &sending).await;
            failpoint.after(SEND_EVENT);
            match answer {
                Ok(()) => break,
                Err(error) => {
                    let Some(pause) = again_after(&error) else {
                        tracing::debug!(%error, "the API server refuses an event");
                        break;
                    };
                    tracing::debug!(%error, "an event waits for the API server");
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
}

/// How long until the same event is sent again; `None` where the server has answered and names no time: all others would wait, and it
/// may refuse those of one namespace alone (`recordEvent`; `k8s.io/client-go/rest/with_retry.go` obeys `Retry-After`).
fn again_after(error: &ApiError) -> Option<Duration> {
    match error {
        ApiError::Unanswered(_) => Some(PAUSE),
        ApiError::Refused { retry_after, .. } => {
            Some(*retry_after).filter(|pause| error.is_transient() && !pause.is_zero())
        }
        ApiError::Unusable(_) => None,
    }
}

async fn send(clients: &Clients, node: &str, sending: &Sending) -> Result<(), ApiError> {
    let (Sending::Create(event) | Sending::Count(event)) = sending;
    let api: Api<ApiEvent> = Api::namespaced(clients.get(), namespace(event));
    if let Sending::Count(event) = sending {
        let patch = json!({
            "count": event.count, "lastTimestamp": Time(event.last), "message": event.happened.message,
        });
        let patch = Patch::Strategic(patch);
        match within(WITHIN, api.patch(&event.name, &PatchParams::default(), &patch)).await {
            // The server forgets events after a while.
            Err(error) if error.is_not_found() => {}
            answer => return answer.map(drop),
        }
    }
    within(WITHIN, api.create(&PostParams::default(), &object(event, node))).await.map(drop)
}

/// Those of nodes are in the default namespace.
fn namespace(event: &Event) -> &str {
    let namespace = event.happened.object.namespace.as_str();
    if namespace.is_empty() { "default" } else { namespace }
}

fn object(event: &Event, node: &str) -> ApiEvent {
    let Happened { at: _, object, severity, reason, message, annotations } = &event.happened;
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let severity = match severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    ApiEvent {
        metadata: ObjectMeta {
            name: Some(event.name.clone()),
            namespace: Some(namespace(event).to_owned()),
            annotations: (!annotations.is_empty()).then(|| annotations.clone()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: text("v1"),
            kind: Some(object.kind.to_owned()),
            namespace: text(&object.namespace),
            name: text(&object.name),
            uid: text(&object.uid),
            field_path: text(&object.field_path),
            resource_version: object.version.clone(),
        },
        type_: Some(severity.to_owned()),
        reason: text(reason),
        message: text(message),
        count: i32::try_from(event.count).ok(),
        first_timestamp: Some(Time(event.first)),
        last_timestamp: Some(Time(event.last)),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: text(node) }),
        reporting_component: text(COMPONENT),
        reporting_instance: text(node),
        ..ApiEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use berth_core::{cluster::throttle::Rate, id::PodName, time::Now};
    use kube::{Client, client::Body};

    use super::*;

    /// Source: `GetReference` of `staging/src/k8s.io/client-go/tools/reference/ref.go`.
    #[test]
    fn an_event_refers_to_the_version_of_the_pod_that_is_known() {
        for version in [None, Some("77".to_owned())] {
            let (recorder, mut happened) = Recorder::new();
            let event = PodEvent {
                container: None,
                severity: Severity::Normal,
                reason: "Pulled".into(),
                message: "text".to_owned(),
            };
            let name = PodName { namespace: "shop".to_owned(), name: "web".to_owned() };
            let field_path = "spec.containers{main}".to_owned();
            let note = Note { name, version: version.clone(), field_path: field_path.clone(), event };
            recorder.pod(&PodUid::new("u1"), &note);
            let happened = happened.try_recv().unwrap();
            let sending = Correlator::default().take(happened, clock::now());
            let Some(Sending::Create(event)) = sending else { panic!("{sending:?}") };
            let expected = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                namespace: Some("shop".to_owned()),
                name: Some("web".to_owned()),
                uid: Some("u1".to_owned()),
                resource_version: version,
                field_path: Some(field_path),
            };
            assert_eq!(object(&event, "n").involved_object, expected);
        }
    }

    #[test]
    fn an_event_of_the_node_names_it_and_no_more() {
        let (recorder, mut happened) = Recorder::new();
        let (reason, message) = ("MissingClusterDNS".to_owned(), "text".to_owned());
        recorder.node("n", node::Note { severity: Severity::Warning, reason, message });
        let happened = happened.try_recv().unwrap();
        assert_eq!((happened.reason.as_str(), happened.message.as_str()), ("MissingClusterDNS", "text"));
        let sending = Correlator::default().take(happened, clock::now());
        let Some(Sending::Create(event)) = sending else { panic!("{sending:?}") };
        assert_eq!(namespace(&event), "default");
        let expected = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some("n".to_owned()),
            ..ObjectReference::default()
        };
        assert_eq!(object(&event, "n").involved_object, expected);
    }

    #[test]
    fn an_event_says_all_that_the_kubelets_does() {
        for (kind, namespace, path, severity, shown) in [
            ("Pod", "shop", "spec.containers{main}", Severity::Warning, ["shop", "Warning"]),
            ("Node", "", "", Severity::Normal, ["default", "Normal"]),
        ] {
            let about = Object {
                kind,
                namespace: namespace.to_owned(),
                name: "web".to_owned(),
                uid: "u1".to_owned(),
                version: None,
                field_path: path.to_owned(),
            };
            let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
            let (reason, message) = ("BackOff".to_owned(), "text".to_owned());
            let (first, last) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + Duration::from_secs(9));
            let happened = Happened { at: last, object: about, severity, reason, message, annotations };
            let event = Event { name: "web.1".to_owned(), happened, count: 3, first, last };
            let mut expected = json!({
                "apiVersion": "v1", "kind": "Event", "type": shown[1], "reason": "BackOff",
                "message": "text", "count": 3,
                "metadata": { "name": "web.1", "namespace": shown[0], "annotations": { "a": "b" } },
                "involvedObject": { "apiVersion": "v1", "kind": kind, "name": "web", "uid": "u1" },
                "firstTimestamp": "1970-01-01T00:00:00Z", "lastTimestamp": "1970-01-01T00:00:09Z",
                "source": { "component": "kubelet", "host": "n" },
                "reportingComponent": "kubelet", "reportingInstance": "n",
            });
            for (field, text) in [("namespace", namespace), ("fieldPath", path)] {
                if !text.is_empty() {
                    expected["involvedObject"][field] = json!(text);
                }
            }
            assert_eq!(serde_json::to_value(object(&event, "n")).unwrap(), expected);
        }
    }

    #[test]
    fn an_event_is_of_the_time_when_it_is_handed_in() {
        let (recorder, mut happened) = Recorder::new();
        let before = Timestamp::now();
        let (reason, message) = ("Starting".to_owned(), "text".to_owned());
        recorder.node("n", node::Note { severity: Severity::Normal, reason, message });
        let after = Timestamp::now();
        let happened = happened.try_recv().unwrap();
        assert!((before..=after).contains(&happened.at), "{} {before} {after}", happened.at);
        let later = Now { mono: clock::mono(), wall: after + Duration::from_secs(60) };
        let sending = Correlator::default().take(happened.clone(), later);
        let Some(Sending::Create(event)) = sending else { panic!("{sending:?}") };
        let told = object(&event, "n");
        let time = |time: Option<Time>| time.map(|Time(time)| time);
        let at = Some(happened.at);
        assert_eq!((time(told.first_timestamp), time(told.last_timestamp)), (at, at));
    }

    fn crashes_in(namespace: &str, recorder: &Recorder) {
        let object = Object {
            kind: "Pod",
            namespace: namespace.to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
            version: None,
            field_path: String::new(),
        };
        recorder.record(object, Severity::Warning, "BackOff".to_owned(), "it crashes".to_owned());
    }

    /// As where a webhook refuses them that is away.
    #[tokio::test]
    async fn a_namespace_whose_events_are_refused_holds_up_no_other() {
        let (asked, mut paths) = mpsc::channel(10);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let asked = asked.clone();
            async move {
                let path = request.uri().path().to_owned();
                let (code, answer) = if path.contains("/namespaces/a/") {
                    (500_u16, json!({"kind": "Status", "code": 500, "message": "failed calling webhook"}))
                } else {
                    (201_u16, json!({"metadata": {}, "involvedObject": {}}))
                };
                asked.send(path).await.unwrap();
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(http::Response::builder().status(code).body(body).unwrap())
            }
        });
        let clients = Clients::new(Client::new(service, "default"));
        let (recorder, happened) = Recorder::new();
        for namespace in ["a", "b"] {
            crashes_in(namespace, &recorder);
        }
        drop(recorder);
        let (unbound, failpoint) = (EventRate(Rate { per_second: 0, burst: 0 }), Failpoint::at(None));
        let sending = tokio::spawn(send_events(clients, "n".to_owned(), unbound, happened, failpoint));
        tokio::time::timeout(PAUSE, sending).await.expect("nothing is waited for").unwrap();
        let all: Vec<String> = std::iter::from_fn(|| paths.try_recv().ok()).collect();
        assert_eq!(all, ["/api/v1/namespaces/a/events", "/api/v1/namespaces/b/events"]);
    }

    #[test]
    fn what_may_be_taken_later_is_sent_again() {
        let refused = |code, seconds| ApiError::Refused {
            code,
            reason: String::new(),
            message: String::new(),
            retry_after: Duration::from_secs(seconds),
        };
        for (error, expected) in [
            (ApiError::Unanswered("connection refused".to_owned()), Some(PAUSE)),
            (refused(429, 1), Some(Duration::from_secs(1))),
            (refused(503, 2), Some(Duration::from_secs(2))),
            (refused(429, 0), None),
            (refused(500, 0), None),
            (refused(403, 5), None),
            (ApiError::Unusable("too deep".to_owned()), None),
        ] {
            assert_eq!(again_after(&error), expected, "{error:?}");
        }
    }
}
