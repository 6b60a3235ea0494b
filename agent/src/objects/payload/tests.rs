use berth_core::spec::{ContentKind, Source, VolumeSource};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::{
    config::tests::{facts, load_text},
    manifest::pod_from_json,
    objects::{asked::AT_ONCE, fake::Fake},
};

const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const SECRETS: &str = "/api/v1/namespaces/shop/secrets";

fn pod(volume: &Value, security: &Value) -> Arc<Pod> {
    let mut named = volume.clone();
    named["name"] = json!("v");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "labels": {"app": "web"}, "annotations": {"tier": "a\"b"}},
        "spec": {"serviceAccountName": "builder", "securityContext": security, "volumes": [named],
            "resources": {"limits": {"cpu": "1"}},
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"memory": "64Mi"}}}]},
    });
    pod_from_json(&pod.to_string(), Source::Api).unwrap_or_else(|faults| panic!("{faults}"))
}

async fn payload(server: &Fake, volume: Value, security: Value) -> Result<Payload, String> {
    let (sender, _events) = mpsc::channel(8);
    let objects = Objects::new(server.clients(), sender);
    let config = load_text("", &[]).unwrap().resolve(&facts()).unwrap();
    let pod = pod(&volume, &security);
    let VolumeSource::Content(content) = &pod.volumes[0].source else { panic!("{volume}") };
    gather(&objects, &config.node, &pod, content).await.map_err(|error| error.to_string())
}

/// Source: `CollectData` of `pkg/volume/downwardapi/downwardapi.go`.
#[tokio::test]
async fn a_file_shows_of_a_limit_that_is_not_there_the_nodes_and_not_the_pods() {
    let volume = json!({ "downwardAPI": { "items": [
        { "path": "cpu", "resourceFieldRef": { "containerName": "c", "resource": "limits.cpu" } }] } });
    let cpus = load_text("", &[]).unwrap().resolve(&facts()).unwrap().node.allocatable.cpu_milli.unwrap();
    let expected = format!("cpu:644:{}", cpus.div_ceil(1000));
    assert_ne!(expected, "cpu:644:1", "the pod's");
    let payload = payload(&Fake::default(), volume, json!({})).await.unwrap();
    assert_eq!(shown(&payload), expected);
}

/// Path, mode and content of every file, as `path:mode:content`.
fn shown(payload: &Payload) -> String {
    let files = payload.files.iter().map(|file| {
        let text = String::from_utf8_lossy(file.bytes.reveal()).into_owned();
        let owner = file.owner.map_or_else(String::new, |owner| format!("@{owner}"));
        format!("{}:{:o}{owner}:{text}", file.path, file.mode)
    });
    files.collect::<Vec<_>>().join(" ")
}

fn server() -> Fake {
    let server = Fake::default();
    server.put(MAPS, "m", json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "Mw=="}}));
    server.put(SECRETS, "s", json!({"data": {"k": "c2VjcmV0"}}));
    server
}

#[tokio::test]
async fn volumes_show_keys_fields_and_tokens_with_their_modes() {
    let server = server();
    for (volume, security, expected) in [
        (json!({"configMap": {"name": "m"}}), json!({}), "a:644:1 b:644:2 c:644:3"),
        (
            json!({"configMap": {"name": "m", "defaultMode": 0o400, "items": [
                {"key": "c", "path": "x/./y"}, {"key": "a", "path": "z", "mode": 0o440}]}}),
            json!({}),
            "x/y:400:3 z:440:1",
        ),
        (json!({"secret": {"secretName": "s"}}), json!({}), "k:644:secret"),
        (json!({"configMap": {"name": "none", "optional": true}}), json!({}), ""),
        (
            json!({"secret": {"secretName": "s", "optional": true, "items": [
                {"key": "k", "path": "k"}, {"key": "none", "path": "n"}]}}),
            json!({}),
            "k:644:secret",
        ),
        (
            json!({"downwardAPI": {"items": [
                {"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}},
                {"path": "labels", "mode": 0o600, "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "tier", "fieldRef": {"fieldPath": "metadata.annotations['tier']"}},
                {"path": "mem", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}}]}}),
            json!({}),
            "labels:600:app=\"web\" mem:644:64 ns:644:shop tier:644:a\"b",
        ),
        (
            json!({"projected": {"defaultMode": 0o444, "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "m", "items": [{"key": "a", "path": "ca.crt"}]}},
                {"secret": {"name": "s"}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}}),
            json!({}),
            "ca.crt:444:1 k:444:secret namespace:444:shop token:444:token-1",
        ),
        (
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}),
            json!({"runAsUser": 1000}),
            "token:600@1000:token-2",
        ),
        (
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}),
            json!({"fsGroup": 2000}),
            "token:600:token-3",
        ),
    ] {
        let payload = payload(&server, volume.clone(), security).await.unwrap();
        assert_eq!(shown(&payload), expected, "{volume}");
        assert_eq!(payload.again_in.is_some(), expected.contains("token-"), "{volume}");
        assert!(!format!("{payload:?}").contains("secret") && !format!("{payload:?}").contains("token-"));
    }
}

/// Whichever the volume names first. A token is renewed after four fifths of its life, or up to ten seconds before that.
#[tokio::test]
async fn of_two_tokens_the_earlier_renewal_counts() {
    for lives in [[600, 3600], [3600, 600]] {
        let token = |seconds: u32| {
            let path = seconds.to_string();
            json!({"serviceAccountToken": {"path": path, "expirationSeconds": seconds}})
        };
        let volume = json!({"projected": {"sources": lives.map(token)}});
        let payload = payload(&server(), volume, json!({})).await.unwrap();
        assert_eq!(payload.files.len(), 2);
        let again_in = payload.again_in.unwrap().as_secs();
        assert!((470..=480).contains(&again_in), "{lives:?}: in {again_in} s");
    }
}

/// A pod may show one object as often as it likes.
#[tokio::test]
async fn files_share_what_the_object_and_the_pod_have() {
    let name = |path: &str| json!({"path": path, "fieldRef": {"fieldPath": "metadata.name"}});
    let items = json!([{"key": "a", "path": "1"}, {"key": "a", "path": "2"}]);
    let volume = json!({"projected": {"sources": [
        {"configMap": {"name": "m", "items": items}},
        {"downwardAPI": {"items": [name("3")]}}, {"downwardAPI": {"items": [name("4")]}}]}});
    let payload = payload(&server(), volume, json!({})).await.unwrap();
    assert_eq!(shown(&payload), "1:644:1 2:644:1 3:644:web 4:644:web");
    let at: Vec<*const u8> = payload.files.iter().map(|file| file.bytes.reveal().as_ptr()).collect();
    assert_eq!((at[0], at[2]), (at[1], at[3]));
}

#[tokio::test]
async fn what_is_missing_is_told_in_the_kubelets_words() {
    let server = server();
    for (volume, expected) in [
        (json!({"configMap": {"name": "y"}}), "configmap \"y\" not found"),
        (json!({"secret": {"secretName": "y"}}), "secret \"y\" not found"),
        (
            json!({"configMap": {"name": "m", "items": [{"key": "none", "path": "p"}]}}),
            "configmap references non-existent config key: none",
        ),
        (
            json!({"secret": {"secretName": "s", "items": [{"key": "none", "path": "p"}]}}),
            "references non-existent secret key: none",
        ),
        (
            json!({"projected": {"sources": [{"configMap": {"name": "y"}}, {"secret": {"name": "z"}}, {"configMap": {"name": "y"}}]}}),
            "[configmap \"y\" not found, secret \"z\" not found]",
        ),
        (json!({"projected": {"sources": [{"configMap": {"name": "y"}}]}}), "configmap \"y\" not found"),
    ] {
        assert_eq!(payload(&server, volume.clone(), json!({})).await.unwrap_err(), expected, "{volume}");
    }
}

#[tokio::test]
async fn what_a_volume_shows_is_asked_for_at_once_and_comes_in_its_order() {
    let server = server();
    server.put(MAPS, "later", json!({"data": {"a": "4"}}));
    let map = |name: &str| json!({"configMap": {"name": name}});
    let token =
        |path: &str, audience: &str| json!({"serviceAccountToken": {"path": path, "audience": audience}});
    let secret = json!({"secret": {"name": "s"}});
    let sources = [map("m"), token("1", "one"), secret, token("2", "two"), token("3", "one"), map("later")];
    // Each object, and each token.
    server.hold_until(5);
    let payload = payload(&server, json!({"projected": {"sources": sources}}), json!({})).await.unwrap();
    let shown: Vec<(&str, &[u8])> =
        payload.files.iter().map(|file| (file.path.as_str(), file.bytes.reveal())).collect();
    let [("1", one), ("2", two), ("3", again), ("a", b"4"), ("b", b"2"), ("c", b"3"), ("k", b"secret")] =
        shown[..]
    else {
        panic!("{:?}", shown.iter().map(|(path, _)| path).collect::<Vec<_>>())
    };
    assert!(one == again && one != two);
    assert_eq!(server.token_requests().len(), 2);
}

/// Each failure is told, in the order of the sources.
#[tokio::test]
async fn what_a_volume_misses_is_told_as_if_one_was_asked_for_after_the_other() {
    let server = server();
    let map = |name: &str| json!({"configMap": {"name": name}});
    let sources = [map("y"), map("m"), json!({"secret": {"name": "z"}}), map("y"), map("x")];
    server.hold_until(4);
    let error = payload(&server, json!({"projected": {"sources": sources}}), json!({})).await.unwrap_err();
    assert_eq!(error, "[configmap \"y\" not found, secret \"z\" not found, configmap \"x\" not found]");
}

#[tokio::test]
async fn a_volume_asks_for_a_few_sources_at_once() {
    let server = Fake::default();
    let names: Vec<String> = (0..2 * AT_ONCE).map(|number| format!("m{number}")).collect();
    let sources: Vec<Value> = names.iter().map(|name| json!({"configMap": {"name": name}})).collect();
    server.hold_until(usize::MAX);
    let payload = payload(&server, json!({"projected": {"sources": sources}}), json!({}));
    let answers = async {
        while server.asked() < AT_ONCE {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(server.asked(), AT_ONCE);
        server.hold_until(0);
    };
    let (payload, ()) = tokio::join!(payload, answers);
    assert!(payload.unwrap_err().starts_with("[configmap \"m0\" not found, configmap \"m1\" not found"));
}

#[tokio::test]
async fn a_volume_has_a_bound() {
    let server = Fake::default();
    let large = "x".repeat(1 << 20);
    for name in ["m1", "m2", "m3"] {
        server.put(MAPS, name, json!({"data": {"a": large}}));
    }
    // Each object under so many paths.
    let of = |paths: &[(&str, u32)]| {
        let source = |(name, count): &(&str, u32)| {
            let items: Vec<Value> =
                (0..*count).map(|n| json!({"key": "a", "path": format!("{name}/{n}")})).collect();
            json!({"configMap": {"name": name, "items": items}})
        };
        json!({"projected": {"sources": paths.iter().map(source).collect::<Vec<_>>()}})
    };
    let most = [("m1", 32), ("m2", 30), ("m3", 1)];
    assert_eq!(payload(&server, of(&most), json!({})).await.unwrap().files.len(), 63);
    let too_large = "the content of the volume is larger than 67108864 bytes";
    let error = payload(&server, of(&[("m1", 32), ("m2", 31), ("m3", 2)]), json!({})).await.unwrap_err();
    assert_eq!(error, too_large);
    // One object as often as a pod likes: under one path it is there once, under others each counts.
    let again = json!({"projected": {"sources": vec![json!({"configMap": {"name": "m1"}}); 2000]}});
    assert_eq!(payload(&server, again, json!({})).await.unwrap().files.len(), 1);
    let paths: Vec<Value> = (0..2000).map(|n| json!({"key": "a", "path": format!("p{n}")})).collect();
    let error =
        payload(&server, json!({"configMap": {"name": "m1", "items": paths}}), json!({})).await.unwrap_err();
    assert_eq!(error, too_large);
}

/// 20,000 files with a pod's annotations would be 5 GB.
#[tokio::test]
async fn what_a_pod_tells_of_itself_has_the_bound_of_a_volume() {
    let (sender, _events) = mpsc::channel(8);
    let objects = Objects::new(Fake::default().clients(), sender);
    let config = load_text("", &[]).unwrap().resolve(&facts()).unwrap();
    let mut pod = Pod::clone(&pod(&json!({"emptyDir": {}}), &json!({})));
    pod.annotations.insert("a".to_owned(), "x".repeat(256 << 10));
    let told = |count: usize| {
        let source = DownwardSource::Field("metadata.annotations".into());
        let file = |number| DownwardFile { path: format!("p{number}"), mode: None, source: source.clone() };
        Projection::Downward((0..count).map(file).collect())
    };
    let too_large = Err(ObjectError::TooLarge { max: BYTES_MAX });
    for (sources, expected) in [
        (vec![told(200)], Ok(200)),
        (vec![told(20_000)], too_large.clone()),
        // What is not seen was made all the same.
        (vec![told(100); 3], too_large),
    ] {
        let volume = ContentVolume { kind: ContentKind::Projected, default_mode: 0o644, sources };
        let payload = gather(&objects, &config.node, &pod, &volume).await;
        assert_eq!(payload.map(|payload| payload.files.len()), expected);
    }
}
