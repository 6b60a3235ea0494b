use crate::attachment::{CniArgs, TraceContext};
use crate::capability::CapabilityArgs;
use crate::name::NetworkName;
use crate::record::Key;

use super::*;

fn list(version: &str, plugins: &Value) -> NetworkList {
    let conf = json!({"name": "net", "cniVersion": version, "plugins": plugins});
    NetworkList::parse(conf.to_string().as_bytes()).unwrap()
}

fn attachment() -> Attachment {
    Attachment {
        args: CniArgs::new([("IgnoreUnknown", "1"), ("K", "V")]).unwrap(),
        capability_args: CapabilityArgs::new()
            .mac("m")
            .set("bandwidth", json!({"r": 1}))
            .set("other", json!(1)),
        ..Attachment::new(
            ContainerId::new("id1").unwrap(),
            "/run/netns/x",
            InterfaceName::new("eth0").unwrap(),
        )
    }
}

fn stdin(request: &Request) -> Value {
    serde_json::from_slice(&request.stdin).unwrap()
}

fn plugins(requests: &[Request]) -> Vec<&str> {
    requests.iter().map(|request| request.plugin.as_str()).collect()
}

fn env(request: &Request) -> Vec<(&str, &str)> {
    request.env.iter().map(|(key, value)| (*key, value.to_str().unwrap())).collect()
}

fn result() -> AddResult {
    AddResult::parse(br#"{"ips":[{"address":"10.1.2.3/24"}]}"#, SpecVersion::V1_0_0).unwrap()
}

#[test]
fn add_says_exactly_this() {
    let list =
        list("1.0.0", &json!([{"type": "p", "unknown": {"k": [1]}, "name": "own", "cniVersion": "0.1.0"}]));
    let request = add(&list, &list.plugins()[0], Some(&result()), &attachment(), "/a:/b".as_ref()).unwrap();
    assert_eq!(
        stdin(&request),
        json!({"type": "p", "unknown": {"k": [1]}, "name": "net", "cniVersion": "1.0.0",
            "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.1.2.3/24"}]}})
    );
    assert_eq!(
        env(&request),
        [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "id1"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_ARGS", "IgnoreUnknown=1;K=V"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/a:/b"),
        ]
    );
}

#[test]
fn a_trace_reaches_the_plugin() {
    let list = list("1.0.0", &json!([{"type": "p"}]));
    let trace = TraceContext { traceparent: Some("00-1-2-01".into()), ..TraceContext::default() };
    let request =
        add(&list, &list.plugins()[0], None, &Attachment { trace, ..attachment() }, "".as_ref()).unwrap();
    assert_eq!(env(&request).last(), Some(&("TRACEPARENT", "00-1-2-01")));
}

#[test]
fn capability_arguments_are_those_declared_and_given() {
    for (declared, expected) in [
        (json!({"mac": true, "bandwidth": false, "portMappings": true}), json!({"mac": "m"})),
        (json!({"mac": true, "bandwidth": true}), json!({"mac": "m", "bandwidth": {"r": 1}})),
        (json!({"portMappings": true, "mac": false}), Value::Null),
        (json!({}), Value::Null),
    ] {
        let list = list("1.0.0", &json!([{"type": "p", "capabilities": declared}]));
        for request in del(&list, None, &attachment(), "".as_ref()) {
            assert_eq!(stdin(&request)["runtimeConfig"], expected, "{declared}");
        }
    }
}

#[test]
fn del_is_in_reverse_with_the_final_result() {
    for (version, has_previous) in [("0.3.1", false), ("0.4.0", true), ("1.1.0", true)] {
        let list = list(version, &json!([{"type": "a"}, {"type": "b"}, {"type": "c"}]));
        let requests = del(&list, Some(&result()), &attachment(), "".as_ref());
        assert_eq!(plugins(&requests), ["c", "b", "a"]);
        assert!(requests.iter().all(|r| stdin(r).get("prevResult").is_some() == has_previous), "{version}");
    }
}

#[test]
fn check_depends_on_the_version_and_the_network() {
    let plan = |version: &str| {
        check(
            &list(version, &json!([{"type": "a"}, {"type": "b"}])),
            Some(&result()),
            &attachment(),
            "".as_ref(),
        )
        .unwrap()
    };
    assert_eq!(plan("0.3.1"), CheckPlan::Unsupported);
    let CheckPlan::Run(requests) = plan("0.4.0") else { panic!("0.4.0 has CHECK") };
    assert_eq!(plugins(&requests), ["a", "b"]);
    assert_eq!(
        stdin(&requests[1])["prevResult"]["ips"][0],
        json!({"version": "4", "address": "10.1.2.3/24"})
    );
    let disabled = br#"{"name":"n","cniVersion":"1.0.0","disableCheck":true,"plugins":[{"type":"a"}]}"#;
    let disabled = NetworkList::parse(disabled).unwrap();
    assert_eq!(check(&disabled, None, &attachment(), "".as_ref()), Ok(CheckPlan::Disabled));
}

fn cached(keys: &[(&str, &str)], unreadable: &[&str]) -> Cached {
    let key = |(network, id): &(&str, &str)| Key {
        network: NetworkName::new(*network).unwrap(),
        container_id: ContainerId::new(*id).unwrap(),
        ifname: InterfaceName::new("eth0").unwrap(),
    };
    Cached {
        keys: keys.iter().map(key).collect(),
        unreadable: unreadable.iter().map(PathBuf::from).collect(),
    }
}

#[test]
fn gc_keeps_everything_that_is_written_down_and_names_it_twice() {
    let written = cached(&[("net", "ours"), ("net", "theirs"), ("other", "elsewhere")], &[]);
    let kept = BTreeSet::from([ValidAttachment {
        container_id: ContainerId::new("kept").unwrap(),
        ifname: InterfaceName::new("eth1").unwrap(),
    }]);
    let current = list("1.1.0", &json!([{"type": "a"}, {"type": "b"}]));
    let GcPlan::Run(requests) = gc(&current, &written, &kept, "/bin".as_ref()) else {
        panic!("all is known")
    };
    assert_eq!(plugins(&requests), ["a", "b"]);
    let kept = json!([
        {"containerID": "kept", "ifname": "eth1"},
        {"containerID": "ours", "ifname": "eth0"},
        {"containerID": "theirs", "ifname": "eth0"},
    ]);
    assert_eq!(
        stdin(&requests[0]),
        json!({"type": "a", "name": "net", "cniVersion": "1.1.0",
            "cni.dev/valid-attachments": kept, "cni.dev/attachments": kept})
    );
    assert_eq!(
        env(&requests[0])[1..5],
        [("CNI_CONTAINERID", ""), ("CNI_NETNS", ""), ("CNI_ARGS", ""), ("CNI_IFNAME", "")]
    );
}

#[test]
fn gc_asks_nobody_where_it_is_not_wanted_or_a_list_may_be_too_short() {
    let disabled =
        br#"{"name":"net","cniVersion":"1.1.0","disableGC":"true","plugins":[{"type":"a"}]}"#.as_slice();
    let disabled = NetworkList::parse(disabled).unwrap();
    let [old, new] = ["1.0.0", "1.1.0"].map(|version| list(version, &json!([{"type": "a"}])));
    let whole = cached(&[("net", "id")], &[]);
    // A file that cannot be read may be of any network.
    let torn = cached(&[("net", "id")], &["/cache/results/x"]);
    for (list, cached, expected) in [
        (&old, &whole, GcPlan::NotWanted),
        (&disabled, &whole, GcPlan::NotWanted),
        (&disabled, &torn, GcPlan::NotWanted),
        (&new, &torn, GcPlan::Unsure(vec!["/cache/results/x".into()])),
    ] {
        assert_eq!(gc(list, cached, &BTreeSet::new(), "".as_ref()), expected, "{list:?} {cached:?}");
    }
}

#[test]
fn status_exists_since_1_1() {
    assert!(status(&list("1.0.0", &json!([{"type": "a"}])), "".as_ref()).is_empty());
    let requests = status(&list("1.1.0", &json!([{"type": "a"}])), "".as_ref());
    assert_eq!(stdin(&requests[0]), json!({"type": "a", "name": "net", "cniVersion": "1.1.0"}));
    assert_eq!(env(&requests[0])[0], ("CNI_COMMAND", "STATUS"));
}

#[test]
fn version_satisfies_the_oldest_plugins() {
    let request = version(&PluginType::new("p").unwrap());
    assert_eq!(stdin(&request), json!({"cniVersion": "1.1.0"}));
    assert_eq!(
        env(&request),
        [
            ("CNI_COMMAND", "VERSION"),
            ("CNI_CONTAINERID", ""),
            ("CNI_NETNS", "dummy"),
            ("CNI_ARGS", ""),
            ("CNI_IFNAME", "dummy"),
            ("CNI_PATH", "dummy"),
        ]
    );
}
