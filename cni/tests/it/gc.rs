//! GC: stale attachments are removed, the plugins are told, and a failure stops nothing.

use std::collections::BTreeSet;
use std::fs;

use berth_cni::{NetworkList, ValidAttachment};
use serde_json::json;

use crate::fixture::{Fixture, attachment, deadline, key, list, parse};

fn valid(ids: &[&str]) -> BTreeSet<ValidAttachment> {
    ids.iter()
        .map(|id| ValidAttachment { container_id: id.parse().unwrap(), ifname: "eth0".parse().unwrap() })
        .collect()
}

async fn add_all(fixture: &Fixture, list: &NetworkList, ids: &[&str]) {
    for id in ids {
        fixture.runtime.add(list, &attachment(id), deadline()).await.unwrap();
    }
    fixture.take_calls();
}

#[tokio::test]
async fn stale_attachments_are_deleted_and_plugins_told() {
    let fixture = Fixture::new(&["a", "b"]);
    let current = list("1.1.0", &["a", "b"]);
    add_all(&fixture, &current, &["one", "two", "three"]).await;
    let report = fixture.restarted().gc(&[current], || valid(&["two"]), deadline()).await;
    assert!(report.failures.is_empty(), "{report:?}");
    assert_eq!(report.removed, [key("one"), key("three")]);
    let calls = fixture.calls();
    let kept = json!([{"containerID": "two", "ifname": "eth0"}]);
    for call in &calls[4..] {
        assert_eq!(call["stdin"]["cni.dev/valid-attachments"], kept);
        assert_eq!(call["stdin"]["cni.dev/attachments"], kept);
    }
    assert_eq!(fixture.take_calls(), ["DEL b", "DEL a", "DEL b", "DEL a", "GC a", "GC b"]);
    assert!(fixture.cached_result("two", "eth0").exists());
    assert!(!fixture.cached_result("one", "eth0").exists());
}

#[tokio::test]
async fn an_add_that_never_came_back_is_cleaned() {
    let fixture = Fixture::new(&["a"]);
    let current = list("1.0.0", &["a"]);
    fixture.control("a", &json!({"ADD": {"abort": true}}));
    fixture.runtime.add(&current, &attachment("one"), deadline()).await.unwrap_err();
    fixture.take_calls();
    let report = fixture.restarted().gc(&[current], || valid(&[]), deadline()).await;
    assert_eq!(report.removed, [key("one")]);
    assert_eq!(fixture.take_calls(), ["DEL a"], "before 1.1.0 only the DEL");
}

#[tokio::test]
async fn failures_are_collected_and_the_rest_goes_on() {
    let fixture = Fixture::new(&["a", "b"]);
    let current = list("1.1.0", &["a", "b"]);
    add_all(&fixture, &current, &["one", "two"]).await;
    fixture.control("b", &json!({"DEL": {"exit": 1}}));
    fixture.control("a", &json!({"GC": {"exit": 1}}));
    let report = fixture.runtime.gc(&[current], || valid(&[]), deadline()).await;
    assert_eq!(report.failures.len(), 3, "{report:?}");
    assert_eq!(fixture.take_calls(), ["DEL b", "DEL b", "GC a", "GC b"]);
}

#[tokio::test]
async fn disabled_gc_does_nothing() {
    let fixture = Fixture::new(&["a"]);
    let current =
        parse(&json!({"name": "net", "cniVersion": "1.1.0", "disableGC": true, "plugins": [{"type": "a"}]}));
    add_all(&fixture, &current, &["one"]).await;
    let report = fixture.runtime.gc(&[current], || valid(&[]), deadline()).await;
    assert!(report.removed.is_empty() && report.failures.is_empty());
    assert_eq!(fixture.take_calls(), [""; 0]);
}

/// The file of a network is gone: ours are removed by their records, another runtime's are not ours to touch.
#[tokio::test]
async fn networks_that_are_no_longer_configured_are_cleaned_of_what_is_ours() {
    let fixture = Fixture::new(&["a", "b"]);
    add_all(&fixture, &list("1.0.0", &["a"]), &["ours", "theirs"]).await;
    fs::remove_file(fixture.cache().join("attachments/net@theirs@eth0")).unwrap();
    let other = parse(&json!({"name": "other", "cniVersion": "1.0.0", "plugins": [{"type": "b"}]}));
    let report = fixture.restarted().gc(&[other], || valid(&[]), deadline()).await;
    assert_eq!(report.removed, [key("ours")]);
    assert!(report.failures.is_empty(), "{report:?}");
    assert_eq!(fixture.take_calls(), ["DEL a"]);
    assert!(fixture.cached_result("theirs", "eth0").exists());
}
