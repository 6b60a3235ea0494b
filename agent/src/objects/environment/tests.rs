use berth_core::spec::Source;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::{manifest::pod_from_json, objects::fake::Fake};

const SERVICES: &str = "/api/v1/services";

fn server() -> Fake {
    let server = Fake::default();
    let of = |kind: &str| format!("/api/v1/namespaces/shop/{kind}");
    server.put(&of("configmaps"), "m", json!({"data": {"a": "1", "b.c": "2"}, "binaryData": {"z": "Mw=="}}));
    server.put(&of("secrets"), "s", json!({"data": {"k": "c2VjcmV0", "bad": "/w=="}}));
    server
}

async fn values(server: &Fake, container: Value) -> Result<ObjectValues, String> {
    let (sender, _events) = mpsc::channel(8);
    let objects = Objects::new(server.clients(), sender);
    let mut main = container;
    main["name"] = json!("c");
    main["image"] = json!("i");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "spec": {"containers": [main]}});
    let pod = pod_from_json(&pod.to_string(), Source::Api).unwrap_or_else(|faults| panic!("{faults}"));
    environment(&objects, &pod, &pod.containers[0]).await.map_err(|error| error.to_string())
}

fn key(kind: &str, name: &str, key: &str, optional: bool) -> Value {
    json!({"env": [{"name": "X", "valueFrom": {kind: {"name": name, "key": key, "optional": optional}}}]})
}

#[tokio::test]
async fn keys_and_whole_objects_become_values() {
    let server = server();
    let both = json!({"envFrom": [{"configMapRef": {"name": "m"}}, {"prefix": "S_", "secretRef": {"name": "s"}},
        {"configMapRef": {"name": "none", "optional": true}}]});
    let found = values(&server, both).await.unwrap();
    let from: Vec<String> = found.from.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        from,
        ["a=1", "b.c=2", "S_bad=\u{fffd}", "S_k=secret"],
        "binary data of a ConfigMap is left out"
    );
    assert!(!format!("{found:?}").contains("secret"));

    for (container, expected) in [
        (key("secretKeyRef", "s", "k", false), Some("secret")),
        (key("configMapKeyRef", "m", "b.c", false), Some("2")),
        (key("configMapKeyRef", "m", "none", true), None),
        (key("configMapKeyRef", "m", "z", true), None),
        (key("secretKeyRef", "none", "k", true), None),
    ] {
        let found = values(&server, container.clone()).await.unwrap();
        assert_eq!(found.keys.get(&0).map(String::as_str), expected, "{container}");
    }
}

#[tokio::test]
async fn what_is_missing_is_told_in_the_kubelets_words() {
    let server = server();
    for (container, expected) in [
        (key("configMapKeyRef", "x", "a", false), "configmap \"x\" not found"),
        (key("secretKeyRef", "x", "a", false), "secret \"x\" not found"),
        (key("configMapKeyRef", "m", "none", false), "couldn't find key none in ConfigMap shop/m"),
        (key("secretKeyRef", "s", "none", true), ""),
        (key("secretKeyRef", "s", "none", false), "couldn't find key none in Secret shop/s"),
        (json!({"envFrom": [{"secretRef": {"name": "x"}}]}), "secret \"x\" not found"),
    ] {
        assert_eq!(
            values(&server, container.clone()).await.err().unwrap_or_default(),
            expected,
            "{container}"
        );
    }
}

#[tokio::test]
async fn objects_are_asked_for_at_once_and_come_in_their_order() {
    let server = server();
    let (sender, _events) = mpsc::channel(8);
    let objects = Objects::new(server.clients(), sender);
    let from = |prefix: &str, kind: &str, name: &str| json!({"prefix": prefix, kind: {"name": name}});
    let variable = |name: &str, kind: &str, of: &str, key: &str| json!({"name": name, "valueFrom": {kind: {"name": of, "key": key}}});
    let all = [
        json!({}),
        json!({
            "envFrom": [from("A_", "secretRef", "s"), from("B_", "configMapRef", "m"), from("C_", "secretRef", "s")],
            "env": [variable("X", "configMapKeyRef", "n", "k"), variable("Y", "configMapKeyRef", "m", "a")],
        }),
        json!({"env": [variable("X", "configMapKeyRef", "m", "a"), variable("Y", "secretKeyRef", "y", "k"),
            variable("Z", "configMapKeyRef", "z", "k")]}),
    ];
    server.put("/api/v1/namespaces/shop/configmaps", "n", json!({"data": {"k": "3"}}));
    let containers = all.into_iter().enumerate().map(|(index, mut one)| {
        (one["name"], one["image"]) = (json!(format!("c{index}")), json!("i"));
        one
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "spec": {"containers": containers.collect::<Vec<_>>()}});
    let pod = pod_from_json(&pod.to_string(), Source::Api).unwrap_or_else(|faults| panic!("{faults}"));
    environment(&objects, &pod, &pod.containers[0]).await.unwrap();

    server.hold_until(3);
    let found = environment(&objects, &pod, &pod.containers[1]).await.unwrap();
    let from: Vec<&str> = found.from.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(from, ["A_bad", "A_k", "B_a", "B_b.c", "C_bad", "C_k"]);
    assert_eq!((found.keys[&0].as_str(), found.keys[&1].as_str()), ("3", "1"));
    server.hold_until(2);
    let error = environment(&objects, &pod, &pod.containers[2]).await.unwrap_err();
    assert_eq!(error.to_string(), "secret \"y\" not found");
}

#[tokio::test]
async fn services_are_followed_while_some_pod_wants_them() {
    let server = server();
    let link = |ip: &str| json!({"spec": {"clusterIP": ip, "ports": [{"port": 443}]}});
    for collection in [SERVICES, "/api/v1/namespaces/default/services"] {
        server.put_in(collection, "default", "kubernetes", link("10.0.0.1"));
    }
    let (sender, _events) = mpsc::channel(8);
    let objects = Objects::new(server.clients(), sender);
    let pod = |uid: &str, links: bool| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "uid": uid},
            "spec": {"enableServiceLinks": links, "containers": [{"name": "c", "image": "i"}]}});
        pod_from_json(&pod.to_string(), Source::Api).unwrap()
    };
    let (linked, plain) = (pod("u1", true), pod("u2", false));
    for pod in [&linked, &plain] {
        let found = environment(&objects, pod, &pod.containers[0]).await.unwrap();
        assert_eq!(found.services["KUBERNETES_SERVICE_HOST"], "10.0.0.1");
        assert!(!found.services.contains_key("WEB_SERVICE_HOST"));
    }
    assert_eq!(server.watches(), 2, "one of all services, one of the API server's");
    server.put_in(SERVICES, "shop", "web", link("10.0.0.2"));
    let began = std::time::Instant::now();
    loop {
        let found = environment(&objects, &linked, &linked.containers[0]).await.unwrap();
        if found.services.get("WEB_SERVICE_HOST").is_some_and(|ip| ip == "10.0.0.2") {
            break;
        }
        assert!(began.elapsed().as_secs() < 60, "never told of it");
        tokio::task::yield_now().await;
    }
    objects.release(&linked.uid);
    objects.release(&plain.uid);
    while server.watches() > 0 {
        assert!(began.elapsed().as_secs() < 60, "still watched");
        tokio::task::yield_now().await;
    }
}

/// The API server that services tell of may be a pod of a manifest, which never waits for it.
#[tokio::test]
async fn pods_of_manifests_have_the_services_that_are_known() {
    let server = server();
    let link = |ip: &str| json!({"spec": {"clusterIP": ip, "ports": [{"port": 443}]}});
    for collection in [SERVICES, "/api/v1/namespaces/default/services"] {
        server.put_in(collection, "default", "kubernetes", link("10.0.0.1"));
    }
    server.put_in(SERVICES, "shop", "web", link("10.0.0.2"));
    let (sender, _events) = mpsc::channel(8);
    let objects = Objects::new(server.clients(), sender);
    let pod = |uid: &str, links: bool| {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "api", "namespace": "shop", "uid": uid},
            "spec": {"enableServiceLinks": links, "containers": [{"name": "c", "image": "i"}]}});
        pod_from_json(&pod.to_string(), Source::File).unwrap()
    };
    let pods = [pod("u1", true), pod("u2", false)];
    let hosts = async |objects: &Objects, pod: &Pod| -> Vec<String> {
        let found = environment(objects, pod, &pod.containers[0]);
        let found = tokio::time::timeout(std::time::Duration::from_secs(4), found).await;
        let services = found.expect("nobody waits").unwrap().services;
        services.into_keys().filter(|name| name.ends_with("_HOST")).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(hosts(&Objects::none(), &pods[0]).await, none, "without an API server");
    assert_eq!(hosts(&objects, &pods[0]).await, none, "which nobody has expected");
    assert_eq!(server.watches(), 0);
    objects.expect(Source::File, pods.iter().map(|pod| &**pod));
    assert_eq!(hosts(&objects, &pods[0]).await, none, "not answered yet");
    let master = "KUBERNETES_SERVICE_HOST";
    let began = std::time::Instant::now();
    for (pod, expected) in [(&pods[0], vec![master, "WEB_SERVICE_HOST"]), (&pods[1], vec![master])] {
        while hosts(&objects, pod).await != expected {
            assert!(began.elapsed().as_secs() < 60, "never told of {expected:?}");
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(server.watches(), 2, "one of all services, one of the API server's");
    for (left, watches) in [(&pods[1..], 1), (&[][..], 0)] {
        objects.expect(Source::File, left.iter().map(|pod| &**pod));
        while server.watches() != watches {
            assert!(began.elapsed().as_secs() < 60, "{} watches", server.watches());
            tokio::task::yield_now().await;
        }
    }
}

async fn watched(server: &Fake, count: usize) {
    let began = std::time::Instant::now();
    while server.watches() != count {
        assert!(began.elapsed().as_secs() < 60, "{} watches, not {count}", server.watches());
        tokio::task::yield_now().await;
    }
}

/// Lets tasks begin and end that were begun or ended.
async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
}

#[tokio::test]
async fn what_pods_of_the_api_need_as_a_whole_is_followed_from_their_telling_to_the_end_of_the_last() {
    let server = server();
    let link = json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 443}]}});
    for collection in [SERVICES, "/api/v1/namespaces/default/services"] {
        server.put_in(collection, "default", "kubernetes", link.clone());
    }
    server.put_in("/apis/node.k8s.io/v1/runtimeclasses", "", "gpu", json!({"handler": "nvidia"}));
    let (sender, _events) = mpsc::channel(8);
    let objects = Objects::new(server.clients(), sender);
    let pod = |uid: &str, spec: Value| {
        let mut spec = spec;
        spec["containers"] = json!([{"name": "c", "image": "i"}]);
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": uid, "namespace": "shop", "uid": uid}, "spec": spec});
        pod_from_json(&pod.to_string(), Source::Api).unwrap()
    };
    let linked = pod("u1", json!({"enableServiceLinks": true}));
    let plain = pod("u2", json!({"enableServiceLinks": false, "runtimeClassName": "gpu"}));
    let expect = |pods: &[&Arc<Pod>]| objects.expect(Source::Api, pods.iter().map(|pod| &***pod));
    expect(&[]);
    settle().await;
    assert_eq!(server.begun(), 0, "nobody needs anything");
    expect(&[&linked, &plain]);
    watched(&server, 3).await;
    expect(&[&linked, &plain]);
    for pod in [&linked, &plain] {
        let found = environment(&objects, pod, &pod.containers[0]).await.unwrap();
        assert_eq!(found.services["KUBERNETES_SERVICE_HOST"], "10.0.0.1");
    }
    assert_eq!(objects.handler(&plain.uid, "gpu").await.unwrap(), "nvidia");
    assert_eq!(server.begun(), 3, "nothing is asked for once more");
    objects.release(&linked.uid);
    watched(&server, 2).await;
    expect(&[]);
    settle().await;
    assert_eq!(server.watches(), 2, "one that starts no more may be at its start");
    objects.release(&plain.uid);
    watched(&server, 0).await;
    expect(&[&linked]);
    watched(&server, 1).await;
    expect(&[]);
    watched(&server, 0).await;
}

/// Of a pod that an earlier agent began, nothing was asked for yet.
#[tokio::test]
async fn a_container_starts_with_what_was_followed_before_the_server_went_away() {
    let server = server();
    let link = json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 443}]}});
    server.put_in(SERVICES, "default", "kubernetes", link);
    let (sender, mut events) = mpsc::channel(8);
    let objects = Objects::new(server.clients(), sender);
    let variable =
        json!({"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": false}}});
    let main =
        json!({"name": "c", "image": "i", "env": [variable], "envFrom": [{"configMapRef": {"name": "m"}}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop", "uid": "u1"},
        "spec": {"containers": [main]}});
    let pod = pod_from_json(&pod.to_string(), Source::Api).unwrap_or_else(|faults| panic!("{faults}"));
    objects.expect(Source::Api, std::iter::once(&*pod));
    let heard = async {
        // Both objects, and the services, of which nobody is told.
        for _ in 0..2 {
            events.recv().await.unwrap();
        }
        while objects.lists().unwrap().services.known().is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), heard).await.unwrap();
    server.set_down(true);
    let found = environment(&objects, &pod, &pod.containers[0]).await.unwrap();
    assert_eq!(found.services["KUBERNETES_SERVICE_HOST"], "10.0.0.1");
    assert_eq!((found.from.len(), found.keys[&0].as_str()), (2, "secret"));
    assert_eq!(server.begun(), 3, "each was asked for once");
}

/// A pod may name one object as often as it likes.
#[tokio::test]
async fn an_environment_has_a_bound() {
    let server = server();
    let maps = "/api/v1/namespaces/shop/configmaps";
    server.put(maps, "large", json!({"data": {"a": "x".repeat(1 << 20)}}));
    let keys = (0..10_000).map(|number| (format!("k{number}"), json!("")));
    server.put(maps, "many", json!({"data": keys.clone().collect::<serde_json::Map<_, _>>()}));
    server.put(maps, "binary", json!({"binaryData": keys.collect::<serde_json::Map<_, _>>()}));
    for (name, prefix, fits) in [
        ("large", "", 7),
        ("large", &"P".repeat(1 << 20), 3),
        ("many", "", 6),
        ("many", "PREFIX_", 5),
        ("binary", "", 6),
    ] {
        let often = |count: usize| {
            let from = json!({"prefix": prefix, "configMapRef": {"name": name}});
            json!({"envFrom": vec![from; count]})
        };
        values(&server, often(fits)).await.unwrap();
        let error = values(&server, often(fits + 1)).await.unwrap_err();
        assert!(error.starts_with("what objects and services give the environment is larger"), "{error}");
    }
}
