//! GC: what is ours is known by our own records, plugins are told of everybody, and a failure stops nothing.

use std::collections::BTreeSet;
use std::fs;

use berth_cni::{Gc, Key, NetworkList, Runtime, ValidAttachment};
use serde_json::json;

use crate::fixture::{Fixture, attachment, deadline, key, list, parse};

async fn add_all(runtime: &Runtime, list: &NetworkList, ids: &[&str]) {
    for id in ids {
        runtime.add(list, &attachment(id), deadline()).await.unwrap();
    }
}

async fn own(runtime: &Runtime) -> Vec<Key> {
    runtime.own().await.unwrap().into_iter().map(|record| record.key).collect()
}

async fn gc(runtime: &Runtime, list: &NetworkList) -> Gc {
    runtime.gc(list, &BTreeSet::new(), deadline()).await.unwrap()
}

/// Its result in the shared cache and its record look like ours; only where the record is tells whose it is.
#[tokio::test]
async fn what_another_runtime_attached_is_not_ours() {
    let fixture = Fixture::new(&["a"]);
    let current = list("1.1.0", &["a"]);
    add_all(&fixture.runtime, &current, &["ours"]).await;
    add_all(&fixture.neighbour(), &current, &["theirs"]).await;
    fixture.control("a", &json!({"ADD": {"abort": true}}));
    fixture.runtime.add(&current, &attachment("begun"), deadline()).await.unwrap_err();
    assert_eq!(own(&fixture.restarted()).await, [key("begun"), key("ours")]);
    assert_eq!(own(&fixture.neighbour()).await, [key("theirs")]);
}

#[tokio::test]
async fn plugins_are_told_of_everything_that_is_written_down() {
    let fixture = Fixture::new(&["a", "b"]);
    let current = list("1.1.0", &["a", "b"]);
    add_all(&fixture.runtime, &current, &["ours"]).await;
    add_all(&fixture.neighbour(), &current, &["theirs"]).await;
    // What its ADD has made is for its own DEL.
    fixture.control("b", &json!({"ADD": {"abort": true}}));
    fixture.runtime.add(&current, &attachment("begun"), deadline()).await.unwrap_err();
    fixture.take_calls();
    let besides = ValidAttachment { container_id: "kept".parse().unwrap(), ifname: "eth1".parse().unwrap() };
    let gc = fixture.restarted().gc(&current, &BTreeSet::from([besides]), deadline()).await.unwrap();
    assert!(matches!(&gc, Gc::Asked { failures } if failures.is_empty()), "{gc:?}");
    let kept = json!([
        {"containerID": "begun", "ifname": "eth0"},
        {"containerID": "kept", "ifname": "eth1"},
        {"containerID": "ours", "ifname": "eth0"},
        {"containerID": "theirs", "ifname": "eth0"},
    ]);
    for call in &fixture.calls() {
        assert_eq!(call["stdin"]["cni.dev/valid-attachments"], kept);
        assert_eq!(call["stdin"]["cni.dev/attachments"], kept);
    }
    assert_eq!(fixture.take_calls(), ["GC a", "GC b"]);
}

/// A list that leaves out a living attachment costs it its address.
#[tokio::test]
async fn nobody_is_asked_while_a_record_cannot_be_read() {
    let fixture = Fixture::new(&["a"]);
    let current = list("1.1.0", &["a"]);
    add_all(&fixture.runtime, &current, &["ours"]).await;
    fixture.take_calls();
    // As runtimes of before libcni's cache left it, as a crash may leave it, and of a kind that we do not know.
    for bytes in [r#"{"cniVersion":"0.4.0","ips":[]}"#, "", r#"{"kind":"cniCacheV9"}"#] {
        let torn = fixture.cached_result("theirs", "eth0");
        fs::write(&torn, bytes).unwrap();
        let gc = gc(&fixture.runtime, &current).await;
        assert!(matches!(&gc, Gc::Unsure(files) if *files == [torn]), "{bytes}: {gc:?}");
    }
    assert_eq!(fixture.take_calls(), [""; 0]);
}

#[tokio::test]
async fn failures_are_collected_and_the_rest_goes_on() {
    let fixture = Fixture::new(&["a", "b"]);
    let current = list("1.1.0", &["a", "b"]);
    fixture.control("a", &json!({"GC": {"exit": 1}}));
    let gc = gc(&fixture.runtime, &current).await;
    assert!(matches!(&gc, Gc::Asked { failures } if failures.len() == 1), "{gc:?}");
    assert_eq!(fixture.take_calls(), ["GC a", "GC b"]);
}

#[tokio::test]
async fn where_gc_is_not_wanted_nobody_is_asked() {
    let fixture = Fixture::new(&["a"]);
    let disabled =
        parse(&json!({"name": "net", "cniVersion": "1.1.0", "disableGC": true, "plugins": [{"type": "a"}]}));
    for list in [disabled, list("1.0.0", &["a"])] {
        assert!(matches!(gc(&fixture.runtime, &list).await, Gc::NotWanted));
    }
    assert_eq!(fixture.take_calls(), [""; 0]);
}

/// The file of its network is gone: it is removed by its record.
#[tokio::test]
async fn an_add_that_never_came_back_is_undone_by_its_own_record() {
    let fixture = Fixture::new(&["a"]);
    fixture.control("a", &json!({"ADD": {"abort": true}}));
    fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("one"), deadline()).await.unwrap_err();
    fixture.take_calls();
    let restarted = fixture.restarted();
    for record in restarted.own().await.unwrap() {
        restarted.del_container(&record.key.container_id, &record.netns, None, deadline()).await.unwrap();
    }
    assert_eq!(fixture.take_calls(), ["DEL a"]);
    assert_eq!(own(&restarted).await, []);
}
