//! Who waits for whom, seen from the plugins.

use std::collections::BTreeSet;
use std::fs;

use berth_cni::{CniError, Gc};
use serde_json::json;
use tokio::time::Instant;

use crate::fixture::{Fixture, attachment, deadline, list, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_are_parallel_one_container_is_not_and_gc_is_alone() {
    let fixture = Fixture::new(&["a"]);
    let go = fixture.root.path().join("go");
    fixture.control("a", &json!({"ADD": {"wait_for": go}}));
    let current = list("1.1.0", &["a"]);
    let spawn_add = |id: &'static str| {
        let (runtime, list) = (fixture.runtime.clone(), current.clone());
        tokio::spawn(async move { runtime.add(&list, &attachment(id), deadline()).await.map(drop) })
    };
    let (one, two) = (spawn_add("one"), spawn_add("two"));
    // Both are inside their plugins at the same time.
    fixture.wait_for_calls(2).await;
    let del = fixture.runtime.del(&attachment("one"), Some(&current), soon()).await.unwrap_err();
    assert!(del.is_timeout() && del.to_string().contains("waited too long"), "{del:?}");
    let gc = fixture.runtime.gc(&current, &BTreeSet::new(), deadline()).await.unwrap();
    assert!(matches!(gc, Gc::Busy), "{gc:?}");
    assert_eq!(fixture.calls().len(), 2, "neither DEL nor GC ran beside the ADDs");
    // GC that was refused holds up nobody.
    let three = spawn_add("three");
    fixture.wait_for_calls(3).await;
    fs::write(&go, "").unwrap();
    for add in [one, two, three] {
        add.await.unwrap().unwrap();
    }
    let gc = fixture.runtime.gc(&current, &BTreeSet::new(), deadline()).await.unwrap();
    assert!(matches!(gc, Gc::Asked { .. }), "{gc:?}");
}

/// A plugin whose GC hangs is killed soon, however much time its caller has, and ADD goes on then and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gc_is_alone_and_short() {
    let fixture = Fixture::new(&["a"]);
    let go = fixture.root.path().join("go");
    fixture.control("a", &json!({"GC": {"wait_for": go}, "ADD": {"wait_for": go}}));
    let current = list("1.1.0", &["a"]);
    let gc = {
        let (runtime, list) = (fixture.runtime.clone(), current.clone());
        let late = deadline() + (deadline() - Instant::now()) * 2;
        tokio::spawn(async move { runtime.gc(&list, &BTreeSet::new(), late).await })
    };
    fixture.wait_for_calls(1).await;
    let add = {
        let (runtime, list) = (fixture.runtime.clone(), current.clone());
        tokio::spawn(async move { runtime.add(&list, &attachment("one"), deadline()).await.map(drop) })
    };
    fixture.wait_for_calls(2).await;
    // A GC that is still there beside the ADD ends well now.
    fs::write(&go, "").unwrap();
    add.await.unwrap().unwrap();
    let Gc::Asked { failures } = gc.await.unwrap().unwrap() else { panic!("the network was free") };
    assert!(failures.first().is_some_and(CniError::is_timeout), "{failures:?}");
    assert_eq!(fixture.take_calls(), ["GC a", "ADD a"]);
}

/// Many pods at once: each container's calls are a whole ADD then a whole DEL, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_containers_at_once() {
    const CONTAINERS: usize = 20;
    let fixture = Fixture::new(&["a", "b"]);
    let current = list("1.0.0", &["a", "b"]);
    let pods: Vec<_> = (0..CONTAINERS)
        .map(|index| {
            let (runtime, list) = (fixture.runtime.clone(), current.clone());
            tokio::spawn(async move {
                let attachment = attachment(&format!("pod{index}"));
                // Begun together; the locks put them in order.
                let (added, _deleted) = tokio::join!(
                    runtime.add(&list, &attachment, deadline()),
                    runtime.del(&attachment, None, deadline()),
                );
                added.map(drop)
            })
        })
        .collect();
    for pod in pods {
        pod.await.unwrap().unwrap();
    }
    for index in 0..CONTAINERS {
        let id = format!("pod{index}");
        let calls: Vec<_> = fixture
            .calls()
            .into_iter()
            .filter(|call| call["env"]["CNI_CONTAINERID"] == id.as_str())
            .map(|call| format!("{} {}", call["verb"].as_str().unwrap(), call["plugin"].as_str().unwrap()))
            .collect();
        let whole = ["ADD a", "ADD b", "DEL b", "DEL a"];
        assert!(calls == whole || calls == whole[..2], "{id}: {calls:?}");
    }
}
