//! DEL: by the record, in reverse, repeatable, and whatever state the records are in.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::fixture::{Fixture, attachment, deadline, key, list, result_with_ip};

#[tokio::test]
async fn del_uses_the_recorded_configuration_and_result_even_when_the_file_has_changed() {
    let fixture = Fixture::new(&["a", "b", "other"]);
    fixture.control("a", &result_with_ip("10.0.0.2/24"));
    fixture.runtime.add(&list("1.0.0", &["a", "b"]), &attachment("id1"), deadline()).await.unwrap();
    fixture.take_calls();
    let changed = list("1.1.0", &["other"]);
    fixture.restarted().del(&attachment("id1"), Some(&changed), deadline()).await.unwrap();
    for call in fixture.calls() {
        assert_eq!(call["stdin"]["cniVersion"], "1.0.0");
        assert_eq!(call["stdin"]["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    }
    assert_eq!(fixture.take_calls(), ["DEL b", "DEL a"]);
    assert!(!fixture.cached_result("id1", "eth0").exists());
    assert_eq!(fixture.runtime.recorded(&key("id1").container_id).await.unwrap(), []);
}

#[tokio::test]
async fn del_twice_is_fine_and_without_a_record_the_current_configuration_serves() {
    let fixture = Fixture::new(&["a"]);
    let current = list("1.0.0", &["a"]);
    fixture.runtime.add(&current, &attachment("id1"), deadline()).await.unwrap();
    fixture.take_calls();
    for expected in [1, 0] {
        fixture.runtime.del(&attachment("id1"), None, deadline()).await.unwrap();
        assert_eq!(fixture.take_calls().len(), expected);
    }
    fixture.runtime.del(&attachment("id1"), Some(&current), deadline()).await.unwrap();
    assert_eq!(fixture.calls()[0]["stdin"].get("prevResult"), None);
    assert_eq!(fixture.take_calls(), ["DEL a"]);
}

#[tokio::test]
async fn del_tolerates_any_cache() {
    for (cached, previous) in [
        ("adfadsfasdfasfdsafaf", Value::Null),
        (r#"{"kind":"cniCacheV9"}"#, json!({"cniVersion": "1.0.0"})),
        (r#"{"cniVersion":"0.4567.0","ips":[]}"#, Value::Null),
        (
            r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.2/24"}],"dns":{}}"#,
            json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}),
        ),
    ] {
        let fixture = Fixture::new(&["a"]);
        fs::create_dir_all(fixture.cache().join("results")).unwrap();
        fs::write(fixture.cached_result("id1", "eth0"), cached).unwrap();
        let current = list("1.0.0", &["a"]);
        fixture.runtime.del(&attachment("id1"), Some(&current), deadline()).await.unwrap();
        assert_eq!(
            fixture.calls()[0]["stdin"].get("prevResult").cloned().unwrap_or_default(),
            previous,
            "{cached}"
        );
        assert!(!fixture.cached_result("id1", "eth0").exists(), "{cached}");
    }
}

#[tokio::test]
async fn a_bad_own_record_falls_back_to_libcnis_cache() {
    let fixture = Fixture::new(&["a"]);
    fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap();
    fs::write(fixture.own().join("net@id1@eth0"), "{").unwrap();
    fixture.take_calls();
    fixture.runtime.del(&attachment("id1"), None, deadline()).await.unwrap();
    assert_eq!(fixture.take_calls(), ["DEL a"]);
    assert_eq!(fs::read_dir(fixture.own()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_failed_del_keeps_the_record_for_the_next() {
    let fixture = Fixture::new(&["a", "b"]);
    fixture.runtime.add(&list("1.0.0", &["a", "b"]), &attachment("id1"), deadline()).await.unwrap();
    fixture.control("b", &json!({"DEL": {"stdout": r#"{"code":11,"msg":"later"}"#, "exit": 1}}));
    fixture.take_calls();
    let error = fixture.runtime.del(&attachment("id1"), None, deadline()).await.unwrap_err();
    assert!(error.reported().unwrap().is_temporary());
    assert_eq!(fixture.take_calls(), ["DEL b"]);
    fixture.control("b", &json!({}));
    fixture.restarted().del(&attachment("id1"), None, deadline()).await.unwrap();
    assert_eq!(fixture.take_calls(), ["DEL b", "DEL a"]);
}

#[tokio::test]
async fn what_is_already_gone_does_not_stop_the_chain() {
    let fixture = Fixture::new(&["a", "b"]);
    fixture.runtime.add(&list("1.0.0", &["a", "b"]), &attachment("id1"), deadline()).await.unwrap();
    fixture.control("b", &json!({"DEL": {"stdout": r#"{"code":999,"msg":"Link not found"}"#, "exit": 1}}));
    fixture.take_calls();
    fixture.runtime.del(&attachment("id1"), None, deadline()).await.unwrap();
    assert_eq!(fixture.take_calls(), ["DEL b", "DEL a"]);
}

#[tokio::test]
async fn a_namespace_that_is_gone_is_passed_as_empty() {
    let fixture = Fixture::new(&["a"]);
    fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap();
    fixture.take_calls();
    let id = key("id1").container_id;
    fixture
        .runtime
        .del_container(&id, Path::new("/run/netns/does-not-exist"), None, deadline())
        .await
        .unwrap();
    assert_eq!(fixture.calls()[0]["env"]["CNI_NETNS"], "");
}

#[tokio::test]
async fn a_container_leaves_all_its_networks_last_first() {
    let fixture = Fixture::new(&["a"]);
    let list = list("1.0.0", &["a"]);
    for ifname in ["eth0", "eth1"] {
        let attachment = berth_cni::Attachment { ifname: ifname.parse().unwrap(), ..attachment("id1") };
        fixture.runtime.add(&list, &attachment, deadline()).await.unwrap();
        assert!(fixture.cached_result("id1", ifname).exists());
    }
    fixture.take_calls();
    let id = key("id1").container_id;
    fixture.runtime.del_container(&id, Path::new("/proc/self/ns/net"), None, deadline()).await.unwrap();
    let interfaces: Vec<_> = fixture.calls().iter().map(|call| call["env"]["CNI_IFNAME"].clone()).collect();
    assert_eq!(interfaces, ["eth1", "eth0"]);
}

#[tokio::test]
async fn an_intent_whose_writer_was_killed_goes_with_its_container() {
    let fixture = Fixture::new(&["a"]);
    let list = list("1.0.0", &["a"]);
    for id in ["id1", "id2"] {
        fixture.runtime.add(&list, &attachment(id), deadline()).await.unwrap();
    }
    let records = fixture.own();
    let left = || {
        let entries = fs::read_dir(&records).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    for name in [".net@id1@eth0", ".net@id1@eth1", ".net@id2@eth1"] {
        fs::write(records.join(name), "{\"ki").unwrap();
    }
    let id = key("id1").container_id;
    for _again in ["with a record", "without one"] {
        fs::write(records.join(".net@id1@eth1"), "{\"ki").unwrap();
        fixture.runtime.del_container(&id, Path::new("/proc/self/ns/net"), None, deadline()).await.unwrap();
        assert_eq!(left(), [".net@id2@eth1", "net@id2@eth0"]);
    }
}

/// The one that comes second finds the record gone when it is its turn.
#[tokio::test]
async fn of_two_dels_at_once_one_asks_the_plugins() {
    let fixture = Fixture::new(&["a"]);
    let (current, one) = (list("1.0.0", &["a"]), attachment("one"));
    fixture.runtime.add(&current, &one, deadline()).await.unwrap();
    fixture.take_calls();
    let go = fixture.root.path().join("go");
    fixture.control("a", &json!({"DEL": {"wait_for": go}}));
    let del = || fixture.runtime.del_container(&one.container_id, &one.netns, None, deadline());
    let release = async {
        fixture.wait_for_calls(1).await;
        fs::write(&go, "").unwrap();
    };
    let (first, second, ()) = tokio::join!(del(), del(), release);
    first.unwrap();
    second.unwrap();
    assert_eq!(fixture.take_calls(), ["DEL a"]);
}
