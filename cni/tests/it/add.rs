//! ADD: chaining, what plugins are told, what is recorded.

use std::fs;

use berth_cni::{CniError, PluginFailure, Record};
use serde_json::json;

use crate::fixture::{Fixture, attachment, deadline, key, list, parse, result_with_ip, with_causes};

#[tokio::test]
async fn every_plugin_gets_the_result_of_the_one_before() {
    let fixture = Fixture::new(&["a", "b", "c"]);
    fixture.control("a", &result_with_ip("10.0.0.2/24"));
    let dns = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}], "dns": {"domain": "d"}});
    fixture.control("b", &json!({"ADD": {"stdout": dns.to_string(), "stderr": "only a note"}}));
    let list = list("1.0.0", &["a", "b", "c"]);
    let result = fixture.runtime.add(&list, &attachment("id1"), deadline()).await.unwrap();
    assert_eq!(result.pod_ips(&key("id1").ifname), ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(result.dns.domain, "d");
    let calls = fixture.calls();
    let stdin: Vec<_> = calls.iter().map(|call| call["stdin"].clone()).collect();
    assert_eq!(stdin[0], json!({"type": "a", "name": "net", "cniVersion": "1.0.0"}));
    assert_eq!(stdin[1]["prevResult"], json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}));
    assert_eq!(stdin[2]["prevResult"], dns);
    let cached = Record::decode(&fs::read(fixture.cached_result("id1", "eth0")).unwrap()).unwrap();
    assert_eq!(serde_json::Value::from(cached.result.unwrap()), dns);
    assert_eq!(cached.config, list.bytes());
    assert_eq!(fixture.runtime.result(&key("id1")).await.unwrap(), Some(result));
}

#[tokio::test]
async fn plugins_inherit_the_environment_with_ours_on_top() {
    let fixture = Fixture::new(&["a"]);
    fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap();
    let env = &fixture.calls()[0]["env"];
    assert_eq!(env["PATH"], std::env::var("PATH").unwrap());
    assert_eq!(env["CNI_COMMAND"], "ADD");
    assert_eq!(env["CNI_CONTAINERID"], "id1");
    assert_eq!(env["CNI_NETNS"], "/proc/self/ns/net");
    assert_eq!(env["CNI_IFNAME"], "eth0");
    assert_eq!(env["CNI_ARGS"], "");
    assert_eq!(env["CNI_PATH"], fixture.bin().to_str().unwrap());
}

#[tokio::test]
async fn a_result_of_an_older_version_reaches_the_next_plugin_in_the_lists_version() {
    let fixture = Fixture::new(&["old", "new"]);
    let old = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1"}});
    fixture.control("old", &json!({"ADD": {"stdout": old.to_string()}}));
    fixture.runtime.add(&list("1.0.0", &["old", "new"]), &attachment("id1"), deadline()).await.unwrap();
    assert_eq!(
        fixture.calls()[1]["stdin"]["prevResult"],
        json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}]})
    );
}

#[tokio::test]
async fn the_first_failure_ends_the_chain_and_caches_nothing() {
    let fixture = Fixture::new(&["a", "b", "c"]);
    fixture
        .control("b", &json!({"ADD": {"stdout": r#"{"code":7,"msg":"banana","details":"why"}"#, "exit": 1}}));
    let error = fixture
        .runtime
        .add(&list("1.0.0", &["a", "b", "c"]), &attachment("id1"), deadline())
        .await
        .unwrap_err();
    assert_eq!(error.reported().unwrap().code, 7);
    assert_eq!(with_causes(&error), "CNI ADD of network net failed in plugin b: banana; why (code 7)");
    assert_eq!(fixture.take_calls(), ["ADD a", "ADD b"]);
    assert!(!fixture.cached_result("id1", "eth0").exists());
    assert_eq!(fixture.runtime.result(&key("id1")).await.unwrap(), None);
    // The intent is there, and DEL undoes it all from it.
    assert_eq!(fixture.restarted().recorded(&key("id1").container_id).await.unwrap().len(), 1);
    fixture.restarted().del(&attachment("id1"), None, deadline()).await.unwrap();
    assert_eq!(fixture.take_calls(), ["DEL c", "DEL b", "DEL a"]);
}

#[tokio::test]
async fn an_earlier_add_of_the_same_attachment_is_undone_first() {
    let fixture = Fixture::new(&["a", "b"]);
    fixture.control("b", &json!({"ADD": {"exit": 1}}));
    let earlier = fixture.runtime.add(&list("1.0.0", &["a", "b"]), &attachment("id1"), deadline()).await;
    earlier.unwrap_err();
    // The configuration has changed since: the DEL is still by the old one.
    fixture.take_calls();
    fixture.restarted().add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap();
    assert_eq!(fixture.take_calls(), ["DEL b", "DEL a", "ADD a"]);
}

#[tokio::test]
async fn a_missing_plugin_is_named_with_the_directories() {
    let fixture = Fixture::new(&[]);
    let error =
        fixture.runtime.add(&list("1.0.0", &["nope"]), &attachment("id1"), deadline()).await.unwrap_err();
    let CniError::Plugin { source: PluginFailure::NotFound { plugin, searched }, .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((plugin.as_str(), searched.as_slice()), ("nope", [fixture.bin()].as_slice()));
}

#[tokio::test]
async fn an_unwritable_cache_fails_before_any_plugin_runs() {
    let fixture = Fixture::new(&["a"]);
    fs::write(fixture.cache(), "a file in the way").unwrap();
    let error =
        fixture.runtime.add(&list("1.0.0", &["a"]), &attachment("id1"), deadline()).await.unwrap_err();
    assert!(matches!(error, CniError::Store(_)), "{error:?}");
    assert_eq!(fixture.calls().len(), 0);
}

#[tokio::test]
async fn capabilities_reach_the_plugins_that_declare_them() {
    let fixture = Fixture::new(&["a", "b"]);
    let list = parse(&json!({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "a", "capabilities": {"mac": true}}, {"type": "b"}]}));
    let attachment =
        attachment("id1").with_capabilities(berth_cni::CapabilityArgs::new().mac("m").cgroup_path("/c"));
    fixture.runtime.add(&list, &attachment, deadline()).await.unwrap();
    fixture.restarted().del(&attachment, None, deadline()).await.unwrap();
    let calls = fixture.calls();
    for (index, expected) in
        [(0, json!({"mac": "m"})), (1, json!(null)), (2, json!(null)), (3, json!({"mac": "m"}))]
    {
        assert_eq!(calls[index]["stdin"]["runtimeConfig"], expected, "{index}");
    }
}
