use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::attachment::Attachment;
use crate::config::NetworkList;
use crate::name::InterfaceName;

use super::*;

fn record(network: &str, id: &str, ifname: &str) -> Record {
    let conf = json!({"name": network, "cniVersion": "1.0.0", "plugins": [{"type": "a"}]});
    let list = NetworkList::parse(conf.to_string().as_bytes()).unwrap();
    Record::intent(
        &list,
        &Attachment::new(ContainerId::new(id).unwrap(), "/ns", InterfaceName::new(ifname).unwrap()),
    )
}

fn store(cache: &Path) -> Store {
    Store::new(cache, &cache.join("own"))
}

fn with_result(record: Record) -> Record {
    Record { result: json!({"cniVersion": "1.0.0"}).as_object().cloned(), ..record }
}

#[test]
fn the_intent_outlives_the_result_and_both_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir.path().join("cni"));
    let record = record("net", "id", "eth0");
    store.write_intent(&record).unwrap();
    assert_eq!(store.read(&record.key).as_ref(), Some(&record));
    assert_eq!(store.read_result(&record.key), CachedResult::Absent);
    store.write_result(&with_result(record.clone())).unwrap();
    assert!(matches!(store.read_result(&record.key), CachedResult::Present(_)));
    for (path, mode) in [
        ("cni/results/net-id-eth0", 0o600),
        ("cni/own/net@id@eth0", 0o600),
        ("cni/results", 0o700),
        ("cni/own", 0o700),
    ] {
        let found = fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{path}");
    }
    store.remove(&record.key).unwrap();
    store.remove(&record.key).unwrap();
    assert_eq!(store.read(&record.key), None);
    for dir in [&store.results, &store.own] {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    }
}

#[test]
fn attachments_to_one_network_have_separate_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let records = [record("net", "id", "eth0"), record("net", "id", "eth1"), record("net", "other", "eth0")];
    for record in &records {
        store.write_result(&with_result(record.clone())).unwrap();
    }
    let names: Vec<_> =
        store.of_container(&records[0].key.container_id).unwrap().into_iter().map(|r| r.key.ifname).collect();
    assert_eq!(names.iter().map(InterfaceName::as_str).collect::<Vec<_>>(), ["eth0", "eth1"]);
    store.remove(&records[0].key).unwrap();
    assert_eq!(store.cached().unwrap().keys.len(), 2);
}

#[test]
fn names_that_collide_in_libcni_do_not_mislead() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let (one, two) = (record("a-b", "c", "eth0"), record("a", "b-c", "eth0"));
    store.write_intent(&one).unwrap();
    store.write_intent(&two).unwrap();
    store.write_result(&with_result(one.clone())).unwrap();
    assert_eq!(store.read_result(&two.key), CachedResult::Absent);
    assert_eq!(store.read(&two.key), Some(two));
    assert_eq!(store.read(&one.key), Some(one));
}

#[test]
fn a_bare_result_of_an_old_runtime_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let key = record("net", "id", "eth0").key;
    fs::create_dir_all(&store.results).unwrap();
    let path = store.results.join("net-id-eth0");
    fs::write(&path, r#"{"cniVersion":"0.4.0","ips":[]}"#).unwrap();
    assert!(matches!(store.read_result(&key), CachedResult::Present(bare) if bare["cniVersion"] == "0.4.0"));
    assert_eq!(store.read(&key), None);
    fs::write(&path, "adfadsfasdfasfdsafaf").unwrap();
    assert!(matches!(store.read_result(&key), CachedResult::Invalid(_)));
    assert_eq!(store.cached().unwrap(), Cached { unreadable: vec![path], ..Cached::default() });
}

#[test]
fn a_directory_in_the_way_is_an_error_naming_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir.path().join("file"));
    fs::write(dir.path().join("file"), "").unwrap();
    let error = store.write_intent(&record("net", "id", "eth0")).unwrap_err();
    assert!(error.to_string().contains("file/own"), "{error}");
}

#[test]
fn only_what_is_in_our_own_directory_is_ours() {
    let dir = tempfile::tempdir().unwrap();
    let (us, other) = (store(dir.path()), Store::new(dir.path(), &dir.path().join("other")));
    let [ours, theirs, earlier] = ["ours", "theirs", "earlier"].map(|id| record("net", id, "eth0"));
    for (store, record) in [(&us, &ours), (&other, &theirs)] {
        store.write_intent(record).unwrap();
        store.write_result(&with_result(record.clone())).unwrap();
    }
    // Where several agents once had their records.
    let shared = Store::new(dir.path(), &dir.path().join("attachments"));
    shared.write_intent(&earlier).unwrap();
    assert_eq!(us.own().unwrap(), std::slice::from_ref(&ours));
    let all = [&earlier, &ours, &theirs].map(|record| record.key.clone());
    assert_eq!(us.cached().unwrap(), Cached { keys: all.into(), unreadable: Vec::new() });
    // By its container, an attachment of before is found and forgotten.
    assert_eq!(us.of_container(&earlier.key.container_id).unwrap(), std::slice::from_ref(&earlier));
    us.remove(&earlier.key).unwrap();
    assert_eq!(us.of_container(&earlier.key.container_id).unwrap(), []);
}

#[test]
fn a_pipe_among_the_records_is_none_and_nobody_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let record = record("net", "id", "eth0");
    fs::create_dir_all(&store.results).unwrap();
    let pipe = store.results.join("net-id-eth0");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(store.read(&record.key), None);
    assert!(matches!(store.read_result(&record.key), CachedResult::Invalid(_)));
    assert_eq!(store.cached().unwrap().unreadable, [pipe]);
}
