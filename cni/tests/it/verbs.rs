//! CHECK, STATUS, VERSION.

use std::fs;

use berth_cni::{CniError, PluginFailure, Unavailable};
use serde_json::json;

use crate::fixture::{Fixture, attachment, deadline, list, parse, result_with_ip, with_causes};

#[tokio::test]
async fn check_asks_every_plugin_with_the_cached_result() {
    let fixture = Fixture::new(&["a", "b"]);
    fixture.control("a", &result_with_ip("10.0.0.2/24"));
    let current = list("1.0.0", &["a", "b"]);
    fixture.runtime.add(&current, &attachment("id1"), deadline()).await.unwrap();
    fixture.take_calls();
    fixture.restarted().check(&attachment("id1"), &current, deadline()).await.unwrap();
    for call in fixture.calls() {
        assert_eq!(call["stdin"]["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    }
    assert_eq!(fixture.take_calls(), ["CHECK a", "CHECK b"]);
}

#[tokio::test]
async fn check_before_0_4_is_an_error_and_a_disabled_one_is_not() {
    let fixture = Fixture::new(&["a"]);
    let error =
        fixture.runtime.check(&attachment("id1"), &list("0.3.1", &["a"]), deadline()).await.unwrap_err();
    assert!(matches!(error, CniError::CheckUnsupported(_)), "{error:?}");
    let disabled = parse(
        &json!({"name": "net", "cniVersion": "0.4.0", "disableCheck": true, "plugins": [{"type": "a"}]}),
    );
    fixture.runtime.check(&attachment("id1"), &disabled, deadline()).await.unwrap();
    assert_eq!(fixture.calls().len(), 0);
}

#[tokio::test]
async fn check_uses_a_convertible_cache_and_refuses_another() {
    let fixture = Fixture::new(&["a"]);
    fs::create_dir_all(fixture.cache().join("results")).unwrap();
    for (cached, good) in [
        (r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.2.3/24"}],"dns":{}}"#, true),
        (r#"{"cniVersion":"0.4567.0","ips":[{"version":"4","address":"10.1.2.3/24"}],"dns":{}}"#, false),
        ("adfadsfasdfasfdsafaf", false),
    ] {
        fs::write(fixture.cached_result("id1", "eth0"), cached).unwrap();
        match fixture.runtime.check(&attachment("id1"), &list("0.4.0", &["a"]), deadline()).await {
            Ok(()) => {
                assert!(good, "{cached}");
                let previous = fixture.calls()[0]["stdin"]["prevResult"].clone();
                assert_eq!(
                    previous,
                    json!({"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.1.2.3/24"}]})
                );
            }
            Err(error) => {
                assert!(!good && matches!(error, CniError::CachedResult { .. }), "{cached}: {error:?}");
            }
        }
    }
    assert_eq!(fixture.calls().len(), 1);
}

#[tokio::test]
async fn check_reports_what_the_plugin_says() {
    let fixture = Fixture::new(&["a", "b"]);
    fixture.control("a", &json!({"CHECK": {"stdout": r#"{"code":100,"msg":"address is gone"}"#, "exit": 1}}));
    let error =
        fixture.runtime.check(&attachment("id1"), &list("1.0.0", &["a", "b"]), deadline()).await.unwrap_err();
    assert_eq!(
        with_causes(&error),
        "CNI CHECK of network net failed in plugin a: address is gone (code 100)"
    );
    assert_eq!(fixture.take_calls(), ["CHECK a"]);
}

#[tokio::test]
async fn status_stops_at_the_first_no_and_keeps_its_code() {
    let fixture = Fixture::new(&["a", "b"]);
    let current = list("1.1.0", &["a", "b"]);
    fixture.runtime.status(&current, deadline()).await.unwrap();
    assert_eq!(fixture.take_calls(), ["STATUS a", "STATUS b"]);
    fixture.runtime.status(&list("1.0.0", &["a"]), deadline()).await.unwrap();
    assert_eq!(fixture.take_calls(), [""; 0]);
    for (code, meaning) in
        [(50, Some(Unavailable::NoAdd)), (51, Some(Unavailable::LimitedConnectivity)), (7, None)]
    {
        let answer = json!({"code": code, "msg": "plugin is down"}).to_string();
        fixture.control("a", &json!({"STATUS": {"stdout": answer, "exit": 1}}));
        let error = fixture.runtime.status(&current, deadline()).await.unwrap_err();
        assert_eq!(error.reported().unwrap().unavailable(), meaning);
        assert_eq!(fixture.take_calls(), ["STATUS a"]);
    }
}

#[tokio::test]
async fn versions_of_plugins() {
    let fixture = Fixture::new(&["a"]);
    let plugin = list("1.0.0", &["a"]).plugins()[0].kind.clone();
    assert_eq!(fixture.runtime.version(&plugin, deadline()).await.unwrap().len(), 7);
    // Plugins of 0.1.0 do not know the verb.
    fixture.control(
        "a",
        &json!({"VERSION": {"stdout": r#"{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}"#, "exit": 1}}),
    );
    assert_eq!(fixture.runtime.version(&plugin, deadline()).await.unwrap(), ["0.1.0"]);
    fixture.control("a", &json!({"VERSION": {"stdout": "text"}}));
    let error = fixture.runtime.version(&plugin, deadline()).await.unwrap_err();
    assert!(matches!(error, CniError::Version { source: PluginFailure::BadVersion(_), .. }), "{error:?}");
}

#[tokio::test]
async fn a_network_is_validated_against_its_plugins() {
    let fixture = Fixture::new(&["a", "b"]);
    let current = parse(&json!({"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "a", "capabilities": {"mac": true, "ips": false}}, {"type": "b", "capabilities": {"dns": true}}]}));
    let capabilities = fixture.runtime.validate(&current, deadline()).await.unwrap();
    assert_eq!(capabilities.into_iter().collect::<Vec<_>>(), ["dns", "mac"]);
    fixture.control("b", &json!({"VERSION": {"stdout": r#"{"cniVersion":"0.2.0"}"#}}));
    let error = fixture.runtime.validate(&current, deadline()).await.unwrap_err();
    assert!(matches!(error, CniError::VersionMismatch { .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        r#"plugin b does not support CNI 1.0.0 of network net; it supports ["0.1.0", "0.2.0"]"#
    );
}
