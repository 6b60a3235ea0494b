use std::time::Instant;

use berth_core::id::PodName;
use futures::FutureExt as _;
use serde_json::json;

use super::*;
use crate::{
    hidden::Hidden,
    manifest::pod_from_json,
    objects::{fake::Fake, tokens::TokenKey},
};

const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const SECRETS: &str = "/api/v1/namespaces/shop/secrets";

/// As long as any of these tests may take.
const LONG: Duration = Duration::from_secs(60);

fn key(kind: ObjectKind, name: &str) -> ObjectKey {
    ObjectKey { kind, namespace: "shop".into(), name: name.into() }
}

fn pod(number: usize) -> PodUid {
    PodUid::new(format!("u{number}"))
}

fn objects(server: &Fake) -> (Objects, mpsc::Receiver<Event>) {
    let (sender, events) = mpsc::channel(8);
    (Objects::new(server.clients(), sender), events)
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "not so in time");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn text(content: Option<&Arc<Content>>, key: &str) -> String {
    let bytes = content.and_then(|content| content.data.get(key)).map(Hidden::reveal);
    String::from_utf8(bytes.unwrap_or(b"(none)").to_vec()).unwrap()
}

async fn changed(events: &mut mpsc::Receiver<Event>) -> (ObjectKey, Vec<PodUid>) {
    match tokio::time::timeout(LONG, events.recv()).await {
        Ok(Some(Event::ObjectChanged { object, pods })) => (object, pods),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_object_is_followed_from_its_first_answer_to_its_end() {
    let server = Fake::default();
    let (objects, mut events) = objects(&server);
    let key = key(ObjectKind::ConfigMap, "m");
    assert_eq!(objects.get(&pod(1), &key).await.unwrap(), None, "that there is none is an answer");

    server.put(MAPS, "m", json!({"data": {"a": "1"}, "binaryData": {"b": "/w=="}}));
    assert_eq!(changed(&mut events).await, (key.clone(), vec![pod(1)]));
    let content = objects.get(&pod(1), &key).await.unwrap();
    assert_eq!(text(content.as_ref(), "a"), "1");
    assert_eq!(content.unwrap().data["b"].reveal(), [0xff]);

    server.put(MAPS, "other", json!({"data": {"a": "7"}}));
    server.put(
        MAPS,
        "m",
        json!({"data": {"a": "1"}, "binaryData": {"b": "/w=="}, "note": "no change of content"}),
    );
    server.put(MAPS, "m", json!({"data": {"a": "2"}}));
    changed(&mut events).await;
    assert_eq!(text(objects.get(&pod(1), &key).await.unwrap().as_ref(), "a"), "2");

    server.remove(MAPS, "m");
    changed(&mut events).await;
    assert_eq!(objects.get(&pod(1), &key).await.unwrap(), None);
    events.try_recv().unwrap_err();
}

/// As when another object of the same container cannot be had.
#[tokio::test]
async fn who_no_longer_waits_for_an_object_is_told_when_it_is_heard() {
    let server = Fake::default();
    let (objects, mut events) = objects(&server);
    let key = key(ObjectKind::Secret, "s");
    assert!(objects.get(&pod(1), &key).now_or_never().is_none(), "nothing was heard of it yet");
    assert_eq!(changed(&mut events).await, (key, vec![pod(1)]));
}

/// The clock stands still while anything works: no machine is too busy for that.
#[tokio::test(start_paused = true)]
async fn a_change_is_told_within_two_seconds() {
    let server = Fake::default();
    let (objects, mut events) = objects(&server);
    for (kind, collection) in [(ObjectKind::ConfigMap, MAPS), (ObjectKind::Secret, SECRETS)] {
        let key = key(kind, "o");
        server.put(collection, "o", json!({"data": {"a": "MQ=="}}));
        objects.get(&pod(1), &key).await.unwrap();
        let began = tokio::time::Instant::now();
        server.put(collection, "o", json!({"data": {"a": "Mg=="}}));
        assert_eq!(changed(&mut events).await, (key, vec![pod(1)]));
        let took = began.elapsed();
        assert!(took <= Duration::from_secs(2), "{kind:?} after {took:?}");
    }
}

#[tokio::test]
async fn a_thousand_pods_share_one_watch_and_the_last_one_ends_it() {
    let server = Fake::default();
    let (objects, mut events) = objects(&server);
    server.put(MAPS, "m", json!({"data": {"a": "1"}}));
    let key = key(ObjectKind::ConfigMap, "m");
    for number in 0..1000 {
        assert_eq!(text(objects.get(&pod(number), &key).await.unwrap().as_ref(), "a"), "1");
    }
    assert_eq!((server.watches(), server.begun(), objects.count()), (1, 1, (1, 1)));
    server.put(MAPS, "m", json!({"data": {"a": "2"}}));
    assert_eq!(changed(&mut events).await.1.len(), 1000);
    for number in 0..999 {
        objects.release(&pod(number));
    }
    assert_eq!((server.watches(), objects.count()), (1, (1, 1)));
    objects.release(&pod(1000));
    assert_eq!(objects.count(), (1, 1), "one that names nothing ends nothing");
    objects.release(&pod(999));
    assert_eq!(objects.count(), (0, 0));
    until(|| server.watches() == 0).await;
}

/// A pod of the API server that names these Secrets in its environment.
fn naming(uid: &str, secrets: &[&str]) -> Arc<Pod> {
    let from: Vec<_> = secrets.iter().map(|name| json!({"secretRef": {"name": name}})).collect();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": uid, "namespace": "shop", "uid": uid},
        "spec": {"containers": [{"name": "c", "image": "i", "envFrom": from}]}});
    pod_from_json(&pod.to_string(), Source::Api).unwrap_or_else(|faults| panic!("{faults}"))
}

#[tokio::test]
async fn what_is_expected_to_be_asked_for_is_followed_and_its_pods_are_told() {
    let server = Fake::default();
    let (objects, mut events) = objects(&server);
    let expect = |pods: &[&Arc<Pod>]| objects.expect(Source::Api, pods.iter().map(|pod| &***pod));
    let (one, two) = (naming("u1", &["s", "t"]), naming("u2", &["s"]));
    let key = |name| key(ObjectKind::Secret, name);
    server.put(SECRETS, "s", json!({"data": {"a": "MQ=="}}));
    server.put(SECRETS, "t", json!({"data": {"a": "MQ=="}, "immutable": true}));
    expect(&[&one, &two]);
    expect(&[&one, &two]);
    let mut told = vec![changed(&mut events).await, changed(&mut events).await];
    told.sort();
    let both = vec![pod(1), pod(2)];
    assert_eq!(told, [(key("s"), both.clone()), (key("t"), vec![pod(1)])]);
    until(|| objects.count() == (2, 1)).await;
    server.put(SECRETS, "s", json!({"data": {"a": "Mg=="}}));
    assert_eq!(changed(&mut events).await, (key("s"), both));

    server.set_down(true);
    for (name, expected) in [("s", "2"), ("t", "1")] {
        assert_eq!(text(objects.get(&pod(1), &key(name)).await.unwrap().as_ref(), "a"), expected);
        assert_eq!(text(objects.read(&key(name)).await.unwrap().as_ref(), "a"), expected);
    }
    expect(&[]);
    assert_eq!(objects.count().0, 2, "what a pod has asked for is its until it is released");
    objects.release(&pod(1));
    assert_eq!(objects.count(), (0, 0), "the other is expected no more");
}

/// Nothing follows what nobody is expected to ask for any more, and who waits goes on waiting.
#[tokio::test]
async fn what_is_expected_no_more_is_forgotten_unless_it_is_asked_for() {
    let server = Fake::default();
    let (objects, _events) = objects(&server);
    let expect = |pods: &[&Arc<Pod>]| objects.expect(Source::Api, pods.iter().map(|pod| &***pod));
    let both = naming("u1", &["s", "t"]);
    expect(&[&both]);
    until(|| server.watches() == 3).await;
    objects.expect(Source::File, std::iter::once(&*both));
    assert_eq!(objects.count().0, 2, "pods of a manifest name no objects");
    server.set_down(true);
    objects.release(&pod(1));
    expect(&[&both]);
    let key = key(ObjectKind::Secret, "s");
    let mut waits = Box::pin(objects.get(&both.uid, &key));
    assert!(waits.as_mut().now_or_never().is_none());
    expect(&[]);
    assert_eq!(objects.count().0, 1, "of the two that were expected");
    server.put(SECRETS, "s", json!({"data": {"a": "MQ=="}}));
    server.set_down(false);
    assert_eq!(text(waits.await.unwrap().as_ref(), "a"), "1");
}

/// Who reads is no pod: nobody else would end the watch.
#[tokio::test]
async fn what_is_read_for_no_pod_is_followed_no_longer_also_when_that_is_given_up() {
    let server = Fake::default();
    let (objects, _events) = objects(&server);
    let key = key(ObjectKind::Secret, "s");
    server.put(SECRETS, "s", json!({"data": {"a": "MQ=="}}));
    assert_eq!(text(objects.read(&key).await.unwrap().as_ref(), "a"), "1");
    assert_eq!(objects.count(), (0, 0));
    until(|| server.watches() == 0).await;

    let mut given_up = Box::pin(objects.read(&key));
    assert!(given_up.as_mut().now_or_never().is_none());
    until(|| server.watches() == 1).await;
    assert_eq!(objects.count(), (1, 1));
    drop(given_up);
    assert_eq!(objects.count(), (0, 0));
    until(|| server.watches() == 0).await;
    assert_eq!(server.begun(), 2);
}

#[tokio::test]
async fn an_immutable_object_is_read_once() {
    let server = Fake::default();
    let (objects, _events) = objects(&server);
    let key = key(ObjectKind::Secret, "s");
    server.put(SECRETS, "s", json!({"data": {"a": "MQ=="}, "immutable": true}));
    assert_eq!(text(objects.get(&pod(1), &key).await.unwrap().as_ref(), "a"), "1");
    until(|| server.watches() == 0 && objects.count() == (1, 0)).await;
    assert_eq!(text(objects.get(&pod(2), &key).await.unwrap().as_ref(), "a"), "1");
    assert_eq!(server.begun(), 1);
}

#[tokio::test]
async fn what_is_known_stays_while_the_server_is_away_and_changes_are_seen_after() {
    let server = Fake::default();
    let (objects, mut events) = objects(&server);
    let key = key(ObjectKind::Secret, "s");
    server.put(SECRETS, "s", json!({"data": {"a": "MQ=="}}));
    objects.get(&pod(1), &key).await.unwrap();
    server.set_down(true);
    assert_eq!(text(objects.get(&pod(2), &key).await.unwrap().as_ref(), "a"), "1");
    server.put(SECRETS, "s", json!({"data": {"a": "Mg=="}}));
    server.set_down(false);
    // A watch that goes on from a version gets no list: here the server has forgotten what was before.
    server.put(SECRETS, "s", json!({"data": {"a": "Mw=="}}));
    until(|| server.watches() == 1).await;
    server.put(SECRETS, "s", json!({"data": {"a": "NA=="}}));
    let (_, pods) = changed(&mut events).await;
    assert_eq!(pods, [pod(1), pod(2)]);
    assert_eq!(text(objects.get(&pod(1), &key).await.unwrap().as_ref(), "a"), "4");
}

#[tokio::test]
async fn who_gave_up_waiting_is_told_when_there_is_something() {
    let server = Fake::default();
    server.set_down(true);
    let (objects, mut events) = objects(&server);
    let key = key(ObjectKind::ConfigMap, "m");
    let error = objects.get(&pod(1), &key).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to sync configmap cache: timed out waiting for the condition");
    server.put(MAPS, "m", json!({"data": {"a": "1"}}));
    server.set_down(false);
    assert_eq!(changed(&mut events).await, (key.clone(), vec![pod(1)]));
    assert_eq!(text(objects.get(&pod(1), &key).await.unwrap().as_ref(), "a"), "1");
}

/// The clock stands still while anything works.
#[tokio::test(start_paused = true)]
async fn who_may_not_read_an_object_yet_has_it_soon_after_it_may() {
    for (refusals, within_ms) in
        [(0, 0..=9), (1, 20..=40), (3, 170..=200), (5, 770..=800), (6, 1_570..=3_000)]
    {
        let server = Fake::default();
        let (objects, _events) = objects(&server);
        server.put(SECRETS, "s", json!({"data": {"a": "MQ=="}}));
        server.refuse(refusals);
        let began = tokio::time::Instant::now();
        let content = objects.get(&pod(1), &key(ObjectKind::Secret, "s")).await.unwrap();
        assert_eq!(text(content.as_ref(), "a"), "1");
        let took = began.elapsed().as_millis();
        assert!(within_ms.contains(&took), "after {refusals} refusals and {took} ms");
        assert_eq!(server.asked(), refusals + 1);
    }
}

/// A server, or somebody between, may not know the selector.
#[tokio::test]
async fn what_is_told_of_other_objects_is_not_what_is_in_this_one() {
    let server = Fake::default();
    server.ignore_selectors();
    let (objects, mut events) = objects(&server);
    let key = key(ObjectKind::ConfigMap, "m");
    server.put(MAPS, "another", json!({"data": {"a": "another's"}}));
    assert_eq!(objects.get(&pod(1), &key).await.unwrap(), None);
    server.put(MAPS, "m", json!({"data": {"a": "1"}}));
    assert_eq!(changed(&mut events).await, (key.clone(), vec![pod(1)]));
    assert_eq!(text(objects.get(&pod(1), &key).await.unwrap().as_ref(), "a"), "1");
    objects.release(&pod(1));
    // In a list the other one comes first.
    assert_eq!(text(objects.get(&pod(2), &key).await.unwrap().as_ref(), "a"), "1");

    server.put(MAPS, "another", json!({"data": {"a": "changed"}}));
    server.remove(MAPS, "another");
    server.put(MAPS, "m", json!({"data": {"a": "2"}}));
    assert_eq!(changed(&mut events).await, (key.clone(), vec![pod(2)]));
    assert_eq!(text(objects.get(&pod(2), &key).await.unwrap().as_ref(), "a"), "2");
    events.try_recv().unwrap_err();
}

/// The clock stands still as long as anything is to be read.
#[tokio::test(start_paused = true)]
async fn an_object_that_is_not_understood_is_not_gone() {
    let server = Fake::default();
    let (objects, mut events) = objects(&server);
    let key = key(ObjectKind::ConfigMap, "m");
    let not_understood = json!({"data": {"a": 7}});
    server.put(MAPS, "m", not_understood.clone());
    let error = objects.get(&pod(1), &key).await.unwrap_err();
    assert!(matches!(error, ObjectError::NotRead { .. }), "{error}");

    server.put(MAPS, "m", json!({"data": {"a": "1"}}));
    assert_eq!(changed(&mut events).await, (key.clone(), vec![pod(1)]));
    server.put(MAPS, "m", not_understood);
    tokio::time::sleep(LONG).await;
    assert_eq!(text(objects.get(&pod(1), &key).await.unwrap().as_ref(), "a"), "1");
    events.try_recv().unwrap_err();
}

#[tokio::test]
async fn a_node_without_api_server_says_so() {
    let error = Objects::none().get(&pod(1), &key(ObjectKind::Secret, "s")).await.unwrap_err();
    assert!(
        error.to_string().starts_with("secret \"s\" cannot be read: this node has no API server"),
        "{error}"
    );
}

/// The token of a pod that is to live so long.
fn token(pod: PodUid, seconds: i64) -> TokenKey {
    TokenKey {
        pod,
        name: PodName { namespace: "shop".into(), name: "web".into() },
        account: "default".into(),
        audience: Some("vault".into()),
        seconds,
    }
}

#[tokio::test]
async fn a_token_lives_as_long_as_the_server_says() {
    let server = Fake::default();
    let (objects, _events) = objects(&server);
    let tokens = objects.tokens().unwrap();
    for (at, asked, lives, renewed) in [(1, 86_400, 1200, 950..=960), (2, 600, 3600, 2870..=2880)] {
        server.tokens_live(lives);
        let given = tokens.get(&token(pod(at), asked)).await.unwrap();
        // As much earlier as tokens of one moment are spread.
        assert!(renewed.contains(&given.again_in.as_secs().saturating_add(1)), "{:?}", given.again_in);
    }
}

#[tokio::test]
async fn a_token_that_cannot_be_renewed_is_given_as_long_as_it_is_good() {
    let server = Fake::default();
    let (objects, _events) = objects(&server);
    let tokens = objects.tokens().unwrap();
    let (began, key) = (Instant::now(), token(pod(1), 5));
    assert_eq!(tokens.get(&key).await.unwrap().text.reveal(), b"token-1");
    server.set_down(true);
    let mut was_kept = false;
    let error = loop {
        match tokens.get(&key).await {
            Ok(given) => {
                assert_eq!(given.text.reveal(), b"token-1");
                was_kept |= given.again_in == Duration::from_secs(30);
            }
            Err(error) => break error,
        }
        assert!(began.elapsed() < LONG, "no token ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(was_kept && began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(error.to_string(), "failed to fetch token: down");
}

#[tokio::test]
async fn a_token_is_asked_for_once_and_forgotten_with_its_pod() {
    let server = Fake::default();
    let (objects, _events) = objects(&server);
    let key = token;
    let tokens = objects.tokens().unwrap();
    let first = tokens.get(&key(pod(1), 3600)).await.unwrap();
    assert_eq!(first.text.reveal(), b"token-1");
    assert!(first.again_in <= Duration::from_secs(2880) && first.again_in > Duration::from_secs(2800));
    assert_eq!(tokens.get(&key(pod(1), 3600)).await.unwrap().text.reveal(), b"token-1");
    assert_eq!(tokens.get(&key(pod(2), 3600)).await.unwrap().text.reveal(), b"token-2");
    assert_eq!(
        server.token_requests()[0]["spec"],
        json!({"audiences": ["vault"], "expirationSeconds": 3600,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1"}})
    );
    objects.release(&pod(1));
    assert_eq!(tokens.get(&key(pod(1), 3600)).await.unwrap().text.reveal(), b"token-3");
    // One that is old at once is asked for anew, though no more often than once in a second.
    let (began, before) = (Instant::now(), server.token_requests().len());
    let mut asked = 0;
    while asked < 2 {
        let given = tokens.get(&key(pod(3), 0)).await.unwrap();
        asked = server.token_requests().len() - before;
        let took = began.elapsed();
        assert_eq!(given.text.reveal(), format!("token-{}", before + asked).as_bytes());
        let most = 1 + usize::try_from(took.as_secs()).unwrap();
        assert!((1..=most).contains(&asked), "{asked} in {took:?}");
        // The second one is kept for twice as long as the first.
        let longest = Duration::from_secs(if asked == 1 { 1 } else { 2 });
        assert!(given.again_in > Duration::ZERO && given.again_in <= longest, "{:?}", given.again_in);
        assert!(took < LONG, "no second token");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.set_down(true);
    assert_eq!(tokens.get(&key(pod(2), 3600)).await.unwrap().text.reveal(), b"token-2");
    let began = Instant::now();
    let error = loop {
        match tokens.get(&key(pod(3), 0)).await {
            Ok(_still_good) => assert!(began.elapsed() < LONG, "no token ends"),
            Err(error) => break error,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(error.to_string(), "failed to fetch token: down");
}
