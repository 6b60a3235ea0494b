//! How soon the API server is told what a pod is. The clock stands still while anything works: no machine is too busy for that.

use std::sync::Mutex;

use super::*;

/// The longest time until the server is told.
const WITHIN: Duration = Duration::from_millis(50);

/// Puts a patch into a status, as far as these tests need it.
fn merge(status: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().unwrap() {
        if key != "conditions" {
            status[key] = value.clone();
            continue;
        }
        let mut all = status[key].as_array().cloned().unwrap_or_default();
        for changed in value.as_array().unwrap() {
            all.retain(|one| one["type"] != changed["type"]);
            all.push(changed.clone());
        }
        status[key] = all.into();
    }
}

/// A server that has one pod; when its status is patched, and to which phase.
fn patched(patches: mpsc::Sender<(Instant, String)>) -> Client {
    let has = Arc::new(Mutex::new((0, json!({}))));
    Client::new(
        tower::service_fn(move |request: Request<Body>| {
            let (patches, has) = (patches.clone(), Arc::clone(&has));
            async move {
                let pieces = if request.method() == http::Method::PATCH {
                    let sent = request.into_body().collect().await.unwrap().to_bytes();
                    let sent: Value = serde_json::from_slice(&sent).unwrap();
                    let phase = sent["status"]["phase"].as_str().unwrap_or_default().to_owned();
                    patches.send((Instant::now(), phase)).await.unwrap();
                    let mut has = has.lock().unwrap();
                    has.0 += 1;
                    merge(&mut has.1, &sent["status"]);
                    let mut answer = pod(0, has.0);
                    answer["status"] = has.1.clone();
                    stream::iter([Bytes::from(answer.to_string())]).boxed()
                } else {
                    let mark = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"resourceVersion": "1",
                        "annotations": {"k8s.io/initial-events-end": "true"}}});
                    let listed = [line("ADDED", &pod(0, 0)), line("BOOKMARK", &mark)];
                    stream::iter(listed).chain(stream::pending()).boxed()
                };
                let body = StreamBody::new(pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece))));
                Ok::<_, Infallible>(Response::new(body.boxed_unsync()))
            }
        }),
        "default",
    )
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_is_now_is_told_within_fifty_milliseconds() {
    let (told, mut patches) = mpsc::channel(WAITING);
    let (recorder, _happened) = Recorder::new();
    let reports = Reports::default();
    let sinks = Sinks { reports: reports.clone(), recorder };
    let (events, mut node_loop) = mpsc::channel(WAITING);
    let pods = PodLoop::new("n", Clients::new(patched(told)), UNBOUND, sinks, View::default(), events);
    let running = tokio::spawn(pods.run());
    let event = tokio::time::timeout(LONG, node_loop.recv()).await.unwrap();
    let Some(Event::Desired { pods, .. }) = event else { panic!("{event:?}") };
    for phase in [Phase::Pending, Phase::Running, Phase::Succeeded] {
        let began = Instant::now();
        reports.publish(published(Arc::clone(&pods[0]), phase, Remains::Something));
        let patch = tokio::time::timeout(LONG, patches.recv()).await.unwrap();
        let (at, told) = patch.unwrap();
        assert_eq!(told, phase.as_str());
        assert!(at - began <= WITHIN, "{told} was told after {:?}", at - began);
    }
    running.abort();
}
