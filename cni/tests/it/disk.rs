//! Disks that do not answer hold up no other task: whatever touches one does so on a thread of its own.

use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;

use berth_cni::Watch;
use futures::FutureExt as _;
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::fixture::{Fixture, attachment, deadline, list};

/// Runs a test in which no thread is free for what touches a disk.
fn without_threads(test: impl Future) {
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let (end, hangs) = mpsc::sync_channel::<()>(0);
    runtime.spawn_blocking(move || hangs.recv());
    runtime.block_on(test);
    drop(end);
}

fn waits(what: &str, work: impl Future) {
    assert!(pin!(work).now_or_never().is_none(), "{what} did not wait for a thread");
}

#[test]
fn nothing_touches_a_disk_on_the_thread_of_tasks() {
    let fixture = Fixture::new(&["a"]);
    let (runtime, current) = (&fixture.runtime, list("1.1.0", &["a", "missing"]));
    let missing = &current.plugins()[1].kind;
    let one = attachment("one");
    without_threads(async {
        waits("ADD", runtime.add(&current, &one, deadline()));
        waits("DEL", runtime.del_container(&one.container_id, &one.netns, None, deadline()));
        waits("GC", runtime.gc(&current, &BTreeSet::new(), deadline()));
        waits("the list of records", runtime.own());
        waits("the search for a plugin", runtime.version(missing, deadline()));
        waits("a watch", Watch::new(fixture.root.path()));
        let late = runtime.version(missing, Instant::now()).await.unwrap_err();
        assert!(late.is_timeout(), "the search for a plugin was not in time: {late:?}");
    });
    assert!(!fs::exists(fixture.own()).unwrap(), "a record was written");
    assert_eq!(fixture.take_calls(), [""; 0]);
}
